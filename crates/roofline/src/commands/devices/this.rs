//! `roofline devices this`: everything that was measured of this machine.

use roofline_run::cpu::ceilings::StreamKind;
use roofline_verbs::{
    text::binary,
    this_machine::{Answer, level_name},
};

use crate::report::{Align, Report, Section, Shown, Table};

impl Report for Shown<'_, Answer> {
    const ROWS: &'static str = "streams";

    fn sections(&self) -> Vec<Section> {
        let this = &self.this;
        let mut peaks = Table::default()
            .column("math", Align::Left, 0)
            .column("unit", Align::Left, 0)
            .column("threads", Align::Right, 2)
            .column("best", Align::Right, 0)
            .column("median", Align::Right, 2)
            .column("theory", Align::Right, 0)
            .column("of theory", Align::Right, 1);
        for peak in &this.ceilings.peaks {
            peaks.row([
                peak.math.label().into(),
                peak.unit.as_str().into(),
                threads(peak.threads, peak.busy).into(),
                peak.best.to_string().into(),
                peak.median.to_string().into(),
                peak.theory.map_or_else(String::new, |theory| theory.to_string()).into(),
                peak.theory.map_or_else(String::new, |theory| format!("{:.0} %", peak.best / theory * 100.0)).into(),
            ]);
        }
        let mut streams = Table::default()
            .column("level", Align::Left, 0)
            .column("stream", Align::Left, 0)
            .column("threads", Align::Right, 0)
            .column("working set", Align::Right, 1)
            .column("best", Align::Right, 0)
            .column("median", Align::Right, 1)
            .column("worst", Align::Right, 2);
        for stream in &this.ceilings.streams {
            streams.row([
                level_name(stream.level).into(),
                kind_name(stream.kind).into(),
                threads(stream.threads, stream.busy).into(),
                binary(stream.bytes.value()).into(),
                stream.best.to_string().into(),
                stream.median.to_string().into(),
                stream.worst.to_string().into(),
            ]);
        }
        let heading = format!("This machine: {} ({}), measured {}", self.device.name, self.device.key, this.measured);
        vec![
            Section::Heading(heading),
            Section::Facts(this.facts()),
            Section::Heading("Multiplying, operands in registers".to_owned()),
            Section::Table(peaks),
            Section::Heading("Streams, counted as STREAM counts them".to_owned()),
            Section::Table(streams),
            Section::Paragraph(
                "The theory of a peak is operations per cycle and core, times the measured clock and the cores, with two \
                 vector units per core. `1 of 2` threads: one by itself was faster than both, which a disturbance does. \
                 `roofline devices this --measure` measures again, and keeps the better of both."
                    .to_owned(),
            ),
        ]
    }
}

/// How many threads there were, and how many of them reached a rate where not all did.
fn threads(all: usize, busy: usize) -> String {
    if busy == all { all.to_string() } else { format!("{busy} of {all}") }
}

fn kind_name(kind: StreamKind) -> &'static str {
    match kind {
        StreamKind::Read => "read",
        StreamKind::Write => "write",
        StreamKind::Copy => "copy",
        StreamKind::Triad => "triad",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disturbed_rate_says_who_reached_it() {
        assert_eq!((threads(2, 2), threads(16, 1)), ("2".to_owned(), "1 of 16".to_owned()));
    }
}
