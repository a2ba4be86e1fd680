//! How fast does it run: kernels on this machine, checked against a reference and then timed.

mod passes;
mod saturation;
mod subject;
mod written;

use std::path::PathBuf;

use clap::Args;
use roofline_core::{
    Device, Graph, Op, Plan,
    measurement::{Clocks, Energy, Measurement, Path as KernelPath, Phase, Residency, Warning},
    units::{Bytes, Flops, Seconds},
};
use roofline_run::{Run, Skipped};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use self::passes::run as run_passes;
pub use self::passes::{MeasuredOperator, MeasuredPass, PassClock, Passes};
pub use self::saturation::{BestRate, Saturation};
pub(crate) use self::subject::Asked;
pub use self::subject::{KernelFile, Subject};
use crate::{
    Context, Error, Note, Result,
    broken::Broken,
    machine::{Varies, is_native, plans},
    own::{self, OwnKernel},
    predict::{self, ModelPass},
    request::{BackendName, Measuring, Setting, list, with_subjects},
    runner::Runner,
    running::Executor,
    subjects::{self, Subjects, at_plans, of_model, of_operator, refuse_giants},
    sweep::Shape,
};

/// What is to be measured: a subject, or the shapes that fill a machine.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
#[command(after_help = HELP)]
#[schemars(rename = "MeasureRequest", transform = with_subjects::<Subject>)]
pub struct Request {
    #[command(subcommand)]
    #[serde(default)]
    #[schemars(skip)]
    pub subject: Option<Subject>,
    /// The highest rates: products and matrix-vector products large enough to fill the machine
    #[arg(long)]
    #[serde(default)]
    pub saturate: bool,
    /// Write what --saturate measured, bandwidth and the rate of each unit, into a device file for `--on FILE`
    #[arg(long, value_name = "FILE")]
    #[schemars(extend("x-local" = true))]
    pub write_device: Option<PathBuf>,
    /// Replace the file of --write-device
    #[arg(long)]
    #[serde(default)]
    #[schemars(extend("x-local" = true))]
    pub force: bool,
    /// The device that the null backend plays, for --saturate; a subject has its own
    #[arg(long, value_name = "DEVICE")]
    pub on: Option<String>,
    /// Precisions of --saturate; a subject has its own
    #[arg(short, long, value_name = "PLAN")]
    #[serde(default, deserialize_with = "list::read")]
    #[schemars(schema_with = "list::schema::<String>")]
    pub precision: Vec<String>,
    #[command(flatten)]
    #[serde(flatten)]
    pub passes: Passes,
    #[command(flatten)]
    #[serde(flatten)]
    pub run: Measuring,
}

const HELP: &str = "\
Examples:
  roofline measure gemv --n 4096 --k 4096 --precision fp32,bf16,w8a16,w4a16
  roofline measure attention --heads 32 --kv-heads 8 --head-dim 128 --context 8192
  roofline measure model llama-3.2-1b --precision bf16,w4a16              decode, then prefill
  roofline measure model ./Llama-3.2-1B                                  whole passes of a checkpoint
  roofline measure model ./Llama-3.2-1B --beside llama-q8_0.gguf,llama-q4_k_m.gguf --prompt 128,1024
  roofline measure model llama-3.2-1b --random --precision bf16,w8a16,w4a16 --batches 1,4
  roofline measure model ./Llama-3.2-1B --backend cuda --energy          tokens per joule, too
  roofline measure kernel my_gemv.toml                                   your own CUDA kernel beside ours
  roofline measure --saturate --precision fp32,bf16
  roofline measure --saturate --write-device my_gpu.toml                 then `--on my_gpu.toml`
  roofline measure gemm --m 512 --n 4096 --k 4096 --out run.jsonl        interrupted? add --resume";

