//! What is said beside an answer, and who hears of it while there is none yet.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A sentence beside an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Note {
    /// How much it matters.
    pub kind: NoteKind,
    /// The sentence.
    pub text: String,
}

/// How much a note matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NoteKind {
    /// Good to know.
    Note,
    /// The answer is not all that was asked for, or stands on less than it seems.
    Warning,
}

impl NoteKind {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
        }
    }
}

/// Somebody who follows a verb at work and may end it.
pub trait Watcher: Send + Sync {
    /// Something is said before the answer is there; the answer has it among its notes, too.
    fn note(&self, _note: &Note) {}
    /// There are so many bytes to go through.
    fn size(&self, _bytes: u64) {}
    /// So many of them more are done.
    fn advance(&self, _bytes: u64) {}
    /// Kernel `at` of `count` is about to start.
    fn starts(&self, _at: usize, _count: usize, _words: &str) {}
    /// One was measured and is on disk.
    #[cfg(feature = "hardware")]
    fn measured(&self, _measured: &roofline_core::measurement::Measurement, _device: &roofline_core::Device) {}
    /// One could not be measured.
    #[cfg(feature = "hardware")]
    fn skipped(&self, _skipped: &roofline_run::Skipped) {}
    /// The last kernel is done.
    fn ends(&self) {}
    /// Text came out of a model; the answer has all of it.
    fn piece(&self, _text: &str) {}
    /// From here on the verb asks often whether to stop, and then answers with what it has: whoever would be ended by an
    /// interruption need not be.
    fn heeds(&self) {}
    /// Whether to stop before the next kernel.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Nobody.
pub struct Nobody;

impl Watcher for Nobody {}
