//! Colour, which never carries meaning alone.

use anstyle::{AnsiColor, Style};
use roofline_core::{predict::Bound, wording};

use super::Tone;
use crate::text;

pub fn bold(text: &str) -> String {
    paint(text, Style::new().bold())
}

/// A word of praise or of warning.
pub fn toned(text: &str, tone: Tone) -> String {
    let color = match tone {
        Tone::Good => AnsiColor::Green,
        Tone::Fair => AnsiColor::Yellow,
        Tone::Bad => AnsiColor::Red,
    };
    paint(text, Style::new().bold().fg_color(Some(color.into())))
}

/// Waiting for memory is cool, computing is warm.
pub fn of_bound(bound: Bound) -> Style {
    let color = match bound {
        Bound::Memory => AnsiColor::Blue,
        Bound::Network => AnsiColor::Magenta,
        _ => AnsiColor::Yellow,
    };
    Style::new().fg_color(Some(color.into()))
}

pub fn paint(text: &str, style: Style) -> String {
    format!("{style}{}{style:#}", printable(text))
}

/// `text` as it can be shown: fields and verbs as they are typed, and no control characters.
pub fn printable(text: &str) -> String {
    text::printable(&wording::flags(text))
}
