//! Four bits whose sixteen values lie denser around zero: `IQ4_NL` in blocks of 32 with an f16 scale, `IQ4_XS` in blocks of 256
//! with a 6-bit scale per 32 and an f16 one for all.
//!
//! As `llama-quantize` makes them: weights count by their squares, or by their importance where that is known, and of sixteen scales
//! the one with the smallest error is taken.

use super::{
    Codec, half,
    importance::{mean_square, weigh},
    lanes::{LANES, Lanes, columns, nearest},
    simple::pack_four,
};

/// The values that codes stand for, before their scale.
pub const UNEVEN: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Weights that share a scale.
pub(super) const SUB: usize = 32;
/// Weights of a block of `IQ4_XS`.
const SUPER: usize = 256;
/// Sub-blocks of one.
const SUBS: usize = SUPER / SUB;
/// Where the codes of a block of `IQ4_XS` are.
pub(super) const CODES: usize = 8;
/// How far from the largest weight's own scale others are tried, to both sides.
const TRIES: i32 = 7;
/// What is smaller throughout is zero.
const TINY: f32 = 1e-15;

/// Halfway between each value and the one before it: what lies there or above gets the larger.
const fn borders() -> [f32; 15] {
    let mut borders = [0.0; 15];
    let mut at = 0;
    while at < 15 {
        borders[at] = f32::midpoint(UNEVEN[at] as f32, UNEVEN[at + 1] as f32);
        at += 1;
    }
    borders
}
const BORDERS: [f32; 15] = borders();

/// The code of a scaled weight.
#[inline(always)]
fn code(x: f32) -> u8 {
    BORDERS.iter().map(|border| u8::from(x >= *border)).sum()
}

/// The value nearest to a scaled weight.
#[inline(always)]
fn value(x: f32) -> f32 {
    let mut value = f32::from(UNEVEN[0]);
    for (border, next) in BORDERS.iter().zip(&UNEVEN[1..]) {
        value = if x >= *border { f32::from(*next) } else { value };
    }
    value
}

/// The scale of each of sixteen sub-blocks.
#[inline(always)]
fn scales(x: &[Lanes; SUB], weights: &[Lanes; SUB]) -> Lanes {
    let zero = Lanes::all(0.0);
    let (mut peak, mut extreme) = (zero, zero);
    for x in x {
        let magnitude = x.each(f32::abs);
        let larger = magnitude.above(peak);
        (peak, extreme) = (larger.pick(magnitude, peak), larger.pick(*x, extreme));
    }
    // With the inverse of a scale: sums of weight * value * x and of weight * value^2.
    let sums = |inverse: Lanes| {
        let (mut with, mut square) = (zero, zero);
        for (x, w) in x.iter().zip(weights) {
            let q = (inverse * *x).each(value);
            let weighted = *w * q;
            with = with + weighted * *x;
            square = square + weighted * q;
        }
        (with, square)
    };
    let first = Lanes::all(f32::from(UNEVEN[0]));
    let (with, square) = sums(Lanes::all(1.0) / (-extreme / first));
    let mut scale = square.above(zero).pick(with / square, zero);
    let mut best = scale * with;
    for attempt in -TRIES..=TRIES {
        let (with, square) = sums(Lanes::all(attempt as f32 + f32::from(UNEVEN[0])) / extreme);
        let better = square.above(zero) & (with * with).above(best * square);
        scale = better.pick(with / square, scale);
        best = better.pick(scale * with, best);
    }
    // Where sums overflow, the scale that holds the largest weight.
    let sound = scale.each(|scale| f32::from(u8::from(scale.is_finite())));
    let scale = sound.above(zero).pick(scale, extreme / first);
    peak.below(Lanes::all(TINY)).pick(zero, scale)
}

/// A scale that f16 can hold.
#[inline(always)]
fn held(d: f32) -> f32 {
    if d.abs() >= 65520.0 { 65504f32.copysign(d) } else { d }
}

