//! Whose kernels run.

use std::str::FromStr;

use crate::{Error, Result};

/// A program whose kernels an expectation speaks of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stack {
    /// Our own kernels.
    #[default]
    Roofline,
    /// llama.cpp and what is built on it.
    LlamaCpp,
    /// Apple's MLX.
    Mlx,
    /// PyTorch, compiled (gpt-fast).
    Torch,
    /// vLLM.
    Vllm,
    /// TensorRT-LLM.
    TrtLlm,
    /// SGLang.
    Sglang,
    /// The backend that computes nothing, for tests.
    Null,
}

impl Stack {
    /// Every stack.
    pub const ALL: [Self; 8] =
        [Self::Roofline, Self::LlamaCpp, Self::Mlx, Self::Torch, Self::Vllm, Self::TrtLlm, Self::Sglang, Self::Null];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Roofline => "roofline",
            Self::LlamaCpp => "llama.cpp",
            Self::Mlx => "mlx",
            Self::Torch => "torch",
            Self::Vllm => "vllm",
            Self::TrtLlm => "trtllm",
            Self::Sglang => "sglang",
            Self::Null => "null",
        }
    }
}

impl FromStr for Stack {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let name = text.trim().to_ascii_lowercase();
        Self::ALL.into_iter().find(|stack| stack.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name);
            Error::unknown("stack", text, names, format!("stacks: {}", names.join(", ")))
        })
    }
}

impl std::fmt::Display for Stack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
