//! `roofline compare`: theory against measurement.

mod import;
mod page;
mod table;

pub(crate) use import::spelled;

use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

use roofline_core::{
    Device, Dim, Graph,
    calibration::{Calibration, Quality},
    compare::{Comparison, Diagnosis, Observation, Pair, SpeedupPair, Status, Totals, compare as compared},
    device::Kind,
    format::Sizes,
    measurement::{Path as KernelPath, Residency, Subject as Measurable, Warning},
    op::{Attention, Cache},
    precision::PrecisionSpec,
    units::{Bytes, Flops},
};
use roofline_run::{Run, Skipped};
use serde::Serialize;

use super::{
    calibrate, gpu,
    range::range,
    runner::{Outcome, Runner, ready, writable},
    setting::{self, Varies, precisions},
    subjects::{Subjects, at_precisions, of_model, of_operator, refuse_theory},
    this,
};
use crate::{
    cli::{BackendArg, CompareArgs, CompareSubject, RunArgs, SquaresArgs},
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
    tier: &'static str,
    stack: Option<String>,
    comparisons: Vec<Row>,
    /// Whole passes, where kernels were counted as often as they run.
    passes: Vec<Pass>,
    speedups: Vec<SpeedupPair>,
    summary: Totals,
    insight: Option<String>,
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
}

/// What the expected tier rests on.
#[derive(Serialize)]
struct Basis {
    provenance: String,
    quality: Quality,
}

#[derive(Serialize)]
struct Row {
    site: String,
    shape: String,
    precision: String,
    count: u64,
    tier: &'static str,
    predicted_time_us: f64,
    ideal_time_us: f64,
    lo_us: Option<f64>,
    hi_us: Option<f64>,
    measured_time_us: f64,
    p5_us: Option<f64>,
    p95_us: Option<f64>,
    error_pct: f64,
    signed_pct: f64,
    error_vs_measured_pct: f64,
    ideal_error_pct: f64,
    ratio: f64,
    /// Ideal over measured: the share of the roof that was reached.
    efficiency: f64,
    status: Status,
    bottleneck: String,
    flops: Flops,
    bytes: Bytes,
    moved: Bytes,
    ai: f64,
    critical_ai: f64,
    predicted_tflops: f64,
    measured_tflops: f64,
    measured_bandwidth_gb_s: f64,
    kernel: Option<String>,
    kernel_path: Option<KernelPath>,
    residency: Option<Residency>,
    warnings: Vec<Warning>,
    diagnoses: Vec<Explained>,
}

#[derive(Serialize)]
struct Explained {
    #[serde(flatten)]
    diagnosis: Diagnosis,
    text: String,
}

/// A pass of a model at one precision.
#[derive(Serialize)]
struct Pass {
    precision: String,
    kernels: u64,
    /// Kinds of kernels that were not measured: the sums are without them.
    missing: u64,
    /// Kernels whose predicted time is the ideal one, because no calibration covers them.
    ideal_kernels: u64,
    ideal_time_us: f64,
    predicted_time_us: f64,
    measured_time_us: f64,
    error_pct: f64,
}

impl Pass {
    /// Whether its predicted time is a sum of expected and of ideal ones.
    fn mixed(&self) -> bool {
        self.ideal_kernels > 0 && self.ideal_kernels < self.kernels
    }
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
    let mut compared = compared;
    let written = compared.report.as_ref().map(|path| config::replace(path, page::page(&compared).as_bytes()));
    // The answer was measured; that its page cannot be kept must not cost it.
    if let Some(Err(failure)) = written {
        style::talk("warning", &format!("the report is not written: {}", failure.message()));
        compared.report = None;
    }
    Ok(compared)
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
    let comparison = compared(&observations, &device, calibration.as_deref(), Sizes::Exact)?;
    let report = args.report.clone().unwrap_or_else(|| beside(runner.path()));
    let environment = serde_json::to_value(&runner.environment).map_err(std::io::Error::from)?;
    let mut compared = Compared::new(subjects.words, &device, calibration.as_deref(), comparison);
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
    let calibration = calibrate::stored(&device, calibrate::stack(&run.header.backend));
    let comparison = compared(&observations, &device, calibration.as_deref(), Sizes::Exact)?;
    let elsewhere = if device.label() == run.header.device {
        String::new()
    } else {
        format!(", measured on {} and judged as {}", run.header.device, device.label())
    };
    let words = format!("{}, started {}{elsewhere}", path.display(), run.header.started);
    let mut compared = Compared::new(words, &device, calibration.as_deref(), comparison);
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
    // Whose kernels ran is not known, so no calibration speaks of them.
    let comparison = compared(&observations, &device, None, Sizes::Exact)?;
    let mut compared = Compared::new(path.display().to_string(), &device, None, comparison);
    compared.report.clone_from(&args.report);
    Ok(compared)
}

