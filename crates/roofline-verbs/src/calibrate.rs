//! What a machine really does: fits the expected tier to it, and says how good the fit is.

mod cpu_grid;
mod draw;
mod gpu_grid;
mod published;
mod shapes;
mod terms;
mod timings;
mod validate;
mod whole;

pub use published::{
    AboveFloor, PhaseErrors, PublishedFit, Reached, SkippedSpeeds, SpeedErrors, SpeedGroup, SpeedsChecked,
};
pub use terms::{Calibrated, Term};
pub use timings::{Checked, ErrorsOfGroup, SkippedDevice, Timed, TimingErrors};
pub use validate::{ErrorsOf, Validation, WorstKernel};

use std::path::PathBuf;

use clap::Args;
use roofline_core::{
    Device,
    calibration::{Calibration, Sample, Spread, fit},
    device::Kind,
    machine::Stack,
    measurement::{Measurement, Path, Residency, Subject},
    units::Seconds,
};
use roofline_run::{Run, thin_rows};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Context, Error, Note, Result, gpu,
    machine::{calibration, calibration_name},
    measure::device_of,
    request::{BackendName, Measuring, STACKS, one_of},
    runner::Runner,
};

/// Kernels that are measured twice, to know how well the machine repeats itself.
const REPEATS: usize = 12;
/// Most shapes of a validation.
const SHAPES: usize = 10_000;

/// What is to be done about a calibration.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
#[command(after_help = HELP)]
#[schemars(rename = "CalibrateRequest")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct Request {
    /// Show the calibration in use; nothing is measured
    #[arg(long)]
    #[serde(default)]
    pub show: bool,
    /// Remove the calibration in use
    #[arg(long)]
    #[serde(default)]
    pub forget: bool,
    /// Fit to a run that is on disk, or to files of timings that somebody made elsewhere (CSV)
    #[arg(long, value_name = "FILE", num_args = 1..)]
    #[serde(default)]
    #[schemars(extend("x-local" = true))]
    pub from: Vec<PathBuf>,
    /// Find what lies between kernels of a pass from models that ran whole: answers of `measure model --backend cuda --json`, or
    /// its --out
    #[arg(long, value_name = "FILE", num_args = 1..)]
    #[serde(default)]
    #[schemars(extend("x-local" = true))]
    pub whole: Vec<PathBuf>,
    /// Say how far forecasts are from a file of timings, or of published speeds; nothing is fitted
    #[arg(long, value_name = "FILE")]
    #[schemars(extend("x-local" = true))]
    pub check: Option<PathBuf>,
    /// Fit what runtimes reach of their devices to speeds of whole models (CSV), or go back to what ships (`builtin`)
    #[arg(long, value_name = "FILE")]
    #[schemars(extend("x-local" = true))]
    pub published: Option<PathBuf>,
    /// Say it as if the device had never been timed: by what was timed on the most similar other one
    #[arg(long, requires = "check")]
    #[serde(default)]
    pub transfer: bool,
    /// Leave out the correction that is made where terms explain too little
    #[arg(long)]
    #[serde(default)]
    pub plain: bool,
    /// Write calibrations as TOML files, as they ship, into this folder; those of timings are not kept
    #[arg(long, value_name = "FOLDER")]
    #[schemars(extend("x-local" = true))]
    pub write: Option<PathBuf>,
    /// Write every timing beside what terms fitted to other shapes say of it, and what each term adds (CSV)
    #[arg(long, value_name = "FILE", requires = "from")]
    #[schemars(extend("x-local" = true))]
    pub rows: Option<PathBuf>,
    /// Where timings come from, for the calibration to say
    #[arg(long, value_name = "TEXT")]
    pub source: Option<String>,
    /// The licence of timings, for the calibration to say
    #[arg(long, value_name = "TEXT")]
    pub licence: Option<String>,
    /// Measure so many random shapes that the grid does not have, and say how far the calibration in use is from them
    #[arg(long, value_name = "COUNT", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=SHAPES as u64))]
    #[schemars(range(min = 1, max = 10_000))]
    pub validate: Option<usize>,
    /// Which random shapes; those of 1 when left out
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// The device, where it is not this machine
    #[arg(long, value_name = "DEVICE")]
    pub on: Option<String>,
    /// Whose kernels, where they are not ours: what is shown or forgotten is theirs
    #[arg(long, value_parser = one_of::<Stack>(STACKS))]
    pub stack: Option<Stack>,
    #[command(flatten)]
    #[serde(flatten)]
    pub run: Measuring,
}

