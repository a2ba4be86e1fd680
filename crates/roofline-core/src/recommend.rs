//! Which precision for which part of a model: a search over plans that uses the prediction, and nothing else.
//!
//! Feasibility first - weights, cache, tensors in flight and what a runtime keeps for itself must fit -, then the time of
//! the work that was asked for, then what it costs in quality.

mod candidate;
mod operator;
mod passes;
mod quality;
mod rank;
mod runtime;
mod sensitivity;
mod words;

pub use candidate::Candidate;
pub use operator::{OperatorAdvice, RankedPrecision, RecommendationResult, recommend_operator};
pub use quality::{Published, Quality, published};
pub use sensitivity::{Variation, sensitivity};

use serde::Serialize;

use crate::{
    Device, Error, Model, Result,
    calibration::Calibration,
    energy::Energy,
    model::Footprint,
    predict::Bound,
    units::{Bytes, Intensity, Seconds},
};
use passes::{Passes, quality_of};

/// What the model has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Demand {
    /// One more token for every sequence, at this context.
    Decode {
        /// Tokens of each sequence so far.
        context: u64,
    },
    /// Prompts of this length.
    Prefill {
        /// Tokens of each prompt.
        prompt: u64,
    },
    /// A prompt, then tokens one by one.
    Request {
        /// Tokens of each prompt.
        prompt: u64,
        /// Tokens to generate.
        generate: u64,
    },
}

/// What matters most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// The shortest time of the demand.
    #[default]
    Latency,
    /// The most tokens per second, with as many sequences as fit.
    Throughput,
    /// The least memory.
    Memory,
    /// The least energy for each token.
    Energy,
    /// The least money for each token, with as many sequences as fit.
    Cost,
}

/// What must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// Memory that may be used; the device's when not given.
    pub memory: Option<Bytes>,
    /// The largest rise of the perplexity, as a share.
    pub quality_loss: Option<f64>,
    /// The fewest tokens per second for each sequence.
    pub tokens_per_s: Option<f64>,
    /// The longest time to the first token.
    pub first_token: Option<Seconds>,
    /// Only precisions whose weights a unit multiplies as they are stored.
    pub native_only: bool,
    /// Only these names, where there are any.
    pub allow: Vec<String>,
    /// Never these.
    pub deny: Vec<String>,
    /// Only plans that one of these runtimes loads, where there are any.
    pub runtimes: Vec<String>,
    /// Whether plans compete that may lose much, or whose cost in quality is neither published nor estimated.
    pub any_quality: bool,
}

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Need<'a> {
    /// The model.
    pub model: &'a Model,
    /// Where it runs.
    pub device: &'a Device,
    /// What that device really does, where it is known.
    pub calibration: Option<&'a Calibration>,
    /// Sequences side by side.
    pub batch: u64,
    /// What each needs.
    pub demand: Demand,
    /// What matters most.
    pub goal: Goal,
    /// What an hour of the device costs.
    pub dollars_per_hour: Option<f64>,
    /// What must hold.
    pub limits: &'a Limits,
}

/// A plan with what it promises.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The plan.
    #[serde(flatten)]
    pub candidate: Candidate,
    /// Sequences side by side.
    pub batch: u64,
    /// The time of the demand.
    pub time: Seconds,
    /// The time to the first token, where a prompt is read.
    pub first_token: Option<Seconds>,
    /// Tokens per second of all sequences: generated ones, or those of a prompt.
    pub tokens_per_s: f64,
    /// How many times as fast as 16 bit.
    pub speedup: f64,
    /// What takes longest.
    pub bound: Bound,
    /// Operations per byte of the longest pass.
    pub intensity: Intensity,
    /// Where memory and multipliers would take the same time.
    pub critical: Intensity,
    /// Energy for each token of all sequences; none where nothing is known of the device's power.
    pub energy_per_token: Option<Energy>,
    /// Money for a million tokens, where a price was given.
    pub dollars_per_million_tokens: Option<f64>,
    /// Memory of the model.
    pub footprint: Footprint,
    /// All of it, with what a runtime keeps for itself.
    pub memory: Bytes,
    /// Quality lost.
    pub quality: Quality,
    /// Why it may not be chosen; none where it may.
    pub refused: Option<String>,
    /// Why it was not chosen though it may be; none for the choice.
    pub lost: Option<String>,
    /// Whether no other is at least as fast, as small and as good.
    pub pareto: bool,
}

impl Outcome {
    /// What the goal wants least of; infinite where it is not known.
    pub fn score(&self, goal: Goal) -> f64 {
        rank::score(self, goal)
    }

    /// The largest rise of the perplexity that has to be reckoned with; none where it is unknown. Nobody has told what a
    /// narrow cache costs.
    pub fn loss(&self) -> Option<f64> {
        self.quality.worst().filter(|_| self.candidate.kv.nominal_bits() >= 16)
    }
}

/// The answer.
#[derive(Clone, Debug, Serialize)]
pub struct Recommendation {
    /// "ideal" or "expected": which times were compared.
    pub tier: &'static str,
    /// Memory there is.
    pub capacity: Option<Bytes>,
    /// The plans, the best first, those that may not be chosen last.
    pub outcomes: Vec<Outcome>,
    /// Why the first one, in a sentence with its numbers; what is missing where none may be chosen.
    pub reason: String,
    /// What a user should know.
    pub warnings: Vec<String>,
}

