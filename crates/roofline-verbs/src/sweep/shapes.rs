//! Products of many shapes and precisions, predicted and, if asked for, measured.

use std::path::PathBuf;

use roofline_core::{
    Device, Graph, Op, Plan,
    measurement::{Path as KernelPath, Residency, Subject, Warning},
    predict::{Figures, Prediction, Ratios},
};
#[cfg(feature = "hardware")]
use roofline_core::{
    Machine,
    compare::{Comparison, Observation, Pair, compare},
    measurement::{Energy, Measurement},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Request, Shape};
#[cfg(feature = "hardware")]
use crate::runner::{Outcome, Runner};
use crate::{
    Context, Error, Note, Result,
    machine::{self, Varies, plans},
    request::BackendName,
    subjects::{at_plans, refuse_theory},
};

/// From a decoded token to a long prompt.
pub const SHAPES: [Shape; 10] = [
    Shape { m: 1, n: 4096, k: 4096 },
    Shape { m: 1, n: 4096, k: 14336 },
    Shape { m: 1, n: 14336, k: 4096 },
    Shape { m: 16, n: 4096, k: 4096 },
    Shape { m: 128, n: 4096, k: 4096 },
    Shape { m: 512, n: 4096, k: 4096 },
    Shape { m: 1024, n: 4096, k: 4096 },
    Shape { m: 2048, n: 4096, k: 4096 },
    Shape { m: 2048, n: 4096, k: 14336 },
    Shape { m: 4096, n: 4096, k: 4096 },
];
/// A decoded token, a prompt, a square.
pub const QUICK: [Shape; 3] =
    [Shape { m: 1, n: 4096, k: 4096 }, Shape { m: 2048, n: 4096, k: 4096 }, Shape { m: 4096, n: 4096, k: 4096 }];

/// Every point, and the best precision of each shape.
#[derive(Serialize, JsonSchema)]
pub struct ShapeSweep {
    pub device: String,
    /// Who ran them, where they were measured.
    pub backend: Option<BackendName>,
    pub residency: Option<Residency>,
    pub points: Vec<ShapePoint>,
    pub best: Vec<BestOfShape>,
    pub skipped: Vec<String>,
    pub run: Option<PathBuf>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
    #[serde(skip)]
    pub doubts: Vec<Doubt>,
    #[serde(skip)]
    pub device_name: String,
}

/// A point: `sim_` is the prediction, `meas_` the measurement.
#[derive(Serialize, JsonSchema)]
pub struct ShapePoint {
    #[serde(rename = "M")]
    pub m: u64,
    #[serde(rename = "N")]
    pub n: u64,
    #[serde(rename = "K")]
    pub k: u64,
    pub precision: String,
    pub plan: Plan,
    #[serde(flatten)]
    pub figures: Figures,
    /// Over the first 16-bit precision of the shape, else over its first.
    #[serde(flatten)]
    pub ratios: Ratios,
    pub sim_ai: f64,
    pub sim_tflops: f64,
    pub sim_time_us: f64,
    pub sim_ideal_time_us: f64,
    pub sim_bottleneck: String,
    /// The operator's own, as that of the prediction: bytes that have to move.
    pub meas_ai: Option<f64>,
    pub meas_tflops: Option<f64>,
    pub meas_time_us: Option<f64>,
    pub meas_bandwidth_gb_s: Option<f64>,
    pub gap_pct: Option<f64>,
    pub power_w: Option<f64>,
    /// Per call, by power over time.
    pub energy_j: Option<f64>,
    pub kernel_path: Option<KernelPath>,
    pub warnings: Vec<Warning>,
    #[serde(skip)]
    pub prediction: Prediction,
}

/// The fastest precision of a shape.
#[derive(Serialize, JsonSchema)]
pub struct BestOfShape {
    pub shape: String,
    pub precision: String,
    /// Over the first 16-bit precision of the shape, else over its first.
    pub speedup: f64,
    pub over: String,
    pub measured: bool,
}

/// A warning of a measurement, by its kind.
pub struct Doubt {
    pub kind: &'static str,
    pub text: String,
}

fn subjects(context: &Context, args: &Request, device: &Device) -> Result<Vec<Subject>> {
    let plans = plans(&args.setting.precision, Varies::Product(None), device)?;
    let standard: &[Shape] = if args.quick() { &QUICK } else { &SHAPES };
    let shapes = if args.shapes.is_empty() { standard } else { &args.shapes };
    let mut all = Vec::new();
    for Shape { m, n, k } in shapes.iter().copied() {
        all.extend(at_plans(context, &Graph::gemm(m, n, k)?, &plans, device)?);
    }
    Ok(all)
}

pub(super) fn sweep(context: &Context, args: &Request) -> Result<ShapeSweep> {
    args.check()?;
    refuse_theory(&args.setting)?;
    let swept = if args.measures() { measured(context, args)? } else { simulated(context, args)? };
    Ok(ShapeSweep { notes: context.notes(), ..swept })
}

fn simulated(context: &Context, args: &Request) -> Result<ShapeSweep> {
    let on = match &args.setting.on[..] {
        [on] => on.as_str(),
        [] => "this",
        _ => return Err(Error::request("a sweep of shapes is over one device", "name one by ⟨on⟩")),
    };
    let machine = machine::usual(context, context.device(on)?, args.setting.stack).counting(args.setting.sizes);
    let tier = machine::spoken(args.setting.tier, &machine.device);
    let point = |subject: &Subject| {
        let (prediction, basis) = machine.prediction(&subject.op, &subject.formats)?;
        record(&subject.op, &subject.precision, &prediction, Figures::of(&prediction, basis, tier, &machine))
    };
    let points = subjects(context, args, &machine.device)?.iter().map(point).collect::<Result<_>>()?;
    Ok(ShapeSweep::new(&machine.device, points))
}

