//! One result, four forms. JSON is the result type itself; CSV is the rows of that JSON; text and Markdown are tables
//! made for reading. stdout carries data, stderr talk.

pub(crate) mod csv;
pub(crate) mod style;

pub(crate) use roofline_verbs::{
    report::{Align, Cell, Lead, Section, Table, of_passes},
    text::{billions, number},
};

use std::io::{self, Write};

use roofline_core::wording;
use roofline_verbs::{picture::Picture, report::wrap};
use serde::Serialize;

use crate::failure::Failure;

/// The form a result is printed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Json,
    Csv,
    Markdown,
}

/// A result that knows how people want to read it.
pub(crate) trait Report: Serialize {
    /// The field of its JSON that holds the rows of its CSV.
    const ROWS: &'static str;

    /// Headings, tables and sentences.
    fn sections(&self) -> Vec<Section>;

    /// What a CSV has no rows for, and so is said on standard error.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }
}

/// An answer of a verb, as the command line shows it: all of it, or what matters most.
pub(crate) struct Shown<'a, T> {
    told: &'a T,
    pub(crate) all: bool,
}

impl<'a, T> Shown<'a, T> {
    pub(crate) fn all(told: &'a T) -> Self {
        Self { told, all: true }
    }

    pub(crate) fn best(told: &'a T) -> Self {
        Self { told, all: false }
    }

    /// All of it, or not.
    pub(crate) fn of(told: &'a T, all: bool) -> Self {
        Self { told, all }
    }
}

impl<T> std::ops::Deref for Shown<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.told
    }
}

impl<T: Serialize> Serialize for Shown<'_, T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.told.serialize(serializer)
    }
}

/// Prints a result, all at once. What it says of fields and verbs is written as it is typed: in tables and sentences before
/// they are laid out, in JSON and CSV at the end.
pub(crate) fn emit(report: &impl Report, format: Format) -> Result<(), Failure> {
    let text = render(report, format).map_err(Failure::Output)?;
    print(&wording::flags(&text))
}

/// The same with a picture at its end, where the form has a place for one.
pub(crate) fn emit_with(report: &impl Report, picture: Option<Picture>, format: Format) -> Result<(), Failure> {
    emit(report, format)?;
    match (picture.map(|picture| [Section::Picture(Box::new(picture))]), format) {
        (Some(sections), Format::Text) => print(&format!("\n{}", text(&sections, width()))),
        (Some(sections), Format::Markdown) => print(&format!("\n{}", markdown(&sections))),
        _ => Ok(()),
    }
}

/// Prints text, coloured where the terminal allows it.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    anstream::AutoStream::auto(io::stdout().lock()).write_all(text.as_bytes()).map_err(Failure::Output)
}

/// A result as text, coloured where its form allows it.
pub(crate) fn render(report: &impl Report, format: Format) -> io::Result<String> {
    Ok(match format {
        Format::Json => serde_json::to_string_pretty(report)? + "\n",
        Format::Csv => {
            report.warnings().iter().for_each(|warning| style::talk("warning", warning));
            csv::render(report)?
        }
        Format::Text => text(&report.sections(), width()),
        Format::Markdown => markdown(&report.sections()),
    })
}

/// The width to fit: `COLUMNS`, else the terminal's; none for a file, which has no edge.
fn width() -> Option<usize> {
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).filter(|width| *width > 0);
    columns.or_else(|| terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| width.0.into()))
}

/// Lines of a picture among text.
const PICTURE: usize = 28;
/// Longest line of prose.
const MEASURE: usize = 100;

fn text(sections: &[Section], width: Option<usize>) -> String {
    let measure = width.unwrap_or(MEASURE).min(MEASURE);
    let parts = sections.iter().map(|section| match section {
        Section::Heading(heading) => {
            wrap(&style::printable(heading), measure, "  ").lines().map(style::bold).collect::<Vec<_>>().join("\n")
                + "\n"
        }
        Section::Lead(lead) => {
            let text = facts_text(&lead.facts, width.unwrap_or(MEASURE + 20));
            text.replacen(&lead.word, &style::toned(&lead.word, lead.tone), 1)
        }
        Section::Folded(name, sections) => style::bold(name) + "\n\n" + &self::text(sections, width),
        Section::Table(table) => table.text(width),
        Section::Facts(facts) => facts_text(facts, width.unwrap_or(MEASURE + 20)),
        Section::Paragraph(paragraph) => wrap(&style::printable(paragraph), measure, "  "),
        Section::Line(line) => style::printable(line) + "\n",
        Section::Code(lines) => lines.iter().map(|line| "  ".to_owned() + &style::printable(line) + "\n").collect(),
        Section::Picture(picture) => picture.terminal(width.unwrap_or(MEASURE).clamp(40, MEASURE), PICTURE, true),
    });
    parts.collect::<Vec<_>>().join("\n")
}

fn facts_text(facts: &[(String, String)], width: usize) -> String {
    let indent = facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0) + 2;
    let line = |(name, value): &(String, String)| {
        let margin = " ".repeat(indent);
        let value = wrap(&style::printable(value), width.saturating_sub(indent).max(20), "");
        format!("{name:indent$}{}\n", value.trim_end().replace('\n', &format!("\n{margin}")))
    };
    facts.iter().map(line).collect()
}

fn markdown(sections: &[Section]) -> String {
    let parts = sections.iter().map(|section| match section {
        Section::Heading(heading) => format!("### {}\n", style::printable(heading)),
        Section::Folded(name, sections) => format!("#### {}\n\n{}", style::printable(name), self::markdown(sections)),
        Section::Table(table) => table.markdown(),
        Section::Lead(Lead { facts, .. }) | Section::Facts(facts) => {
            let mut table = Table::default().column("", Align::Left, 0).column("", Align::Left, 0);
            for (name, value) in facts {
                table.row([name.as_str().into(), value.as_str().into()]);
            }
            table.markdown()
        }
        Section::Paragraph(text) | Section::Line(text) => format!("{}\n", style::printable(text)),
        Section::Code(lines) => {
            let lines: String = lines.iter().map(|line| style::printable(line) + "\n").collect();
            format!("```sh\n{lines}```\n")
        }
        Section::Picture(picture) => {
            let plain = picture.terminal(MEASURE, PICTURE, false);
            format!("```text\n{plain}```\n")
        }
    });
    parts.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_wrap_under_their_values() {
        let facts = [("name".to_owned(), "one two three four five six".to_owned())];
        assert_eq!(facts_text(&facts, 26), "name  one two three four\n      five six\n");
    }
}
