//! Codes that the libraries decode, and what they decode them to: `tools/oracle/heavy/source_fixtures.py` made both.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::*;
use crate::{
    checkpoint::{SINGLE, tests::write},
    rounding::{Bf16, Rounding},
    rows::Spare,
    scratch::Scratch,
};

#[derive(Deserialize)]
struct Made {
    shape: Vec<usize>,
    bytes: String,
}

impl Made {
    fn bytes(&self) -> Vec<u8> {
        let digits = self.bytes.as_bytes().chunks_exact(2);
        digits.map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap()).collect()
    }
}

/// Reads `tensors` of a case under these names, and compares the one weight they are with what the library made of them.
fn compare(case: &str, tensors: &[(&str, &str, Dtype)], name: &str, scheme: &str) {
    let golden = include_str!("../../tests/golden/codes.json");
    let golden: BTreeMap<String, BTreeMap<String, Made>> = serde_json::from_str(golden).unwrap();
    let golden = &golden[case];
    let scratch = Scratch::new(&format!("golden-{case}"));
    let file: Vec<_> = tensors
        .iter()
        .map(|(name, part, dtype)| (*name, *dtype, &golden[*part].shape[..], golden[*part].bytes()))
        .collect();
    write(&scratch.path().join(SINGLE), &file);
    let checkpoint = Checkpoint::open(scratch.path()).unwrap();
    let mut all = StoredTensor::all(&checkpoint).unwrap();
    let weight = all.remove(0);
    assert_eq!((weight.name.as_str(), weight.format(), all.len()), (name, scheme, 0));
    let decoded = &golden["decoded"];
    assert_eq!(weight.shape, decoded.shape);
    assert_eq!(weight.elements(), decoded.shape.iter().product::<usize>() as u64);
    let rows = weight.into_rows().unwrap();
    let Matrix { rows: count, columns } = rows.matrix();
    let bytes = decoded.bytes();
    // The library rounds to BF16 where the checkpoint's scales are; what we read is rounded when it is written.
    let narrow = bytes.len() == 2 * count * columns;
    let expected: Vec<f32> = if narrow {
        bytes.as_chunks().0.iter().map(|bytes| f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16)).collect()
    } else {
        bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    };
    // Whole, row by row, and in pieces that fit neither blocks nor experts.
    for step in [count, 1, 7, 50] {
        let mut out = vec![f32::NAN; count * columns];
        for (at, out) in out.chunks_mut(step * columns).enumerate() {
            let first = at * step;
            rows.read(first..first + out.len() / columns, &mut Spare::default(), out).unwrap();
        }
        let out: Vec<f32> = out.into_iter().map(|value| if narrow { Bf16::round(value) } else { value }).collect();
        assert_eq!(out, expected, "{case} in steps of {step}");
    }
}

#[test]
fn stacks_of_gpt_oss_are_turned_and_decoded_as_transformers_does() {
    let tensors = [
        ("m.experts.gate_up_proj_blocks", "blocks", Dtype::U8),
        ("m.experts.gate_up_proj_scales", "scales", Dtype::U8),
    ];
    compare("mxfp4", &tensors, "m.experts.gate_up_proj", "MXFP4");
}

#[test]
fn fp8_with_one_scale_is_decoded_as_compressed_tensors_does() {
    let tensors = [("m.weight", "weight", Dtype::F8E4M3), ("m.weight_scale", "scale", Dtype::Bf16)];
    compare("fp8", &tensors, "m.weight", "FP8 per tensor");
}

#[test]
fn nvfp4_of_modelopt_is_decoded() {
    let tensors = [
        ("m.weight", "weight", Dtype::U8),
        ("m.weight_scale", "scale", Dtype::F8E4M3),
        ("m.weight_scale_2", "scale_2", Dtype::F32),
    ];
    compare("nvfp4", &tensors, "m.weight", "NVFP4");
}

/// A scale per row without a second dimension, and one in FP32 without any.
#[test]
fn scales_of_other_shapes() {
    let scratch = Scratch::new("scales");
    // 0x38 is 1, 0xc0 is -2.
    let codes = vec![0x38, 0xc0, 0x38, 0x38, 0xc0, 0xc0];
    for (scales, shape, expected) in [
        (&[0.5f32, 3.0][..], &[2usize][..], [0.5, -1.0, 0.5, 3.0, -6.0, -6.0]),
        (&[0.25], &[], [0.25, -0.5, 0.25, 0.25, -0.5, -0.5]),
    ] {
        let bytes = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let file = [
            ("m.weight", Dtype::F8E4M3, &[2usize, 3][..], codes.clone()),
            ("m.weight_scale", Dtype::F32, shape, bytes),
            ("m.input_scale", Dtype::F32, &[], vec![0; 4]),
        ];
        write(&scratch.path().join(SINGLE), &file);
        let checkpoint = Checkpoint::open(scratch.path()).unwrap();
        let mut all = StoredTensor::all(&checkpoint).unwrap();
        assert_eq!(all.len(), 2);
        let mut out = [0.0; 6];
        let weight = all.remove(1).into_rows().unwrap();
        weight.read(0..2, &mut Spare::default(), &mut out).unwrap();
        assert_eq!(out, expected);
    }
}

/// What does not fit is not believed: who decodes it is told.
#[test]
fn codes_that_do_not_fit_are_refused() {
    let scratch = Scratch::new("unfit");
    let bytes = |shape: &[usize], dtype: Dtype| vec![0; shape.iter().product::<usize>() * dtype.bytes()];
    let cases: &[&[(&str, Dtype, &[usize])]] = &[
        &[("m.weight", Dtype::F8E4M3, &[2, 3]), ("m.weight_scale", Dtype::F32, &[3])],
        &[("m.weight", Dtype::F8E4M3, &[2, 3]), ("m.weight_scale", Dtype::I64, &[1])],
        &[
            ("m.weight", Dtype::U8, &[2, 16]),
            ("m.weight_scale", Dtype::F8E4M3, &[2, 2]),
            ("m.weight_scale_2", Dtype::F32, &[]),
            // AWQ's: activations are divided by it.
            ("m.pre_quant_scale", Dtype::F32, &[32]),
        ],
        &[
            ("m.weight", Dtype::U8, &[2, 16]),
            ("m.weight_scale", Dtype::F8E4M3, &[2, 3]),
            ("m.weight_scale_2", Dtype::F32, &[]),
        ],
    ];
    for case in cases {
        let file: Vec<_> =
            case.iter().map(|(name, dtype, shape)| (*name, *dtype, *shape, bytes(shape, *dtype))).collect();
        write(&scratch.path().join(SINGLE), &file);
        let checkpoint = Checkpoint::open(scratch.path()).unwrap();
        assert!(StoredTensor::all(&checkpoint).is_err(), "{case:?}");
    }
    // Stacks are known where the configuration declares codes.
    let config = r#"{"quantization_config": {"quant_method": "mxfp4"}}"#;
    std::fs::write(scratch.path().join("config.json"), config).unwrap();
    for (blocks, scales) in [(&[2usize, 4, 1, 16], &[2usize, 4, 2]), (&[2, 4, 1, 8], &[2, 4, 1])] {
        let file = [
            ("e.down_proj_blocks", Dtype::U8, &blocks[..], bytes(blocks, Dtype::U8)),
            ("e.down_proj_scales", Dtype::U8, &scales[..], bytes(scales, Dtype::U8)),
        ];
        write(&scratch.path().join(SINGLE), &file);
        let checkpoint = Checkpoint::open(scratch.path()).unwrap();
        assert!(StoredTensor::all(&checkpoint).is_err(), "{blocks:?}");
    }
}
