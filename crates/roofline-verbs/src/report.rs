//! Answers for reading, as headings, tables and sentences; the program lays them out for a terminal, a page has them as HTML.
//!
//! Those that somebody may want a page of are told here, so that whoever asks - the command line, a server, Python - has the
//! same page.

#[cfg(feature = "hardware")]
mod compare;
#[cfg(feature = "hardware")]
mod evaluate;
mod html;
#[cfg(feature = "hardware")]
mod passes;
#[cfg(feature = "hardware")]
mod pipeline;
pub mod style;
mod table;

pub use html::html;
#[cfg(feature = "hardware")]
pub use passes::sections as of_passes;
pub use table::{Align, Cell, Table, wrap};

use crate::picture::Picture;

/// A part of a text report.
pub enum Section {
    Heading(String),
    /// The first words: what it comes to.
    Lead(Lead),
    /// What few will look for, under its name: closed in a page until somebody opens it.
    Folded(String, Vec<Section>),
    Table(Table),
    /// Names and values, the values wrapped.
    Facts(Vec<(String, String)>),
    /// A sentence, wrapped to the width of the terminal.
    Paragraph(String),
    /// A sentence with a path in it: one line however long, so that the path can be copied.
    Line(String),
    /// What to type.
    Code(Vec<String>),
    /// A picture, in whatever the form can show.
    Picture(Box<Picture>),
}

/// What a report comes to: a word, and the facts behind it, of which the first begins with that word.
pub struct Lead {
    pub word: String,
    pub tone: Tone,
    pub facts: Vec<(String, String)>,
}

/// How a word is meant; said by its colour, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Good,
    Fair,
    Bad,
}

/// Writes the page of an answer where its `report` says. What was measured or computed is told, even where its page cannot
/// be kept: then there is a warning, and no page.
#[cfg(feature = "hardware")]
pub(crate) fn keep(
    context: &crate::Context,
    report: &mut Option<std::path::PathBuf>,
    notes: &mut Vec<crate::Note>,
    page: &str,
) {
    let written = report.as_deref().map(|path| crate::context::files::replace(path, page.as_bytes()));
    if let Some(Err(error)) = written {
        context.warn(format!("the page is not written: {error}"));
        *report = None;
        notes.extend(context.notes());
    }
}
