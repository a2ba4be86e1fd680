//! Theory against measurement: error, speed-ups, and what explains the rest.

mod demonstration;
mod import;
mod judged;
mod kernel;
mod picture;
mod tour;
mod traced;
mod whole;

pub use judged::{Judged, JudgedSummary, judged};
pub use kernel::{ComparedKernel, Explained};
pub use tour::Next;
pub use traced::{Upload, uploaded};

use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use roofline_core::{
    Device, Machine,
    calibration::{Calibration, Quality},
    compare::{Comparison, Gains, Observation, Pair, Pass, SlowKernel, SpeedupPair, Totals, compare as compared},
    graph::Graph,
    machine::Stack,
    measurement::Residency,
    predict::Tier,
};
use roofline_run::{Run, Skipped};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::{
    demonstration::demonstrated,
    kernel::kernels,
    tour::{AFTER_THE_TOUR, squares, tour},
    traced::traced,
    whole::whole,
};
use crate::{
    Context, Error, Note, Result,
    broken::Broken,
    calibrate,
    context::files::writable,
    gpu, machine,
    measure::{MeasuredPass, Passes, device_of},
    predict::{self, Attention, Ffn, Gemm, Gemv, ModelPass, Operator},
    request::{BackendName, Measuring, Range, Setting, TIERS, list, one_of, with_subjects},
    runner::{Outcome, Runner, ready},
    subjects::{of_model, of_operator, refuse_giant_model, refuse_giants},
    this_machine, trace,
};

/// Sizes of one comparison that somebody elsewhere asks for.
const SIDES: usize = 64;

/// What is compared: a subject that is measured now, a run, or somebody else's measurements.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
#[command(after_help = HELP)]
#[schemars(rename = "CompareRequest", transform = with_subjects::<Subject>)]
pub struct Request {
    #[command(subcommand)]
    #[serde(default)]
    #[schemars(skip)]
    pub subject: Option<Subject>,
    /// The model that comes with the program, whole: in 16, 8 and 4 bit, step by step beside theory
    #[arg(long, conflicts_with_all = ["from", "measured"])]
    #[serde(default)]
    #[schemars(extend("x-local" = true))]
    pub demo: bool,
    /// Analyse a run that is on disk; nothing is measured
    #[arg(long, value_name = "FILE")]
    #[schemars(extend("x-local" = true))]
    pub from: Option<PathBuf>,
    /// Analyse measurements made elsewhere; needs --on
    #[arg(long, value_name = "FILE")]
    #[schemars(extend("x-local" = true))]
    pub measured: Option<PathBuf>,
    /// Analyse what a profiler recorded: kernels by operator, against the roof, and what to do first
    #[arg(long, value_name = "FILE", conflicts_with_all = ["demo", "from", "measured"])]
    #[schemars(extend("x-local" = true))]
    pub trace: Option<PathBuf>,
    /// The device that --measured or --trace was made on, that --from is to be judged by, or that the null backend plays
    #[arg(long, value_name = "DEVICE")]
    pub on: Option<String>,
    /// Plans of the tour, as `predict` takes them
    #[arg(short, long, value_name = "PLAN")]
    #[serde(default, deserialize_with = "list::read")]
    #[schemars(schema_with = "list::schema::<String>")]
    pub precision: Vec<String>,
    /// Which time is judged, the floor or the one to expect; the latter when left out
    #[arg(long, value_parser = one_of::<Tier>(TIERS))]
    pub tier: Option<Tier>,
    /// Where the report in HTML goes; beside the run when left out
    #[arg(long, global = true, value_name = "FILE", help_heading = "Output")]
    #[schemars(extend("x-local" = true))]
    pub report: Option<PathBuf>,
    #[command(flatten)]
    #[serde(flatten)]
    pub passes: Passes,
    #[command(flatten)]
    #[serde(flatten)]
    pub run: Measuring,
}

const HELP: &str = "\
Without a subject it is a tour of this machine: what it is made of, what theory says of it, what it does.