/// Everything that was measured, and what could not be.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "MeasureAnswer")]
pub struct Answer {
    pub subject: String,
    pub device: String,
    pub device_name: String,
    pub backend: BackendName,
    pub residency: Residency,
    /// The run on disk; a server keeps that to itself.
    pub run: Option<PathBuf>,
    pub measurements: Vec<MeasuredKernel>,
    /// Kernels of one's own: where each stands between the roof and ours.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub own: Vec<OwnKernel>,
    /// Whole passes of models that ran.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passes: Vec<MeasuredPass>,
    /// Whether somebody had enough before all passes were through.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
    /// What ended it before all passes were through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broken: Option<Broken>,
    pub skipped: Vec<Skipped>,
    /// The highest rates, where those were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saturation: Option<Saturation>,
    /// The device file, where one was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written_device: Option<PathBuf>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// A finished measurement.
#[derive(Serialize, JsonSchema)]
pub struct MeasuredKernel {
    pub site: String,
    pub shape: String,
    /// The pass of a model that it is a part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    pub op: Op,
    pub precision: String,
    pub count: u64,
    pub kernel: String,
    pub kernel_path: KernelPath,
    pub residency: Residency,
    pub measured_time_us: f64,
    pub p5_us: f64,
    pub p95_us: f64,
    pub mad_us: f64,
    pub min_us: f64,
    pub std_us: Option<f64>,
    pub samples: usize,
    pub discarded: u32,
    pub confidence_pct: Option<f64>,
    pub measured_tflops: f64,
    pub measured_bandwidth_gb_s: f64,
    pub ai: f64,
    pub flops: Flops,
    /// Bytes that had to move, and those that did.
    pub bytes: Bytes,
    pub moved: Bytes,
    /// Ideal over measured; above 1 the roof or the measurement is wrong.
    pub roof_share: Option<f64>,
    pub check_error: f64,
    pub check_limit: f64,
    pub warnings: Vec<Warning>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<Clocks>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy: Option<Energy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gflops_per_w: Option<f64>,
}

/// Shapes of products that fill a machine, smallest first.
const PRODUCTS: [(u64, u64, u64); 6] = [
    (4096, 4096, 4096),
    (8192, 4096, 4096),
    (8192, 8192, 4096),
    (8192, 8192, 8192),
    (16384, 4096, 4096),
    (16384, 8192, 4096),
];
/// The same for matrix-vector products.
const STREAMS: [(u64, u64); 4] = [(4096, 4096), (8192, 8192), (16384, 4096), (4096, 14336)];

/// Measures each kernel once it was checked.
pub fn measure(context: &Context, request: &Request) -> Result<Answer> {
    refuse_both(request)?;
    let file = written::wanted(request)?;
    let subject = request.subject.as_ref().map(Subject::asked);
    let model = match subject {
        Some(Asked::Model(asked)) => Some(asked),
        _ => None,
    };
    if let Some(Asked::Kernel(asked)) = subject {
        return own::from_file(context, request, asked);
    }
    if let (Some(asked), true) = (model, request.passes.wanted(context, model, &request.run)?) {
        return whole(context, request, asked);
    }
    let on = request.on();
    let mut runner = Runner::start(context, &request.run, on, "measure")?;
    let device = runner.device().clone();
    let subjects = match subject {
        Some(Asked::Operator(asked)) => of_operator(context, asked, &device)?,
        Some(Asked::Model(asked)) => of_model(context, asked, &device)?,
        Some(Asked::Kernel(_)) | None => saturating(context, &request.precision, &device, request.run.quick)?,
    };
    let outcome = runner.measure(&subjects.all)?.nonempty()?;
    let ceilings = if request.saturate { runner.backend.ceilings()? } else { Vec::new() };
    let write = |path| written::write(path, &device, &outcome.measured, &ceilings, &runner.provenance());
    let written_device = file.map(write).transpose()?;
    let saturation = request.saturate.then(|| Saturation::of(&outcome.measured, &device, ceilings));
    Ok(Answer {
        subject: subjects.words,
        device: device.label(),
        device_name: device.name.clone(),
        backend: runner.kind,
        residency: runner.protocol.residency,
        run: Some(runner.path().to_owned()),
        measurements: outcome.measured.iter().map(|measured| shown(measured, &device)).collect(),
        own: Vec::new(),
        passes: Vec::new(),
        stopped: false,
        broken: None,
        skipped: outcome.skipped,
        saturation,
        written_device,
        notes: context.notes(),
    })
}

/// Runs whole passes of a model.
fn whole(context: &Context, request: &Request, asked: &ModelPass) -> Result<Answer> {
    let executor = Executor::open(context, request.run.backend(), request.run.gpu)?;
    let machine = executor.machine(context)?;
    let device = &machine.device;
    let outcome = run_passes(context, &request.passes, asked, &request.run, &executor, &machine)?;
    Ok(Answer {
        subject: outcome.words,
        device: device.label(),
        device_name: device.name.clone(),
        backend: executor.name,
        residency: Residency::Cold,
        run: request.run.out.clone(),
        measurements: Vec::new(),
        own: Vec::new(),
        passes: outcome.passes,
        stopped: outcome.stopped,
        broken: outcome.broken,
        skipped: Vec::new(),
        saturation: None,
        written_device: None,
        notes: context.notes(),
    })
}

impl Request {
    /// The device that is named, by the subject or before it.
    pub(crate) fn on(&self) -> Option<&str> {
        let setting = self.subject.as_ref().and_then(Subject::setting);
        setting.map_or(self.on.as_deref(), Setting::first)
    }

