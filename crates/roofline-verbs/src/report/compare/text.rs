//! A comparison for reading: what matters first, the rest where it is asked for.

use super::trace;
use crate::{
    compare::Answer,
    picture::Picture,
    report::{Section, passes},
};

impl Answer {
    /// All of it, or what matters most.
    pub fn sections(&self, all: bool) -> Vec<Section> {
        if let Some(mut sections) = trace::sections(self, all) {
            sections.extend(self.files().map(Section::Line));
            return sections;
        }
        let mut sections = self.essence();
        if all {
            sections.extend(self.details());
        }
        sections.extend((!all).then(|| Section::Paragraph(self.rest())));
        sections
            .extend(self.next.iter().map(|next| Section::Line(format!("Next: `{}`: {}.", next.command, next.shows))));
        sections.extend(self.files().map(Section::Line));
        sections
    }

    /// The two sentences, the plot, times as bars, sums over passes, and the speed-ups that matter.
    pub(super) fn essence(&self) -> Vec<Section> {
        let mut sections = vec![
            Section::Heading(self.heading()),
            Section::Lead(self.lead()),
            Section::Picture(Box::new(Picture::Roofline(self.picture()))),
            Section::Picture(Box::new(Picture::Times(self.times()))),
        ];
        if !self.passes.is_empty() {
            sections.push(Section::Table(self.passes_table()));
            let ideal: u64 = self.passes.iter().filter(|pass| pass.mixed()).map(|pass| pass.ideal_kernels).sum();
            if ideal > 0 {
                let text =
                    format!("* {ideal} kernels are not covered by the calibration: the sum has their ideal times.");
                sections.push(Section::Paragraph(text));
            }
        }
        sections.extend(passes::sections(&self.whole));
        if !self.gains.is_empty() {
            sections.push(Section::Table(self.gains_table()));
        }
        sections
    }

    /// Everything else, each part under its name.
    pub(super) fn details(&self) -> Vec<Section> {
        let part = |name: &str, sections: Vec<Section>| Section::Folded(name.to_owned(), sections);
        let mut parts = vec![part("Every kernel", vec![Section::Table(self.table())])];
        if !self.speedups.is_empty() {
            parts.push(part("Every speed-up", vec![Section::Table(self.speedups_table())]));
        }
        parts.push(part("Errors and what they rest on", vec![Section::Facts(self.analysis())]));
        let explanations = self.explanations();
        if !explanations.is_empty() {
            parts.push(part("Explanations", explanations.into_iter().map(Section::Paragraph).collect()));
        }
        if !self.made_of.is_empty() {
            parts.push(part("What the machine is made of", vec![Section::Facts(self.made_of.clone())]));
        }
        parts
    }

    pub(super) fn files(&self) -> impl Iterator<Item = String> {
        let run = self.run.iter().map(|path| format!("The run is kept in {}.", path.display()));
        run.chain(self.report.iter().map(|path| format!("The report is {}.", path.display())))
    }
}
