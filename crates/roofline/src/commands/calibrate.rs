//! `roofline calibrate`.

use roofline_verbs::{
    Context,
    calibrate::{Answer, Calibrated, Request, Validation, calibrate},
};

use crate::{
    failure::Failure,
    report::{Align, Format, Report, Section, Shown, Table, emit, number},
};

pub(crate) fn run(context: &Context, request: &Request, form: Format) -> Result<(), Failure> {
    match calibrate(context, request)? {
        Answer::Calibrated(told) => emit(&Shown::all(&*told), form),
        Answer::Validated(told) => emit(&Shown::all(&*told), form),
        Answer::Forgotten { .. } => Ok(()),
    }
}

impl Report for Shown<'_, Calibrated> {
    const ROWS: &'static str = "rows";

    fn sections(&self) -> Vec<Section> {
        let quality = &self.calibration.quality;
        let mut table = Table::default()
            .column("term", Align::Left, 0)
            .column("value", Align::Right, 0)
            .column("unit", Align::Left, 0)
            .column("meaning", Align::Left, 1);
        for row in &self.rows {
            let value = if row.value < 0.01 { "0".to_owned() } else { number(row.value) };
            table.row([row.name.as_str().into(), value.into(), row.unit.into(), row.meaning.into()]);
        }
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let fact = |name: &str, value: String| (name.to_owned(), value);
        let facts = vec![
            fact("made", self.calibration.provenance.clone()),
            fact("fitted to", format!("{} measurements, mean error {}", quality.fitted, percent(quality.fitted_mean))),
            fact(
                "held out",
                format!(
                    "{} measurements of shapes it never saw: mean {}, median {}, nine of ten within {}, worst {}",
                    quality.held_out,
                    percent(quality.mean),
                    percent(quality.median),
                    percent(quality.p90),
                    percent(quality.max)
                ),
            ),
            fact(
                "ideal tier",
                format!("mean {}, median {} on the same", percent(quality.ideal_mean), percent(quality.ideal_median)),
            ),
            fact(
                "the machine",
                if quality.spread.repeats == 0 {
                    "nothing was measured twice, so its own spread is not known".to_owned()
                } else {
                    format!(
                        "{} kernels measured twice differ by {} on average, {} in the median",
                        quality.spread.repeats,
                        percent(quality.spread.mean),
                        percent(quality.spread.median)
                    )
                },
            ),
        ];
        let mut by_family = Table::default().column("held out", Align::Left, 0);
        for name in ["count", "mean", "median", "p90"] {
            by_family = by_family.column(name, Align::Right, 0);
        }
        for family in &quality.families {
            let cells = [percent(family.mean), percent(family.median), percent(family.p90)];
            let cells = cells.map(Into::into).into_iter();
            let first = [family.family.to_string().into(), family.held_out.to_string().into()];
            by_family.row(first.into_iter().chain(cells));
        }
        vec![
            Section::Heading(format!("Calibration of {} for the {} kernels", self.device_name, self.calibration.stack)),
            Section::Table(table),
            Section::Facts(facts),
            Section::Table(by_family),
        ]
    }
}

impl Report for Shown<'_, Validation> {
    const ROWS: &'static str = "rows";

    fn sections(&self) -> Vec<Section> {
        let mut table = Table::default().column("kernels", Align::Left, 0).column("precision", Align::Left, 0).column(
            "count",
            Align::Right,
            0,
        );
        for name in ["ideal mean %", "ideal median %", "mean %", "median %", "p90 %"] {
            table = table.column(name, Align::Right, 0);
        }
        for row in &self.rows {
            let errors = [
                row.ideal_mean_pct,
                row.ideal_median_pct,
                row.expected_mean_pct,
                row.expected_median_pct,
                row.expected_p90_pct,
            ];
            let first = [row.kernels.clone(), row.precision.clone(), row.count.to_string()];
            table.row(first.into_iter().chain(errors.map(|error| format!("{error:.1}"))).map(Into::into));
        }
        let mut worst = Table::default().column("worst", Align::Left, 0);
        for name in ["measured us", "expected us", "error %"] {
            worst = worst.column(name, Align::Right, 0);
        }
        for row in &self.worst {
            let numbers = [row.measured_us, row.expected_us, row.error_vs_measured_pct].map(number);
            worst.row(std::iter::once(row.kernel.clone()).chain(numbers).map(Into::into));
        }
        let mut sections = vec![
            Section::Heading(format!(
                "Expected against measured on {}: random shapes of seed {}",
                self.device_name, self.seed
            )),
            Section::Table(table),
            Section::Table(worst),
            Section::Paragraph(format!("Errors are relative to the measured time. Calibration: {}.", self.provenance)),
        ];
        if self.skipped + self.uncovered > 0 {
            let (skipped, uncovered) = (self.skipped, self.uncovered);
            let text = format!("{skipped} kernels could not be measured; {uncovered} have no expected time.");
            sections.push(Section::Paragraph(text));
        }
        sections
    }
}
