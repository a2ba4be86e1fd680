//! What a GPU says of itself while it runs: clocks, power, temperature, memory, and what holds it back.
//!
//! A rate without the clock it ran at cannot be judged: at its power limit the same GPU is slower. [`Status`] is
//! one look, [`PowerTracker`] a recording. Between them and the driver stands [`Source`], every query of which may fail
//! alone: what a driver knows differs by generation, by system and by container, and one question that it refuses is no
//! reason to lose the answers to the others.

mod capability;
pub mod nvml;
mod power;
mod shortage;
mod status;

pub use capability::Capability;
pub use nvml::Gpu;
pub use power::{Energies, PowerReading, PowerTracker, Recording, Sample, Summary};
pub use shortage::Shortage;
pub use status::Status;

use std::fmt;

use roofline_core::units::{ByteRate, Bytes, Celsius, Hertz, Joules, Watts};
use schemars::JsonSchema;
use serde::Serialize;

/// Why a query has no answer, in the driver's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unread(pub String);

/// An answer, or why there is none.
pub type Reading<T> = std::result::Result<T, Unread>;

/// A GPU that answers questions about itself.
pub trait Source: Send + Sync {
    /// The name that its driver reports.
    fn device_name(&self) -> Reading<String>;
    /// CUDA compute capability, such as `9.0`.
    fn compute_capability(&self) -> Reading<String>;
    /// Version of the driver.
    fn driver_version(&self) -> Reading<String>;
    /// A clock now.
    fn clock(&self, domain: ClockDomain) -> Reading<Hertz>;
    /// The highest that a clock can be.
    fn max_clock(&self, domain: ClockDomain) -> Reading<Hertz>;
    /// Power as `nvidia-smi` shows it. From Ampere on, GA100 apart, that is the mean of the last second
    /// (`nvmlDeviceGetPowerUsage`), which says little about a kernel that ran for ten milliseconds.
    fn power_draw(&self) -> Reading<Watts>;
    /// Power at this moment.
    fn instant_power(&self) -> Reading<Watts>;
    /// The power that the driver allows now.
    fn power_limit(&self) -> Reading<Watts>;
    /// Temperature of the chip.
    fn temperature(&self) -> Reading<Celsius>;
    /// The temperature at which the hardware slows itself down.
    fn temperature_throttle(&self) -> Reading<Celsius>;
    /// Memory of the device.
    fn memory(&self) -> Reading<Memory>;
    /// Processes that hold memory of the device, this one among them. In a container the driver may name none.
    fn holders(&self) -> Reading<Vec<Holder>>;
    /// How busy it was during the driver's last sampling period.
    fn utilization(&self) -> Reading<Utilization>;
    /// Generation of its PCIe link as it runs now; idle links are slower.
    fn pcie_generation(&self) -> Reading<u32>;
    /// Lanes of its PCIe link as it runs now.
    fn pcie_width(&self) -> Reading<u32>;
    /// Traffic over its PCIe link, which the driver watches for 20 ms to answer.
    fn pcie_traffic(&self, way: Way) -> Reading<ByteRate>;
    /// Its multiprocessors.
    fn multiprocessors(&self) -> Reading<u32>;
    /// What keeps its clocks below their maximum.
    fn throttle_reasons(&self) -> Reading<Vec<Throttle>>;
    /// Energy since the driver was loaded; only differences mean something.
    fn total_energy(&self) -> Reading<Joules>;
}

/// A way over the link between a GPU and its host, as the GPU sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the GPU.
    Sent,
    /// To it.
    Received,
}

/// A part of the chip with a clock of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockDomain {
    /// Graphics.
    Graphics,
    /// Multiprocessors: what multiplies.
    Sm,
    /// Memory.
    Memory,
}

/// Memory of a device. Used and free need not add up to the total: the driver keeps some for itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// All of it.
    pub total: Bytes,
    /// What processes hold.
    pub used: Bytes,
    /// What is left.
    pub free: Bytes,
}

/// A process with memory of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Holder {
    /// The number of the process.
    pub process: u32,
    /// Its program, without folder and arguments.
    pub name: Option<String>,
    /// How much it holds; some systems do not tell.
    pub memory: Option<Bytes>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} (process {})", self.process),
            None => write!(f, "process {}", self.process),
        }
    }
}

/// Shares of time in whole per cent, as drivers count them: busy means that *some* kernel ran, not that the chip was full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utilization {
    /// Time with a kernel running.
    pub gpu: u32,
    /// Time with memory read or written.
    pub memory: u32,
}

/// Why clocks are not at their maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "GpuThrottle")]
pub enum Throttle {
    /// Nothing runs.
    GpuIdle,
    /// Somebody set application clocks.
    ApplicationsClocksSetting,
    /// The power limit.
    SwPowerCap,
    /// Hardware halves the clocks or worse: heat, power brake or a fast drop of the supply.
    HwSlowdown,
    /// Another GPU of its group is slower.
    SyncBoost,
    /// The driver cools it.
    SwThermalSlowdown,
    /// The hardware cools it.
    HwThermalSlowdown,
    /// The power supply asks for it.
    HwPowerBrakeSlowdown,
    /// The display's clocks.
    DisplayClockSetting,
}

impl Throttle {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::GpuIdle => "idle",
            Self::ApplicationsClocksSetting => "application clocks",
            Self::SwPowerCap => "power limit",
            Self::HwSlowdown => "hardware slowdown",
            Self::SyncBoost => "sync boost group",
            Self::SwThermalSlowdown => "heat (driver)",
            Self::HwThermalSlowdown => "heat (hardware)",
            Self::HwPowerBrakeSlowdown => "power brake",
            Self::DisplayClockSetting => "display clocks",
        }
    }

    /// Whether it is no property of what runs: heat, a failing supply, or somebody who set clocks.
    pub(crate) fn is_fault(self) -> bool {
        !matches!(self, Self::GpuIdle | Self::SwPowerCap)
    }

    /// Whether a measurement made now would be slower than the GPU is: all but idleness.
    pub fn slows(self) -> bool {
        self != Self::GpuIdle
    }
}

#[cfg(test)]
pub(crate) mod fake;
