//! Advice on a model.

use std::borrow::Cow;

use roofline_core::{
    Device, Model,
    calibration::Calibration,
    device::Origin,
    energy::{Energy, EnergyModel},
    precision::{NAMED, PrecisionSpec},
    recommend::{
        Demand, Goal, Limits, Need, Outcome, Published, Quality, Recommendation, Variation, published,
        recommend as search, sensitivity,
    },
    units::Bytes,
};
use serde::Serialize;

use super::{explain, picture, place, recipe};
use crate::{
    cli::{Phase, RecommendGoal, RecommendModelArgs},
    commands::source,
    failure::Failure,
    report::{Align, Report, Section, Table, number},
};

/// Plans that are shown where nobody asked for all.
const SHOWN: usize = 12;

/// The advice, with what it rests on.
#[derive(Serialize)]
pub(crate) struct Advised {
    pub(super) model: String,
    pub(super) device: String,
    pub(super) device_name: String,
    /// The power mode that was found; none where the device has none or one was given.
    power_mode: Option<String>,
    /// The best of each power mode, where one was looked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    modes: Vec<InMode>,
    /// Sequences of the choice.
    batch: u64,
    pub(super) demand: Demand,
    goal: Goal,
    #[serde(flatten)]
    pub(super) recommendation: Recommendation,
    /// What other circumstances would change.
    sensitivity: Vec<Variation>,
    /// What is published of the choice, by every algorithm.
    published: Vec<&'static Published>,
    commands: Vec<String>,
    /// The reasons step by step, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    explanation: Option<Vec<String>>,
    #[serde(skip)]
    all: bool,
    #[serde(skip)]
    plot: bool,
}

/// The best of a power mode.
#[derive(Serialize)]
struct InMode {
    power_mode: String,
    power_w: f64,
    plan: String,
    tokens_per_s: f64,
    energy_per_token: Option<Energy>,
}

/// What is asked, in terms of the library.
struct Question {
    model: Model,
    device: Device,
    calibration: Option<Calibration>,
    batch: Option<u64>,
    demand: Demand,
    goal: Goal,
    price: Option<f64>,
    limits: Limits,
}

impl Question {
    fn of(args: &RecommendModelArgs) -> Result<Self, Failure> {
        let (device, calibration) = place(&args.place)?;
        let names = |names: &[String]| names.iter().map(|name| canonical(name)).collect::<Result<Vec<_>, _>>();
        Ok(Self {
            model: source::model(&args.model)?,
            device,
            calibration: calibration.map(Cow::into_owned),
            batch: args.batch,
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
            price: args.price,
            limits: Limits {
                memory: args.place.memory_limit,
                quality_loss: args.limits.max_quality_loss,
                tokens_per_s: args.limits.min_tokens_per_s,
                first_token: args.limits.max_ttft,
                native_only: args.limits.native_only,
                allow: names(&args.limits.allow)?,
                deny: names(&args.limits.deny)?,
                runtimes: args.limits.runtime.clone(),
                any_quality: args.limits.any_quality,
            },
        })
    }

    fn need(&self) -> Need<'_> {
        Need {
            model: &self.model,
            device: &self.device,
            calibration: self.calibration.as_ref(),
            batch: self.batch,
            demand: self.demand,
            goal: self.goal,
            dollars_per_hour: self.price,
            limits: &self.limits,
        }
    }

    /// Moves to the power mode that takes the least energy, where the device has modes, none was given and energy counts;
    /// the best of each comes back. A mode without a budget has nothing to be judged by.
    fn choose_mode(&mut self) -> Result<Vec<InMode>, Failure> {
        let mut modes = Vec::new();
        // Rates that were given hold in no mode.
        if self.goal != Goal::Energy || self.device.mode.is_some() || self.device.origin == Origin::Modified {
            return Ok(modes);
        }
        let mut least: Option<(f64, Device)> = None;
        for mode in &self.device.power_modes {
            let Some(power) = mode.power else { continue };
            let device = self.device.in_mode(&mode.name)?;
            let advice = search(&Need { device: &device, calibration: None, ..self.need() })?;
            let Some(best) = advice.choice() else { continue };
            let score = best.score(self.goal);
            if least.as_ref().is_none_or(|(other, _)| score < *other) {
                least = Some((score, device));
            }
            modes.push(InMode {
                power_mode: mode.name.clone(),
                power_w: power.value(),
                plan: best.candidate.name.clone(),
                tokens_per_s: best.tokens_per_s,
                energy_per_token: best.energy_per_token,
            });
        }
        if let Some((_, device)) = least {
            self.device = device;
        }
        Ok(modes)
    }
}

