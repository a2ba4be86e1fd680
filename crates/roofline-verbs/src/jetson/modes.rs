//! What each power mode leaves of the roofline.

use roofline_core::{Math, units::Watts};
use roofline_run::jetson::{ModeDevice, circulating_factor};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Board, InMode};
use crate::{Context, Note};

/// The power modes of a board.
#[derive(Serialize, JsonSchema)]
pub struct ModeList {
    pub device: String,
    pub device_name: String,
    /// The files, or the registry.
    pub source: &'static str,
    pub modes: Vec<ModeFigures>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// A power mode.
#[derive(Serialize, JsonSchema)]
pub struct ModeFigures {
    pub id: u32,
    pub name: String,
    pub current: bool,
    pub default: bool,
    pub power_budget_w: Option<f64>,
    pub gpu_freq_mhz: f64,
    pub emc_freq_mhz: f64,
    /// TPCs that stay on; none where the chip's mask is not understood.
    pub tpcs: Option<u32>,
    pub sm: u32,
    pub cpu_cores: Option<u32>,
    pub bandwidth_gb_s: f64,
    pub fp16_tflops: f64,
    /// None where the chip has no INT8 rate.
    pub int8_tops: Option<f64>,
    /// Over the whole chip.
    pub bandwidth_scale: f64,
    pub compute_scale: f64,
    /// The one factor that circulates for both, by the budget; wrong.
    pub circulating_factor: f64,
    /// The registry's mode of that name.
    pub registry_mode: Option<String>,
    pub registry_agrees: Option<bool>,
}

pub(super) fn modes(context: &Context, board: &Board) -> ModeList {
    let source = if board.status.is_some() { "/etc/nvpmodel.conf" } else { "registry" };
    let modes = board.modes.iter().map(|mode| figures(board, mode)).collect();
    let (device, device_name) = (board.device.key.clone(), board.device.name.clone());
    ModeList { device, device_name, source, modes, notes: context.notes() }
}

fn figures(board: &Board, InMode { mode, device, table }: &InMode) -> ModeFigures {
    let whole = &board.device;
    let scaled = table.as_ref().map(|(scaled, _)| scaled);
    let compute = whole.peaks.of(Math::Fp16).map_or(1.0, |peak| mode.fp16 / peak);
    ModeFigures {
        id: mode.id,
        name: mode.name.clone(),
        current: board.current.as_deref() == Some(mode.name.as_str()),
        default: mode.default,
        power_budget_w: mode.power.map(Watts::value),
        gpu_freq_mhz: mode.gpu_clock.value() / 1e6,
        emc_freq_mhz: mode.memory_clock.value() / 1e6,
        tpcs: scaled.and_then(|scaled| scaled.tpcs),
        sm: mode.sm,
        cpu_cores: table.as_ref().map(|(_, cores)| *cores),
        bandwidth_gb_s: device.memory.bandwidth.value() / 1e9,
        fp16_tflops: mode.fp16.value() / 1e12,
        int8_tops: mode.int8.map(|rate| rate.value() / 1e12),
        bandwidth_scale: device.memory.bandwidth / whole.memory.bandwidth,
        compute_scale: scaled.map_or(compute, |scaled| scaled.compute_scale),
        circulating_factor: circulating_factor(mode.power),
        registry_mode: scaled.and_then(|scaled| scaled.registered.as_ref()).map(|known| known.name.clone()),
        registry_agrees: scaled.and_then(ModeDevice::agrees),
    }
}
