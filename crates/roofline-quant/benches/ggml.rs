//! How fast weights become blocks of ggml's, on one core; bytes are those of the bf16 weights that come in.

use divan::{Bencher, counter::BytesCount};
use roofline_quant::ggml::{Type, decode, divisor, encode, encode_scaled};

const WEIGHTS: usize = 1 << 20;
const WRITTEN: [Type; 12] = [
    Type::F32,
    Type::F16,
    Type::Bf16,
    Type::Q8_0,
    Type::Q5_1,
    Type::Q5_0,
    Type::Q4_0,
    Type::Q6K,
    Type::Q5K,
    Type::Q4K,
    Type::Mxfp4,
    Type::Nvfp4,
];

fn main() {
    divan::main();
}

/// About normal, with a standard deviation of 0.05.
fn weights() -> Vec<f32> {
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..WEIGHTS).map(|_| (0..12).map(|_| uniform()).sum::<f32>() * 0.05).collect()
}

fn room(ty: Type) -> Vec<u8> {
    vec![0; ty.bytes(WEIGHTS as u64).expect("whole blocks") as usize]
}

#[divan::bench(args = WRITTEN)]
fn encoding(bencher: Bencher<'_, '_>, ty: Type) {
    let (weights, mut out) = (weights(), room(ty));
    bencher.counter(BytesCount::new(2 * WEIGHTS)).bench_local(|| encode(ty, &weights, &mut out));
}

#[divan::bench]
fn encoding_scaled_nvfp4(bencher: Bencher<'_, '_>) {
    let (weights, mut out) = (weights(), room(Type::Nvfp4));
    let divisor = divisor(0.3);
    bencher.counter(BytesCount::new(2 * WEIGHTS)).bench_local(|| encode_scaled(&weights, divisor, &mut out));
}

#[divan::bench(args = WRITTEN)]
fn decoding(bencher: Bencher<'_, '_>, ty: Type) {
    let (weights, mut out) = (weights(), room(ty));
    encode(ty, &weights, &mut out);
    let mut back = vec![0.0; WEIGHTS];
    bencher.counter(BytesCount::new(2 * WEIGHTS)).bench_local(|| decode(ty, &out, 1.0, &mut back));
}
