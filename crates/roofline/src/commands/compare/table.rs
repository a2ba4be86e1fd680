//! A comparison for reading.

use roofline_core::op::Class as OpClass;

use super::Compared;
use crate::{
    commands::plot::ceilings,
    plot::{Class, Memory, Picture, Point, Roofline},
    report::{Align, Cell, Report, Section, Table, number, style},
};

impl Report for Compared {
    const ROWS: &'static str = "comparisons";

    fn sections(&self) -> Vec<Section> {
        let mut sections = vec![Section::Heading(self.heading())];
        if !self.made_of.is_empty() {
            sections.push(Section::Facts(self.made_of.clone()));
        }
        sections.push(Section::Table(self.table()));
        if !self.passes.is_empty() {
            sections.push(Section::Table(self.passes_table()));
            let ideal: u64 = self.passes.iter().filter(|pass| pass.mixed()).map(|pass| pass.ideal_kernels).sum();
            if ideal > 0 {
                let text =
                    format!("* {ideal} kernels are not covered by the calibration: the sum has their ideal times.");
                sections.push(Section::Paragraph(text));
            }
        }
        if !self.speedups.is_empty() {
            sections.push(Section::Table(self.speedups_table()));
        }
        sections.push(Section::Facts(self.analysis()));
        sections.extend(self.explanations().into_iter().map(Section::Paragraph));
        sections.push(Section::Picture(Box::new(Picture::Roofline(self.picture()))));
        sections.extend(self.files().map(Section::Line));
        sections
    }

    fn warnings(&self) -> Vec<String> {
        self.explanations()
    }
}

impl Compared {
    pub(super) fn heading(&self) -> String {
        let how = match (self.backend.as_deref(), self.residency) {
            (Some("null"), _) => " (null backend: fake times)".to_owned(),
            (Some(backend), Some(residency)) => format!(" ({backend} backend, {residency})"),
            _ => String::new(),
        };
        format!("{} on {}: theory against measurement{how}", self.subject, self.device_name)
    }

    fn table(&self) -> Table {
        let mut table = Table::default()
            .column("kernel", Align::Left, 0)
            .column("precision", Align::Left, 0)
            .column("ideal us", Align::Right, 2)
            .column("expected us", Align::Right, 0)
            .column("measured us", Align::Right, 0)
            .column("error", Align::Right, 0)
            .column("", Align::Left, 1)
            .column("ideal's", Align::Right, 3)
            .column("bound", Align::Left, 1)
            .column("GB/s", Align::Right, 4)
            .column("GFLOP/s", Align::Right, 5)
            .column("of roof", Align::Right, 2);
        for (row, pair) in self.comparisons.iter().zip(&self.pairs) {
            let expected = if pair.expected.is_some() { number(row.predicted_time_us) } else { String::new() };
            table.row([
                row.shape.as_str().into(),
                row.precision.as_str().into(),
                number(row.ideal_time_us).into(),
                expected.into(),
                number(row.measured_time_us).into(),
                format!("{:+.0} %", row.signed_pct).into(),
                row.status.to_string().into(),
                format!("{:.0} %", row.ideal_error_pct).into(),
                Cell::styled(row.bottleneck.as_str(), style::of_bound(pair.bound())),
                number(row.measured_bandwidth_gb_s).into(),
                number(row.measured_tflops * 1e3).into(),
                format!("{:.0} %", row.efficiency * 100.0).into(),
            ]);
        }
        table.without_empty_columns()
    }

