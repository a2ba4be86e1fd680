//! `roofline formats`: what a number format stores, loses and runs on.

use std::thread;

use roofline_core::{
    Dim, Format, Math, Registry,
    format::{CATALOGUE, Distribution, Entry, Shape, Sizes},
};
use serde::Serialize;

use crate::{
    cli::FormatsArgs,
    failure::Failure,
    report::{Align, Report, Section, Table, number},
};

/// Formats, each with its size for one shape.
#[derive(Serialize)]
pub(crate) struct Catalogue {
    rows: u64,
    columns: u64,
    formats: Vec<Row>,
    #[serde(skip)]
    detailed: bool,
}

#[derive(Serialize)]
struct Row {
    name: String,
    aliases: Vec<&'static str>,
    summary: Option<&'static str>,
    element_bits: u32,
    exponent_bits: Option<u32>,
    mantissa_bits: Option<u32>,
    block: Option<u64>,
    scale: &'static str,
    stored_bits: f64,
    stored_bytes: f64,
    overhead_pct: f64,
    size_of_fp16: f64,
    element_max: f64,
    range_max: Option<f64>,
    positive_levels: Option<usize>,
    /// Every value of an element of at most 8 bits, ascending, before its scale.
    codebook: Option<Vec<f32>>,
    /// The codes of such an element that are no number.
    special_codes: Vec<Special>,
    error_gaussian: f64,
    error_student_t5: f64,
    native_units: &'static [Math],
    native_devices: Vec<String>,
    runtimes: Vec<&'static str>,
    source: Option<&'static str>,
}

/// A code that stands for no number. JSON has none for it, so it is said in words.
#[derive(Serialize)]
struct Special {
    code: u64,
    /// NaN, +infinity or -infinity.
    means: &'static str,
}

/// Most values of a code book that text shows.
const SHOWN: usize = 64;

pub(crate) fn formats(args: &FormatsArgs) -> Result<Catalogue, Failure> {
    let shape = Shape::matrix(Dim::new("rows", args.shape.0)?, Dim::new("columns", args.shape.1)?);
    let asked: Vec<Format> = if args.names.is_empty() {
        CATALOGUE.iter().map(|entry| entry.name.parse()).collect::<Result<_, _>>()?
    } else {
        args.names.iter().map(|name| name.parse()).collect::<Result<_, _>>()?
    };
    let samples = Samples { gaussian: Distribution::Gaussian.sample(), student: Distribution::StudentT5.sample() };
    let formats = rows(&asked, shape, &samples);
    Ok(Catalogue { rows: args.shape.0, columns: args.shape.1, formats, detailed: !args.names.is_empty() })
}

struct Samples {
    gaussian: Vec<f32>,
    student: Vec<f32>,
}

/// A row per format, on all cores: each encodes and decodes a quarter of a million weights.
fn rows(formats: &[Format], shape: Shape, samples: &Samples) -> Vec<Row> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let each = formats.len().div_ceil(cores).max(1);
    thread::scope(|scope| {
        let part = |part: &'_ [Format]| part.iter().map(|format| row(*format, shape, samples)).collect::<Vec<Row>>();
        let parts: Vec<_> = formats.chunks(each).map(|formats| scope.spawn(move || part(formats))).collect();
        parts.into_iter().filter_map(|part| part.join().ok()).flatten().collect()
    })
}

fn row(format: Format, shape: Shape, samples: &Samples) -> Row {
    let element = format.element();
    let entry: Option<&Entry> = CATALOGUE.iter().find(|entry| entry.name == format.to_string());
    let units = format.native_units().unwrap_or_default();
    let stored_bits = format.bits_per_element(shape, Sizes::Exact);
    let codebook = format.codebook();
    let largest = codebook.as_ref().and_then(|book| book.last().copied());
    let registry = Registry::builtin();
    let native = registry.devices().filter(|device| device.fastest(units).is_some() && device.takes(format));
    Row {
        name: format.to_string(),
        aliases: format.aliases(),
        summary: entry.map(|entry| entry.summary),
        element_bits: element.bits(),
        exponent_bits: element.exponent_mantissa().map(|(exponent, _)| exponent),
        mantissa_bits: element.exponent_mantissa().map(|(_, mantissa)| mantissa),
        block: format.block(),
        scale: format.scale(),
        stored_bits,
        stored_bytes: format.bytes(shape, Sizes::Exact).value(),
        overhead_pct: 100.0 * (1.0 - f64::from(element.bits()) / stored_bits),
        size_of_fp16: stored_bits / 16.0,
        element_max: largest.map_or(element.max(), f64::from),
        range_max: format.range(),
        positive_levels: codebook.as_ref().map(|book| book.iter().filter(|value| **value > 0.0).count()),
        codebook,
        special_codes: element.special_codes().into_iter().map(|(code, means)| Special { code, means }).collect(),
        error_gaussian: format.relative_error(&samples.gaussian),
        error_student_t5: format.relative_error(&samples.student),
        native_units: units,
        native_devices: native.map(|device| device.key.clone()).collect(),
        runtimes: entry.map_or_else(Vec::new, |entry| entry.runtimes.to_vec()),
        source: entry.map(|entry| entry.source),
    }
}

impl Report for Catalogue {
    const ROWS: &'static str = "formats";

