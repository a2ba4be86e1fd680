//! How firm the advice is: what would change it.

use schemars::JsonSchema;
use serde::Serialize;

use super::{Demand, Goal, Need, Recommendation, recommend};
use crate::{Plan, Result};

/// The choice under other circumstances.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "ChoiceVariation")]
pub struct Variation {
    /// What is different.
    pub change: &'static str,
    /// The plan then; none where none may be chosen.
    pub choice: Option<Plan>,
    /// How many times the tokens per second of 16 bit it then gives.
    pub gain: Option<f64>,
    /// Whether it is the same plan.
    pub same: bool,
}

/// The choice with a fifth less and more bandwidth, four times the context and eight times the batch, which throughput and
/// cost look for themselves.
pub fn sensitivity(need: &Need<'_>, advice: &Recommendation) -> Result<Vec<Variation>> {
    let mut all = Vec::new();
    let mut vary = |change, need: &Need<'_>| {
        // More than can be counted fits nowhere.
        let best = recommend(need).ok().and_then(|other| other.choice().cloned());
        let choice = best.as_ref().map(|best| best.candidate.plan.clone());
        let same = choice == advice.plan;
        all.push(Variation { change, gain: best.and_then(|best| best.gain), choice, same });
    };
    for (change, factor) in [("bandwidth -20 %", 0.8), ("bandwidth +20 %", 1.2)] {
        let machine = need.machine.scaled(factor, 1.0)?;
        vary(change, &Need { machine: &machine, ..*need });
    }
    let demand = match need.demand {
        Demand::Decode { context } => Demand::Decode { context: context.saturating_mul(4) },
        Demand::Prefill { prompt } => Demand::Prefill { prompt: prompt.saturating_mul(4) },
        Demand::Request { prompt, generate } => Demand::Request { prompt: prompt.saturating_mul(4), generate },
    };
    vary("context x4", &Need { demand, ..*need });
    if !matches!(need.goal, Goal::Throughput | Goal::Cost) {
        let batch = Some(need.batch.unwrap_or(1).saturating_mul(8));
        vary("batch x8", &Need { batch, ..*need });
    }
    Ok(all)
}
