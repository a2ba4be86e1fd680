//! What can be measured: an operator, a model, or a kernel of one's own.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    predict::{self, Attention, Ffn, Gemm, Gemv, ModelPass, Operator},
    request::Setting,
};

/// What is measured.
#[derive(Subcommand, Clone, Debug, Deserialize, JsonSchema)]
#[serde(tag = "subject", rename_all = "lowercase")]
#[schemars(rename = "MeasureSubject")]
pub enum Subject {
    /// A matrix of n rows and k columns times a vector: a linear layer decoding one token
    #[command(after_help = predict::GEMV_HELP)]
    Gemv(Gemv),
    /// A matrix of n rows and k columns times m vectors: a linear layer over m tokens
    #[command(after_help = predict::GEMM_HELP)]
    Gemm(Gemm),
    /// Attention over a KV cache, fused or not
    #[command(after_help = predict::ATTENTION_HELP)]
    Attention(Attention),
    /// A feed-forward layer: up, gate, activation and down
    #[command(after_help = predict::FFN_HELP)]
    Ffn(Ffn),
    /// A whole model: prefill and decode, kernel by kernel, or a checkpoint that runs
    #[command(after_help = predict::MODEL_HELP)]
    Model(ModelPass),
    /// A CUDA kernel of your own, described by a manifest in TOML, checked and timed beside ours
    #[command(after_help = KERNEL_HELP)]
    #[schemars(extend("x-local" = true))]
    Kernel(KernelFile),
}

const KERNEL_HELP: &str = "\
A manifest names the text of the kernel, what it computes, and how it is started:

  source = \"gemv_bf16.cu\"               a file beside the manifest
  entry = \"gemv_bf16\"                   declared extern \"C\" __global__ void
  op = \"gemv\"                           gemv, gemm or attention
  precision = \"bf16\"
  n = [4096, 14336]                     a number, a list, or a range such as \"1024..8192\"
  k = 4096
  block = 256                           threads, or a list of up to three
  grid = \"ceil_div(n, 8)\"               blocks: + - * / %, ceil_div, min, max of dimensions, threads, multiprocessors
  arguments = [\"x\", \"w\", \"y\", \"n\", \"k\"]   arrays, then whatever the kernel takes, in its order

and, where they are needed, shared (bytes), name, causal, and a table [defines] of macros.

Examples:
  roofline measure kernel examples/kernels/gemv_bf16.toml
  roofline measure kernel my_gemv.toml --warm --json";

/// A kernel in files.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
pub struct KernelFile {
    /// The manifest
    #[arg(value_name = "MANIFEST")]
    #[schemars(extend("x-local" = true))]
    pub manifest: PathBuf,
}

/// A subject by its kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asked<'a> {
    Operator(Operator<'a>),
    Model(&'a ModelPass),
    Kernel(&'a KernelFile),
}

impl Subject {
    pub(crate) fn asked(&self) -> Asked<'_> {
        match self {
            Self::Gemv(asked) => Asked::Operator(Operator::Gemv(asked)),
            Self::Gemm(asked) => Asked::Operator(Operator::Gemm(asked)),
            Self::Attention(asked) => Asked::Operator(Operator::Attention(asked)),
            Self::Ffn(asked) => Asked::Operator(Operator::Ffn(asked)),
            Self::Model(asked) => Asked::Model(asked),
            Self::Kernel(asked) => Asked::Kernel(asked),
        }
    }

    /// Where, and in which formats; a kernel in a file says that itself.
    pub fn setting(&self) -> Option<&Setting> {
        match self.asked() {
            Asked::Operator(asked) => Some(asked.setting()),
            Asked::Model(asked) => Some(&asked.setting),
            Asked::Kernel(_) => None,
        }
    }
}
