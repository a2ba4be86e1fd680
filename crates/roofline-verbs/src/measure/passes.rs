//! Whole passes of models that run: the time to the first token, the time of each further one, and where it goes.

mod asked;
mod power;
mod sources;
mod theory;
mod timing;

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
};

use roofline_core::{
    Dim, Machine, Model, Plan,
    compare::{Observation, error_pct},
    machine::Basis,
    measurement::{Phase, Summary},
    predict::Tier,
    units::{Bytes, Seconds},
};
use roofline_engine::{Engine, Settings};
use roofline_run::process::{forget_peak, peak_memory};
use schemars::JsonSchema;
use serde::Serialize;

pub use self::{asked::Passes, timing::PassClock};
use self::{
    power::Power,
    sources::{Source, sources},
    theory::Theory,
    timing::{Effort, Timed, timed},
};
use crate::{
    Context, Error, Result,
    broken::Broken,
    context::files::writable,
    machine::spoken,
    predict::ModelPass,
    request::{BackendName, Measuring},
    running::{Executor, Opened, format},
};

/// Tokens of a prompt, where nobody says how many.
const PROMPT: u64 = 512;
/// Tokens that follow it.
const GENERATED: u64 = 32;

/// A model that answered prompts of one length, as many at once as a batch has.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct MeasuredPass {
    pub model: String,
    /// Where its weights are; none where they are made up.
    pub checkpoint: Option<PathBuf>,
    /// How most of the weights are stored, or the plan that they were made by.
    pub precision: String,
    /// The numbers between kernels, and those of the cache.
    pub values: String,
    pub kv: String,
    /// Who ran it, and whose clock its times are by.
    pub backend: BackendName,
    pub clock: PassClock,
    pub threads: usize,
    pub batch: u64,
    pub prompt: u64,
    /// Tokens that followed in each sequence; fewer than asked for where it was stopped.
    pub generated: usize,
    pub load_s: f64,
    /// From the prompts to the first token of each sequence, the median of some times.
    pub ttft_us: f64,
    /// Each further token of all sequences, the median and what 5 % of them went above; none where there is none.
    pub tpot_us: Option<f64>,
    pub tpot_p95_us: Option<f64>,
    /// Further tokens of all sequences in the time of one: of the median, so that both say the same.
    pub tokens_per_s: Option<f64>,
    /// Tokens of all prompts over the time to the first token.
    pub prefill_tokens_per_s: f64,
    /// The same two times by the caller's clock, where those above are by the device's own.
    pub host_ttft_us: Option<f64>,
    pub host_tpot_us: Option<f64>,
    /// Mean power of a GPU in each phase, and tokens of all sequences over the energy; none where a phase was over too soon.
    pub prefill_power_w: Option<f64>,
    pub prefill_tokens_per_joule: Option<f64>,
    pub decode_power_w: Option<f64>,
    pub decode_tokens_per_joule: Option<f64>,
    /// What theory says, in the tier that was asked for; none where it speaks of other threads than ran.
    pub tier: Tier,
    pub basis: Option<Basis>,
    pub predicted_ttft_us: Option<f64>,
    pub ideal_ttft_us: Option<f64>,
    /// `|predicted - measured| / predicted`.
    pub ttft_error_pct: Option<f64>,
    pub predicted_tpot_us: Option<f64>,
    pub ideal_tpot_us: Option<f64>,
    pub tpot_error_pct: Option<f64>,
    /// The most memory that the program held, or what it took of the GPU's, where the system says, and what theory says of
    /// it.
    pub peak_memory_bytes: Option<Bytes>,
    pub predicted_memory_bytes: Option<Bytes>,
    pub weights_bytes: Bytes,
    pub cache_bytes: Bytes,
    /// Where the time goes: the kernels of each site of the model, in each phase. On a GPU they are of passes of their own,
    /// with a clock between kernels: their sum is more than the pass takes.
    pub operators: Vec<MeasuredOperator>,
}

/// The kernels of one site in one pass, together.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct MeasuredOperator {
    pub phase: Phase,
    pub site: &'static str,
    /// How often it ran.
    pub count: u64,
    /// The median over passes.
    pub measured_time_us: f64,
    pub predicted_time_us: Option<f64>,
    pub ideal_time_us: Option<f64>,
    /// Measured over predicted.
    pub ratio: Option<f64>,
}

/// What was finished.
pub(crate) struct Outcome {
    pub(crate) words: String,
    pub(crate) passes: Vec<MeasuredPass>,
    /// The kernels of the passes, as a comparison takes them.
    pub(crate) observations: Vec<Observation>,
    /// Whether somebody had enough before the last of them.
    pub(crate) stopped: bool,
    /// What ended it before the last of them.
    pub(crate) broken: Option<Broken>,
}

