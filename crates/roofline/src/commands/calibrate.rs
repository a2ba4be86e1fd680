//! `roofline calibrate`: fits the expected tier to this machine, and says how good the fit is.

use std::path::PathBuf;

use roofline_core::{
    Device, Dim, Graph,
    calibration::{Calibration, Sample, Spread, fit},
    device::Origin,
    measurement::{Measurement, Path, Residency, Subject},
    op::{Attention, Cache, Elementwise, ElementwiseKind},
    precision::PrecisionSpec,
};
use roofline_run::{Run, cpu::linear::THIN_ROWS};
use serde::Serialize;

use super::{compare::device_of, gpu, runner::Runner, setting, subjects::at_precisions};
use crate::{
    cli::{BackendArg, CalibrateArgs, RunArgs},
    config,
    failure::Failure,
    report::{Align, Format, Report, Section, Table, emit, number, style},
};

/// A calibration, for reading.
#[derive(Serialize)]
pub(crate) struct Calibrated {
    #[serde(flatten)]
    calibration: Calibration,
    device_name: String,
    /// The terms as a list, for tables.
    rows: Vec<Term>,
}

#[derive(Serialize)]
struct Term {
    name: String,
    value: f64,
    unit: &'static str,
    meaning: &'static str,
}

/// Products of the grid: rows, and sides of the weights.
const ROWS: [u64; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
const QUICK_ROWS: [u64; 6] = [1, 4, 16, 64, 256, 1024];
const SIDES: [(u64, u64); 9] = [
    (256, 1024),
    (1024, 1024),
    (1024, 4096),
    (2048, 2048),
    (3072, 8192),
    (4096, 4096),
    (4096, 11008),
    (14336, 4096),
    (8192, 1536),
];
const QUICK_SIDES: [(u64, u64); 5] = [(256, 1024), (1024, 1024), (2048, 2048), (4096, 4096), (4096, 11008)];
/// What weights are stored in.
const PRECISIONS: [&str; 9] = ["fp32", "bf16", "fp16", "w8a16", "w4a16", "int8", "nf4", "fp8a16", "mxfp4a16"];
const QUICK_PRECISIONS: [&str; 5] = ["fp32", "bf16", "w8a16", "w4a16", "int8"];
/// Precisions of the full grid that are measured at every number of rows; the others at one row and at 64.
const MAIN: [&str; 5] = QUICK_PRECISIONS;
/// Kernels that are measured twice, to know how well the machine repeats itself.
const REPEATS: usize = 12;

pub(crate) fn calibrate(args: &CalibrateArgs, form: Format) -> Result<(), Failure> {
    let named = |on: &str| setting::device(&config::registry(), on);
    if args.show || args.forget {
        let backend = args.run.backend();
        let device = match args.on.as_deref() {
            None if backend == BackendArg::Cuda => gpu::device(args.run.gpu)?,
            on => named(on.unwrap_or("this"))?,
        };
        let stack = if backend == BackendArg::Null { "null" } else { "roofline" };
        let missing = || {
            let hint = "`roofline calibrate` makes one";
            Failure::usage(format!("there is no calibration of {} ({})", device.name, device.key), hint)
        };
        if args.forget {
            let there = config::forget("calibrations", &name(&device, stack))?;
            if !there {
                return Err(missing());
            }
            style::talk("note", "forgotten");
            return Ok(());
        }
        let calibration = stored(&device, stack).ok_or_else(missing)?;
        return Ok(emit(&Calibrated::new(calibration, &device), form)?);
    }
    if args.run.warm {
        let hint = "leave out --warm: a model finds its weights in memory";
        return Err(Failure::usage("the expected tier is of operands in memory", hint));
    }
    let (calibration, device) = if let Some(path) = &args.from {
        let run = Run::read(path)?;
        let device = args.on.as_deref().map_or_else(|| device_of(&run), named)?;
        let provenance = format!("{}, {} backend, {}", run.header.started, run.header.backend, path.display());
        (fitted(&run.measurements, &device, stack(&run.header.backend), provenance, Spread::default())?, device)
    } else {
        let mut runner = Runner::start(&args.run, args.on.as_deref(), "calibrate")?;
        (measured(&mut runner, &args.run)?, runner.device().clone())
    };
    let path = keep(&calibration, &device)?;
    let fake = if calibration.stack == "null" { " --stack null" } else { "" };
    style::talk("note", &format!("kept in {}; `predict --on {}{fake}` uses it", path.display(), device.label()));
    Ok(emit(&Calibrated::new(calibration, &device), form)?)
}

/// Measures the grid and fits to it. Some kernels are measured again at the end: that is how far the machine itself is
/// from one time to the next.
pub(super) fn measured(runner: &mut Runner, args: &RunArgs) -> Result<Calibration, Failure> {
    let (quick, chosen) = (args.quick, args.seconds.is_some());
    let device = runner.device().clone();
    let subjects = grid(&device, quick)?;
    let quiet = runner.protocol;
    if !chosen {
        runner.protocol.stop = roofline_run::Protocol::quick().stop;
    }
    let outcome = runner.measure(&subjects)?;
    let every = (subjects.len() / REPEATS).max(1);
    let twice: Vec<Subject> = subjects.iter().step_by(every).cloned().collect();
    let again = runner.repeat(&twice);
    let (residency, name) = (runner.protocol.residency, runner.backend.name());
    let pair = |subject: &Subject| {
        let find = |all: &[Measurement]| {
            all.iter().find(|one| one.repeats(subject, residency, name)).map(|one| one.time().value())
        };
        Some((find(&outcome.measured)?, find(&again)?))
    };
    let spread = Spread::of(&twice.iter().filter_map(pair).collect::<Vec<_>>());
    runner.protocol = quiet;
    let machine = &runner.environment.machine;
    let provenance = format!(
        "{}, {} backend, {}, {} threads, {}",
        super::runner::utc(std::time::SystemTime::now()),
        name,
        machine.name.as_deref().unwrap_or("an unnamed processor"),
        machine.threads,
        runner.environment.commit,
    );
    fitted(&outcome.measured, &device, stack(name), provenance, spread)
}

fn fitted(
    measured: &[Measurement],
    device: &Device,
    stack: &str,
    provenance: String,
    spread: Spread,
) -> Result<Calibration, Failure> {
    let sample =
        |measured: &Measurement| Sample { op: measured.op, precision: measured.formats, time: measured.time() };
    // The expected tier is of operands in memory, and of kernels that nobody would call naive.
    let usual = |one: &&Measurement| one.kernel.path != Path::CastEmulated && one.residency == Residency::Cold;
    let samples: Vec<Sample> = measured.iter().filter(usual).map(sample).collect();
    Ok(fit(&samples, device, stack, provenance, THIN_ROWS, spread)?)
}

/// The calibration that is kept for a device and a stack; a device with other rates than its own has none.
pub(super) fn stored(device: &Device, stack: &str) -> Option<Calibration> {
    if device.origin == Origin::Modified {
        return None;
    }
    let kept = config::load::<Calibration>("calibrations", &name(device, stack))?;
    match kept.checked() {
        Ok(kept) if kept.device == device.label() && kept.stack == stack => Some(kept),
        Ok(_) => None,
        Err(error) => {
            style::talk("warning", &format!("left out: {error}"));
            None
        }
    }
}

/// Keeps a calibration for its device and stack.
pub(super) fn keep(calibration: &Calibration, device: &Device) -> Result<PathBuf, Failure> {
    config::keep("calibrations", &name(device, &calibration.stack), calibration)
}

fn name(device: &Device, stack: &str) -> String {
    format!("{}.{stack}", device.label())
}

/// Whose kernels a backend runs.
pub(super) fn stack(backend: &str) -> &'static str {
    if backend == "null" { "null" } else { "roofline" }
}

