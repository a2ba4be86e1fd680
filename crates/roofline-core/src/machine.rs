//! A place where models run: a device, whose kernels run on it, and what is known of how fast those are.
//!
//! The floor needs the device alone. What is likely needs terms, and there are always some: those that a calibration
//! measured on this device with these kernels, where it covers a kernel; those of a kernel beside it, where it does not; and
//! those that devices of its class have in common, where there is no calibration. [`Basis`] says which.

mod class;
mod prior;
mod sibling;
mod stack;

pub use class::Class;
pub use prior::Prior;
pub use stack::Stack;

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    Device, Op, Precision, Result,
    calibration::Calibration,
    format::Sizes,
    predict::{Estimate, Expected, Prediction},
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
    prior: Prior,
}

impl Machine {
    /// A device with the terms of its class, and those of the calibration that ships for it, where there is one.
    pub fn new(device: Device, stack: Stack) -> Self {
        let own = Calibration::builtin(&device, stack.name()).map(Cow::Borrowed);
        let moved = own.is_none().then(|| Calibration::moved_to(&device, stack.name())).flatten();
        let prior = Prior::of(&device, stack);
        let (is_moved, calibration) = (moved.is_some(), own.or(moved.map(Cow::Owned)));
        Self { device, stack, sizes: Sizes::Exact, calibration, moved: is_moved, prior }
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

    /// What it has in common with its class.
    pub fn prior(&self) -> &Prior {
        &self.prior
    }

    /// Both times of one kernel that stands alone, and what the expected one stands on.
    pub fn prediction(&self, op: &Op, precision: &Precision) -> Result<(Prediction, Basis)> {
        self.prediction_among(op, precision, self.prior.alone())
    }

    /// The same of one of many, which start in `launch` each where nobody measured it.
    pub(crate) fn prediction_among(
        &self,
        op: &Op,
        precision: &Precision,
        launch: Seconds,
    ) -> Result<(Prediction, Basis)> {
        let ideal = Estimate::of(op, precision, self.sizes, &self.device)?;
        let (expected, basis) = self.expected(op, precision, launch, &ideal);
        Ok((Prediction { ideal, expected }, basis))
    }

    fn expected(&self, op: &Op, precision: &Precision, launch: Seconds, ideal: &Estimate) -> (Expected, Basis) {
        let Some(calibration) = self.calibration.as_deref() else {
            return (self.prior.expect(op, precision, launch, self, ideal), Basis::Prior);
        };
        if let Some((causes, interval)) = calibration.expect(op, precision, self.sizes) {
            let (interval, basis) =
                if self.moved { (MOVED * interval, Basis::Transferred) } else { (interval, Basis::Calibrated) };
            return (Expected::new(causes, interval.exp(), ideal), basis);
        }
        if let Some((causes, interval)) = self.sibling(calibration, op, precision, ideal) {
            return (Expected::new(causes, interval.exp(), ideal), Basis::Transferred);
        }
        (self.prior.expect(op, precision, launch, self, ideal), Basis::Prior)
    }
}