/// Runs every combination that was asked for; what is finished is kept whatever comes next.
pub(crate) fn run(
    context: &Context,
    passes: &Passes,
    asked: &ModelPass,
    run: &Measuring,
    executor: &Executor,
    machine: &Machine,
) -> Result<Outcome> {
    executor.is_meant(context, asked.setting.first(), &machine.device)?;
    executor.takes(&passes.numbers)?;
    let sources = sources(context, passes, asked, &machine.device)?;
    let batches = passes.batches.as_ref().map_or_else(|| vec![asked.batch.get()], |range| range.0.clone());
    let prompts = passes.prompt.as_ref().map_or_else(|| vec![PROMPT], |range| range.0.clone());
    let shapes: Vec<(u64, u64)> =
        batches.iter().flat_map(|batch| prompts.iter().map(|prompt| (*batch, *prompt))).collect();
    let names: Vec<String> = sources.iter().map(Source::words).collect();
    let mut work = Work {
        context,
        executor,
        machine,
        tier: spoken(asked.setting.tier, &machine.device),
        generate: asked.generate.map_or(GENERATED, Dim::get),
        effort: Effort { quick: run.quick, budget: run.seconds, energy: run.energy },
        total: sources.len() * shapes.len(),
        several: shapes.len() > 1,
        shapes,
        file: run.out.as_deref().map(create).transpose()?,
        during: String::new(),
        outcome: Outcome {
            words: names.join(" and "),
            passes: Vec::new(),
            observations: Vec::new(),
            stopped: false,
            broken: None,
        },
    };
    context.watcher().heeds();
    for source in &sources {
        work.during = source.words();
        match work.source(source, passes) {
            Ok(()) => {}
            Err(Error::Cancelled) if !work.outcome.passes.is_empty() => {
                work.outcome.stopped = true;
                break;
            }
            Err(error) if work.outcome.passes.is_empty() => return Err(executor.refused(error)),
            Err(error) => {
                work.outcome.broken = Some(Broken::new(work.during.as_str(), &executor.refused(error)));
                break;
            }
        }
        if work.outcome.stopped {
            break;
        }
    }
    context.watcher().ends();
    Ok(work.outcome)
}

/// A file for the passes, one line of JSON each.
fn create(path: &Path) -> Result<(PathBuf, File)> {
    if path.exists() {
        return Err(Error::Taken { path: path.to_owned(), hint: "name a new file by ⟨out⟩" });
    }
    writable(path)?;
    Ok((path.to_owned(), File::create_new(path).map_err(Error::file(path))?))
}

/// What is under way.
struct Work<'a> {
    context: &'a Context,
    executor: &'a Executor,
    machine: &'a Machine,
    tier: Tier,
    /// Batches with lengths of prompts.
    shapes: Vec<(u64, u64)>,
    several: bool,
    generate: u64,
    effort: Effort,
    total: usize,
    file: Option<(PathBuf, File)>,
    /// What is under way, in words.
    during: String,
    outcome: Outcome,
}

/// Whose passes they are.
struct Named<'a> {
    checkpoint: Option<&'a Path>,
    precision: String,
}

