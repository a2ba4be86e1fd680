//! `roofline jetson validate`.

use roofline_verbs::jetson::{ValidatedProduct, Validation};
use serde::Serialize;

use crate::report::{Align, Report, Section, Shown, Table, number};

/// The rows alone: the columns of a CSV that other tools read.
#[derive(Serialize)]
pub(super) struct Columns<'a> {
    pub(super) results: &'a [ValidatedProduct],
}

impl Report for Columns<'_> {
    const ROWS: &'static str = "results";

    fn sections(&self) -> Vec<Section> {
        Vec::new()
    }
}

impl Report for Shown<'_, Validation> {
    const ROWS: &'static str = "results";

    fn sections(&self) -> Vec<Section> {
        let mut table = Table::default()
            .column("size", Align::Left, 0)
            .column("N x K", Align::Right, 0)
            .column("precision", Align::Left, 0)
            .column("predicted", Align::Right, 0)
            .column("measured", Align::Right, 0)
            .column("error", Align::Right, 0)
            .column("rate", Align::Right, 2)
            .column("bandwidth", Align::Right, 1);
        let or_empty = |value: Option<f64>, unit: &str| {
            value.map_or_else(String::new, |value| format!("{} {unit}", number(value)))
        };
        for row in &self.results {
            table.row([
                row.config.into(),
                format!("{} x {}", row.n, row.k).into(),
                row.dtype.into(),
                format!("{} µs", number(row.predicted_us)).into(),
                or_empty(row.measured_us, "µs").into(),
                or_empty(row.error_pct, "%").into(),
                or_empty(row.tflops, "TFLOP/s").into(),
                or_empty(row.bw_gb_s, "GB/s").into(),
            ]);
        }
        let what = if self.measured { "theory and measurement" } else { "theory only, nothing was measured" };
        let mut sections = vec![
            Section::Heading(format!("{} ({}): {what}", self.device_name, self.device)),
            Section::Table(table.without_empty_columns()),
        ];
        if let Some(mean) = self.mean_error_pct {
            sections
                .push(Section::Paragraph(format!("Mean error {} %, relative to the ideal roofline.", number(mean))));
        }
        sections.extend(self.skipped.iter().map(|skipped| Section::Paragraph(format!("Not measured: {skipped}"))));
        sections
    }
}
