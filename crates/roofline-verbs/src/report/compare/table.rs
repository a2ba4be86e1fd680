//! The tables of a comparison.

use roofline_core::predict::Tier;

use crate::{
    compare::Answer,
    report::{Align, Cell, Table, style},
    text::number,
};

impl Answer {
    pub(super) fn table(&self) -> Table {
        let mut table = Table::default()
            .column("phase", Align::Left, 0)
            .column("kernel", Align::Left, 0)
            .column("precision", Align::Left, 0)
            .column("ideal us", Align::Right, 2)
            .column("expected us", Align::Right, 0)
            .column("measured us", Align::Right, 0)
            .column("error", Align::Right, 0)
            .column("", Align::Left, 1)
            .column("ideal's", Align::Right, 3)
            .column("bound", Align::Left, 1)
            .column("ridge", Align::Right, 3)
            .column("GB/s", Align::Right, 4)
            .column("GFLOP/s", Align::Right, 5)
            .column("of roof", Align::Right, 2);
        for (row, pair) in self.comparisons.iter().zip(&self.pairs) {
            let expected = if pair.expected.is_some() { number(row.figures.predicted_time_us) } else { String::new() };
            table.row([
                row.phase.map_or_else(String::new, |phase| phase.to_string()).into(),
                row.shape.as_str().into(),
                row.precision.as_str().into(),
                number(row.figures.ideal_time_us).into(),
                expected.into(),
                number(row.measured_time_us).into(),
                format!("{:+.0} %", row.signed_pct).into(),
                row.status.to_string().into(),
                format!("{:.0} %", row.ideal_error_pct).into(),
                Cell::styled(row.figures.bottleneck.as_str(), style::of_bound(pair.bound())),
                row.ridge_side().unwrap_or_default().into(),
                number(row.measured_bandwidth_gb_s).into(),
                number(row.measured_tflops * 1e3).into(),
                format!("{:.0} %", row.efficiency * 100.0).into(),
            ]);
        }
        table.without_empty_columns()
    }

    pub(super) fn passes_table(&self) -> Table {
        let mut table = Table::default()
            .column("whole pass", Align::Left, 0)
            .column("kernels", Align::Right, 1)
            .column("ideal ms", Align::Right, 0)
            .column("predicted ms", Align::Right, 0)
            .column("measured ms", Align::Right, 0)
            .column("error", Align::Right, 0)
            .column("of kernels", Align::Right, 1)
            .column("passes/s", Align::Right, 0);
        for pass in &self.passes {
            table.row([
                pass.name().into(),
                pass.kernels.to_string().into(),
                number(pass.ideal_time_us / 1e3).into(),
                format!("{}{}", number(pass.predicted_time_us / 1e3), if pass.mixed() { "*" } else { "" }).into(),
                number(pass.measured_time_us / 1e3).into(),
                format!("{:.0} %", pass.error_pct).into(),
                format!("{:.0} %", pass.kernel_error_pct).into(),
                if pass.missing == 0 {
                    number(1e6 / pass.measured_time_us)
                } else {
                    format!("{} kinds missing", pass.missing)
                }
                .into(),
            ]);
        }
        table
    }

    pub(super) fn speedups_table(&self) -> Table {
        let mut table = Table::default()
            .column("speed-up of", Align::Left, 0)
            .column("from", Align::Left, 0)
            .column("to", Align::Left, 0)
            .column("ideal", Align::Right, 1)
            .column("predicted", Align::Right, 0)
            .column("measured", Align::Right, 0)
            .column("error", Align::Right, 0);
        for speedup in &self.speedups {
            table.row([
                speedup.subject.as_str().into(),
                speedup.from.as_str().into(),
                speedup.to.as_str().into(),
                format!("{:.2}x", speedup.ideal).into(),
                format!("{:.2}x", speedup.predicted).into(),
                format!("{:.2}x", speedup.measured).into(),
                format!("{:.0} %", speedup.error() * 100.0).into(),
            ]);
        }
        table
    }

    /// Each format against 16 bit, for one row and for many.
    pub(super) fn gains_table(&self) -> Table {
        let mut against: Vec<&str> = self.gains.iter().map(|gains| gains.against.as_str()).collect();
        against.dedup();
        let mut table = Table::default().column(format!("speed-up over {}", against.join(", ")), Align::Left, 0);
        // Where the ideal is all that is known, it is the prediction.
        let expected = self.tier == Tier::Expected;
        for gains in &self.gains {
            let rows = if gains.rows == 1 { "1 row".to_owned() } else { format!("{} rows", gains.rows) };
            table = table.column(format!("{rows}: measured"), Align::Right, 0);
            if expected {
                table = table.column("predicted", Align::Right, 1);
            }
            table = table.column("ideal", Align::Right, 2);
        }
        let mut formats: Vec<&str> = Vec::new();
        for gain in self.gains.iter().flat_map(|gains| &gains.formats) {
            if !formats.contains(&gain.to.as_str()) {
                formats.push(&gain.to);
            }
        }
        for format in formats {
            let cells = self.gains.iter().flat_map(|gains| {
                let gain = gains.formats.iter().find(|gain| gain.to == format);
                let predicted = expected.then(|| gain.map(|gain| gain.predicted));
                let values = [Some(gain.map(|gain| gain.measured)), predicted, Some(gain.map(|gain| gain.ideal))];
                let cell = |value: Option<f64>| value.map(|value| format!("{value:.2}x")).unwrap_or_default();
                values.into_iter().flatten().map(cell)
            });
            table.row([format.into()].into_iter().chain(cells.map(Cell::from)).collect::<Vec<Cell>>());
        }
        table
    }
}
