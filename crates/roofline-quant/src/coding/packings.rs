//! GPTQ's and AWQ's packings, fine-grained and static FP8 and the scales of ranges, held to what the libraries store.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{
    Coding, awq,
    compressed_tensors::{self as ct, Seen},
    fine_grained,
    golden::{Golden, hash, hex, store},
    gptq,
};
use crate::{
    Dtype, Method,
    rounding::{Bf16, F16, Rounding},
};

/// Made by the libraries; the file says by which, and `tools/oracle/heavy/packings.py` how.
#[derive(Deserialize)]
struct Made {
    hashes: BTreeMap<String, BTreeMap<String, String>>,
    peaks: Vec<f32>,
    scales: BTreeMap<String, Vec<String>>,
}

fn made() -> Made {
    serde_json::from_str(include_str!("../../tests/golden/packings.json")).unwrap()
}

/// The matrix of the vectors four times below itself, times 256, 512, 128 and -256: no scale is subnormal in FP16.
fn matrix(dtype: Dtype) -> Vec<f32> {
    let base = Golden::read().matrix(Dtype::F32, 8, 256);
    let round = match dtype {
        Dtype::Bf16 => Bf16::round,
        Dtype::F16 => F16::round,
        _ => |value| value,
    };
    [256.0, 512.0, 128.0, -256.0]
        .iter()
        .flat_map(|factor| base.iter().map(move |value| round(value * factor)))
        .collect()
}

/// Bits, group and zero points of a name such as `int4-g128-zp`.
fn integers(name: &str) -> gptq::Scheme {
    let name = match name {
        "w4a16" => "int4-g128",
        "w8a16" => "int8-channel",
        "int3" => "int3-g64",
        "int2" => "int2-g64",
        other => other,
    };
    let mut words = name.split('-');
    let bits = words.next().unwrap().strip_prefix("int").unwrap().parse().unwrap();
    let group = words.next().unwrap().strip_prefix('g').map(|group| group.parse().unwrap());
    gptq::Scheme { bits, group, zero: words.next().is_some() }
}

#[test]
fn bytes_are_those_of_the_libraries() {
    let mut compared = 0;
    for (case, tensors) in made().hashes {
        let words: Vec<&str> = case.split(' ').collect();
        let dtype = Dtype::named(words.last().unwrap()).unwrap();
        let mut values = matrix(dtype);
        let coding: Box<dyn Coding> = match words[0] {
            "gptq" => gptq::coding(integers(words[1]), Method::Rtn).unwrap(),
            "awq" => awq::coding(awq::Scheme { group: integers(words[1]).group.unwrap() }, Method::Rtn).unwrap(),
            "fp8" => {
                values = values.repeat(8);
                fine_grained::coding(Method::Rtn).unwrap()
            }
            _ => ct::coding(ct::Scheme::Fp8Tensor, dtype, Method::Rtn).unwrap(),
        };
        let stored = store(&*coding, &values, 256, None);
        let found: BTreeMap<_, _> =
            stored.tensors.iter().map(|(name, bytes)| ((*name).to_owned(), hash(bytes))).collect();
        assert_eq!(found, tensors, "{case}");
        compared += 1;
    }
    // 32 schemes of GPTQ, 3 of AWQ and 2 of FP8, in three types.
    assert_eq!(compared, 37 * 3);
}

#[test]
fn scales_of_ranges_are_those_of_the_library() {
    let Made { peaks, scales, .. } = made();
    assert_eq!(scales.len(), 6);
    for (case, expected) in scales {
        let (kind, dtype) = case.split_once(' ').unwrap();
        let seen = if kind == "fp8" { Seen::Fp8 } else { Seen::Nvfp4 };
        let found: Vec<String> =
            peaks.iter().map(|peak| hex(&seen.stored(*peak, Dtype::named(dtype).unwrap()).1)).collect();
        assert_eq!(found, expected, "{case}");
    }
}

/// `g_idx` may give channels to groups in any order.
#[test]
fn channels_may_be_of_any_group() {
    let scheme = gptq::Scheme { bits: 4, group: Some(32), zero: true };
    let coding = gptq::coding(scheme, Method::Rtn).unwrap();
    let values = matrix(Dtype::Bf16);
    let stored = store(&*coding, &values, 256, None);
    let part = |name: &str| stored.tensors[name].clone();
    // Channel k goes to group 7 - k / 32.
    let index: Vec<u8> = (0..256u32).flat_map(|at| (7 - at / 32).to_le_bytes()).collect();
    let parts = [part("qweight"), part("qzeros"), part("scales"), index];
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    let mut decoded = vec![0.0; values.len()];
    coding.decode(256, &parts, &mut decoded);
    // A code of group 0 is now read with the scale and the zero point of group 7.
    let (code, zeros, scales) = (part("qweight")[0] & 15, part("qzeros"), part("scales"));
    let seventh = 7 * 32;
    let scale = F16::read(&scales[seventh * 2..seventh * 2 + 2]);
    let zero = zeros[7 * 16] & 15;
    assert_eq!(decoded[0], (f32::from(code) - f32::from(zero)) * scale);
    assert_ne!(decoded, stored.decoded);
}

