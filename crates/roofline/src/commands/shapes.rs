//! `roofline sweep` without a model: products of many shapes and precisions, predicted and, if asked for, measured.

use std::path::PathBuf;

use roofline_core::{
    Device, Graph, Machine, Op, Plan,
    compare::{Comparison, Observation, Pair, compare},
    measurement::{Energy, Measurement, Path as KernelPath, Residency, Subject, Warning},
    predict::{Figures, Prediction, Ratios},
};
use serde::Serialize;

use super::{
    calibrate,
    runner::{Outcome, Runner},
    setting::{self, Varies, plans},
    subjects::{at_plans, refuse_theory},
    tier,
};
use crate::{
    cli::SweepArgs,
    config,
    failure::Failure,
    report::{Align, Format, Report, Section, Table, emit, number},
};

/// From a decoded token to a long prompt.
pub(crate) const SHAPES: [(u64, u64, u64); 10] = [
    (1, 4096, 4096),
    (1, 4096, 14336),
    (1, 14336, 4096),
    (16, 4096, 4096),
    (128, 4096, 4096),
    (512, 4096, 4096),
    (1024, 4096, 4096),
    (2048, 4096, 4096),
    (2048, 4096, 14336),
    (4096, 4096, 4096),
];
pub(crate) const QUICK: [(u64, u64, u64); 3] = [(1, 4096, 4096), (2048, 4096, 4096), (4096, 4096, 4096)];

