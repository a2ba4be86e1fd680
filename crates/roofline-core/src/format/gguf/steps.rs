//! The scales of sub-blocks, and their minima, in whole steps of one scale for all: `s = d q`, none of them below zero.

use super::lanes::nearest;

/// Below this nothing is worth a step.
const NOTHING: f32 = 1e-15;
/// How often the codes are gone over.
const ROUNDS: usize = 5;

/// What was found: the step, and how many of them each is.
pub(super) struct Steps<const N: usize> {
    pub(super) step: f32,
    pub(super) codes: [u8; N],
}

impl<const N: usize> Steps<N> {
    /// The largest has the largest code.
    #[inline(always)]
    pub(super) fn by_largest(x: &[f32], largest: u8) -> Self {
        let max = x.iter().fold(0.0, |max: f32, x| if *x > max { *x } else { max });
        let inverse = if max > 0.0 { f32::from(largest) / max } else { 0.0 };
        let mut codes = [0; N];
        for (q, x) in codes.iter_mut().zip(x) {
            *q = (nearest(inverse * x) as u8).min(largest);
        }
        Self { step: max / f32::from(largest), codes }
    }

    /// The least squared error where each counts as `weights` say: of nine steps the best, then rounds over the codes in which each
    /// becomes the nearest with the best step of the others, where `(sum w x q)^2 / sum w q^2` grows by it. By the largest where
    /// sums are beyond f32.
    ///
    /// What is below zero, where a type of points has turned a sign, has a code below zero in sums, and between them that of ggml's
    /// bytes, in which -1 is 255.
    #[inline(always)]
    pub(super) fn weighted(x: &[f32], weights: &[f32], largest: u8) -> Self {
        let max = x.iter().fold(0.0, |max: f32, x| if *x > max { *x } else { max });
        if max < NOTHING {
            return Self { step: 0.0, codes: [0; N] };
        }
        let high = i32::from(largest);
        let code = |x: f32| nearest(x).min(high);
        let error = |per_step: f32, in_bytes: bool| {
            let step = 1.0 / per_step;
            let mut sum = 0.0;
            for (x, w) in x.iter().zip(weights) {
                let q = code(per_step * x);
                let difference = x - step * if in_bytes { f32::from(q as u8) } else { q as f32 };
                sum += w * difference * difference;
            }
            sum
        };
        let mut per_step = high as f32 / max;
        let mut least = error(per_step, true);
        for candidate in [-4.0, -3.0, -2.0, -1.0, 1.0, 2.0, 3.0, 4.0] {
            let tried = (0.1 * candidate + high as f32) / max;
            let error = error(tried, false);
            if error < least {
                (least, per_step) = (error, tried);
            }
        }
        let mut codes = [0; N];
        let (mut cross, mut square) = (0.0, 0.0);
        for ((q, x), w) in codes.iter_mut().zip(x).zip(weights) {
            let new = code(per_step * x);
            *q = new as u8;
            let l = new as f32;
            cross += w * x * l;
            square += w * l * l;
        }
        for _ in 0..ROUNDS {
            let mut changed = false;
            for ((q, x), w) in codes.iter_mut().zip(x).zip(weights) {
                let l = f32::from(*q);
                let (others, squares) = (cross - w * x * l, square - w * l * l);
                if !(others > 0.0 && squares > 0.0) {
                    continue;
                }
                let new = code(x * squares / others);
                let l = new as f32;
                let (with, squares_with) = (others + w * x * l, squares + w * l * l);
                if new != i32::from(*q) && with * with * square > cross * cross * squares_with {
                    (*q, cross, square) = (new as u8, with, squares_with);
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
        if !(cross.is_finite() && square.is_finite()) {
            return Self::by_largest(x, largest);
        }
        Self { step: if square > 0.0 { cross / square } else { 0.0 }, codes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole steps come back as they are, whatever they count.
    #[test]
    fn whole_steps_are_exact() {
        let x: [f32; 8] = [63.0, 1.0, 0.0, 7.0, 32.0, 31.0, 2.0, 50.0].map(|x: f32| x * 0.25);
        for found in
            [Steps::<8>::by_largest(&x, 63), Steps::weighted(&x, &[1.0, 9.0, 0.0, 2.0, 0.5, 3.0, 1.0, 1.0], 63)]
        {
            assert_eq!((found.step, found.codes), (0.25, [63, 1, 0, 7, 32, 31, 2, 50]));
        }
    }

    /// What counts a thousandfold is met, and the rest is not.
    #[test]
    fn what_counts_most_is_met_best() {
        let x = [1.0, 0.49, 0.51, 0.9];
        let error = |found: &Steps<4>, at: usize| (x[at] - found.step * f32::from(found.codes[at])).abs();
        let (even, seeing) = (Steps::<4>::weighted(&x, &[1.0; 4], 3), Steps::weighted(&x, &[1.0, 1.0, 1000.0, 1.0], 3));
        assert!(error(&seeing, 2) < error(&even, 2));
    }

    #[test]
    fn nothing_and_too_much_stay_finite() {
        let nothing = Steps::<4>::weighted(&[0.0; 4], &[1.0; 4], 15);
        assert_eq!((nothing.step, nothing.codes), (0.0, [0; 4]));
        let huge = Steps::<4>::weighted(&[1e30, 2e30, 0.0, 3e30], &[1e30; 4], 15);
        assert!((huge.step / 2e29 - 1.0).abs() < 1e-6 && huge.codes == [5, 10, 0, 15], "{}", huge.step);
        // Sub-blocks that count nothing at all have no scale, as ggml's have none.
        assert_eq!(Steps::<4>::weighted(&[1.0, 2.0, 3.0, 4.0], &[0.0; 4], 15).step, 0.0);
    }
}
