//! Rounded inputs against those of compressed-tensors (`tools/oracle/heavy/golden_inputs.py`), and what configurations say.

use std::collections::BTreeMap;

use roofline_core::hash::fnv1a;
use serde::Deserialize;

use super::{pattern::matches, *};
use crate::{
    Checkpoint,
    checkpoint::{SINGLE, tests::write},
    scratch::Scratch,
    stored::StoredTensor,
};

#[derive(Deserialize)]
struct Golden {
    stored: f32,
    whole: f32,
    hashes: BTreeMap<String, BTreeMap<String, String>>,
}

const ROWS: usize = 4;
const COLUMNS: usize = 256;

/// The numbers of the script.
fn numbers() -> Vec<f64> {
    let (mut state, mut all) = (7u64, Vec::new());
    for row in 0..ROWS {
        for column in 0..COLUMNS {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let mut value = (state >> 40) as f64 / f64::from(1 << 23) - 1.0;
            value *= 2f64.powi(2 * row as i32 - 3);
            value *= if column % 61 == 0 { 8.0 } else { 1.0 };
            all.push(if row == 3 && column < 128 { 0.0 } else { value });
        }
    }
    all
}

fn bytes<R: Rounding>() -> Vec<u8> {
    let mut all = vec![0; ROWS * COLUMNS * R::DTYPE.bytes()];
    for (value, out) in numbers().into_iter().zip(all.chunks_exact_mut(R::DTYPE.bytes())) {
        R::write(R::round(value as f32), out);
    }
    all
}

/// A zero has no sign that matters.
fn without_negative_zeros<R: Rounding>(mut bytes: Vec<u8>) -> Vec<u8> {
    for one in bytes.chunks_exact_mut(R::DTYPE.bytes()) {
        if R::read(one) == 0.0 {
            one.fill(0);
        }
    }
    bytes
}

fn check<R: Rounding>(name: &str, inputs: Inputs, hash: &str) {
    let from = bytes::<R>();
    let mut to = vec![0; from.len()];
    inputs.round(R::DTYPE, COLUMNS, &from, &mut to, &mut Vec::new());
    assert_ne!(from, to, "{name}: nothing was rounded");
    let to = without_negative_zeros::<R>(to);
    assert_eq!(format!("{:016x}", fnv1a(&to)), hash, "{name} in {}: {inputs}", R::DTYPE);
    // Rows are rounded alone, unless they share a scale.
    if inputs.scales != Scales::Pass {
        let row = from.len() / ROWS;
        let mut one = vec![0; row];
        inputs.round(R::DTYPE, COLUMNS, &from[2 * row..3 * row], &mut one, &mut Vec::new());
        assert_eq!(without_negative_zeros::<R>(one), &to[2 * row..3 * row], "{name}");
    }
}

#[test]
fn inputs_are_rounded_as_the_library_does() {
    let golden: Golden = serde_json::from_str(include_str!("../../tests/golden/inputs.json")).unwrap();
    let of = |name: &str| match name {
        "int8 token" => Inputs::new(Number::Int(8), Scales::Token),
        "int8-zero token" => Inputs::new(Number::IntZero(8), Scales::Token),
        "int4 token" => Inputs::new(Number::Int(4), Scales::Token),
        "e4m3 token" => Inputs::new(Number::E4m3, Scales::Token),
        "e4m3 pass" => Inputs::new(Number::E4m3, Scales::Pass),
        "e4m3 group 128" => Inputs::new(Number::E4m3, Scales::Group(128)),
        "e4m3 stored" => Inputs::new(Number::E4m3, Scales::Stored(golden.stored)),
        "e2m1 powers" => Inputs::new(Number::E2m1, Scales::Powers),
        "e4m3 powers" => Inputs::new(Number::E4m3, Scales::Powers),
        "e2m1 local" => Inputs::new(Number::E2m1, Scales::Local(16, golden.whole)),
        other => panic!("{other} is new"),
    };
    for (name, hashes) in &golden.hashes {
        check::<Bf16>(name, of(name), &hashes["BF16"]);
        check::<F16>(name, of(name), &hashes["F16"]);
        check::<F32>(name, of(name), &hashes["F32"]);
    }
    assert_eq!(golden.hashes.len(), 10);
}

/// A number that is none spoils those that share its scale, and nothing panics.
#[test]
fn what_is_no_number_stays_none() {
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut row = [1.0f32; 32];
        row[20] = bad;
        let from: Vec<u8> = row.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut to = vec![0; from.len()];
        Inputs::new(Number::E4m3, Scales::Group(16)).round(Dtype::F32, 32, &from, &mut to, &mut Vec::new());
        let got: Vec<f32> = to.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        assert!(got[..16].iter().all(|value| *value == 1.0) && got[16..].iter().all(|value| value.is_nan()), "{got:?}");
    }
}

#[test]
fn patterns_match_as_python_does() {
    let module = "model.layers.12.mlp.experts.3.down_proj";
    for (pattern, found) in [
        (".*", true),
        (r".*\.experts\.\d+\..*", true),
        ("model.layers.12", true),
        ("layers.12", false),
        (".*down_proj$", true),
        (".*down_pro$", false),
        (".*(q|k|v|o)_proj", false),
        (".*(gate|up|down)_proj$", true),
        (r"^model\.layers\.(0|1)\..*", false),
        (r"model\.layers\.[0-9]\.", false),
        (r"model\.layers\.[0-9]{2}\.mlp", true),
        (r"(?:model\.)?layers?.*", true),
        ("mode[^k]?.*proj", true),
        ("a|model", true),
        ("", true),
    ] {
        assert_eq!(matches(pattern, module), Some(found), "{pattern}");
    }
    for pattern in ["(?!model).*", r"\bmodel", "(model", "a*?", "[a", "x{2,3}"] {
        assert_eq!(matches(pattern, module), None, "{pattern}");
    }
}

