//! `roofline jetson schedule`.

use roofline_core::units::{Joules, Seconds};
use roofline_verbs::jetson::{ScheduleApply, Scheduled};

use super::own;
use crate::report::{Align, Report, Section, Shown, Table, number};

fn sentence(apply: &ScheduleApply) -> String {
    if !apply.applied {
        return format!("Nothing was changed; `{}` puts the board into the mode, and so does --apply.", apply.command);
    }
    let steps: Vec<&str> = apply.steps.iter().map(|step| step.command.as_str()).collect();
    let mut sentences = vec![format!("Done: {}.", steps.join(", "))];
    sentences.extend(own(&apply.notes).map(|note| format!("Note: {note}.")));
    sentences.join(" ")
}

impl Report for Shown<'_, Scheduled> {
    const ROWS: &'static str = "candidates";

    fn sections(&self) -> Vec<Section> {
        let mut table = Table::default()
            .column("mode", Align::Left, 0)
            .column("precision", Align::Left, 0)
            .column("batch", Align::Right, 0)
            .column("step", Align::Right, 0)
            .column("tokens/s", Align::Right, 0)
            .column("energy per token", Align::Right, 1)
            .column("bound by", Align::Left, 2);
        for row in &self.candidates {
            let energy = row.estimated_energy_per_token_j.map(|energy| Joules::new(energy).to_string());
            table.row([
                format!("{}{}", row.power_mode_name, if row.chosen { " <" } else { "" }).into(),
                row.precision.as_str().into(),
                row.batch_size.to_string().into(),
                Seconds::from_micros(row.predicted_time_us).to_string().into(),
                number(row.tokens_per_s).into(),
                energy.unwrap_or_default().into(),
                row.bottleneck.as_str().into(),
            ]);
        }
        vec![
            Section::Heading(format!(
                "{}: {} in {}, batch {}, for {}",
                self.device_name,
                self.precision,
                self.power_mode_name,
                self.batch_size,
                self.target.name()
            )),
            Section::Facts(vec![
                ("workload".to_owned(), self.workload.clone()),
                ("method".to_owned(), self.method.clone()),
                ("reason".to_owned(), self.reason.clone()),
            ]),
            Section::Heading(
                "The best of each mode, by the time to expect; energy is the budget times that time, an estimate"
                    .to_owned(),
            ),
            Section::Table(table.without_empty_columns()),
            Section::Paragraph(sentence(&self.apply)),
        ]
    }
}