A file of measurements made elsewhere (--measured) is a CSV with the columns m, n, k, precision and time_us, or
JSON of the form {\"benchmarks\": [{\"kernel_type\": \"gemm\", \"shape\": [m, n, k], \"precision\": ..., \"measured_time_us\": ...}]}.

What a profiler recorded (--trace) is what torch.profiler's export_chrome_trace writes (.json, .json.gz; record_shapes=True
gives operators their roof), or a table of `ncu --csv`.

Examples:
  roofline compare
  roofline compare --demo                              a whole model, with nothing to download
  roofline compare gemv --n 4096 --k 4096
  roofline compare model llama-3.2-1b --precision bf16,w4a16              decode, then prefill
  roofline compare model ./Llama-3.2-1B                whole passes of a checkpoint
  roofline compare model ./Llama-3.2-1B --backend cpu  the same on the processor
  roofline compare sizes                               does the error change with size?
  roofline compare --from run.jsonl                    analyse a run again, on any machine
  roofline compare --measured points.csv --on gb10     somebody else's measurements
  roofline compare --trace trace.json.gz --on h200     kernels of a PyTorch program by operator";

/// What is measured and compared.
#[derive(Subcommand, Clone, Debug, Deserialize, JsonSchema)]
#[serde(tag = "subject", rename_all = "lowercase")]
pub enum Subject {
    /// A matrix of n rows and k columns times a vector: a linear layer decoding one token
    #[command(after_help = predict::GEMV_HELP)]
    Gemv(Gemv),
    /// A matrix of n rows and k columns times m vectors: a linear layer over m tokens
    #[command(after_help = predict::GEMM_HELP)]
    Gemm(Gemm),
    /// Attention over a KV cache, fused or not
    #[command(after_help = predict::ATTENTION_HELP)]
    Attention(Attention),
    /// A feed-forward layer: up, gate, activation and down
    #[command(after_help = predict::FFN_HELP)]
    Ffn(Ffn),
    /// A whole model: each of its kernels once, counted as often as it runs
    Model(ModelPass),
    /// Square matrix-vector products from small to large: does the error change with size?
    Sizes(Squares),
}

/// Square matrix-vector products.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
pub struct Squares {
    /// Sides of the matrices
    #[arg(long, value_name = "RANGE", default_value = "256..16384")]
    #[serde(default = "sides")]
    pub n: Range,
    #[command(flatten)]
    #[serde(flatten)]
    pub setting: Setting,
}

fn sides() -> Range {
    Range((8..=14).map(|power| 1 << power).collect())
}

