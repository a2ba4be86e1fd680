//! From what was typed to what is asked.

use roofline_core::{
    Device, Model, Plan,
    device::Origin,
    energy::Energy,
    recommend::{Demand, Goal, Limits, Need, recommend as search},
};
use serde::Serialize;

use super::Place;
use crate::{
    cli::{Phase, RecommendGoal, RecommendModelArgs},
    commands::source,
    failure::Failure,
};

/// The best of a power mode.
#[derive(Serialize)]
pub(super) struct InMode {
    pub(super) power_mode: String,
    pub(super) power_w: f64,
    pub(super) plan: Plan,
    pub(super) tokens_per_s: f64,
    pub(super) energy_per_token: Option<Energy>,
}

/// What is asked, in terms of the library.
pub(super) struct Question<'a> {
    args: &'a RecommendModelArgs,
    pub(super) model: Model,
    place: Place,
    pub(super) demand: Demand,
    pub(super) goal: Goal,
    limits: Limits,
}

impl<'a> Question<'a> {
    pub(super) fn of(args: &'a RecommendModelArgs) -> Result<Self, Failure> {
        Ok(Self {
            args,
            model: source::model(&args.model)?,
            place: Place::of(&args.place)?,
            demand: match (args.phase, args.prompt, args.generate) {
                (Some(Phase::Prefill), ..) => Demand::Prefill { prompt: args.context },
                (None, Some(prompt), Some(generate)) => Demand::Request { prompt, generate },
                _ => Demand::Decode { context: args.context },
            },
            goal: match args.goal {
                RecommendGoal::Latency => Goal::Latency,
                RecommendGoal::Throughput => Goal::Throughput,
                RecommendGoal::Memory => Goal::Memory,
                RecommendGoal::Energy => Goal::Energy,
                RecommendGoal::Cost => Goal::Cost,
            },
            limits: Limits {
                memory: args.place.memory_limit,
                quality_loss: args.limits.max_quality_loss,
                tokens_per_s: args.limits.min_tokens_per_s,
                first_token: args.limits.max_ttft,
                native_only: args.limits.native_only,
                allow: names(&args.limits.allow)?,
                deny: names(&args.limits.deny)?,
                runtimes: args.limits.runtime.clone(),
                any_quality: args.place.any_quality,
            },
        })
    }

    pub(super) fn device(&self) -> &Device {
        &self.place.machine.device
    }

    pub(super) fn need(&self) -> Need<'_> {
        self.on(&self.place)
    }

    fn on<'n>(&'n self, place: &'n Place) -> Need<'n> {
        Need {
            model: &self.model,
            machine: &place.machine,
            tier: place.tier,
            batch: self.args.batch,
            devices: self.args.tp,
            demand: self.demand,
            goal: self.goal,
            dollars_per_hour: self.args.price,
            limits: &self.limits,
        }
    }

    /// Moves to the power mode that takes the least energy, where the device has modes, none was given and energy counts;
    /// the best of each comes back. A mode without a budget has nothing to be judged by.
    pub(super) fn choose_mode(&mut self) -> Result<Vec<InMode>, Failure> {
        let (mut modes, device) = (Vec::new(), self.device());
        // Rates that were given hold in no mode.
        if self.goal != Goal::Energy || device.mode.is_some() || device.origin == Origin::Modified {
            return Ok(modes);
        }
        let mut least: Option<(f64, Place)> = None;
        for mode in &device.power_modes {
            let Some(power) = mode.power else { continue };
            let place = Place::on(&self.args.place, device.in_mode(&mode.name)?);
            let advice = search(&self.on(&place))?;
            let Some(best) = advice.choice() else { continue };
            let score = best.score(self.goal);
            modes.push(InMode {
                power_mode: mode.name.clone(),
                power_w: power.value(),
                plan: best.candidate.plan.clone(),
                tokens_per_s: best.tokens_per_s,
                energy_per_token: best.energy_per_token,
            });
            if least.as_ref().is_none_or(|(other, _)| score < *other) {
                least = Some((score, place));
            }
        }
        if let Some((_, place)) = least {
            self.place = place;
        }
        Ok(modes)
    }
}

/// Names of a limit: an item without `=` starts the next, as in every list of plans.
fn names(texts: &[String]) -> Result<Vec<String>, Failure> {
    let mut items: Vec<String> = Vec::new();
    for item in texts.iter().flat_map(|text| text.split(',')).map(str::trim) {
        match items.last_mut() {
            Some(last) if item.contains('=') => *last += &format!(",{item}"),
            _ => items.push(item.to_owned()),
        }
    }
    items.iter().map(|item| canonical(item)).collect()
}

/// The one name of a precision, a recipe, a format or a plan.
fn canonical(name: &str) -> Result<String, Failure> {
    let lower = name.to_lowercase();
    // Formats are names of their own, and whoever says INT4 means every group size.
    if lower == "int4" || lower.parse::<roofline_core::Format>().is_ok_and(|format| format.to_string() == lower) {
        return Ok(lower);
    }
    Ok(name.parse::<Plan>()?.to_string())
}