/// Every point, and the best precision of each shape.
#[derive(Serialize)]
pub(crate) struct Sweep {
    device: String,
    /// Who ran them, where they were measured.
    backend: Option<&'static str>,
    residency: Option<Residency>,
    points: Vec<Record>,
    best: Vec<Best>,
    skipped: Vec<String>,
    run: Option<PathBuf>,
    #[serde(skip)]
    doubts: Vec<(&'static str, String)>,
    #[serde(skip)]
    device_name: String,
}

/// A point: `sim_` is the prediction, `meas_` the measurement.
#[derive(Serialize)]
struct Record {
    #[serde(rename = "M")]
    m: u64,
    #[serde(rename = "N")]
    n: u64,
    #[serde(rename = "K")]
    k: u64,
    precision: String,
    plan: Plan,
    #[serde(flatten)]
    figures: Figures,
    /// Over the first 16-bit precision of the shape, else over its first.
    #[serde(flatten)]
    ratios: Ratios,
    sim_ai: f64,
    sim_tflops: f64,
    sim_time_us: f64,
    sim_ideal_time_us: f64,
    sim_bottleneck: String,
    /// The operator's own, as that of the prediction: bytes that have to move.
    meas_ai: Option<f64>,
    meas_tflops: Option<f64>,
    meas_time_us: Option<f64>,
    meas_bandwidth_gb_s: Option<f64>,
    gap_pct: Option<f64>,
    power_w: Option<f64>,
    /// Per call, by power over time.
    energy_j: Option<f64>,
    kernel_path: Option<KernelPath>,
    warnings: Vec<Warning>,
    #[serde(skip)]
    prediction: Prediction,
}

#[derive(Serialize)]
struct Best {
    shape: String,
    precision: String,
    /// Over the first 16-bit precision of the shape, else over its first.
    speedup: f64,
    over: String,
    measured: bool,
}

pub(crate) fn sweep(args: &SweepArgs, form: Format) -> Result<(), Failure> {
    Ok(emit(&answer(args)?, form)?)
}

pub(crate) fn answer(args: &SweepArgs) -> Result<Sweep, Failure> {
    refuse_theory(&args.setting)?;
    if args.measure { measured(args) } else { simulated(args) }
}

fn subjects(args: &SweepArgs, device: &Device) -> Result<Vec<Subject>, Failure> {
    let plans = plans(&args.setting.precision, Varies::Product(None), device)?;
    let standard: &[(u64, u64, u64)] = if args.run.quick { &QUICK } else { &SHAPES };
    let shapes = if args.shapes.is_empty() { standard } else { &args.shapes };
    let mut all = Vec::new();
    for (m, n, k) in shapes {
        all.extend(at_plans(&Graph::gemm(*m, *n, *k)?, &plans, device)?);
    }
    Ok(all)
}

fn simulated(args: &SweepArgs) -> Result<Sweep, Failure> {
    let on = match &args.setting.on[..] {
        [on] => on.as_str(),
        [] => "this",
        _ => return Err(Failure::usage("a sweep of shapes is over one device", "name one by --on")),
    };
    let machine = tier::machine(&args.setting, setting::device(&config::registry(), on)?);
    let tier = tier::spoken(args.setting.tier, &machine.device);
    let point = |subject: &Subject| {
        let (prediction, basis) = machine.prediction(&subject.op, &subject.formats)?;
        record(&subject.op, &subject.precision, &prediction, Figures::of(&prediction, basis, tier, &machine))
    };
    let points = subjects(args, &machine.device)?.iter().map(point).collect::<Result<_, Failure>>()?;
    Ok(Sweep::new(&machine.device, points))
}

fn measured(args: &SweepArgs) -> Result<Sweep, Failure> {
    let mut runner = Runner::start(&args.run, args.setting.first(), "sweep")?;
    let device = runner.device().clone();
    let Outcome { measured, skipped } = runner.measure(&subjects(args, &device)?)?.nonempty()?;
    let observations: Vec<Observation> = measured.iter().map(Observation::from).collect();
    let machine = calibrate::machine(device.clone(), runner.backend.name());
    let tier = tier::spoken(args.setting.tier, &device);
    let Comparison { pairs, .. } = compare(&observations, &machine, tier)?;
    let skipped = skipped
        .iter()
        .map(|skipped| format!("{} {}: {}", skipped.op.words(&skipped.site), skipped.precision, skipped.reason));
    // Pairs are in the order of what was measured.
    let point = |(pair, measured): (&Pair, &Measurement)| record_of(pair, measured.energy, &machine);
    let points = pairs.iter().zip(&measured).map(point).collect::<Result<_, Failure>>()?;
    let skipped = skipped.collect();
    let doubts = pairs.iter().flat_map(|pair| {
        let name = format!("{} {}", pair.subject(), pair.label());
        let doubt = move |warning: &Warning| (warning.name(), format!("{name}: {}", warning.sentence()));
        pair.observation.warnings.iter().map(doubt)
    });
    Ok(Sweep {
        backend: Some(runner.backend.name()),
        residency: Some(runner.protocol.residency),
        skipped,
        doubts: doubts.collect(),
        run: Some(runner.path().to_owned()),
        ..Sweep::new(&device, points)
    })
}

fn record_of(pair: &Pair, energy: Option<Energy>, machine: &Machine) -> Result<Record, Failure> {
    let observation = &pair.observation;
    let (prediction, basis) = machine.prediction(&observation.op, &observation.formats)?;
    let figures = Figures::of(&prediction, basis, pair.tier(), machine);
    Ok(Record {
        precision: pair.label(),
        meas_ai: Some(pair.ideal.intensity().value()),
        kernel_path: observation.path,
        warnings: observation.warnings.clone(),
        meas_tflops: Some(pair.rate().value() / 1e12),
        meas_time_us: Some(observation.time.micros()),
        meas_bandwidth_gb_s: Some(pair.bandwidth().value() / 1e9),
        gap_pct: Some(pair.error() * 100.0),
        power_w: energy.map(|energy| energy.power.value()),
        energy_j: energy.map(|energy| energy.integrated.value()),
        ..record(&observation.op, &observation.precision, &prediction, figures)?
    })
}

fn record(op: &Op, precision: &str, prediction: &Prediction, figures: Figures) -> Result<Record, Failure> {
    let (m, n, k) = match op {
        Op::Linear(linear) => (linear.m.get(), linear.n.get(), linear.k.get()),
        _ => (0, 0, 0),
    };
    Ok(Record {
        m,
        n,
        k,
        precision: precision.to_owned(),
        plan: precision.parse()?,
        sim_ai: figures.ai,
        sim_tflops: figures.predicted_tflops,
        sim_time_us: figures.predicted_time_us,
        sim_ideal_time_us: figures.ideal_time_us,
        sim_bottleneck: figures.bottleneck.clone(),
        figures,
        ratios: Ratios::default(),
        meas_ai: None,
        meas_tflops: None,
        meas_time_us: None,
        meas_bandwidth_gb_s: None,
        gap_pct: None,
        power_w: None,
        energy_j: None,
        kernel_path: None,
        warnings: Vec::new(),
        prediction: *prediction,
    })
}

impl Sweep {
    fn new(device: &Device, mut points: Vec<Record>) -> Self {
        let bases: Vec<Option<Prediction>> =
            points.iter().map(|point| base(&points, point.shape()).map(|base| base.prediction)).collect();
        for (point, base) in points.iter_mut().zip(bases) {
            point.ratios = Ratios::of(&point.prediction, base.as_ref(), point.figures.tier);
        }
        let (skipped, doubts, best) = (Vec::new(), Vec::new(), best(&points));
        let (device, device_name) = (device.label(), device.name.clone());
        Self { device, backend: None, residency: None, points, best, skipped, run: None, doubts, device_name }
    }
}

impl Record {
    fn shape(&self) -> (u64, u64, u64) {
        (self.m, self.n, self.k)
    }
}

/// What the precisions of a shape are compared with: the first of 16 bit, else the first.
fn base(points: &[Record], shape: (u64, u64, u64)) -> Option<&Record> {
    let here = || points.iter().filter(move |point| point.shape() == shape);
    here().find(|point| matches!(point.precision.as_str(), "bf16" | "fp16")).or_else(|| here().next())
}

/// The fastest precision of each shape, over 16 bit.
fn best(points: &[Record]) -> Vec<Best> {
    let mut shapes: Vec<(u64, u64, u64)> = Vec::new();
    for point in points {
        let shape = (point.m, point.n, point.k);
        if !shapes.contains(&shape) {
            shapes.push(shape);
        }
    }
    let time = |point: &Record| point.meas_time_us.unwrap_or(point.sim_time_us);
    let of = |shape: (u64, u64, u64)| {
        let here = || points.iter().filter(move |point| point.shape() == shape);
        let base = base(points, shape)?;
        let best = here().min_by(|one, other| time(one).total_cmp(&time(other)))?;
        Some(Best {
            shape: format!("{} x {} x {}", shape.0, shape.1, shape.2),
            precision: best.precision.clone(),
            speedup: time(base) / time(best),
            over: base.precision.clone(),
            measured: best.meas_time_us.is_some(),
        })
    };
    shapes.into_iter().filter_map(of).collect()
}

impl Report for Sweep {
    const ROWS: &'static str = "points";