    fn passes_table(&self) -> Table {
        let mut table = Table::default()
            .column("whole pass", Align::Left, 0)
            .column("kernels", Align::Right, 1)
            .column("ideal ms", Align::Right, 0)
            .column("predicted ms", Align::Right, 0)
            .column("measured ms", Align::Right, 0)
            .column("error", Align::Right, 0)
            .column("passes/s", Align::Right, 0);
        for pass in &self.passes {
            table.row([
                pass.precision.as_str().into(),
                pass.kernels.to_string().into(),
                number(pass.ideal_time_us / 1e3).into(),
                format!("{}{}", number(pass.predicted_time_us / 1e3), if pass.mixed() { "*" } else { "" }).into(),
                number(pass.measured_time_us / 1e3).into(),
                format!("{:.0} %", pass.error_pct).into(),
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

    fn speedups_table(&self) -> Table {
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

    /// Error and verdict, the bound, the basis, the sentence to take home.
    pub(super) fn analysis(&self) -> Vec<(String, String)> {
        let fact = |name: &str, value: String| (name.to_owned(), value);
        let summary = &self.summary;
        let expected = self.pairs.iter().filter(|pair| pair.expected.is_some()).count();
        let judged = match expected {
            0 => "ideal tier; there is no calibration".to_owned(),
            all if all == self.pairs.len() => "expected tier".to_owned(),
            some => format!("expected tier for {some}, ideal for the others"),
        };
        let mut facts = vec![
            fact(
                "verdict",
                format!(
                    "{}: mean error {:.1} %, median {:.1} %, worst {:.0} % over {} kernels, {} below 15 % ({judged})",
                    summary.verdict,
                    summary.mean_error_pct,
                    summary.median_error_pct,
                    summary.max_error_pct,
                    summary.count,
                    summary.within_15_pct
                ),
            ),
            fact(
                "ideal tier",
                format!("mean {:.1} %, median {:.1} %", summary.ideal_mean_error_pct, summary.ideal_median_error_pct),
            ),
        ];
        if let Some(row) = self.comparisons.iter().find(|row| row.ai > 0.0) {
            let (ai, ridge) = (row.ai, row.critical_ai);
            let side = if ai < ridge {
                format!("{}x below", number(ridge / ai))
            } else {
                format!("{}x above", number(ai / ridge))
            };
            let what = format!(
                "{} {}: {} FLOP/B, {side} the ridge at {}",
                row.shape,
                row.precision,
                number(ai),
                number(ridge)
            );
            facts.push(fact("intensity", what));
        }
        if let Some(basis) = &self.calibration {
            let quality = &basis.quality;
            facts.push(fact(
                "calibration",
                format!(
                    "{}; mean error {:.1} % on {} held-out measurements{}",
                    basis.provenance,
                    quality.mean * 100.0,
                    quality.held_out,
                    if quality.spread.repeats == 0 {
                        String::new()
                    } else {
                        format!(", the machine itself repeats within {:.1} %", quality.spread.mean * 100.0)
                    }
                ),
            ));
        }
        facts.extend(self.insight.iter().map(|insight| fact("insight", insight.clone())));
        facts
    }

    /// What is wrong and why, the worst case of each cause in full; and what could not be measured.
    pub(super) fn explanations(&self) -> Vec<String> {
        let mut causes: Vec<(&str, Vec<(f64, String)>)> = Vec::new();
        for row in &self.comparisons {
            let kernel = format!("{} {}", row.shape, row.precision);
            let off = row.error_pct;
            let diagnosed = row.diagnoses.iter().map(|found| (found.diagnosis.name(), found.text.clone()));
            let doubts = row.warnings.iter().filter(|_| row.diagnoses.is_empty());
            let doubted = doubts.map(|warning| (warning.name(), warning.sentence()));
            for (name, text) in diagnosed.chain(doubted) {
                let said = (off, format!("{kernel}: {text}"));
                match causes.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, all)) => all.push(said),
                    None => causes.push((name, vec![said])),
                }
            }
        }
        let paragraph = |(name, mut all): (&str, Vec<(f64, String)>)| {
            all.sort_by(|one, other| other.0.total_cmp(&one.0));
            let more = if all.len() > 1 { format!(" ({} kernels)", all.len()) } else { String::new() };
            format!("{name}{more}: {}", all[0].1)
        };
        let mut all: Vec<String> = causes.into_iter().map(paragraph).collect();
        all.extend(self.skipped.iter().map(|skipped| {
            format!("{} {} was not measured: {}", skipped.op.words(&skipped.site), skipped.precision, skipped.reason)
        }));
        all
    }

    fn files(&self) -> impl Iterator<Item = String> {
        let run = self.run.iter().map(|path| format!("The run is kept in {}.", path.display()));
        run.chain(self.report.iter().map(|path| format!("The report is {}.", path.display())))
    }

    /// Measured points hollow, predicted ones filled, under the device's roofs.
    pub(super) fn picture(&self) -> Roofline {
        let mut points = Vec::new();
        for pair in self.pairs.iter().filter(|pair| pair.ideal.work.flops.value() > 0.0) {
            let class = match pair.observation.op.class() {
                OpClass::Attention => Class::Attention,
                OpClass::Elementwise | OpClass::Network => Class::Elementwise,
                OpClass::Gemm => Class::Product,
            };
            let (label, series) = (format!("{} {}", pair.subject(), pair.label()), pair.label());
            let (intensity, flops) = (pair.ideal.intensity(), pair.ideal.work.flops);
            let predicted = flops / pair.predicted();
            let point = |rate, measured| Point {
                label: label.clone(),
                intensity,
                rate,
                class,
                series: series.clone(),
                measured,
            };
            points.push(point(predicted, false));
            points.push(point(pair.rate(), true));
        }
        Roofline {
            title: format!("{} on {}", self.subject, self.device_name),
            subtitle: format!("predicted ({} tier) filled, measured hollow", self.tier),
            memories: vec![Memory { label: "memory".to_owned(), bandwidth: self.on.memory.bandwidth }],
            ceilings: ceilings(&self.on),
            points,
        }
    }
}
