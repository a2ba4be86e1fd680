//! Every encoding against the libraries that define it. `golden/*.py` made the vectors and say how.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{collections::HashMap, fs, path::PathBuf};

use roofline_core::{
    Dim, Format,
    format::{Element, Overflow},
    hash::fnv1a,
};
use serde_json::Value;

const ELEMENTS: &[(&str, Element)] = &[
    ("fp8-e4m3", Element::Fp8E4M3),
    ("fp8-e5m2", Element::Fp8E5M2),
    ("fp6-e3m2", Element::Fp6E3M2),
    ("fp6-e2m3", Element::Fp6E2M3),
    ("fp4-e2m1", Element::Fp4E2M1),
];

fn golden(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn json(name: &str) -> HashMap<String, Value> {
    serde_json::from_slice(&golden(name)).unwrap()
}

/// The inputs of `golden/elements.py`, made the same way.
fn inputs() -> Vec<f32> {
    let mut state: u64 = 0x5eed;
    (0..100_000u64)
        .map(|i| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^= z >> 31;
            let exponent = if i % 2 == 1 { (z >> 32) % 255 } else { 107 + (z >> 32) % 40 };
            let mantissa = z & if i % 8 < 2 { 0x7c_0000 } else { 0x7f_ffff };
            f32::from_bits(((z >> 63) << 31 | exponent << 23 | mantissa) as u32)
        })
        .collect()
}

#[test]
fn every_code_decodes_as_in_ml_dtypes() {
    let tables = json("elements.json");
    for (name, element) in ELEMENTS {
        let table = tables[*name].as_array().unwrap();
        assert_eq!(table.len(), 1 << element.bits());
        for (code, expected) in table.iter().enumerate() {
            let value = element.decode(code as u64);
            match expected {
                Value::Null => assert!(value.is_nan(), "{name} {code}"),
                Value::String(text) => assert_eq!(value.to_string(), *text, "{name} {code}"),
                number => assert_eq!(f64::from(value), number.as_f64().unwrap(), "{name} {code}"),
            }
        }
    }
}

#[test]
fn every_sixteen_bit_code_decodes_as_in_numpy() {
    let tables = json("elements.json");
    for (name, element) in [("fp16", Element::Fp16), ("bf16", Element::Bf16)] {
        let values = (0..1u64 << 16).map(|code| element.decode(code)).filter(|value| value.is_finite());
        assert_eq!(digest(values), tables[name].as_str().unwrap(), "{name}");
    }
}

#[test]
fn a_hundred_thousand_values_encode_as_in_ml_dtypes() {
    let inputs = inputs();
    for (name, element) in ELEMENTS.iter().copied().chain([("fp16", Element::Fp16), ("bf16", Element::Bf16)]) {
        let expected = golden(&format!("{name}.bin"));
        let width = expected.len() / inputs.len();
        for (value, code) in inputs.iter().zip(expected.chunks(width)) {
            let code = code.iter().rev().fold(0, |code, byte| code << 8 | u64::from(*byte));
            let ours = element.encode(*value, Overflow::Special);
            // NaN (past the largest value of E4M3) has no sign to speak of.
            let same = ours == code || element.decode(ours).is_nan() && element.decode(code).is_nan();
            assert!(same, "{name}: {value:e} became {ours:#x}, expected {code:#x}");
        }
    }
    for (value, code) in inputs.iter().zip(golden("int8.bin")) {
        assert_eq!(Element::Int8.encode(*value, Overflow::Saturate), u64::from(code), "int8: {value:e}");
    }
}

/// Vectors made with torch 2.15 (whose plain cast saturates too) and bitsandbytes.
#[test]
fn clamped_casts_are_those_of_torch() {
    let vectors = json("torch.json");
    let numbers = |key: &str| vectors[key].as_array().unwrap().clone();
    let inputs: Vec<f32> = numbers("vectors_f32")
        .iter()
        .map(|hex| f32::from_bits(u32::from_str_radix(hex.as_str().unwrap(), 16).unwrap()))
        .collect();
    for (key, element) in [
        ("e4m3fn_clamped_rne", Element::Fp8E4M3),
        ("e4m3fn_raw_torch_cast", Element::Fp8E4M3),
        ("e5m2_clamped_rne", Element::Fp8E5M2),
        ("e2m1_rne_sat", Element::Fp4E2M1),
    ] {
        for (value, code) in inputs.iter().zip(numbers(key)) {
            let ours = element.encode(*value, Overflow::Saturate);
            assert_eq!(ours, code.as_u64().unwrap(), "{key}: {value:e}");
        }
    }
    for (code, value) in numbers("nf4").iter().enumerate() {
        assert_eq!(Element::Nf4.decode(code as u64), value.as_f64().unwrap() as f32);
    }
}