    fn sections(&self) -> Vec<Section> {
        let tier = tier::words(self.points.iter().map(|point| (point.figures.tier, point.figures.basis, &[][..])));
        let measured = match (self.backend, self.residency) {
            (Some("null"), _) => ", against fake times of the null backend".to_owned(),
            (Some(backend), Some(residency)) => format!(", measured by the {backend} backend, {residency}"),
            _ => ", nothing measured".to_owned(),
        };
        let heading = format!("Products on {}: {tier}{measured}", self.device_name);
        let mut sections =
            vec![Section::Heading(heading), Section::Table(self.table()), Section::Table(self.best_table())];
        sections.extend(self.warnings().into_iter().map(Section::Paragraph));
        let kept = self.run.iter().map(|path| Section::Line(format!("The run is kept in {}.", path.display())));
        sections.extend(kept);
        sections
    }

    /// The first doubt of each kind, and what could not be measured; the records have all.
    fn warnings(&self) -> Vec<String> {
        let mut kinds: Vec<&str> = Vec::new();
        let mut said: Vec<String> = Vec::new();
        for (kind, doubt) in &self.doubts {
            if !kinds.contains(kind) {
                kinds.push(kind);
                said.push(format!("{kind}: {doubt}"));
            }
        }
        said.into_iter().chain(self.skipped.iter().cloned()).collect()
    }
}

impl Sweep {
    fn table(&self) -> Table {
        let mut table = Table::default()
            .column("shape", Align::Left, 0)
            .column("precision", Align::Left, 0)
            .column("FLOP/B", Align::Right, 3)
            .column("sim TFLOP/s", Align::Right, 2)
            .column("sim us", Align::Right, 0)
            .column("bound", Align::Left, 1)
            .column("meas TFLOP/s", Align::Right, 2)
            .column("meas us", Align::Right, 0)
            .column("gap", Align::Right, 0)
            .column("W", Align::Right, 1)
            .column("mJ", Align::Right, 1);
        let some = |value: Option<f64>| value.map_or_else(String::new, number);
        for point in &self.points {
            table.row([
                format!("{} x {} x {}", point.m, point.n, point.k).into(),
                point.precision.as_str().into(),
                number(point.sim_ai).into(),
                number(point.sim_tflops).into(),
                number(point.sim_time_us).into(),
                point.sim_bottleneck.as_str().into(),
                some(point.meas_tflops).into(),
                some(point.meas_time_us).into(),
                point.gap_pct.map_or_else(String::new, |gap| format!("{gap:.0} %")).into(),
                some(point.power_w).into(),
                some(point.energy_j.map(|energy| energy * 1e3)).into(),
            ]);
        }
        table.without_empty_columns()
    }

    fn best_table(&self) -> Table {
        let mut table = Table::default()
            .column("shape", Align::Left, 0)
            .column("fastest", Align::Left, 0)
            .column("speed-up", Align::Right, 0)
            .column("over", Align::Left, 0);
        for best in &self.best {
            table.row([
                best.shape.as_str().into(),
                best.precision.as_str().into(),
                format!("{:.2}x", best.speedup).into(),
                best.over.as_str().into(),
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use roofline_core::{
        Registry,
        machine::Stack,
        predict::Tier,
        units::{Joules, Watts},
    };
    use roofline_run::{Null, Protocol, measure};

    use super::*;

    #[test]
    fn a_record_has_the_energy_of_its_kernel() {
        let device = Registry::builtin().find("h200").unwrap().into_owned();
        let plans = plans(&["bf16".to_owned()], Varies::Product(None), &device).unwrap();
        let subject = &at_plans(&Graph::gemm(1, 4096, 4096).unwrap(), &plans, &device).unwrap()[0];
        let measured = measure(&mut Null::new(device.clone()), subject, &Protocol::default()).unwrap();
        let machine = Machine::new(device.clone(), Stack::Null);
        let compared = compare(&[Observation::from(&measured)], &machine, Tier::Ideal).unwrap();
        let (calls, counted_j, clock_mhz) = (100, None, None);
        let energy = Energy { calls, integrated: Joules::new(0.004), counted_j, power: Watts::new(400.0), clock_mhz };
        let record = record_of(&compared.pairs[0], Some(energy), &machine).unwrap();
        assert_eq!((record.power_w, record.energy_j), (Some(400.0), Some(0.004)));
        assert_eq!(record_of(&compared.pairs[0], None, &machine).unwrap().power_w, None);
    }
}
