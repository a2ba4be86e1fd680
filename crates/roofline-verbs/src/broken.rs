//! What came to an end before all of it was done, and kept what it had.

use schemars::JsonSchema;
use serde::Serialize;

use crate::Error;

/// Why the rest of what was asked for is not there: a GPU that vanished, memory that somebody else took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Broken {
    /// What was under way.
    pub during: String,
    pub kind: &'static str,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Whether whoever asked can ask otherwise; else something outside was in the way.
    #[serde(skip)]
    pub is_input: bool,
}

impl Broken {
    pub(crate) fn new(during: impl Into<String>, error: &Error) -> Self {
        Self {
            during: during.into(),
            kind: error.kind(),
            message: error.to_string(),
            hint: error.hint(),
            is_input: error.is_input(),
        }
    }

    /// What happened, and what became of the rest.
    pub fn sentence(&self) -> String {
        format!("{} failed, and nothing after it was tried: {}", self.during, self.message)
    }
}
