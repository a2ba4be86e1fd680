//! Estimates for reading.

use roofline_core::{format::Sizes, predict::Reason, units::Seconds};

use super::{Prediction, Unavailable};
use crate::commands::tier::tier_words;
use crate::report::{Align, Cell, Report, Section, Table, number, style};

impl Report for Prediction {
    const ROWS: &'static str = "estimates";

    fn sections(&self) -> Vec<Section> {
        let sizes = if self.sizes == Sizes::Nominal { ", element bits only" } else { "" };
        let device = self.estimates.first().filter(|_| !self.several);
        let device = device.map_or_else(String::new, |row| format!(" on {} ({})", row.device_name, row.device));
        let mut sections = vec![Section::Heading(format!(
            "{}{device}{sizes}: {}",
            self.subject,
            tier_words(self.estimates.iter().map(|row| row.tier))
        ))];
        sections.push(Section::Table(self.estimates_table()));
        if self.estimates.iter().any(|row| row.operators.len() > 1) {
            sections.push(Section::Table(self.operators_table()));
        }
        sections.extend(self.advice());
        sections.extend(self.missing().into_iter().map(Section::Paragraph));
        sections
    }

    fn warnings(&self) -> Vec<String> {
        self.missing()
    }
}

impl Prediction {
    /// What could not be estimated, and why.
    fn missing(&self) -> Vec<String> {
        self.unavailable.iter().map(Unavailable::sentence).collect()
    }

    /// A line per device and bound: that of the first precision it holds for. JSON has all.
    fn advice(&self) -> Vec<Section> {
        let mut said = Vec::new();
        let mut sections = Vec::new();
        for row in &self.estimates {
            let case = (&row.device, row.total.bound());
            if !said.contains(&case) {
                said.push(case);
                let device = if self.several { format!("{} ", row.device) } else { String::new() };
                sections.push(Section::Paragraph(format!("{device}{}: {}", row.precision, row.advice.text)));
            }
        }
        sections
    }

    fn estimates_table(&self) -> Table {
        let mut table = Table::default()
            .column("device", Align::Left, 0)
            .column("precision", Align::Left, 0)
            .column("time", Align::Right, 0)
            .column("range", Align::Right, 2)
            .column("ideal", Align::Right, 1)
            .column("bound", Align::Left, 0)
            .column("FLOP/B", Align::Right, 3)
            .column("ridge", Align::Right, 5)
            .column("to ridge", Align::Right, 6)
            .column("TFLOP/s", Align::Right, 2)
            .column("GB/s", Align::Right, 4)
            .column("bytes", Align::Right, 7)
            .column("unit", Align::Left, 8)
            .column("speed-up", Align::Right, 1)
            .column("from", Align::Left, 9);
        for row in &self.estimates {
            let bound = if row.balanced && row.expected.is_none() { "balanced" } else { &row.bottleneck };
            let range = row.expected.map(|expected| format!("{} - {}", expected.low, expected.high));
            let ideal = row.expected.map(|_| row.total.time().to_string());
            let device = if self.several { row.device.clone() } else { String::new() };
            let reason = row.speedup_reason.map_or("", |reason| match reason {
                Reason::Bytes => "byte ratio",
                Reason::Peak => "peak ratio",
                Reason::Crossover => "crossing the ridge",
                Reason::Mixed => "several kernels",
            });
            table.row([
                device.into(),
                row.precision.as_str().into(),
                row.time().to_string().into(),
                range.unwrap_or_default().into(),
                ideal.unwrap_or_default().into(),
                Cell::styled(bound, style::of_bound(row.bound())),
                number(row.ai).into(),
                number(row.critical_ai).into(),
                if row.total.is_mixed() { String::new() } else { distance(row.ridge_distance) }.into(),
                number(row.predicted_tflops).into(),
                number(row.predicted_gb_s).into(),
                row.bytes.to_string().into(),
                row.total.math.label().into(),
                row.speedup.map_or_else(String::new, |speedup| format!("{speedup:.2}x")).into(),
                reason.into(),
            ]);
        }
        table.without_empty_columns()
    }

    fn operators_table(&self) -> Table {
        let mut table = Table::default()
            .column("device", Align::Left, 0)
            .column("precision", Align::Left, 0)
            .column("kernel", Align::Left, 0)
            .column("time", Align::Right, 0)
            .column("share", Align::Right, 1)
            .column("bound", Align::Left, 0)
            .column("FLOP/B", Align::Right, 2)
            .column("bytes", Align::Right, 3)
            .column("unit", Align::Left, 4);
        for row in &self.estimates {
            for operator in &row.operators {
                table.row([
                    if self.several { row.device.clone() } else { String::new() }.into(),
                    row.precision.as_str().into(),
                    operator.site.into(),
                    Seconds::from_micros(operator.predicted_time_us).to_string().into(),
                    format!("{:.0} %", 100.0 * operator.share).into(),
                    Cell::styled(operator.bottleneck.as_str(), style::of_bound(operator.bound)),
                    number(operator.ai).into(),
                    operator.bytes.to_string().into(),
                    operator.estimate.math.label().into(),
                ]);
            }
        }
        table.without_empty_columns()
    }
}

fn distance(ratio: f64) -> String {
    if ratio >= 1.0 { format!("{}x below", number(ratio)) } else { format!("{}x above", number(1.0 / ratio)) }
}
