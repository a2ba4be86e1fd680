//! Blocks of 32 weights with one f16 scale: `Q8_0`, `Q4_0`, `Q5_0`, and with a minimum beside it: `Q4_1`, `Q5_1`.
//!
//! Each code is found with the scale *before* it is rounded to f16, as ggml does; only then are the bytes the same.

use super::{
    Codec, centred, half,
    importance::{mean_square, weigh},
    lanes::{LANES, columns},
    search::{Candidates, fit},
};

/// How many weights share a scale.
const BLOCK: usize = 32;

/// The bits of the largest magnitude. Magnitudes order like their bits, and integers may be compared in any order.
#[inline(always)]
pub fn peak_bits<const N: usize>(values: &[f32; N]) -> u32 {
    values.iter().fold(0, |peak, x| peak.max(x.to_bits() & 0x7fff_ffff))
}

/// The first of the weights of largest magnitude, with its sign.
#[inline(always)]
fn extreme(block: &[f32; BLOCK]) -> f32 {
    let peak = peak_bits(block);
    let (mut positive, mut negative) = (0, 0);
    for x in block {
        positive |= u32::from(x.to_bits() == peak);
        negative |= u32::from(x.to_bits() == peak | 0x8000_0000);
    }
    let peak = f32::from_bits(peak);
    // Zeros have no largest; what C starts from is a positive one.
    if peak == 0.0 {
        0.0
    } else if positive & negative == 1 {
        block.iter().find(|x| x.abs() == peak).copied().unwrap_or(peak)
    } else if negative == 1 {
        -peak
    } else {
        peak
    }
}

/// `d`, or the largest f16 where `d` would become infinite.
#[inline(always)]
fn held(d: f32) -> f32 {
    if d.abs() >= 65520.0 { 65504f32.copysign(d) } else { d }
}

/// The whole part of a small number as a byte, of two's complement: at 1.5 * 2^23 a float's last place is one, so the
/// low bits are the number. A cast would have to look for NaN and for what does not fit.
#[inline(always)]
fn byte(x: f32) -> u8 {
    (x.trunc() + 12_582_912.0).to_bits() as u8
}

#[inline(always)]
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// Eight bits: `f16 d | i8 q[32]`.
#[derive(Clone, Copy, Debug)]
pub struct Q8_0;

impl Codec for Q8_0 {
    const ELEMENTS: usize = BLOCK;
    const BYTES: usize = 34;

    /// `d = max|x| / 127`, `q = round(x / d)`, half away from zero.
    #[inline(always)]
    fn encode(values: &[f32], out: &mut [u8]) {
        // The largest float below a half: adding a half itself would round 0.49999997 up.
        const ALMOST_HALF: f32 = 0.499_999_97;
        for (block, out) in values.as_chunks::<BLOCK>().0.iter().zip(out.as_chunks_mut::<{ Self::BYTES }>().0) {
            let d = held(f32::from_bits(peak_bits(block)) / 127.0);
            // Of a scale too small to have an inverse C makes codes of zero: all of it is zero once `d` is stored.
            let inverse = if 1.0 / d < f32::INFINITY { inverse(d) } else { 0.0 };
            half::write(d, out);
            for (q, x) in out[2..].iter_mut().zip(block) {
                let scaled = (x * inverse).clamp(-127.0, 127.0);
                *q = byte(scaled + ALMOST_HALF.copysign(scaled));
            }
        }
    }

    /// `d q`.
    #[inline(always)]
    fn decode(bytes: &[u8], out: &mut [f32]) {
        for (block, out) in bytes.as_chunks::<{ Self::BYTES }>().0.iter().zip(out.as_chunks_mut::<BLOCK>().0) {
            let d = half::read(block);
            for (x, q) in out.iter_mut().zip(&block[2..]) {
                *x = f32::from(*q as i8) * d;
            }
        }
    }
}

/// The codes of a block whose weight of largest magnitude gets the code 0: `d = extreme / -middle`,
/// `q = min(2 middle - 1, floor(x / d + middle + 1/2))`. Returns `d`.
#[inline(always)]
fn centred(block: &[f32; BLOCK], middle: f32, codes: &mut [u8; BLOCK]) -> f32 {
    let d = held(extreme(block) / -middle);
    let inverse = inverse(d);
    for (q, x) in codes.iter_mut().zip(block) {
        *q = byte((x * inverse).clamp(-middle, middle) + (middle + 0.5)).min(2 * middle as u8 - 1);
    }
    d
}

