//! `roofline compare`: theory against measurement.

mod basis;
mod explanation;
mod import;
mod judged;
mod page;
mod picture;
mod row;
mod table;
mod text;
mod tour;

pub(crate) use self::judged::judged;

use std::path::{Path, PathBuf};

use roofline_core::{
    Device, Machine,
    compare::{Comparison, Gains, Observation, Pair, Pass, SlowKernel, SpeedupPair, Totals, compare as compared},
    measurement::Residency,
    predict::Tier,
};
use roofline_run::{Run, Skipped};
use serde::Serialize;

use self::{
    basis::{Basis, calibration},
    row::{Row, rows},
    tour::{squares, tour},
};
use super::{
    calibrate,
    runner::{Outcome, Runner, ready, writable},
    setting,
    subjects::{of_model, of_operator},
    this,
};
use crate::{
    cli::{CompareArgs, CompareSubject, RunArgs},
    config,
    failure::Failure,
    report::{Format, emit, style},
};

/// Predictions beside measurements.
#[derive(Serialize)]
pub(crate) struct Compared {
    subject: String,
    device: String,
    device_name: String,
    backend: Option<String>,
    residency: Option<Residency>,
    tier: Tier,
    stack: &'static str,
    comparisons: Vec<Row>,
    /// Whole passes, where kernels were counted as often as they run.
    passes: Vec<Pass>,
    speedups: Vec<SpeedupPair>,
    /// Each format against 16 bit, for one row and for many.
    gains: Vec<Gains>,
    /// Narrower formats that ran slower than a wider one.
    losses: Vec<SpeedupPair>,
    slow_kernels: Vec<SlowKernel>,
    summary: Totals,
    /// The verdict of the summary, in a sentence with its reasons.
    verdict: String,
    insight: Option<String>,
    /// What kernels that take a bad way on purpose show.
    demonstration: Option<String>,
    calibration: Option<Basis>,
    skipped: Vec<Skipped>,
    run: Option<PathBuf>,
    report: Option<PathBuf>,
    environment: serde_json::Value,
    #[serde(skip)]
    on: Device,
    #[serde(skip)]
    made_of: Vec<(String, String)>,
    #[serde(skip)]
    pairs: Vec<Pair>,
    /// Whether the text has everything.
    #[serde(skip)]
    unfolded: bool,
}

pub(crate) fn compare(args: &CompareArgs, form: Format) -> Result<(), Failure> {
    let compared = answer(args)?;
    emit(&compared, form)?;
    if let (Some(path), true) = (&compared.report, form != Format::Text) {
        style::talk("note", &format!("report: {}", path.display()));
    }
    Ok(())
}

/// The comparison, with its page written where it goes.
pub(crate) fn answer(args: &CompareArgs) -> Result<Compared, Failure> {
    let compared = if let Some(path) = &args.measured {
        imported(args, path)?
    } else if let Some(path) = &args.from {
        from_run(args, path)?
    } else {
        fresh(args)?
    };
    let mut compared = Compared { unfolded: args.unfolded, ..compared };
    let written = compared.report.as_ref().map(|path| config::replace(path, page::page(&compared).as_bytes()));
    // The answer was measured; that its page cannot be kept must not cost it.
    if let Some(Err(failure)) = written {
        style::talk("warning", &format!("the report is not written: {}", failure.message()));
        compared.report = None;
    }
    Ok(compared)
}

/// The tier that is judged.
fn tier(args: &CompareArgs) -> Tier {
    let asked = match &args.subject {
        Some(CompareSubject::Operator(subject)) => subject.setting().tier,
        Some(CompareSubject::Model(args)) => args.setting.tier,
        Some(CompareSubject::Sizes(args)) => args.setting.tier,
        None => args.tier,
    };
    asked.map_or(Tier::Expected, Tier::from)
}