#[inline(always)]
fn inverse(d: f32) -> f32 {
    let inverse = 1.0 / d;
    if d == 0.0 || !inverse.is_finite() { 0.0 } else { inverse }
}

/// The codes of a sub-block.
#[inline(always)]
fn pack(block: &[f32], inverse: f32, out: &mut [u8]) {
    let mut codes = [0; SUB];
    for (q, x) in codes.iter_mut().zip(block) {
        *q = code(inverse * x);
    }
    pack_four(&codes, out);
}

/// The scale of a sub-block of `IQ4_XS`, as it is stored.
#[inline(always)]
pub(super) fn step(block: &[u8], sub: usize) -> f32 {
    let high = u16::from_le_bytes([block[2], block[3]]);
    let low = (block[4 + sub / 2] >> (sub % 2 * 4)) & 15;
    let step = (low | ((high >> (2 * sub) & 3) as u8) << 4) as i8 - 32;
    half::read(block) * f32::from(step)
}

#[inline(always)]
fn unpack(bytes: &[u8], d: f32, out: &mut [f32]) {
    for (at, byte) in bytes.iter().enumerate() {
        out[at] = d * f32::from(UNEVEN[usize::from(byte & 15)]);
        out[at + 16] = d * f32::from(UNEVEN[usize::from(byte >> 4)]);
    }
}

/// The blocks of `values`, whose scales were found.
#[inline(always)]
fn write_nl(values: &[f32], scales: Lanes, out: &mut [u8]) {
    for ((block, out), scale) in values.chunks_exact(SUB).zip(out.chunks_exact_mut(Iq4Nl::BYTES)).zip(scales.0) {
        let scale = held(scale);
        half::write(scale, out);
        pack(block, inverse(scale), &mut out[2..]);
    }
}

/// The blocks of `values`, the scales of whose sub-blocks were found.
#[inline(always)]
fn write_xs(values: &[f32], scales: Lanes, out: &mut [u8]) {
    let blocks = values.chunks_exact(SUPER).zip(out.chunks_exact_mut(Iq4Xs::BYTES)).zip(scales.0.chunks_exact(SUBS));
    for ((block, out), scales) in blocks {
        let mut extreme = 0f32;
        for scale in scales {
            extreme = if scale.abs() > extreme.abs() { *scale } else { extreme };
        }
        let d = held(-extreme / 32.0);
        half::write(d, out);
        let (mut high, mut low) = (0u16, [0u8; SUBS / 2]);
        for (sub, scale) in scales.iter().enumerate() {
            let step = nearest((inverse(d) * scale).clamp(-33.0, 33.0)).clamp(-32, 31);
            let packed = &mut out[CODES + sub * SUB / 2..][..SUB / 2];
            pack(&block[sub * SUB..][..SUB], inverse(d * step as f32), packed);
            let step = (step + 32) as u8;
            low[sub / 2] |= (step & 15) << (sub % 2 * 4);
            high |= u16::from(step >> 4) << (2 * sub);
        }
        out[2..4].copy_from_slice(&high.to_le_bytes());
        out[4..8].copy_from_slice(&low);
    }
}

/// What the errors of up to sixteen sub-blocks count, in blocks of `N` weights.
#[inline(always)]
fn weights<const N: usize>(values: &[f32], importance: &[f32]) -> [f32; LANES * SUB] {
    let mut weights = [0.0; LANES * SUB];
    let blocks = values.chunks_exact(N).zip(importance.chunks_exact(N)).zip(weights.chunks_exact_mut(N));
    for ((x, importance), weights) in blocks {
        weigh(x, importance, 2.0 * mean_square(x), weights);
    }
    weights
}

/// `f16 d | u8 q[16]`.
#[derive(Clone, Copy, Debug)]
pub struct Iq4Nl;

impl Codec for Iq4Nl {
    const ELEMENTS: usize = SUB;
    const BYTES: usize = 18;

    #[inline(always)]
    fn encode(values: &[f32], out: &mut [u8]) {
        for (values, out) in values.chunks(LANES * SUB).zip(out.chunks_mut(LANES * Self::BYTES)) {
            let columns = columns::<SUB>(values);
            write_nl(values, scales(&columns, &columns.map(|x| x * x)), out);
        }
    }

