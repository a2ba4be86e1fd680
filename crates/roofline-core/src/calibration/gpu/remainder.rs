//! What the terms leave unexplained: a library's choice for some range of shapes that no physical term knows.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One measurement that was fitted to: where it was, and how far off the terms are there.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "GpuRemainder")]
pub struct Remainder {
    /// Binary logarithms of the dimensions.
    pub at: [f64; 4],
    /// `ln(measured / predicted)`.
    pub log: f64,
}

/// How far a measurement speaks for its neighbours: a bit more than a factor of two in one dimension.
const REACH: f64 = 1.2;
/// How many measurements the terms themselves count for, so that one alone moves a prediction half of the way at most.
const TRUST: f64 = 1.0;
/// No measurement is believed to be further off than this factor's logarithm.
const FURTHEST: f64 = 0.4;

impl Remainder {
    pub(super) fn new(at: [f64; 4], log: f64) -> Self {
        // Three digits say what a clock can; they keep files readable.
        let round = |value: f64| (value * 1e3).round() / 1e3;
        Self { at: at.map(round), log: round(log.clamp(-FURTHEST, FURTHEST)) }
    }

    /// The factor at `at`: a mean of the neighbours' logarithms, weighted by `exp(-distance^2 / (2 reach^2))` and pulled
    /// towards nothing where there are few (Nadaraya 1964, Watson 1964, with a prior).
    pub(super) fn factor(points: &[Self], at: &[f64; 4]) -> f64 {
        let (mut sum, mut weights) = (0.0, TRUST);
        for point in points {
            let distance: f64 = point.at.iter().zip(at).map(|(one, other)| (one - other).powi(2)).sum();
            let weight = (-distance / (2.0 * REACH * REACH)).exp();
            sum += weight * point.log;
            weights += weight;
        }
        (sum / weights).exp()
    }

    pub(super) fn sensible(&self) -> bool {
        self.at.iter().all(|at| (0.0..200.0).contains(at)) && self.log.abs() < 10.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_speak_and_strangers_are_silent() {
        let points = [Remainder::new([3.0, 12.0, 12.0, 0.0], 0.2); 9];
        let factor = |at| Remainder::factor(&points, &at);
        // Nine points that agree against one that says nothing: 0.9 of their logarithm.
        assert!((factor([3.0, 12.0, 12.0, 0.0]) - 0.18_f64.exp()).abs() < 1e-12);
        assert!((factor([9.0, 12.0, 12.0, 0.0]) - 1.0).abs() < 1e-4);
        assert!((Remainder::factor(&[], &[1.0; 4]) - 1.0).abs() < 1e-15);
        // An absurd measurement is not believed.
        assert!(Remainder::new([0.0; 4], 5.0).log <= 0.4);
    }
}