/// Measures, then compares.
fn fresh(args: &CompareArgs) -> Result<Compared, Failure> {
    let on = match &args.subject {
        Some(CompareSubject::Operator(subject)) => subject.setting().first(),
        Some(CompareSubject::Model(args)) => args.setting.first(),
        Some(CompareSubject::Sizes(args)) => args.setting.first(),
        None => args.on.as_deref(),
    };
    new_report(args)?;
    ready(&args.run, "compare")?;
    let calibration = calibration(args, on)?;
    let mut runner = Runner::start(&args.run, on, "compare")?;
    let device = runner.device().clone();
    let subjects = match &args.subject {
        Some(CompareSubject::Operator(subject)) => of_operator(subject, &device)?,
        Some(CompareSubject::Model(args)) => of_model(args, &device)?,
        Some(CompareSubject::Sizes(args)) => squares(args, &device)?,
        None => tour(&args.precision, &device, args.run.quick, runner.backend.name() != "null")?,
    };
    let Outcome { measured, skipped } = runner.measure(&subjects.all)?.nonempty()?;
    let observations: Vec<Observation> = measured.iter().map(Observation::from).collect();
    let machine = calibrate::machine(device, runner.backend.name()).calibrated(calibration);
    let comparison = compared(&observations, &machine, tier(args))?;
    let report = args.report.clone().unwrap_or_else(|| beside(runner.path()));
    let environment = serde_json::to_value(&runner.environment).map_err(std::io::Error::from)?;
    let mut compared = Compared::new(subjects.words, &machine, comparison);
    compared.backend = Some(runner.backend.name().to_owned());
    compared.residency = Some(runner.protocol.residency);
    compared.count_missing(&skipped, 0);
    compared.skipped = skipped;
    compared.run = Some(runner.path().to_owned());
    compared.report = Some(report);
    compared.environment = environment;
    compared.made_of = if runner.backend.name() == "cpu" { this::facts()? } else { runner.backend.facts() };
    Ok(compared)
}

/// Compares a run that is on disk.
fn from_run(args: &CompareArgs, path: &Path) -> Result<Compared, Failure> {
    new_report(args)?;
    nothing_measured(&args.run, "--from")?;
    if args.subject.is_some() {
        return Err(Failure::usage("a run has its own subjects", "leave out the subject, or leave out --from"));
    }
    let run = Run::read(path)?;
    let unfinished = run.unfinished();
    if run.truncated || unfinished > 0 {
        let rest = if unfinished > 0 { format!(", {unfinished} kernels are missing") } else { String::new() };
        style::talk("note", &format!("the run was interrupted after {} kernels{rest}", run.measurements.len()));
    }
    let device = match &args.on {
        Some(on) => setting::device(&config::registry(), on)?,
        None => device_of(&run)?,
    };
    let observations: Vec<Observation> = run.measurements.iter().map(Observation::from).collect();
    let machine = calibrate::machine(device.clone(), &run.header.backend);
    let comparison = compared(&observations, &machine, tier(args))?;
    let elsewhere = if device.label() == run.header.device {
        String::new()
    } else {
        format!(", measured on {} and judged as {}", run.header.device, device.label())
    };
    let words = format!("{}, started {}{elsewhere}", path.display(), run.header.started);
    let mut compared = Compared::new(words, &machine, comparison);
    compared.backend = Some(run.header.backend);
    let residency = run.measurements.first().map(|first| first.residency);
    compared.residency = residency.filter(|one| run.measurements.iter().all(|other| other.residency == *one));
    compared.count_missing(&run.skipped, unfinished);
    compared.skipped = run.skipped;
    compared.run = Some(path.to_owned());
    compared.report.clone_from(&args.report);
    compared.environment = run.header.environment;
    Ok(compared)
}