    #[inline(always)]
    fn encode_weighted(row: &[f32], importance: &[f32], out: &mut [u8]) {
        let runs = row.chunks(LANES * SUB).zip(importance.chunks(LANES * SUB));
        for ((values, importance), out) in runs.zip(out.chunks_mut(LANES * Self::BYTES)) {
            let weights = weights::<SUB>(values, importance);
            write_nl(values, scales(&columns(values), &columns(&weights)), out);
        }
    }

    #[inline(always)]
    fn decode(bytes: &[u8], out: &mut [f32]) {
        for (block, out) in bytes.chunks_exact(Self::BYTES).zip(out.chunks_exact_mut(SUB)) {
            unpack(&block[2..], half::read(block), out);
        }
    }
}

/// `f16 d | u16 high | u8 low[4] | u8 q[128]`: `d (s - 32)` with six bits of `s` to each 32 weights.
#[derive(Clone, Copy, Debug)]
pub struct Iq4Xs;

impl Codec for Iq4Xs {
    const ELEMENTS: usize = SUPER;
    const BYTES: usize = 136;

    #[inline(always)]
    fn encode(values: &[f32], out: &mut [u8]) {
        for (values, out) in values.chunks(LANES * SUB).zip(out.chunks_mut(LANES / SUBS * Self::BYTES)) {
            let columns = columns::<SUB>(values);
            write_xs(values, scales(&columns, &columns.map(|x| x * x)), out);
        }
    }

    #[inline(always)]
    fn encode_weighted(row: &[f32], importance: &[f32], out: &mut [u8]) {
        let runs = row.chunks(LANES * SUB).zip(importance.chunks(LANES * SUB));
        for ((values, importance), out) in runs.zip(out.chunks_mut(LANES / SUBS * Self::BYTES)) {
            let weights = weights::<SUPER>(values, importance);
            write_xs(values, scales(&columns(values), &columns(&weights)), out);
        }
    }

    #[inline(always)]
    fn decode(bytes: &[u8], out: &mut [f32]) {
        for (block, out) in bytes.chunks_exact(Self::BYTES).zip(out.chunks_exact_mut(SUPER)) {
            for (sub, out) in out.chunks_exact_mut(SUB).enumerate() {
                unpack(&block[CODES + sub * SUB / 2..][..SUB / 2], step(block, sub), out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scaled weights get the nearest value, and what lies halfway the larger.
    #[test]
    fn codes_are_nearest() {
        for (x, expected) in
            [(-200.0, 0), (-127.0, 0), (-115.5, 1), (-115.6, 0), (0.0, 8), (-4.5, 8), (-4.6, 7), (113.0, 15), (1e9, 15)]
        {
            assert_eq!(code(x), expected, "{x}");
            assert_eq!(value(x), f32::from(UNEVEN[usize::from(expected)]), "{x}");
        }
    }

    #[test]
    fn zeros_are_zeros_and_values_stay() {
        let mut out = [0u8; Iq4Xs::BYTES];
        Iq4Xs::encode(&[0.0; SUPER], &mut out);
        // The scale is a negative zero, as ggml's is; codes stand for the value 1, times nothing.
        assert_eq!((&out[..2], out[8]), (&[0, 0x80][..], 0x88));
        let mut back = [1.0; SUPER];
        Iq4Xs::decode(&out, &mut back);
        assert!(back.iter().all(|x| *x == 0.0));
        // All sixteen values with a scale of a half come back as they are.
        let values: Vec<f32> = (0..SUB).map(|at| f32::from(UNEVEN[at % 16]) * 0.5).collect();
        let mut bytes = [0; Iq4Nl::BYTES];
        Iq4Nl::encode(&values, &mut bytes);
        let mut back = vec![0.0; SUB];
        Iq4Nl::decode(&bytes, &mut back);
        assert_eq!(values, back);
    }
}
