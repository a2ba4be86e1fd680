//! Who loads what is written.

use std::{fmt, str::FromStr};

use roofline_core::Error as CoreError;

use crate::{Error, Layout, Result};

/// A program that loads checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Runtime {
    /// Hugging Face transformers.
    Transformers,
    /// vLLM.
    Vllm,
    /// llama.cpp, and what is built on it.
    LlamaCpp,
    /// mlx-lm.
    Mlx,
}

impl Runtime {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Transformers, Self::Vllm, Self::LlamaCpp, Self::Mlx];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Transformers => "transformers",
            Self::Vllm => "vLLM",
            Self::LlamaCpp => "llama.cpp",
            Self::Mlx => "mlx-lm",
        }
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Runtime {
    type Err = CoreError;

    fn from_str(text: &str) -> Result<Self, CoreError> {
        let names = Self::ALL.map(Self::name);
        let known = Self::ALL.into_iter().find(|runtime| runtime.name().eq_ignore_ascii_case(text));
        known.ok_or_else(|| CoreError::unknown("runtime", text, names, format!("runtimes: {}", names.join(", "))))
    }
}

impl Layout {
    /// The runtimes that it is written for, all of which must load what is written.
    pub fn runtimes(self) -> &'static [Runtime] {
        match self {
            Self::CompressedTensors | Self::Plain | Self::Gptq | Self::Awq | Self::FineGrained => {
                &[Runtime::Transformers, Runtime::Vllm]
            }
            Self::Torchao | Self::Bitsandbytes => &[Runtime::Transformers],
            Self::Mlx => &[Runtime::Mlx],
            Self::Gguf => &[Runtime::LlamaCpp],
        }
    }

    /// Those that must load it: all, or the one that was asked for.
    pub(crate) fn wanted_by(self, asked: Option<Runtime>) -> Result<Vec<Runtime>> {
        match asked {
            None => Ok(self.runtimes().to_vec()),
            Some(one) if self.runtimes().contains(&one) => Ok(vec![one]),
            Some(other) => {
                let own: Vec<&str> = self.runtimes().iter().map(|runtime| runtime.name()).collect();
                let what = format!("{other} does not load {self}");
                Err(Error::unsupported(what, format!("{self} is for {}", own.join(" and "))))
            }
        }
    }
}
