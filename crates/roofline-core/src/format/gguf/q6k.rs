//! `Q6_K`: 256 weights in 16 sub-blocks of 16, `x = d s (q - 32)` with `s` a signed byte and `q` of 6 bits.
//!
//! ggml's search: for each sub-block, 19 candidate steps `-extreme / (32 + i / 10)`, `i = 0, -9, ..., 9`, of which the
//! one is kept whose codes `l` have the largest `(sum w x l)^2 / sum w l^2`, `w = x^2`: that is the least weighted
//! error with the best scale, `sum w x l / sum w l^2`. The 16 sub-blocks are the 16 lanes.

use super::{
    Codec, half,
    lanes::{LANES, Lanes, columns, nearest},
};

/// Weights of a super-block.
const SUPER: usize = 256;
/// Weights of a sub-block.
const SUB: usize = 16;
/// Where the parts of a super-block are; the low bits come first.
const HIGH: usize = 128;
pub(super) const SCALES: usize = 192;
pub(super) const D: usize = 208;
/// Below this nothing is worth a scale.
const NOTHING: f32 = 1e-15;

/// What is tried after 0, in ggml's order, which decides between equals.
const CANDIDATES: [[f32; 3]; 6] =
    [[-9.0, -8.0, -7.0], [-6.0, -5.0, -4.0], [-3.0, -2.0, -1.0], [1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]];

/// What the search found: the scales, and `steps` of the codes `q = clamp(rint(steps x)) + 32`.
struct Found {
    scale: Lanes,
    steps: Lanes,
    nothing: Lanes,
}

/// `sum w x l` and `sum w l^2` of the codes with some steps.
#[derive(Clone, Copy)]
struct Sums {
    cross: Lanes,
    square: Lanes,
}

impl Sums {
    #[inline(always)]
    fn zero() -> Self {
        Self { cross: Lanes::all(0.0), square: Lanes::all(0.0) }
    }

    /// With one more weight: `w = x^2`, `wx = x^3`.
    #[inline(always)]
    fn and(self, steps: Lanes, x: Lanes, w: Lanes, wx: Lanes) -> Self {
        let l = (steps * x).whole(-32.0, 31.0);
        Self { cross: self.cross + wx * l, square: self.square + w * l * l }
    }
}

/// The best so far.
struct Best {
    scale: Lanes,
    steps: Lanes,
    gain: Lanes,
}

impl Best {
    #[inline(always)]
    fn or(self, steps: Lanes, sums: Sums) -> Self {
        let better = sums.square.above(Lanes::all(0.0)) & (sums.cross * sums.cross).above(self.gain * sums.square);
        let scale = better.pick(sums.cross / sums.square, self.scale);
        let gain = better.pick(scale * sums.cross, self.gain);
        Self { scale, steps: better.pick(steps, self.steps), gain }
    }
}

#[inline(always)]
fn search(x: &[Lanes; SUB]) -> Found {
    let zero = Lanes::all(0.0);
    let (mut peak, mut extreme) = (zero, zero);
    let (mut weights, mut weighted) = ([zero; SUB], [zero; SUB]);
    for ((w, wx), x) in weights.iter_mut().zip(&mut weighted).zip(x) {
        let magnitude = x.each(f32::abs);
        let larger = magnitude.above(peak);
        peak = larger.pick(magnitude, peak);
        extreme = larger.pick(*x, extreme);
        *w = *x * *x;
        *wx = *w * *x;
    }
    let steps = Lanes::all(-32.0) / extreme;
    let mut sums = Sums::zero();
    for ((w, wx), x) in weights.iter().zip(&weighted).zip(x) {
        sums = sums.and(steps, *x, *w, *wx);
    }
    let scale = sums.square.equal(zero).pick(zero, sums.cross / sums.square);
    let mut best = Best { scale, steps, gain: scale * sums.cross };
    for [a, b, c] in CANDIDATES {
        // Three at once, because each sum alone waits for its last term.
        let of = |candidate: f32| Lanes::all(-(32.0 + 0.1 * candidate)) / extreme;
        let (a, b, c) = (of(a), of(b), of(c));
        let (mut of_a, mut of_b, mut of_c) = (Sums::zero(), Sums::zero(), Sums::zero());
        for ((w, wx), x) in weights.iter().zip(&weighted).zip(x) {
            of_a = of_a.and(a, *x, *w, *wx);
            of_b = of_b.and(b, *x, *w, *wx);
            of_c = of_c.and(c, *x, *w, *wx);
        }
        best = best.or(a, of_a).or(b, of_b).or(c, of_c);
    }
    let nothing = peak.below(Lanes::all(NOTHING));
    Found { scale: nothing.pick(zero, best.scale), steps: best.steps, nothing: nothing.pick(Lanes::all(1.0), zero) }
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
            for (q, x) in codes.iter_mut().zip(x) {
                let code = (nearest(found.steps.0[sub] * x).clamp(-32, 31) + 32) as u8;
                *q = if found.nothing.0[sub] == 0.0 { code } else { 0 };
            }
        } else {
            for (q, x) in codes.iter_mut().zip(x) {
                *q = (nearest(x / d).clamp(-32, 31) + 32) as u8;
            }
        }
    }
    let (low, high) = out[..SCALES].split_at_mut(HIGH);
    for ((codes, low), high) in codes.chunks_exact(128).zip(low.chunks_exact_mut(64)).zip(high.chunks_exact_mut(32)) {
        for at in 0..32 {
            let [a, b, c, d] = [codes[at], codes[at + 32], codes[at + 64], codes[at + 96]];
            low[at] = a & 15 | (c & 15) << 4;
            low[at + 32] = b & 15 | (d & 15) << 4;
            high[at] = a >> 4 | b >> 4 << 2 | c >> 4 << 4 | d >> 4 << 6;
        }
    }
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
        for (x, out) in values.chunks_exact(SUB * LANES).zip(out.chunks_exact_mut(Self::BYTES)) {
            write(x, &search(&columns(x)), out);
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
