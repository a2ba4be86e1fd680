//! `roofline precisions`.

use roofline_verbs::precisions::Answer;

use crate::report::{Align, Report, Section, Shown, Table, number};

impl Report for Shown<'_, Answer> {
    const ROWS: &'static str = "precisions";

    fn sections(&self) -> Vec<Section> {
        let mut table = Table::default()
            .column("precision", Align::Left, 0)
            .column("weights", Align::Left, 0)
            .column("activations", Align::Left, 0)
            .column("KV", Align::Left, 3)
            .column("output", Align::Left, 4)
            .column("bits/weight", Align::Right, 1)
            .column("unit", Align::Left, 0)
            .column("TFLOP/s", Align::Right, 0)
            .column("ridge", Align::Right, 2)
            .column("is", Align::Left, 5);
        for row in self.precisions.iter().filter(|row| row.unavailable.is_none()) {
            let aliases = if row.aliases.is_empty() { String::new() } else { format!(" ({})", row.aliases.join(", ")) };
            table.row([
                format!("{}{aliases}", row.name).into(),
                row.weights.as_str().into(),
                row.activations.as_str().into(),
                row.kv.as_str().into(),
                row.output.as_str().into(),
                format!("{:.3}", row.stored_bits_per_weight).into(),
                row.math.unwrap_or_default().into(),
                row.peak_tflops.map_or_else(String::new, number).into(),
                row.critical_ai.map_or_else(String::new, number).into(),
                row.summary.into(),
            ]);
        }
        let place = self.device.as_ref().map_or_else(String::new, |device| format!(" on {device}"));
        let mut sections =
            vec![Section::Heading(format!("Precisions{place}")), Section::Table(table.without_empty_columns())];
        let missing: Vec<&str> =
            self.precisions.iter().filter(|row| row.unavailable.is_some()).map(|row| row.name).collect();
        if !missing.is_empty() {
            sections.push(Section::Paragraph(format!("It has no unit for {}.", missing.join(", "))));
        }
        sections.push(Section::Paragraph(
            "16 bit is BF16 or FP16, whichever the device multiplies faster. `weights/activations/kv` says everything, \
             for instance int4-g128/bf16/fp8. Embeddings, norms, router and LM head of a model stay at 16 bit, but in \
             llama.cpp's recipes, which decide about each tensor."
                .to_owned(),
        ));
        sections
    }
}
