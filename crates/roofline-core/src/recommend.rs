//! Which plan for a model: a search over plans that uses the prediction, and nothing else.
//!
//! Feasibility first - weights, cache and tensors in flight must fit what of the memory is the model's -, then the time of
//! the work that was asked for, then what it costs in quality. All plans of one answer are compared in one tier.

mod candidate;
mod demand;
mod limits;
mod names;
mod offer;
mod operator;
mod outcome;
mod passes;
mod quality;
mod rank;
mod runtime;
mod search;
mod sensitivity;
mod words;

pub use candidate::Candidate;
pub use demand::{Demand, Goal};
pub use limits::Limits;
pub use offer::LeftOut;
pub use operator::{OperatorAdvice, OperatorNeed, RankedPrecision, RecommendationResult, recommend_operator};
pub use outcome::{Occupancy, Offload, Outcome, Prefill};
pub use quality::{Cached, Losses, Measured, Published, Quality, published};
pub use sensitivity::{Variation, sensitivity};

use schemars::JsonSchema;
use serde::Serialize;

use crate::{Format, Machine, Model, Plan, Result, device::Room, predict::Tier};
use search::Search;

/// What is asked. [`Need::new`] has an answer to everything but the model and the machine:
///
/// ```
/// use roofline_core::{Machine, Model, Registry, machine::Stack, recommend, recommend::{Goal, Need}};
///
/// let model = Model::find("llama-3-8b")?;
/// let h200 = Machine::new(Registry::builtin().find("h200")?.into_owned(), Stack::Roofline);
/// let fastest = recommend(&Need::new(&model, &h200))?;
/// let smallest = recommend(&Need { goal: Goal::Memory, ..Need::new(&model, &h200) })?;
/// let memory = |advice: &recommend::Recommendation| advice.choice().map(|best| best.memory.total);
/// assert!(memory(&smallest) <= memory(&fastest));
/// # Ok::<(), roofline_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Need<'a> {
    /// The model.
    pub model: &'a Model,
    /// Where it runs, and what is known of how fast that is.
    pub machine: &'a Machine,
    /// Which times are compared.
    pub tier: Tier,
    /// Sequences side by side, or the most where the goal looks for a number; one, or as many as fit, where none is given.
    pub batch: Option<u64>,
    /// Devices that share each layer; where none are given one, and more for plans that one does not hold.
    pub devices: Option<u64>,
    /// What each sequence needs.
    pub demand: Demand,
    /// What matters most.
    pub goal: Goal,
    /// What an hour of one device costs.
    pub dollars_per_hour: Option<f64>,
    /// What must hold.
    pub limits: &'a Limits,
    /// What evaluations of these weights found.
    pub measured: &'a [Measured],
    /// Whether the kernels of the machine read weights in a format as they are stored, where that is known: what is decoded
    /// row by row is slow, and nobody forecasts it.
    pub reads: Option<fn(Format) -> bool>,
}

/// Nothing must hold.
static NO_LIMITS: Limits = Limits::none();

impl<'a> Need<'a> {
    /// The fastest plan for the next token of one sequence of 4096, by the times that are likely, whatever it takes.
    pub fn new(model: &'a Model, machine: &'a Machine) -> Self {
        Self {
            model,
            machine,
            tier: Tier::default(),
            batch: None,
            devices: None,
            demand: Demand::default(),
            goal: Goal::default(),
            dollars_per_hour: None,
            limits: &NO_LIMITS,
            measured: &[],
            reads: None,
        }
    }
}

/// The answer.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Recommendation {
    /// The plan to take, as text; none where none may be chosen.
    pub plan: Option<Plan>,
    /// Which times were compared.
    pub tier: Tier,
    /// The memory of one device, and who has which part of it; none where nobody said how much there is.
    pub room: Option<Room>,
    /// The plans, the best first, those that may not be chosen last.
    pub outcomes: Vec<Outcome>,
    /// Why the first one, in a sentence with its numbers; what is missing where none may be chosen.
    pub reason: String,
    /// What the choice does to prompts, where the demand is mostly other tokens.
    pub prefill: Option<Prefill>,
    /// What the device multiplies and nobody loads.
    pub left_out: Vec<LeftOut>,
    /// What a user should know.
    pub warnings: Vec<String>,
}

impl Recommendation {
    /// The best plan; none where none may be chosen.
    pub fn choice(&self) -> Option<&Outcome> {
        self.outcomes.first().filter(|outcome| outcome.refused.is_none())
    }
}

/// The best plan for a need, and how the others compare.
pub fn recommend(need: &Need<'_>) -> Result<Recommendation> {
    need.check()?;
    let device = &need.machine.device;
    let found = candidate::candidates(need)?;
    for names in [&need.limits.allow, &need.limits.deny] {
        names::known(names, &found.all, device)?;
    }
    let room = device.room_within(need.limits.memory);
    let mut search = Search::new(need, room, &found.all)?;
    let mut outcomes = Vec::with_capacity(found.all.len());
    for candidate in &found.all {
        outcomes.push(search.best(candidate)?);
    }
    if !outcomes.iter().any(|outcome| rank::class(outcome, need) == rank::ORDINARY) {
        outcomes.extend(search.offloaded(&found.all)?);
    }
    rank::mark_pareto(&mut outcomes);
    rank::rank(&mut outcomes, need);
    rank::explain_losses(&mut outcomes, need);
    let prefill = outcomes.first().filter(|best| best.refused.is_none()).and_then(|best| search.prefill(best));
    let reason = words::reason(need, &outcomes, room);
    let warnings = words::warnings(need, &outcomes, found.open);
    let plan = outcomes.first().filter(|best| best.refused.is_none()).map(|best| best.candidate.plan.clone());
    let (tier, left_out) = (need.tier, found.left_out);
    Ok(Recommendation { plan, tier, room, outcomes, reason, prefill, left_out, warnings })
}

#[cfg(test)]
mod tests;
