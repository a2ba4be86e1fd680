//! What can be wrong with a checkpoint, a plan or a disk. Every variant names the file, the tensor or the value;
//! [`Error::hint`] says what to do about it.

use std::{
    io,
    path::{Path, PathBuf},
};

/// Why nothing was written, or nothing could be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {action} `{}`: {error}", .path.display())]
    File {
        /// What was tried: "read", "create", ...
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },

    /// A file whose content is not what its name says, or not safe to believe.
    #[error("`{}` is no usable {format}: {reason}", .path.display())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// "safetensors", "GGUF", "config.json", ...
        format: &'static str,
        /// What is wrong.
        reason: String,
    },

    /// A weight that cannot be stored as asked.
    #[error("weight `{name}`: {reason}")]
    Weight {
        /// Its name in the checkpoint.
        name: String,
        /// What is wrong.
        reason: String,
        /// What to do.
        hint: Option<String>,
    },

    /// Something this program does not write, or not in this combination.
    #[error("{what}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// What to do instead.
        hint: Option<String>,
    },

    /// A plan that does not parse or contradicts itself.
    #[error("plan: {0}")]
    Plan(String),

    /// The target is there already, or an interrupted run is in the way.
    #[error("`{}` {state}", .path.display())]
    Exists {
        /// Which path.
        path: PathBuf,
        /// Why it is in the way.
        state: &'static str,
        /// What to do.
        hint: &'static str,
    },

    /// Whoever runs the model has no memory for it.
    #[error("{reason}")]
    Memory {
        /// For what, and how much.
        reason: String,
        /// What to do.
        hint: Option<String>,
    },

    /// The disk is too small.
    #[error("`{}` has {free} bytes free, and {needed} are needed", .path.display())]
    Space {
        /// Where.
        path: PathBuf,
        /// Bytes a file may take there.
        free: u64,
        /// Bytes that would be written.
        needed: u64,
    },

    /// What was written is not what was meant.
    #[error("`{name}` was written, and is something else when it is read back: {reason}")]
    Verify {
        /// The weight or the file.
        name: String,
        /// How it differs.
        reason: String,
    },

    /// Parts of a result that cannot be joined.
    #[error("{what}")]
    Parts {
        /// Which of them, and why not.
        what: String,
        /// What to do.
        hint: String,
    },

    /// A model that a text cannot be run through.
    #[error("{reason}")]
    Model {
        /// Which, and why not.
        reason: String,
        /// What to do.
        hint: Option<String>,
    },

    /// Whoever asked does not want it any more.
    #[error("cancelled")]
    Cancelled,

    /// An input of the core's.
    #[error(transparent)]
    Core(#[from] roofline_core::Error),
}

impl Error {
    /// A closure that turns an [`io::Error`] into an error that says where it happened.
    pub fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::File { action, path: path.to_owned(), error }
    }

    pub(crate) fn malformed(path: &Path, format: &'static str, reason: impl Into<String>) -> Self {
        Self::Malformed { path: path.to_owned(), format, reason: reason.into() }
    }

    pub(crate) fn unsupported(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Unsupported { what: what.into(), hint: Some(hint.into()) }
    }

    /// A stable word for machine output.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::File { .. } => "file",
            Self::Malformed { .. } => "malformed",
            Self::Weight { .. } => "weight",
            Self::Unsupported { .. } => "unsupported",
            Self::Plan(_) => "plan",
            Self::Exists { .. } => "exists",
            Self::Memory { .. } => "memory",
            Self::Space { .. } => "space",
            Self::Verify { .. } => "verify",
            Self::Parts { .. } => "parts",
            Self::Model { .. } => "model",
            Self::Cancelled => "cancelled",
            Self::Core(error) => error.kind(),
        }
    }

    /// Whether what was asked for is at fault, rather than the machine.
    pub fn is_input(&self) -> bool {
        !matches!(
            self,
            Self::File { .. } | Self::Memory { .. } | Self::Space { .. } | Self::Verify { .. } | Self::Cancelled
        )
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Weight { hint, .. }
            | Self::Unsupported { hint, .. }
            | Self::Model { hint, .. }
            | Self::Memory { hint, .. } => hint.clone(),
            Self::Exists { hint, .. } => Some((*hint).to_owned()),
            Self::Parts { hint, .. } => Some(hint.clone()),
            Self::Space { .. } => Some("free some space, or write to another disk with `⟨to⟩`".to_owned()),
            Self::Verify { .. } => {
                Some("nothing was kept; a disk or a memory that changes bytes does this: try another place".to_owned())
            }
            Self::Core(error) => error.hint(),
            _ => None,
        }
    }
}
