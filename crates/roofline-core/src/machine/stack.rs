//! Whose kernels run.

use super::Class;
use crate::{Device, device::Kind, text::named};

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
    /// MLC-LLM.
    Mlc,
    /// ExLlamaV2.
    ExLlamaV2,
    /// TinyChat, of AWQ.
    TinyChat,
    /// AutoAWQ.
    AutoAwq,
    /// LMDeploy.
    LmDeploy,
    /// QServe.
    Qserve,
    /// Intel's extension of PyTorch, on processors.
    Ipex,
    /// Optimum Habana, on Gaudi.
    Habana,
    /// The backend that computes nothing, for tests.
    Null,
}

impl Stack {
    /// Every stack.
    pub const ALL: &[Self] = &[
        Self::Roofline,
        Self::LlamaCpp,
        Self::Mlx,
        Self::Torch,
        Self::Vllm,
        Self::TrtLlm,
        Self::Sglang,
        Self::Mlc,
        Self::ExLlamaV2,
        Self::TinyChat,
        Self::AutoAwq,
        Self::LmDeploy,
        Self::Qserve,
        Self::Ipex,
        Self::Habana,
        Self::Null,
    ];

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
            Self::Mlc => "mlc",
            Self::ExLlamaV2 => "exllamav2",
            Self::TinyChat => "tinychat",
            Self::AutoAwq => "autoawq",
            Self::LmDeploy => "lmdeploy",
            Self::Qserve => "qserve",
            Self::Ipex => "ipex",
            Self::Habana => "habana",
            Self::Null => "null",
        }
    }

    /// The one that people run on a device: ours where it has kernels, on processors and NVIDIA's GPUs; llama.cpp, vLLM or the
    /// maker's own where it has none.
    pub fn usual(device: &Device) -> Self {
        let ours = device.kind == Kind::Cpu || device.vendor == "NVIDIA" || device.compute_capability.is_some();
        match Class::of(device) {
            _ if ours => Self::Roofline,
            Class::Apple | Class::Gddr | Class::Shared => Self::LlamaCpp,
            Class::Hbm => Self::Vllm,
            _ if device.name.contains("Gaudi") => Self::Habana,
            Class::Cpu | Class::Other => Self::Roofline,
        }
    }

    /// Whether its products of 16-bit numbers add up in 16 bits, which GeForce cards do at twice the rate.
    pub(crate) const fn adds_in_sixteen(self) -> bool {
        matches!(self, Self::LlamaCpp | Self::ExLlamaV2 | Self::TinyChat)
    }
}

named!(Stack, "stack", "stacks", "A program whose kernels an expectation speaks of.");
