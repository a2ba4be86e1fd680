//! What a profiler recorded, for reading: what to do first, then operators by their time.

use crate::{
    picture::Picture,
    report::{Align, Cell, Section, Table, style},
    text::number,
    trace::{Answer, Profiler, TracedOperator},
};

/// Operators that are shown unless all are asked for.
const MOST: usize = 15;

impl Answer {
    /// All operators and their shapes, or what matters most.
    pub fn sections(&self, all: bool) -> Vec<Section> {
        let mut sections = vec![Section::Heading(self.heading())];
        sections.extend(self.first.iter().enumerate().map(|(at, text)| {
            let opening = if at == 0 { "First: " } else { "Then: " };
            Section::Paragraph(format!("{opening}{text}"))
        }));
        sections.push(Section::Table(self.operators_table(all)));
        sections.push(Section::Facts(self.facts()));
        if all {
            let shapes = self.shapes_table();
            sections.push(Section::Folded("Every shape".to_owned(), vec![Section::Table(shapes)]));
        }
        sections
    }
}

/// The trace, with the points of its operators under the roofs where the work of any is known.
pub(super) fn sections(compared: &crate::compare::Answer, all: bool) -> Option<Vec<Section>> {
    let trace = compared.trace.as_ref()?;
    let mut sections = trace.sections(all);
    if !compared.pairs.is_empty() {
        sections.push(Section::Picture(Box::new(Picture::Roofline(compared.picture()))));
    }
    Some(sections)
}

impl Answer {
    fn heading(&self) -> String {
        let what = match self.source {
            Profiler::Torch => "kernels by operator",
            Profiler::Processor => "operators of the processor, each without those within it",
            Profiler::Ncu => "kernels that Nsight Compute counted",
        };
        format!("{} on {}: {what}", self.subject, self.device_name)
    }

    fn operators_table(&self, all: bool) -> Table {
        let mut table = Table::default()
            .column(if self.source == Profiler::Ncu { "kernel" } else { "operator" }, Align::Left, 0)
            .column("calls", Align::Right, 2)
            .column("kernels", Align::Right, 5)
            .column("ms", Align::Right, 0)
            .column("share", Align::Right, 0)
            .column("ideal ms", Align::Right, 2)
            .column("expected ms", Align::Right, 3)
            .column("TFLOP/s", Align::Right, 3)
            .column("GB/s", Align::Right, 3)
            .column("of bandwidth", Align::Right, 4)
            .column("of roof", Align::Right, 0)
            .column("bound", Align::Left, 1)
            .column("beyond ms", Align::Right, 1);
        let shown = if all { self.operators.len() } else { MOST };
        for row in self.operators.iter().take(shown) {
            table.row(cells(row, self.source));
        }
        let rest = self.operators.get(shown..).unwrap_or_default();
        if !rest.is_empty() {
            let sum = |part: fn(&TracedOperator) -> f64| rest.iter().map(part).sum::<f64>();
            let mut cells = vec![Cell::from(String::new()); 13];
            cells[0] = format!("{} more (--all)", rest.len()).into();
            cells[1] = rest.iter().map(|row| row.calls).sum::<u64>().to_string().into();
            cells[3] = number(sum(|row| row.time_us) / 1e3).into();
            cells[4] = percent(sum(|row| row.share)).into();
            table.row(cells);
        }
        table.without_empty_columns()
    }

    fn shapes_table(&self) -> Table {
        let mut table = Table::default()
            .column("shape", Align::Left, 0)
            .column("precision", Align::Left, 0)
            .column("calls", Align::Right, 0)
            .column("ms", Align::Right, 0)
            .column("us a call", Align::Right, 0)
            .column("ideal us", Align::Right, 1)
            .column("expected us", Align::Right, 1)
            .column("TFLOP/s", Align::Right, 2)
            .column("GB/s", Align::Right, 2)
            .column("of roof", Align::Right, 0)
            .column("bound", Align::Left, 1);
        for shape in self.operators.iter().flat_map(|row| &row.shapes) {
            table.row([
                shape.shape.as_str().into(),
                shape.precision.as_str().into(),
                shape.calls.to_string().into(),
                number(shape.time_us / 1e3).into(),
                number(shape.median_us).into(),
                number(shape.ideal_time_us).into(),
                number(shape.expected_time_us).into(),
                number(shape.tflops).into(),
                number(shape.gb_s).into(),
                percent(shape.of_roof).into(),
                Cell::styled(shape.bound.to_string(), style::of_bound(shape.bound)),
            ]);
        }
        table
    }

    fn facts(&self) -> Vec<(String, String)> {
        let fact = |name: &str, value: String| (name.to_owned(), value);
        let mut facts = vec![fact("time", format!("{} ms in all", number(self.time_us / 1e3)))];
        if self.source != Profiler::Ncu {
            facts.push(fact("with a roof", format!("{} of the time", percent(self.known_share))));
        }
        let alone = &self.unattributed;
        if alone.kernels > 0 && self.source == Profiler::Torch {
            let (kernels, share) = (alone.kernels, percent(alone.share));
            let names = alone.names.join("; ");
            facts.push(fact("without operator", format!("{kernels} kernels, {share} of the time: {names}")));
        }
        for gpu in &self.occupations {
            facts.push(fact(
                &format!("GPU {}", gpu.gpu),
                format!(
                    "works for {} of {} ms, waits for {} ({} gaps, the longest {} us)",
                    number(gpu.busy_us / 1e3),
                    number(gpu.span_us / 1e3),
                    percent(gpu.idle_share),
                    gpu.gaps,
                    number(gpu.longest_gap_us)
                ),
            ));
        }
        facts
    }
}

fn cells(row: &TracedOperator, source: Profiler) -> Vec<Cell> {
    let or_blank = |value: Option<f64>| value.map(number).unwrap_or_default();
    let millis = |value: Option<f64>| or_blank(value.map(|value| value / 1e3));
    let share = |value: Option<f64>| value.map(percent).unwrap_or_default();
    let kernel = if row.attributed || source == Profiler::Ncu { "" } else { " (kernel)" };
    let name: String = row.operator.chars().take(60).collect();
    vec![
        format!("{name}{kernel}").into(),
        row.calls.to_string().into(),
        if row.kernels == 0 || source == Profiler::Ncu { String::new() } else { row.kernels.to_string() }.into(),
        number(row.time_us / 1e3).into(),
        percent(row.share).into(),
        millis(row.ideal_time_us).into(),
        millis(row.expected_time_us).into(),
        or_blank(row.tflops).into(),
        or_blank(row.gb_s).into(),
        share(row.of_bandwidth).into(),
        share(row.of_roof).into(),
        row.bound.map_or_else(|| String::new().into(), |bound| Cell::styled(bound.to_string(), style::of_bound(bound))),
        millis(row.beyond_roof_us).into(),
    ]
}

fn percent(share: f64) -> String {
    if share > 0.0 && share < 0.0095 { format!("{:.1} %", share * 100.0) } else { format!("{:.0} %", share * 100.0) }
}
