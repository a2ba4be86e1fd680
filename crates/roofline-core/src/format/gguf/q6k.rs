//! `Q6_K`: 256 weights in 16 sub-blocks of 16, `x = d s (q - 32)` with `s` a signed byte and `q` of 6 bits.
//!
//! The search is that of `centred.rs`, where weights count by `x^2`, or by their importance alone where that is known. The 16
//! sub-blocks are the 16 lanes.

use super::{
    Codec,
    centred::{Found, NOTHING, search},
    half,
    lanes::{columns, nearest},
};

/// Weights of a super-block.
const SUPER: usize = 256;
/// Weights of a sub-block.
const SUB: usize = 16;
/// Where the parts of a super-block are; the low bits come first.
const HIGH: usize = 128;
pub(super) const SCALES: usize = 192;
pub(super) const D: usize = 208;
/// The code of zero.
const MIDDLE: f32 = 32.0;

/// The scale of a sub-block, as it is stored.
#[inline(always)]
pub(super) fn step(block: &[u8], sub: usize) -> f32 {
    half::read(&block[D..]) * f32::from(block[SCALES + sub] as i8)
}

/// Codes of a super-block: their low four bits, then the others.
#[inline(always)]
pub(super) fn pack(codes: &[u8; SUPER], out: &mut [u8]) {
    let (low, high) = out.split_at_mut(HIGH);
    for ((codes, low), high) in codes.chunks_exact(128).zip(low.chunks_exact_mut(64)).zip(high.chunks_exact_mut(32)) {
        for at in 0..32 {
            let [a, b, c, d] = [codes[at], codes[at + 32], codes[at + 64], codes[at + 96]];
            low[at] = a & 15 | (c & 15) << 4;
            low[at + 32] = b & 15 | (d & 15) << 4;
            high[at] = a >> 4 | b >> 4 << 2 | c >> 4 << 4 | d >> 4 << 6;
        }
    }
}

#[inline(always)]
fn write(x: &[f32], found: &Found, out: &mut [u8]) {
    let mut largest = 0.0f32;
    for scale in found.scale.0 {
        if scale.abs() > largest.abs() {
            largest = scale;
        }
    }
    if largest.abs() < NOTHING {
        out.fill(0);
        return;
    }
    let inverse = -128.0 / largest;
    half::write(1.0 / inverse, &mut out[D..]);
    let d = half::read(&out[D..]);
    let mut codes = [0u8; SUPER];
    for (sub, (codes, x)) in codes.chunks_exact_mut(SUB).zip(x.chunks_exact(SUB)).enumerate() {
        let scale = nearest(inverse * found.scale.0[sub]).min(127) as i8;
        out[SCALES + sub] = scale as u8;
        let d = d * f32::from(scale);
        if d == 0.0 {
            // Nothing is left of the scale: ggml keeps the codes of the search, which are 0 where it found nothing.
            found.codes(sub, x, codes);
        } else {
            for (q, x) in codes.iter_mut().zip(x) {
                *q = (nearest(x / d).clamp(-32, 31) + 32) as u8;
            }
        }
    }
    pack(&codes, &mut out[..SCALES]);
}

/// Six bits: `u8 low[128] | u8 high[64] | i8 scales[16] | f16 d`.
#[derive(Clone, Copy, Debug)]
pub struct Q6K;

impl Codec for Q6K {
    const ELEMENTS: usize = SUPER;
    const BYTES: usize = D + 2;

    /// Super-blocks.
    #[inline(always)]
    fn encode(values: &[f32], out: &mut [u8]) {
        for (x, out) in values.chunks_exact(SUPER).zip(out.chunks_exact_mut(Self::BYTES)) {
            let columns = columns::<SUB>(x);
            write(x, &search(&columns, &columns.map(|x| x * x), MIDDLE), out);
        }
    }

    #[inline(always)]
    fn encode_weighted(row: &[f32], importance: &[f32], out: &mut [u8]) {
        let blocks = row.chunks_exact(SUPER).zip(importance.chunks_exact(SUPER));
        for ((x, importance), out) in blocks.zip(out.chunks_exact_mut(Self::BYTES)) {
            write(x, &search(&columns::<SUB>(x), &columns(importance), MIDDLE), out);
        }
    }

    /// `d s (q - 32)`.
    #[inline(always)]
    fn decode(bytes: &[u8], out: &mut [f32]) {
        for (block, out) in bytes.chunks_exact(Self::BYTES).zip(out.chunks_exact_mut(SUPER)) {
            let d = half::read(&block[D..]);
            for (half, out) in out.chunks_exact_mut(128).enumerate() {
                let (low, high) = (&block[64 * half..][..64], &block[HIGH + 32 * half..][..32]);
                for (quarter, out) in out.chunks_exact_mut(32).enumerate() {
                    let low = &low[quarter % 2 * 32..][..32];
                    for (pair, out) in out.chunks_exact_mut(SUB).enumerate() {
                        let d = d * f32::from(block[SCALES + 8 * half + 2 * quarter + pair] as i8);
                        let (low, high) = (&low[SUB * pair..][..SUB], &high[SUB * pair..][..SUB]);
                        for ((x, low), high) in out.iter_mut().zip(low).zip(high) {
                            let q = (low >> (quarter / 2 * 4)) & 15 | (high >> (2 * quarter) & 3) << 4;
                            *x = d * f32::from(q as i8 - 32);
                        }
                    }
                }
            }
        }
    }
}