/// Calls `each` with up to sixteen blocks of a row at a time, and what their errors count.
#[inline(always)]
fn weighed_runs(row: &[f32], importance: &[f32], mut each: impl FnMut(usize, &[f32], &[f32])) {
    let spread = mean_square(row);
    let runs = row.chunks(LANES * BLOCK).zip(importance.chunks(LANES * BLOCK));
    for (at, (run, importance)) in runs.enumerate() {
        let mut weights = [0.0; LANES * BLOCK];
        weigh(run, importance, spread, &mut weights);
        each(LANES * at, run, &weights[..run.len()]);
    }
}

/// Calls `each` with the codes around `middle` of every block of a row, and their scale.
#[inline(always)]
fn centred_weighted(row: &[f32], importance: &[f32], middle: f32, mut each: impl FnMut(usize, f32, &[u8; BLOCK])) {
    weighed_runs(row, importance, |first, run, weights| {
        let found = centred::search::<BLOCK>(&columns(run), &columns(weights), middle);
        for (lane, block) in run.chunks_exact(BLOCK).enumerate() {
            let mut codes = [0; BLOCK];
            found.codes(lane, block, &mut codes);
            each(first + lane, found.scale.0[lane], &codes);
        }
    });
}

/// Calls `each` with the codes above the minimum of every block of a row, their scale and the minimum.
#[inline(always)]
fn above_minimum_weighted(
    row: &[f32],
    importance: &[f32],
    largest: i32,
    mut each: impl FnMut(usize, f32, f32, &[u8; BLOCK]),
) {
    weighed_runs(row, importance, |first, run, weights| {
        let found = fit::<BLOCK>(&columns(run), &columns(weights), largest, Candidates::WEIGHED, false);
        for (lane, block) in run.chunks_exact(BLOCK).enumerate() {
            let mut codes = [0; BLOCK];
            found.codes(lane, block, largest, &mut codes);
            each(first + lane, found.scale.0[lane], -found.min.0[lane], &codes);
        }
    });
}

/// `u8 q[16]`: two four-bit codes to a byte.
#[inline(always)]
pub(super) fn pack_four(codes: &[u8; BLOCK], out: &mut [u8]) {
    for (at, byte) in out.iter_mut().enumerate() {
        *byte = codes[at] | codes[at + 16] << 4;
    }
}

/// Four bits: `f16 d | u8 q[16]`, two codes to a byte, the weight `j` below the weight `j + 16`.
#[derive(Clone, Copy, Debug)]
pub struct Q4_0;

impl Codec for Q4_0 {
    const ELEMENTS: usize = BLOCK;
    const BYTES: usize = 18;

    /// `d` is the weight of largest magnitude over -8, which gets the code 0.
    #[inline(always)]
    fn encode(values: &[f32], out: &mut [u8]) {
        for (block, out) in values.as_chunks::<BLOCK>().0.iter().zip(out.as_chunks_mut::<{ Self::BYTES }>().0) {
            let mut codes = [0; BLOCK];
            let d = centred(block, 8.0, &mut codes);
            half::write(d, out);
            pack_four(&codes, &mut out[2..]);
        }
    }

    #[inline(always)]
    fn encode_weighted(row: &[f32], importance: &[f32], out: &mut [u8]) {
        let out = out.as_chunks_mut::<{ Self::BYTES }>().0;
        centred_weighted(row, importance, 8.0, |at, d, codes| {
            half::write(d, &mut out[at]);
            pack_four(codes, &mut out[at][2..]);
        });
    }

    /// `d (q - 8)`.
    #[inline(always)]
    fn decode(bytes: &[u8], out: &mut [f32]) {
        for (block, out) in bytes.as_chunks::<{ Self::BYTES }>().0.iter().zip(out.as_chunks_mut::<BLOCK>().0) {
            let d = half::read(block);
            let (low, high) = out.split_at_mut(16);
            for ((low, high), byte) in low.iter_mut().zip(high).zip(&block[2..]) {
                *low = f32::from((byte & 15) as i8 - 8) * d;
                *high = f32::from((byte >> 4) as i8 - 8) * d;
            }
        }
    }
}

/// `u32 fifth bits | u8 q[16]`: five-bit codes.
#[inline(always)]
pub(super) fn pack_five(codes: &[u8; BLOCK], out: &mut [u8]) {
    let mut high = 0;
    for (at, code) in codes.iter().enumerate() {
        high |= u32::from(code >> 4) << at;
    }
    out[..4].copy_from_slice(&high.to_le_bytes());
    for (at, byte) in out[4..].iter_mut().enumerate() {
        *byte = codes[at] & 15 | codes[at + 16] << 4;
    }
}

