//! Power modes: one board, several machines.

use serde::{Deserialize, Serialize};

use super::Device;
use crate::{
    Error, Result,
    units::{ByteRate, FlopRate, Hertz, Watts},
};

/// A mode of a Jetson's `nvpmodel` table.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
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
    /// Dense INT8 rate.
    pub int8: FlopRate,
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
        let known = modes.iter().find(|mode| mode.name.eq_ignore_ascii_case(name.trim()));
        let full = self.units.count().zip(self.clock.boost);
        let (Some(mode), Some((count, clock))) = (known, full) else {
            let modes = modes.iter().map(|mode| mode.name.clone()).collect();
            return Err(Error::PowerMode { device: self.name.clone(), mode: name.to_owned(), modes });
        };
        let left = f64::from(mode.sm) / f64::from(count) * (mode.gpu_clock / clock);
        let mut device = self.clone();
        device.memory.bandwidth = mode.bandwidth;
        device.peaks = self.peaks.scaled(left);
        device.mode = Some(mode.name.clone());
        Ok(device)
    }
}
