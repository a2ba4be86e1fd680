//! `roofline quantize`.

mod part;
mod previewed;

use clap::Args;
use roofline_quant::{
    data::Text,
    model_card::by_role,
    quantize::{Line, Report as Written},
};
use roofline_verbs::{
    Context,
    quantize::{Answer, Request, Schemes, quantize},
    text::size,
};

use crate::{
    failure::Failure,
    report::{Align, Format, Report, Section, Shown, Table, emit, number},
};

/// Weights that are shown where nobody asked for all.
const SHOWN: usize = 12;

#[derive(Args)]
pub(crate) struct QuantizeArgs {
    #[command(flatten)]
    request: Request,
    /// Show every weight instead of the worst
    #[arg(long)]
    all: bool,
}

pub(crate) fn run(context: &Context, args: &QuantizeArgs, form: Format) -> Result<(), Failure> {
    let all = args.all;
    match quantize(context, &args.request)? {
        Answer::Written(told) => emit(&Shown::of(&*told, all), form),
        Answer::Part(told) => emit(&Shown::of(&*told, all), form),
        Answer::Previewed(told) => emit(&Shown::of(&*told, all), form),
        Answer::Schemes(told) => emit(&Shown::all(&told), form),
    }
}

fn percent(share: f64) -> String {
    if share == 0.0 { "0".to_owned() } else { format!("{} %", number(100.0 * share)) }
}

impl Report for Shown<'_, Written> {
    const ROWS: &'static str = "weights";

    fn warnings(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn sections(&self) -> Vec<Section> {
        let ratio = 100.0 * self.bytes_after as f64 / self.bytes_before as f64;
        let sizes = format!("{} before, {} after ({ratio:.1} %)", size(self.bytes_before), size(self.bytes_after));
        let mut facts = vec![("size".to_owned(), sizes)];
        if let Some(text) = &self.data {
            let Text { name, samples, length, seed, .. } = text;
            facts.push(("data".to_owned(), format!("{name}: {samples} samples of {length} tokens, seed {seed}")));
        }
        for merge in &self.adapters {
            let held = size(merge.bytes_held);
            let what = format!("{} times {}: {}; {held} held", merge.adapter.display(), merge.scale, merge.words());
            facts.push(("adapter".to_owned(), what));
        }
        if self.verified {
            facts.push((
                "verified".to_owned(),
                "read back before it got its name: every weight has the error told here, every copy the source's bytes"
                    .to_owned(),
            ));
        }
        if !self.weights.is_empty() {
            facts.extend(self.errors());
        }
        let mut sections = vec![
            Section::Heading(format!("{} as {} {}, by {}", self.model, self.layout, self.plan, self.method)),
            Section::Facts(facts),
        ];
        sections.extend(tables(&self.weights, self.all));
        sections.extend(self.notes.iter().map(|note| Section::Paragraph(format!("Note: {note}."))));
        sections.push(Section::Line(format!("Written to {}", self.target.display())));
        sections
    }
}

impl Shown<'_, Written> {
    /// How much was lost.
    fn errors(&self) -> Vec<(String, String)> {
        let perplexity = match self.perplexity_change {
            Some(change) => format!(
                "+{} to +{}: an estimate from the weights alone, between models as robust as Llama-2-7B and as sensitive as \
                 Llama-3-8B",
                percent(change.low),
                percent(change.high)
            ),
            None if self.data.is_some() => {
                "no estimate: the method lets weights lose more so that outputs lose less; `roofline evaluate` tells"
                    .to_owned()
            }
            None => "no estimate: beyond a relative error of 0.25 models collapse".to_owned(),
        };
        vec![
            (
                "bits per weight".to_owned(),
                format!("{:.3} of what was quantized, scales and all", self.bits_per_weight),
            ),
            (
                "relative error".to_owned(),
                format!("{:.5}, root mean square over the model's products", self.relative_squared_error.sqrt()),
            ),
            ("perplexity".to_owned(), perplexity),
        ]
    }
}

/// What became of weights: by role, and one by one.
fn tables(lines: &[Line], all: bool) -> Vec<Section> {
    if lines.is_empty() {
        return Vec::new();
    }
    let shown = if all { usize::MAX } else { SHOWN };
    let mut sections = vec![Section::Table(roles(lines)), Section::Table(weights(lines, shown))];
    if lines.len() > shown {
        sections.push(Section::Paragraph(format!(
            "The {SHOWN} weights with the largest error of {}; --all shows the others, as do --json and --csv.",
            lines.len()
        )));
    }
    sections
}

fn roles(lines: &[Line]) -> Table {
    let mut table = Table::default()
        .column("role", Align::Left, 0)
        .column("scheme", Align::Left, 0)
        .column("matrices", Align::Right, 2)
        .column("relative error", Align::Right, 0)
        .column("SNR", Align::Right, 1)
        .column("clipped", Align::Right, 1);
    for ((role, scheme), lines) in by_role(lines) {
        let size = |line: &Line| (line.rows * line.columns) as f64;
        let total: f64 = lines.iter().map(|line| size(line)).sum();
        let squared = lines.iter().map(|line| line.relative_error.powi(2) * size(line)).sum::<f64>() / total;
        let clipped = lines.iter().map(|line| line.clipped_share * size(line)).sum::<f64>() / total;
        table.row([
            role.into(),
            scheme.into(),
            lines.len().to_string().into(),
            format!("{:.5}", squared.sqrt()).into(),
            if squared > 0.0 { format!("{:.1} dB", -10.0 * squared.log10()) } else { String::new() }.into(),
            percent(clipped).into(),
        ]);
    }
    table
}

/// The `count` weights with the largest relative error; all of them in their own order.
fn weights(lines: &[Line], count: usize) -> Table {
    let mut table = Table::default()
        .column("weight", Align::Left, 0)
        .column("scheme", Align::Left, 3)
        .column("shape", Align::Right, 2)
        .column("relative error", Align::Right, 0)
        .column("SNR", Align::Right, 1)
        .column("largest error", Align::Right, 1)
        .column("of largest weight", Align::Right, 3)
        .column("clipped", Align::Right, 1);
    let mut shown: Vec<&Line> = lines.iter().collect();
    if count < shown.len() {
        shown.sort_by(|a, b| b.relative_error.total_cmp(&a.relative_error));
        shown.truncate(count);
    }
    for line in shown {
        table.row([
            line.name.as_str().into(),
            line.scheme.as_str().into(),
            format!("{} x {}", line.rows, line.columns).into(),
            format!("{:.5}", line.relative_error).into(),
            line.snr_db.map_or_else(String::new, |snr| format!("{snr:.1} dB")).into(),
            number(f64::from(line.largest_error)).into(),
            number(f64::from(line.largest_weight)).into(),
            percent(line.clipped_share).into(),
        ]);
    }
    table
}

impl Report for Shown<'_, Schemes> {
    const ROWS: &'static str = "schemes";

    fn sections(&self) -> Vec<Section> {
        let mut table = Table::default()
            .column("layout", Align::Left, 0)
            .column("plan", Align::Left, 0)
            .column("also", Align::Left, 2)
            .column("what it is", Align::Left, 1);
        for scheme in &self.schemes {
            table.row([
                scheme.layout.into(),
                scheme.name.into(),
                scheme.aliases.join(", ").into(),
                scheme.summary.as_ref().into(),
            ]);
        }
        vec![Section::Table(table)]
    }
}