/// The inverse of [`pack_five`].
#[inline(always)]
fn unpack_five(bytes: &[u8], codes: &mut [u8; BLOCK]) {
    let fifth = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    for at in 0..16 {
        codes[at] = bytes[4 + at] & 15 | ((fifth >> at & 1) << 4) as u8;
        codes[at + 16] = bytes[4 + at] >> 4 | ((fifth >> (at + 16) & 1) << 4) as u8;
    }
}

/// Five bits: `f16 d | u32 fifth bits | u8 q[16]`.
#[derive(Clone, Copy, Debug)]
pub struct Q5_0;

impl Codec for Q5_0 {
    const ELEMENTS: usize = BLOCK;
    const BYTES: usize = 22;

    /// `d` is the weight of largest magnitude over -16, which gets the code 0.
    #[inline(always)]
    fn encode(values: &[f32], out: &mut [u8]) {
        for (block, out) in values.as_chunks::<BLOCK>().0.iter().zip(out.as_chunks_mut::<{ Self::BYTES }>().0) {
            let mut codes = [0; BLOCK];
            let d = centred(block, 16.0, &mut codes);
            half::write(d, out);
            pack_five(&codes, &mut out[2..]);
        }
    }

    #[inline(always)]
    fn encode_weighted(row: &[f32], importance: &[f32], out: &mut [u8]) {
        let out = out.as_chunks_mut::<{ Self::BYTES }>().0;
        centred_weighted(row, importance, 16.0, |at, d, codes| {
            half::write(d, &mut out[at]);
            pack_five(codes, &mut out[at][2..]);
        });
    }

    /// `d (q - 16)`.
    #[inline(always)]
    fn decode(bytes: &[u8], out: &mut [f32]) {
        for (block, out) in bytes.as_chunks::<{ Self::BYTES }>().0.iter().zip(out.as_chunks_mut::<BLOCK>().0) {
            let d = half::read(block);
            let mut codes = [0; BLOCK];
            unpack_five(&block[2..], &mut codes);
            for (x, q) in out.iter_mut().zip(codes) {
                *x = f32::from(q as i8 - 16) * d;
            }
        }
    }
}

/// The least and the largest weight, the first of the zeros where zero is the least: its sign is stored.
#[inline(always)]
fn range(block: &[f32; BLOCK]) -> (f32, f32) {
    let (mut low, mut high) = (*block, *block);
    for width in [16, 8, 4, 2, 1] {
        for at in 0..width {
            low[at] = if low[at + width] < low[at] { low[at + width] } else { low[at] };
            high[at] = if high[at + width] > high[at] { high[at + width] } else { high[at] };
        }
    }
    let first = if low[0] == 0.0 { block.iter().find(|x| **x == 0.0) } else { None };
    (first.copied().unwrap_or(low[0]), high[0])
}

/// The codes of a block above its least weight `m`, `d` being a step of the range: `q = floor((x - m) / d + 1/2)`. Returns `d`
/// and `m`.
#[inline(always)]
fn above_minimum(block: &[f32; BLOCK], largest: f32, codes: &mut [u8; BLOCK]) -> (f32, f32) {
    let (min, max) = range(block);
    let d = held((max - min) / largest);
    let inverse = inverse(d);
    for (q, x) in codes.iter_mut().zip(block) {
        *q = byte(((x - min) * inverse).clamp(0.0, largest) + 0.5);
    }
    (d, min)
}

/// Four bits above a minimum: `f16 d | f16 m | u8 q[16]`.
#[derive(Clone, Copy, Debug)]
pub struct Q4_1;

impl Codec for Q4_1 {
    const ELEMENTS: usize = BLOCK;
    const BYTES: usize = 20;

    /// `m` is the least weight, `d` a 15th of the range.
    #[inline(always)]
    fn encode(values: &[f32], out: &mut [u8]) {
        for (block, out) in values.as_chunks::<BLOCK>().0.iter().zip(out.as_chunks_mut::<{ Self::BYTES }>().0) {
            let mut codes = [0; BLOCK];
            let (d, m) = above_minimum(block, 15.0, &mut codes);
            half::write(d, out);
            half::write(m, &mut out[2..]);
            pack_four(&codes, &mut out[4..]);
        }
    }

