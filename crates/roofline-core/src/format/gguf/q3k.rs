//! `Q3_K`: 256 weights in 16 sub-blocks of 16, `x = d s (q - 4)` with `s` of 6 bits, signed, and `q` of 3.
//!
//! ggml's search: the codes `l` of the step `-extreme / 4`, then five rounds over the weights in which each takes the code
//! that is nearest with the best scale of the others, where `(sum w x l)^2 / sum w l^2` grows by it, `w = x^2`. The 16
//! sub-blocks are the 16 lanes. Where the importance of the inputs is known, the search is that of `centred.rs`, for the weights and
//! for the scales of the sub-blocks alike.

use super::{
    Codec, centred, half,
    importance::{mean_square, sums, weigh},
    lanes::{Lanes, columns, nearest},
    q2k::{pack_two, unpack_two},
};

/// Weights of a super-block.
const SUPER: usize = 256;
/// Weights of a sub-block.
const SUB: usize = 16;
/// Where the parts of a super-block are; the third bits come first.
const LOW: usize = 32;
pub(super) const SCALES: usize = 96;
pub(super) const D: usize = 108;
/// Below this nothing is worth a scale.
const NOTHING: f32 = 1e-15;
/// How often the codes are gone over.
const ROUNDS: usize = 5;

/// What the search found: scales, and the codes, counted from -4 up.
struct Found {
    scale: Lanes,
    codes: [Lanes; SUB],
}

#[inline(always)]
fn search(x: &[Lanes; SUB]) -> Found {
    let zero = Lanes::all(0.0);
    let (mut peak, mut extreme) = (zero, zero);
    for x in x {
        let magnitude = x.each(f32::abs);
        let larger = magnitude.above(peak);
        peak = larger.pick(magnitude, peak);
        extreme = larger.pick(*x, extreme);
    }
    let steps = Lanes::all(-4.0) / extreme;
    let mut codes = [zero; SUB];
    let (mut cross, mut square) = (zero, zero);
    for (l, x) in codes.iter_mut().zip(x) {
        *l = (steps * *x).whole(-4.0, 3.0);
        let w = *x * *x;
        cross = cross + w * *x * *l;
        square = square + w * *l * *l;
    }
    for _ in 0..ROUNDS {
        for (l, x) in codes.iter_mut().zip(x) {
            let w = *x * *x;
            let others = cross - w * *x * *l;
            let squares = square - w * *l * *l;
            // A ratio may be beyond what rounding by addition can hold, and then it is what ggml's is.
            let new = (*x * squares / others).each(|x| nearest(x).clamp(-4, 3) as f32);
            let (with, squares_with) = (others + w * *x * new, squares + w * new * new);
            let better = others.above(zero)
                & squares_with.above(zero)
                & (with * with * square).above(cross * cross * squares_with)
                & new.differs(*l);
            cross = better.pick(with, cross);
            square = better.pick(squares_with, square);
            *l = better.pick(new, *l);
        }
    }
    let nothing = peak.below(Lanes::all(NOTHING));
    let scale = square.above(zero).pick(cross / square, zero);
    Found {
        scale: nothing.pick(zero, scale),
        // ggml leaves the codes of nothing at zero, which is -4 from the middle.
        codes: codes.map(|l| nothing.pick(Lanes::all(-4.0), l)),
    }
}

/// The scale of a sub-block in the packed 12 bytes.
#[inline(always)]
pub(super) fn unpack(packed: &[u8], sub: usize) -> i8 {
    let low = packed[sub % 8] >> (sub / 8 * 4) & 15;
    let high = packed[8 + sub % 4] >> (sub / 4 * 2) & 3;
    (low | high << 4) as i8 - 32
}

/// The scale of a sub-block, as it is stored.
#[inline(always)]
pub(super) fn step(block: &[u8], sub: usize) -> f32 {
    half::read(&block[D..]) * f32::from(unpack(&block[SCALES..D], sub))
}

/// Codes of a super-block: their third bits, then their low ones.
#[inline(always)]
pub(super) fn pack(codes: &[u8; SUPER], out: &mut [u8]) {
    let (third, low) = out.split_at_mut(LOW);
    for (at, byte) in third.iter_mut().enumerate() {
        *byte = (0..8).rev().fold(0, |bits, run| bits << 1 | codes[32 * run + at] >> 2);
    }
    pack_two(&codes.map(|code| code & 3), low);
}

