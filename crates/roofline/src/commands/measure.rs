//! `roofline measure`: kernels on this machine, checked against a reference and then timed.

mod saturation;
mod written;

use std::path::PathBuf;

use roofline_core::{
    Device, Graph, Op, Plan,
    measurement::{Clocks, Energy, Measurement, Path as KernelPath, Phase, Residency, Warning},
    units::{Bytes, Flops, Seconds},
};
use roofline_run::{Run, Skipped};
use serde::Serialize;

use self::saturation::Saturation;
use super::{
    compare::device_of,
    runner::Runner,
    setting::{Varies, is_native, plans},
    subjects::{Subjects, at_plans, of_model, of_operator},
};
use crate::{
    cli::{MeasureArgs, Subject},
    failure::Failure,
    report::{Align, Report, Section, Table, number},
};

/// Everything that was measured, and what could not be.
#[derive(Serialize)]
pub(crate) struct Measured {
    subject: String,
    device: String,
    device_name: String,
    backend: &'static str,
    residency: Residency,
    /// The run on disk.
    run: PathBuf,
    measurements: Vec<Row>,
    skipped: Vec<Skipped>,
    /// The highest rates, where those were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    saturation: Option<Saturation>,
    /// The device file, where one was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    written_device: Option<PathBuf>,
}