    #[inline(always)]
    fn encode_weighted(row: &[f32], importance: &[f32], out: &mut [u8]) {
        let out = out.as_chunks_mut::<{ Self::BYTES }>().0;
        above_minimum_weighted(row, importance, 15, |at, d, m, codes| {
            half::write(d, &mut out[at]);
            half::write(m, &mut out[at][2..]);
            pack_four(codes, &mut out[at][4..]);
        });
    }

    /// `d q + m`.
    #[inline(always)]
    fn decode(bytes: &[u8], out: &mut [f32]) {
        for (block, out) in bytes.as_chunks::<{ Self::BYTES }>().0.iter().zip(out.as_chunks_mut::<BLOCK>().0) {
            let (d, m) = (half::read(block), half::read(&block[2..]));
            let (low, high) = out.split_at_mut(16);
            for ((low, high), byte) in low.iter_mut().zip(high).zip(&block[4..]) {
                *low = f32::from(byte & 15) * d + m;
                *high = f32::from(byte >> 4) * d + m;
            }
        }
    }
}

/// Five bits above a minimum: `f16 d | f16 m | u32 fifth bits | u8 q[16]`; what llama.cpp falls back to for rows that are
/// no whole number of `Q5_K` blocks.
#[derive(Clone, Copy, Debug)]
pub struct Q5_1;

impl Codec for Q5_1 {
    const ELEMENTS: usize = BLOCK;
    const BYTES: usize = 24;

    /// `m` is the least weight, `d` a 31st of the range.
    #[inline(always)]
    fn encode(values: &[f32], out: &mut [u8]) {
        for (block, out) in values.as_chunks::<BLOCK>().0.iter().zip(out.as_chunks_mut::<{ Self::BYTES }>().0) {
            let mut codes = [0; BLOCK];
            let (d, m) = above_minimum(block, 31.0, &mut codes);
            half::write(d, out);
            half::write(m, &mut out[2..]);
            pack_five(&codes, &mut out[4..]);
        }
    }

    #[inline(always)]
    fn encode_weighted(row: &[f32], importance: &[f32], out: &mut [u8]) {
        let out = out.as_chunks_mut::<{ Self::BYTES }>().0;
        above_minimum_weighted(row, importance, 31, |at, d, m, codes| {
            half::write(d, &mut out[at]);
            half::write(m, &mut out[at][2..]);
            pack_five(codes, &mut out[at][4..]);
        });
    }

    /// `d q + m`.
    #[inline(always)]
    fn decode(bytes: &[u8], out: &mut [f32]) {
        for (block, out) in bytes.as_chunks::<{ Self::BYTES }>().0.iter().zip(out.as_chunks_mut::<BLOCK>().0) {
            let (d, m) = (half::read(block), half::read(&block[2..]));
            let mut codes = [0; BLOCK];
            unpack_five(&block[4..], &mut codes);
            for (x, q) in out.iter_mut().zip(codes) {
                *x = f32::from(q) * d + m;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_round_away_from_zero_in_q8_0() {
        let mut block = [0.0; BLOCK];
        // With the peak 127 the scale is one.
        block[..6].copy_from_slice(&[127.0, 0.5, -0.5, 0.499_999_97, 2.5, -126.5]);
        let mut out = [0; 34];
        Q8_0::encode(&block, &mut out);
        assert_eq!(out[..8], [0x00, 0x3c, 127, 1, 255, 0, 3, 129]);
    }

    #[test]
    fn the_first_of_equal_extremes_sets_the_sign_in_q4_0() {
        let mut block = [0.0; BLOCK];
        (block[3], block[7]) = (-8.0, 8.0);
        let mut out = [0; 18];
        Q4_0::encode(&block, &mut out);
        assert_eq!(half::read(&out), 1.0);
        // -8 -> 0 and 8 -> 16, held at 15.
        assert_eq!((out[2 + 3] & 15, out[2 + 7] & 15), (0, 15));
    }

    #[test]
    fn a_scale_too_large_for_f16_clips_and_stays_finite() {
        let block: Vec<f32> = (0..BLOCK).map(|at| at as f32 * 1e6).collect();
        let (mut out, mut back) = ([0; 34], [0.0; BLOCK]);
        Q8_0::encode(&block, &mut out);
        Q8_0::decode(&out, &mut back);
        assert_eq!(back[31], 127.0 * 65504.0);
        assert!((back[5] - 5e6).abs() <= 65504.0 / 2.0);
        let (mut out, mut back) = ([0; 18], [0.0; BLOCK]);
        Q4_0::encode(&block, &mut out);
        Q4_0::decode(&out, &mut back);
        assert_eq!(back[31], 8.0 * 65504.0);
    }
}
