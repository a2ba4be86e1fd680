//! Against what ggml's own C and gguf's Python give.

use roofline_core::{
    format::{GgufBlock, gguf::half::from_bf16},
    hash::fnv1a,
};

use super::*;

struct Golden(serde_json::Value);

impl Golden {
    fn read() -> Self {
        Self(serde_json::from_str(include_str!("../../tests/golden/ggml.json")).unwrap())
    }

    fn hex(value: &serde_json::Value) -> Vec<u8> {
        let text = value.as_str().unwrap();
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    fn input(&self) -> Vec<f32> {
        let bytes = Self::hex(&self.0["input"]);
        bytes.chunks_exact(2).map(|pair| from_bf16(u16::from_le_bytes([pair[0], pair[1]]))).collect()
    }
}

fn encoded(ty: Type, values: &[f32]) -> Vec<u8> {
    let mut out = vec![0; ty.bytes(values.len() as u64).unwrap() as usize];
    encode(ty, values, &mut out);
    out
}

fn hash(values: &[f32]) -> u64 {
    fnv1a(&values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())
}

/// Rows are the same. But for the third, which begins with zeros: behind those, ggml's `IQ3_S` loses its place.
fn same(ty: Type, ours: &[u8], theirs: &[u8]) {
    let row = ours.len() / 8;
    let pairs = ours.chunks_exact(row).zip(theirs.chunks_exact(row)).enumerate();
    let different: Vec<usize> = pairs.filter(|(_, (ours, theirs))| ours != theirs).map(|(at, _)| at).collect();
    let expected: &[usize] = if ty == Type::Iq3S { &[2] } else { &[] };
    assert_eq!((different.as_slice(), ours.len()), (expected, theirs.len()), "{ty}");
}

#[test]
fn bytes_are_those_of_ggml() {
    let golden = Golden::read();
    let input = golden.input();
    let mut checked = 0;
    for (name, of) in golden.0["types"].as_object().unwrap() {
        let ty = Type::named(name).unwrap();
        if ty.is_written() {
            same(ty, &encoded(ty, &input), &Golden::hex(&of["bytes"]));
            checked += 1;
        }
    }
    assert_eq!(checked, 21);
}

#[test]
fn bytes_with_an_importance_matrix_are_those_of_ggml() {
    let input = Golden::read().input();
    let golden: serde_json::Value =
        serde_json::from_str(include_str!("../../tests/golden/ggml_importance.json")).unwrap();
    let importance: Vec<f32> = Golden::hex(&golden["importance"])
        .chunks_exact(2)
        .map(|pair| from_bf16(u16::from_le_bytes([pair[0], pair[1]])))
        .collect();
    let mut checked = 0;
    for (name, theirs) in golden["types"].as_object().unwrap() {
        let ty = Type::named(name).unwrap();
        let mut ours = vec![0; ty.bytes(input.len() as u64).unwrap() as usize];
        encode_weighted(ty, &input, &importance, &mut ours);
        same(ty, &ours, &Golden::hex(theirs));
        checked += 1;
    }
    assert_eq!(checked, 19);
}

#[test]
fn values_are_those_of_gguf() {
    let golden = Golden::read();
    for (name, of) in golden.0["types"].as_object().unwrap() {
        let ty = Type::named(name).unwrap();
        let mut values = vec![0.0; 2048];
        assert!(decode(ty, &Golden::hex(&of["bytes"]), 1.0, &mut values), "{name}");
        assert_eq!(format!("{:016x}", hash(&values)), of["decoded"].as_str().unwrap(), "{name}");
    }
}

#[test]
fn scaled_nvfp4_has_the_codes_of_compressed_tensors() {
    let golden = Golden::read();
    let theirs = |name: &str| Golden::hex(&golden.0["nvfp4_scaled"][name]);
    let input = golden.input();
    let peak = input.iter().fold(0f32, |peak, x| peak.max(x.abs()));
    assert_eq!(divisor(peak).to_le_bytes().to_vec(), theirs("weight_global_scale"));
    let mut ours = vec![0; 8 * 4 * 36];
    encode_scaled(&input, divisor(peak), &mut ours);
    let (scales, packed) = (theirs("weight_scale"), theirs("weight_packed"));
    for (at, block) in ours.chunks_exact(36).enumerate() {
        assert_eq!(block[..4], scales[4 * at..4 * at + 4], "block {at}");
        for weight in 0..64 {
            let code = (packed[32 * at + weight / 2] >> (weight % 2 * 4)) & 15;
            let byte = block[4 + weight / 16 * 8 + weight % 8];
            assert_eq!((byte >> (weight % 16 / 8 * 4)) & 15, code, "block {at}, weight {weight}");
        }
    }
}

/// Weights of many kinds: normal, heavy-tailed, constant, of one sign, tiny, with zeros.
fn assorted(weights: usize) -> Vec<f32> {
    let mut state = 7u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..weights)
        .map(|at| {
            let x: f32 = (0..6).map(|_| uniform()).sum();
            match at / 128 % 8 {
                0 => x * 0.02,
                1 => x * x * x * x * x,
                2 => 0.031_25,
                3 => x.abs(),
                4 => x * 1e-9,
                5 => -x.abs() - 1.0,
                6 if at % 7 != 0 => 0.0,
                _ => x * 1000.0,
            }
        })
        .collect()
}

