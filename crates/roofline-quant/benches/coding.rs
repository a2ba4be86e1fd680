//! How fast weights become bytes. `cargo bench -p roofline-quant`; with `--sample-count 5` in a few seconds.
//!
//! Bytes counted are those of the BF16 input, 4096 x 11008. As in a conversion, blocks of rows are widened to FP32,
//! coded, and decoded again for the error; the widening is part of what is timed. One thread.

#![expect(clippy::unwrap_used, reason = "a benchmark may panic")]

use divan::{Bencher, black_box, counter::BytesCount};
use roofline_quant::{
    Dtype, Method,
    coding::{Block, Coding, Matrix, Placing, bitsandbytes as bnb, compressed_tensors as ct, mlx, torchao},
};

const ROWS: usize = 4096;
const COLUMNS: usize = 11008;

fn main() {
    divan::main();
}

/// Sums of uniform numbers, near enough to a layer's weights, as BF16.
fn weights() -> Vec<u16> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut uniform = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 40) as f32 / 16_777_216.0 - 0.5
    };
    (0..ROWS * COLUMNS)
        .map(|_| ((0.03 * (uniform() + uniform() + uniform() + uniform())).to_bits() >> 16) as u16)
        .collect()
}

fn coding(name: &str) -> Box<dyn Coding> {
    let (name, method) =
        name.split_once(' ').map_or((name, Method::Rtn), |(name, method)| (name, method.parse().unwrap()));
    let int = |bits, group, zero| ct::Scheme::Int { bits, group, zero };
    let scheme = match name {
        "int8" => ct::Scheme::Int8Channel,
        "int4-g128" => int(4, Some(128), false),
        "int4-g32" => int(4, Some(32), false),
        "int4-g128-zp" => int(4, Some(128), true),
        "fp8" => ct::Scheme::Fp8Channel,
        "fp8-block" => ct::Scheme::Fp8Block,
        "nvfp4" => ct::Scheme::Nvfp4,
        "mxfp4" => ct::Scheme::Mxfp4,
        "mxfp8" => ct::Scheme::Mxfp8,
        "torchao-int8" => return torchao::coding(torchao::Scheme::Int8 { group: None }, Dtype::Bf16, method).unwrap(),
        "torchao-fp8" => return torchao::coding(torchao::Scheme::Float8, Dtype::Bf16, method).unwrap(),
        "torchao-int4" => return torchao::coding(torchao::Scheme::Int4 { group: 128 }, Dtype::Bf16, method).unwrap(),
        "nf4" | "nf4-dq" => {
            let scheme = bnb::Scheme::Four { quantiles: bnb::Quantiles::Nf4, double: name == "nf4-dq" };
            return bnb::coding(scheme, COLUMNS, Dtype::Bf16, method).unwrap();
        }
        "llm-int8" => return bnb::coding(bnb::Scheme::Int8, COLUMNS, Dtype::Bf16, method).unwrap(),
        "mlx-int4" | "mlx-int3" => {
            let bits = if name == "mlx-int4" { 4 } else { 3 };
            return mlx::coding(mlx::Scheme::Affine { bits, group: 64, centred: false }, Dtype::Bf16, method).unwrap();
        }
        "mlx-mxfp4" => return mlx::coding(mlx::Scheme::Mxfp4, Dtype::Bf16, method).unwrap(),
        other => panic!("{other}"),
    };
    ct::coding(scheme, Dtype::Bf16, method).unwrap()
}

#[divan::bench(args = [
    "int8", "int4-g128", "int4-g32", "int4-g128-zp", "fp8", "fp8-block", "nvfp4", "mxfp4", "mxfp8",
    "torchao-int8", "torchao-fp8", "torchao-int4", "nf4", "nf4-dq", "llm-int8", "mlx-int4", "mlx-int3", "mlx-mxfp4",
    "int8 mse", "int4-g128 mse", "int4-g128-zp mse", "int4-g128-zp hqq", "fp8 mse", "nvfp4 mse", "nvfp4 four-over-six",
    "mxfp4 mse", "torchao-int4 hqq",
])]
fn encode(bencher: Bencher<'_, '_>, name: &str) {
    let coding = coding(name);
    let weights = weights();
    let rows = 16usize.next_multiple_of(coding.unit());
    let parts = coding.parts(Matrix { rows: ROWS, columns: COLUMNS }).unwrap();
    let mut buffers: Vec<Vec<u8>> = parts
        .iter()
        .map(|part| match part.placing {
            Placing::Rows { rows: together, bytes } => vec![0; rows.div_ceil(together) * bytes],
            Placing::Columns { lines, rows: together, bytes } => vec![0; lines * rows.div_ceil(together) * bytes],
            Placing::Flat { columns, run, bytes } => vec![0; (rows * columns).div_ceil(run) * bytes],
            Placing::Once { .. } => Vec::new(),
        })
        .collect();
    let (mut values, mut decoded) = (vec![0.0; rows * COLUMNS], vec![0.0; rows * COLUMNS]);
    bencher.counter(BytesCount::of_slice(&weights)).bench_local(|| {
        for block in weights.chunks_exact(rows * COLUMNS) {
            for (value, bits) in values.iter_mut().zip(block) {
                *value = f32::from_bits(u32::from(*bits) << 16);
            }
            let mut out: Vec<&mut [u8]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
            let block = Block { values: &values, columns: COLUMNS, peak: 0.06, importance: None, chosen: None };
            black_box(coding.encode(block, &mut out, &mut decoded));
        }
    });
}

#[divan::bench(args = ["int4-g128", "fp8", "nvfp4"])]
fn decode(bencher: Bencher<'_, '_>, name: &str) {
    let coding = coding(name);
    let rows = 16;
    let matrix = Matrix { rows, columns: COLUMNS };
    let buffers: Vec<Vec<u8>> = coding
        .parts(matrix)
        .unwrap()
        .iter()
        .map(|part| vec![0x35; part.shape.iter().product::<usize>() * part.dtype.bytes()])
        .collect();
    let given: Vec<&[u8]> = buffers.iter().map(Vec::as_slice).collect();
    let mut decoded = vec![0.0; rows * COLUMNS];
    bencher.counter(BytesCount::of_many::<u16>(rows * COLUMNS)).bench_local(|| {
        coding.decode(COLUMNS, black_box(&given), &mut decoded);
    });
}
