//! Perplexities that were measured here, of these very weights.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, Format, Result};

/// What an evaluation found: a model stored in one way beside its original.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "MeasuredPerplexity")]
pub struct Measured {
    /// Which weights the original has.
    pub fingerprint: String,
    /// What is stored how, as [`signature`](crate::plan::signature) writes it.
    pub signature: String,
    /// The plan that it was made by, where that is known.
    pub plan: Option<String>,
    /// The algorithm that chose the codes, where that is known.
    pub method: Option<String>,
    /// The cache that it ran with, where that is narrower than the original's of 16 bit; none where both have the same.
    pub cache: Option<Format>,
    /// The perplexity of the original.
    pub before: f64,
    /// The perplexity of the model.
    pub after: f64,
    /// The share by which it rises at least, with 95 % confidence.
    pub low: f64,
    /// The share by which it rises at most, with 95 % confidence.
    pub high: f64,
    /// From the original's probabilities to the model's, in nats per token.
    pub kl_divergence: Option<f64>,
    /// The share of tokens of which both think the same one likeliest.
    pub top1_agreement: Option<f64>,
    /// Tokens that were scored.
    pub tokens: u64,
    /// What text they are of.
    pub text: String,
    /// When, as `2026-01-31`.
    pub date: String,
}

impl Measured {
    /// The share by which the perplexity rose.
    pub fn change(&self) -> f64 {
        self.after / self.before - 1.0
    }

    /// Refuses what no evaluation finds, for a record that comes from a file.
    pub fn checked(self) -> Result<Self> {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        // A perplexity that fell to nothing fell by its whole.
        let share = |value: f64| value.is_finite() && value > -1.0;
        let sensible = positive(self.before)
            && positive(self.after)
            && share(self.low)
            && share(self.high)
            && self.low <= self.high
            && self.tokens > 0
            && self.kl_divergence.is_none_or(f64::is_finite)
            && self.top1_agreement.is_none_or(|share| (0.0..=1.0).contains(&share));
        if sensible {
            return Ok(self);
        }
        let reason = "a perplexity, an interval or a share is none that an evaluation finds";
        Err(Error::Shape(format!("measured quality of `{}`: {reason}", self.signature)))
    }
}
