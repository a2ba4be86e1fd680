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
mod search;
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
    model::{Footprint, Workload},
    predict::Bound,
    units::{Bytes, Intensity, Seconds},
};
use search::Search;

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

impl Demand {
    /// The pass that stands for the demand: of a request the step at its mean context, since time is linear in the context.
    pub fn typical(self, batch: u64) -> Result<Workload> {
        match self {
            Self::Decode { context } => Workload::decode(batch, context),
            Self::Prefill { prompt } => Workload::prefill(batch, prompt),
            Self::Request { prompt, generate } => Workload::decode(batch, prompt.saturating_add(generate.div_ceil(2))),
        }
    }

    /// Tokens in the cache at the end.
    pub fn context(self) -> u64 {
        match self {
            Self::Decode { context } => context,
            Self::Prefill { prompt } => prompt,
            Self::Request { prompt, generate } => prompt.saturating_add(generate),
        }
    }
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
    /// Sequences side by side, or the most where the goal looks for a number; one, or as many as fit, where none is given.
    pub batch: Option<u64>,
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
    /// How many times the tokens per second of 16 bit, at 16 bit's own best batch where it fits.
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
/// The most sequences that throughput is looked for with, unless more are asked for.
const MOST: u64 = 256;

/// The best plan for a need, and how the others compare.
pub fn recommend(need: &Need<'_>) -> Result<Recommendation> {
    check(need)?;
    let candidates = candidate::candidates(need)?;
    for names in [&need.limits.allow, &need.limits.deny] {
        candidate::known(names, &candidates, need.device)?;
    }
    let there = need.device.memory.usable();
    let capacity = match (need.limits.memory, there) {
        (Some(limit), Some(there)) => Some(if limit < there { limit } else { there }),
        (limit, there) => limit.or(there),
    };
    let mut search = Search::new(need, capacity);
    // Times are compared with times of the same kind: where the calibration knows 16 bit, plans it does not know are out.
    let expected = search.covered(&candidates[0])?;
    let all = candidates.len();
    let mut outcomes = Vec::with_capacity(all);
    for candidate in &candidates {
        if !expected || search.covered(candidate)? {
            outcomes.push(search.best(candidate, expected)?);
        }
    }
    let left_out = all - outcomes.len();
    search.compare(&mut outcomes, &candidates[0], expected)?;
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
    let nothing = |what: &str, value: &dyn std::fmt::Display| refuse(&format!("{what}, {value},"));
    if let Some(memory) = limits.memory.filter(|memory| *memory <= Bytes::ZERO) {
        return nothing("the memory limit", &memory);
    }
    if let Some(rate) = limits.tokens_per_s.filter(|rate| rate.is_nan() || *rate <= 0.0) {
        return nothing("the fewest tokens per second", &rate);
    }
    if let Some(time) = limits.first_token.filter(|time| *time <= Seconds::ZERO) {
        return nothing("the longest time to the first token", &time);
    }
    if let Some(loss) = limits.quality_loss.filter(|loss| loss.is_nan() || *loss < 0.0) {
        return Err(Error::Shape(format!("the largest loss of quality, {loss}, must not be negative")));
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
    if need.batch == Some(0) {
        return refuse("the batch");
    }
    if let Some(price) = need.dollars_per_hour.filter(|price| !price.is_finite() || *price <= 0.0) {
        return nothing("the price of an hour", &price);
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
