//! What a weight error costs in perplexity, when nothing but the weights is known.
//!
//! For small errors the logarithm of the perplexity rises in proportion to the squared relative error of the weights,
//! `ln(PPL' / PPL) = kappa t^2` with `t = ||W - Q(W)|| / ||W||` (the "linearity theorem" of HIGGS, arXiv 2411.17525). The
//! factor belongs to the model. Rows that were rounded to nearest give, as the geometric mean of each model's: 2.3 for LLaMA
//! 13B and 2.8 for LLaMA 7B (llama.cpp, pull request 1684), 2.3, 5.3 and 3.7 for Llama 2 of 13, 7 and 70 billion (AWQ,
//! Table 4, arXiv 2306.00978; llama.cpp, tools/perplexity/README.md), 9.4 for Llama-3-8B (the same README). How many parameters
//! or how wide a model is does not tell it: 7 and 8 billion have both 2.8 and 9.4. How long it was trained does (15 trillion
//! tokens cost more than 1 or 2, as "Scaling Laws for Precision" finds, arXiv 2411.04330), but no configuration says so.
//!
//! What does tell it is what other formats cost the same model: of 56 published rows of eight models, each estimated from the
//! other rows of its model, 50 lie within a factor of 1.75, where the range of all models holds 38.

use schemars::JsonSchema;
use serde::Serialize;

/// `kappa` of LLaMA 13B and Llama-2-13B, which were trained on few tokens for their size: errors cost little.
pub const ROBUST: f64 = 2.3;
/// `kappa` of Llama-3-8B, trained on many.
pub const SENSITIVE: f64 = 11.0;
/// Beyond this relative error (2-bit formats) models collapse, and no line predicts them.
const LARGEST_ERROR: f64 = 0.25;
/// Below this one the perplexity changes by less than its own noise, which is no measure of anything: 8-bit formats.
const SMALLEST_ERROR: f64 = 0.01;
/// By which factor formats of one model differ in what they cost for their error.
const SPREAD: f64 = 1.75;

/// What an error costs a model: the range of its `kappa`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coefficient {
    /// The least.
    pub low: f64,
    /// The most.
    pub high: f64,
}

impl Coefficient {
    /// Of a model of which nothing is known.
    pub const ANY: Self = Self { low: ROBUST, high: SENSITIVE };

    /// Of a model of which it is known what squared errors cost, as logarithms of ratios of perplexities; none where none of
    /// them tells anything.
    pub fn of_known(costs: impl IntoIterator<Item = (f64, f64)>) -> Option<Self> {
        let telling = |(squared_error, cost): &(f64, f64)| {
            let error = squared_error.sqrt();
            (SMALLEST_ERROR..=LARGEST_ERROR).contains(&error) && cost.is_finite() && *cost > 0.0
        };
        let logs: Vec<f64> = costs.into_iter().filter(telling).map(|(error, cost)| (cost / error).ln()).collect();
        let mean = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
        (!logs.is_empty()).then(|| Self { low: mean / SPREAD, high: mean * SPREAD })
    }
}

/// By which share the perplexity is likely to rise.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct PerplexityChange {
    /// The share for a model as robust as any.
    pub low: f64,
    /// The share for a model as sensitive as any.
    pub high: f64,
}

impl PerplexityChange {
    /// The change that a mean squared relative error `t^2` of the weights brings; none beyond what was ever fitted.
    pub fn of(squared_error: f64) -> Option<Self> {
        Self::of_model(squared_error, Coefficient::ANY)
    }

    /// The same for a model of which more is known.
    pub fn of_model(squared_error: f64, coefficient: Coefficient) -> Option<Self> {
        let change = |kappa: f64| (kappa * squared_error).exp_m1();
        let known = squared_error.is_finite() && squared_error <= LARGEST_ERROR * LARGEST_ERROR;
        known.then(|| Self { low: change(coefficient.low), high: change(coefficient.high) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_perplexities_lie_near_the_ends() {
        // llama.cpp, Llama-3-8B: Q4_0 has t = 0.0860 on Gaussian weights and raises 6.2317 to 6.700, +7.5 %.
        let q4_0 = PerplexityChange::of(0.0860f64.powi(2)).unwrap();
        assert!((q4_0.high - 0.0848).abs() < 1e-3, "{q4_0:?}");
        // AWQ, Llama-2-13B: INT4 asymmetric g128 has t = 0.1007 and raises 4.88 to 4.98, +2.05 %.
        let int4 = PerplexityChange::of(0.1007f64.powi(2)).unwrap();
        assert!((int4.low - 0.0236).abs() < 1e-3, "{int4:?}");
    }

    /// Llama 2 70B by llama.cpp's table: what Q5_K_S and Q4_K_S cost says what Q4_0 does, 3.6 %, nearer than all models do.
    #[test]
    fn what_formats_cost_a_model_says_what_others_do() {
        let known = [(1.311e-3, 4.942e-3), (4.937e-3, 15.586e-3)];
        let own = Coefficient::of_known(known).unwrap();
        let change = PerplexityChange::of_model(7.408e-3, own).unwrap();
        assert!(change.low < 0.036 && change.high > 0.036 && change.high < 0.05, "{change:?}");
        assert!(PerplexityChange::of(7.408e-3).unwrap().high > 0.08);
        // Eight bits tell nothing, and neither does a perplexity that fell.
        assert_eq!(Coefficient::of_known([(3e-5, 4.25e-4), (0.005, -0.001), (f64::INFINITY, 0.1)]), None);
    }

    #[test]
    fn nothing_is_said_of_two_bits() {
        assert_eq!(PerplexityChange::of(0.4571f64.powi(2)), None);
        assert_eq!(PerplexityChange::of(f64::NAN), None);
        assert_eq!(PerplexityChange::of(0.0), Some(PerplexityChange { low: 0.0, high: 0.0 }));
    }
}