/// Products over rows, sides and precisions; attention; element-wise kernels.
fn grid(device: &Device, quick: bool) -> Result<Vec<Subject>, Failure> {
    let (rows, sides): (&[u64], &[(u64, u64)]) = if quick { (&QUICK_ROWS, &QUICK_SIDES) } else { (&ROWS, &SIDES) };
    let names: &[&str] = if quick { &QUICK_PRECISIONS } else { &PRECISIONS };
    let specs: Vec<PrecisionSpec> = names.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
    let usable: Vec<PrecisionSpec> = specs.into_iter().filter(|spec| spec.on(device).is_ok()).collect();
    let mut all = Vec::new();
    for (at, (n, k)) in sides.iter().enumerate() {
        for (row, m) in rows.iter().enumerate() {
            // Few rows are cheap and matter most; of the others every shape sees a third.
            if *m > 1 && (at + row) % 3 != 0 {
                continue;
            }
            let graph = Graph::gemm(*m, *n, *k)?;
            let here: Vec<PrecisionSpec> =
                usable.iter().filter(|spec| MAIN.contains(&spec.name()) || matches!(m, 1 | 64)).cloned().collect();
            all.extend(at_precisions(&graph, &here, device)?);
        }
    }
    let wide: Vec<PrecisionSpec> =
        usable.iter().filter(|spec| matches!(spec.name(), "fp32" | "bf16")).cloned().collect();
    for graph in attention(quick)?.iter().chain(&elementwise(quick)?) {
        all.extend(at_precisions(graph, &wide, device)?);
    }
    Ok(all)
}

