//! `roofline recommend`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use roofline_core::units::{Bytes, Seconds};

use super::{Phase, RateArgs, StackArg, ThemeArg, TierArg, dimension};

#[derive(Subcommand)]
pub(crate) enum RecommendSubject {
    /// A linear layer that decodes one token: n rows and k columns
    Gemv(ProductArgs),
    /// A linear layer over m tokens
    Gemm(ProductArgs),
    /// A whole model
    Model(Box<RecommendModelArgs>),
}

/// Where it runs.
#[derive(Args)]
pub(crate) struct RecommendPlace {
    /// The device: a key, an alias, KEY@MODE for a power mode, a TOML file or `this`; left out, a chip of these rates
    #[arg(long, value_name = "DEVICE", required_unless_present = "bandwidth", help_heading = "Device")]
    pub(crate) on: Option<String>,
    #[command(flatten)]
    pub(crate) rates: RateArgs,
    /// Which times are compared, the floor or the one to expect; left out, the latter, but of a chip that is only rates
    #[arg(long, value_enum, help_heading = "Device")]
    pub(crate) tier: Option<TierArg>,
    /// Whose kernels the expected tier speaks of
    #[arg(long, value_enum, default_value_t, help_heading = "Device")]
    pub(crate) stack: StackArg,
    /// Memory that may be used, such as 8GB; the device's when left out
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true, help_heading = "Limits")]
    pub(crate) memory_limit: Option<Bytes>,
    /// Let plans compete that may raise the perplexity by more than 15 %, or by nobody knows how much, or that have fewer
    /// than 4 bits; the fastest wins then
    #[arg(long, help_heading = "Limits")]
    pub(crate) any_quality: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  roofline recommend gemv --n 4096 --k 4096 --on jetson_orin_nano
  roofline recommend gemm --m 2048 --n 4096 --k 4096 --on h100_sxm --json
  roofline recommend gemm --m 2048 --n 8192 --k 8192 --bandwidth 3TB/s --peak fp16=100TFLOP/s --peak fp8=2PFLOP/s")]
pub(crate) struct ProductArgs {
    /// Rows of the input: tokens in flight
    #[arg(long, value_parser = dimension, default_value = "1", allow_negative_numbers = true)]
    pub(crate) m: u64,
    /// Outputs
    #[arg(long, value_parser = dimension, allow_negative_numbers = true)]
    pub(crate) n: u64,
    /// Inputs
    #[arg(long, value_parser = dimension, allow_negative_numbers = true)]
    pub(crate) k: u64,
    #[command(flatten)]
    pub(crate) place: RecommendPlace,
}

#[derive(Args)]
#[command(after_help = "\
Plans are predicted, not looked up: weights and activations of attention and of the feed-forward part or the
experts, and the cache, in every format that the device multiplies and some runtime loads, and llama.cpp's
recipes. What is chosen is a plan's text, which `predict --precision`, `quantize --plan` and `evaluate` take.

Examples:
  roofline recommend model llama-3-8b --on jetson_orin_nano --memory-limit 8GB --phase decode
  roofline recommend model llama-3.1-8b --on h100_sxm --prompt 512 --generate 256
  roofline recommend model llama-3.1-70b --on h200 --goal throughput --max-quality-loss 2%
  roofline recommend model qwen2.5-7b --on b200 --native-only --deny mxfp4
  roofline recommend model llama-3-8b --on jetson_orin_nano --goal energy        in the best power mode
  roofline recommend model llama-3.1-70b --on h100_sxm --tp 2 --goal throughput
  roofline recommend model llama-3.1-8b --on h100_sxm --goal cost --price 2.50
  roofline recommend model llama-3-8b --on h200 --explain --plot")]
