//! `roofline quantize --part I/N`.

use roofline_quant::part::PartReport;
use roofline_verbs::text::size;

use super::tables;
use crate::report::{Report, Section, Shown};

impl Report for Shown<'_, PartReport> {
    const ROWS: &'static str = "weights";

    fn warnings(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn sections(&self) -> Vec<Section> {
        let told: &PartReport = self;
        let sizes = format!("{} before, {} after", size(told.bytes_before), size(told.bytes_after));
        let tensors = format!("{} of {}", told.tensors, told.tensors_of_all);
        let heading =
            format!("Part {} of {} as {} {}, by {}", told.part, told.model, told.layout, told.plan, told.method);
        let facts = vec![("tensors".to_owned(), tensors), ("size".to_owned(), sizes)];
        let mut sections = vec![Section::Heading(heading), Section::Facts(facts)];
        sections.extend(tables(&told.weights, self.all));
        sections.extend(told.notes.iter().map(|note| Section::Paragraph(format!("Note: {note}."))));
        sections.push(Section::Line(format!(
            "Waiting in {}; --join makes {} when all parts are there",
            told.folder.display(),
            told.target.display()
        )));
        sections
    }
}