const HELP: &str = "\
Measures a grid of kernels, fits the terms of the expected tier to them, states the error on shapes that were left out
of a first fit, and keeps the result: from then on `predict` shows what to expect of this machine beside the ideal.

Examples:
  roofline calibrate
  roofline calibrate --quick
  roofline calibrate --show                            the terms in use, and how good they are
  roofline calibrate --show --on m2_ultra --stack mlx  what a runtime reaches of a device, by published speeds
  roofline calibrate --from run.jsonl                  fit again, without measuring
  roofline calibrate --whole passes.json               what lies between the kernels of a pass
  roofline calibrate --from gemm.csv --on h200         fit to timings of serving stacks, cross-validated
  roofline calibrate --check gemm.csv --json           how far the calibrations in use are from them
  roofline calibrate --published speeds.csv            fit runtimes to speeds of whole models, devices left out in turn
  roofline calibrate --check speeds.csv --json         how far forecasts of whole models are from such speeds
  roofline calibrate --validate 300                    how far it is from random shapes";

/// What came of it.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "CalibrateAnswer")]
pub enum Answer {
    /// The terms, and how good they are.
    Calibrated(Box<Calibrated>),
    /// How far they are from shapes they never saw.
    Validated(Box<Validation>),
    /// What timings of others gave.
    Timed(Box<Timed>),
    /// How far calibrations are from timings of others.
    Checked(Box<Checked>),
    /// What published speeds gave.
    Published(Box<PublishedFit>),
    /// How far forecasts are from published speeds.
    SpeedsChecked(Box<SpeedsChecked>),
    /// What a runtime reaches of a device.
    Reached(Box<Reached>),
    /// There was one, and it is gone.
    Forgotten { forgotten: String, notes: Vec<Note> },
}

/// Measures, fits and keeps; or shows, forgets, or proves what is kept.
pub fn calibrate(context: &Context, request: &Request) -> Result<Answer> {
    refuse_two(request)?;
    if request.show || request.forget {
        return kept(context, request);
    }
    if let Some(path) = &request.check {
        let header = timings::header(path)?;
        if published::is_speeds(&header) {
            return Ok(Answer::SpeedsChecked(Box::new(published::check(context, path)?)));
        }
        if !timings::is_timings(&header) {
            let message = format!("{}: neither timings of kernels nor speeds of models", path.display());
            return Err(Error::request(message, "timings have a column `latency_us`, speeds one `tokens_per_s`"));
        }
        let scoring = timings::Scoring { corrected: !request.plain, left_out: request.transfer };
        return Ok(Answer::Checked(Box::new(timings::check(context, path, scoring)?)));
    }
    if let Some(path) = &request.published {
        if path.as_os_str() == "builtin" {
            published::forget(context)?;
            context.note("published speeds are those that ship with roofline");
            return Ok(Answer::Forgotten { forgotten: "published speeds".to_owned(), notes: context.notes() });
        }
        return Ok(Answer::Published(Box::new(published::fit(context, request, path)?)));
    }
    if let Some(first) = request.from.first() {
        let of_timings = |path: &PathBuf| timings::header(path).is_ok_and(|header| timings::is_timings(&header));
        if request.from.iter().all(of_timings) {
            return Ok(Answer::Timed(Box::new(timings::fit(context, request)?)));
        }
        if request.from.len() > 1 {
            let message = format!("{} and others are not all files of timings", first.display());
            return Err(Error::request(message, "a run on disk is fitted alone"));
        }
    }
    if !request.whole.is_empty() {
        let (calibration, device) = whole::fit(context, request, &request.whole)?;
        return told(context, request, calibration, &device);
    }
    if let Some(count) = request.validate {
        if !(1..=SHAPES).contains(&count) {
            return Err(Error::request(format!("{count} shapes"), format!("from 1 to {SHAPES}")));
        }
        return Ok(Answer::Validated(Box::new(validate::validate(context, request, count)?)));
    }
    if request.run.warm {
        let hint = "leave out ⟨warm⟩: a model finds its weights in memory";
        return Err(Error::request("the expected tier is of operands in memory", hint));
    }
    let (calibration, device) = if let Some(path) = request.from.first() {
        let run = Run::read(path)?;
        let device = request.on.as_deref().map_or_else(|| device_of(context, &run), |on| context.device(on))?;
        let provenance = format!("{}, {} backend, {}", run.header.started, run.header.backend, path.display());
        let (once, stack) = (|_: &Measurement| None, BackendName::of_run(&run.header.backend).stack());
        (fitted(&run.measurements, &once, &device, stack, provenance, Spread::default())?, device)
    } else {
        context.home().can_keep("calibrations")?;
        let mut runner = Runner::start(context, &request.run, request.on.as_deref(), "calibrate")?;
        (measured(&mut runner, &request.run)?, runner.device().clone())
    };
    if calibration.has_gaps() {
        context
            .note("what lies between kernels of a pass is not in it yet: `⟨roofline calibrate --whole FILE⟩` adds it");
    }
    let path = keep(context, &calibration, &device)?;
    let fake = if calibration.stack == "null" { " --stack null" } else { "" };
    context.note(format!("kept in {}; `⟨roofline predict --on {}{fake}⟩` uses it", path.display(), device.label()));
    told(context, request, calibration, &device)
}

