//! Why a verb did not answer.

use std::{io, path::PathBuf};

/// A request that got no answer. Texts name fields and other verbs in the neutral words of
/// [`roofline_core::wording`], which the face that shows them spells.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name, a quantity, a plan or a shape was wrong.
    #[error(transparent)]
    Input(roofline_core::Error),
    /// The request was understood but makes no sense.
    #[error("{message}")]
    Request {
        /// What is wrong.
        message: String,
        /// What to do about it.
        hint: String,
    },
    /// The form of a request in JSON is wrong: an unknown field, a missing one, a value of another kind.
    #[error("{message}")]
    Form {
        /// What is wrong.
        message: String,
        /// What is allowed.
        hint: String,
    },
    /// A name would have to be a file's, and this caller may name none.
    #[error("`{name}` is a path")]
    Path {
        /// "device" or "model".
        what: &'static str,
        /// What was written.
        name: String,
    },
    /// The machine that is asked about was never measured, and this caller may not have it measured.
    #[error("this machine was not measured yet")]
    Unmeasured,
    /// Something is in the place of what would be written.
    #[error("{path} is there already", path = path.display())]
    Taken {
        /// What would be written.
        path: PathBuf,
        /// What to do about it.
        hint: &'static str,
    },
    /// A file could not be read or written.
    #[error("{path}: {error}", path = path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A machine, a kernel or a run was in the way.
    #[cfg(feature = "hardware")]
    #[error(transparent)]
    Run(roofline_run::Error),
    /// A checkpoint, a plan or a disk was in the way.
    #[cfg(feature = "files")]
    #[error(transparent)]
    Quant(roofline_quant::Error),
    /// A model could not be run.
    #[cfg(feature = "hardware")]
    #[error(transparent)]
    Engine(roofline_engine::Error),
    /// Whoever asked does not want it any more.
    #[error("cancelled")]
    Cancelled,
}

/// What a verb answers.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<roofline_core::Error> for Error {
    fn from(error: roofline_core::Error) -> Self {
        Self::Input(error)
    }
}

#[cfg(feature = "hardware")]
impl From<roofline_run::Error> for Error {
    fn from(error: roofline_run::Error) -> Self {
        match error {
            roofline_run::Error::Core(error) => Self::Input(error),
            roofline_run::Error::File { path, error } => Self::File { path, error },
            error => Self::Run(error),
        }
    }
}

#[cfg(feature = "files")]
impl From<roofline_quant::Error> for Error {
    fn from(error: roofline_quant::Error) -> Self {
        match error {
            roofline_quant::Error::Core(error) => Self::Input(error),
            roofline_quant::Error::Cancelled => Self::Cancelled,
            error => Self::Quant(error),
        }
    }
}

#[cfg(feature = "hardware")]
impl From<roofline_engine::Error> for Error {
    fn from(error: roofline_engine::Error) -> Self {
        match error {
            roofline_engine::Error::Core(error) => Self::Input(error),
            roofline_engine::Error::Checkpoint(error) => error.into(),
            roofline_engine::Error::Gpu(error) => error.into(),
            roofline_engine::Error::Stopped => Self::Cancelled,
            error => Self::Engine(error),
        }
    }
}

impl Error {
    /// A request that makes no sense.
    pub fn request(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Request { message: message.into(), hint: hint.into() }
    }

    /// A file that could not be read or written.
    pub fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        |error| Self::File { path, error }
    }

    /// A stable word for machine output.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Input(error) => error.kind(),
            Self::Request { .. } | Self::Form { .. } | Self::Path { .. } | Self::Taken { .. } => "usage",
            Self::Unmeasured => "unmeasured",
            Self::File { .. } => "file",
            #[cfg(feature = "hardware")]
            Self::Run(error) => error.kind(),
            #[cfg(feature = "files")]
            Self::Quant(error) => error.kind(),
            #[cfg(feature = "hardware")]
            Self::Engine(error) => error.kind(),
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether whoever asked can ask otherwise; else something outside was in the way.
    pub fn is_input(&self) -> bool {
        match self {
            Self::Input(_) | Self::Request { .. } | Self::Form { .. } | Self::Path { .. } | Self::Taken { .. } => true,
            #[cfg(feature = "hardware")]
            Self::Run(error) => error.is_input(),
            #[cfg(feature = "files")]
            Self::Quant(error) => error.is_input(),
            #[cfg(feature = "hardware")]
            Self::Engine(error) => error.is_input(),
            Self::Unmeasured | Self::File { .. } | Self::Cancelled => false,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Input(error) => error.hint(),
            Self::Request { hint, .. } | Self::Form { hint, .. } => Some(hint.clone()).filter(|hint| !hint.is_empty()),
            Self::Path { what, .. } => Some(format!("name a {what} of the registry: no file is read for this caller")),
            Self::Unmeasured => Some("`⟨roofline devices this⟩` measures it once, in half a minute".to_owned()),
            Self::Taken { hint, .. } => Some((*hint).to_owned()),
            #[cfg(feature = "hardware")]
            Self::Run(error) => error.hint(),
            #[cfg(feature = "files")]
            Self::Quant(error) => error.hint(),
            #[cfg(feature = "hardware")]
            Self::Engine(error) => error.hint(),
            Self::File { .. } | Self::Cancelled => None,
        }
    }
}