impl Work<'_> {
    /// Every pass of one checkpoint, or of one plan.
    fn source(&mut self, source: &Source, passes: &Passes) -> Result<()> {
        forget_peak();
        match source {
            Source::Checkpoint(path) => {
                let opened = Opened::open(self.context, path)?;
                let settings = passes.numbers.settings(self.context, &opened.usual(), self.executor)?;
                for (batch, length) in self.lengths() {
                    opened.fits(batch, length, &settings, self.executor)?;
                }
                let engine = opened.load(self.context, settings)?;
                self.every(&engine, &Named { checkpoint: Some(path), precision: format(self.context, &engine) })
            }
            Source::Random(model, plan) => {
                let settings = passes.numbers.settings(self.context, &sources::usual(plan), self.executor)?;
                let device = &self.machine.device;
                for shape in self.lengths() {
                    sources::fits(model, plan, device, shape, &settings, self.executor)?;
                }
                let engine = random(model, plan, settings)?;
                self.every(&engine, &Named { checkpoint: None, precision: plan.label() })
            }
        }
    }

    /// Sequences and their whole lengths.
    fn lengths(&self) -> impl Iterator<Item = (usize, usize)> {
        self.shapes.iter().map(|(batch, prompt)| (*batch as usize, (prompt + self.generate) as usize))
    }

    fn every(&mut self, engine: &Engine<'_>, named: &Named<'_>) -> Result<()> {
        // Reading the weights may take more than running them; each pass has a peak of its own beside that.
        let loading = peak_memory();
        for (batch, prompt) in self.shapes.clone() {
            let at = self.outcome.passes.len();
            let words = format!("{} {}, batch {batch}, prompt {prompt}", engine.model.name, named.precision);
            self.context.watcher().starts(at, self.total, &words);
            self.during = words;
            let pass =
                timing::Pass { batch: batch as usize, prompt: prompt as usize, generate: self.generate as usize };
            forget_peak();
            let timed = timed(engine, pass, self.effort, self.executor)?;
            let theory = Theory::of(engine, self.machine, &timed)?;
            let mut measured = self.told(engine, named, &timed, theory.as_ref());
            if !self.executor.is_gpu() {
                measured.peak_memory_bytes = loading.zip(peak_memory()).map(|(one, other)| one.max(other));
            }
            let label = if self.several {
                format!("{}, batch {batch}, prompt {prompt}", named.precision)
            } else {
                named.precision.clone()
            };
            self.outcome.observations.extend(timed.observations(&label));
            if let Some((path, file)) = &mut self.file {
                let line = serde_json::to_string(&measured).map_err(std::io::Error::from);
                line.and_then(|line| writeln!(file, "{line}")).map_err(Error::file(path.as_path()))?;
            }
            self.outcome.passes.push(measured);
            if timed.stopped {
                self.outcome.stopped = true;
                break;
            }
        }
        Ok(())
    }

    fn told(&self, engine: &Engine<'_>, named: &Named<'_>, timed: &Timed, theory: Option<&Theory>) -> MeasuredPass {
        let timing::Pass { batch, prompt, .. } = timed.pass;
        let tier = self.tier;
        let ttft = timed.first();
        let steps: Vec<Seconds> = timed.steps.iter().map(|step| step.time).collect();
        let others = Summary::of(&steps);
        let predicted_ttft = theory.map(|theory| theory.prefill.time(tier));
        let predicted_tpot = theory.map(|theory| theory.decode.time(tier)).filter(|_| others.is_some());
        let tpot = others.as_ref().map(|times| times.median);
        let Power { prefill, decode } = timed.power;
        MeasuredPass {
            model: engine.model.name.clone(),
            checkpoint: named.checkpoint.map(Path::to_owned),
            precision: named.precision.clone(),
            values: engine.settings.values.to_string(),
            kv: engine.settings.kv.to_string(),
            backend: self.executor.name,
            clock: timed.clock,
            threads: engine.settings.threads,
            batch: batch as u64,
            prompt: prompt as u64,
            generated: timed.generated(),
            load_s: engine.loading.value(),
            ttft_us: ttft.micros(),
            tpot_us: tpot.map(Seconds::micros),
            tpot_p95_us: others.as_ref().map(|times| times.p95.micros()),
            tokens_per_s: tpot.map(|time| batch as f64 / time.value()),
            prefill_tokens_per_s: (batch * prompt) as f64 / ttft.value(),
            host_ttft_us: timed.host(Phase::Prefill).map(Seconds::micros),
            host_tpot_us: timed.host(Phase::Decode).map(Seconds::micros),
            prefill_power_w: prefill.map(|drawn| drawn.power.value()),
            prefill_tokens_per_joule: prefill.map(|drawn| drawn.tokens_per_joule),
            decode_power_w: decode.map(|drawn| drawn.power.value()),
            decode_tokens_per_joule: decode.map(|drawn| drawn.tokens_per_joule),
            tier,
            basis: theory.map(|theory| theory.basis),
            predicted_ttft_us: predicted_ttft.map(Seconds::micros),
            ideal_ttft_us: theory.map(|theory| theory.prefill.time(Tier::Ideal).micros()),
            ttft_error_pct: predicted_ttft.map(|predicted| error_pct(predicted, ttft)),
            predicted_tpot_us: predicted_tpot.map(Seconds::micros),
            ideal_tpot_us: predicted_tpot.and(theory).map(|theory| theory.decode.time(Tier::Ideal).micros()),
            tpot_error_pct: predicted_tpot.zip(tpot).map(|(predicted, measured)| error_pct(predicted, measured)),
            peak_memory_bytes: timed.memory,
            predicted_memory_bytes: theory.map(|theory| theory.memory),
            weights_bytes: Bytes::new(engine.bytes() as f64),
            cache_bytes: timed.cache,
            operators: [Phase::Prefill, Phase::Decode]
                .into_iter()
                .flat_map(|phase| timed.operators(phase, theory.map(|theory| theory.sites(phase)), tier))
                .collect(),
        }
    }
}

/// A model of made-up weights.
fn random(model: &Model, plan: &Plan, settings: Settings) -> Result<Engine<'static>> {
    Ok(Engine::random(model.clone(), plan, settings)?)
}

#[cfg(test)]
mod tests;