pub(crate) struct RecommendModelArgs {
    /// A name of `roofline models`, a `config.json`, or a folder with one
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// One pass alone: the prompt, or one more token
    #[arg(long, value_enum, conflicts_with_all = ["prompt", "generate"])]
    pub(crate) phase: Option<Phase>,
    /// Tokens of the prompt in prefill, in the cache in decode
    #[arg(long, value_parser = dimension, default_value = "4096", allow_negative_numbers = true)]
    pub(crate) context: u64,
    /// A whole request: tokens of its prompt
    #[arg(long, value_parser = dimension, allow_negative_numbers = true, requires = "generate")]
    pub(crate) prompt: Option<u64>,
    /// A whole request: tokens to generate
    #[arg(long, value_parser = dimension, allow_negative_numbers = true, requires = "prompt")]
    pub(crate) generate: Option<u64>,
    /// Sequences side by side; the most of them for throughput and cost, which look for the best number. One, or as
    /// many as fit up to 256, when left out
    #[arg(long, value_parser = dimension, allow_negative_numbers = true)]
    pub(crate) batch: Option<u64>,
    /// Devices that share each layer (tensor parallel); left out, one, and 2, 4 or 8 for plans that one does not hold
    #[arg(long, value_name = "N", value_parser = dimension, allow_negative_numbers = true)]
    pub(crate) tp: Option<u64>,
    /// What matters most
    #[arg(long, value_enum, default_value_t)]
    pub(crate) goal: RecommendGoal,
    /// What an hour of one device costs in dollars
    #[arg(long, value_name = "DOLLARS", required_if_eq("goal", "cost"), allow_negative_numbers = true)]
    pub(crate) price: Option<f64>,
    #[command(flatten)]
    pub(crate) limits: RecommendLimits,
    /// Show every plan instead of the best
    #[arg(long)]
    pub(crate) all: bool,
    /// Walk through the reasons, step by step
    #[arg(long)]
    pub(crate) explain: bool,
    #[command(flatten)]
    pub(crate) picture: RecommendPicture,
    #[command(flatten)]
    pub(crate) place: RecommendPlace,
}

/// What must hold.
#[derive(Args)]
pub(crate) struct RecommendLimits {
    /// The largest rise of the perplexity, such as 1%
    #[arg(long, value_name = "SHARE", value_parser = share, help_heading = "Limits")]
    pub(crate) max_quality_loss: Option<f64>,
    /// The fewest tokens per second of a sequence
    #[arg(long, value_name = "RATE", allow_negative_numbers = true, help_heading = "Limits")]
    pub(crate) min_tokens_per_s: Option<f64>,
    /// The longest time to the first token, such as 200ms
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    pub(crate) max_ttft: Option<Seconds>,
    /// Only weights that a unit multiplies as they are stored
    #[arg(long, help_heading = "Limits")]
    pub(crate) native_only: bool,
    /// Only these precisions, recipes, formats, or whole plans; rules follow their name (w4a16,kv=fp8-e4m3)
    #[arg(long, value_name = "PLAN", help_heading = "Limits")]
    pub(crate) allow: Vec<String>,
    /// Never these precisions, recipes or formats
    #[arg(long, value_name = "PLAN", help_heading = "Limits")]
    pub(crate) deny: Vec<String>,
    /// Only plans that these load: vllm, llama.cpp, transformers
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = "Limits")]
    pub(crate) runtime: Vec<String>,
}

/// The plans as a picture.
#[derive(Args)]
pub(crate) struct RecommendPicture {
    /// Draw the plans by memory, speed and quality
    #[arg(long)]
    pub(crate) plot: bool,
    /// Write that picture: .svg or .png
    #[arg(long, short, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Replace the file if it is there
    #[arg(long, requires = "out")]
    pub(crate) force: bool,
    /// Colours of the picture
    #[arg(long, value_enum, default_value_t)]
    pub(crate) theme: ThemeArg,
}

#[derive(Clone, Copy, Default, ValueEnum)]
pub(crate) enum RecommendGoal {
    #[default]
    Latency,
    Throughput,
    Memory,
    Energy,
    Cost,
}

/// `1%` or `0.01`.
fn share(text: &str) -> Result<f64, String> {
    let wrong = || format!("`{text}` is no share: write 1% or 0.01");
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let value: f64 = number.trim().parse().map_err(|_| wrong())?;
    if value.is_finite() && value >= 0.0 { Ok(value / scale) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares() {
        assert_eq!(share("1%"), Ok(0.01));
        assert_eq!(share("0.5"), Ok(0.5));
        assert!(share("-1%").is_err() && share("one").is_err() && share("nan").is_err());
    }
}
