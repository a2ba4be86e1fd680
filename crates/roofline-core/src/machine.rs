//! A place where models run: a device, whose kernels run on it, and what is known of how fast those are.
//!
//! The floor needs the device alone. What is likely needs terms, and there are always some: those that a calibration
//! measured on this device with these kernels, where it covers a kernel; those of a kernel beside it, where it does not; and
//! those that devices of its class have in common, where there is no calibration. [`Basis`] says which.

mod class;
mod sibling;
mod stack;

pub use class::Class;
pub use stack::Stack;

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    Device, Graph, Math, Op, Precision, Result,
    calibration::{Calibration, Stands, Terms},
    format::Sizes,
    plan::Assignment,
    predict::{Causes, Estimate, Expected, Prediction},
    published::{Among, Effects, Kernel, Reach, Regime, Shared},
    units::Seconds,
};

/// Where the terms of an expectation come from, the strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// Measured kernels of this device and stack.
    Calibrated,
    /// Whole-model speeds of this stack.
    Published,
    /// Measured kernels beside it: another format, another device of the architecture.
    Transferred,
    /// What devices of its class have in common.
    Prior,
}

impl Basis {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Calibrated => "calibrated",
            Self::Published => "published",
            Self::Transferred => "transferred",
            Self::Prior => "prior",
        }
    }
}

impl std::fmt::Display for Basis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// How much wider an interval is on a device that kernels were not timed on, in logarithms: what it takes for B200 and GB200,
/// each predicted from the other, to have four of five timings inside.
pub const MOVED: f64 = 1.5;

/// Everything that a prediction needs to know about a place.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The device.
    pub device: Device,
    /// Whose kernels.
    pub stack: Stack,
    /// How sizes count.
    pub sizes: Sizes,
    calibration: Option<Cow<'static, Calibration>>,
    /// Whether it was measured on another device of the architecture.
    moved: bool,
    reach: Reach,
}

impl Machine {
    /// A device with the terms of its class, and those of the calibration that ships for it, where there is one.
    pub fn new(device: Device, stack: Stack) -> Self {
        let own = Calibration::builtin(&device, stack.name()).map(Cow::Borrowed);
        let moved = own.is_none().then(|| Calibration::moved_to(&device, stack.name())).flatten();
        let reach = Effects::builtin().reach(&device, stack, None);
        let (is_moved, calibration) = (moved.is_some(), own.or(moved.map(Cow::Owned)));
        Self { device, stack, sizes: Sizes::Exact, calibration, moved: is_moved, reach }
    }

    /// The same with other sizes.
    #[must_use]
    pub fn counting(self, sizes: Sizes) -> Self {
        Self { sizes, ..self }
    }

    /// The same with what was measured of it, or with nothing measured.
    #[must_use]
    pub fn calibrated(self, calibration: Option<Cow<'static, Calibration>>) -> Self {
        Self { calibration, moved: false, ..self }
    }

    /// The same with what runtimes reach by other figures.
    #[must_use]
    pub fn reaching(self, effects: &Effects) -> Self {
        Self { reach: effects.reach(&self.device, self.stack, None), ..self }
    }

    /// The same device with other rates: terms that were measured follow the bandwidth.
    pub fn scaled(&self, bandwidth: f64, compute: f64) -> Result<Self> {
        let device = self.device.scaled(bandwidth, compute)?;
        let calibration = self.calibration.as_ref().map(|calibration| {
            let mut own = calibration.clone().into_owned();
            own.terms.scale(bandwidth, compute);
            Cow::Owned(own)
        });
        Ok(Self { device, calibration, ..self.clone() })
    }

    /// What was measured of it.
    pub fn calibration(&self) -> Option<&Calibration> {
        self.calibration.as_deref()
    }

    /// Whether what was measured was measured on another device of the architecture.
    pub fn is_moved(&self) -> bool {
        self.moved
    }

    /// What the runtime reaches of it, by published speeds.
    pub fn reach(&self) -> &Reach {
        &self.reach
    }

    /// Both times of one kernel that stands alone, and what the expected one stands on.
    pub fn prediction(&self, op: &Op, precision: &Precision) -> Result<(Prediction, Basis)> {
        let among = Among { launch: self.reach.alone(), regime: Regime::of_op(op), whole: false };
        self.prediction_among(op, precision, among)
    }

    /// The same of one of many.
    pub(crate) fn prediction_among(&self, op: &Op, precision: &Precision, among: Among) -> Result<(Prediction, Basis)> {
        let precision = &self.multiplied(precision);
        let ideal = Estimate::of(op, precision, self.sizes, &self.device)?;
        let (expected, basis) = self.expected(op, precision, among, &ideal);
        Ok((Prediction { ideal, expected }, basis))
    }

