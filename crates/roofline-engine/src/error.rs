//! What can be wrong with a model that is to run. Every variant names the file, the token or the value; [`Error::hint`]
//! says what to do about it.

use roofline_core::units::Bytes;

/// Why there is no text, or no token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file of the checkpoint whose content is not what its name says, or not safe to believe.
    #[error("`{file}` is not usable: {reason}")]
    Malformed {
        /// Its name in the checkpoint.
        file: String,
        /// What is wrong.
        reason: String,
        /// What to do.
        hint: Option<String>,
    },

    /// A text that the tokenizer does not turn into tokens, or tokens it does not turn into text.
    #[error("the tokenizer cannot {action}: {reason}")]
    Text {
        /// "encode the text", "decode the tokens".
        action: &'static str,
        /// Why not.
        reason: String,
    },

    /// A token the model has no embedding for.
    #[error("token {id} is beyond the model's vocabulary of {vocabulary} tokens")]
    Token {
        /// The token.
        id: u32,
        /// How many tokens the model knows.
        vocabulary: usize,
    },

    /// A chat template that refuses these messages, or that does not end.
    #[error("the chat template cannot be rendered: {reason}")]
    Template {
        /// What it said.
        reason: String,
    },

    /// A setting of the sampler outside its range.
    #[error("{name} is {value}, and must be {allowed}")]
    Sampling {
        /// Which setting.
        name: &'static str,
        /// What was asked for.
        value: f32,
        /// What may be asked for.
        allowed: &'static str,
    },

    /// Logits that no token can be chosen from.
    #[error("{reason}")]
    Logits {
        /// What is wrong with them, and where.
        reason: String,
    },

    /// A tensor that the model needs and the checkpoint does not have.
    #[error("the checkpoint has no tensor `{name}`, which the model needs")]
    Missing {
        /// Its name.
        name: String,
    },

    /// A tensor of another shape than the configuration says.
    #[error("tensor `{name}` has the shape {shape:?}, where the configuration says {expected}")]
    Shape {
        /// Its name.
        name: String,
        /// What it has.
        shape: Vec<usize>,
        /// What it should have.
        expected: String,
    },

    /// Memory that the machine does not have.
    #[error("{what} needs {needed}, and there is no room for it")]
    Memory {
        /// What for.
        what: String,
        /// How much.
        needed: Bytes,
        /// The sum it is a part of, in words.
        sum: Option<String>,
    },

    /// A model whose steps have no kernels here.
    #[error("{what} cannot be run: {reason}")]
    Unsupported {
        /// The model, or the part of it.
        what: String,
        /// Why not.
        reason: String,
    },

    /// More tokens than there is room for.
    #[error("{asked} tokens do not fit {limit}")]
    Context {
        /// How many.
        asked: usize,
        /// What they do not fit, in words: the model's context, or the cache that was made.
        limit: String,
    },

    /// Stopped from outside.
    #[error("stopped")]
    Stopped,

    /// An input of the core's.
    #[error(transparent)]
    Core(#[from] roofline_core::Error),

    /// A checkpoint's.
    #[error(transparent)]
    Checkpoint(#[from] roofline_quant::Error),

    /// A GPU's.
    #[error(transparent)]
    Gpu(#[from] roofline_run::Error),
}

impl From<roofline_run::cpu::Unsupported> for Error {
    fn from(unsupported: roofline_run::cpu::Unsupported) -> Self {
        Self::unsupported("a step", unsupported.to_string())
    }
}

impl Error {
    pub(crate) fn missing(name: &str) -> Self {
        Self::Missing { name: name.to_owned() }
    }

    pub(crate) fn shape(name: &str, shape: &[usize], expected: &str) -> Self {
        Self::Shape { name: name.to_owned(), shape: shape.to_vec(), expected: expected.to_owned() }
    }

    pub(crate) fn memory(bytes: u64, what: &str) -> Self {
        Self::Memory { what: what.to_owned(), needed: Bytes::new(bytes as f64), sum: None }
    }

    pub(crate) fn unsupported(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Unsupported { what: what.into(), reason: reason.into() }
    }

    pub(crate) fn malformed(file: &str, reason: impl Into<String>) -> Self {
        Self::Malformed { file: file.to_owned(), reason: reason.into(), hint: None }
    }

    pub(crate) fn malformed_with_hint(file: &str, reason: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Malformed { file: file.to_owned(), reason: reason.into(), hint: Some(hint.into()) }
    }

    /// A stable word for machine output.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Malformed { .. } => "malformed",
            Self::Text { .. } => "text",
            Self::Token { .. } => "token",
            Self::Template { .. } => "template",
            Self::Sampling { .. } => "sampling",
            Self::Logits { .. } => "logits",
            Self::Missing { .. } | Self::Shape { .. } => "checkpoint",
            Self::Memory { .. } => "memory",
            Self::Unsupported { .. } => "unsupported",
            Self::Context { .. } => "context",
            Self::Stopped => "stopped",
            Self::Core(error) => error.kind(),
            Self::Checkpoint(error) => error.kind(),
            Self::Gpu(error) => error.kind(),
        }
    }

    /// Whether what was asked for is at fault, rather than the machine.
    pub fn is_input(&self) -> bool {
        match self {
            Self::Checkpoint(error) => error.is_input(),
            Self::Memory { .. } | Self::Stopped | Self::Gpu(_) => false,
            _ => true,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Malformed { hint, .. } => hint.clone(),
            Self::Token { .. } => Some("use the tokenizer that the model was trained with".to_owned()),
            Self::Template { .. } => Some("give the prompt as plain text, without the chat template".to_owned()),
            Self::Logits { .. } => {
                Some("a weight or an activation overflowed: try a wider format, bf16 or fp32".to_owned())
            }
            Self::Core(error) => error.hint(),
            Self::Checkpoint(error) => error.hint(),
            Self::Gpu(error) => error.hint(),
            Self::Missing { .. } | Self::Shape { .. } => {
                Some("weights and config.json are of different models, or a shard is missing; `⟨roofline inspect⟩` shows what is there".to_owned())
            }
            Self::Memory { sum, .. } => Some(sum.clone().unwrap_or_else(|| {
                "use a shorter context, a smaller batch, a narrower cache, or fewer bits per weight".to_owned()
            })),
            Self::Unsupported { .. } => Some(
                "models that run: Llama, Mistral, Mixtral, Qwen 2 and 3, Gemma, Phi 2 and 3, gpt-oss and what is built like them"
                    .to_owned(),
            ),
            Self::Context { .. } => Some("use a shorter prompt, or ask for fewer tokens".to_owned()),
            Self::Text { .. } | Self::Sampling { .. } | Self::Stopped => None,
        }
    }
}
