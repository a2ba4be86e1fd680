//! ggml's search for a scale of weights that become points of a grid, `x = d (2 s + 1) (2 q + 1)` and a sign, with `s` of 4 bits: for
//! each run of weights that shares a scale, steps around that of the largest; for each the nearest points; kept where
//! `(sum w x q)^2 / sum w q^2` grows.
//!
//! The signs of eight weights take seven bits in the narrower types: a negative one too many is the weight's that matters least.

use super::{
    Codec,
    importance::{mean_square, weigh},
    lanes::nearest,
    points::{Grid, value},
    steps::Steps,
};

/// Weights of a block.
pub(super) const SUPER: usize = 256;
/// Weights whose signs are in one byte.
pub(super) const SIGNS: usize = 8;
/// Weights that share a scale, at most.
const LONGEST: usize = 32;
/// Runs of weights with a scale, at most.
const RUNS: usize = 16;

/// What tells the types apart.
pub(super) struct Kind<const POINT: usize, const LEVELS: usize> {
    pub(super) grid: &'static Grid<POINT, LEVELS>,
    /// How many scales are tried below and above that of the largest weight, and how far they are apart.
    pub(super) tries: i16,
    pub(super) apart: f32,
    /// What is smaller throughout is zero.
    pub(super) tiny: f32,
    /// Whether the negative signs of eight weights are even in number.
    pub(super) even: bool,
    pub(super) start: Start,
    pub(super) again: Again,
    /// How many mean squares there are beside the square of a weight under the root by which importance is multiplied.
    pub(super) spread: f32,
    /// What a weight counts without importance, and with that mean square around it.
    pub(super) plain: fn(f32, f32) -> f32,
}

/// Which scale is the middle of those that are tried.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// That which gives the largest weight the largest level.
    Largest,
    /// The best one where every whole number from zero to one above the largest level is a level.
    Whole,
}

/// Which points are looked for once more with the scale that was found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// All.
    All,
    /// All where weights were nearest to a point that is not kept.
    AllOfUnmet,
    /// Those that weights were nearest to and that are not kept.
    Unmet,
}

/// What a run of weights becomes.
#[derive(Clone, Copy)]
pub(super) struct Found<const POINT: usize, const POINTS: usize> {
    pub(super) scale: f32,
    pub(super) levels: [[u8; POINT]; POINTS],
    pub(super) signs: [u8; LONGEST / SIGNS],
}

impl<const POINT: usize, const POINTS: usize> Found<POINT, POINTS> {
    const NOTHING: Self = Self { scale: 0.0, levels: [[0; POINT]; POINTS], signs: [0; LONGEST / SIGNS] };

    /// `sum w x q / sum w q^2`, and its two sums; nothing where no weight counts.
    fn fitted(levels: &[[u8; POINT]; POINTS], x: &[[f32; POINT]; POINTS], weights: &[f32]) -> Option<(f32, f32, f32)> {
        let (mut cross, mut square) = (0.0, 0.0);
        for ((level, x), w) in levels.as_flattened().iter().zip(x.as_flattened()).zip(weights) {
            let q = value(*level);
            cross += w * x * q;
            square += w * q * q;
        }
        (square > 0.0).then(|| (cross / square, cross, square))
    }
}

impl<const POINT: usize, const LEVELS: usize> Kind<POINT, LEVELS> {
    /// What the largest level stands for.
    const LARGEST: f32 = (2 * LEVELS - 1) as f32;

    /// The levels nearest to the magnitudes of a point with that many steps to one.
    fn tried(x: &[f32; POINT], steps: f32) -> [u8; POINT] {
        x.map(|x| nearest(0.5 * (steps * x - 1.0)).clamp(0, LEVELS as i32 - 1) as u8)
    }

    /// The magnitudes of a run of weights and their signs.
    fn magnitudes<const POINTS: usize>(
        &self,
        values: &[f32],
        weights: &[f32],
    ) -> ([[f32; POINT]; POINTS], [u8; LONGEST / SIGNS]) {
        let (mut all, mut signs) = ([[0.0; POINT]; POINTS], [0; LONGEST / SIGNS]);
        let runs = all.as_flattened_mut().chunks_exact_mut(SIGNS).zip(values.chunks_exact(SIGNS));
        for ((sign, (x, values)), weights) in signs.iter_mut().zip(runs).zip(weights.chunks_exact(SIGNS)) {
            for (at, (x, value)) in x.iter_mut().zip(values).enumerate() {
                *x = value.abs();
                *sign |= u8::from(*value < 0.0) << at;
            }
            if self.even && sign.count_ones() % 2 == 1 {
                let cost = |at: usize| weights[at] * values[at] * values[at];
                let least = (1..SIGNS).fold(0, |least, at| if cost(at) < cost(least) { at } else { least });
                x[least] = -x[least];
                *sign ^= 1 << least;
            }
            if self.even {
                *sign &= 127;
            }
        }
        (all, signs)
    }