    /// What all kernels of a graph share.
    pub(crate) fn among(&self, graph: &Graph, assignment: &Assignment) -> Among {
        let Some((sequences, prompt)) = graph.sequences().filter(|_| graph.anatomy.is_some()) else {
            let regime = graph.nodes.iter().map(|node| Regime::of_op(&node.op)).max().unwrap_or(Regime::Token);
            return Among { launch: self.reach.alone(), regime, whole: false };
        };
        Shared::of(graph, assignment).among(sequences, prompt, &self.reach)
    }

    /// Formats as the runtime multiplies them.
    pub(crate) fn multiplied(&self, precision: &Precision) -> Precision {
        let sixteen = matches!(precision.math, Math::Fp16 | Math::Bf16);
        let halves = self.stack.adds_in_sixteen() && sixteen && self.device.peaks.of(Math::Fp16Acc16).is_some();
        if halves { Precision { math: Math::Fp16Acc16, ..*precision } } else { *precision }
    }

    /// The time of a kernel as somebody timed it under the runtime; none where nobody did.
    pub(crate) fn timed(&self, op: &Op, precision: &Precision) -> Option<Causes> {
        let timed = self.calibration().filter(|own| matches!(own.terms, Terms::Timed(_)))?;
        timed.causes(op, precision, self.sizes)
    }

    fn expected(&self, op: &Op, precision: &Precision, among: Among, ideal: &Estimate) -> (Expected, Basis) {
        let Some(calibration) = self.calibration.as_deref() else {
            return self.reached(op, precision, among, ideal);
        };
        // Kernels that were timed one by one are started by the runtime, which takes its time in a whole model.
        let start = match calibration.terms {
            Terms::Timed(_) if among.whole => among.launch,
            _ => Seconds::ZERO,
        };
        // A whole model is no surer than such models were.
        let least = if start > Seconds::ZERO { libm::log(self.reach.factor(among.regime)) } else { 0.0 };
        // Our own kernels stand in a graph, where the next may begin before the last has ended.
        let own = among.whole && !self.moved;
        let stands = if own { Stands::InPass } else { Stands::Alone };
        let start = if own { start + calibration.between() } else { start };
        // What runs beside products of many rows moves bytes of its own, in kernels of its own: it says nothing of what bounds
        // the product.
        let rounding = || calibration.rounding(op, precision, self.sizes);
        let beside = if own { calibration.beside(op, precision) + rounding() } else { Seconds::ZERO };
        // The floor of experts that were measured has fewer of them than ran.
        let likely = match op {
            Op::Experts(_) if calibration.covers(op, precision) => {
                Estimate::likely(op, precision, self.sizes, &self.device).unwrap_or(*ideal)
            }
            _ => *ideal,
        };
        let started = |causes: Causes| {
            let [time, launch] = [causes.time, causes.launch].map(|part| (part + start).max(Seconds::ZERO));
            // What caches hand to the multipliers is no matter of memory, where its bytes take less than half of the time.
            let fed = likely.memory / likely.compute < 0.5;
            let memory = if fed { causes.memory.min(likely.memory) } else { causes.memory };
            let compute = if fed { causes.compute.max(causes.memory) } else { causes.compute };
            Causes { time: time + beside, launch, memory, compute, ..causes }
        };
        if let Some((causes, interval)) = calibration.expect(op, precision, self.sizes, stands) {
            let (interval, basis) =
                if self.moved { (MOVED * interval, Basis::Transferred) } else { (interval, Basis::Calibrated) };
            return (Expected::new(started(causes), interval.max(least).exp(), ideal), basis);
        }
        if let Some((causes, interval)) = self.sibling(calibration, op, precision, ideal, stands) {
            return (Expected::new(started(causes), interval.max(least).exp(), ideal), Basis::Transferred);
        }
        self.reached(op, precision, among, ideal)
    }

    /// By what the runtime reaches of such devices.
    fn reached(&self, op: &Op, precision: &Precision, among: Among, ideal: &Estimate) -> (Expected, Basis) {
        // Where only the floor differs from what is likely, both are the same.
        let likely = match op {
            Op::Experts(_) => Estimate::likely(op, precision, self.sizes, &self.device).unwrap_or(*ideal),
            _ => *ideal,
        };
        let kernel = Kernel::of(op, precision, self.sizes, &self.device, &likely);
        let basis = if self.reach.is_known() { Basis::Published } else { Basis::Prior };
        (self.reach.expect(&kernel, among, ideal), basis)
    }
}
