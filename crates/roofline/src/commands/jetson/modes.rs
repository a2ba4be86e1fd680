//! `roofline jetson modes`.

use roofline_verbs::jetson::{ModeFigures, ModeList};

use super::{megahertz, watts};
use crate::report::{Align, Report, Section, Shown, Table, number};

/// Whether the factor that circulates is off by more than a percent for bandwidth or compute.
fn misled(mode: &ModeFigures) -> bool {
    [mode.bandwidth_scale, mode.compute_scale].iter().any(|scale| (mode.circulating_factor - scale).abs() > 0.01)
}

impl Report for Shown<'_, ModeList> {
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
                watts(row.power_budget_w).into(),
                megahertz(row.gpu_freq_mhz).into(),
                row.sm.to_string().into(),
                megahertz(row.emc_freq_mhz).into(),
                row.cpu_cores.map_or_else(String::new, |cores| cores.to_string()).into(),
                format!("{} GB/s", number(row.bandwidth_gb_s)).into(),
                format!("{} TFLOP/s", number(row.fp16_tflops)).into(),
                row.int8_tops.map_or_else(String::new, |rate| format!("{} TOP/s", number(rate))).into(),
                format!("{:.2}", row.bandwidth_scale).into(),
                format!("{:.2}", row.compute_scale).into(),
                format!("{:.2}{}", row.circulating_factor, if misled(row) { " (wrong)" } else { "" }).into(),
                agrees.into(),
            ]);
        }
        let wrong = self.modes.iter().any(misled);
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