/// A block whose only value is 4 * 2^(code - 127) must get exactly that E8M0 scale: 4 is FP4's largest power of two.
#[test]
fn every_e8m0_scale_is_that_of_ml_dtypes() {
    let table = json("elements.json")["e8m0"].as_array().unwrap().clone();
    assert_eq!(table.len(), 256);
    for (code, scale) in table.iter().enumerate().filter_map(|(code, scale)| Some((code, scale.as_f64()?))) {
        let value = (4.0 * scale) as f32;
        if value.is_finite() {
            let encoded = Format::MXFP4.encode(&[value], Dim::ONE).unwrap();
            assert_eq!(encoded.scales, [code as u8]);
            assert_eq!(encoded.decode(), [value]);
        }
    }
}

fn hex(value: &Value) -> Vec<u8> {
    let text = value.as_str().unwrap();
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// The matrix of `golden/blocks.py`.
fn matrix() -> Vec<f32> {
    let halves = hex(&json("blocks.json")["input_bf16"]);
    halves.chunks(2).map(|half| Element::Bf16.decode(u64::from(u16::from_le_bytes([half[0], half[1]])))).collect()
}

#[test]
fn packed_tensors_are_those_of_the_libraries() {
    let blocks = json("blocks.json");
    let values = matrix();
    let columns = Dim::new("columns", blocks["columns"].as_u64().unwrap()).unwrap();
    let encode = |name: &str| name.parse::<Format>().unwrap().encode(&values, columns).unwrap();

    for name in ["mxfp4", "mxfp8-e4m3"] {
        let encoded = encode(name);
        assert_eq!(encoded.scales, hex(&blocks[name]["scales"]), "{name} scales");
        assert_eq!(
            without_negative_zero(&encoded.codes, name),
            without_negative_zero(&hex(&blocks[name]["codes"]), name)
        );
    }

    let nf4 = encode("nf4");
    // bitsandbytes puts the even element into the high nibble.
    let swapped: Vec<u8> = nf4.codes.iter().map(|byte| byte.rotate_left(4)).collect();
    assert_eq!(swapped, hex(&blocks["nf4"]["codes_high_nibble_first"]));
    assert_eq!(nf4.scales, hex(&blocks["nf4"]["scales"]));

    let double = encode("nf4-dq");
    assert_eq!(double.codes, nf4.codes);
    assert_eq!(double.scales, hex(&blocks["nf4-dq"]["scales"]));
    assert_eq!(double.zeros, hex(&blocks["nf4-dq"]["second"]));
    let offset = f32::from_le_bytes(double.tensor[..4].try_into().unwrap());
    assert!((f64::from(offset) / blocks["nf4-dq"]["offset"].as_f64().unwrap() - 1.0).abs() < 1e-6);
}

/// Whole blocks, row after row, as a GGUF file holds them.
#[test]
fn blocks_of_ggml_are_those_of_ggml() {
    let values = matrix();
    let golden = json("gguf.json");
    let types = golden["types"].as_object().unwrap();
    assert_eq!(types.len(), roofline_core::format::GgufBlock::ALL.len());
    for (name, of) in types {
        let format: Format = name.parse().unwrap();
        let mut encoded = format.encode(&values, Dim::new("columns", 256).unwrap()).unwrap();
        let theirs = hex(&of["bytes"]);
        assert_eq!(
            (encoded.len(), encoded.codes.len()),
            (theirs.len(), theirs.len()),
            "{name}: blocks and nothing else"
        );
        // Behind 32 zeros, of which the third row begins, ggml's IQ3_S loses its place.
        let row = theirs.len() / (values.len() / 256);
        let odd = |at: &usize| name == "iq3_s" && at / row == 2;
        let different = (0..theirs.len()).filter(|at| !odd(at)).find(|at| encoded.codes[*at] != theirs[*at]);
        assert_eq!(different, None, "{name}");
        encoded.codes = theirs;
        assert_eq!(digest(encoded.decode()), of["decoded"].as_str().unwrap(), "{name}");
    }
}

/// FNV-1a of the values as little-endian bytes, in hexadecimal.
fn digest(values: impl IntoIterator<Item = f32>) -> String {
    let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
    format!("{:016x}", fnv1a(&bytes))
}

/// compressed-tensors drops the sign of zero codes; we keep it. Both decode to zero.
fn without_negative_zero(codes: &[u8], name: &str) -> Vec<u8> {
    let nibble = |nibble: u8| if nibble == 8 { 0 } else { nibble };
    let clean = |byte: &u8| match name {
        "mxfp4" => nibble(byte & 15) | nibble(byte >> 4) << 4,
        _ if *byte == 0x80 => 0,
        _ => *byte,
    };
    codes.iter().map(clean).collect()
}
