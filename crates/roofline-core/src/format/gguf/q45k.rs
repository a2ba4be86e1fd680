//! `Q4_K` and `Q5_K`: 256 weights in 8 sub-blocks of 32, `x = d s q - dmin m` with `s` and `m` of 6 bits and `q` of 4
//! or 5.
//!
//! The search is that of `search.rs`, with `n` from 14 to 16 (`Q5_K`: 30.5 to 32); two super-blocks are searched at once.

use super::{
    Codec, half,
    importance::{mean_square, sums, weigh},
    lanes::{LANES, columns, nearest},
    search::{Bits, Candidates, Found, fit, search},
    steps::Steps,
};

/// Weights of a super-block.
const SUPER: usize = 256;
/// Weights of a sub-block.
pub(super) const SUB: usize = 32;
/// Sub-blocks of a super-block.
pub(super) const SUBS: usize = SUPER / SUB;
/// The largest scale, and the largest minimum.
const LEVELS: u8 = 63;
/// Bytes of the low four bits of a super-block's codes.
const LOW: usize = 128;

/// Where the parts of a super-block are.
pub(super) trait Parts: Bits {
    /// Bytes before the low bits: `f16 d | f16 dmin | u8 scales[12] | u8 fifth[0 or 32]`.
    const HEAD: usize;
}

/// Four bits: `f16 d | f16 dmin | u8 scales[12] | u8 q[128]`.
#[derive(Clone, Copy, Debug)]
pub struct Q4K;

impl Bits for Q4K {
    const LARGEST: i32 = 15;
    const FIRST: f32 = -1.0;
    const CANDIDATES: u8 = 21;
    const ABSOLUTE: bool = false;
}

impl Parts for Q4K {
    const HEAD: usize = 16;
}

/// Five bits: `f16 d | f16 dmin | u8 scales[12] | u8 fifth[32] | u8 q[128]`.
#[derive(Clone, Copy, Debug)]
pub struct Q5K;

impl Bits for Q5K {
    const LARGEST: i32 = 31;
    const FIRST: f32 = -0.5;
    const CANDIDATES: u8 = 16;
    const ABSOLUTE: bool = false;
}

impl Parts for Q5K {
    const HEAD: usize = 48;
}

/// The scale and the minimum of a sub-block in the packed 12 bytes.
#[inline(always)]
pub(super) fn unpack(packed: &[u8], sub: usize) -> (u8, u8) {
    if sub < 4 {
        (packed[sub] & 63, packed[sub + 4] & 63)
    } else {
        let low = packed[sub + 4];
        (low & 15 | packed[sub - 4] >> 6 << 4, low >> 4 | packed[sub] >> 6 << 4)
    }
}

/// The scale and the minimum of a sub-block, as they are stored.
#[inline(always)]
pub(super) fn steps(block: &[u8], sub: usize) -> (f32, f32) {
    let (d, dmin) = (half::read(block), half::read(&block[2..]));
    let (scale, min) = unpack(&block[4..16], sub);
    (d * f32::from(scale), dmin * f32::from(min))
}

/// Codes of a super-block, into all of what is behind the scales: their fifth bits where there is room, then the low ones.
#[inline(always)]
pub(super) fn pack<B: Parts>(codes: &[[u8; SUB]; SUBS], block: &mut [u8]) {
    let (fifth, low) = block[16..].split_at_mut(B::HEAD - 16);
    for (pair, low) in codes.chunks_exact(2).zip(low.chunks_exact_mut(SUB)) {
        for (at, byte) in low.iter_mut().enumerate() {
            *byte = pair[0][at] & 15 | pair[1][at] << 4;
        }
    }
    for (at, byte) in fifth.iter_mut().enumerate() {
        *byte = codes.iter().rev().fold(0, |bits, codes| bits << 1 | codes[at] >> 4);
    }
}

