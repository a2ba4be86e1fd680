//! Power modes: one board, several machines.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Clock, Device};
use crate::{
    Error, Result,
    units::{ByteRate, FlopRate, Hertz, Watts},
};

/// A mode of a Jetson's `nvpmodel` table.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PowerMode {
    /// Its name, which is what to select it by: ids differ between images.
    pub name: String,
    /// Its id in the table it was read from.
    pub id: u32,
    /// Power budget, where the mode has one.
    pub power: Option<Watts>,
    /// Highest GPU clock.
    pub gpu_clock: Hertz,
    /// Multiprocessors that stay powered.
    pub sm: u32,
    /// Memory clock.
    pub memory_clock: Hertz,
    /// Memory bandwidth at that clock.
    pub bandwidth: ByteRate,
    /// Dense FP16 rate at that clock and count.
    pub fp16: FlopRate,
    /// Dense INT8 rate, where the chip has one.
    pub int8: Option<FlopRate>,
    /// Whether the board starts in it.
    #[serde(default)]
    pub default: bool,
    /// Whether no source confirms it.
    #[serde(default)]
    pub unverified: bool,
}

impl Device {
    /// The device in one of its power modes: the mode's bandwidth, and every peak scaled by the multiprocessors and the
    /// clock that are left. Memory keeps its own clock, so a mode that halves compute need not touch bandwidth.
    pub fn in_mode(&self, name: &str) -> Result<Self> {
        let modes = &self.power_modes;
        let mode = modes.iter().find(|mode| mode.name.eq_ignore_ascii_case(name.trim())).ok_or_else(|| {
            let modes = modes.iter().map(|mode| mode.name.clone()).collect();
            Error::PowerMode { device: self.name.clone(), mode: name.to_owned(), modes }
        })?;
        let (count, clock) = self.units.sm.zip(self.clock.boost).ok_or_else(|| {
            let reason = "its power modes need `sm` in [units] and `boost` in [clock] to scale by".to_owned();
            Error::Device { key: self.key.clone(), reason }
        })?;
        let left = f64::from(mode.sm) / f64::from(count) * (mode.gpu_clock / clock);
        let mut device = self.clone();
        device.memory.bandwidth = mode.bandwidth;
        device.peaks = self.peaks.scaled(left);
        device.units.sm = Some(mode.sm);
        device.clock = Clock { boost: Some(mode.gpu_clock), ..Clock::default() };
        device.tdp = mode.power;
        device.measured = None;
        device.memory.bandwidth_range = None;
        device.mode = Some(mode.name.clone());
        device.checked()
    }
}
