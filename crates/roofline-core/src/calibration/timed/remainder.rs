//! What the terms leave unexplained: a stack's choices that no physical term knows, as a bounded correction.
//!
//! The logarithm of the correction is a sum of one function for each dimension, each a line through a few knots. Knots that
//! few timings speak of stay near nothing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{kernel::Shape, spec::six_digits};

/// The most that it changes a time, as a logarithm.
pub(super) const BOUND: f64 = 0.4;
/// Residuals beyond this are somebody's accident.
const ABSURD: f64 = 0.6;
/// Timings, in the weight of typical ones, that a knot at nothing stands for.
const SHRINK: f64 = 120.0;
const KNOTS: usize = 10;
const ROUNDS: usize = 15;

/// Knots for each dimension.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(rename = "TimedRemainder")]
pub struct Remainder(Vec<Vec<f64>>);

impl Remainder {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn sensible(&self) -> bool {
        let knots = |knots: &Vec<f64>| knots.len() == KNOTS && knots.iter().all(|knot| knot.abs() < 10.0);
        self.0.len() <= 6 && self.0.iter().all(knots)
    }

    /// What a time is multiplied by.
    pub(super) fn factor(&self, shape: &Shape, units: f64) -> f64 {
        if self.0.is_empty() { 1.0 } else { libm::exp(self.log(&places(shape, units)).clamp(-BOUND, BOUND)) }
    }

    fn log(&self, places: &[f64]) -> f64 {
        self.0.iter().zip(places).map(|(knots, place)| between(knots, *place)).sum()
    }

    /// Fitted to logarithms of measured over predicted times, one dimension after the other.
    pub(super) fn fit(rows: &[(Shape, f64)], units: f64) -> Self {
        let places: Vec<Vec<f64>> = rows.iter().map(|(shape, _)| places(shape, units)).collect();
        let Some(dimensions) = places.first().map(Vec::len) else { return Self::default() };
        let mut all = Self(vec![vec![0.0; KNOTS]; dimensions]);
        for _ in 0..ROUNDS {
            for dimension in 0..dimensions {
                let (mut sums, mut weights) = ([0.0; KNOTS], [0.0; KNOTS]);
                for ((_, log), places) in rows.iter().zip(&places) {
                    let off = log.clamp(-ABSURD, ABSURD) - all.log(places);
                    let weight = 1.0 / (off * off + 0.0025).sqrt();
                    let (below, beyond) = knot(places[dimension]);
                    for (at, part) in [(below, 1.0 - beyond), (below + 1, beyond)] {
                        sums[at] += weight * part * (all.0[dimension][at] + off);
                        weights[at] += weight * part;
                    }
                }
                for at in 0..KNOTS {
                    all.0[dimension][at] = sums[at] / (weights[at] + SHRINK);
                }
            }
        }
        all.0.iter_mut().flatten().for_each(|knot| *knot = six_digits((*knot * 1e4).round() / 1e4));
        all
    }
}

/// The knot below a place, and how far beyond it the place is.
fn knot(place: f64) -> (usize, f64) {
    let place = place.clamp(0.0, 1.0) * (KNOTS - 1) as f64;
    let below = (place.floor() as usize).min(KNOTS - 2);
    (below, place - below as f64)
}

fn between(knots: &[f64], place: f64) -> f64 {
    let (below, beyond) = knot(place);
    knots[below] * (1.0 - beyond) + knots[below + 1] * beyond
}

/// Where a shape is along each dimension, from 0 to 1 in logarithms.
fn places(shape: &Shape, units: f64) -> Vec<f64> {
    let log = |value: f64, from: f64, to: f64| (libm::log2(value.max(1e-3)) - from) / (to - from);
    match *shape {
        Shape::Product { m, n, k } => {
            let waves = (m / 128.0).ceil() * (n / 128.0).ceil() / units;
            vec![log(m, 0.0, 15.0), log(n, 5.0, 16.0), log(k, 5.0, 16.0), log(waves, -3.0, 5.0)]
        }
        Shape::Attention { batch, context, heads, kv_heads, head_dim, window, .. } => {
            let seen = if window > 0.0 { log(window, 0.0, 20.0) } else { 1.0 };
            vec![
                log(batch, 0.0, 11.0),
                log(context, 0.0, 17.0),
                log(kv_heads, 0.0, 6.6),
                log(heads / kv_heads, 0.0, 7.0),
                log(head_dim, 6.0, 9.0),
                seen,
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
}
