//! Factors of terms, found from figures.
//!
//! The sum of squared logarithmic errors, softened so that a figure that is wrong by ten counts as ten and not as a hundred,
//! plus what every factor costs for being away from one ([`Term::spreads`]): a factor that one figure speaks of stays near
//! one, and a factor of forty figures is theirs. Levenberg-Marquardt; the same figures give the same numbers.

use std::collections::BTreeMap;

use super::{Effect, Figure, TERMS, Term};

/// Errors beyond this are softened.
const SOFT: f64 = 0.12;
/// The variance of a figure that the terms explain, against which spreads are weighed.
const NOISE: f64 = 0.04;
/// Differences of logarithms that slopes are taken over.
const DIFFERENCE: f64 = 1e-4;
const STEPS: usize = 40;

/// Unknown factors, and which of them each figure has.
struct Design {
    /// Keys and term of each, and its spread.
    unknowns: Vec<(Effect, Term, f64)>,
    /// By figure and term.
    rows: Vec<[Vec<usize>; TERMS]>,
}

impl Design {
    fn of(figures: &[&Figure]) -> Self {
        let mut unknowns: Vec<(Effect, Term, f64)> = Vec::new();
        let mut rows: Vec<[Vec<usize>; TERMS]> = vec![std::array::from_fn(|_| Vec::new()); figures.len()];
        for term in Term::ALL {
            let mut seen: Vec<Vec<usize>> = Vec::new();
            for (level, spread) in term.spreads() {
                let mut groups: BTreeMap<String, (Effect, Vec<usize>)> = BTreeMap::new();
                for (at, figure) in figures.iter().enumerate() {
                    if let Some(key) = figure.place.key(*level) {
                        groups.entry(format!("{key:?}")).or_insert_with(|| (key, Vec::new())).1.push(at);
                    }
                }
                for (key, members) in groups.into_values() {
                    // What one runtime has on its one device is the runtime's: nothing tells them apart.
                    if seen.contains(&members) {
                        continue;
                    }
                    for member in &members {
                        rows[*member][*term as usize].push(unknowns.len());
                    }
                    unknowns.push((key, *term, *spread));
                    seen.push(members);
                }
            }
        }
        Self { unknowns, rows }
    }

    /// The terms of a figure.
    fn terms(&self, row: usize, place: &[f64]) -> [f64; TERMS] {
        std::array::from_fn(|term| {
            let sum: f64 = self.rows[row][term].iter().map(|at| place[*at]).sum();
            Term::ALL[term].start() * libm::exp(sum)
        })
    }

    fn errors(&self, figures: &[&Figure], place: &[f64]) -> Vec<f64> {
        let error = |(row, figure): (usize, &&Figure)| libm::log(figure.time(&self.terms(row, place)) / figure.seconds);
        figures.iter().enumerate().map(error).collect()
    }

    fn loss(&self, errors: &[f64], place: &[f64]) -> f64 {
        let soft = |error: &f64| 2.0 * SOFT * SOFT * ((1.0 + (error / SOFT).powi(2)).sqrt() - 1.0);
        let away = |(value, (.., spread)): (&f64, &(Effect, Term, f64))| NOISE * (value / spread).powi(2);
        errors.iter().map(soft).sum::<f64>() + place.iter().zip(&self.unknowns).map(away).sum::<f64>()
    }

    /// How each figure's error changes with each of its factors.
    fn slopes(&self, figures: &[&Figure], place: &[f64]) -> Vec<Vec<(usize, f64)>> {
        let of = |(row, figure): (usize, &&Figure)| {
            let terms = self.terms(row, place);
            let here = libm::log(figure.time(&terms));
            let mut slopes: Vec<(usize, f64)> = Vec::new();
            for term in 0..TERMS {
                let mut beside = terms;
                beside[term] *= libm::exp(DIFFERENCE);
                let slope = (libm::log(figure.time(&beside)) - here) / DIFFERENCE;
                if slope != 0.0 {
                    slopes.extend(self.rows[row][term].iter().map(|at| (*at, slope)));
                }
            }
            slopes
        };
        figures.iter().enumerate().map(of).collect()
    }
}

/// The equations of a step: `(J' W J + N) x = J' W e + N p`, with slopes `J`, errors `e`, their weights `W`, and what it costs to
/// be at `p`, `N`.
struct Equations {
    slopes: Vec<Vec<(usize, f64)>>,
    /// The inverse weight of each figure.
    variance: Vec<f64>,
    /// By unknown: what being away costs, the rest of the diagonal, and the right side.
    cost: Vec<f64>,
    diagonal: Vec<f64>,
    right: Vec<f64>,
}

impl Equations {
    fn at(design: &Design, figures: &[&Figure], errors: &[f64], place: &[f64]) -> Self {
        let slopes = design.slopes(figures, place);
        let variance: Vec<f64> = errors.iter().map(|error| (1.0 + (error / SOFT).powi(2)).sqrt()).collect();
        let cost: Vec<f64> = design.unknowns.iter().map(|(.., spread)| NOISE / (spread * spread)).collect();
        let mut diagonal = vec![0.0; place.len()];
        let mut right: Vec<f64> = cost.iter().zip(place).map(|(cost, value)| cost * value).collect();
        for ((row, variance), error) in slopes.iter().zip(&variance).zip(errors) {
            for (at, slope) in row {
                diagonal[*at] += slope * slope / variance;
                right[*at] += slope * error / variance;
            }
        }
        Self { slopes, variance, cost, diagonal, right }
    }

