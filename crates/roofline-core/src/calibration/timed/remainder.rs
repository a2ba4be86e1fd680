//! What the terms leave unexplained: a stack's choices that no physical term knows, as a bounded correction.
//!
//! The logarithm of the correction is a sum of one line through a few knots for each dimension, and of a few steps: where a
//! stack takes another kernel, it does so at a bound of one dimension or of two. What few timings speak of stays near nothing.

mod steps;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::steps::Step;
use super::{kernel::Shape, spec::six_digits};

/// The most that it changes a time, as a logarithm.
pub(super) const BOUND: f64 = 0.4;
/// Residuals beyond this are somebody's accident.
const ABSURD: f64 = 0.6;
/// Timings, in the weight of typical ones, that a knot at nothing stands for.
const SHRINK: f64 = 120.0;
const KNOTS: usize = 10;
const ROUNDS: usize = 15;
/// Dimensions of a shape that lines run along, and all that steps are taken in.
const MOST_LINES: usize = 6;
const PLACES: usize = 8;

/// Lines and steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TimedRemainder")]
pub struct Remainder {
    /// Knots for each dimension.
    knots: Vec<Vec<f64>>,
    /// Changes at bounds: the two dimensions with the place of each bound, then four values.
    #[schemars(with = "Vec<[f64; 8]>")]
    steps: Vec<Step>,
}

/// Where a shape is along each dimension, from 0 to 1 in logarithms.
type Places = [f64; PLACES];

impl Remainder {
    pub(super) fn is_empty(&self) -> bool {
        self.knots.is_empty() && self.steps.is_empty()
    }

    pub(super) fn sensible(&self) -> bool {
        let knots = |knots: &Vec<f64>| knots.len() == KNOTS && knots.iter().all(|knot| knot.abs() < 10.0);
        self.knots.len() <= MOST_LINES && self.knots.iter().all(knots) && self.steps.iter().all(Step::sensible)
    }

    /// What a time is multiplied by.
    pub(super) fn factor(&self, shape: &Shape, units: f64) -> f64 {
        if self.is_empty() { 1.0 } else { libm::exp(self.log(&places(shape, units)).clamp(-BOUND, BOUND)) }
    }

    fn log(&self, places: &Places) -> f64 {
        self.lines(places) + self.steps.iter().map(|step| step.log(places)).sum::<f64>()
    }

    fn lines(&self, places: &Places) -> f64 {
        self.knots.iter().zip(places).map(|(knots, place)| between(knots, *place)).sum()
    }

    /// Fitted to logarithms of measured over predicted times: one dimension after the other, then what steps add.
    pub(super) fn fit(rows: &[(Shape, f64)], units: f64) -> Self {
        let places: Vec<Places> = rows.iter().map(|(shape, _)| places(shape, units)).collect();
        let Some(lines) = rows.first().map(|(shape, _)| lines_of(shape)) else { return Self::default() };
        let mut all = Self { knots: vec![vec![0.0; KNOTS]; lines], steps: Vec::new() };
        for _ in 0..ROUNDS {
            for dimension in 0..lines {
                let (mut sums, mut weights) = ([0.0; KNOTS], [0.0; KNOTS]);
                for ((_, log), places) in rows.iter().zip(&places) {
                    let off = log.clamp(-ABSURD, ABSURD) - all.lines(places);
                    let weight = weight(off);
                    let (below, beyond) = knot(places[dimension]);
                    for (at, part) in [(below, 1.0 - beyond), (below + 1, beyond)] {
                        sums[at] += weight * part * (all.knots[dimension][at] + off);
                        weights[at] += weight * part;
                    }
                }
                for at in 0..KNOTS {
                    all.knots[dimension][at] = sums[at] / (weights[at] + SHRINK);
                }
            }
        }
        all.knots.iter_mut().flatten().for_each(|knot| *knot = four_places(*knot));
        let off = rows.iter().zip(&places).map(|((_, log), places)| log.clamp(-ABSURD, ABSURD) - all.lines(places));
        all.steps = steps::fit(&places, off.collect());
        all
    }
}

