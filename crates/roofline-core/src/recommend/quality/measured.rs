//! Perplexities that were measured here, of these very weights.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Quality;
use crate::{Error, Format, Model, Plan, Result};

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

/// What was measured that fits a plan.
pub(super) struct Found<'a> {
    /// Of its weights and activations, with a cache of 16 bit.
    alone: Option<&'a Measured>,
    /// Of the same with its narrow cache.
    both: Option<&'a Measured>,
    /// Of the narrow cache, beside weights of 16 bit.
    cache: Option<&'a Measured>,
}

/// What a narrow cache was measured to cost.
pub(super) enum Cache {
    /// Beside what the weights cost.
    Apart(Quality),
    /// Together with the weights, of which nothing else is known.
    Together(Quality),
}

impl<'a> Found<'a> {
    /// What fits a plan on a model, and its cache if that is narrow.
    pub(super) fn of(all: &'a [Measured], model: &Model, plan: &Plan, algorithm: &str, narrow: Option<Format>) -> Self {
        let find = |signature: Option<&String>, cache: Option<Format>| {
            let fits = |found: &&Measured| Some(&found.signature) == signature && found.cache == cache;
            all.iter().filter(fits).max_by_key(|found| found.weight(algorithm))
        };
        // Signatures of plans that nothing is compared with are not worth writing.
        if all.is_empty() {
            return Self { alone: None, both: None, cache: None };
        }
        let (own, wide) = (plan.signature(&model.anatomy), Plan::sixteen().signature(&model.anatomy));
        Self {
            alone: find(own.as_ref(), None),
            both: narrow.and_then(|kv| find(own.as_ref(), Some(kv))),
            cache: narrow.and_then(|kv| find(wide.as_ref(), Some(kv))),
        }
    }

    /// What weights and activations cost.
    pub(super) fn weights(&self) -> Option<Quality> {
        self.alone.map(Quality::from)
    }

    /// What the cache costs, beside weights that are `sure` to lose nothing or beside others.
    pub(super) fn cache(&self, sure: bool) -> Option<Cache> {
        Some(match (self.alone, self.both) {
            _ if sure => Cache::Apart(apart(self.both?)),
            // Together they are what was measured of both.
            (Some(alone), Some(both)) => {
                let beyond = |both: f64, alone: f64| (1.0 + both) / (1.0 + alone) - 1.0;
                let (one, other) = (beyond(both.low, alone.low), beyond(both.high, alone.high));
                let change = beyond(both.change(), alone.change());
                let Quality::Measured { tokens, text, method, date, .. } = Quality::from(both) else { return None };
                Cache::Apart(Quality::Measured {
                    change,
                    low: one.min(other).min(change),
                    high: one.max(other).max(change),
                    kl_divergence: None,
                    top1_agreement: None,
                    tokens,
                    text,
                    method,
                    date,
                    cache: None,
                })
            }
            (None, Some(both)) => Cache::Together(both.into()),
            (_, None) => Cache::Apart(apart(self.cache?)),
        })
    }
}

/// What was measured of a cache alone.
fn apart(found: &Measured) -> Quality {
    (&Measured { cache: None, ..found.clone() }).into()
}

impl Measured {
    /// How well it fits codes that `algorithm` chooses: measured of these, then of any that needed no data; then by how much
    /// was read, and lately.
    fn weight(&self, algorithm: &str) -> (bool, bool, u64, &str) {
        let method = self.method.as_deref();
        let same = method == Some(algorithm);
        let without_data = method.is_none_or(|method| matches!(method, "rtn" | "mse"));
        (same, without_data, self.tokens, &self.date)
    }
}

impl From<&Measured> for Quality {
    fn from(found: &Measured) -> Self {
        let Measured { low, high, kl_divergence, top1_agreement, tokens, cache, .. } = *found;
        Self::Measured {
            change: found.change(),
            low,
            high,
            kl_divergence,
            top1_agreement,
            tokens,
            text: found.text.clone(),
            method: found.method.clone(),
            date: found.date.clone(),
            cache,
        }
    }
}
