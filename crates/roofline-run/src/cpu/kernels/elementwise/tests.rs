mod activations;
mod places;

use roofline_core::{Dim, format::Encoded};

use super::*;
use crate::{
    cpu::{kernels::convert::scalar, tensor::Tensor},
    reference::elementwise as reference,
};

const FORMATS: [Format; 3] = [Format::FP32, Format::BF16, Format::FP16];
/// Rows and columns: a vector's worth, ragged, more than a piece, enough for several threads.
const SHAPES: [(usize, usize); 4] = [(1, 16), (5, 37), (3, 1100), (40, 2050)];

fn noise(format: Format, rows: usize, columns: usize, seed: u32) -> Encoded {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (f32::from((state >> 16) as u16) / 32_768.0 - 1.0) * 6.0
    };
    let values: Vec<f32> = (0..rows * columns).map(|_| next()).collect();
    format.encode(&values, Dim::new("columns", columns as u64).unwrap()).unwrap()
}

/// Runs a kernel in every format and width, and compares with `expected` of the decoded input.
fn check(
    shapes: &[(usize, usize)],
    kernel: impl Fn(&Elementwise, &mut Pool, Tensor<'_>, Target<'_>),
    expected: impl Fn(&[f32], usize) -> Vec<f64>,
) {
    let mut pool = Pool::new(3);
    for isa in Isa::restrictions() {
        for (index, (rows, columns)) in shapes.iter().copied().enumerate() {
            let (from, to) = (FORMATS[index % 3], FORMATS[(index + usize::from(isa.lanes() == 8)) % 3]);
            let x = noise(from, rows, columns, 1 + index as u32);
            let kind = Kind::of(to).unwrap();
            let mut out = vec![0xffu8; rows * columns * kind.bytes()];
            kernel(&Elementwise::on(isa), &mut pool, (&x).into(), Target::plain(to, &mut out));
            let expected = expected(&x.decode(), columns);
            let largest = expected.iter().fold(0f64, |max, value| max.max(value.abs()));
            let tolerance = match to {
                Format::FP32 => 2e-6,
                Format::FP16 => 6e-4,
                _ => 5e-3,
            };
            for (at, expected) in expected.iter().enumerate() {
                let got = f64::from(scalar(kind, &out, at));
                assert!((got - expected).abs() <= tolerance * largest, "{isa:?} {from} {to} {at}: {got} {expected}");
            }
        }
    }
}

fn each_row(values: &[f32], columns: usize, f: impl Fn(usize, &[f32]) -> Vec<f64>) -> Vec<f64> {
    values.chunks(columns).enumerate().flat_map(|(row, values)| f(row, values)).collect()
}

#[test]
fn norms() {
    let weight: Vec<f32> = (0..2050).map(|at| 0.5 + at as f32 / 1000.0).collect();
    check(
        &SHAPES,
        |kernels, pool, x, out| kernels.norm(pool, x, &weight[..x.columns], 1e-5, out).unwrap(),
        |values, columns| each_row(values, columns, |_, row| reference::norm(row, &weight[..columns], 1e-5)),
    );
}

#[test]
fn layer_norms() {
    let weight: Vec<f32> = (0..2050).map(|at| 0.5 + at as f32 / 1000.0).collect();
    let bias: Vec<f32> = (0..2050).map(|at| 3.0 - at as f32 / 500.0).collect();
    check(
        &SHAPES,
        |kernels, pool, x, out| {
            let affine = (&weight[..x.columns], Some(&bias[..x.columns]));
            kernels.layer_norm(pool, x, affine, 1e-5, out).unwrap();
        },
        |values, columns| {
            each_row(values, columns, |_, row| reference::layer_norm(row, &weight[..columns], &bias[..columns], 1e-5))
        },
    );
    check(
        &SHAPES[1..2],
        |kernels, pool, x, out| kernels.layer_norm(pool, x, (&weight[..x.columns], None), 1e-5, out).unwrap(),
        |values, columns| {
            each_row(values, columns, |_, row| {
                reference::layer_norm(row, &weight[..columns], &vec![0.0; columns], 1e-5)
            })
        },
    );
}

#[test]
fn softmaxes() {
    check(
        &SHAPES,
        |kernels, pool, x, out| kernels.softmax(pool, x, out).unwrap(),
        |values, columns| each_row(values, columns, |_, row| reference::softmax(row)),
    );
}

#[test]
fn rotations() {
    for width in [2, 10, 64, 128] {
        let rotations = Rotations::new(width, 10_000.0, 50);
        let position = |row: usize| row / 2 * 7 % 50;
        check(
            &[(2, width), (6, width), (1000, width)],
            |kernels, pool, x, out| {
                let positions: Vec<usize> = (0..x.rows / 2).map(|token| position(2 * token)).collect();
                kernels.rope(pool, x, 2, &rotations, &positions, out).unwrap();
            },
            |values, columns| each_row(values, columns, |row, head| reference::rope(head, 10_000.0, position(row))),
        );
    }
}