/// Measurements in the form of a benchmark script, as an answer to whoever sent them.
#[derive(Serialize)]
pub(crate) struct Judged {
    hardware: String,
    results: Vec<Row>,
    summary: Summary,
}

#[derive(Serialize)]
struct Summary {
    mean_error_pct: f64,
    max_error_pct: f64,
    num_benchmarks: usize,
    verdict: String,
}

/// Compares measurements in JSON with the ideal roofline of `device`.
pub(crate) fn judged(text: &str, device: &Device) -> Result<Judged, Failure> {
    let observations = import::parse(text, device)?;
    let Comparison { pairs, totals, .. } = compared(&observations, device, None, Sizes::Exact)?;
    let tenth = |value: f64| (value * 10.0).round() / 10.0;
    let mut results: Vec<Row> = pairs.iter().map(row).collect();
    for row in &mut results {
        row.error_pct = tenth(row.error_pct);
    }
    let summary = Summary {
        mean_error_pct: tenth(totals.mean_error_pct),
        max_error_pct: tenth(totals.max_error_pct),
        num_benchmarks: totals.count,
        verdict: totals.verdict.to_string(),
    };
    Ok(Judged { hardware: device.name.clone(), results, summary })
}

/// The device that a run was made on: its own description, else the registry's.
pub(super) fn device_of(run: &Run) -> Result<Device, Failure> {
    match &run.header.device_toml {
        Some(text) => Ok(Device::from_toml(text, &run.header.device)?),
        None => setting::device(&config::registry(), &run.header.device),
    }
}

/// Square matrix-vector products from small to large.
fn squares(args: &SquaresArgs, device: &Device) -> Result<Subjects, Failure> {
    refuse_theory(&args.setting)?;
    let names =
        if args.setting.precision.is_empty() { vec!["fp32".to_owned()] } else { args.setting.precision.clone() };
    let specs = precisions(&names, Varies::Product(None), device)?;
    let mut all = Vec::new();
    for side in range("n", &args.n)? {
        all.extend(at_precisions(&Graph::gemv(side, side)?, &specs, device)?);
    }
    Ok(Subjects { words: "square matrix-vector products".to_owned(), all })
}