impl Recommendation {
    /// The best plan; none where none may be chosen.
    pub fn choice(&self) -> Option<&Outcome> {
        self.outcomes.first().filter(|outcome| outcome.refused.is_none())
    }
}

/// What a runtime keeps for itself: vLLM leaves a tenth of the memory unless it is told otherwise
/// (`gpu_memory_utilization` is 0.9).
pub const RESERVE: f64 = 0.1;
/// Sequences that throughput is looked for with.
const BATCHES: [u64; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

/// The best plan for a need, and how the others compare.
pub fn recommend(need: &Need<'_>) -> Result<Recommendation> {
    check(need)?;
    let candidates = candidate::candidates(need)?;
    let there = need.device.memory.usable();
    let capacity = match (need.limits.memory, there) {
        (Some(limit), Some(there)) => Some(if limit < there { limit } else { there }),
        (limit, there) => limit.or(there),
    };
    let most = if need.batch > 1 { need.batch } else { u64::MAX };
    let batches: Vec<u64> = match need.goal {
        Goal::Throughput | Goal::Cost => BATCHES.into_iter().filter(|batch| *batch <= most).collect(),
        _ => vec![need.batch],
    };
    let passes: Vec<Passes> = batches.iter().map(|batch| Passes::new(need, *batch)).collect::<Result<_>>()?;
    // Times are compared with times of the same kind: where the calibration knows 16 bit, plans it does not know are out.
    let covered = |candidate: &Candidate| passes.iter().all(|passes| passes.covered(need, candidate));
    let expected = candidates.first().is_some_and(covered);
    let all = candidates.len();
    let candidates: Vec<Candidate> =
        candidates.into_iter().filter(|candidate| !expected || covered(candidate)).collect();
    let left_out = all - candidates.len();
    let shares = passes[0].shares();
    // 16 bit at the same batch is what a plan is compared with, whether it fits or not.
    let wide: Vec<Seconds> =
        passes.iter().map(|passes| passes.time(need, &candidates[0], expected)).collect::<Result<_>>()?;
    let mut outcomes = Vec::with_capacity(candidates.len());
    for candidate in &candidates {
        let quality = quality_of(need, candidate, shares);
        let mut best: Option<Outcome> = None;
        for (passes, wide) in passes.iter().zip(&wide) {
            let mut outcome = passes.outcome(need, candidate, expected, quality.clone(), capacity)?;
            outcome.speedup = *wide / outcome.time;
            let better = |best: &Outcome| {
                outcome.refused.is_none() && (best.refused.is_some() || outcome.tokens_per_s > best.tokens_per_s)
            };
            if best.as_ref().is_none_or(better) {
                best = Some(outcome);
            }
        }
        outcomes.extend(best);
    }
    rank::mark_front(&mut outcomes);
    rank::rank(&mut outcomes, need.goal, need.limits);
    rank::explain_losses(&mut outcomes, need.goal);
    let tier = if expected { "expected" } else { "ideal" };
    let reason = words::reason(need, &outcomes, capacity);
    let mut warnings = words::warnings(need, &outcomes);
    if left_out > 0 {
        warnings.push(format!(
            "{left_out} plans are left out that the calibration does not know; the ideal tier compares all"
        ));
    }
    Ok(Recommendation { tier, capacity, outcomes, reason, warnings })
}

/// Limits that nothing can meet, or that say nothing.
fn check(need: &Need<'_>) -> Result<()> {
    let limits = need.limits;
    let refuse = |what: &str| Err(Error::Shape(format!("{what} must be more than nothing")));
    if limits.memory.is_some_and(|memory| memory <= Bytes::ZERO) {
        return refuse("the memory limit");
    }
    if limits.tokens_per_s.is_some_and(|rate| rate.is_nan() || rate <= 0.0) {
        return refuse("the fewest tokens per second");
    }
    if limits.first_token.is_some_and(|time| time <= Seconds::ZERO) {
        return refuse("the longest time to the first token");
    }
    if limits.quality_loss.is_some_and(|loss| loss.is_nan() || loss < 0.0) {
        return Err(Error::Shape("the largest loss of quality must not be negative".to_owned()));
    }
    if limits.first_token.is_some() && matches!(need.demand, Demand::Decode { .. }) {
        let what =
            "a time to the first token needs a prompt: ask for a prefill, or for a request with prompt and tokens";
        return Err(Error::Shape(what.to_owned()));
    }
    let known = |name: &String| runtime::names().any(|known| known.eq_ignore_ascii_case(name));
    if let Some(unknown) = limits.runtimes.iter().find(|name| !known(name)) {
        let all: Vec<&str> = runtime::names().collect();
        return Err(Error::Shape(format!("unknown runtime `{unknown}`: known are {}", all.join(", "))));
    }
    if need.dollars_per_hour.is_some_and(|price| !price.is_finite() || price <= 0.0) {
        return refuse("the price of an hour");
    }
    if need.goal == Goal::Cost && need.dollars_per_hour.is_none() {
        return Err(Error::Shape("the least cost needs the price of an hour".to_owned()));
    }
    if need.goal == Goal::Energy && need.device.tdp.is_none() {
        let what =
            format!("nothing is known of the power of {}: neither measured energies nor a limit", need.device.name);
        return Err(Error::Shape(what));
    }
    if let Some(both) = limits.allow.iter().find(|name| limits.deny.contains(name)) {
        return Err(Error::Shape(format!("`{both}` is allowed and denied")));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
