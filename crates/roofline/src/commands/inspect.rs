//! `roofline inspect`.

use std::collections::BTreeMap;

use clap::Args;
use roofline_quant::inspect::{Tensor, kinds};
use roofline_verbs::{
    Context,
    inspect::{Answer, Request, inspect},
    text::size,
};

use crate::{
    failure::Failure,
    report::{Align, Format, Report, Section, Shown, Table, billions, emit, number},
};

/// The longest text of metadata that is shown.
const LONGEST: usize = 100;

#[derive(Args)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    request: Request,
    /// Show every tensor instead of one line per kind
    #[arg(long)]
    all: bool,
}

pub(crate) fn run(context: &Context, args: &InspectArgs, form: Format) -> Result<(), Failure> {
    let answer = inspect(context, &args.request)?;
    emit(&Shown::of(&answer, args.all), form)
}

/// Parameters, as people say them, down to the smallest.
fn count(parameters: u64) -> String {
    match parameters {
        0..1_000_000 => parameters.to_string(),
        1_000_000..1_000_000_000 => format!("{} M", number(parameters as f64 / 1e6)),
        _ => billions(parameters as f64),
    }
}

impl Report for Shown<'_, Answer> {
    const ROWS: &'static str = "tensors";

    fn warnings(&self) -> Vec<String> {
        self.suspicious.clone()
    }

    fn sections(&self) -> Vec<Section> {
        let mut sections = vec![
            Section::Heading(match self.files.len() {
                1 => format!("{}: {}", self.name, self.container),
                count => format!("{}: {} in {count} files", self.name, self.container),
            }),
            Section::Facts(self.facts()),
            Section::Table(formats(&self.tensors)),
            Section::Table(if self.all { every(&self.tensors) } else { by_kind(&self.tensors) }),
        ];
        if !self.metadata.is_empty() {
            let texts = self.metadata.iter().map(|(key, text)| (key.clone(), shortened(text)));
            sections.push(Section::Facts(texts.collect()));
        }
        sections.extend(self.suspicious.iter().map(|text| Section::Paragraph(format!("Suspicious: {text}."))));
        sections
    }
}

impl Shown<'_, Answer> {
    fn facts(&self) -> Vec<(String, String)> {
        let mut facts = vec![
            ("parameters".to_owned(), format!("{} ({})", count(self.parameters), self.parameters)),
            ("size".to_owned(), size(self.bytes)),
            ("bits per weight".to_owned(), format!("{:.3}", self.bits_per_weight)),
        ];
        if self.bytes_not_understood > 0 {
            let unknown =
                format!("{} of codes, whose parameters are not among those above", size(self.bytes_not_understood));
            facts.push(("not understood".to_owned(), unknown));
        }
        if let Some(quantization) = &self.quantization {
            facts.push(("quantization".to_owned(), shortened_to(&quantization.to_string(), 400)));
        }
        facts
    }
}

fn shortened(text: &str) -> String {
    shortened_to(text, LONGEST)
}

fn shortened_to(text: &str, longest: usize) -> String {
    if text.chars().count() <= longest {
        return text.to_owned();
    }
    let start: String = text.chars().take(longest).collect();
    format!("{start}... ({} characters)", text.chars().count())
}

/// How much is stored in each format.
fn formats(tensors: &[Tensor]) -> Table {
    let mut by_format: BTreeMap<&str, (usize, u64, u64)> = BTreeMap::new();
    for tensor in tensors {
        let sums = by_format.entry(&tensor.format).or_default();
        *sums = (sums.0 + 1, sums.1 + tensor.elements(), sums.2 + tensor.bytes);
    }
    let mut rows: Vec<_> = by_format.into_iter().collect();
    rows.sort_by_key(|(_, (_, _, bytes))| std::cmp::Reverse(*bytes));
    let mut table = Table::default()
        .column("format", Align::Left, 0)
        .column("tensors", Align::Right, 1)
        .column("parameters", Align::Right, 0)
        .column("size", Align::Right, 0)
        .column("bits per weight", Align::Right, 0);
    for (format, (tensors, elements, bytes)) in rows {
        let bits = if elements == 0 { 0.0 } else { 8.0 * bytes as f64 / elements as f64 };
        table.row([
            format.into(),
            tensors.to_string().into(),
            count(elements).into(),
            size(bytes).into(),
            format!("{bits:.3}").into(),
        ]);
    }
    table
}

fn listing() -> Table {
    Table::default()
        .column("tensor", Align::Left, 0)
        .column("count", Align::Right, 1)
        .column("role", Align::Left, 2)
        .column("shape", Align::Right, 0)
        .column("format", Align::Left, 0)
        .column("bits", Align::Right, 3)
        .column("size", Align::Right, 1)
}

fn shape(tensor: &Tensor) -> String {
    tensor.shape.iter().map(u64::to_string).collect::<Vec<_>>().join(" x ")
}

fn by_kind(tensors: &[Tensor]) -> Table {
    let mut table = listing();
    for (name, tensors) in kinds(tensors) {
        let first = tensors[0];
        table.row([
            name.into(),
            tensors.len().to_string().into(),
            first.role.into(),
            shape(first).into(),
            first.format.as_str().into(),
            format!("{:.3}", first.bits_per_weight).into(),
            size(tensors.iter().map(|tensor| tensor.bytes).sum()).into(),
        ]);
    }
    table
}

fn every(tensors: &[Tensor]) -> Table {
    let mut table = listing();
    for tensor in tensors {
        table.row([
            tensor.name.as_str().into(),
            String::new().into(),
            tensor.role.into(),
            shape(tensor).into(),
            tensor.format.as_str().into(),
            format!("{:.3}", tensor.bits_per_weight).into(),
            size(tensor.bytes).into(),
        ]);
    }
    table.without_empty_columns()
}
