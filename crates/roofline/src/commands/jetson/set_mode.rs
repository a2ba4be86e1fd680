//! `roofline jetson set-mode`.

use roofline_verbs::jetson::ModeChange;

use super::own;
use crate::report::{Report, Section, Shown};

impl Report for Shown<'_, ModeChange> {
    const ROWS: &'static str = "steps";

    fn sections(&self) -> Vec<Section> {
        let from = self.from.as_ref().map_or_else(String::new, |from| format!(", from {from}"));
        let mut sections = vec![Section::Heading(format!(
            "{} (id {}) of {}{from}",
            self.power_mode_name, self.power_mode_id, self.device
        ))];
        sections.extend(self.steps.iter().map(|step| Section::Line(step.command.clone())));
        sections.extend(own(&self.notes).map(|note| Section::Paragraph(format!("Note: {note}."))));
        let done = if self.applied { "Done." } else { "Nothing was changed; --apply runs it." };
        sections.push(Section::Paragraph(done.to_owned()));
        sections
    }
}
