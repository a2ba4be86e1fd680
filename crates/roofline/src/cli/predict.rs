//! `roofline predict`.

use clap::{Args, Subcommand, ValueEnum};
use roofline_core::{machine::Stack, predict::Tier};

use super::{ModelArgs, RateArgs, dimension};

#[derive(Subcommand)]
pub(crate) enum Subject {
    #[command(flatten)]
    Operator(OperatorSubject),
    /// A whole model: prefill and decode, memory, what fits, what would help
    #[command(after_help = "\
Examples:
  roofline predict model llama-3-8b --on h200 --precision bf16,w4a16
  roofline predict model llama-3.1-70b --on h200 --tp 1,2,4 --phase decode --batch 16
  roofline predict model ./my-model --on rtx_4090 --context 8192 --generate 500")]
    Model(ModelArgs),
}

#[derive(Subcommand)]
pub(crate) enum OperatorSubject {
    /// A matrix of n rows and k columns times a vector: a linear layer decoding one token
    #[command(after_help = "\
Examples:
  roofline predict gemv --n 4096 --k 4096 --on h200
  roofline predict gemv --n 4096 --k 4096 --bandwidth 60GB/s \\
      --peak fp16=2.7TFLOP/s,int8=5.5TFLOP/s --precision fp16,int8 --sizes nominal --json")]
    Gemv(GemvArgs),
    /// A matrix of n rows and k columns times m vectors: a linear layer over m tokens
    #[command(after_help = "\
Example:
  roofline predict gemm --m 2048 --n 4096 --k 4096 --on h200 --precision bf16,fp8,w4a16")]
    Gemm(GemmArgs),
    /// Attention over a KV cache, fused or not
    #[command(after_help = "\
Examples:
  roofline predict attention --heads 32 --kv-heads 8 --head-dim 128 --context 8192 --on h200
  roofline predict attention --heads 32 --kv-heads 8 --head-dim 128 \\
      --queries 2048 --context 2048 --on h200 --precision bf16,bf16/bf16/fp8 --unfused")]
    Attention(AttentionArgs),
    /// A feed-forward layer: up, gate, activation and down
    #[command(after_help = "\
Example:
  roofline predict ffn --hidden 4096 --ffn 14336 --tokens 1 --on h200,gb10")]
    Ffn(FfnArgs),
}

impl OperatorSubject {
    pub(crate) fn setting(&self) -> &Setting {
        match self {
            Self::Gemv(args) => &args.setting,
            Self::Gemm(args) => &args.setting,
            Self::Attention(args) => &args.setting,
            Self::Ffn(args) => &args.setting,
        }
    }
}

impl Setting {
    /// The device, where one is as many as there can be.
    pub(crate) fn first(&self) -> Option<&str> {
        self.on.first().map(String::as_str)
    }
}