/// Three products in FP8 and one that is kept, with what a configuration says and a stored scale of 0.5, or none.
fn said(
    scratch: &Scratch,
    config: &serde_json::Value,
    scale: Option<&'static str>,
) -> Result<Vec<(String, Inputs)>, String> {
    let one = vec![0x3f, 0x80, 0, 0].into_iter().rev().collect::<Vec<u8>>();
    let mut tensors = vec![("lm_head.weight".to_owned(), Dtype::Bf16, vec![2, 64], vec![0; 256])];
    for module in ["layers.0.a", "layers.0.b", "layers.1.a"] {
        tensors.push((format!("{module}.weight"), Dtype::F8E4M3, vec![2, 64], vec![0; 128]));
        tensors.push((format!("{module}.weight_scale"), Dtype::F32, vec![1], one.clone()));
        if let Some(part) = scale {
            tensors.push((format!("{module}.{part}"), Dtype::F32, vec![1], 0.5f32.to_le_bytes().to_vec()));
        }
    }
    let tensors: Vec<_> =
        tensors.iter().map(|(name, dtype, shape, bytes)| (&**name, *dtype, &shape[..], bytes.clone())).collect();
    write(&scratch.path().join(SINGLE), &tensors);
    let config = serde_json::json!({ "quantization_config": config }).to_string();
    std::fs::write(scratch.path().join("config.json"), config).unwrap();
    let checkpoint = Checkpoint::open(scratch.path()).unwrap();
    let stored = StoredTensor::all(&checkpoint).unwrap();
    let all = Inputs::all(&checkpoint, &stored).map_err(|error| error.to_string())?;
    Ok(all.into_iter().collect())
}

#[test]
fn configurations_say_which_inputs_are_rounded() {
    let scratch = Scratch::new("inputs");
    let compressed = |groups: serde_json::Value| serde_json::json!({ "quant_method": "compressed-tensors", "config_groups": groups });
    let token = serde_json::json!({ "num_bits": 8, "type": "float", "strategy": "token", "dynamic": true });
    let fixed = serde_json::json!({ "num_bits": 8, "type": "float", "strategy": "tensor" });
    let one = |inputs: &serde_json::Value| {
        compressed(serde_json::json!({ "g": { "targets": ["Linear"], "input_activations": inputs } }))
    };
    let names = |all: Vec<(String, Inputs)>| all.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    // The head is kept: it is in no codes.
    let all = said(&scratch, &one(&token), None).unwrap();
    assert!(all.iter().all(|(_, inputs)| *inputs == Inputs::new(Number::E4m3, Scales::Token)));
    assert_eq!(names(all), ["layers.0.a.weight", "layers.0.b.weight", "layers.1.a.weight"]);
    let all = said(&scratch, &one(&fixed), Some("input_scale")).unwrap();
    assert_eq!(all[2].1, Inputs::new(Number::E4m3, Scales::Stored(0.5)));
    assert_eq!(said(&scratch, &one(&serde_json::Value::Null), None).unwrap(), []);
    // Names go before patterns, and those before classes.
    let several = compressed(serde_json::json!({
        "rest": { "targets": ["Linear"], "input_activations": null },
        "pattern": { "targets": [r"re:.*layers\.0\..*"], "input_activations": token },
        "name": { "targets": ["model.layers.0.b"], "input_activations": fixed },
    }));
    let all = said(&scratch, &several, Some("input_scale")).unwrap();
    assert_eq!(all[0], ("layers.0.a.weight".to_owned(), Inputs::new(Number::E4m3, Scales::Token)));
    assert_eq!(all[1], ("layers.0.b.weight".to_owned(), Inputs::new(Number::E4m3, Scales::Stored(0.5))));
    assert_eq!(all.len(), 2);
    // Other libraries.
    let fp8 = |scheme: &str| serde_json::json!({ "quant_method": "fp8", "activation_scheme": scheme });
    let all = said(&scratch, &fp8("static"), Some("input_scale")).unwrap();
    assert_eq!(all[0].1, Inputs::new(Number::E4m3, Scales::Stored(0.5)).in_single());
    assert_eq!(said(&scratch, &fp8("dynamic"), None).unwrap()[0].1.scales, Scales::Token);
    let modelopt = serde_json::json!({ "quant_method": "modelopt" });
    assert_eq!(said(&scratch, &modelopt, None).unwrap(), []);
    assert_eq!(said(&scratch, &modelopt, Some("input_scale")).unwrap()[0].1.scales, Scales::Stored(0.5));
    // What is not understood is an error that names the weight, never another model.
    for (config, why) in [
        (one(&fixed), "a scale that is missing: `input_scale`"),
        (
            one(&serde_json::json!({ "num_bits": 6, "type": "float", "strategy": "token", "dynamic": true })),
            "a way that",
        ),
        (one(&serde_json::json!({ "type": "float", "group_size": 48, "dynamic": true })), "has 64 inputs"),
        (fp8("sometimes"), "an unknown activation scheme"),
    ] {
        let error = said(&scratch, &config, None).unwrap_err();
        assert!(error.starts_with("weight `layers.0.a.weight`: ") && error.contains(why), "{error}");
    }
}

/// What predictions call by a name is what that name makes.
#[test]
fn names_of_formats_come_back() {
    for format in [Format::INT8, Format::FP8, Format::FP8.in_tensors(), Format::NVFP4, Format::MXFP4, Format::MXFP8] {
        assert_eq!(Inputs::of(format).unwrap().format(), Some(format));
    }
    assert_eq!(Inputs::of(Format::BF16), None);
}
