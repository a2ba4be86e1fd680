//! `roofline formats`.

use roofline_verbs::{
    Context,
    formats::{Answer, FormatFacts, Request, formats},
};

use crate::{
    failure::Failure,
    report::{Align, Format, Report, Section, Shown, Table, emit, number},
};

/// Most values of a code book that text shows.
const SHOWN: usize = 64;

/// Most devices that text names.
const NAMED: usize = 24;

pub(crate) fn run(context: &Context, request: &Request, form: Format) -> Result<(), Failure> {
    let answer = formats(context, request)?;
    emit(&Shown::of(&answer, !request.names.is_empty()), form)
}

impl Report for Shown<'_, Answer> {
    const ROWS: &'static str = "formats";

    fn sections(&self) -> Vec<Section> {
        if self.all { self.formats.iter().flat_map(|row| self.detail(row)).collect() } else { self.overview() }
    }
}

impl Shown<'_, Answer> {
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

    fn detail(&self, row: &FormatFacts) -> Vec<Section> {
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
            count => format!("{} units, on {count} devices: {}", units.join(" or "), some(&row.native_devices)),
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

/// The first of many names, and how many more there are.
fn some(names: &[String]) -> String {
    let (first, rest) = names.split_at(names.len().min(NAMED));
    match rest.len() {
        0 => first.join(", "),
        more => format!("{} and {more} more, in full by --json", first.join(", ")),
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