/// The terms as an answer, and as a file where one was asked for.
fn told(context: &Context, asked: &Request, calibration: Calibration, device: &Device) -> Result<Answer> {
    if let Some(folder) = &asked.write {
        timings::write(context, &calibration, folder)?;
    }
    Ok(Answer::Calibrated(Box::new(Calibrated { notes: context.notes(), ..Calibrated::new(calibration, device) })))
}

/// One thing at a time.
fn refuse_two(asked: &Request) -> Result<()> {
    let given = [
        ("show", asked.show),
        ("forget", asked.forget),
        ("from", !asked.from.is_empty()),
        ("whole", !asked.whole.is_empty()),
        ("check", asked.check.is_some()),
        ("published", asked.published.is_some()),
        ("validate", asked.validate.is_some()),
    ];
    let given: Vec<&str> = given.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect();
    match given[..] {
        [one, other, ..] => Err(Error::request(format!("⟨{one}⟩ and ⟨{other}⟩ are two questions"), "ask one of them")),
        _ if asked.stack.is_some() && !asked.show && !asked.forget => {
            Err(Error::request("⟨stack⟩ says whose calibration is shown or forgotten", "say ⟨show⟩ as well"))
        }
        _ if asked.seed.is_some() && asked.validate.is_none() => {
            Err(Error::request("⟨seed⟩ says which random shapes, and none are asked for", "say ⟨validate 300⟩ as well"))
        }
        ["validate"] if asked.run.warm => {
            Err(Error::request("the expected tier is of operands in memory", "leave out ⟨warm⟩"))
        }
        _ => Ok(()),
    }
}

/// The calibration in use, shown or forgotten.
fn kept(context: &Context, asked: &Request) -> Result<Answer> {
    let backend = asked.run.backend();
    let device = match asked.on.as_deref() {
        None if backend == BackendName::Cuda => gpu::device(context, asked.run.gpu)?,
        on => context.device(on.unwrap_or("this"))?,
    };
    let stack = asked.stack.unwrap_or(backend.stack());
    let missing = || {
        let message = format!("there is no calibration of {} ({})", device.name, device.key);
        Error::request(message, "`⟨roofline calibrate⟩` makes one")
    };
    if asked.forget {
        if !context.home().forget("calibrations", &calibration_name(&device, stack))? {
            return Err(missing());
        }
        context.note("forgotten");
        return Ok(Answer::Forgotten { forgotten: device.label(), notes: context.notes() });
    }
    match calibration(context, &device, stack) {
        Some(calibration) => told(context, asked, calibration.into_owned(), &device),
        None if asked.stack.is_some() => Ok(Answer::Reached(Box::new(published::reached(context, &device, stack)))),
        None => Err(missing()),
    }
}

/// Keeps a calibration for its device and stack.
pub(crate) fn keep(context: &Context, calibration: &Calibration, device: &Device) -> Result<PathBuf> {
    context.home().keep("calibrations", &format!("{}.{}", device.label(), calibration.stack), calibration)
}

