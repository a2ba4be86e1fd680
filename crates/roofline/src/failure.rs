//! What goes wrong at the edge, and the exit code it gets: 2 for bad input, 1 for everything else.

use std::{io, path::PathBuf, process::ExitCode};

use serde_json::json;

use crate::report::{Format, style};

/// Why a command did not answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The input was wrong.
    Input(roofline_core::Error),
    /// The command line was understood but makes no sense.
    Usage { message: String, hint: Option<String> },
    /// A file could not be read or written.
    File { path: PathBuf, error: io::Error },
    /// A machine, a kernel or a run was in the way.
    Run(roofline_run::Error),
    /// A checkpoint, a plan or a disk was in the way.
    Quant(roofline_quant::Error),
    /// The program is not what it should be.
    Check { failed: usize, of: usize },
    /// Whoever asked does not want it any more.
    Cancelled,
    /// Standard output went away.
    Output(io::Error),
}

impl From<roofline_core::Error> for Failure {
    fn from(error: roofline_core::Error) -> Self {
        Self::Input(error)
    }
}

impl From<roofline_run::Error> for Failure {
    fn from(error: roofline_run::Error) -> Self {
        match error {
            roofline_run::Error::Core(error) => Self::Input(error),
            roofline_run::Error::File { path, error } => Self::File { path, error },
            error => Self::Run(error),
        }
    }
}

impl From<roofline_quant::Error> for Failure {
    fn from(error: roofline_quant::Error) -> Self {
        match error {
            roofline_quant::Error::Core(error) => Self::Input(error),
            error => Self::Quant(error),
        }
    }
}

impl From<clap::Error> for Failure {
    fn from(error: clap::Error) -> Self {
        let text = error.render().to_string();
        let mut lines = text.trim().lines();
        let message = lines.next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        let rest = lines.map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
        Self::Usage { message, hint: Some(rest).filter(|rest| !rest.is_empty()) }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), hint: Some(hint.into()) }
    }

    /// What is wrong, in a sentence.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Input(error) => error.to_string(),
            Self::Usage { message, .. } => message.clone(),
            Self::File { path, error } => format!("{}: {error}", path.display()),
            Self::Run(error) => error.to_string(),
            Self::Quant(error) => error.to_string(),
            Self::Cancelled => "cancelled".to_owned(),
            Self::Check { failed, of } => format!("{failed} of {of} checks failed"),
            Self::Output(error) => error.to_string(),
        }
    }

    /// Says what is wrong on standard error, as JSON where JSON was asked for.
    /// What to do with a program that fails its own checks.
    const UNSOUND: &str =
        "do not believe its answers here: install it again, and report what `roofline check --all --json` prints";

    pub(crate) fn report(self, format: Format) -> ExitCode {
        let message = self.message();
        let (kind, hint, code) = match self {
            // Whoever read our output has seen enough (`roofline devices | head -3`).
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
            Self::Output(_) => ("output", None, 1),
            Self::File { .. } => ("file", None, 1),
            Self::Cancelled => ("cancelled", None, 1),
            Self::Check { .. } => ("check", Some(Self::UNSOUND.to_owned()), 1),
            Self::Usage { hint, .. } => ("usage", hint, 2),
            Self::Run(error) => (error.kind(), error.hint(), 1),
            Self::Quant(error) => (error.kind(), error.hint(), if error.is_input() { 2 } else { 1 }),
            Self::Input(error) => (error.kind(), error.hint(), 2),
        };
        if format == Format::Json {
            let body = json!({ "error": { "kind": kind, "message": message, "hint": hint } });
            eprintln!("{body}");
        } else {
            style::talk("error", &message);
            if let Some(hint) = hint {
                style::talk("hint", &hint);
            }
        }
        ExitCode::from(code)
    }
}