/// A subject by its kind.
enum Asked<'a> {
    Operator(Operator<'a>),
    Model(&'a ModelPass),
    Sizes(&'a Squares),
    Tour,
}

impl Request {
    fn asked(&self) -> Asked<'_> {
        match &self.subject {
            Some(Subject::Gemv(asked)) => Asked::Operator(Operator::Gemv(asked)),
            Some(Subject::Gemm(asked)) => Asked::Operator(Operator::Gemm(asked)),
            Some(Subject::Attention(asked)) => Asked::Operator(Operator::Attention(asked)),
            Some(Subject::Ffn(asked)) => Asked::Operator(Operator::Ffn(asked)),
            Some(Subject::Model(asked)) => Asked::Model(asked),
            Some(Subject::Sizes(asked)) => Asked::Sizes(asked),
            None => Asked::Tour,
        }
    }

    /// The setting of the subject, where there is one.
    pub fn setting(&self) -> Option<&Setting> {
        match self.asked() {
            Asked::Operator(asked) => Some(asked.setting()),
            Asked::Model(asked) => Some(&asked.setting),
            Asked::Sizes(asked) => Some(&asked.setting),
            Asked::Tour => None,
        }
    }

    /// The tier that is judged.
    fn tier(&self) -> Tier {
        self.setting().map_or(self.tier, |setting| setting.tier).unwrap_or(Tier::Expected)
    }

    /// Refuses what would fill the memory of a machine that the caller does not sit at, or keep it busy for hours.
    pub fn refuse_giants(&self, context: &Context) -> Result<()> {
        match self.asked() {
            Asked::Operator(asked) => refuse_giants(&predict::shape(asked)?.0.graph()),
            Asked::Model(asked) => refuse_giant_model(context, asked),
            Asked::Sizes(asked) if asked.n.len() > SIDES => {
                Err(Error::request(format!("{} sizes are asked for", asked.n.len()), format!("{SIDES} at most")))
            }
            Asked::Sizes(asked) => {
                let largest = asked.n.0.iter().copied().max().unwrap_or(1);
                refuse_giants(&Graph::gemv(largest, largest)?)
            }
            Asked::Tour => Ok(()),
        }
    }
}

/// Predictions beside measurements.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CompareAnswer")]
pub struct Answer {
    pub subject: String,
    pub device: String,
    pub device_name: String,
    pub backend: Option<BackendName>,
    pub residency: Option<Residency>,
    pub tier: Tier,
    pub stack: &'static str,
    pub comparisons: Vec<ComparedKernel>,
    /// Whole passes, where kernels were counted as often as they run.
    pub passes: Vec<Pass>,
    /// Models that ran: their passes by the clock, each with its operators.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub whole: Vec<MeasuredPass>,
    /// What a profiler recorded, by operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<trace::Answer>,
    /// Whether somebody had enough before all of them were through.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
    /// What ended it before all passes were through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broken: Option<Broken>,
    pub speedups: Vec<SpeedupPair>,
    /// Each format against 16 bit, for one row and for many.
    pub gains: Vec<Gains>,
    /// Narrower formats that ran slower than a wider one.
    pub losses: Vec<SpeedupPair>,
    pub slow_kernels: Vec<SlowKernel>,
    pub summary: Totals,
    /// The verdict of the summary, in a sentence with its reasons.
    pub verdict: String,
    pub insight: Option<String>,
    /// What kernels that take a bad way on purpose show.
    pub demonstration: Option<String>,
    pub calibration: Option<CalibrationBasis>,
    pub skipped: Vec<Skipped>,
    pub run: Option<PathBuf>,
    pub report: Option<PathBuf>,
    pub environment: serde_json::Value,
    /// What to ask after a tour, with what it shows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next: Vec<Next>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
    #[serde(skip)]
    pub on: Device,
    #[serde(skip)]
    pub made_of: Vec<(String, String)>,
    #[serde(skip)]
    pub pairs: Vec<Pair>,
}

/// What the expected tier rests on.
#[derive(Serialize, JsonSchema)]
pub struct CalibrationBasis {
    pub provenance: String,
    pub quality: Quality,
    /// Whether it is too far off on shapes it never saw to judge anything by.
    pub doubtful: bool,
}

impl CalibrationBasis {
    fn of(calibration: &Calibration) -> Self {
        let Calibration { provenance, quality, .. } = calibration;
        Self { provenance: provenance.clone(), quality: quality.clone(), doubtful: quality.doubtful() }
    }
}

/// Predictions beside measurements. Where its report would go is in the answer; whoever shows it writes it.
pub fn compare(context: &Context, request: &Request) -> Result<Answer> {
    let files = [("from", &request.from), ("measured", &request.measured), ("trace", &request.trace)];
    let mut files = files.iter().filter(|(_, file)| file.is_some()).map(|(name, _)| name);
    if let (Some(one), Some(other)) = (files.next(), files.next()) {
        return Err(Error::request(format!("⟨{one}⟩ and ⟨{other}⟩ are two questions"), "ask one of them"));
    }
    if request.demo {
        return compare(context, &demonstrated(context, request)?);
    }
    let answer = if let Some(path) = &request.trace {
        traced(context, request, path)?
    } else if let Some(path) = &request.measured {
        imported(context, request, path)?
    } else if let Some(path) = &request.from {
        from_run(context, request, path)?
    } else {
        fresh(context, request)?
    };
    Ok(Answer { notes: context.notes(), ..answer })
}

/// Measures, then compares.
fn fresh(context: &Context, request: &Request) -> Result<Answer> {
    let on = request.setting().map_or(request.on.as_deref(), Setting::first);
    new_report(request)?;
    let model = match request.asked() {
        Asked::Model(asked) => Some(asked),
        _ => None,
    };
    if let (Some(asked), true) = (model, request.passes.wanted(context, model, &request.run)?) {
        return whole(context, request, asked);
    }
    ready(context, &request.run, "compare")?;
    let calibration = calibration(context, request, on)?;
    let mut runner = Runner::start(context, &request.run, on, "compare")?;
    let (device, backend) = (runner.device().clone(), runner.kind);
    let subjects = match request.asked() {
        Asked::Operator(asked) => of_operator(context, asked, &device)?,
        Asked::Model(asked) => of_model(context, asked, &device)?,
        Asked::Sizes(asked) => squares(context, asked, &device)?,
        Asked::Tour => tour(context, &request.precision, &device, request.run.quick, backend != BackendName::Null)?,
    };
    let mut outcome = runner.measure(&subjects.all)?;
    if matches!(request.asked(), Asked::Tour) {
        runner.settle(&mut outcome, "tour")?;
    }
    let Outcome { measured, skipped } = outcome.nonempty()?;
    let observations: Vec<Observation> = measured.iter().map(Observation::from).collect();
    let machine = machine::machine(context, device, backend.stack()).calibrated(calibration);
    let mut answer = Answer::new(subjects.words, &machine, compared(&observations, &machine, request.tier())?);
    answer.backend = Some(backend);
    answer.residency = Some(runner.protocol.residency);
    answer.count_missing(&skipped, 0);
    answer.skipped = skipped;
    answer.run = Some(runner.path().to_owned());
    answer.report = Some(request.report.clone().unwrap_or_else(|| beside(runner.path())));
    answer.environment = serde_json::to_value(&runner.environment).unwrap_or_default();
    if matches!(request.asked(), Asked::Tour) && context.is_local() {
        answer.next = AFTER_THE_TOUR.into();
    }
    answer.made_of = match backend {
        BackendName::Cpu => this_machine::facts(context)?,
        BackendName::Cuda | BackendName::Null => runner.backend.facts(),
    };
    Ok(answer)
}

/// The expected tier of what is about to be measured. A newcomer gets one, too: before the tour or a model comes a short
/// calibration, in a run of its own, so that both are measured afresh.
fn calibration(context: &Context, asked: &Request, on: Option<&str>) -> Result<Option<Cow<'static, Calibration>>> {
    let backend = asked.run.backend();
    let device = match (backend, on) {
        (BackendName::Cpu, None | Some("this")) => this_machine::device(context)?,
        (BackendName::Null, Some(on)) => context.device(on)?,
        (BackendName::Cuda, _) => gpu::device(context, asked.run.gpu)?,
        // What cannot run is said by whoever tries.
        _ => return Ok(None),
    };
    let kept = machine::calibration(context, &device, backend.stack());
    let small = matches!(asked.asked(), Asked::Operator(_) | Asked::Sizes(_));
    if kept.is_some() || backend == BackendName::Null || small || asked.run.warm {
        return Ok(kept);
    }
    let run = Measuring { backend: Some(backend), ..asked.run.clone() };
    Ok(Some(Cow::Owned(calibrate::short(context, &run, &device)?)))
}