/// The advice for what was typed.
pub(crate) fn answer(args: &RecommendModelArgs) -> Result<Advised, Failure> {
    let mut question = Question::of(args)?;
    let modes = question.choose_mode()?;
    let need = question.need();
    let recommendation = search(&need)?;
    let sensitivity = sensitivity(&need, &recommendation)?;
    // A name of the registry is no folder to read weights from.
    let folder = std::path::Path::new(&args.model);
    let folder = if folder.is_dir() { args.model.as_str() } else { "./CHECKPOINT" };
    let best = recommendation.choice();
    let commands = best.map_or_else(Vec::new, |best| recipe::commands(&best.candidate, &best.quality, folder));
    let published = best.map_or_else(Vec::new, |best| published(&question.model, &best.candidate));
    let explanation = args.explain.then(|| explain::steps(&need, &recommendation)).transpose()?;
    Ok(Advised {
        model: question.model.name.clone(),
        device: question.device.label(),
        device_name: question.device.name.clone(),
        power_mode: question.device.mode.clone().filter(|_| !modes.is_empty()),
        modes,
        batch: best.map_or(args.batch.unwrap_or(1), |best| best.batch),
        demand: question.demand,
        goal: question.goal,
        recommendation,
        sensitivity,
        published,
        commands,
        explanation,
        all: args.all,
        plot: args.picture.plot,
    })
}

/// The name in the table of precisions, by whichever it was asked for.
fn canonical(name: &str) -> Result<String, Failure> {
    let lower = name.trim().to_lowercase();
    if lower.parse::<roofline_core::Format>().is_err() {
        lower.parse::<PrecisionSpec>()?;
    }
    // Whoever says INT4 means every group size.
    let known = NAMED.iter().filter(|_| lower != "int4");
    let known = known.clone().find(|named| named.name == lower || named.aliases.contains(&lower.as_str()));
    Ok(known.map_or(lower, |named| named.name.to_owned()))
}

/// The work in words.
pub(super) fn work(demand: Demand) -> String {
    match demand {
        Demand::Decode { context } => format!("one more token at a context of {context}"),
        Demand::Prefill { prompt } => format!("a prompt of {prompt} tokens"),
        Demand::Request { prompt, generate } => format!("a prompt of {prompt} tokens and {generate} more"),
    }
}

pub(super) fn quality(quality: &Quality) -> String {
    match quality {
        Quality::Exact => "as 16 bit".to_owned(),
        Quality::Released => "as released".to_owned(),
        Quality::Published { change, .. } => format!("+{:.1} % published", 100.0 * change),
        Quality::Estimated(change) => format!("+{:.1} to {:.1} % estimated", 100.0 * change.low, 100.0 * change.high),
        Quality::Unknown => "unknown".to_owned(),
    }
}

fn energy(energy: Option<Energy>) -> String {
    energy.map_or_else(String::new, |energy| energy.joules().to_string())
}

impl Report for Advised {
    const ROWS: &'static str = "outcomes";

    fn warnings(&self) -> Vec<String> {
        self.recommendation.warnings.clone()
    }