/// A short calibration for somebody who has none, in a run of its own, and kept.
pub(crate) fn short(context: &Context, run: &Measuring, device: &Device) -> Result<Calibration> {
    context.home().can_keep("calibrations")?;
    context.note("this machine is not calibrated yet: a short calibration comes first");
    let short = Measuring { quick: true, energy: false, out: None, resume: false, ..run.clone() };
    let calibration = measured(&mut Runner::start(context, &short, None, "calibrate")?, &short)?;
    keep(context, &calibration, device)?;
    if calibration.quality.doubtful() {
        let off = calibration.quality.mean * 100.0;
        context.warn(format!(
            "the short calibration is off by {off:.0} % on shapes it never saw, so it can carry no verdict: close other \
             programs and run `⟨roofline calibrate⟩`, which measures longer"
        ));
    }
    Ok(calibration)
}

/// Measures the grid and fits to it. Kernels are measured again at the end: that is how far the machine itself is from one
/// time to the next. Where there is time, a processor's are all measured twice, a minute apart, and fitted to the middle of
/// both: what neighbours take away, they take for seconds. Where there is none, those are measured again that were disturbed.
pub(crate) fn measured(runner: &mut Runner<'_>, args: &Measuring) -> Result<Calibration> {
    let (context, quick, chosen) = (runner.context, args.quick, args.seconds.is_some());
    let device = runner.device().clone();
    let subjects = if in_blocks(&device) {
        gpu_grid::gpu(context, &device, quick)?
    } else {
        cpu_grid::grid(context, &device, quick)?
    };
    let quiet = runner.protocol;
    if !chosen {
        runner.protocol.stop = roofline_run::Protocol::quick().stop;
    }
    let mut outcome = runner.measure(&subjects)?;
    if quick {
        runner.settle(&mut outcome, "calibration")?;
    }
    let every = if in_blocks(&device) || quick { (subjects.len() / REPEATS).max(1) } else { 1 };
    let twice: Vec<Subject> = subjects.iter().step_by(every).cloned().collect();
    let again = runner.repeat(&twice);
    let (residency, name) = (runner.protocol.residency, runner.backend.name());
    let find = |all: &[Measurement], subject: &Subject| {
        all.iter().find(|one| one.repeats(subject, residency, name)).map(|one| one.time().value())
    };
    let pair = |subject: &Subject| Some((find(&outcome.measured, subject)?, find(&again, subject)?));
    let spread = Spread::of(&twice.iter().filter_map(pair).collect::<Vec<_>>());
    let second = |one: &Measurement| again.iter().find(|other| same(one, other));
    runner.protocol = quiet;
    fitted(&outcome.measured, &second, &device, runner.kind.stack(), runner.provenance(), spread)
}

/// The geometric mean of two measurements of a kernel; the faster where others had the machine, who only ever slow it down.
fn middle(first: &Measurement, second: &Measurement) -> Seconds {
    if first.is_disturbed() || second.is_disturbed() {
        return first.time().min(second.time());
    }
    Seconds::new((first.time().value() * second.time().value()).sqrt())
}

/// Whether two measurements are of one kernel.
fn same(one: &Measurement, other: &Measurement) -> bool {
    (one.op, one.formats, one.kernel.path) == (other.op, other.formats, other.kernel.path)
}

/// Fits to measurements, and where one was made a second time, to the middle of both.
fn fitted<'a>(
    measured: &[Measurement],
    second: &dyn Fn(&Measurement) -> Option<&'a Measurement>,
    device: &Device,
    stack: Stack,
    provenance: String,
    spread: Spread,
) -> Result<Calibration> {
    let sample = |measured: &Measurement| {
        let time = second(measured).map_or_else(|| measured.time(), |second| middle(measured, second));
        Sample { time, ..Sample::of(measured) }
    };
    // The expected tier is of operands in memory, and of kernels that nobody would call naive.
    let usual = |one: &&Measurement| one.kernel.path != Path::CastEmulated && one.residency == Residency::Cold;
    let samples: Vec<Sample> = measured.iter().filter(usual).map(sample).collect();
    Ok(fit(&samples, device, stack.name(), provenance, thin_rows(device), spread)?)
}

/// Whether a machine runs kernels in blocks, which need a wider grid to be known.
fn in_blocks(device: &Device) -> bool {
    matches!(device.kind, Kind::Gpu | Kind::Soc)
}

#[cfg(test)]
mod tests;
