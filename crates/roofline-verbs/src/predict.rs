//! How fast can it run: time, bound and reason of an operator or a model, from theory.

mod model;
mod operator;
mod picture;

pub use model::{ModelPrediction, PassEstimate, PassGap, RequestEstimate};
pub use operator::{OperatorEstimate, OperatorPrediction, OperatorShape};
pub use picture::pictures;
pub(crate) use {
    model::{lowerings, tokens, workload},
    operator::{shape, varies},
};

use clap::{Args, Subcommand};
use roofline_core::{Device, Dim, Error as Core, Plan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Context, Result,
    request::{self, Lower, ModelName, Phase, Setting},
};

/// What is asked about.
#[derive(Subcommand, Clone, Debug, Deserialize, JsonSchema)]
#[serde(tag = "subject", rename_all = "lowercase")]
#[schemars(rename = "PredictRequest")]
pub enum Request {
    /// A matrix of n rows and k columns times a vector: a linear layer decoding one token
    #[command(after_help = GEMV_HELP)]
    Gemv(Gemv),
    /// A matrix of n rows and k columns times m vectors: a linear layer over m tokens
    #[command(after_help = GEMM_HELP)]
    Gemm(Gemm),
    /// Attention over a KV cache, fused or not
    #[command(after_help = ATTENTION_HELP)]
    Attention(Attention),
    /// A feed-forward layer: up, gate, activation and down
    #[command(after_help = FFN_HELP)]
    Ffn(Ffn),
    /// A whole model: prefill and decode, memory, what fits, what would help
    #[command(after_help = MODEL_HELP)]
    Model(ModelPass),
}

pub(crate) const GEMV_HELP: &str = "\
Examples:
  roofline predict gemv --n 4096 --k 4096 --on h200
  roofline predict gemv --n 4096 --k 4096 --bandwidth 60GB/s \\
      --peak fp16=2.7TFLOP/s,int8=5.5TFLOP/s --precision fp16,int8 --sizes nominal --json";
pub(crate) const GEMM_HELP: &str = "\
Example:
  roofline predict gemm --m 2048 --n 4096 --k 4096 --on h200 --precision bf16,fp8,w4a16";
pub(crate) const ATTENTION_HELP: &str = "\
Examples:
  roofline predict attention --heads 32 --kv-heads 8 --head-dim 128 --context 8192 --on h200
  roofline predict attention --heads 32 --kv-heads 8 --head-dim 128 \\
      --queries 2048 --context 2048 --on h200 --precision bf16,bf16/bf16/fp8 --unfused";
pub(crate) const FFN_HELP: &str = "\
Example:
  roofline predict ffn --hidden 4096 --ffn 14336 --tokens 1 --on h200,gb10";
pub(crate) const MODEL_HELP: &str = "\
Examples:
  roofline predict model llama-3-8b --on h200 --precision bf16,w4a16
  roofline predict model llama-3.1-70b --on h200 --tp 1,2,4 --phase decode --batch 16
  roofline predict model ./my-model --on rtx_4090 --context 8192 --generate 500";

/// What linear layers write.
#[derive(Args, Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Product {
    /// What products write: a format, `activations`, or `accumulator` (INT32 or FP32, as the unit holds them); left out,
    /// 16 bit, or as wide as the activations
    #[arg(long, value_name = "FORMAT", help_heading = "Precision")]
    pub output: Option<String>,
}

/// A matrix times a vector.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
pub struct Gemv {
    /// Output features: rows of the matrix
    #[arg(long, allow_negative_numbers = true)]
    pub n: Dim,
    /// Input features: columns of the matrix
    #[arg(long, allow_negative_numbers = true)]
    pub k: Dim,
    #[command(flatten)]
    #[serde(flatten)]
    pub product: Product,
    #[command(flatten)]
    #[serde(flatten)]
    pub setting: Setting,
}

/// A matrix times several vectors.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
pub struct Gemm {
    /// Rows of the input: tokens in flight
    #[arg(long, allow_negative_numbers = true)]
    pub m: Dim,
    /// Output features
    #[arg(long, allow_negative_numbers = true)]
    pub n: Dim,
    /// Input features
    #[arg(long, allow_negative_numbers = true)]
    pub k: Dim,
    #[command(flatten)]
    #[serde(flatten)]
    pub product: Product,
    #[command(flatten)]
    #[serde(flatten)]
    pub setting: Setting,
}

/// Attention over a cache.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
pub struct Attention {
    /// Sequences
    #[arg(long, default_value = "1", allow_negative_numbers = true)]
    #[serde(default = "request::one")]
    pub batch: Dim,
    /// Query heads
    #[arg(long, allow_negative_numbers = true)]
    pub heads: Dim,
    /// Key and value heads; as many as query heads when left out
    #[arg(long, allow_negative_numbers = true)]
    pub kv_heads: Option<Dim>,
    /// Features per head
    #[arg(long, allow_negative_numbers = true)]
    pub head_dim: Dim,
    /// New tokens per sequence: 1 in decode, the prompt in prefill
    #[arg(long, default_value = "1", allow_negative_numbers = true)]
    #[serde(default = "request::one")]
    pub queries: Dim,
    /// Keys per sequence, the new tokens included
    #[arg(long, allow_negative_numbers = true)]
    pub context: Dim,
    /// Every query sees every key
    #[arg(long)]
    #[serde(default)]
    pub no_causal: bool,
    /// Write scores to memory: three kernels instead of one
    #[arg(long)]
    #[serde(default)]
    pub unfused: bool,
    #[command(flatten)]
    #[serde(flatten)]
    pub setting: Setting,
}