/// Writes the super-block of `x`, whose sub-blocks were found in the lanes from `lane` on, with these scales and minima.
#[inline(always)]
fn write<B: Parts>(x: &[f32], found: &Found, lane: usize, scales: &Steps<SUBS>, minima: &Steps<SUBS>, out: &mut [u8]) {
    half::write(scales.step, out);
    half::write(minima.step, &mut out[2..]);
    let (d, dmin) = (half::read(out), half::read(&out[2..]));
    let packed = &mut out[4..16];
    let mut sub_codes = [[0u8; SUB]; SUBS];
    for sub in 0..SUBS {
        let (scale, min) = (scales.codes[sub], minima.codes[sub]);
        if sub < 4 {
            packed[sub] = scale;
            packed[sub + 4] = min;
        } else {
            packed[sub + 4] = scale & 15 | (min & 15) << 4;
            packed[sub - 4] |= scale >> 4 << 6;
            packed[sub] |= min >> 4 << 6;
        }
        let (d, m) = (d * f32::from(scale), dmin * f32::from(min));
        let values = &x[sub * SUB..][..SUB];
        if d == 0.0 {
            // Nothing is left of the scale: ggml keeps the codes of the search.
            found.codes(lane + sub, values, B::LARGEST, &mut sub_codes[sub]);
        } else {
            for (q, x) in sub_codes[sub].iter_mut().zip(values) {
                *q = nearest((x + m) / d).clamp(0, B::LARGEST) as u8;
            }
        }
    }
    pack::<B>(&sub_codes, out);
}

macro_rules! codec {
    ($name:ident) => {
        impl Codec for $name {
            const ELEMENTS: usize = SUPER;
            const BYTES: usize = Self::HEAD + LOW;

            #[inline(always)]
            fn encode(values: &[f32], out: &mut [u8]) {
                encode::<Self>(values, out);
            }

            #[inline(always)]
            fn encode_weighted(row: &[f32], importance: &[f32], out: &mut [u8]) {
                encode_weighted::<Self>(row, importance, out);
            }

            #[inline(always)]
            fn decode(bytes: &[u8], out: &mut [f32]) {
                decode::<Self>(bytes, out);
            }
        }
    };
}
codec!(Q4K);
codec!(Q5K);

/// Super-blocks, two at a time.
#[inline(always)]
fn encode<B: Parts + Codec>(values: &[f32], out: &mut [u8]) {
    for (pair, out) in values.chunks(SUB * LANES).zip(out.chunks_mut(2 * B::BYTES)) {
        let found = search::<B, SUB>(&columns(pair));
        for (at, (x, out)) in pair.chunks_exact(SUPER).zip(out.chunks_exact_mut(B::BYTES)).enumerate() {
            let lane = SUBS * at;
            let steps = |of: &[f32]| Steps::by_largest(&of[lane..][..SUBS], LEVELS);
            write::<B>(x, &found, lane, &steps(&found.scale.0), &steps(&found.min.0), out);
        }
    }
}

/// Super-blocks of a row, two at a time.
#[inline(always)]
fn encode_weighted<B: Parts + Codec>(row: &[f32], importance: &[f32], out: &mut [u8]) {
    let pairs = row.chunks(SUB * LANES).zip(importance.chunks(SUB * LANES));
    for ((pair, importance), out) in pairs.zip(out.chunks_mut(2 * B::BYTES)) {
        let mut weights = [0.0; SUB * LANES];
        let blocks = pair.chunks_exact(SUPER).zip(importance.chunks_exact(SUPER));
        for ((x, importance), weights) in blocks.zip(weights.chunks_exact_mut(SUPER)) {
            weigh(x, importance, 2.0 * mean_square(x), weights);
        }
        let found = fit::<SUB>(&columns(pair), &columns(&weights), B::LARGEST, Candidates::WEIGHED, false);
        let sums = sums::<SUB, LANES>(&weights);
        for (at, (x, out)) in pair.chunks_exact(SUPER).zip(out.chunks_exact_mut(B::BYTES)).enumerate() {
            let lane = SUBS * at;
            let steps = |of: &[f32]| Steps::weighted(&of[lane..][..SUBS], &sums[lane..][..SUBS], LEVELS);
            write::<B>(x, &found, lane, &steps(&found.scale.0), &steps(&found.min.0), out);
        }
    }
}

/// `d s q - dmin m`.
#[inline(always)]
fn decode<B: Parts + Codec>(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(B::BYTES).zip(out.chunks_exact_mut(SUPER)) {
        let (head, low) = block.split_at(B::HEAD);
        for (sub, out) in out.chunks_exact_mut(SUB).enumerate() {
            let (d, m) = steps(block, sub);
            let low = &low[sub / 2 * SUB..][..SUB];
            if B::LARGEST > 15 {
                for ((x, q), fifth) in out.iter_mut().zip(low).zip(&head[16..]) {
                    *x = d * f32::from((q >> (sub % 2 * 4)) & 15 | (fifth >> sub & 1) << 4) - m;
                }
            } else {
                for (x, q) in out.iter_mut().zip(low) {
                    *x = d * f32::from((q >> (sub % 2 * 4)) & 15) - m;
                }
            }
        }
    }
}
