//! Colour, which never carries meaning alone. `NO_COLOR`, `CLICOLOR` and a missing terminal turn it off.

use anstyle::{AnsiColor, Style};
pub(crate) use roofline_verbs::report::style::{bold, of_bound, paint, printable, toned};

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
