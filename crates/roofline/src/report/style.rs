//! Colour, which never carries meaning alone. `NO_COLOR`, `CLICOLOR` and a missing terminal turn it off.

use anstyle::{AnsiColor, Style};
use roofline_core::{predict::Bound, wording};
use roofline_verbs::text;

use super::Tone;
use crate::cli::ColorChoice;

/// Follows `--color`; anstream looks at the environment and the terminal for `auto`.
pub(crate) fn choose(choice: ColorChoice) {
    let choice = match choice {
        ColorChoice::Auto => anstream::ColorChoice::Auto,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    };
    choice.write_global();
}

/// A line of talk on standard error.
pub(crate) fn talk(label: &str, message: &str) {
    let color = match label {
        "error" => AnsiColor::Red,
        "warning" => AnsiColor::Yellow,
        _ => AnsiColor::Cyan,
    };
    let message = printable(message);
    anstream::eprintln!("{}: {message}", paint(label, Style::new().bold().fg_color(Some(color.into()))));
}

/// A line of what somebody else said, on standard error.
pub(crate) fn quote(line: &str) {
    anstream::eprintln!("  {}", printable(line));
}

pub(crate) fn bold(text: &str) -> String {
    paint(text, Style::new().bold())
}

/// A word of praise or of warning.
pub(crate) fn toned(text: &str, tone: Tone) -> String {
    let color = match tone {
        Tone::Good => AnsiColor::Green,
        Tone::Fair => AnsiColor::Yellow,
        Tone::Bad => AnsiColor::Red,
    };
    paint(text, Style::new().bold().fg_color(Some(color.into())))
}

/// Waiting for memory is cool, computing is warm.
pub(crate) fn of_bound(bound: Bound) -> Style {
    let color = match bound {
        Bound::Memory => AnsiColor::Blue,
        Bound::Network => AnsiColor::Magenta,
        _ => AnsiColor::Yellow,
    };
    Style::new().fg_color(Some(color.into()))
}

pub(crate) fn paint(text: &str, style: Style) -> String {
    format!("{style}{}{style:#}", printable(text))
}

/// `text` as it can be shown: fields and verbs as they are typed, and no control characters.
pub(crate) fn printable(text: &str) -> String {
    text::printable(&wording::flags(text))
}
