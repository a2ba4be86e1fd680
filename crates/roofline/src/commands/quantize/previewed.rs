//! `roofline quantize --dry-run`.

use roofline_quant::{
    layout::Left,
    preview::{Planned, Preview},
};
use roofline_verbs::text::size;

use crate::report::{Align, Report, Section, Shown, Table, number};

/// Kinds that stay as they are and are shown where nobody asked for all.
const SHOWN: usize = 12;

impl Report for Shown<'_, Preview> {
    const ROWS: &'static str = "quantized";

    fn warnings(&self) -> Vec<String> {
        let room = &self.room;
        let full = room.free.filter(|_| !room.enough).map(|free| {
            format!("the disk has {} free, and {} are needed: the run would be refused", size(free), size(room.needed))
        });
        self.notes.iter().cloned().chain(full).collect()
    }

    fn sections(&self) -> Vec<Section> {
        let mut sections = vec![
            Section::Heading(format!("{} as {} {}, by {}", self.model, self.layout, self.plan, self.method)),
            Section::Facts(self.facts()),
        ];
        if !self.quantized.is_empty() {
            sections.push(Section::Table(quantized(&self.quantized)));
        }
        if !self.left.is_empty() {
            sections.push(Section::Table(left(&self.left, if self.all { usize::MAX } else { SHOWN })));
        }
        if !self.all && self.left.len() > SHOWN {
            let text =
                format!("The {SHOWN} largest of {} kinds that stay as they are; --all shows them.", self.left.len());
            sections.push(Section::Paragraph(text));
        }
        sections.push(Section::Table(files(self)));
        sections.extend(self.warnings().iter().map(|note| Section::Paragraph(format!("Note: {note}."))));
        sections.push(Section::Line(format!("Nothing was written; the run would write {}", self.target.display())));
        sections
    }
}

impl Shown<'_, Preview> {
    fn facts(&self) -> Vec<(String, String)> {
        let ratio = 100.0 * self.bytes_after as f64 / self.bytes_before as f64;
        let mut facts = vec![(
            "size".to_owned(),
            format!("{} before, {} after ({ratio:.1} %)", size(self.bytes_before), size(self.bytes_after)),
        )];
        if !self.quantized.is_empty() {
            let bits = format!(
                "{:.3} of what is quantized, scales and all; {:.3} of the whole model",
                self.bits_per_weight, self.bits_per_parameter
            );
            facts.push(("bits per weight".to_owned(), bits));
        }
        let time = &self.time;
        facts.push((
            "time".to_owned(),
            format!(
                "about {} s: an estimate from {} of this model, coded here, and a source that gave {}/s; writing comes on top",
                number(time.estimated_seconds),
                size(time.sampled_bytes),
                size(time.read_bytes_per_second as u64)
            ),
        ));
        facts.push(("memory".to_owned(), format!("about {}", size(self.memory_bytes))));
        let room = &self.room;
        let free = room.free.map_or_else(|| "an unknown amount".to_owned(), size);
        let verdict = if room.enough { "it fits" } else { "it does not fit" };
        facts.push(("disk".to_owned(), format!("{} needed, {free} free: {verdict}", size(room.needed))));
        facts
    }
}

fn quantized(all: &[Planned]) -> Table {
    let mut table = Table::default()
        .column("role", Align::Left, 0)
        .column("scheme", Align::Left, 0)
        .column("matrices", Align::Right, 1)
        .column("parameters", Align::Right, 2)
        .column("size", Align::Right, 0)
        .column("bits", Align::Right, 1);
    for one in all {
        table.row([
            one.role.into(),
            one.scheme.as_str().into(),
            one.matrices.to_string().into(),
            one.parameters.to_string().into(),
            size(one.bytes).into(),
            format!("{:.3}", 8.0 * one.bytes as f64 / one.parameters.max(1) as f64).into(),
        ]);
    }
    table
}

/// The `count` largest kinds that stay as they are; all of them in their own order.
fn left(all: &[Left], count: usize) -> Table {
    let mut table = Table::default()
        .column("stays as it is", Align::Left, 0)
        .column("count", Align::Right, 1)
        .column("role", Align::Left, 3)
        .column("size", Align::Right, 0)
        .column("why", Align::Left, 2);
    let mut shown: Vec<&Left> = all.iter().collect();
    if count < shown.len() {
        shown.sort_by_key(|left| std::cmp::Reverse(left.bytes));
        shown.truncate(count);
    }
    for one in shown {
        table.row([
            one.kind.as_str().into(),
            one.count.to_string().into(),
            one.role.into(),
            size(one.bytes).into(),
            one.why.words().into(),
        ]);
    }
    table
}

fn files(shown: &Preview) -> Table {
    let mut table = Table::default().column("file", Align::Left, 0).column("size", Align::Right, 0);
    for (name, bytes) in shown.files.iter().chain(&shown.companions) {
        table.row([name.as_str().into(), size(*bytes).into()]);
    }
    table
}
