//! Advice on a model.

use roofline_core::{
    Device, Dim, Format, Model, Plan,
    device::Origin,
    energy::Energy,
    recommend::{
        Demand, Goal, Limits, Measured, Need, Outcome, Published, Recommendation, Variation, published,
        recommend as search, sensitivity,
    },
};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Machined, ModelWish, Place, explain};
use crate::{
    Context, Error, Note, Result,
    request::{ModelName, Phase},
};

/// The advice, with what it rests on.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RecommendedModel")]
pub struct ModelAdvice {
    pub model: String,
    pub device: String,
    pub device_name: String,
    /// The power mode that was found; none where the device has none or one was given.
    pub power_mode: Option<String>,
    /// The best of each power mode, where one was looked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub modes: Vec<InMode>,
    /// Sequences of the choice.
    pub batch: u64,
    pub demand: Demand,
    pub goal: Goal,
    #[serde(flatten)]
    pub recommendation: Recommendation,
    /// What other circumstances would change.
    pub sensitivity: Vec<Variation>,
    /// What is published of the choice, by every algorithm.
    pub published: Vec<&'static Published>,
    pub commands: Vec<String>,
    /// The reasons step by step, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explanation: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// The best of a power mode.
#[derive(Serialize, JsonSchema)]
pub struct InMode {
    pub power_mode: String,
    pub power_w: f64,
    pub plan: Plan,
    pub tokens_per_s: f64,
    pub energy_per_token: Option<Energy>,
}

pub(super) fn advise(context: &Context, asked: &ModelWish) -> Result<ModelAdvice> {
    check(asked)?;
    let mut question = Question::of(context, asked)?;
    let modes = question.choose_mode(context)?;
    let need = question.need();
    let recommendation = search(&need)?;
    let sensitivity = sensitivity(&need, &recommendation)?;
    let best = recommendation.choice();
    let commands = best.map_or_else(Vec::new, |best| commands(best, asked));
    let published = best.map_or_else(Vec::new, |best| published(&question.model, &best.candidate.plan));
    let explanation = asked.explain.then(|| explain::steps(&need, &recommendation)).transpose()?;
    Ok(ModelAdvice {
        model: question.model.name.clone(),
        device: question.device().label(),
        device_name: question.device().name.clone(),
        power_mode: question.device().mode.clone().filter(|_| !modes.is_empty()),
        modes,
        batch: best.map_or(asked.batch.map_or(1, Dim::get), |best| best.batch),
        demand: question.demand,
        goal: question.goal,
        recommendation,
        sensitivity,
        published,
        commands,
        explanation,
        notes: context.notes(),
    })
}

/// What to type to get a plan. A name of the registry is no folder to read weights from.
#[cfg(feature = "files")]
fn commands(best: &Outcome, asked: &ModelWish) -> Vec<String> {
    let folder = asked.model.text().filter(|name| std::path::Path::new(name).is_dir());
    let mut commands = super::recipe::commands(best, folder.unwrap_or("./CHECKPOINT"));
    commands.extend(folder.and_then(|folder| super::recipe::aimed(&asked.limits, folder)));
    commands
}

#[cfg(not(feature = "files"))]
fn commands(_: &Outcome, _: &ModelWish) -> Vec<String> {
    Vec::new()
}

/// What evaluations found of the weights that a name leads to: none where it is a name alone, or a folder without weights.
#[cfg(feature = "files")]
fn measured(context: &Context, asked: &ModelName) -> Vec<Measured> {
    let weights = || {
        let path = std::path::Path::new(asked.text()?);
        let checkpoint = roofline_quant::Checkpoint::open(path).ok()?;
        crate::quality::fingerprint(&checkpoint).ok()
    };
    let weights = if context.is_local() { weights() } else { None };
    weights.map_or_else(Vec::new, |weights| crate::quality::known(context, &weights))
}

#[cfg(not(feature = "files"))]
fn measured(_: &Context, _: &ModelName) -> Vec<Measured> {
    Vec::new()
}

/// What the kernels of this machine's processor read: those are ours, so it is known.
#[cfg(feature = "hardware")]
fn reads(place: &Place) -> Option<fn(Format) -> bool> {
    let ours = place.on.as_deref() == Some("this")
        && place.stack.is_none_or(|stack| stack == roofline_core::machine::Stack::Roofline);
    ours.then_some(roofline_run::cpu::kernels::linear::reads)
}

#[cfg(not(feature = "hardware"))]
fn reads(_: &Place) -> Option<fn(Format) -> bool> {
    None
}

/// What belongs together is there together.
fn check(asked: &ModelWish) -> Result<()> {
    let ModelWish { phase, prompt, generate, goal, price, .. } = asked;
    let request = prompt.is_some() || generate.is_some();
    if phase.is_some() && request {
        return Err(Error::request("one pass and a whole request are two questions", "leave out ⟨phase⟩"));
    }
    if request && (prompt.is_none() || generate.is_none()) {
        return Err(Error::request("a whole request has a prompt and an answer", "give both ⟨prompt⟩ and ⟨generate⟩"));
    }
    if asked.limits.target_size.is_some() && asked.limits.target_bits.is_some() {
        let what = "`⟨target_size⟩` and `⟨target_bits⟩` are two sizes to aim at";
        return Err(Error::request(what, "leave one of the two out"));
    }
    if Goal::from(*goal) == Goal::Cost && price.is_none() {
        return Err(Error::request("what it costs depends on what an hour costs", "say ⟨price 2.50⟩"));
    }
    Ok(())
}

/// What is asked, in terms of the core.
struct Question<'a> {
    asked: &'a ModelWish,
    model: Model,
    place: Machined,
    demand: Demand,
    goal: Goal,
    limits: Limits,
    measured: Vec<Measured>,
    reads: Option<fn(Format) -> bool>,
}