    /// The step, by as many equations as there are figures, which are fewer than the unknowns (Woodbury):
    /// `x = D r - D J' (W^-1 + J D J')^-1 J D r`, with `D` the inverse of `N` and the damping.
    fn step(&self, damping: f64) -> Vec<f64> {
        let of = |(cost, own): (&f64, &f64)| 1.0 / (cost + damping * (cost + own));
        let inverse: Vec<f64> = self.cost.iter().zip(&self.diagonal).map(of).collect();
        let count = self.slopes.len();
        let (mut matrix, mut spread) = (vec![0.0; count * count], vec![0.0; inverse.len()]);
        for (row, slopes) in self.slopes.iter().enumerate() {
            for (at, slope) in slopes {
                spread[*at] += slope * inverse[*at];
            }
            for (column, others) in self.slopes[..=row].iter().enumerate() {
                matrix[row * count + column] = others.iter().map(|(at, slope)| slope * spread[*at]).sum();
            }
            matrix[row * count + row] += self.variance[row];
            for (at, _) in slopes {
                spread[*at] = 0.0;
            }
        }
        let scaled: Vec<f64> = self.right.iter().zip(&inverse).map(|(right, inverse)| right * inverse).collect();
        let seen: Vec<f64> =
            self.slopes.iter().map(|row| row.iter().map(|(at, slope)| slope * scaled[*at]).sum()).collect();
        let mut step = scaled;
        for (row, part) in self.slopes.iter().zip(solve(matrix, &seen)) {
            for (at, slope) in row {
                step[*at] -= inverse[*at] * slope * part;
            }
        }
        step
    }
}

/// Factors that fit figures best. The search always begins where nothing is known: one that began at factors of nearly the same
/// figures would remember the others.
pub fn fit(figures: &[&Figure]) -> Vec<Effect> {
    let design = Design::of(figures);
    let mut place = vec![0.0; design.unknowns.len()];
    let mut errors = design.errors(figures, &place);
    let (mut best, mut damping) = (design.loss(&errors, &place), 1e-3);
    for _ in 0..STEPS {
        let equations = Equations::at(&design, figures, &errors, &place);
        let mut gained = 0.0;
        for _ in 0..8 {
            let step = equations.step(damping);
            let next: Vec<f64> = place.iter().zip(&step).map(|(value, step)| value - step.clamp(-0.7, 0.7)).collect();
            let off = design.errors(figures, &next);
            let loss = design.loss(&off, &next);
            if loss < best {
                (gained, best, place, errors) = (best - loss, loss, next, off);
                damping = f64::max(damping * 0.25, 1e-6);
                break;
            }
            damping *= 6.0;
        }
        if gained < 1e-5 * best {
            break;
        }
    }
    effects(&design, &place)
}

/// Factors that differ from one, by keys; those of all hold the terms themselves.
fn effects(design: &Design, place: &[f64]) -> Vec<Effect> {
    let mut found: Vec<Effect> = Vec::new();
    for ((key, term, _), value) in design.unknowns.iter().zip(place) {
        let first = *key == Effect::default();
        let factor = if first { term.start() * libm::exp(*value) } else { libm::exp(*value) };
        if !first && value.abs() < 0.005 {
            continue;
        }
        let factor = four_digits(factor);
        match found.iter_mut().find(|effect| effect.has_keys_of(key)) {
            Some(effect) => drop(effect.factors.insert(*term, factor)),
            None => found.push(Effect { factors: BTreeMap::from([(*term, factor)]), ..key.clone() }),
        }
    }
    found
}

/// More digits than four no figure supports.
pub(super) fn four_digits(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// Eight sums side by side, which is what vectors are for.
fn dot(one: &[f64], two: &[f64]) -> f64 {
    let (mut sums, (ones, twos)) = ([0.0; 8], (one.chunks_exact(8), two.chunks_exact(8)));
    let rest: f64 = ones.remainder().iter().zip(twos.remainder()).map(|(one, two)| one * two).sum();
    for (one, two) in ones.zip(twos) {
        for lane in 0..8 {
            sums[lane] += one[lane] * two[lane];
        }
    }
    rest + sums.iter().sum::<f64>()
}

/// `matrix x = right` for a positive definite matrix, of which the lower half is given (Cholesky).
fn solve(mut lower: Vec<f64>, right: &[f64]) -> Vec<f64> {
    let count = right.len();
    for row in 0..count {
        let (above, own) = lower.split_at_mut(row * count);
        for column in 0..=row {
            let other = if column < row { &above[column * count..column * count + column] } else { &own[..column] };
            let known = dot(&own[..column], other);
            let rest = own[column] - known;
            own[column] = if column < row { rest / above[column * count + column] } else { rest.max(1e-12).sqrt() };
        }
    }
    let mut found = right.to_vec();
    for row in 0..count {
        let known: f64 = (0..row).map(|at| lower[row * count + at] * found[at]).sum();
        found[row] = (found[row] - known) / lower[row * count + row];
    }
    for row in (0..count).rev() {
        found[row] /= lower[row * count + row];
        let value = found[row];
        for at in 0..row {
            found[at] -= lower[row * count + at] * value;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equations_are_solved() {
        // [[4, 2], [2, 3]] x = [8, 7] has x = [1.25, 1.5].
        let found = solve(vec![4.0, 0.0, 2.0, 3.0], &[8.0, 7.0]);
        assert!((found[0] - 1.25).abs() < 1e-12 && (found[1] - 1.5).abs() < 1e-12, "{found:?}");
    }
}