/// The device, the precision and how sizes count.
#[derive(Args)]
pub(crate) struct Setting {
    /// Devices: keys, aliases, KEY@MODE for a power mode, or TOML files
    #[arg(long, value_name = "DEVICE", value_delimiter = ',', help_heading = "Device")]
    pub(crate) on: Vec<String>,
    #[command(flatten)]
    pub(crate) rates: RateArgs,
    /// Plans: names (w4a16, q4_k_m), weights/activations[/kv], rules by role after a name (w4a16,head=q8_0,kv=fp8); left
    /// out, the 16-bit baseline and the common quantized ones that the device multiplies
    #[arg(short, long, value_name = "PLAN", help_heading = "Precision")]
    pub(crate) precision: Vec<String>,
    /// Which of the two times is spoken of, the floor or the one to expect; left out, the latter, but of a chip that is only
    /// rates. Both are in every answer
    #[arg(long, value_enum, help_heading = "Device")]
    pub(crate) tier: Option<TierArg>,
    /// Whose kernels the expected tier speaks of
    #[arg(long, value_enum, default_value_t, help_heading = "Device")]
    pub(crate) stack: StackArg,
    /// Count scales and padding (exact), or element bits only as text books do (nominal)
    #[arg(long, value_enum, default_value_t, help_heading = "Precision")]
    pub(crate) sizes: SizesArg,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum StackArg {
    #[default]
    Roofline,
    #[value(name = "llama.cpp")]
    LlamaCpp,
    Mlx,
    Torch,
    Vllm,
    Trtllm,
    Sglang,
    /// The backend that computes nothing
    Null,
}

impl From<StackArg> for Stack {
    fn from(stack: StackArg) -> Self {
        match stack {
            StackArg::Roofline => Self::Roofline,
            StackArg::LlamaCpp => Self::LlamaCpp,
            StackArg::Mlx => Self::Mlx,
            StackArg::Torch => Self::Torch,
            StackArg::Vllm => Self::Vllm,
            StackArg::Trtllm => Self::TrtLlm,
            StackArg::Sglang => Self::Sglang,
            StackArg::Null => Self::Null,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TierArg {
    Ideal,
    Expected,
}

impl From<TierArg> for Tier {
    fn from(tier: TierArg) -> Self {
        match tier {
            TierArg::Ideal => Self::Ideal,
            TierArg::Expected => Self::Expected,
        }
    }
}

#[derive(Clone, Copy, Default, ValueEnum)]
pub(crate) enum SizesArg {
    #[default]
    Exact,
    Nominal,
}

/// What linear layers write.
#[derive(Args)]
pub(crate) struct ProductArgs {
    /// What products write: a format, `activations`, or `accumulator` (INT32 or FP32, as the unit holds them); left out,
    /// 16 bit, or as wide as the activations
    #[arg(long, value_name = "FORMAT", help_heading = "Precision")]
    pub(crate) output: Option<String>,
}

#[derive(Args)]
pub(crate) struct GemvArgs {
    /// Output features: rows of the matrix
    #[arg(long, value_parser = dimension, allow_negative_numbers = true)]
    pub(crate) n: u64,
    /// Input features: columns of the matrix
    #[arg(long, value_parser = dimension, allow_negative_numbers = true)]
    pub(crate) k: u64,
    #[command(flatten)]
    pub(crate) product: ProductArgs,
    #[command(flatten)]
    pub(crate) setting: Setting,
}

#[derive(Args)]
pub(crate) struct GemmArgs {
    /// Rows of the input: tokens in flight
    #[arg(long, value_parser = dimension, allow_negative_numbers = true)]
    pub(crate) m: u64,
    /// Output features
    #[arg(long, value_parser = dimension, allow_negative_numbers = true)]
    pub(crate) n: u64,
    /// Input features
    #[arg(long, value_parser = dimension, allow_negative_numbers = true)]
    pub(crate) k: u64,
    #[command(flatten)]
    pub(crate) product: ProductArgs,
    #[command(flatten)]
    pub(crate) setting: Setting,
}

#[derive(Args)]
pub(crate) struct AttentionArgs {
    /// Sequences
    #[arg(long, value_parser = dimension, default_value = "1", allow_negative_numbers = true)]
    pub(crate) batch: u64,
    /// Query heads
    #[arg(long, value_parser = dimension, allow_negative_numbers = true)]
    pub(crate) heads: u64,
    /// Key and value heads; as many as query heads when left out
    #[arg(long, value_parser = dimension, allow_negative_numbers = true)]
    pub(crate) kv_heads: Option<u64>,
    /// Features per head
    #[arg(long, value_parser = dimension, allow_negative_numbers = true)]
    pub(crate) head_dim: u64,
    /// New tokens per sequence: 1 in decode, the prompt in prefill
    #[arg(long, value_parser = dimension, default_value = "1", allow_negative_numbers = true)]
    pub(crate) queries: u64,
    /// Keys per sequence, the new tokens included
    #[arg(long, value_parser = dimension, allow_negative_numbers = true)]
    pub(crate) context: u64,
    /// Every query sees every key
    #[arg(long)]
    pub(crate) no_causal: bool,
    /// Write scores to memory: three kernels instead of one
    #[arg(long)]
    pub(crate) unfused: bool,
    #[command(flatten)]
    pub(crate) setting: Setting,
}

#[derive(Args)]
pub(crate) struct FfnArgs {
    /// Model width
    #[arg(long, value_parser = dimension, allow_negative_numbers = true)]
    pub(crate) hidden: u64,
    /// Inner width
    #[arg(long, value_parser = dimension, allow_negative_numbers = true)]
    pub(crate) ffn: u64,
    /// Tokens in flight: sequences times new tokens
    #[arg(long, value_parser = dimension, default_value = "1", allow_negative_numbers = true)]
    pub(crate) tokens: u64,
    /// Two matrices instead of three
    #[arg(long)]
    pub(crate) no_gate: bool,
    /// The activation as a kernel of its own
    #[arg(long)]
    pub(crate) unfused: bool,
    #[command(flatten)]
    pub(crate) product: ProductArgs,
    #[command(flatten)]
    pub(crate) setting: Setting,
}