/// Compares a run that is on disk.
fn from_run(context: &Context, request: &Request, path: &Path) -> Result<Answer> {
    new_report(request)?;
    nothing_measured(&request.run, "from")?;
    if request.subject.is_some() {
        return Err(Error::request("a run has its own subjects", "leave out the subject, or leave out ⟨from⟩"));
    }
    let run = Run::read(path)?;
    let unfinished = run.unfinished();
    if run.truncated || unfinished > 0 {
        let rest = if unfinished > 0 { format!(", {unfinished} kernels are missing") } else { String::new() };
        context.note(format!("the run was interrupted after {} kernels{rest}", run.measurements.len()));
    }
    let device = match &request.on {
        Some(on) => context.device(on)?,
        None => device_of(context, &run)?,
    };
    let backend = BackendName::of_run(&run.header.backend);
    let observations: Vec<Observation> = run.measurements.iter().map(Observation::from).collect();
    let machine = machine::machine(context, device.clone(), backend.stack());
    let elsewhere = if device.label() == run.header.device {
        String::new()
    } else {
        format!(", measured on {} and judged as {}", run.header.device, device.label())
    };
    let words = format!("{}, started {}{elsewhere}", path.display(), run.header.started);
    let mut answer = Answer::new(words, &machine, compared(&observations, &machine, request.tier())?);
    answer.backend = Some(backend);
    let residency = run.measurements.first().map(|first| first.residency);
    answer.residency = residency.filter(|one| run.measurements.iter().all(|other| other.residency == *one));
    answer.count_missing(&run.skipped, unfinished);
    answer.skipped = run.skipped;
    answer.run = Some(path.to_owned());
    answer.report.clone_from(&request.report);
    answer.environment = run.header.environment;
    Ok(answer)
}

