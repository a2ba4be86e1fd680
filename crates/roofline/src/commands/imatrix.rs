//! `roofline imatrix`.

use roofline_verbs::{imatrix::Answer, text::size};

use crate::report::{Report, Section, Shown};

impl Report for Shown<'_, Answer> {
    const ROWS: &'static str = "notes";

    fn warnings(&self) -> Vec<String> {
        self.notes.iter().map(|note| note.text.clone()).collect()
    }

    fn sections(&self) -> Vec<Section> {
        let facts = vec![
            ("text".to_owned(), format!("{}, {} samples of {} tokens", self.text.name, self.samples, self.length)),
            ("matrices".to_owned(), self.entries.to_string()),
            ("size".to_owned(), size(self.bytes)),
        ];
        vec![
            Section::Heading(format!("Importance of the inputs of {}", self.model)),
            Section::Facts(facts),
            Section::Line(format!("Written to {}", self.target.display())),
        ]
    }
}
