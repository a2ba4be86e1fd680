//! The least sum of absolute errors, by least squares that are weighed anew at every step (Levenberg-Marquardt).
//!
//! Derivatives are differences: times have kinks where the fastest cut changes, and a step of two percent sees past them.

/// How far off a place is.
pub(super) trait Errors {
    /// Writes the error of each row.
    fn at(&self, place: &[f64], out: &mut [f64]);

    /// Says that places beside this one come next, none further than [`DIFFERENCE`] along one term.
    fn settle(&mut self, _place: &[f64]) {}

    /// The same as [`Errors::at`] for a place beside the last settled one.
    fn beside(&self, place: &[f64], out: &mut [f64]) {
        self.at(place, out);
    }
}

/// What a search is about: where it may look, and what it expects.
pub(super) struct Search<'a> {
    pub(super) least: &'a [f64],
    pub(super) most: &'a [f64],
    /// What terms are before anything is known, and what being off it costs.
    pub(super) first: &'a [f64],
    pub(super) weight: f64,
    pub(super) rows: usize,
}

/// Errors below this are noise, and are not fought over.
pub(super) const NOISE: f64 = 0.03;
/// The step of a difference.
pub(super) const DIFFERENCE: f64 = 0.02;

/// The sum of what errors cost.
pub(super) fn cost(errors: &[f64]) -> f64 {
    errors.iter().map(|error| (error * error + NOISE * NOISE).sqrt() - NOISE).sum()
}

impl Search<'_> {
    fn loss(&self, errors: &[f64], place: &[f64]) -> f64 {
        let prior = place.iter().zip(self.first).map(|(value, first)| (value - first).powi(2));
        cost(errors) + self.weight * prior.sum::<f64>()
    }

    /// The best place near `start`, and its loss.
    pub(super) fn run(&self, off: &mut impl Errors, start: &[f64], steps: usize) -> (Vec<f64>, f64) {
        let count = start.len();
        let clamp = |at: usize, value: f64| value.clamp(self.least[at], self.most[at]);
        let mut place: Vec<f64> = start.iter().enumerate().map(|(at, value)| clamp(at, *value)).collect();
        let (mut errors, mut other) = (vec![0.0; self.rows], vec![0.0; self.rows]);
        off.at(&place, &mut errors);
        let mut best = self.loss(&errors, &place);
        let (mut damping, mut stalled) = (1e-2, 0);
        let mut slopes = vec![0.0; self.rows * count];
        for _ in 0..steps {
            off.settle(&place);
            for term in 0..count {
                let difference = if place[term] + DIFFERENCE <= self.most[term] { DIFFERENCE } else { -DIFFERENCE };
                let mut beside = place.clone();
                beside[term] += difference;
                off.beside(&beside, &mut other);
                for row in 0..self.rows {
                    slopes[row * count + term] = (other[row] - errors[row]) / difference;
                }
            }
            let (matrix, gradient) = self.normal(&slopes, &errors, &place);
            let mut better = false;
            for _ in 0..6 {
                let mut damped = matrix.clone();
                for term in 0..count {
                    damped[term * count + term] += damping * (matrix[term * count + term] + 1e-3);
                }
                let step = solve(damped, &gradient);
                let next: Vec<f64> =
                    (0..count).map(|term| clamp(term, place[term] - step[term].clamp(-1.0, 1.0))).collect();
                off.at(&next, &mut other);
                let loss = self.loss(&other, &next);
                if loss < best {
                    stalled = if best - loss < 1e-4 * best { stalled + 1 } else { 0 };
                    (best, place, better) = (loss, next, true);
                    std::mem::swap(&mut errors, &mut other);
                    damping = (damping * 0.3).max(1e-6);
                    break;
                }
                damping *= 4.0;
            }
            if !better || stalled > 3 {
                break;
            }
        }
        (place, best)
    }

    /// The normal equations of the weighed squares.
    fn normal(&self, slopes: &[f64], errors: &[f64], place: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let count = place.len();
        let (mut matrix, mut gradient) = (vec![0.0; count * count], vec![0.0; count]);
        for (row, error) in slopes.chunks_exact(count).zip(errors) {
            let weight = 1.0 / (error * error + NOISE * NOISE).sqrt();
            for one in 0..count {
                if row[one] == 0.0 {
                    continue;
                }
                gradient[one] += weight * row[one] * error;
                for two in 0..=one {
                    matrix[one * count + two] += weight * row[one] * row[two];
                }
            }
        }
        for one in 0..count {
            matrix[one * count + one] += 2.0 * self.weight;
            gradient[one] += 2.0 * self.weight * (place[one] - self.first[one]);
            for two in 0..one {
                matrix[two * count + one] = matrix[one * count + two];
            }
        }
        (matrix, gradient)
    }
}

/// Gauss with the largest pivot; what no row speaks of stays.
fn solve(mut matrix: Vec<f64>, right: &[f64]) -> Vec<f64> {
    const NOTHING: f64 = 1e-30;
    let count = right.len();
    let mut right = right.to_vec();
    for column in 0..count {
        let largest = |one: &usize, two: &usize| {
            matrix[one * count + column].abs().total_cmp(&matrix[two * count + column].abs())
        };
        let pivot = (column..count).max_by(largest).unwrap_or(column);
        if matrix[pivot * count + column].abs() < NOTHING {
            continue;
        }
        if pivot != column {
            (0..count).for_each(|at| matrix.swap(pivot * count + at, column * count + at));
            right.swap(pivot, column);
        }
        for row in column + 1..count {
            let factor = matrix[row * count + column] / matrix[column * count + column];
            for at in column..count {
                matrix[row * count + at] -= factor * matrix[column * count + at];
            }
            right[row] -= factor * right[column];
        }
    }
    let mut found = vec![0.0; count];
    for row in (0..count).rev() {
        let rest: f64 = (row + 1..count).map(|at| matrix[row * count + at] * found[at]).sum();
        let pivot = matrix[row * count + row];
        found[row] = if pivot.abs() < NOTHING { 0.0 } else { (right[row] - rest) / pivot };
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Line(Vec<(f64, f64)>);
    impl Errors for Line {
        fn at(&self, place: &[f64], out: &mut [f64]) {
            for ((x, y), out) in self.0.iter().zip(out) {
                let y = if *x == 5.0 { 50.0 } else { *y };
                *out = place[0] * x + place[1] - y;
            }
        }
    }

    #[test]
    fn a_line_is_found_through_points_of_which_one_is_wrong() {
        // y = 2 x + 1, and one point that says otherwise: the least absolute errors ignore it.
        let points: Vec<(f64, f64)> = (0..12).map(|x| (f64::from(x), 2.0 * f64::from(x) + 1.0)).collect();
        let search = Search { least: &[-10.0; 2], most: &[10.0; 2], first: &[0.0; 2], weight: 1e-9, rows: 12 };
        let (place, _) = search.run(&mut Line(points), &[0.0, 0.0], 60);
        assert!((place[0] - 2.0).abs() < 0.01 && (place[1] - 1.0).abs() < 0.05, "{place:?}");
    }
}
