//! `Q2_K`: 256 weights in 16 sub-blocks of 16, `x = d s q - dmin m` with `s` and `m` of 4 bits and `q` of 2.
//!
//! The search is that of `search.rs`, with `n` from 2.5 to 4; the 16 sub-blocks are the 16 lanes.

use super::{
    Codec, half,
    importance::{mean_square, sums, weigh},
    lanes::{columns, nearest},
    search::{Bits, Candidates, Found, fit, search},
    steps::Steps,
};

/// Weights of a super-block.
const SUPER: usize = 256;
/// Weights of a sub-block.
const SUB: usize = 16;
/// The largest scale, and the largest minimum.
const LEVELS: u8 = 15;
/// Where the codes and the two scales are; what is packed in fours comes first.
pub(super) const CODES: usize = 16;
pub(super) const D: usize = 80;
pub(super) const DMIN: usize = 82;

/// Two bits: `u8 scales[16] | u8 q[64] | f16 d | f16 dmin`.
#[derive(Clone, Copy, Debug)]
pub struct Q2K;

impl Bits for Q2K {
    const LARGEST: i32 = 3;
    const FIRST: f32 = -0.5;
    const CANDIDATES: u8 = 16;
    const ABSOLUTE: bool = true;
}

/// Codes of 128 weights in 32 bytes of four: the weight `j` below `j + 32`, `j + 64` and `j + 96`.
#[inline(always)]
pub(super) fn pack_two(codes: &[u8; SUPER], out: &mut [u8]) {
    for (codes, out) in codes.chunks_exact(128).zip(out.chunks_exact_mut(32)) {
        for (at, byte) in out.iter_mut().enumerate() {
            *byte = codes[at] | codes[at + 32] << 2 | codes[at + 64] << 4 | codes[at + 96] << 6;
        }
    }
}

/// The two bits of each of the 16 weights of a sub-block, [`pack_two`] undone.
#[inline(always)]
pub(super) fn unpack_two(bytes: &[u8], sub: usize) -> [u8; SUB] {
    let shift = sub % 8 / 2 * 2;
    let mut codes = [0; SUB];
    for (code, byte) in codes.iter_mut().zip(&bytes[sub / 8 * 32 + sub % 2 * SUB..]) {
        *code = byte >> shift & 3;
    }
    codes
}

/// The scale and the minimum of a sub-block, as they are stored.
#[inline(always)]
pub(super) fn steps(block: &[u8], sub: usize) -> (f32, f32) {
    let (d, dmin) = (half::read(&block[D..]), half::read(&block[DMIN..]));
    (d * f32::from(block[sub] & 15), dmin * f32::from(block[sub] >> 4))
}

/// Writes the super-block of `x`, of whose sub-blocks the scales and the minima are these.
#[inline(always)]
fn write(x: &[f32], found: &Found, scales: &Steps<SUB>, minima: &Steps<SUB>, out: &mut [u8]) {
    half::write(scales.step, &mut out[D..]);
    half::write(minima.step, &mut out[DMIN..]);
    let mut codes = [0u8; SUPER];
    for (sub, (codes, x)) in codes.chunks_exact_mut(SUB).zip(x.chunks_exact(SUB)).enumerate() {
        out[sub] = scales.codes[sub] | minima.codes[sub] << 4;
        let (d, m) = steps(out, sub);
        if d == 0.0 {
            // Nothing is left of the scale: ggml keeps the codes of the search.
            found.codes(sub, x, Q2K::LARGEST, codes);
        } else {
            for (q, x) in codes.iter_mut().zip(x) {
                *q = nearest((x + m) / d).clamp(0, Q2K::LARGEST) as u8;
            }
        }
    }
    pack_two(&codes, &mut out[CODES..D]);
}

impl Codec for Q2K {
    const ELEMENTS: usize = SUPER;
    const BYTES: usize = 84;

    #[inline(always)]
    fn encode(values: &[f32], out: &mut [u8]) {
        for (x, out) in values.chunks_exact(SUPER).zip(out.chunks_exact_mut(Self::BYTES)) {
            let found = search::<Self, SUB>(&columns(x));
            let steps = |of: &[f32]| Steps::by_largest(of, LEVELS);
            write(x, &found, &steps(&found.scale.0), &steps(&found.min.0), out);
        }
    }

    #[inline(always)]
    fn encode_weighted(row: &[f32], importance: &[f32], out: &mut [u8]) {
        let blocks = row.chunks_exact(SUPER).zip(importance.chunks_exact(SUPER));
        for ((x, importance), out) in blocks.zip(out.chunks_exact_mut(Self::BYTES)) {
            let mut weights = [0.0; SUPER];
            weigh(x, importance, mean_square(x), &mut weights);
            let found = fit::<SUB>(&columns(x), &columns(&weights), Self::LARGEST, Candidates::WEIGHED, false);
            let sums = sums::<SUB, SUB>(&weights);
            let steps = |of: &[f32]| Steps::weighted(of, &sums, LEVELS);
            write(x, &found, &steps(&found.scale.0), &steps(&found.min.0), out);
        }
    }

    /// `d s q - dmin m`.
    #[inline(always)]
    fn decode(bytes: &[u8], out: &mut [f32]) {
        for (block, out) in bytes.chunks_exact(Self::BYTES).zip(out.chunks_exact_mut(SUPER)) {
            for (sub, out) in out.chunks_exact_mut(SUB).enumerate() {
                let (d, m) = steps(block, sub);
                for (x, q) in out.iter_mut().zip(unpack_two(&block[CODES..D], sub)) {
                    *x = d * f32::from(q) - m;
                }
            }
        }
    }
}
