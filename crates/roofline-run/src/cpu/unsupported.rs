//! What no kernel of this backend can run, said as a sentence and never replaced by something similar.

/// Why an operator cannot run here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unsupported(pub String);