#[derive(Serialize)]
struct Row {
    site: String,
    shape: String,
    /// The pass of a model that it is a part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<Phase>,
    op: Op,
    precision: String,
    count: u64,
    kernel: String,
    kernel_path: KernelPath,
    residency: Residency,
    measured_time_us: f64,
    p5_us: f64,
    p95_us: f64,
    mad_us: f64,
    min_us: f64,
    std_us: Option<f64>,
    samples: usize,
    discarded: u32,
    confidence_pct: Option<f64>,
    measured_tflops: f64,
    measured_bandwidth_gb_s: f64,
    ai: f64,
    flops: Flops,
    /// Bytes that had to move, and those that did.
    bytes: Bytes,
    moved: Bytes,
    /// Ideal over measured; above 1 the roof or the measurement is wrong.
    roof_share: Option<f64>,
    check_error: f64,
    check_limit: f64,
    warnings: Vec<Warning>,
    #[serde(skip_serializing_if = "Option::is_none")]
    clock: Option<Clocks>,
    #[serde(skip_serializing_if = "Option::is_none")]
    energy: Option<Energy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gflops_per_w: Option<f64>,
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

pub(crate) fn measure(args: &MeasureArgs) -> Result<Measured, Failure> {
    refuse_both(args)?;
    let file = written::wanted(args)?;
    let on = match &args.subject {
        Some(Subject::Operator(subject)) => subject.setting().first(),
        Some(Subject::Model(args)) => args.setting.first(),
        None => args.on.as_deref(),
    };
    let mut runner = Runner::start(&args.run, on, "measure")?;
    let device = runner.device().clone();
    let subjects = match &args.subject {
        Some(Subject::Operator(subject)) => of_operator(subject, &device)?,
        Some(Subject::Model(args)) => of_model(args, &device)?,
        None => saturating(&args.precision, &device, args.run.quick)?,
    };
    let outcome = runner.measure(&subjects.all)?.nonempty()?;
    let ceilings = if args.saturate { runner.backend.ceilings()? } else { Vec::new() };
    let write = |path| written::write(path, &device, &outcome.measured, &ceilings, &runner.provenance());
    let written_device = file.map(write).transpose()?;
    let saturation = args.saturate.then(|| Saturation::of(&outcome.measured, &device, ceilings));
    Ok(Measured {
        subject: subjects.words,
        device: device.label(),
        device_name: device.name.clone(),
        backend: runner.backend.name(),
        residency: runner.protocol.residency,
        run: runner.path().to_owned(),
        measurements: outcome.measured.iter().map(|measured| row(measured, &device)).collect(),
        skipped: outcome.skipped,
        saturation,
        written_device,
    })
}

/// There is a subject, or the shapes of --saturate, and whatever was said is of the one that there is.
fn refuse_both(args: &MeasureArgs) -> Result<(), Failure> {
    let (message, hint) = match (&args.subject, args.saturate) {
        (None, false) => ("nothing to measure was named", "`roofline measure gemv --n 4096 --k 4096`, or --saturate"),
        (Some(_), true) => ("--saturate has its own shapes", "leave out the subject, or leave out --saturate"),
        (Some(_), false) if args.on.is_some() || !args.precision.is_empty() => (
            "--on and --precision in front of a subject are those of --saturate",
            "write them behind it: `roofline measure gemv --n 4096 --k 4096 --on h200`",
        ),
        _ => return Ok(()),
    };
    Err(Failure::usage(message, hint))
}

/// A finished measurement, as a report shows it.
pub(crate) fn shown(measured: &Measurement, device: &Device) -> serde_json::Value {
    serde_json::to_value(row(measured, device)).unwrap_or_default()
}

/// Those of a run that is on disk.
pub(crate) fn shown_run(run: &Run) -> Result<Vec<serde_json::Value>, Failure> {
    let device = device_of(run)?;
    Ok(run.measurements.iter().map(|measured| shown(measured, &device)).collect())
}

/// The shapes that fill a machine: products, then matrix-vector products.
pub(crate) fn saturating_shapes() -> Vec<(u64, u64, u64)> {
    PRODUCTS.into_iter().chain(STREAMS.map(|(n, k)| (1, n, k))).collect()
}

fn saturating(names: &[String], device: &Device, quick: bool) -> Result<Subjects, Failure> {
    let plans = plans(names, Varies::Product(None), device)?;
    let products = PRODUCTS.iter().take(if quick { 1 } else { PRODUCTS.len() });
    // What is stored narrow and multiplied wide saturates nothing that its activations' own precision does not.
    let native: Vec<Plan> = plans.iter().filter(|plan| is_native(plan, device)).cloned().collect();
    let mut all = Vec::new();
    for (m, n, k) in products {
        all.extend(at_plans(&Graph::gemm(*m, *n, *k)?, &native, device)?);
    }
    for (n, k) in STREAMS {
        all.extend(at_plans(&Graph::gemv(n, k)?, &plans, device)?);
    }
    Ok(Subjects { words: "saturation".to_owned(), all })
}

fn row(measured: &Measurement, device: &Device) -> Row {
    let (summary, work) = (measured.summary(), measured.work());
    Row {
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

impl Report for Measured {
    const ROWS: &'static str = "measurements";

    fn sections(&self) -> Vec<Section> {
        let fake = if self.backend == "null" { ", fake times" } else { "" };
        let heading =
            format!("{} on {} ({} backend{fake}, {})", self.subject, self.device_name, self.backend, self.residency);
        let mut sections = vec![Section::Heading(heading), Section::Table(self.table())];
        sections.extend(self.energy().map(Section::Table));
        sections.extend(self.saturation.iter().map(|saturation| Section::Table(saturation.table())));
        sections.extend(self.doubts().into_iter().map(Section::Paragraph));
        sections.push(Section::Line(format!("The run is kept in {}.", self.run.display())));
        sections.extend(self.written_device.iter().map(|path| {
            let path = path.display();
            Section::Line(format!("What was measured is a device now: {path}, for `--on {path}`."))
        }));
        sections
    }

    fn warnings(&self) -> Vec<String> {
        self.doubts()
    }
}

impl Measured {
    /// What calls cost, where power was watched.
    fn energy(&self) -> Option<Table> {
        let mut table = Table::default()
            .column("energy of", Align::Left, 0)
            .column("precision", Align::Left, 0)
            .column("mJ by power", Align::Right, 0)
            .column("mJ by counter", Align::Right, 0)
            .column("W", Align::Right, 0)
            .column("MHz", Align::Right, 0)
            .column("GFLOP/s/W", Align::Right, 0);
        let watched = self.measurements.iter().filter_map(|row| Some((row, row.energy?)));
        let mut any = false;
        for (row, energy) in watched {
            any = true;
            let optional = |value: Option<f64>| value.map_or_else(String::new, number);
            table.row([
                row.shape.as_str().into(),
                row.precision.as_str().into(),
                number(energy.integrated.value() * 1e3).into(),
                optional(energy.counted_j.map(|energy| energy * 1e3)).into(),
                number(energy.power.value()).into(),
                optional(energy.clock_mhz).into(),
                optional(row.gflops_per_w).into(),
            ]);
        }
        any.then_some(table)
    }

    /// The worst case of each doubt, and what could not be measured.
    fn doubts(&self) -> Vec<String> {
        let mut kinds: Vec<(&str, usize, String)> = Vec::new();
        for (row, warning) in self.measurements.iter().flat_map(|row| row.warnings.iter().map(move |one| (row, one))) {
            if let Some((_, count, _)) = kinds.iter_mut().find(|(name, ..)| *name == warning.name()) {
                *count += 1;
            } else {
                let first = format!("{} {}: {}", row.shape, row.precision, warning.sentence());
                kinds.push((warning.name(), 1, first));
            }
        }
        let paragraph = |(name, count, first): (&str, usize, String)| {
            let more = if count > 1 { format!(" ({count} kernels)") } else { String::new() };
            format!("{name}{more}: {first}")
        };
        let skipped = self.skipped.iter().map(|skipped| {
            let phase = skipped.phase.map(|phase| format!("{phase} ")).unwrap_or_default();
            format!("{phase}{} {}: {}", skipped.op.words(&skipped.site), skipped.precision, skipped.reason)
        });
        kinds.into_iter().map(paragraph).chain(skipped).collect()
    }

    fn table(&self) -> Table {
        let mut table = Table::default()
            .column("phase", Align::Left, 0)
            .column("kernel", Align::Left, 0)
            .column("precision", Align::Left, 0)
            .column("time us", Align::Right, 0)
            .column("p5-p95", Align::Right, 3)
            .column("n", Align::Right, 6)
            .column("GB/s", Align::Right, 1)
            .column("GFLOP/s", Align::Right, 2)
            .column("of roof", Align::Right, 1)
            .column("off ref", Align::Right, 5)
            .column("code", Align::Left, 4);
        for row in &self.measurements {
            table.row([
                row.phase.map_or_else(String::new, |phase| phase.to_string()).into(),
                row.shape.as_str().into(),
                row.precision.as_str().into(),
                number(row.measured_time_us).into(),
                format!("{}-{}", number(row.p5_us), number(row.p95_us)).into(),
                row.samples.to_string().into(),
                number(row.measured_bandwidth_gb_s).into(),
                number(row.measured_tflops * 1e3).into(),
                row.roof_share.map_or_else(String::new, |share| format!("{:.0} %", share * 100.0)).into(),
                number(row.check_error).into(),
                format!("{} ({})", row.kernel, row.kernel_path).into(),
            ]);
        }
        table.without_empty_columns()
    }
}