#[test]
fn embeddings() {
    let token = |at: usize| at * 3 % 5;
    for isa in Isa::restrictions() {
        for (from, to) in [(Format::BF16, Format::BF16), (Format::FP16, Format::FP32), (Format::FP32, Format::BF16)] {
            let table = noise(from, 5, 37, 9);
            let tokens: Vec<usize> = (0..11).map(token).collect();
            let kind = Kind::of(to).unwrap();
            let mut out = vec![0; 11 * 37 * kind.bytes()];
            let target = Target::plain(to, &mut out);
            Elementwise::on(isa).embedding(&mut Pool::new(2), (&table).into(), &tokens, target).unwrap();
            let values = table.decode();
            for at in 0..11 * 37 {
                let value = values[token(at / 37) * 37 + at % 37];
                assert!((scalar(kind, &out, at) - value).abs() <= value.abs() / 256.0);
            }
        }
    }
}

/// Rows longer than a piece, so that decoding starts within them, too.
#[test]
fn embeddings_of_stored_formats() {
    let tokens = [4, 0, 3, 3];
    for isa in Isa::restrictions() {
        for name in ["q6_k", "q4_k", "q8_0", "q5_1", "int8", "fp8", "mxfp4", "nvfp4", "nf4", "int4-g128", "int3-g64"] {
            let table = noise(name.parse().unwrap(), 5, 1280, 9);
            let values = table.decode();
            for to in [Format::FP32, Format::BF16] {
                let kind = Kind::of(to).unwrap();
                let mut out = vec![0xff; tokens.len() * 1280 * kind.bytes()];
                let target = Target::plain(to, &mut out);
                Elementwise::on(isa).embedding(&mut Pool::new(2), (&table).into(), &tokens, target).unwrap();
                let tolerance = if to == Format::FP32 { 1.2e-7 } else { 1.0 / 256.0 };
                for at in 0..tokens.len() * 1280 {
                    let value = values[tokens[at / 1280] * 1280 + at % 1280];
                    let got = scalar(kind, &out, at);
                    assert!((got - value).abs() <= value.abs() * tolerance, "{isa:?} {name} {at}: {got} {value}");
                }
            }
        }
    }
    let table = noise("mxfp8".parse().unwrap(), 5, 64, 9);
    let mut out = vec![0; 64 * 4];
    let target = Target::plain(Format::FP32, &mut out);
    let why = Elementwise::default().embedding(&mut Pool::new(1), (&table).into(), &[1], target).unwrap_err();
    assert!(why.0.contains("mxfp8"), "{why}");
}

/// The cache holds what the core's encoder would have put there.
#[test]
fn caches_are_written_as_the_core_encodes() {
    for isa in Isa::restrictions() {
        for name in ["fp32", "bf16", "fp16", "int8", "fp8", "fp8-e5m2"] {
            let format: Format = name.parse().unwrap();
            for (rows, columns) in [(3, 64), (4, 37), (2, 1100)] {
                let x = noise(Format::FP32, rows, columns, 4);
                let theirs = format.encode(&x.decode(), Dim::new("columns", columns as u64).unwrap()).unwrap();
                let row = columns * Kind::of(format).unwrap().bytes();
                let (mut codes, mut scales) =
                    (vec![0; (rows + 2) * row], vec![0; theirs.scales.len() / rows * (rows + 2)]);
                let slots: Vec<usize> = (0..rows).map(|at| rows + 1 - at).collect();
                let target = Target { format, codes: &mut codes, scales: &mut scales };
                Elementwise::on(isa).kv_write(&mut Pool::new(2), (&x).into(), &slots, target).unwrap();
                for (at, slot) in slots.iter().enumerate() {
                    let size = theirs.scales.len() / rows;
                    assert_eq!(
                        scales[slot * size..(slot + 1) * size],
                        theirs.scales[at * size..(at + 1) * size],
                        "{name}"
                    );
                    // Dividing in FP32 rather than FP64 moves a few ties.
                    let ours = &codes[slot * row..(slot + 1) * row];
                    let other =
                        ours.iter().zip(&theirs.codes[at * row..(at + 1) * row]).filter(|(a, b)| a != b).count();
                    assert!(other * 100 <= row, "{name} {isa:?}: {other} of {row} bytes differ");
                }
            }
        }
    }
}

#[test]
fn formats_without_a_kernel_are_refused() {
    let x = noise(Format::INT8, 2, 16, 1);
    let mut out = vec![0; 64];
    let target = Target::plain(Format::BF16, &mut out);
    let why = Elementwise::default().activation(&mut Pool::new(1), Activation::Silu, (&x).into(), target).unwrap_err();
    assert!(why.0.contains("int8"), "{why}");
}
