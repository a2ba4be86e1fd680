//! `roofline jetson modes`: what each power mode leaves of the roofline.

use roofline_run::jetson::circulating_factor;
use serde::Serialize;

use super::{Board, InMode, megahertz, watts};
use crate::report::{Align, Report, Section, Table, number};

#[derive(Serialize)]
pub(super) struct Listing {
    device: String,
    device_name: String,
    /// The files, or the registry.
    source: &'static str,
    modes: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    id: u32,
    name: String,
    current: bool,
    default: bool,
    power_budget_w: Option<f64>,
    gpu_freq_mhz: f64,
    emc_freq_mhz: f64,
    /// TPCs that stay on; none where the chip's mask is not understood.
    tpcs: Option<u32>,
    sm: u32,
    cpu_cores: Option<u32>,
    bandwidth_gb_s: f64,
    fp16_tflops: f64,
    /// None where the chip has no INT8 rate.
    int8_tops: Option<f64>,
    /// Over the whole chip.
    bandwidth_scale: f64,
    compute_scale: f64,
    /// The one factor that circulates for both, by the budget; wrong.
    circulating_factor: f64,
    /// The registry's mode of that name.
    registry_mode: Option<String>,
    registry_agrees: Option<bool>,
    #[serde(skip)]
    text: [String; 3],
}

pub(super) fn modes(board: &Board) -> Listing {
    let source = if board.status.is_some() { "/etc/nvpmodel.conf" } else { "registry" };
    let modes = board.modes.iter().map(|mode| row(board, mode)).collect();
    Listing { device: board.device.key.clone(), device_name: board.device.name.clone(), source, modes }
}

fn row(board: &Board, InMode { mode, device, table }: &InMode) -> Row {
    let whole = &board.device;
    let scaled = table.as_ref().map(|(scaled, _)| scaled);
    let compute = whole.peaks.of(roofline_core::Math::Fp16).map_or(1.0, |peak| mode.fp16 / peak);
    Row {
        id: mode.id,
        name: mode.name.clone(),
        current: board.current.as_deref() == Some(mode.name.as_str()),
        default: mode.default,
        power_budget_w: mode.power.map(roofline_core::units::Watts::value),
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
        registry_agrees: scaled.and_then(roofline_run::jetson::ModeDevice::agrees),
        text: [megahertz(mode.gpu_clock), megahertz(mode.memory_clock), watts(mode.power)],
    }
}

impl Row {
    /// Whether the factor that circulates is off by more than a percent for bandwidth or compute.
    fn misled(&self) -> bool {
        [self.bandwidth_scale, self.compute_scale].iter().any(|scale| (self.circulating_factor - scale).abs() > 0.01)
    }

    fn circulating(&self) -> String {
        format!("{:.2}{}", self.circulating_factor, if self.misled() { " (wrong)" } else { "" })
    }
}

impl Report for Listing {
    const ROWS: &'static str = "modes";

    fn sections(&self) -> Vec<Section> {
        let mut table = Table::default()
            .column("mode", Align::Left, 0)
            .column("id", Align::Right, 0)
            .column("budget", Align::Right, 1)
            .column("GPU", Align::Right, 3)
            .column("SMs", Align::Right, 3)
            .column("memory", Align::Right, 3)
            .column("cores", Align::Right, 5)
            .column("bandwidth", Align::Right, 1)
            .column("FP16", Align::Right, 1)
            .column("INT8", Align::Right, 2)
            .column("bandwidth x", Align::Right, 0)
            .column("compute x", Align::Right, 0)
            .column("often seen", Align::Right, 4)
            .column("registry", Align::Left, 6);
        for row in &self.modes {
            let [gpu, memory, budget] = row.text.clone();
            let agrees = match row.registry_agrees {
                Some(true) => "agrees",
                Some(false) => "differs",
                None if row.cpu_cores.is_some() => "has none",
                None => "",
            };
            let now = if row.current { " *" } else { "" };
            table.row([
                format!("{}{now}", row.name).into(),
                row.id.to_string().into(),
                budget.into(),
                gpu.into(),
                row.sm.to_string().into(),
                memory.into(),
                row.cpu_cores.map_or_else(String::new, |cores| cores.to_string()).into(),
                format!("{} GB/s", number(row.bandwidth_gb_s)).into(),
                format!("{} TFLOP/s", number(row.fp16_tflops)).into(),
                row.int8_tops.map_or_else(String::new, |rate| format!("{} TOP/s", number(rate))).into(),
                format!("{:.2}", row.bandwidth_scale).into(),
                format!("{:.2}", row.compute_scale).into(),
                row.circulating().into(),
                agrees.into(),
            ]);
        }
        let wrong = self.modes.iter().any(Row::misled);
        let mut sections = vec![
            Section::Heading(format!("Power modes of {} ({})", self.device_name, self.source)),
            Section::Table(table.without_empty_columns()),
            Section::Paragraph(
                "* now. Bandwidth follows the memory's clock, compute the GPU's clock times the multiprocessors that stay on; \
                 both over the whole chip."
                    .to_owned(),
            ),
        ];
        if wrong {
            sections.push(Section::Paragraph(
                "\"Often seen\" is the one factor that circulates for bandwidth and compute alike, by the budget alone (0.65 up to 7 W, \
                 0.85 up to 10 W, else 1). It is shown because people have seen it, and used for nothing."
                    .to_owned(),
            ));
        }
        sections
    }
}
