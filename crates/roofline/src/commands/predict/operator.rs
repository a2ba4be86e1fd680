//! Estimates for reading.

use roofline_core::{
    format::Sizes,
    predict::{Reason, Tier},
};
use roofline_verbs::predict::{OperatorPrediction, Unavailable};

use crate::{
    commands::basis,
    report::{Align, Cell, Report, Section, Shown, Table, number, style},
};

impl Report for Shown<'_, OperatorPrediction> {
    const ROWS: &'static str = "estimates";

    fn sections(&self) -> Vec<Section> {
        let sizes = if self.sizes == Sizes::Nominal { ", element bits only" } else { "" };
        let device = self.estimates.first().filter(|_| !self.several);
        let device = device.map_or_else(String::new, |row| format!(" on {} ({})", row.device_name, row.device));
        let mut sections = vec![Section::Heading(format!(
            "{}{device}{sizes}: {}",
            self.subject,
            basis::words(self.estimates.iter().map(|row| (row.figures.tier, row.figures.basis, &row.weaker[..])))
        ))];
        sections.push(Section::Table(self.estimates_table()));
        if self.estimates.iter().any(|row| row.operators.len() > 1) {
            sections.push(Section::Table(self.operators_table()));
        }
        sections.extend(self.advice());
        sections.extend(self.doubts().into_iter().map(Section::Paragraph));
        sections.extend(self.missing().into_iter().map(Section::Paragraph));
        sections
    }

    fn warnings(&self) -> Vec<String> {
        self.missing()
    }
}

impl Shown<'_, OperatorPrediction> {
    /// What could not be estimated, and why.
    fn missing(&self) -> Vec<String> {
        self.unavailable.iter().map(Unavailable::sentence).collect()
    }

    /// What stands on less than the rest, each once.
    fn doubts(&self) -> Vec<String> {
        let spoken = self.estimates.iter().filter(|row| row.figures.tier == Tier::Expected);
        let mut said: Vec<String> = Vec::new();
        for sentence in spoken.filter_map(|row| basis::weaker_words(&row.weaker)) {
            if !said.contains(&sentence) {
                said.push(sentence);
            }
        }
        said
    }

    /// A line per device and bound: that of the first precision it holds for. JSON has all.
    fn advice(&self) -> Vec<Section> {
        let mut said = Vec::new();
        let mut sections = Vec::new();
        for row in &self.estimates {
            let case = (&row.device, row.total.ideal.bound());
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
            let likely = row.figures.tier == Tier::Expected;
            let bound = if row.balanced && !likely { "balanced" } else { &row.figures.bottleneck };
            let expected = likely.then_some(row.total.expected);
            let range = expected.map(|expected| format!("{} - {}", expected.low, expected.high));
            let ideal = likely.then(|| row.total.ideal.time().to_string());
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
                number(row.figures.ai).into(),
                number(row.figures.critical_ai).into(),
                if row.total.ideal.is_mixed() { String::new() } else { distance(row.ridge_distance) }.into(),
                number(row.figures.predicted_tflops).into(),
                number(row.predicted_gb_s).into(),
                row.figures.bytes.to_string().into(),
                row.total.ideal.math.label().into(),
                row.ratios.speedup.map_or_else(String::new, |speedup| format!("{speedup:.2}x")).into(),
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
                    operator.prediction.time(operator.figures.tier).to_string().into(),
                    format!("{:.0} %", 100.0 * operator.share).into(),
                    Cell::styled(
                        operator.figures.bottleneck.as_str(),
                        style::of_bound(operator.prediction.bound(operator.figures.tier)),
                    ),
                    number(operator.figures.ai).into(),
                    operator.figures.bytes.to_string().into(),
                    operator.prediction.ideal.math.label().into(),
                ]);
            }
        }
        table.without_empty_columns()
    }
}

fn distance(ratio: f64) -> String {
    if ratio >= 1.0 { format!("{}x below", number(ratio)) } else { format!("{}x above", number(1.0 / ratio)) }
}
