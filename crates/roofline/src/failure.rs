//! What goes wrong at the edge, and the exit code it gets: 2 for bad input, 1 for everything else.

use std::{io, process::ExitCode};

use roofline_core::wording;
use roofline_verbs::{Error, broken::Broken};
use serde_json::json;

use crate::{
    report::{Format, style},
    terminal::INTERRUPTED,
};

/// Why a command did not answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A verb did not answer.
    Verb(Error),
    /// The command line was understood but makes no sense.
    Usage { message: String, hint: Option<String> },
    /// The program is not what it should be.
    Check { failed: usize, of: usize },
    /// Ctrl-C ended it; what there was is told.
    Interrupted,
    /// What there was before something failed is told.
    Broken(Broken),
    /// Something failed, and the answer says what.
    Told {
        /// Whether the input was wrong.
        input: bool,
    },
    /// Standard output went away, or what goes there could not be written down.
    Output(io::Error),
}

/// What verbs stand on fails as they do.
impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Verb(error.into())
    }
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), hint: Some(hint.into()) }
    }

    /// What clap found wrong.
    pub(crate) fn typed(error: &clap::Error) -> Self {
        let text = error.render().to_string();
        let mut lines = text.trim().lines();
        let message = lines.next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        let rest = lines.map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
        Self::Usage { message, hint: Some(rest).filter(|rest| !rest.is_empty()) }
    }

    /// What is wrong, in a sentence, as the command line writes it.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Verb(error) => wording::flags(&error.to_string()).into_owned(),
            Self::Usage { message, .. } => message.clone(),
            Self::Check { failed, of } => format!("{failed} of {of} checks failed"),
            Self::Interrupted => "interrupted".to_owned(),
            Self::Broken(broken) => wording::flags(&broken.sentence()).into_owned(),
            Self::Told { .. } => "failed".to_owned(),
            Self::Output(error) => error.to_string(),
        }
    }

    /// What to do with a program that fails its own checks.
    const UNSOUND: &str =
        "do not believe its answers here: install it again, and report what `roofline check --all --json` prints";

    /// Says what is wrong on standard error, as JSON where JSON was asked for.
    pub(crate) fn report(self, format: Format) -> ExitCode {
        let message = self.message();
        let (kind, hint, code) = match self {
            // Whoever read our output has seen enough (`roofline devices | head -3`).
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
            Self::Interrupted => return ExitCode::from(INTERRUPTED),
            Self::Told { input } => return ExitCode::from(if input { 2 } else { 1 }),
            Self::Output(_) => ("output", None, 1),
            Self::Verb(Error::Cancelled) => ("cancelled", None, INTERRUPTED),
            Self::Check { .. } => ("check", Some(Self::UNSOUND.to_owned()), 1),
            Self::Usage { hint, .. } => ("usage", hint, 2),
            Self::Verb(error) => (error.kind(), error.hint(), if error.is_input() { 2 } else { 1 }),
            Self::Broken(broken) => (broken.kind, broken.hint, if broken.is_input { 2 } else { 1 }),
        };
        let hint = hint.map(|hint| wording::flags(&hint).into_owned());
        if format == Format::Json {
            let body = json!({ "error": { "kind": kind, "message": message, "hint": hint } });
            eprintln!("{body}");
        } else {
            // What a compiler says is lines; every other message is one, whatever is in it.
            let lines = if kind == "compile" { message.split('\n').collect() } else { vec![message.as_str()] };
            style::talk("error", lines[0]);
            lines[1..].iter().for_each(|line| style::quote(line));
            if let Some(hint) = hint {
                style::talk("hint", &hint);
            }
        }
        ExitCode::from(code)
    }
}
