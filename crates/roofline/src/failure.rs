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
    /// Standard output went away.
    Output(io::Error),
}

impl From<roofline_core::Error> for Failure {
    fn from(error: roofline_core::Error) -> Self {
        Self::Input(error)
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

    /// Says what is wrong on standard error, as JSON where JSON was asked for.
    pub(crate) fn report(self, format: Format) -> ExitCode {
        let (kind, message, hint, code) = match self {
            // Whoever read our output has seen enough (`roofline devices | head -3`).
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
            Self::Output(error) => ("output", error.to_string(), None, 1),
            Self::File { path, error } => ("file", format!("{}: {error}", path.display()), None, 1),
            Self::Usage { message, hint } => ("usage", message, hint, 2),
            Self::Input(error) => (error.kind(), error.to_string(), error.hint(), 2),
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