fn attention(quick: bool) -> Result<Vec<Graph>, Failure> {
    let decode = [(32, 8, 128, 1024), (32, 8, 128, 4096), (32, 32, 128, 2048), (16, 4, 64, 8192), (32, 8, 64, 512)];
    let prefill = [(8, 2, 128, 256), (16, 4, 64, 512), (8, 8, 128, 512), (4, 1, 128, 1024)];
    let take = if quick { 3 } else { 5 };
    let new = |heads: u64, kv_heads: u64, width: u64, queries: u64, context: u64| {
        let attention = Attention {
            batch: Dim::ONE,
            heads: Dim::new("heads", heads)?,
            kv_heads: Dim::new("kv-heads", kv_heads)?,
            head_dim: Dim::new("head-dim", width)?,
            value_dim: Dim::new("head-dim", width)?,
            queries: Dim::new("queries", queries)?,
            context: Dim::new("context", context)?,
            causal: true,
            window: None,
            cache: Cache::Separate,
        };
        Ok::<Graph, Failure>(Graph::attention(attention.checked()?, true))
    };
    let decode = decode.iter().take(take).map(|(heads, kv, width, context)| new(*heads, *kv, *width, 1, *context));
    let prefill =
        prefill.iter().take(take - 1).map(|(heads, kv, width, length)| new(*heads, *kv, *width, *length, *length));
    decode.chain(prefill).collect()
}

fn elementwise(quick: bool) -> Result<Vec<Graph>, Failure> {
    use ElementwiseKind as K;
    let kinds = [K::Norm, K::Residual, K::GatedActivation, K::Rope];
    let shapes: &[(u64, u64)] = if quick {
        &[(1, 4096), (64, 4096), (1024, 4096)]
    } else {
        &[(1, 4096), (16, 8192), (64, 4096), (512, 2048), (1024, 4096)]
    };
    let mut all = Vec::new();
    for (tokens, width) in shapes {
        for kind in kinds {
            let width = Dim::new("width", if kind == K::Rope { 128 } else { *width })?;
            let vectors = if kind == K::Rope { Dim::new("vectors", 40)? } else { Dim::ONE };
            all.push(Graph::elementwise(Elementwise { kind, tokens: u128::from(*tokens), vectors, width }));
        }
    }
    Ok(all)
}

impl Calibrated {
    fn new(calibration: Calibration, device: &Device) -> Self {
        let terms = &calibration.terms;
        let term = |name: String, value: f64, unit, meaning| Term { name, value, unit, meaning };
        let mut rows = vec![
            term("launch".into(), terms.launch.micros(), "us", "per call: starting all cores, waiting for the last"),
            term("read".into(), terms.read.value() / 1e9, "GB/s", "what reading from memory reaches"),
            term("write".into(), terms.write.value() / 1e9, "GB/s", "what writing to memory reaches"),
            term("overlap".into(), terms.overlap, "", "share of the shorter of memory and compute that is hidden"),
        ];
        rows.extend(terms.rates.iter().map(|rate| {
            let name = format!("{} {}", rate.family, rate.math);
            term(name, rate.rate.value() / 1e9, "GFLOP/s", "rate reached")
        }));
        rows.extend(terms.unpack.iter().map(|unpack| {
            let name = format!("{} {}", unpack.family, unpack.format);
            term(name, unpack.cost.value() * 1e12, "ps/element", "widening what is stored")
        }));
        Self { calibration, device_name: device.name.clone(), rows }
    }
}

impl Report for Calibrated {
    const ROWS: &'static str = "rows";

    fn sections(&self) -> Vec<Section> {
        let quality = &self.calibration.quality;
        let mut table = Table::default()
            .column("term", Align::Left, 0)
            .column("value", Align::Right, 0)
            .column("unit", Align::Left, 0)
            .column("meaning", Align::Left, 1);
        for row in &self.rows {
            let value = if row.value < 0.01 { "0".to_owned() } else { number(row.value) };
            table.row([row.name.as_str().into(), value.into(), row.unit.into(), row.meaning.into()]);
        }
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let fact = |name: &str, value: String| (name.to_owned(), value);
        let facts = vec![
            fact("made", self.calibration.provenance.clone()),
            fact("fitted to", format!("{} measurements, mean error {}", quality.fitted, percent(quality.fitted_mean))),
            fact(
                "held out",
                format!(
                    "{} measurements of shapes it never saw: mean {}, median {}, nine of ten within {}, worst {}",
                    quality.held_out,
                    percent(quality.mean),
                    percent(quality.median),
                    percent(quality.p90),
                    percent(quality.max)
                ),
            ),
            fact(
                "ideal tier",
                format!("mean {}, median {} on the same", percent(quality.ideal_mean), percent(quality.ideal_median)),
            ),
            fact(
                "the machine",
                if quality.spread.repeats == 0 {
                    "nothing was measured twice, so its own spread is not known".to_owned()
                } else {
                    format!(
                        "{} kernels measured twice differ by {} on average, {} in the median",
                        quality.spread.repeats,
                        percent(quality.spread.mean),
                        percent(quality.spread.median)
                    )
                },
            ),
        ];
        vec![
            Section::Heading(format!("Calibration of {} for the {} kernels", self.device_name, self.calibration.stack)),
            Section::Table(table),
            Section::Facts(facts),
        ]
    }
}
