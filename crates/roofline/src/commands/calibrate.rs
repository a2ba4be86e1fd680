//! `roofline calibrate`.

use roofline_core::calibration::Gap;
use roofline_verbs::{
    Context,
    calibrate::{
        Answer, Calibrated, Checked, PhaseErrors, PublishedFit, Reached, Request, SkippedDevice, SkippedSpeeds,
        SpeedErrors, SpeedsChecked, Timed, TimingErrors, Validation, calibrate,
    },
};

use crate::{
    failure::Failure,
    report::{Align, Format, Report, Section, Shown, Table, emit, number},
};

pub(crate) fn run(context: &Context, request: &Request, form: Format) -> Result<(), Failure> {
    match calibrate(context, request)? {
        Answer::Calibrated(told) => emit(&Shown::all(&*told), form),
        Answer::Validated(told) => emit(&Shown::all(&*told), form),
        Answer::Timed(told) => emit(&Shown::all(&*told), form),
        Answer::Checked(told) => emit(&Shown::all(&*told), form),
        Answer::Published(told) => emit(&Shown::all(&*told), form),
        Answer::SpeedsChecked(told) => emit(&Shown::all(&*told), form),
        Answer::Reached(told) => emit(&Shown::all(&*told), form),
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
            let value = if row.value.abs() < 0.01 { "0".to_owned() } else { number(row.value) };
            table.row([row.name.as_str().into(), value.into(), row.unit.into(), row.meaning.into()]);
        }
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let fact = |name: &str, value: String| (name.to_owned(), value);
        let mut facts = vec![
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
        if self.calibration.has_gaps() {
            facts.push(fact("between kernels", between(self.calibration.gap.as_ref())));
        }
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

/// What is known of the time between kernels of a pass.
fn between(gap: Option<&Gap>) -> String {
    let Some(gap) = gap else {
        return "not measured, so kernels of a pass are added up as if nothing lay between them".to_owned();
    };
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let prompts = gap.prompts.as_ref().map_or_else(String::new, |own| {
        let [mean, median, without] = [own.mean, own.median, own.without_mean].map(percent);
        let (rate, passes) = (own.rate, own.passes);
        format!(
            "; element-wise work of prompts at {rate}, from {passes}: foretold from other models within {mean} on average, \
             {median} in the median; {without} without it"
        )
    });
    format!(
        "{:+.2} us each, from {} passes of {} models ({}): steps foretold from other models within {} on average, {} in the \
         median, nine of ten within {}; {} without it{prompts}",
        gap.kernel.micros(),
        gap.passes,
        gap.models,
        gap.provenance,
        percent(gap.mean),
        percent(gap.median),
        percent(gap.p90),
        percent(gap.without_mean)
    )
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

impl Report for Shown<'_, Timed> {
    const ROWS: &'static str = "calibrations";

    fn sections(&self) -> Vec<Section> {
        let mut sections = Vec::new();
        for calibration in &self.calibrations {
            let mut table = Table::default().column("kernel", Align::Left, 0).column("formats", Align::Left, 0);
            for name in ["timings", "median %", "mean %", "p90 %", "uncorrected mean %", "ideal mean %", "terms"] {
                table = table.column(name, Align::Right, 0);
            }
            for kernel in &calibration.kernels {
                let quality = &kernel.quality;
                let shares = [quality.median, quality.mean, quality.p90, quality.plain_mean, quality.ideal_mean];
                let first = [kernel.op.to_string(), kernel.dtype.to_string(), quality.rows.to_string()];
                let errors = shares.map(|share| format!("{:.1}", share * 100.0));
                let last = std::iter::once(kernel.terms.to_string());
                table.row(first.into_iter().chain(errors).chain(last).map(Into::into));
            }
            sections
                .push(Section::Heading(format!("{} with the kernels of {}", calibration.device, calibration.stack)));
            sections.push(Section::Table(table));
            sections.push(Section::Paragraph(format!(
                "Errors are relative to the measured time, of shapes that the fit did not see. {}.",
                calibration.provenance
            )));
        }
        sections.extend(left_out(&self.skipped));
        sections
    }
}

impl Report for Shown<'_, Checked> {
    const ROWS: &'static str = "groups";

    fn sections(&self) -> Vec<Section> {
        let mut table = Table::default();
        for name in ["device", "stack", "kernel", "formats", "basis"] {
            table = table.column(name, Align::Left, 0);
        }
        for name in ["timings", "median %", "mean %", "p90 %", "inside 80 %", "ideal mean %"] {
            table = table.column(name, Align::Right, 0);
        }
        let cells = |errors: &TimingErrors| {
            let shares = [errors.median, errors.mean, errors.p90, errors.coverage80, errors.ideal_mean];
            std::iter::once(errors.rows.to_string()).chain(shares.map(|share| format!("{:.1}", share * 100.0)))
        };
        for group in &self.groups {
            let first = [
                group.device.clone(),
                group.framework.clone(),
                group.op.to_string(),
                group.dtype.clone(),
                group.basis.to_owned(),
            ];
            table.row(first.into_iter().chain(cells(&group.errors)).map(Into::into));
        }
        let first = ["all", "", "", "", ""].map(str::to_owned);
        table.row(first.into_iter().chain(cells(&self.total)).map(Into::into));
        let mut sections = vec![
            Section::Heading("Expected against timings that others made".to_owned()),
            Section::Table(table),
            Section::Paragraph("Errors are relative to the measured time.".to_owned()),
        ];
        sections.extend(left_out(&self.skipped));
        sections
    }
}

/// What could not be used, in a sentence for each.
fn left_out(skipped: &[SkippedDevice]) -> Option<Section> {
    let one =
        |skipped: &SkippedDevice| format!("{}: {} rows left out: {}.", skipped.device, skipped.rows, skipped.reason);
    let all: Vec<String> = skipped.iter().map(one).collect();
    (!all.is_empty()).then(|| Section::Paragraph(all.join(" ")))
}

/// Columns of errors, and their cells.
const SPEED_ERRORS: [&str; 6] = ["figures", "median %", "mean %", "p90 %", "inside 80 % interval", "ideal mean %"];

fn speed_cells(errors: &SpeedErrors) -> [String; 6] {
    let percent = |share: f64| format!("{:.1}", share * 100.0);
    let SpeedErrors { rows, median, mean, p90, coverage80, ideal_mean } = *errors;
    [rows.to_string(), percent(median), percent(mean), percent(p90), percent(coverage80), percent(ideal_mean)]
}

fn skipped_speeds(skipped: &[SkippedSpeeds]) -> Option<Section> {
    let one = |skipped: &SkippedSpeeds| format!("{} ({})", skipped.reason, skipped.rows);
    let all: Vec<String> = skipped.iter().map(one).collect();
    (!all.is_empty()).then(|| Section::Paragraph(format!("Left out: {}.", all.join("; "))))
}

impl Report for Shown<'_, PublishedFit> {
    const ROWS: &'static str = "known";

    fn sections(&self) -> Vec<Section> {
        let errors = |heading: &str, rows: &[PhaseErrors]| {
            let mut table = Table::default().column(heading, Align::Left, 0);
            for name in SPEED_ERRORS {
                table = table.column(name, Align::Right, 0);
            }
            for PhaseErrors { phase, errors } in rows {
                table.row(std::iter::once((*phase).to_owned()).chain(speed_cells(errors)).map(Into::into));
            }
            Section::Table(table)
        };
        let mut known = Table::default().column("runtime", Align::Left, 0).column("class", Align::Left, 0);
        for name in ["figures", "devices", "median %", "p90 %"] {
            known = known.column(name, Align::Right, 0);
        }
        for cell in &self.known {
            let percent = |share: f64| format!("{:.1}", share * 100.0);
            let class = format!("{:?}", cell.class).to_lowercase();
            let numbers = [cell.figures.to_string(), cell.devices.len().to_string()];
            let row = [cell.stack.to_string(), class].into_iter().chain(numbers);
            known.row(row.chain([percent(cell.median), percent(cell.p90)]).map(Into::into));
        }
        let heading = format!("{} published speeds described by {} numbers", self.figures, self.numbers);
        let mut sections = vec![
            Section::Heading(heading),
            errors("device left out", &self.unseen),
            errors("figure left out", &self.seen),
            errors("runtime left out", &self.foreign),
            Section::Table(known),
        ];
        sections.extend(skipped_speeds(&self.skipped));
        sections
    }
}