    fn sections(&self) -> Vec<Section> {
        let advice = &self.recommendation;
        let batch = self.batch;
        let work = work(self.demand);
        let mut sections = vec![
            Section::Heading(format!(
                "{} on {} ({}): {work}, batch {batch}",
                self.model, self.device_name, self.device
            )),
            Section::Paragraph(format!("{}; {} tier.", advice.reason, advice.tier)),
        ];
        if let Some(best) = advice.choice() {
            sections.push(Section::Facts(self.facts(best)));
        }
        let steps = self.explanation.iter().flatten().enumerate();
        sections.extend(steps.map(|(at, step)| Section::Paragraph(format!("{}. {step}", at + 1))));
        if !self.modes.is_empty() {
            sections.push(Section::Heading(
                "The best of each power mode; energy is the mode's budget for the time".to_owned(),
            ));
            sections.push(Section::Table(self.mode_table()));
        }
        let shown = if self.all { advice.outcomes.len() } else { SHOWN };
        let shown = shown.min(advice.outcomes.len());
        sections.push(Section::Table(plans(&advice.outcomes[..shown], self.goal)));
        let refused = advice.outcomes.iter().filter(|outcome| outcome.refused.is_some()).count();
        let rest = advice.outcomes.len() - shown;
        let rest = if rest > 0 {
            format!("{rest} more plans, {refused} of all refused; --all shows them. ")
        } else {
            String::new()
        };
        sections.push(Section::Paragraph(format!(
            "{rest}A star: no other plan is at least as fast, as small and as good."
        )));
        if self.plot {
            sections.push(Section::Picture(picture::front(self).into()));
        }
        sections.extend(advice.warnings.iter().map(|warning| Section::Paragraph(format!("Warning: {warning}."))));
        sections.extend((!self.commands.is_empty()).then(|| Section::Code(self.commands.clone())));
        sections
    }
}

impl Advised {
    /// The arithmetic of the memory, the quality with its source, what the choice costs and how firm it is.
    fn facts(&self, best: &Outcome) -> Vec<(String, String)> {
        let (footprint, capacity) = (&best.footprint, self.recommendation.capacity);
        let kept = if capacity.is_some() { " + a tenth kept free" } else { "" };
        let there = capacity.map_or_else(String::new, |capacity| {
            format!(" of {capacity}, {} to spare", Bytes::new((capacity - best.memory).value().max(0.0)))
        });
        let memory = format!(
            "weights {} + cache {} + in flight {}{kept} = {}{there}",
            footprint.weights, footprint.kv, footprint.activations, best.memory
        );
        let source = match &best.quality {
            Quality::Published { source, method, .. } => format!(" with {method} ({source})"),
            Quality::Estimated(_) => " from the formats' errors on Gaussian numbers".to_owned(),
            _ => String::new(),
        };
        let cache = if best.candidate.kv.nominal_bits() < 16 { "; what the cache costs is unknown" } else { "" };
        let mut facts = vec![
            ("memory".to_owned(), memory),
            ("perplexity".to_owned(), quality(&best.quality) + &source + cache),
            ("algorithm".to_owned(), self.algorithm(best)),
        ];
        if let Some(known) = best.energy_per_token {
            let how = match known {
                Energy::Fitted(_) => " by terms fitted to measured kernels",
                Energy::AtLimit(_) => ": the whole power limit for the predicted time, nothing was measured",
            };
            facts.push(("energy per token".to_owned(), energy(Some(known)) + how));
        }
        if let Some(dollars) = best.dollars_per_million_tokens {
            facts.push(("cost".to_owned(), format!("${dollars:.3} per million tokens")));
        }
        facts.push(("runtimes".to_owned(), best.candidate.runtimes.join(", ")));
        facts.push(("firm?".to_owned(), self.firmness()));
        facts
    }

    /// The algorithm for a scheme, and what others are known to give.
    fn algorithm(&self, best: &Outcome) -> String {
        let own = match best.candidate.algorithm {
            "none" => return "none: nothing is quantized".to_owned(),
            "mse" => "mse: the scale with the least squared error, no data needed",
            _ => "rtn: round to nearest, no data needed",
        };
        let others: Vec<String> = self
            .published
            .iter()
            .filter(|row| row.method != "rtn")
            .map(|row| format!("{} +{:.1} % ({})", row.method, 100.0 * row.change(), row.source))
            .collect();
        if others.is_empty() { own.to_owned() } else { format!("{own}; published for others: {}", others.join(", ")) }
    }

