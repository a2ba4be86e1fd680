//! Which precision for which part of a model: a search over plans that uses the prediction, and nothing else.
//!
//! Feasibility first - weights, cache, tensors in flight and what a runtime keeps for itself must fit -, then the time of
//! the work that was asked for, then what it costs in quality.

mod candidate;
mod operator;
mod quality;

pub use candidate::Candidate;
pub use operator::{OperatorAdvice, RankedPrecision, RecommendationResult, recommend_operator};
pub use quality::Quality;

use serde::Serialize;

use crate::{
    Device, Dim, Error, Graph, Model, Result,
    calibration::Calibration,
    format::Sizes,
    graph::Place,
    model::{Footprint, Lowering, Workload},
    op::{ExpertSide, Op},
    predict::{Bound, predict},
    units::{Bytes, Seconds},
};

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
    /// Memory of the model.
    pub footprint: Footprint,
    /// All of it, with what a runtime keeps for itself.
    pub memory: Bytes,
    /// Quality lost.
    pub quality: Quality,
    /// Why it may not be chosen; none where it may.
    pub refused: Option<String>,
    /// Whether no other is at least as fast, as small and as good.
    pub pareto: bool,
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
const RESERVE: f64 = 0.1;
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
        Goal::Throughput => BATCHES.into_iter().filter(|batch| *batch <= most).collect(),
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
    let share = feed_forward_share(&passes[0].graphs[0]);
    // 16 bit at the same batch is what a plan is compared with, whether it fits or not.
    let wide = |passes: &Passes| Ok(passes.outcome(need, &candidates[0], expected, share, None)?.time);
    let wide: Vec<Seconds> = passes.iter().map(wide).collect::<Result<_>>()?;
    let mut outcomes = Vec::new();
    for candidate in &candidates {
        let mut best: Option<Outcome> = None;
        for (passes, wide) in passes.iter().zip(&wide) {
            let mut outcome = passes.outcome(need, candidate, expected, share, capacity)?;
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
    mark_front(&mut outcomes);
    rank(&mut outcomes, need.goal);
    let tier = if expected { "expected" } else { "ideal" };
    let (reason, mut warnings) = words(need, &outcomes, capacity);
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
    if let Some(both) = limits.allow.iter().find(|name| limits.deny.contains(name)) {
        return Err(Error::Shape(format!("`{both}` is allowed and denied")));
    }
    Ok(())
}

/// The passes of a demand, lowered once for all plans.
struct Passes {
    batch: u64,
    graphs: Vec<Graph>,
    /// How often each runs.
    counts: Vec<f64>,
    /// The state in which most memory is needed.
    fullest: Workload,
    /// Tokens that come out of the demand.
    tokens: f64,
    /// Whether the first pass reads a prompt.
    prompted: bool,
}

impl Passes {
    fn new(need: &Need<'_>, batch: u64) -> Result<Self> {
        let lower = |workload| need.model.graph(workload, Lowering::default());
        Ok(match need.demand {
            Demand::Decode { context } => {
                let workload = Workload::decode(batch, context)?;
                let (graphs, counts) = (vec![lower(workload)?], vec![1.0]);
                Self { batch, graphs, counts, fullest: workload, tokens: batch as f64, prompted: false }
            }
            Demand::Prefill { prompt } => {
                let workload = Workload::prefill(batch, prompt)?;
                let tokens = batch as f64 * prompt as f64;
                let (graphs, counts) = (vec![lower(workload)?], vec![1.0]);
                Self { batch, graphs, counts, fullest: workload, tokens, prompted: true }
            }
            Demand::Request { prompt, generate } => {
                let prefill = Workload::prefill(batch, prompt)?;
                // Time is linear in the context, so that the mean context stands for all steps.
                let step = Workload::decode(batch, prompt.saturating_add(generate.div_ceil(2)))?;
                let last = Workload::chunk(batch, prompt, prompt.saturating_add(generate))?;
                let counts = vec![1.0, generate.saturating_sub(1) as f64];
                let tokens = batch as f64 * generate as f64;
                Self {
                    batch,
                    graphs: vec![lower(prefill)?, lower(step)?],
                    counts,
                    fullest: last,
                    tokens,
                    prompted: true,
                }
            }
        })
    }

    fn covered(&self, need: &Need<'_>, candidate: &Candidate) -> bool {
        let covers =
            |calibration: &Calibration, graph| calibration.forecast(graph, &candidate.plan, Sizes::Exact).is_ok();
        need.calibration.is_some_and(|calibration| self.graphs.iter().all(|graph| covers(calibration, graph)))
    }

    /// The time of a pass and what takes longest in it.
    fn time(need: &Need<'_>, graph: &Graph, candidate: &Candidate, expected: bool) -> Result<(Seconds, Bound)> {
        let known = need.calibration.filter(|_| expected);
        let kernels = known.and_then(|known| known.forecast(graph, &candidate.plan, Sizes::Exact).ok());
        if let Some(total) = kernels.and_then(|kernels| Calibration::total(&kernels)) {
            return Ok((total.time, total.bound()));
        }
        let total = predict(graph, &candidate.plan, Sizes::Exact, need.device)?.total;
        Ok((total.time(), total.bound()))
    }

    fn outcome(
        &self,
        need: &Need<'_>,
        candidate: &Candidate,
        expected: bool,
        share: f64,
        capacity: Option<Bytes>,
    ) -> Result<Outcome> {
        let mut times = Vec::new();
        for graph in &self.graphs {
            times.push(Self::time(need, graph, candidate, expected)?);
        }
        let weighted = |at: usize| times[at].0 * self.counts[at];
        let time = (0..times.len()).map(weighted).fold(Seconds::ZERO, |sum, time| sum + time);
        let longest =
            (0..times.len()).max_by(|a, b| weighted(*a).value().total_cmp(&weighted(*b).value())).unwrap_or(0);
        let first = &self.graphs[0];
        let footprint = need.model.footprint_of(first, self.fullest, Dim::ONE, &candidate.plan, Sizes::Exact);
        let reserve = capacity.map_or(Bytes::ZERO, |capacity| capacity * RESERVE);
        let memory = footprint.total() + reserve;
        let tokens_per_s = self.tokens / time.value();
        let first_token = self.prompted.then_some(times[0].0);
        let quality = quality::quality(need.model, &candidate.plan, candidate.single(), share);
        let mut outcome = Outcome {
            candidate: candidate.clone(),
            batch: self.batch,
            time,
            first_token,
            tokens_per_s,
            speedup: 1.0,
            bound: times[longest].1,
            footprint,
            memory,
            quality,
            refused: None,
            pareto: false,
        };
        outcome.refused = refusal(need, &outcome, capacity);
        Ok(outcome)
    }
}

/// Why a plan may not be chosen.
fn refusal(need: &Need<'_>, outcome: &Outcome, capacity: Option<Bytes>) -> Option<String> {
    let limits = need.limits;
    if let Some(capacity) = capacity.filter(|capacity| outcome.memory > *capacity) {
        let missing = outcome.memory - capacity;
        return Some(format!("needs {missing} more than the {capacity} there are"));
    }
    if let Some(reason) = outcome.candidate.refusal(limits) {
        return Some(reason);
    }
    if let Some(limit) = limits.quality_loss {
        if outcome.candidate.kv.nominal_bits() < 16 {
            return Some("has a narrow cache, and what that costs is unknown".to_owned());
        }
        match outcome.quality.worst() {
            None => return Some("what it costs in quality is unknown".to_owned()),
            Some(loss) if loss > limit => return Some(format!("may raise the perplexity by {:.1} %", 100.0 * loss)),
            Some(_) => {}
        }
    }
    let each = outcome.tokens_per_s / outcome.batch as f64;
    if limits.tokens_per_s.is_some_and(|least| each < least) {
        return Some(format!("gives {each:.1} tokens/s"));
    }
    if let (Some(limit), Some(time)) = (limits.first_token, outcome.first_token)
        && time > limit
    {
        return Some(format!("has its first token after {time}"));
    }
    None
}

/// Share of the layers' weights that lies in the feed-forward part.
fn feed_forward_share(graph: &Graph) -> f64 {
    let weights = |place: Place| -> f64 {
        let of = |op: &Op| match op {
            Op::Linear(linear) => linear.n.float() * linear.k.float(),
            Op::ActivatedLinear(both) => {
                both.linear.n.float() * both.linear.k.float() * if both.gated { 2.0 } else { 1.0 }
            }
            Op::Experts(experts) => {
                let sides = if experts.side == ExpertSide::GatedUp { 2.0 } else { 1.0 };
                sides * experts.experts.float() * experts.n.float() * experts.k.float()
            }
            _ => 0.0,
        };
        graph.nodes.iter().filter(|node| node.place == place).map(|node| of(&node.op) * node.count as f64).sum()
    };
    let (inner, attention) = (weights(Place::FeedForward), weights(Place::Layer));
    inner / (inner + attention).max(1.0)
}

/// Marks plans that no other beats in speed, memory and quality at once.
fn mark_front(outcomes: &mut [Outcome]) {
    let key = |outcome: &Outcome| {
        (1.0 / outcome.speedup, outcome.memory.value(), outcome.quality.worst().unwrap_or(f64::INFINITY))
    };
    let allowed: Vec<_> = outcomes.iter().filter(|outcome| outcome.refused.is_none()).map(key).collect();
    for outcome in outcomes {
        let own = key(outcome);
        let beats = |other: &(f64, f64, f64)| other.0 <= own.0 && other.1 <= own.1 && other.2 <= own.2 && *other != own;
        outcome.pareto = outcome.refused.is_none() && !allowed.iter().any(beats);
    }
}

/// The best first by the goal; of equals, the one with the better quality, then the simpler one.
fn rank(outcomes: &mut [Outcome], goal: Goal) {
    let score = |outcome: &Outcome| match goal {
        Goal::Latency => outcome.time.value(),
        Goal::Throughput => -outcome.tokens_per_s,
        Goal::Memory => outcome.memory.value(),
    };
    outcomes.sort_by(|a, b| {
        let loss = |outcome: &Outcome| outcome.quality.worst().unwrap_or(f64::INFINITY);
        a.refused
            .is_some()
            .cmp(&b.refused.is_some())
            .then(score(a).total_cmp(&score(b)))
            .then(loss(a).total_cmp(&loss(b)))
            .then(a.candidate.plan.feed_forward.is_some().cmp(&b.candidate.plan.feed_forward.is_some()))
    });
}

fn words(need: &Need<'_>, outcomes: &[Outcome], capacity: Option<Bytes>) -> (String, Vec<String>) {
    let mut warnings = Vec::new();
    let Some(best) = outcomes.first().filter(|outcome| outcome.refused.is_none()) else {
        let smallest = outcomes.iter().min_by(|a, b| a.memory.value().total_cmp(&b.memory.value()));
        let reason = match (smallest, capacity) {
            (Some(smallest), Some(capacity)) if smallest.memory > capacity => format!(
                "nothing fits: even {} needs {} (weights {}, cache {}, in flight {}, a tenth kept free), {} more than the \
                 {capacity} there are; a shorter context, a smaller model or a device with more memory would do",
                smallest.candidate.name,
                smallest.memory,
                smallest.footprint.weights,
                smallest.footprint.kv,
                smallest.footprint.activations,
                smallest.memory - capacity,
            ),
            (Some(_), _) => format!(
                "no plan meets every limit; the nearest, {}, {}",
                outcomes[0].candidate.name,
                outcomes[0].refused.as_deref().unwrap_or("is refused")
            ),
            (None, _) => "there are no plans for this device".to_owned(),
        };
        return (reason, warnings);
    };
    let same = |outcome: &&Outcome| outcome.candidate.is_plain() && outcome.batch == best.batch;
    let wide = outcomes.iter().find(same);
    let saved = wide.map(|wide| 1.0 - best.footprint.total() / wide.footprint.total());
    let saved = saved
        .filter(|saved| *saved > 0.0)
        .map_or_else(String::new, |saved| format!(" and takes {:.0} % less memory", 100.0 * saved));
    let reason = if best.candidate.is_plain() {
        format!("{}: {}-bound, and no narrower plan is better for this goal", best.candidate.name, best.bound)
    } else {
        format!("{}: {}-bound here, {:.2}x as fast as 16 bit{saved}", best.candidate.name, best.bound, best.speedup)
    };
    let prefill = matches!(need.demand, Demand::Prefill { .. });
    if prefill && outcomes.iter().any(|outcome| outcome.candidate.weight_only() && outcome.bound == Bound::Compute) {
        warnings.push("prompts wait for multipliers: weight-only formats save memory here and no time".to_owned());
    }
    if let Some(loss) = best.quality.worst().filter(|loss| *loss > 0.05) {
        warnings.push(format!(
            "it may raise the perplexity by up to {:.1} %: evaluate before you rely on it",
            100.0 * loss
        ));
    }
    (reason, warnings)
}

#[cfg(test)]
mod tests;