/// Compares somebody else's measurements.
fn imported(context: &Context, request: &Request, path: &Path) -> Result<Answer> {
    new_report(request)?;
    nothing_measured(&request.run, "measured")?;
    if request.subject.is_some() {
        return Err(Error::request("a file has its own subjects", "leave out the subject, or leave out ⟨measured⟩"));
    }
    let on = request
        .on
        .as_deref()
        .ok_or_else(|| Error::request("nobody said which device was measured", "name it by ⟨on⟩"))?;
    let device = context.device(on)?;
    let observations = import::read(path, &device)?;
    let machine = machine::machine(context, device, Stack::Roofline);
    let comparison = compared(&observations, &machine, request.tier())?;
    let mut answer = Answer::new(path.display().to_string(), &machine, comparison);
    answer.report.clone_from(&request.report);
    Ok(answer)
}

impl Answer {
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
            comparisons: kernels(&pairs, machine),
            passes,
            whole: Vec::new(),
            trace: None,
            stopped: false,
            broken: None,
            speedups,
            gains,
            losses,
            slow_kernels: slow,
            summary: totals,
            verdict,
            insight,
            demonstration,
            calibration: calibration.map(CalibrationBasis::of),
            skipped: Vec::new(),
            run: None,
            report: None,
            environment: serde_json::Value::Null,
            notes: Vec::new(),
            on: device.clone(),
            made_of: Vec::new(),
            next: Vec::new(),
            pairs,
        }
    }
}

/// What says how to measure, where nothing is measured, would be ignored.
fn nothing_measured(args: &Measuring, field: &str) -> Result<()> {
    let Measuring { warm, quick, seconds, energy, out, resume, .. } = args;
    let given = [
        ("warm", *warm),
        ("quick", *quick),
        ("seconds", seconds.is_some()),
        ("energy", *energy),
        ("out", out.is_some()),
        ("resume", *resume),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((name, _)) => {
            let hint = format!("leave out ⟨{name}⟩, or leave out ⟨{field}⟩");
            Err(Error::request(format!("⟨{name}⟩ says how to measure, and ⟨{field}⟩ measures nothing"), hint))
        }
        None => Ok(()),
    }
}

/// A report goes to a new file that can be written, or nowhere. Without a name it lies beside the run; a run that goes on has
/// one already, and it is made anew.
fn new_report(asked: &Request) -> Result<()> {
    let beside = asked.run.out.as_deref().filter(|_| !asked.run.resume).map(beside);
    let Some(path) = asked.report.as_ref().or(beside.as_ref()) else { return Ok(()) };
    if path.exists() || Some(path) == asked.run.out.as_ref() {
        return Err(Error::Taken { path: path.clone(), hint: "name a new file by ⟨report⟩" });
    }
    writable(path)
}

/// The report of a run, beside it.
fn beside(run: &Path) -> PathBuf {
    let mut name = run.file_stem().unwrap_or_default().to_owned();
    name.push(if run.extension().is_some_and(|end| end == "html") { ".report.html" } else { ".html" });
    run.with_file_name(name)
}
