//! `roofline jetson setup`.

use roofline_verbs::jetson::{CheckState, SetUp};

use crate::report::{Align, Report, Section, Shown, Table};

impl Report for Shown<'_, SetUp> {
    const ROWS: &'static str = "checks";

    fn sections(&self) -> Vec<Section> {
        let mut table = Table::default()
            .column("check", Align::Left, 0)
            .column("", Align::Left, 0)
            .column("found", Align::Left, 0)
            .column("what to do", Align::Left, 0);
        for check in &self.checks {
            let state = match check.state {
                CheckState::Ok => "OK",
                CheckState::Missing => "missing",
                CheckState::Note => "note",
                CheckState::Unknown => "unknown",
            };
            table.row([check.check.into(), state.into(), check.found.as_str().into(), check.to_do.as_str().into()]);
        }
        let mut sections = vec![
            Section::Heading("Set-up of this Jetson".to_owned()),
            Section::Table(table),
            Section::Heading("Next".to_owned()),
        ];
        let steps = self.next_steps.iter().map(|step| (step.command.clone(), step.why.to_owned()));
        sections.push(Section::Facts(steps.collect()));
        sections
    }
}
