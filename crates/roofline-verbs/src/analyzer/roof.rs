//! What work of an intensity can reach.

use roofline_core::{
    Device, Math,
    units::{FlopRate, Intensity},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::place::{Place, ridge};
use crate::{Context, Error, Note, Result};

/// Work of an intensity on a device.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct Roof {
    /// Operations per byte
    pub oi: f64,
    #[serde(flatten)]
    pub place: Place,
}

/// What it can reach.
#[derive(Serialize, JsonSchema)]
pub struct RoofAnswer {
    pub device: String,
    pub device_name: String,
    /// The unit whose peak is the roof.
    pub dtype: String,
    pub peak_tflops: f64,
    pub bandwidth_gb_s: f64,
    #[serde(flatten)]
    pub standing: Standing,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// Where work of an intensity stands.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[schemars(rename = "RoofStanding")]
pub struct Standing {
    pub operational_intensity: f64,
    /// The intensity from which on the peak can be reached.
    pub ridge_point: f64,
    /// What the roof allows.
    pub theoretical_tflops: f64,
    pub is_memory_bound: bool,
    /// "memory-bound" or "compute-bound".
    pub bottleneck: &'static str,
    /// How much of the peak that is, in percent.
    pub efficiency_ceiling: f64,
}

impl Standing {
    pub(super) fn of(device: &Device, math: Math, intensity: Intensity) -> Result<Self> {
        let ridge = ridge(device, math)?;
        let (peak, slope) = (ridge * device.memory.bandwidth, intensity * device.memory.bandwidth);
        let is_memory_bound = intensity < ridge;
        Ok(Self {
            operational_intensity: intensity.value(),
            ridge_point: ridge.value(),
            theoretical_tflops: tera(peak.min(slope)),
            is_memory_bound,
            bottleneck: if is_memory_bound { "memory-bound" } else { "compute-bound" },
            efficiency_ceiling: (100.0 * (intensity / ridge)).min(100.0),
        })
    }

    /// The same in one word.
    pub(super) fn bound(&self) -> &'static str {
        if self.is_memory_bound { "Memory" } else { "Compute" }
    }
}

/// TFLOP/s.
pub(super) fn tera(rate: FlopRate) -> f64 {
    rate.value() / 1e12
}

impl Roof {
    pub(super) fn answer(&self, context: &Context) -> Result<RoofAnswer> {
        if !(self.oi.is_finite() && self.oi >= 0.0) {
            return Err(Error::request(format!("{} is no intensity", self.oi), "operations per byte, such as 1.5"));
        }
        let device = self.place.device(context)?;
        let math = self.place.unit(&device)?;
        let standing = Standing::of(&device, math, Intensity::new(self.oi))?;
        Ok(RoofAnswer {
            device: device.label(),
            dtype: math.key().to_owned(),
            peak_tflops: tera(ridge(&device, math)? * device.memory.bandwidth),
            bandwidth_gb_s: device.memory.bandwidth.value() / 1e9,
            standing,
            device_name: device.name,
            notes: context.notes(),
        })
    }
}
