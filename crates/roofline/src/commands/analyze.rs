//! `roofline analyze`.

use roofline_core::{predict::Tier, units::Seconds};
use roofline_verbs::analyze::Answer;

use crate::report::{Align, Report, Section, Shown, Table, number};

impl Report for Shown<'_, Answer> {
    const ROWS: &'static str = "runs";

    fn sections(&self) -> Vec<Section> {
        let heading = format!(
            "{}, {} x ({} prompt + {} generated tokens)",
            self.model_name, self.batch, self.prompt, self.generate
        );
        let mut sections = vec![Section::Heading(heading)];
        for run in &self.runs {
            let mut table = Table::default()
                .column(format!("{} on {}", run.precision, run.device), Align::Left, 0)
                .column("ideal", Align::Right, 0)
                .column("expected", Align::Right, 1)
                .column("measured", Align::Right, 0)
                .column("of roof", Align::Right, 0)
                .column("TFLOP/s", Align::Right, 1)
                .column("MFU", Align::Right, 0)
                .column("GB/s", Align::Right, 2)
                .column("MBU", Align::Right, 0)
                .column("FLOP/B", Align::Right, 3)
                .column("bound", Align::Left, 0)
                .column("W", Align::Right, 1)
                .column("tokens/J", Align::Right, 1);
            for part in &run.parts {
                let percent =
                    |value: Option<f64>| value.map_or_else(String::new, |value| format!("{:.1} %", 100.0 * value));
                let shown = |value: Option<f64>| value.map_or_else(String::new, number);
                let measured = part.measured_time_us.map(|micros| Seconds::new(micros * 1e-6).to_string());
                table.row([
                    part.name.into(),
                    part.prediction.ideal.time().to_string().into(),
                    if part.figures.tier == Tier::Expected {
                        part.prediction.expected.time.to_string()
                    } else {
                        String::new()
                    }
                    .into(),
                    measured.unwrap_or_default().into(),
                    percent(part.efficiency).into(),
                    shown(part.achieved_tflops).into(),
                    percent(part.mfu).into(),
                    shown(part.achieved_gb_s).into(),
                    percent(part.mbu).into(),
                    number(part.figures.ai).into(),
                    part.figures.bottleneck.as_str().into(),
                    shown(part.power_w).into(),
                    shown(part.tokens_per_joule).into(),
                ]);
            }
            sections.push(Section::Table(table.without_empty_columns()));
            let speed = number(run.generated_tokens_per_s);
            sections.push(Section::Paragraph(format!("{speed} generated tokens/s; {}", run.verdict)));
        }
        sections
    }
}