/// Large residuals count by their size, not by its square.
fn weight(off: f64) -> f64 {
    1.0 / (off * off + 0.0025).sqrt()
}

fn four_places(value: f64) -> f64 {
    six_digits((value * 1e4).round() / 1e4)
}

/// The knot below a place, and how far beyond it the place is.
fn knot(place: f64) -> (usize, f64) {
    let place = place.clamp(0.0, 1.0) * (KNOTS - 1) as f64;
    let below = (place as usize).min(KNOTS - 2);
    (below, place - below as f64)
}

fn between(knots: &[f64], place: f64) -> f64 {
    let (below, beyond) = knot(place);
    knots[below] * (1.0 - beyond) + knots[below + 1] * beyond
}

/// How many dimensions have a line.
fn lines_of(shape: &Shape) -> usize {
    match shape {
        Shape::Product { .. } => 4,
        Shape::Attention { .. } => MOST_LINES,
    }
}

fn places(shape: &Shape, units: f64) -> Places {
    let log = |value: f64, from: f64, to: f64| (libm::log2(value.max(1e-3)) - from) / (to - from);
    match *shape {
        Shape::Product { m, n, k } => {
            let waves = (m / 128.0).ceil() * (n / 128.0).ceil() / units;
            let (m, n, k) = (log(m, 0.0, 15.0), log(n, 5.0, 16.0), log(k, 5.0, 16.0));
            let full = waves / waves.ceil().max(1.0);
            [m, n, k, log(waves, -3.0, 5.0), 0.5 * (n + k), 0.5 + 0.5 * (n - k), 0.5 * (m + n), full]
        }
        Shape::Attention { batch, queries, context, heads, kv_heads, head_dim, window, .. } => {
            let seen = if window > 0.0 { log(window, 0.0, 20.0) } else { 1.0 };
            [
                log(batch, 0.0, 11.0),
                log(context, 0.0, 17.0),
                log(kv_heads, 0.0, 6.6),
                log(heads / kv_heads, 0.0, 7.0),
                log(head_dim, 6.0, 9.0),
                seen,
                log(batch * kv_heads, 0.0, 16.0),
                log(batch * heads * queries, 0.0, 22.0),
            ]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_what_many_say_and_is_bounded() {
        let at = |m: f64| Shape::Product { m, n: 4096.0, k: 4096.0 };
        let rows: Vec<(Shape, f64)> = (0..4000)
            .map(|row| (at(if row % 2 == 0 { 8.0 } else { 4096.0 }), if row % 2 == 0 { 0.2 } else { -0.1 }))
            .collect();
        let fitted = Remainder::fit(&rows, 132.0);
        assert!((fitted.factor(&at(8.0), 132.0).ln() - 0.2).abs() < 0.03);
        assert!((fitted.factor(&at(4096.0), 132.0).ln() + 0.1).abs() < 0.03);
        let wild: Vec<(Shape, f64)> = (0..4000).map(|_| (at(8.0), 3.0)).collect();
        assert!(Remainder::fit(&wild, 132.0).factor(&at(8.0), 132.0) <= BOUND.exp() + 1e-9);
        assert_eq!(Remainder::default().factor(&at(8.0), 132.0), 1.0);
    }

    /// A kernel that is taken for few rows of wide layers alone is no sum of lines.
    #[test]
    fn a_change_at_two_bounds_is_found() {
        let mut rows = Vec::new();
        for m in [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0] {
            for n in [64.0, 256.0, 1024.0, 4096.0, 16384.0] {
                for k in [64.0, 256.0, 1024.0, 4096.0, 16384.0] {
                    let shape = Shape::Product { m, n, k };
                    rows.extend([(shape, if m < 32.0 && n > 2000.0 { 0.3 } else { 0.0 }); 4]);
                }
            }
        }
        let fitted = Remainder::fit(&rows, 132.0);
        assert!(!fitted.steps.is_empty());
        let off = rows.iter().map(|(shape, log)| (fitted.factor(shape, 132.0).ln() - log).abs());
        let mean = off.sum::<f64>() / rows.len() as f64;
        assert!(mean < 0.03, "{mean}");
    }
}