#[cfg(target_arch = "x86_64")]
#[test]
fn every_width_of_vectors_gives_the_same_bytes() {
    let values = assorted(16 * 1024 + 256);
    for ty in Type::ALL.iter().filter(|ty| ty.is_written()) {
        let all = roofline_isa::at_every_level(|| {
            let bytes = encoded(*ty, &values);
            let mut scaled = vec![0; Type::Nvfp4.bytes(values.len() as u64).unwrap() as usize];
            encode_scaled(&values, 1.5, &mut scaled);
            let mut decoded = vec![0.0; values.len()];
            assert!(decode(*ty, &bytes, 0.75, &mut decoded));
            (bytes, scaled, hash(&decoded))
        });
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{ty}");
    }
}

#[test]
fn errors_are_of_the_size_of_a_step() {
    // Relative errors of normal weights, as published for these types; a wrong shift or nibble is far outside.
    let values: Vec<f32> = assorted(64 * 1024).chunks(128).step_by(8).flatten().copied().collect();
    for (ty, expected) in [
        (Type::Q8_0, 0.0054),
        (Type::Q6K, 0.0178),
        (Type::Q5_0, 0.043),
        (Type::Q5K, 0.0361),
        (Type::Q4K, 0.0714),
        (Type::Q4_0, 0.086),
        (Type::Mxfp4, 0.112),
        (Type::Q5_1, 0.0397),
        (Type::Q4_1, 0.082),
        (Type::Q3K, 0.16),
        (Type::Q2K, 0.3),
    ] {
        let mut decoded = vec![0.0; values.len()];
        assert!(decode(ty, &encoded(ty, &values), 1.0, &mut decoded));
        let norm = |of: &mut dyn Iterator<Item = f32>| of.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let error = norm(&mut values.iter().zip(&decoded).map(|(a, b)| a - b)) / norm(&mut values.iter().copied());
        assert!((error / expected - 1.0).abs() < 0.15, "{ty}: {error}");
    }
}

/// What a format of `roofline_core` predicts for a tensor is what a file of it takes.
#[test]
fn formats_are_types_of_the_same_size_and_name() {
    for block in GgufBlock::ALL {
        let format = roofline_core::Format::from(block);
        let ty = Type::named(&format.to_string()).unwrap();
        assert_eq!((Type::of(format), ty.format()), (Some(ty), Some(format)));
        assert_eq!((ty.block(), ty.block_bytes()), (block.elements(), block.bytes()), "{ty}");
        let values = assorted(512);
        let mut bytes = vec![0; encoded(ty, &values).len()];
        block.encode(&values, &mut bytes);
        assert_eq!(bytes, encoded(ty, &values), "{ty}");
    }
}

#[test]
fn what_is_written_is_a_format_and_what_is_a_format_is_written() {
    for ty in Type::ALL {
        assert_eq!(ty.is_written(), ty.format().is_some(), "{ty}");
        assert_eq!(ty.format().and_then(Type::of), ty.format().map(|_| *ty), "{ty}");
    }
    assert_eq!(Type::of("int4-g32".parse().unwrap()), None);
}

#[test]
fn types_are_found_by_number_and_name() {
    for ty in Type::ALL {
        assert_eq!((Type::from_id(ty.id()), Type::named(ty.name())), (Some(*ty), Some(*ty)));
    }
    assert_eq!((Type::from_id(4), Type::named("Q9_9")), (None, None));
    assert_eq!((Type::Q4K.bytes(512), Type::Q4K.bytes(300)), (Some(288), None));
}