    fn firmness(&self) -> String {
        let told = |variation: &Variation| match &variation.choice {
            _ if variation.same => format!("{}: the same", variation.change),
            Some(choice) => format!("{}: {choice}", variation.change),
            None => format!("{}: nothing fits", variation.change),
        };
        let all: Vec<String> = self.sensitivity.iter().map(told).collect();
        let next = self.recommendation.outcomes.get(1).filter(|next| next.refused.is_none());
        let next = next.and_then(|next| Some(format!("; the next, {}: {}", next.candidate.name, next.lost.as_ref()?)));
        all.join("; ") + &next.unwrap_or_default()
    }

    fn mode_table(&self) -> Table {
        let mut table = Table::default()
            .column("mode", Align::Left, 0)
            .column("budget", Align::Right, 0)
            .column("plan", Align::Left, 0)
            .column("tokens/s", Align::Right, 0)
            .column("energy per token", Align::Right, 0);
        for mode in &self.modes {
            let chosen = if Some(&mode.power_mode) == self.power_mode.as_ref() { " <" } else { "" };
            table.row([
                format!("{}{chosen}", mode.power_mode).into(),
                format!("{} W", number(mode.power_w)).into(),
                mode.plan.as_str().into(),
                number(mode.tokens_per_s).into(),
                energy(mode.energy_per_token).into(),
            ]);
        }
        table
    }
}

/// Where the energies of a device come from.
pub(super) fn energy_source(device: &Device) -> String {
    match EnergyModel::builtin(device) {
        Some(model) => format!(
            "{} W while anything runs, {} pJ per byte, {} pJ per widened weight, and per operation {}; {:.1} % mean error on \
             kernels they were not fitted to ({})",
            model.static_w,
            model.pj_per_byte,
            model.pj_per_widened_weight,
            model
                .pj_per_operation
                .iter()
                .map(|(math, picojoules)| format!("{picojoules} pJ in {}", math.label()))
                .collect::<Vec<_>>()
                .join(", "),
            100.0 * model.held_out_mean_error,
            model.provenance
        ),
        None => "nobody measured this device here: its whole power limit for the predicted time".to_owned(),
    }
}

fn plans(outcomes: &[Outcome], goal: Goal) -> Table {
    let mut table = Table::default()
        .column("plan", Align::Left, 0)
        .column("", Align::Left, 3)
        .column("batch", Align::Right, 3)
        .column("time", Align::Right, 0)
        .column("first token", Align::Right, 2)
        .column("tokens/s", Align::Right, 1)
        .column("speed-up", Align::Right, 0)
        .column("bound", Align::Left, 2)
        .column("memory", Align::Right, 0)
        .column("energy/token", Align::Right, if goal == Goal::Energy { 0 } else { 3 })
        .column("$/M tokens", Align::Right, if goal == Goal::Cost { 0 } else { 3 })
        .column("perplexity", Align::Left, 1)
        .column("why not", Align::Left, 1);
    for outcome in outcomes {
        let dollars = outcome.dollars_per_million_tokens;
        let cache = if outcome.loss().is_none() && outcome.quality != Quality::Unknown { " + cache" } else { "" };
        table.row([
            outcome.candidate.name.as_str().into(),
            if outcome.pareto { "*" } else { "" }.into(),
            outcome.batch.to_string().into(),
            outcome.time.to_string().into(),
            outcome.first_token.map_or_else(String::new, |time| time.to_string()).into(),
            number(outcome.tokens_per_s).into(),
            format!("{:.2}x", outcome.speedup).into(),
            outcome.bound.to_string().into(),
            outcome.memory.to_string().into(),
            energy(outcome.energy_per_token.filter(|_| goal == Goal::Energy)).into(),
            dollars.map_or_else(String::new, |dollars| format!("{dollars:.3}")).into(),
            (quality(&outcome.quality) + cache).into(),
            outcome.refused.clone().or_else(|| outcome.lost.clone()).unwrap_or_default().into(),
        ]);
    }
    table.without_empty_columns()
}