/// What a newcomer sees: products from decode to prefill, attention, and what not to do.
fn tour(names: &[String], device: &Device, quick: bool, cast: bool) -> Result<Subjects, Failure> {
    let specs = precisions(names, Varies::Product(None), device)?;
    let native = |spec: &&PrecisionSpec| spec.on(device).is_ok_and(|formats| formats.weights == formats.activations);
    let native: Vec<PrecisionSpec> = specs.iter().filter(native).cloned().collect();
    let gpu = matches!(device.kind, Kind::Gpu | Kind::Soc);
    // A processor fills at a size where a GPU has hardly started; above 16 rows what is stored narrow has no kernel there.
    let shapes: &[(u64, u64)] = match (gpu, quick) {
        (false, true) => &[(1, 4096), (128, 4096)],
        (false, false) => &[(1, 4096), (8, 4096), (128, 4096), (1024, 4096)],
        (true, true) => &[(1, 4096), (1, 28_672), (2048, 4096)],
        (true, false) => &[(1, 4096), (1, 28_672), (16, 4096), (128, 4096), (4096, 4096)],
    };
    let mut all = Vec::new();
    for (m, n) in shapes {
        let specs = if gpu && *m > 16 { &native } else { &specs };
        all.extend(at_precisions(&Graph::gemm(*m, *n, 4096)?, specs, device)?);
    }
    let narrow = all.iter().find(|subject| subject.precision == "w8a16").cloned();
    all.extend(narrow.filter(|_| cast).map(|subject| Measurable { cast: true, ..subject }));
    let dim = |value| Dim::new("attention", value);
    let attention = Attention {
        batch: Dim::ONE,
        heads: dim(32)?,
        kv_heads: dim(8)?,
        head_dim: dim(128)?,
        value_dim: dim(128)?,
        queries: Dim::ONE,
        context: dim(8192)?,
        causal: true,
        window: None,
        cache: Cache::Separate,
    };
    let wide: Vec<_> = specs.iter().filter(|spec| matches!(spec.name(), "fp32" | "bf16" | "fp16")).cloned().collect();
    if !wide.is_empty() {
        all.extend(at_precisions(&Graph::attention(attention, true), &wide, device)?);
    }
    Ok(Subjects { words: "A tour".to_owned(), all })
}

impl Compared {
    /// Notes what the passes are without: what could not be measured, and what an interrupted run did not come to, which may
    /// belong to any of them.
    fn count_missing(&mut self, skipped: &[Skipped], unfinished: u64) {
        for pass in &mut self.passes {
            let own = skipped.iter().filter(|one| one.precision == pass.precision).count() as u64;
            pass.missing = own + unfinished;
        }
    }

    fn new(subject: String, device: &Device, calibration: Option<&Calibration>, comparison: Comparison) -> Self {
        let Comparison { pairs, speedups, totals, insight } = comparison;
        let expected = pairs.iter().any(|pair| pair.expected.is_some());
        Self {
            subject,
            device: device.label(),
            device_name: device.name.clone(),
            backend: None,
            residency: None,
            tier: tier(expected),
            stack: calibration.map(|calibration| calibration.stack.clone()),
            comparisons: pairs.iter().map(row).collect(),
            passes: passes(&pairs),
            speedups,
            summary: totals,
            insight,
            calibration: calibration.map(|calibration| Basis {
                provenance: calibration.provenance.clone(),
                quality: calibration.quality.clone(),
            }),
            skipped: Vec::new(),
            run: None,
            report: None,
            environment: serde_json::Value::Null,
            on: device.clone(),
            made_of: Vec::new(),
            pairs,
        }
    }
}

/// The expected tier of what is about to be measured. A newcomer gets one, too: before the tour or a model comes a short
/// calibration, in a run of its own, so that both are measured afresh.
fn calibration(args: &CompareArgs, on: Option<&str>) -> Result<Option<Cow<'static, Calibration>>, Failure> {
    let (backend, seconds) = (args.run.backend(), args.run.seconds);
    let device = match (backend, on) {
        (BackendArg::Cpu, None | Some("this")) => this::device()?,
        (BackendArg::Null, Some(on)) => setting::device(&config::registry(), on)?,
        (BackendArg::Cuda, _) => gpu::device(args.run.gpu)?,
        // What cannot run is said by whoever tries.
        _ => return Ok(None),
    };
    let stack = if backend == BackendArg::Null { "null" } else { "roofline" };
    let kept = calibrate::stored(&device, stack);
    let small = matches!(args.subject, Some(CompareSubject::Operator(_) | CompareSubject::Sizes(_)));
    if kept.is_some() || backend == BackendArg::Null || small || args.run.warm {
        return Ok(kept);
    }
    config::can_keep("calibrations")?;
    style::talk("note", "this machine is not calibrated yet: a short calibration comes first");
    let short = RunArgs {
        backend: Some(backend),
        gpu: args.run.gpu,
        warm: false,
        quick: true,
        seconds,
        energy: false,
        out: None,
        resume: false,
        watcher: args.run.watcher.clone(),
    };
    let calibration = calibrate::measured(&mut Runner::start(&short, None, "calibrate")?, &short)?;
    calibrate::keep(&calibration, &device)?;
    Ok(Some(Cow::Owned(calibration)))
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