#[cfg(not(feature = "hardware"))]
fn measured(_: &Context, _: &Request) -> Result<ShapeSweep> {
    Err(Error::request("this build measures nothing", "leave out ⟨measure⟩"))
}

#[cfg(feature = "hardware")]
fn measured(context: &Context, args: &Request) -> Result<ShapeSweep> {
    let mut runner = Runner::start(context, &args.run, args.setting.first(), "sweep")?;
    let device = runner.device().clone();
    let Outcome { measured, skipped } = runner.measure(&subjects(context, args, &device)?)?.nonempty()?;
    let observations: Vec<Observation> = measured.iter().map(Observation::from).collect();
    let machine = machine::machine(context, device.clone(), runner.kind.stack());
    let tier = machine::spoken(args.setting.tier, &device);
    let Comparison { pairs, .. } = compare(&observations, &machine, tier)?;
    let skipped = skipped
        .iter()
        .map(|skipped| format!("{} {}: {}", skipped.op.words(&skipped.site), skipped.precision, skipped.reason));
    // Pairs are in the order of what was measured.
    let point = |(pair, measured): (&Pair, &Measurement)| record_of(pair, measured.energy, &machine);
    let points = pairs.iter().zip(&measured).map(point).collect::<Result<_>>()?;
    let skipped = skipped.collect();
    let doubts = pairs.iter().flat_map(|pair| {
        let name = format!("{} {}", pair.subject(), pair.label());
        let doubt =
            move |warning: &Warning| Doubt { kind: warning.name(), text: format!("{name}: {}", warning.sentence()) };
        pair.observation.warnings.iter().map(doubt)
    });
    Ok(ShapeSweep {
        backend: Some(runner.kind),
        residency: Some(runner.protocol.residency),
        skipped,
        doubts: doubts.collect(),
        run: Some(runner.path().to_owned()),
        ..ShapeSweep::new(&device, points)
    })
}

#[cfg(feature = "hardware")]
fn record_of(pair: &Pair, energy: Option<Energy>, machine: &Machine) -> Result<ShapePoint> {
    let observation = &pair.observation;
    let (prediction, basis) = machine.prediction(&observation.op, &observation.formats)?;
    let figures = Figures::of(&prediction, basis, pair.tier(), machine);
    Ok(ShapePoint {
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

fn record(op: &Op, precision: &str, prediction: &Prediction, figures: Figures) -> Result<ShapePoint> {
    let (m, n, k) = match op {
        Op::Linear(linear) => (linear.m.get(), linear.n.get(), linear.k.get()),
        _ => (0, 0, 0),
    };
    Ok(ShapePoint {
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

impl ShapeSweep {
    fn new(device: &Device, mut points: Vec<ShapePoint>) -> Self {
        let bases: Vec<Option<Prediction>> =
            points.iter().map(|point| base(&points, point.shape()).map(|base| base.prediction)).collect();
        for (point, base) in points.iter_mut().zip(bases) {
            point.ratios = Ratios::of(&point.prediction, base.as_ref(), point.figures.tier);
        }
        let (skipped, doubts, best) = (Vec::new(), Vec::new(), best(&points));
        let (device, device_name) = (device.label(), device.name.clone());
        let notes = Vec::new();
        Self { device, backend: None, residency: None, points, best, skipped, run: None, notes, doubts, device_name }
    }
}

impl ShapePoint {
    fn shape(&self) -> (u64, u64, u64) {
        (self.m, self.n, self.k)
    }
}

/// What the precisions of a shape are compared with: the first of 16 bit, else the first.
fn base(points: &[ShapePoint], shape: (u64, u64, u64)) -> Option<&ShapePoint> {
    let here = || points.iter().filter(move |point| point.shape() == shape);
    here().find(|point| matches!(point.precision.as_str(), "bf16" | "fp16")).or_else(|| here().next())
}

/// The fastest precision of each shape, over 16 bit.
fn best(points: &[ShapePoint]) -> Vec<BestOfShape> {
    let mut shapes: Vec<(u64, u64, u64)> = Vec::new();
    for point in points {
        let shape = (point.m, point.n, point.k);
        if !shapes.contains(&shape) {
            shapes.push(shape);
        }
    }
    let time = |point: &ShapePoint| point.meas_time_us.unwrap_or(point.sim_time_us);
    let of = |shape: (u64, u64, u64)| {
        let here = || points.iter().filter(move |point| point.shape() == shape);
        let base = base(points, shape)?;
        let best = here().min_by(|one, other| time(one).total_cmp(&time(other)))?;
        Some(BestOfShape {
            shape: format!("{} x {} x {}", shape.0, shape.1, shape.2),
            precision: best.precision.clone(),
            speedup: time(base) / time(best),
            over: base.precision.clone(),
            measured: best.meas_time_us.is_some(),
        })
    };
    shapes.into_iter().filter_map(of).collect()
}

#[cfg(all(test, feature = "hardware"))]
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
        let subject = &at_plans(&Context::pure(), &Graph::gemm(1, 4096, 4096).unwrap(), &plans, &device).unwrap()[0];
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