/// Compares somebody else's measurements.
fn imported(args: &CompareArgs, path: &Path) -> Result<Compared, Failure> {
    new_report(args)?;
    nothing_measured(&args.run, "--measured")?;
    if args.subject.is_some() {
        return Err(Failure::usage("a file has its own subjects", "leave out the subject, or leave out --measured"));
    }
    let on = args.on.as_deref().unwrap_or_default();
    let device = setting::device(&config::registry(), on)?;
    let observations = import::read(path, &device)?;
    let machine = calibrate::machine(device.clone(), "");
    let comparison = compared(&observations, &machine, tier(args))?;
    let mut compared = Compared::new(path.display().to_string(), &machine, comparison);
    compared.report.clone_from(&args.report);
    Ok(compared)
}

/// The device that a run was made on: its own description, else the registry's.
pub(super) fn device_of(run: &Run) -> Result<Device, Failure> {
    match &run.header.device_toml {
        Some(text) => Ok(Device::from_toml(text, &run.header.device)?),
        None => setting::device(&config::registry(), &run.header.device),
    }
}

impl Compared {
    /// Notes what the passes are without: what could not be measured, and what an interrupted run did not come to, which may
    /// belong to any of them.
    fn count_missing(&mut self, skipped: &[Skipped], unfinished: u64) {
        for pass in &mut self.passes {
            let own =
                skipped.iter().filter(|one| one.precision == pass.precision && one.phase == pass.phase).count() as u64;
            pass.missing = own + unfinished;
        }
    }

    fn new(subject: String, machine: &Machine, comparison: Comparison) -> Self {
        let (device, calibration) = (&machine.device, machine.calibration());
        let Comparison { pairs, passes, speedups, gains, losses, slow, totals, verdict, insight, demonstration } =
            comparison;
        let expected = pairs.iter().any(|pair| pair.expected.is_some());
        Self {
            subject,
            device: device.label(),
            device_name: device.name.clone(),
            backend: None,
            residency: None,
            tier: if expected { Tier::Expected } else { Tier::Ideal },
            stack: machine.stack.name(),
            comparisons: rows(&pairs, machine),
            passes,
            speedups,
            gains,
            losses,
            slow_kernels: slow,
            summary: totals,
            verdict,
            insight,
            demonstration,
            calibration: calibration.map(Basis::of),
            skipped: Vec::new(),
            run: None,
            report: None,
            environment: serde_json::Value::Null,
            on: device.clone(),
            made_of: Vec::new(),
            pairs,
            unfolded: false,
        }
    }
}

/// What says how to measure, where nothing is measured, would be ignored.
fn nothing_measured(args: &RunArgs, flag: &str) -> Result<(), Failure> {
    let RunArgs { warm, quick, seconds, energy, out, resume, .. } = args;
    let given = [
        ("--warm", *warm),
        ("--quick", *quick),
        ("--seconds", seconds.is_some()),
        ("--energy", *energy),
        ("--out", out.is_some()),
        ("--resume", *resume),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((name, _)) => {
            let hint = format!("leave out {name}, or leave out {flag}");
            Err(Failure::usage(format!("{name} says how to measure, and {flag} measures nothing"), hint))
        }
        None => Ok(()),
    }
}

/// A report goes to a new file that can be written, or nowhere. Without a name it lies beside the run; a run that goes on has
/// one already, and it is made anew.
fn new_report(args: &CompareArgs) -> Result<(), Failure> {
    let beside = args.run.out.as_deref().filter(|_| !args.run.resume).map(beside);
    let Some(path) = args.report.as_ref().or(beside.as_ref()) else { return Ok(()) };
    if path.exists() || Some(path) == args.run.out.as_ref() {
        return Err(Failure::usage(format!("{} is there already", path.display()), "name a new file by --report"));
    }
    writable(path)
}

/// The report of a run, beside it.
fn beside(run: &Path) -> PathBuf {
    let mut name = run.file_stem().unwrap_or_default().to_owned();
    name.push(if run.extension().is_some_and(|end| end == "html") { ".report.html" } else { ".html" });
    run.with_file_name(name)
}