impl<'a> Question<'a> {
    fn of(context: &Context, asked: &'a ModelWish) -> Result<Self> {
        let length = asked.context.get();
        Ok(Self {
            asked,
            model: context.model(&asked.model)?,
            measured: measured(context, &asked.model),
            reads: reads(&asked.place),
            place: Machined::of(context, &asked.place)?,
            demand: match (asked.phase, asked.prompt, asked.generate) {
                (Some(Phase::Prefill), ..) => Demand::Prefill { prompt: length },
                (None, Some(prompt), Some(generate)) => {
                    Demand::Request { prompt: prompt.get(), generate: generate.get() }
                }
                _ => Demand::Decode { context: length },
            },
            goal: asked.goal.into(),
            limits: Limits {
                memory: asked.place.memory_limit,
                weights: asked.limits.target_size.map(Into::into),
                bits_per_weight: asked.limits.target_bits,
                quality_loss: asked.limits.max_quality_loss.map(|share| share.0),
                tokens_per_s: asked.limits.min_tokens_per_s,
                first_token: asked.limits.max_ttft,
                native_only: asked.limits.native_only,
                allow: names(&asked.limits.allow)?,
                deny: names(&asked.limits.deny)?,
                runtimes: asked.limits.runtime.clone(),
                any_quality: asked.place.any_quality,
            },
        })
    }

    fn device(&self) -> &Device {
        &self.place.machine.device
    }

    fn need(&self) -> Need<'_> {
        self.on(&self.place)
    }

    fn on<'n>(&'n self, place: &'n Machined) -> Need<'n> {
        Need {
            tier: place.tier,
            batch: self.asked.batch.map(Dim::get),
            devices: self.asked.tp.map(Dim::get),
            demand: self.demand,
            goal: self.goal,
            dollars_per_hour: self.asked.price,
            limits: &self.limits,
            measured: &self.measured,
            reads: self.reads,
            ..Need::new(&self.model, &place.machine)
        }
    }

    /// Moves to the power mode that takes the least energy, where the device has modes, none was given and energy counts;
    /// the best of each comes back. A mode without a budget has nothing to be judged by.
    fn choose_mode(&mut self, context: &Context) -> Result<Vec<InMode>> {
        let (mut modes, device) = (Vec::new(), self.device());
        // Rates that were given hold in no mode.
        if self.goal != Goal::Energy || device.mode.is_some() || device.origin == Origin::Modified {
            return Ok(modes);
        }
        let mut least: Option<(f64, Machined)> = None;
        for mode in &device.power_modes {
            let Some(power) = mode.power else { continue };
            let place = Machined::on(context, &self.asked.place, device.in_mode(&mode.name)?);
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
fn names(texts: &[String]) -> Result<Vec<String>> {
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
fn canonical(name: &str) -> Result<String> {
    let lower = name.to_lowercase();
    // Formats are names of their own, and whoever says INT4 means every group size.
    if lower == "int4" || lower.parse::<roofline_core::Format>().is_ok_and(|format| format.to_string() == lower) {
        return Ok(lower);
    }
    Ok(name.parse::<Plan>()?.to_string())
}