/// The first version of GPTQ's format: zero points less one, where one of zero borrows from the next.
#[test]
fn zero_points_that_were_lowered_are_raised() {
    for bits in gptq::WIDTHS {
        let scheme = gptq::Scheme { bits, group: None, zero: true };
        let (first, second) = (gptq::Version::First, gptq::Version::Second);
        let reader = |version| gptq::reading(scheme, version, Dtype::F16, false).unwrap();
        // 32 rows of 32 columns: zero points 0, 1, 2, ..., in whole words, and what a subtraction of one from every field leaves.
        let mask = ((1u16 << bits) - 1) as u8;
        let zeros: Vec<u8> = (0..32u8).map(|at| at & mask).collect();
        let mut packed = vec![0; 4 * usize::from(bits)];
        super::shifted::pack(&zeros, bits, &mut packed);
        let mut lowered = packed.clone();
        if bits == 3 {
            let less: Vec<u8> = zeros.iter().map(|zero| zero.wrapping_sub(1) & mask).collect();
            super::shifted::pack(&less, bits, &mut lowered);
        } else {
            for word in lowered.as_chunks_mut::<4>().0 {
                let ones = u32::MAX / u32::from(mask);
                *word = u32::from_le_bytes(*word).wrapping_sub(ones).to_le_bytes();
            }
        }
        let codes = vec![0x5a; 32 * 4 * usize::from(bits)];
        let scales = [0u8, 0x3c].repeat(32);
        let (mut one, mut other) = (vec![0.0; 32 * 32], vec![0.0; 32 * 32]);
        reader(second).decode(32, &[&codes, &packed, &scales], &mut one);
        reader(first).decode(32, &[&codes, &lowered, &scales], &mut other);
        assert_eq!(one, other, "{bits} bits");
        assert!(one.windows(2).any(|pair| pair[0] != pair[1]));
    }
}

#[test]
fn shapes_that_do_not_suit_say_why() {
    let parts =
        |coding: Box<dyn Coding>, rows, columns| coding.parts(super::Matrix { rows, columns }).map(|parts| parts.len());
    let gptq = || gptq::coding(gptq::Scheme { bits: 4, group: Some(64), zero: false }, Method::Rtn).unwrap();
    let awq = || awq::coding(awq::Scheme { group: 64 }, Method::Rtn).unwrap();
    assert_eq!(parts(gptq(), 40, 128).unwrap_err(), "has 40 rows, and GPTQ's kernels take multiples of 32");
    assert_eq!(parts(gptq(), 64, 96).unwrap_err(), "has 96 columns, which is no multiple of the group of 64");
    assert_eq!(parts(awq(), 12, 128).unwrap_err(), "has 12 rows, and AWQ packs 8 in a word");
    assert_eq!((parts(gptq(), 32, 64), parts(awq(), 8, 64)), (Ok(4), Ok(3)));
    assert!(gptq::coding(gptq::Scheme { bits: 4, group: None, zero: true }, Method::Mse).is_err());
}

/// Blocks at the edges are cut, a block of zeros has a multiplier of one, and negative zeros keep their sign.
#[test]
fn fine_grained_blocks_at_the_edges() {
    let mut values = vec![0.0f32; 130 * 128];
    (values[0], values[1], values[128 * 129]) = (3.5, -0.0, -7.0);
    let stored = store(&*fine_grained::coding(Method::Rtn).unwrap(), &values, 128, None);
    let scales: Vec<f32> =
        stored.tensors["weight_scale_inv"].as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
    assert_eq!(scales, [3.5 / 448.0, 7.0 / 448.0]);
    assert_eq!(stored.tensors["weight"][..3], [0x7e, 0x80, 0]);
    assert_eq!(stored.tensors["weight"][128 * 129], 0xfe);
    let zeros = store(&*fine_grained::coding(Method::Rtn).unwrap(), &[0.0; 128], 128, None);
    assert_eq!(zeros.tensors["weight_scale_inv"], 1f32.to_le_bytes());
}
