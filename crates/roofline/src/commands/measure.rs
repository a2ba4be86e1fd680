//! `roofline measure`: kernels on this machine, checked against a reference and then timed.

use std::path::PathBuf;

use roofline_core::{
    Device, Graph, Op,
    measurement::{Clocks, Energy, Measurement, Path as KernelPath, Residency, Warning},
    precision::PrecisionSpec,
    units::{Bytes, Flops, Seconds},
};
use roofline_run::{Run, Skipped, backend::Ceiling};
use serde::Serialize;

use super::{
    compare::device_of,
    runner::Runner,
    setting::{Varies, precisions},
    subjects::{Subjects, at_precisions, of_model, of_operator},
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
}

#[derive(Serialize)]
struct Row {
    site: String,
    shape: String,
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

/// The best of what was tried.
#[derive(Serialize)]
struct Saturation {
    product: Option<Best>,
    per_precision: Vec<Best>,
    stream: Option<Best>,
    /// What memory does when nothing is computed; empty where `devices this` has it.
    ceilings: Vec<Ceiling>,
}

#[derive(Clone, Serialize)]
struct Best {
    shape: String,
    precision: String,
    tflops: f64,
    bandwidth_gb_s: f64,
    /// Of the device's peak, or of its bandwidth.
    share: Option<f64>,
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
    let specs = precisions(names, Varies::Product(None), device)?;
    let products = PRODUCTS.iter().take(if quick { 1 } else { PRODUCTS.len() });
    // What is stored narrow and multiplied wide saturates nothing that its activations' own precision does not.
    let native = |spec: &&PrecisionSpec| spec.on(device).is_ok_and(|formats| formats.weights == formats.activations);
    let native: Vec<PrecisionSpec> = specs.iter().filter(native).cloned().collect();
    let mut all = Vec::new();
    for (m, n, k) in products {
        all.extend(at_precisions(&Graph::gemm(*m, *n, *k)?, &native, device)?);
    }
    for (n, k) in STREAMS {
        all.extend(at_precisions(&Graph::gemv(n, k)?, &specs, device)?);
    }
    Ok(Subjects { words: "saturation".to_owned(), all })
}

fn row(measured: &Measurement, device: &Device) -> Row {
    let (summary, work) = (measured.summary(), measured.work());
    Row {
        site: measured.site.clone(),
        shape: measured.op.words(&measured.site),
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

impl Saturation {
    fn of(all: &[Measurement], device: &Device, ceilings: Vec<Ceiling>) -> Self {
        let stream = |measured: &&Measurement| matches!(measured.op, Op::Linear(linear) if linear.m.get() == 1);
        let best = |measured: &Measurement, share: Option<f64>| Best {
            shape: measured.op.words(&measured.site),
            precision: measured.precision.clone(),
            tflops: measured.rate().value() / 1e12,
            bandwidth_gb_s: measured.bandwidth().value() / 1e9,
            share,
        };
        let product = |measured: &Measurement| {
            let peak = device.peaks.of(measured.formats.math);
            best(measured, peak.map(|peak| measured.rate() / peak))
        };
        let fastest = |one: &&Measurement, other: &&Measurement| one.rate().value().total_cmp(&other.rate().value());
        let mut names: Vec<&str> = Vec::new();
        for measured in all {
            if !names.contains(&measured.precision.as_str()) {
                names.push(&measured.precision);
            }
        }
        let products = || all.iter().filter(|measured| !stream(measured));
        let per = |name: &str| products().filter(|measured| measured.precision == name).max_by(fastest).map(product);
        let read =
            |one: &&Measurement, other: &&Measurement| one.bandwidth().value().total_cmp(&other.bandwidth().value());
        let streamed = all.iter().filter(stream).max_by(read);
        Self {
            product: products().max_by(fastest).map(product),
            per_precision: names.into_iter().filter_map(per).collect(),
            stream: streamed.map(|measured| best(measured, Some(measured.bandwidth() / device.memory.bandwidth))),
            ceilings,
        }
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
        let skipped = self
            .skipped
            .iter()
            .map(|skipped| format!("{} {}: {}", skipped.op.words(&skipped.site), skipped.precision, skipped.reason));
        kinds.into_iter().map(paragraph).chain(skipped).collect()
    }

    fn table(&self) -> Table {
        let mut table = Table::default()
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
        table
    }
}

impl Saturation {
    fn table(&self) -> Table {
        let mut table = Table::default()
            .column("best", Align::Left, 0)
            .column("shape", Align::Left, 0)
            .column("precision", Align::Left, 0)
            .column("GFLOP/s", Align::Right, 0)
            .column("GB/s", Align::Right, 0)
            .column("of peak", Align::Right, 0);
        let named = |what: &'static str| move |best: &Best| (what, best.clone());
        let rows = self
            .product
            .iter()
            .map(named("product"))
            .chain(self.per_precision.iter().map(named("product in")))
            .chain(self.stream.iter().map(named("stream")));
        for (what, best) in rows {
            table.row([
                what.into(),
                best.shape.into(),
                best.precision.into(),
                number(best.tflops * 1e3).into(),
                number(best.bandwidth_gb_s).into(),
                best.share.map_or_else(String::new, |share| format!("{:.0} %", share * 100.0)).into(),
            ]);
        }
        for ceiling in &self.ceilings {
            let (name, time, rate) = match ceiling {
                Ceiling::Stream { name, rate, .. } => (*name, String::new(), number(rate.value() / 1e9)),
                Ceiling::Launch { name, time } => (*name, format!("{} us", number(time.micros())), String::new()),
            };
            table.row([
                "memory".into(),
                name.into(),
                time.into(),
                String::new().into(),
                rate.into(),
                String::new().into(),
            ]);
        }
        table
    }
}
