//! Help that fills the width of whoever reads it.

use clap::Command;

/// Paragraphs of what follows the options as one line each, of a command and all below it: they are broken where the
/// terminal ends, and not where the source does.
pub(super) fn flowing(command: Command) -> Command {
    let text = command.get_after_help().map(|text| joined(&text.to_string()));
    let command = match text {
        Some(text) => command.after_help(text),
        None => command,
    };
    command.mut_subcommands(flowing)
}

/// Joins lines of a paragraph. What is indented, or follows a heading, is as it is.
fn joined(text: &str) -> String {
    let is_prose = |line: &str| line.starts_with(|first: char| !first.is_whitespace());
    let mut out = String::with_capacity(text.len());
    let mut before = "";
    for line in text.lines() {
        if !out.is_empty() {
            let goes_on = is_prose(before) && is_prose(line) && !before.ends_with(':');
            out.push(if goes_on { ' ' } else { '\n' });
        }
        out.push_str(line);
        before = line;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paragraphs_are_joined() {
        let text = "A run that was\nkilled goes on.\n\nExamples:\n  roofline a\n  roofline b\nThe same\ntext:\n  c";
        let expected = "A run that was killed goes on.\n\nExamples:\n  roofline a\n  roofline b\nThe same text:\n  c";
        assert_eq!(joined(text), expected);
    }

    /// No line of help ends after a word or two and goes on below.
    #[test]
    fn help_fills_the_width() {
        let help = crate::cli::command().find_subcommand_mut("quantize").unwrap().render_help().to_string();
        let prose: Vec<&str> = help.lines().skip_while(|line| !line.starts_with("The result appears")).collect();
        let first = prose.iter().position(|line| line.is_empty()).unwrap();
        for line in &prose[..first - 1] {
            assert!(line.len() > 85, "`{line}` ends early");
        }
    }
}
