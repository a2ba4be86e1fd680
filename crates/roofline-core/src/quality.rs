//! What a weight error costs in perplexity, when nothing but the weights is known.
//!
//! For small errors the logarithm of the perplexity rises in proportion to the squared relative error of the weights,
//! `ln(PPL' / PPL) = kappa t^2` with `t = ||W - Q(W)|| / ||W||` (the "linearity theorem" of HIGGS, arXiv 2411.17525). The
//! factor depends on the model: rows of llama.cpp's table of quantized Llama-3-8B give 8 to 13, round-to-nearest rows
//! of AWQ's Table 4 (arXiv 2306.00978) give 4.2 to 4.6 for Llama-2-7B.

use schemars::JsonSchema;
use serde::Serialize;

/// `kappa` of Llama-2-7B, a model trained on few tokens for its size: errors cost little.
pub const ROBUST: f64 = 4.4;
/// `kappa` of Llama-3-8B, trained on many.
pub const SENSITIVE: f64 = 11.0;
/// Beyond this relative error (2-bit formats) models collapse, and no line predicts them.
const LARGEST_ERROR: f64 = 0.25;

/// By which share the perplexity is likely to rise.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct PerplexityChange {
    /// The share for a model as robust as Llama-2-7B.
    pub low: f64,
    /// The share for a model as sensitive as Llama-3-8B.
    pub high: f64,
}

impl PerplexityChange {
    /// The change that a mean squared relative error `t^2` of the weights brings; none beyond what was ever fitted.
    pub fn of(squared_error: f64) -> Option<Self> {
        let change = |kappa: f64| (kappa * squared_error).exp_m1();
        let known = squared_error.is_finite() && squared_error <= LARGEST_ERROR * LARGEST_ERROR;
        known.then(|| Self { low: change(ROBUST), high: change(SENSITIVE) })
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
        // AWQ, Llama-2-7B: INT4 asymmetric g128 has t = 0.1007 and raises 5.47 to 5.73, +4.75 %.
        let int4 = PerplexityChange::of(0.1007f64.powi(2)).unwrap();
        assert!((int4.low - 0.0456).abs() < 1e-3, "{int4:?}");
    }

    #[test]
    fn nothing_is_said_of_two_bits() {
        assert_eq!(PerplexityChange::of(0.4571f64.powi(2)), None);
        assert_eq!(PerplexityChange::of(f64::NAN), None);
        assert_eq!(PerplexityChange::of(0.0), Some(PerplexityChange { low: 0.0, high: 0.0 }));
    }
}