    fn sections(&self) -> Vec<Section> {
        if self.detailed { self.formats.iter().flat_map(|row| self.detail(row)).collect() } else { self.overview() }
    }
}

impl Catalogue {
    fn overview(&self) -> Vec<Section> {
        let mut table = Table::default()
            .column("format", Align::Left, 0)
            .column("bits", Align::Right, 0)
            .column("stored", Align::Right, 0)
            .column("overhead", Align::Right, 3)
            .column("of FP16", Align::Right, 2)
            .column("block", Align::Right, 4)
            .column("max", Align::Right, 6)
            .column("levels", Align::Right, 7)
            .column("error", Align::Right, 1)
            .column("heavy tails", Align::Right, 2)
            .column("devices", Align::Right, 5)
            .column("scale", Align::Left, 8);
        for row in &self.formats {
            let block = row.block.map_or_else(String::new, |block| block.to_string());
            let levels = row.positive_levels.map_or_else(String::new, |levels| levels.to_string());
            let devices =
                if row.native_devices.is_empty() { "-".to_owned() } else { row.native_devices.len().to_string() };
            table.row([
                row.name.as_str().into(),
                row.element_bits.to_string().into(),
                format!("{:.3}", row.stored_bits).into(),
                format!("{:.1} %", row.overhead_pct).into(),
                format!("{:.3}", row.size_of_fp16).into(),
                block.into(),
                magnitude(row.element_max).into(),
                levels.into(),
                percent(row.error_gaussian).into(),
                percent(row.error_student_t5).into(),
                devices.into(),
                row.scale.into(),
            ]);
        }
        vec![
            Section::Heading(format!(
                "Number formats, stored bits per weight of a {} x {} tensor",
                self.rows, self.columns
            )),
            Section::Table(table),
            Section::Paragraph(
                "error: ||W - Q(W)|| / ||W|| on Gaussian weights, and on Student-t weights with 5 degrees of freedom \
                 (heavy tails), computed by encoding and decoding, scales chosen by the block maximum, those of ggml's \
                 types as ggml chooses them. devices: how many of the registry multiply it as it is; `-` is a storage \
                 format, converted on the way to the multiplier. `roofline formats NAME` explains one."
                    .to_owned(),
            ),
        ]
    }

    fn detail(&self, row: &Row) -> Vec<Section> {
        let parts = row.exponent_bits.zip(row.mantissa_bits);
        let parts = parts.map_or_else(String::new, |(e, m)| format!(" (sign, {e} exponent, {m} mantissa)"));
        let block = row.block.map_or_else(String::new, |block| format!(", blocks of {block}"));
        let stored = format!(
            "{:.4} bits per weight of a {} x {} tensor: {:.1} % of it scales and padding, {:.3} of FP16",
            row.stored_bits, self.rows, self.columns, row.overhead_pct, row.size_of_fp16
        );
        let range =
            row.range_max.map_or_else(String::new, |range| format!("; with block scales to {}", magnitude(range)));
        let levels = row.positive_levels.map_or_else(String::new, |levels| format!("{levels} above zero"));
        let book = row.codebook.as_ref().filter(|book| book.len() <= SHOWN);
        let book = book.into_iter().flatten().map(f32::to_string).collect::<Vec<_>>().join(" ");
        let long = row.codebook.as_ref().filter(|book| book.len() > SHOWN);
        let book = long.map_or(book, |book| format!("{} values, in full by --json", book.len()));
        let special: Vec<String> =
            row.special_codes.iter().map(|special| format!("{:#04x} {}", special.code, special.means)).collect();
        let (gaussian, student) = (percent(row.error_gaussian), percent(row.error_student_t5));
        let units: Vec<&str> = row.native_units.iter().map(|math| math.label()).collect();
        let native = match row.native_devices.len() {
            0 if units.is_empty() => "nothing: a storage format, converted to a wider type first".to_owned(),
            0 => format!("{} units, on no device of the registry", units.join(" or ")),
            count => format!("{} units, on {count} devices: {}", units.join(" or "), row.native_devices.join(", ")),
        };
        let facts = [
            ("is", row.summary.unwrap_or_default().to_owned()),
            ("also called", row.aliases.join(", ")),
            ("element", format!("{} bits{parts}", row.element_bits)),
            ("scale", format!("{}{block}", row.scale)),
            ("stored", stored),
            ("range", format!("elements to {}{range}", magnitude(row.element_max))),
            ("levels", levels),
            ("code book", book),
            ("no numbers", special.join(", ")),
            ("relative error", format!("{gaussian} on Gaussian weights, {student} on Student-t(5)")),
            ("multiplied by", native),
            ("loaded by", row.runtimes.join(", ")),
            ("source", row.source.unwrap_or_default().to_owned()),
        ];
        let facts = facts.into_iter().filter(|(_, value)| !value.is_empty());
        let facts = facts.map(|(name, value)| (name.to_owned(), value)).collect();
        vec![Section::Heading(row.name.clone()), Section::Facts(facts)]
    }
}

fn percent(error: f64) -> String {
    if error == 0.0 {
        "0".to_owned()
    } else if error < 5e-5 {
        format!("{:.0e} %", 100.0 * error)
    } else {
        format!("{:.2} %", 100.0 * error)
    }
}

fn magnitude(value: f64) -> String {
    if value >= 1e6 {
        format!("{value:.2e}")
    } else {
        number(value).trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}