impl Report for Shown<'_, SpeedsChecked> {
    const ROWS: &'static str = "groups";

    fn sections(&self) -> Vec<Section> {
        let mut table = Table::default();
        for name in ["device", "runtime", "phase", "basis"] {
            table = table.column(name, Align::Left, 0);
        }
        for name in SPEED_ERRORS {
            table = table.column(name, Align::Right, 0);
        }
        for group in &self.groups {
            let phase = if group.batched { format!("{}, batched", group.phase) } else { group.phase.to_owned() };
            let first = [group.device.clone(), group.runtime.clone(), phase, group.basis.to_string()];
            table.row(first.into_iter().chain(speed_cells(&group.errors)).map(Into::into));
        }
        let all = ["all", "", "", ""].map(str::to_owned).into_iter().chain(speed_cells(&self.errors));
        table.row(all.map(Into::into));
        let mut sections =
            vec![Section::Heading("Forecasts against published speeds".to_owned()), Section::Table(table)];
        if !self.above_floor.is_empty() {
            let mut above = Table::default().column("above the floor", Align::Left, 0).column("times", Align::Right, 0);
            above = above.column("because", Align::Left, 1);
            for one in &self.above_floor {
                above.row([one.figure.as_str().into(), format!("{:.2}", one.times).into(), one.because.into()]);
            }
            sections.push(Section::Table(above));
        }
        sections.extend(skipped_speeds(&self.skipped));
        sections
    }
}

impl Report for Shown<'_, Reached> {
    const ROWS: &'static str = "rows";

    fn sections(&self) -> Vec<Section> {
        let mut table = Table::default()
            .column("term", Align::Left, 0)
            .column("value", Align::Right, 0)
            .column("unit", Align::Left, 0)
            .column("meaning", Align::Left, 1);
        for row in &self.rows {
            table.row([row.name.as_str().into(), number(row.value).into(), row.unit.into(), row.meaning.into()]);
        }
        let known = self.known.as_ref().map_or_else(
            || "nobody published a speed of it on such devices: these are what others have in common".to_owned(),
            |known| {
                format!(
                    "{} figures of {}; half of them within {:.0} %, nine of ten within {:.0} %, by fits that had not seen the \
                     device",
                    known.figures,
                    known.devices.join(", "),
                    known.median * 100.0,
                    known.p90 * 100.0
                )
            },
        );
        vec![
            Section::Heading(format!("What {} reaches of {}", self.stack, self.device_name)),
            Section::Table(table),
            Section::Facts(vec![("known".to_owned(), known), ("made".to_owned(), self.provenance.clone())]),
        ]
    }
}
