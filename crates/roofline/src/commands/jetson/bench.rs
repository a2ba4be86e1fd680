//! `roofline jetson power-bench`.

use roofline_verbs::jetson::{BenchedModes, SIDE};

use super::watts;
use crate::report::{Align, Report, Section, Shown, Table, number};

impl Report for Shown<'_, BenchedModes> {
    const ROWS: &'static str = "results";

    fn sections(&self) -> Vec<Section> {
        let faster = self.ratios.first().map(|ratio| &ratio.faster);
        let mut table = Table::default()
            .column("mode", Align::Left, 0)
            .column("budget", Align::Right, 2)
            .column("GPU", Align::Right, 2)
            .column("precision", Align::Left, 0)
            .column("predicted", Align::Right, 0)
            .column("measured", Align::Right, 0)
            .column("error", Align::Right, 1)
            .column("power", Align::Right, 1)
            .column("energy", Align::Right, 0)
            .column("of fp16", Align::Right, 1)
            .column(faster.map_or_else(String::new, |mode| format!("of {mode}")), Align::Right, 1);
        let or_empty = |value: Option<f64>, unit: &str| {
            value.map_or_else(String::new, |value| format!("{} {unit}", number(value)))
        };
        let share = |ratio: Option<f64>| ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
        for row in &self.results {
            table.row([
                row.mode.as_str().into(),
                watts(row.power_budget_w).into(),
                row.gpu_mhz.map_or_else(String::new, |clock| format!("{clock:.0} MHz")).into(),
                row.precision.into(),
                format!("{} µs", number(row.predicted_us)).into(),
                or_empty(row.measured_us, "µs").into(),
                or_empty(row.error_pct, "%").into(),
                or_empty(row.power_w, "W").into(),
                or_empty(row.energy_mj, "mJ").into(),
                share(
                    self.speedups
                        .iter()
                        .find(|one| (one.mode.as_str(), one.precision) == (&row.mode, row.precision))
                        .map(|speedup| 1.0 / speedup.over_fp16),
                )
                .into(),
                share(
                    self.ratios
                        .iter()
                        .find(|one| (one.slower.as_str(), one.precision) == (&row.mode, row.precision))
                        .map(|ratio| ratio.time_ratio),
                )
                .into(),
            ]);
        }
        let what = if self.measured { "measured" } else { "theory only, nothing was measured" };
        let heading = format!("{} ({}): GEMV {SIDE} x {SIDE} by power mode, {what}", self.device_name, self.device);
        let mut sections = vec![Section::Heading(heading), Section::Table(table.without_empty_columns())];
        if let Some(ratio) = self.ratios.first() {
            sections.push(Section::Paragraph(format!(
                "Of {}: the time in a mode over the time in the mode with the largest budget; 2.00 is twice as slow.",
                ratio.faster
            )));
        }
        sections.extend(self.skipped.iter().map(|skipped| Section::Paragraph(format!("Skipped: {skipped}"))));
        sections
    }
}