/// The scale of the largest scale's code of -32, and the codes of all, counted from there.
#[inline(always)]
fn by_largest(scales: &[f32; SUB]) -> (f32, [u8; SUB]) {
    let largest =
        scales.iter().fold(0.0f32, |largest, scale| if scale.abs() > largest.abs() { *scale } else { largest });
    if largest == 0.0 {
        return (0.0, [0; SUB]);
    }
    let inverse = -32.0 / largest;
    (1.0 / inverse, scales.map(|scale| (nearest(inverse * scale).clamp(-32, 31) + 32) as u8))
}

/// Writes the super-block of `x` with the scale `d` and those of the sub-blocks, from 0 to 63. `kept` are the codes of a sub-block that
/// nothing is left of the scale for: those of the search, as ggml has them.
#[inline(always)]
fn write(x: &[f32], d: f32, scales: &[u8; SUB], kept: impl Fn(usize, &mut [u8]), out: &mut [u8]) {
    let (parts, d_out) = out.split_at_mut(D);
    let (codes_out, packed) = parts.split_at_mut(SCALES);
    half::write(d, d_out);
    packed.fill(0);
    for (sub, six) in scales.iter().enumerate() {
        packed[sub % 8] |= (six & 15) << (sub / 8 * 4);
        packed[8 + sub % 4] |= six >> 4 << (sub / 4 * 2);
    }
    let d = half::read(d_out);
    let mut codes = [0u8; SUPER];
    for (sub, (codes, x)) in codes.chunks_exact_mut(SUB).zip(x.chunks_exact(SUB)).enumerate() {
        let d = d * f32::from(unpack(packed, sub));
        if d == 0.0 {
            kept(sub, codes);
        } else {
            for (q, x) in codes.iter_mut().zip(x) {
                *q = (nearest(x / d).clamp(-4, 3) + 4) as u8;
            }
        }
    }
    pack(&codes, codes_out);
}

/// Three bits: `u8 third[32] | u8 low[64] | u8 scales[12] | f16 d`.
#[derive(Clone, Copy, Debug)]
pub struct Q3K;

impl Codec for Q3K {
    const ELEMENTS: usize = SUPER;
    const BYTES: usize = 110;

    #[inline(always)]
    fn encode(values: &[f32], out: &mut [u8]) {
        for (x, out) in values.chunks_exact(SUPER).zip(out.chunks_exact_mut(Self::BYTES)) {
            let found = search(&columns(x));
            let (d, scales) = by_largest(&found.scale.0);
            let kept = |sub: usize, codes: &mut [u8]| {
                for (q, found) in codes.iter_mut().zip(&found.codes) {
                    *q = (found.0[sub] as i32 + 4) as u8;
                }
            };
            write(x, d, &scales, kept, out);
        }
    }

    #[inline(always)]
    fn encode_weighted(row: &[f32], importance: &[f32], out: &mut [u8]) {
        let blocks = row.chunks_exact(SUPER).zip(importance.chunks_exact(SUPER));
        for ((x, importance), out) in blocks.zip(out.chunks_exact_mut(Self::BYTES)) {
            let mut weights = [0.0; SUPER];
            weigh(x, importance, 2.0 * mean_square(x), &mut weights);
            let found = centred::search::<SUB>(&columns(x), &columns(&weights), 4.0);
            // The scales of the sub-blocks are what one lane has.
            let of_scales =
                centred::search::<SUB>(&columns(&found.scale.0), &columns(&sums::<SUB, SUB>(&weights)), 32.0);
            let mut scales = [0; SUB];
            of_scales.codes(0, &found.scale.0, &mut scales);
            let kept = |sub: usize, codes: &mut [u8]| found.codes(sub, &x[sub * SUB..][..SUB], codes);
            write(x, of_scales.scale.0[0], &scales, kept, out);
        }
    }

    /// `d s (q - 4)`.
    #[inline(always)]
    fn decode(bytes: &[u8], out: &mut [f32]) {
        for (block, out) in bytes.chunks_exact(Self::BYTES).zip(out.chunks_exact_mut(SUPER)) {
            for (sub, out) in out.chunks_exact_mut(SUB).enumerate() {
                let d = step(block, sub);
                let third = &block[sub % 2 * SUB..][..SUB];
                for ((x, low), third) in out.iter_mut().zip(unpack_two(&block[LOW..SCALES], sub)).zip(third) {
                    let code = low | (third >> (sub / 2) & 1) << 2;
                    *x = d * f32::from(code as i8 - 4);
                }
            }
        }
    }
}
