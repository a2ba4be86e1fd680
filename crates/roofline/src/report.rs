//! One result, four forms. JSON is the result type itself; CSV is the rows of that JSON; text and Markdown are tables
//! made for reading. stdout carries data, stderr talk.

mod csv;
pub(crate) mod style;
mod table;

pub(crate) use table::{Align, Cell, Table};

use std::io::{self, Write};

use serde::Serialize;

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
}

/// A part of a text report.
pub(crate) enum Section {
    Heading(String),
    Table(Table),
    /// A sentence, wrapped to the width of the terminal.
    Paragraph(String),
}

/// Prints a result.
pub(crate) fn emit(report: &impl Report, format: Format) -> io::Result<()> {
    let mut out = anstream::AutoStream::auto(io::stdout().lock());
    match format {
        Format::Json => {
            serde_json::to_writer_pretty(&mut out, report)?;
            writeln!(out)
        }
        Format::Csv => write!(out, "{}", csv::render(report)?),
        Format::Text => write!(out, "{}", text(&report.sections(), width())),
        Format::Markdown => write!(out, "{}", markdown(&report.sections())),
    }
}

/// The width of the terminal; none when the output is not one, because a file has no edge.
fn width() -> Option<usize> {
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    columns.or_else(|| terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| width.0.into()))
}

fn text(sections: &[Section], width: Option<usize>) -> String {
    let parts = sections.iter().map(|section| match section {
        Section::Heading(heading) => style::bold(heading) + "\n",
        Section::Table(table) => table.text(width),
        Section::Paragraph(paragraph) => wrap(paragraph, width.unwrap_or(100).min(100)),
    });
    parts.collect::<Vec<_>>().join("\n")
}

fn markdown(sections: &[Section]) -> String {
    let parts = sections.iter().map(|section| match section {
        Section::Heading(heading) => format!("### {heading}\n"),
        Section::Table(table) => table.markdown(),
        Section::Paragraph(paragraph) => format!("{paragraph}\n"),
    });
    parts.collect::<Vec<_>>().join("\n")
}

/// `text` in lines of at most `width`, continued lines indented by two.
fn wrap(text: &str, width: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().map_or(0, |line| line.chars().count());
        if last > 0 && last + 1 + word.chars().count() > width {
            lines.push(format!("  {word}"));
        } else if let Some(line) = lines.last_mut() {
            if last > 0 {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::wrap;

    #[test]
    fn paragraphs_wrap_at_words() {
        assert_eq!(wrap("one two three four", 9), "one two\n  three\n  four\n");
        assert_eq!(wrap("", 9), "\n");
    }
}
