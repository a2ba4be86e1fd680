//! Whose kernels run.

use crate::text::named;

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
    pub const ALL: &[Self] =
        &[Self::Roofline, Self::LlamaCpp, Self::Mlx, Self::Torch, Self::Vllm, Self::TrtLlm, Self::Sglang, Self::Null];

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

named!(Stack, "stack", "stacks", "A program whose kernels an expectation speaks of.");