    /// Refuses what would fill the memory of a machine that the caller does not sit at.
    pub fn refuse_giants(&self, context: &Context) -> Result<()> {
        match self.subject.as_ref().map(Subject::asked) {
            Some(Asked::Operator(asked)) => refuse_giants(&predict::shape(asked)?.0.graph()),
            Some(Asked::Model(asked)) => subjects::refuse_giant_model(context, asked),
            Some(Asked::Kernel(_)) | None => Ok(()),
        }
    }
}

/// There is a subject, or the shapes of --saturate, and whatever was said is of the one that there is.
fn refuse_both(asked: &Request) -> Result<()> {
    let (message, hint) = match (&asked.subject, asked.saturate) {
        (None, false) => ("nothing to measure was named", "`⟨roofline measure gemv --n 4096 --k 4096⟩`, or ⟨saturate⟩"),
        (Some(_), true) => ("⟨saturate⟩ has its own shapes", "leave out the subject, or leave out ⟨saturate⟩"),
        (Some(_), false) if asked.on.is_some() || !asked.precision.is_empty() => (
            "⟨on⟩ and ⟨precision⟩ in front of a subject are those of ⟨saturate⟩",
            "write them behind it: `⟨roofline measure gemv --n 4096 --k 4096 --on h200⟩`",
        ),
        _ => return Ok(()),
    };
    Err(Error::request(message, hint))
}

/// Those of a run that is on disk.
pub fn shown_run(context: &Context, run: &Run) -> Result<Vec<MeasuredKernel>> {
    let device = device_of(context, run)?;
    Ok(run.measurements.iter().map(|measured| shown(measured, &device)).collect())
}

/// The device that a run was made on: its own description, else the registry's.
pub(crate) fn device_of(context: &Context, run: &Run) -> Result<Device> {
    match &run.header.device_toml {
        Some(text) => Ok(Device::from_toml(text, &run.header.device)?),
        None => context.device(&run.header.device),
    }
}

/// The shapes that fill a machine: products, then matrix-vector products.
pub fn saturating_shapes() -> Vec<Shape> {
    let streams = STREAMS.map(|(n, k)| (1, n, k));
    PRODUCTS.into_iter().chain(streams).map(|(m, n, k)| Shape { m, n, k }).collect()
}

fn saturating(context: &Context, names: &[String], device: &Device, quick: bool) -> Result<Subjects> {
    let plans = plans(names, Varies::Product(None), device)?;
    let products = PRODUCTS.iter().take(if quick { 1 } else { PRODUCTS.len() });
    // What is stored narrow and multiplied wide saturates nothing that its activations' own precision does not.
    let native: Vec<Plan> = plans.iter().filter(|plan| is_native(plan, device)).cloned().collect();
    let mut all = Vec::new();
    for (m, n, k) in products {
        all.extend(at_plans(context, &Graph::gemm(*m, *n, *k)?, &native, device)?);
    }
    for (n, k) in STREAMS {
        all.extend(at_plans(context, &Graph::gemv(n, k)?, &plans, device)?);
    }
    Ok(Subjects { words: "saturation".to_owned(), all })
}

/// A finished measurement, as answers show it.
pub fn shown(measured: &Measurement, device: &Device) -> MeasuredKernel {
    let (summary, work) = (measured.summary(), measured.work());
    MeasuredKernel {
        site: measured.site.clone(),
        shape: measured.op.words(&measured.site),
        phase: measured.phase,
        op: measured.op,
        precision: measured.precision.clone(),
        count: measured.count,
        kernel: measured.kernel.name.clone(),
        kernel_path: measured.kernel.path,
        residency: measured.residency,
        measured_time_us: measured.time().micros(),
        p5_us: summary.p5.micros(),
        p95_us: summary.p95.micros(),
        mad_us: summary.mad.micros(),
        min_us: summary.min.micros(),
        std_us: summary.std.map(Seconds::micros),
        samples: summary.samples,
        discarded: measured.discarded,
        confidence_pct: summary.confidence.map(|known| known * 100.0),
        measured_tflops: measured.rate().value() / 1e12,
        measured_bandwidth_gb_s: measured.bandwidth().value() / 1e9,
        ai: work.intensity().value(),
        flops: work.flops,
        bytes: work.bytes(),
        moved: measured.moved,
        roof_share: measured.roof(device).ok().map(|roof| roof / measured.time()),
        check_error: measured.check.error,
        check_limit: measured.check.limit,
        warnings: measured.warnings.clone(),
        clock: measured.clock,
        energy: measured.energy,
        gflops_per_w: measured.efficiency().map(|efficiency| efficiency.value() / 1e9),
    }
}
