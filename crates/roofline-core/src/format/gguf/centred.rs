//! ggml's search for a scale of codes around zero, `x = d (q - n)` with `q` from 0 to `2 n - 1`: what `Q6_K` depends on, and what
//! `Q3_K`, `Q4_0` and `Q5_0` do where the importance of the inputs is known.
//!
//! Of 19 candidate steps `-extreme / (n + i / 10)`, `i = 0, -9, ..., 9`, the one is kept whose codes `l` have the largest
//! `(sum w x l)^2 / sum w l^2`: that is the least weighted error with the best scale, `sum w x l / sum w l^2`. Sums run in the order of
//! the weights, a sub-block to a lane.

use super::lanes::{Lanes, nearest};

/// Below this nothing is worth a scale.
pub(super) const NOTHING: f32 = 1e-15;

/// What is tried after 0, in ggml's order, which decides between equals.
const CANDIDATES: [[f32; 3]; 6] =
    [[-9.0, -8.0, -7.0], [-6.0, -5.0, -4.0], [-3.0, -2.0, -1.0], [1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]];

/// What the search found: the scales, and `steps` of the codes `q = clamp(rint(steps x)) + n`.
pub(super) struct Found {
    pub(super) scale: Lanes,
    steps: Lanes,
    nothing: Lanes,
    middle: f32,
}

impl Found {
    /// The codes of the search itself, of the sub-block in a lane: zero where it found nothing.
    #[inline(always)]
    pub(super) fn codes(&self, lane: usize, x: &[f32], codes: &mut [u8]) {
        let (steps, middle) = (self.steps.0[lane], self.middle as i32);
        for (q, x) in codes.iter_mut().zip(x) {
            let code = (nearest(steps * x).clamp(-middle, middle - 1) + middle) as u8;
            *q = if self.nothing.0[lane] == 0.0 { code } else { 0 };
        }
    }
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

    /// With one more weight: `wx` is `w` times `x`.
    #[inline(always)]
    fn and(self, steps: Lanes, middle: f32, x: Lanes, w: Lanes, wx: Lanes) -> Self {
        let l = (steps * x).whole(-middle, middle - 1.0);
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

/// Searches sixteen sub-blocks at once. A scale that sums are too large for is the one that holds the largest weight.
#[inline(always)]
pub(super) fn search<const SUB: usize>(x: &[Lanes; SUB], weights: &[Lanes; SUB], middle: f32) -> Found {
    let zero = Lanes::all(0.0);
    let (mut peak, mut extreme) = (zero, zero);
    let mut weighted = [zero; SUB];
    for ((w, wx), x) in weights.iter().zip(&mut weighted).zip(x) {
        let magnitude = x.each(f32::abs);
        let larger = magnitude.above(peak);
        peak = larger.pick(magnitude, peak);
        extreme = larger.pick(*x, extreme);
        *wx = *w * *x;
    }
    let steps = Lanes::all(-middle) / extreme;
    let mut sums = Sums::zero();
    for ((w, wx), x) in weights.iter().zip(&weighted).zip(x) {
        sums = sums.and(steps, middle, *x, *w, *wx);
    }
    let scale = sums.square.equal(zero).pick(zero, sums.cross / sums.square);
    let mut best = Best { scale, steps, gain: scale * sums.cross };
    for [a, b, c] in CANDIDATES {
        // Three at once, because each sum alone waits for its last term.
        let of = |candidate: f32| Lanes::all(-(middle + 0.1 * candidate)) / extreme;
        let (a, b, c) = (of(a), of(b), of(c));
        let (mut of_a, mut of_b, mut of_c) = (Sums::zero(), Sums::zero(), Sums::zero());
        for ((w, wx), x) in weights.iter().zip(&weighted).zip(x) {
            of_a = of_a.and(a, middle, *x, *w, *wx);
            of_b = of_b.and(b, middle, *x, *w, *wx);
            of_c = of_c.and(c, middle, *x, *w, *wx);
        }
        best = best.or(a, of_a).or(b, of_b).or(c, of_c);
    }
    let sound = best.scale.each(|scale| f32::from(u8::from(scale.is_finite())));
    let scale = sound.above(zero).pick(best.scale, extreme / Lanes::all(-middle));
    let nothing = peak.below(Lanes::all(NOTHING));
    Found { scale: nothing.pick(zero, scale), steps: best.steps, nothing: nothing.pick(Lanes::all(1.0), zero), middle }
}