/// A feed-forward layer.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
pub struct Ffn {
    /// Model width
    #[arg(long, allow_negative_numbers = true)]
    pub hidden: Dim,
    /// Inner width
    #[arg(long, allow_negative_numbers = true)]
    pub ffn: Dim,
    /// Tokens in flight: sequences times new tokens
    #[arg(long, default_value = "1", allow_negative_numbers = true)]
    #[serde(default = "request::one")]
    pub tokens: Dim,
    /// Two matrices instead of three
    #[arg(long)]
    #[serde(default)]
    pub no_gate: bool,
    /// The activation as a kernel of its own
    #[arg(long)]
    #[serde(default)]
    pub unfused: bool,
    #[command(flatten)]
    #[serde(flatten)]
    pub product: Product,
    #[command(flatten)]
    #[serde(flatten)]
    pub setting: Setting,
}

/// A pass over a model.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
pub struct ModelPass {
    /// A name of `roofline models`, a `config.json`, or a folder with one
    #[arg(value_name = "MODEL")]
    pub model: ModelName,
    /// Which pass; both when left out
    #[arg(long, value_parser = request::one_of::<Phase>(request::PHASES))]
    pub phase: Option<Phase>,
    /// Sequences side by side
    #[arg(long, default_value = "1", allow_negative_numbers = true)]
    #[serde(default = "request::one")]
    pub batch: Dim,
    /// Tokens: of the prompt in prefill, in the cache in decode (the new one included)
    #[arg(long, default_value = "4096", allow_negative_numbers = true)]
    #[serde(default = "request::context")]
    pub context: Dim,
    /// Also the whole request: a prompt of `context` tokens, then this many, each at its own context
    #[arg(long, allow_negative_numbers = true)]
    pub generate: Option<Dim>,
    #[command(flatten)]
    #[serde(flatten)]
    pub lowering: Lower,
    #[command(flatten)]
    #[serde(flatten)]
    pub setting: Setting,
}

/// One operator: what predict, measure and compare take beside a model.
#[derive(Clone, Copy, Debug)]
pub enum Operator<'a> {
    /// A matrix times a vector.
    Gemv(&'a Gemv),
    /// A matrix times several.
    Gemm(&'a Gemm),
    /// Attention.
    Attention(&'a Attention),
    /// A feed-forward layer.
    Ffn(&'a Ffn),
}

/// An operator or a model.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// One operator.
    Operator(Operator<'a>),
    /// A whole model.
    Model(&'a ModelPass),
}

impl Request {
    /// Whether it is one operator or a model.
    pub fn subject(&self) -> Subject<'_> {
        match self {
            Self::Gemv(asked) => Subject::Operator(Operator::Gemv(asked)),
            Self::Gemm(asked) => Subject::Operator(Operator::Gemm(asked)),
            Self::Attention(asked) => Subject::Operator(Operator::Attention(asked)),
            Self::Ffn(asked) => Subject::Operator(Operator::Ffn(asked)),
            Self::Model(asked) => Subject::Model(asked),
        }
    }

    /// Where, and in which formats.
    pub fn setting(&self) -> &Setting {
        match self.subject() {
            Subject::Operator(operator) => operator.setting(),
            Subject::Model(asked) => &asked.setting,
        }
    }
}

impl<'a> Operator<'a> {
    /// Where, and in which formats.
    pub fn setting(self) -> &'a Setting {
        match self {
            Self::Gemv(asked) => &asked.setting,
            Self::Gemm(asked) => &asked.setting,
            Self::Attention(asked) => &asked.setting,
            Self::Ffn(asked) => &asked.setting,
        }
    }
}

/// What is told.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "PredictAnswer")]
pub enum Answer {
    /// Of one operator.
    Operator(Box<OperatorPrediction>),
    /// Of a whole model.
    Model(Box<ModelPrediction>),
}

/// A combination that has no estimate.
#[derive(Serialize, JsonSchema)]
pub struct Unavailable {
    /// On which device.
    pub device: String,
    /// By which plan.
    pub precision: String,
    /// Why.
    pub error: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Unavailable {
    pub(crate) fn new(device: &Device, plan: &Plan, error: &Core) -> Self {
        let (device, precision) = (device.label(), plan.label());
        Self { device, precision, error: error.to_string(), hint: error.hint() }
    }

    /// What is missing, and what to do about it.
    pub fn sentence(&self) -> String {
        let hint = self.hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
        format!("{} on {}: {}{hint}", self.precision, self.device, self.error)
    }
}

/// Both times of everything that was asked for.
pub fn predict(context: &Context, request: &Request) -> Result<Answer> {
    Ok(match request.subject() {
        Subject::Operator(operator) => Answer::Operator(Box::new(operator::predict(context, operator)?)),
        Subject::Model(asked) => Answer::Model(Box::new(model::predict(context, asked)?)),
    })
}