    /// Searches a run of weights.
    fn search<const POINTS: usize>(&self, values: &[f32], weights: &[f32]) -> Found<POINT, POINTS> {
        let (x, mut signs) = self.magnitudes::<POINTS>(values, weights);
        let flat = x.as_flattened();
        let largest = flat.iter().fold(flat[0], |largest: f32, x| if *x > largest { *x } else { largest });
        if largest < self.tiny {
            return Found::NOTHING;
        }
        let (mut scale, reach) = match self.start {
            Start::Largest => (largest / Self::LARGEST, largest),
            Start::Whole => {
                let step = Steps::<LONGEST>::weighted(flat, weights, LEVELS as u8 + 1).step;
                (step, step * LEVELS as f32)
            }
        };
        if reach <= 0.0 {
            return Found::NOTHING;
        }
        let mut roots = [[0.0; POINT]; POINTS];
        for (root, w) in roots.as_flattened_mut().iter_mut().zip(weights) {
            *root = w.sqrt();
        }
        let mut gain = 0.0;
        let (mut levels, mut met) = ([[0; POINT]; POINTS], [self.again == Again::Unmet; POINTS]);
        for step in -self.tries..=self.tries {
            let steps = (Self::LARGEST + f32::from(step) * self.apart) / reach;
            let (mut new, mut new_met) = ([[0; POINT]; POINTS], [true; POINTS]);
            for (((new, met), x), roots) in new.iter_mut().zip(&mut new_met).zip(&x).zip(&roots) {
                *new = Self::tried(x, steps);
                *met = self.grid.place(*new).is_some();
                if !*met {
                    *new = self.grid.nearest(*new, value, x, roots, 1.0 / steps);
                }
            }
            if let Some((fit, cross, square)) = Found::fitted(&new, &x, weights)
                && cross * cross > gain * square
            {
                (scale, gain, levels, met) = (fit, fit * cross, new, new_met);
            }
        }
        if (self.again == Again::All || met.contains(&false)) && scale > 0.0 {
            for (((levels, met), x), roots) in levels.iter_mut().zip(met).zip(&x).zip(&roots) {
                if met && self.again == Again::Unmet {
                    continue;
                }
                *levels = Self::tried(x, 1.0 / scale);
                if self.grid.place(*levels).is_none() {
                    *levels = self.grid.nearest(*levels, value, x, roots, scale);
                }
            }
            scale = Found::fitted(&levels, &x, weights).map_or(scale, |(fit, ..)| fit);
        }
        if !scale.is_finite() {
            // Sums that overflow: the scale that holds the largest weight.
            scale = largest / Self::LARGEST;
        }
        if scale < 0.0 {
            scale = -scale;
            signs = signs.map(|sign| !sign & if self.even { 127 } else { 255 });
        }
        Found { scale, levels, signs }
    }

    /// Calls `write` with what the runs of every block become, each of so many points.
    pub(super) fn blocks<C: Codec, const POINTS: usize>(
        &self,
        row: &[f32],
        importance: Option<&[f32]>,
        out: &mut [u8],
        write: impl Fn(&[Found<POINT, POINTS>], &mut [u8]),
    ) {
        let run = POINT * POINTS;
        for (at, (x, out)) in row.chunks_exact(SUPER).zip(out.chunks_exact_mut(C::BYTES)).enumerate() {
            let (mut weights, mean) = ([0.0; SUPER], mean_square(x));
            match importance {
                Some(importance) => weigh(x, &importance[at * SUPER..][..SUPER], self.spread * mean, &mut weights),
                None => weights.iter_mut().zip(x).for_each(|(w, x)| *w = (self.plain)(*x, mean)),
            }
            let mut found = [Found::NOTHING; RUNS];
            for (found, (x, weights)) in found.iter_mut().zip(x.chunks_exact(run).zip(weights.chunks_exact(run))) {
                *found = self.search(x, weights);
            }
            out.fill(0);
            if found.iter().any(|found| found.scale != 0.0) {
                write(&found[..SUPER / run], out);
            }
        }
    }
}

/// The step of a block's scales, and how many of them each is: `2 s + 1`.
pub(super) fn steps<const POINT: usize, const POINTS: usize>(found: &[Found<POINT, POINTS>]) -> (f32, [u8; RUNS]) {
    let largest = found.iter().fold(0.0, |largest: f32, found| largest.max(found.scale));
    let step = largest / 31.0;
    let inverse = 1.0 / step;
    let mut scales = [0; RUNS];
    for (scale, found) in scales.iter_mut().zip(found) {
        *scale = nearest(0.5 * (inverse * found.scale - 1.0)).clamp(0, 15) as u8;
    }
    (step, scales)
}

/// All eight signs of seven: the last makes the number of negative ones even.
#[inline(always)]
pub(super) fn eighth(seven: u8) -> u8 {
    seven | ((seven.count_ones() % 2) as u8) << 7
}
