//! ggml's search for a scale and a minimum, which the bytes of `Q2_K`, `Q4_K` and `Q5_K` depend on.
//!
//! For each sub-block, weights `w = sqrt(mean x^2) + |x|`, then candidate steps `(max - min) / (n + i / 10)`; for the codes of
//! each, the scale and the minimum of least `sum w (x - y)^2` in closed form; kept where the error falls. A kept minimum is
//! the one the next candidates start from. Sums run in the order of the weights in f32, without fused products, a sub-block
//! to a lane. (`Q2_K` weighs by `|x|` and sums `w |x - y|`.)
//!
//! Where the importance of the inputs is known it says the weights, and all types try the same steps, [`Candidates::WEIGHED`].

use super::lanes::{Lanes, nearest};

/// How many bits a code has.
pub(super) trait Bits {
    /// The largest code.
    const LARGEST: i32;
    /// How many steps fewer the first candidate has.
    const FIRST: f32;
    /// How many candidates there are.
    const CANDIDATES: u8;
    /// Whether errors count as they are, rather than squared.
    const ABSOLUTE: bool;
}

impl Candidates {
    /// What is tried where the importance of the inputs is known.
    pub(super) const WEIGHED: Self = Self { first: -0.9, step: 0.05, count: 37 };
}

/// How many steps more than the largest code the range is divided into: from `first` on, in steps of `step`.
#[derive(Clone, Copy)]
pub(super) struct Candidates {
    first: f32,
    step: f32,
    count: u8,
}

/// What the search found: `x` is about `scale q - min`, with the codes `q = clamp(rint(steps (x - from)))`.
pub(super) struct Found {
    pub(super) scale: Lanes,
    pub(super) min: Lanes,
    steps: Lanes,
    from: Lanes,
}

impl Found {
    /// The codes of the search itself, of the sub-block in a lane.
    #[inline(always)]
    pub(super) fn codes(&self, lane: usize, x: &[f32], largest: i32, codes: &mut [u8]) {
        let (steps, from) = (self.steps.0[lane], self.from.0[lane]);
        for (q, x) in codes.iter_mut().zip(x) {
            *q = nearest(steps * (x - from)).clamp(0, largest) as u8;
        }
    }
}

/// Searches sixteen sub-blocks at once, each weight counting by its own size.
#[inline(always)]
pub(super) fn search<B: Bits, const SUB: usize>(x: &[Lanes; SUB]) -> Found {
    let zero = Lanes::all(0.0);
    let mut squares = zero;
    for x in x {
        squares = squares + *x * *x;
    }
    let spread = (squares / Lanes::all(SUB as f32)).each(f32::sqrt);
    let mut weights = [zero; SUB];
    for (w, x) in weights.iter_mut().zip(x) {
        *w = if B::ABSOLUTE { x.each(f32::abs) } else { spread + x.each(f32::abs) };
    }
    let candidates = Candidates { first: B::FIRST, step: 0.1, count: B::CANDIDATES };
    fit(x, &weights, B::LARGEST, candidates, B::ABSOLUTE)
}

/// Searches sixteen sub-blocks at once for the least weighted error: squared, or as it is where that is `absolute`.
#[inline(always)]
pub(super) fn fit<const SUB: usize>(
    x: &[Lanes; SUB],
    weights: &[Lanes; SUB],
    largest: i32,
    candidates: Candidates,
    absolute: bool,
) -> Found {
    let largest = largest as f32;
    let cost = |difference: Lanes| if absolute { difference.each(f32::abs) } else { difference * difference };
    let zero = Lanes::all(0.0);
    let (mut min, mut max) = (x[0], x[0]);
    let (mut sum_w, mut sum_x) = (zero, zero);
    for (w, x) in weights.iter().zip(x) {
        min = x.below(min).pick(*x, min);
        max = x.above(max).pick(*x, max);
        sum_w = sum_w + *w;
        sum_x = sum_x + *w * *x;
    }
    min = min.above(zero).pick(zero, min);
    let (lowest, flat) = (min, max.equal(min));

    let mut steps = Lanes::all(largest) / (max - min);
    let mut scale = Lanes::all(1.0) / steps;
    let mut from = min;
    let mut best = zero;
    for (w, x) in weights.iter().zip(x) {
        let difference = scale * (steps * (*x - min)).whole(0.0, largest) + min - *x;
        best = best + *w * cost(difference);
    }
    let mut codes = [zero; SUB];
    for candidate in 0..candidates.count {
        let steps_more = candidates.first + candidates.step * f32::from(candidate);
        let tried = Lanes::all(steps_more + largest) / (max - min);
        let (mut sum_q, mut squares_q, mut cross) = (zero, zero, zero);
        for ((q, w), x) in codes.iter_mut().zip(weights).zip(x) {
            *q = (tried * (*x - min)).whole(0.0, largest);
            let weighted = *w * *q;
            sum_q = sum_q + weighted;
            squares_q = squares_q + weighted * *q;
            cross = cross + weighted * *x;
        }
        let determinant = sum_w * squares_q - sum_q * sum_q;
        let fitted = (sum_w * cross - sum_x * sum_q) / determinant;
        let offset = (squares_q * sum_x - sum_q * cross) / determinant;
        let positive = offset.above(zero);
        let offset = positive.pick(zero, offset);
        let fitted = positive.pick(cross / squares_q, fitted);
        let mut error = zero;
        for ((q, w), x) in codes.iter().zip(weights).zip(x) {
            let difference = fitted * *q + offset - *x;
            error = error + *w * cost(difference);
        }
        let better = determinant.above(zero) & error.below(best);
        best = better.pick(error, best);
        scale = better.pick(fitted, scale);
        steps = better.pick(tried, steps);
        from = better.pick(min, from);
        min = better.pick(offset, min);
    }
    // A flat sub-block is its minimum alone, and its codes are zero.
    Found {
        scale: flat.pick(zero, scale),
        min: -flat.pick(lowest, min),
        steps: flat.pick(zero, steps),
        from: flat.pick(zero, from),
    }
}