fn tier(expected: bool) -> &'static str {
    if expected { "expected" } else { "ideal" }
}

/// Sums over kernels that were counted, per precision.
fn passes(pairs: &[Pair]) -> Vec<Pass> {
    let mut passes: Vec<Pass> = Vec::new();
    let places = || pairs.iter().map(|pair| (pair.subject(), pair.label()));
    let twice = places().enumerate().any(|(at, place)| places().take(at).any(|earlier| earlier == place));
    // Several passes in one run cannot be told apart.
    if twice || pairs.iter().all(|pair| pair.observation.count == 1) {
        return passes;
    }
    for pair in pairs {
        let (name, count) = (&pair.observation.precision, pair.observation.count);
        let times =
            [pair.ideal.time(), pair.predicted(), pair.observation.time].map(|time| time.micros() * count as f64);
        let at = passes.iter().position(|pass| pass.precision == *name).unwrap_or_else(|| {
            let (ideal_time_us, predicted_time_us, measured_time_us, error_pct) = (0.0, 0.0, 0.0, 0.0);
            let precision = name.clone();
            passes.push(Pass {
                precision,
                kernels: 0,
                missing: 0,
                ideal_kernels: 0,
                ideal_time_us,
                predicted_time_us,
                measured_time_us,
                error_pct,
            });
            passes.len() - 1
        });
        let pass = &mut passes[at];
        pass.kernels = pass.kernels.saturating_add(count);
        pass.ideal_kernels += if pair.expected.is_none() { count } else { 0 };
        pass.ideal_time_us += times[0];
        pass.predicted_time_us += times[1];
        pass.measured_time_us += times[2];
    }
    for pass in &mut passes {
        pass.error_pct = (pass.measured_time_us / pass.predicted_time_us - 1.0).abs() * 100.0;
    }
    passes
}

fn row(pair: &Pair) -> Row {
    let Observation { site, count, range, path, kernel, residency, warnings, .. } = &pair.observation;
    Row {
        site: site.clone(),
        shape: pair.subject(),
        precision: pair.label(),
        count: *count,
        tier: tier(pair.expected.is_some()),
        predicted_time_us: pair.predicted().micros(),
        ideal_time_us: pair.ideal.time().micros(),
        lo_us: pair.expected.map(|expected| expected.low.micros()),
        hi_us: pair.expected.map(|expected| expected.high.micros()),
        measured_time_us: pair.observation.time.micros(),
        p5_us: range.map(|(low, _)| low.micros()),
        p95_us: range.map(|(_, high)| high.micros()),
        error_pct: pair.error() * 100.0,
        signed_pct: pair.signed_error() * 100.0,
        error_vs_measured_pct: pair.error_vs_measured() * 100.0,
        ideal_error_pct: pair.ideal_error() * 100.0,
        ratio: pair.ratio(),
        efficiency: pair.efficiency(),
        status: pair.status(),
        bottleneck: pair.bound().to_string(),
        flops: pair.ideal.work.flops,
        bytes: pair.ideal.work.bytes(),
        moved: pair.moved(),
        ai: pair.ideal.intensity().value(),
        critical_ai: pair.ideal.critical.value(),
        predicted_tflops: (pair.ideal.work.flops / pair.predicted()).value() / 1e12,
        measured_tflops: pair.rate().value() / 1e12,
        measured_bandwidth_gb_s: pair.bandwidth().value() / 1e9,
        kernel: kernel.clone(),
        kernel_path: *path,
        residency: *residency,
        warnings: warnings.clone(),
        diagnoses: pair
            .diagnoses
            .iter()
            .map(|diagnosis| Explained { diagnosis: *diagnosis, text: diagnosis.sentence() })
            .collect(),
    }
}
