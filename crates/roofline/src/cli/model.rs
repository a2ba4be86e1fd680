//! `roofline models`, `predict model`, `sweep`, `analyze`, `tiling`.

use clap::{Args, ValueEnum};
use roofline_core::{tiling::Tile, units::Seconds};

use super::{RunArgs, Setting, dimension};

#[derive(Args)]
#[command(after_help = "\
Examples:
  roofline models
  roofline models deepseek-v3
  roofline models ~/checkpoints/my-model/config.json")]
pub(crate) struct ModelsArgs {
    /// Models to explain: names, `config.json` files or folders with one; a table of all when left out
    #[arg(value_name = "MODEL")]
    pub(crate) names: Vec<String>,
}

#[derive(Args)]
pub(crate) struct ModelArgs {
    /// A name of `roofline models`, a `config.json`, or a folder with one
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// Which pass; both when left out
    #[arg(long, value_enum)]
    pub(crate) phase: Option<Phase>,
    /// Sequences side by side
    #[arg(long, value_parser = dimension, default_value = "1", allow_negative_numbers = true)]
    pub(crate) batch: u64,
    /// Tokens: of the prompt in prefill, in the cache in decode (the new one included)
    #[arg(long, value_parser = dimension, default_value = "4096", allow_negative_numbers = true)]
    pub(crate) context: u64,
    /// Also the whole request: a prompt of `context` tokens, then this many, each at its own context
    #[arg(long, value_parser = dimension, allow_negative_numbers = true)]
    pub(crate) generate: Option<u64>,
    #[command(flatten)]
    pub(crate) lowering: LoweringArgs,
    #[command(flatten)]
    pub(crate) setting: Setting,
}

#[derive(Args)]
pub(crate) struct LoweringArgs {
    /// Devices that share each layer (tensor parallel)
    #[arg(long, value_parser = dimension, value_delimiter = ',', default_value = "1", allow_negative_numbers = true)]
    pub(crate) tp: Vec<u64>,
    /// Every operator as a kernel of its own, with scores in memory
    #[arg(long)]
    pub(crate) unfused: bool,
    /// Logits for every prompt token, not only the last
    #[arg(long)]
    pub(crate) all_logits: bool,
    /// Every token sees every other, as in an encoder
    #[arg(long)]
    pub(crate) no_causal: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Phase {
    Prefill,
    Decode,
}

#[derive(Args)]
#[command(after_help = "\
Ranges are lists (1,2,8), doublings (1..512) or steps (512..4096+512). Text is a table, --csv and --json
are streamed row by row (--json as JSON lines).

Without a model it is a sweep over shapes of products, ten standard ones or those of --shapes, predicted and, with
--measure, measured.

Examples:
  roofline sweep --on h200
  roofline sweep --measure --precision fp32,bf16,w4a16 --out sweep.jsonl
  roofline sweep llama-3-8b --on h200 --phase decode --batch 1..256 --context 512..131072 --csv
  roofline sweep llama-3.1-70b --on h200,b200,mi300x --precision bf16,fp8,w4a16 --tp 1,2,4,8
  roofline sweep llama-3-8b --on h200 --scale-bandwidth 0.5,1,2 --scale-compute 0.5,1,2")]
pub(crate) struct SweepArgs {
    /// Models: names, `config.json` files or folders; shapes of products when left out
    #[arg(value_name = "MODEL")]
    pub(crate) models: Vec<String>,
    /// Shapes of products, as MxNxK
    #[arg(long, value_name = "SHAPE", value_delimiter = ',', value_parser = product, conflicts_with = "models")]
    pub(crate) shapes: Vec<(u64, u64, u64)>,
    /// Measure the shapes, too
    #[arg(long, conflicts_with = "models")]
    pub(crate) measure: bool,
    /// Which pass; both when left out
    #[arg(long, value_enum)]
    pub(crate) phase: Option<Phase>,
    /// Sequences side by side
    #[arg(long, value_name = "RANGE", default_value = "1")]
    pub(crate) batch: String,
    /// Tokens of the prompt, or in the cache
    #[arg(long, value_name = "RANGE", default_value = "4096")]
    pub(crate) context: String,
    /// Factors on the memory bandwidth of each device: what a chip with more of it would do
    #[arg(long, value_name = "FACTOR", value_delimiter = ',', default_value = "1", value_parser = factor)]
    pub(crate) scale_bandwidth: Vec<f64>,
    /// Factors on all its peaks
    #[arg(long, value_name = "FACTOR", value_delimiter = ',', default_value = "1", value_parser = factor)]
    pub(crate) scale_compute: Vec<f64>,
    #[command(flatten)]
    pub(crate) lowering: LoweringArgs,
    #[command(flatten)]
    pub(crate) setting: Setting,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Args)]
#[command(after_help = "\
Example:
  roofline analyze --model mistral-7b --on t4 --precision fp16 --prompt 512 --generate 100 --measured 12.4s")]
pub(crate) struct AnalyzeArgs {
    /// A name of `roofline models`, a `config.json`, or a folder with one
    #[arg(long)]
    pub(crate) model: String,
    /// Tokens of the prompt
    #[arg(long, value_parser = dimension, allow_negative_numbers = true)]
    pub(crate) prompt: u64,
    /// Tokens that were generated
    #[arg(long, value_parser = dimension, allow_negative_numbers = true)]
    pub(crate) generate: u64,
    /// Requests side by side
    #[arg(long, value_parser = dimension, default_value = "1", allow_negative_numbers = true)]
    pub(crate) batch: u64,
    /// How long it took from start to end
    #[arg(long, value_name = "TIME")]
    pub(crate) measured: Seconds,
    /// Of that, the time to the first token: splits prefill from decode
    #[arg(long, value_name = "TIME")]
    pub(crate) ttft: Option<Seconds>,
    #[command(flatten)]
    pub(crate) lowering: LoweringArgs,
    #[command(flatten)]
    pub(crate) setting: Setting,
}

#[derive(Args)]
#[command(after_help = "Example:\n  roofline tiling --m 4096 --n 4096 --k 4096 --on h200 --format bf16")]
pub(crate) struct TilingArgs {
    /// Rows of the output
    #[arg(long, value_parser = dimension, allow_negative_numbers = true)]
    pub(crate) m: u64,
    /// Columns of the output
    #[arg(long, value_parser = dimension, allow_negative_numbers = true)]
    pub(crate) n: u64,
    /// The dimension that is summed over
    #[arg(long, value_parser = dimension, allow_negative_numbers = true)]
    pub(crate) k: u64,
    /// The device
    #[arg(long, value_name = "DEVICE")]
    pub(crate) on: String,
    /// Format of the operands
    #[arg(long, default_value = "fp16")]
    pub(crate) format: String,
    /// One tile, as MxNxK, instead of the standard ones
    #[arg(long, value_name = "TILE", value_parser = tile)]
    pub(crate) tile: Option<Tile>,
}

fn tile(text: &str) -> Result<Tile, String> {
    let sides: Vec<u64> = text.split(['x', 'X']).map(dimension).collect::<Result<_, _>>()?;
    match sides[..] {
        [m, n, k] if sides.iter().all(|side| *side <= 1 << 20) => Ok(Tile { m, n, k }),
        _ => Err("write MxNxK, for example 128x128x32".to_owned()),
    }
}

fn product(text: &str) -> Result<(u64, u64, u64), String> {
    let sides: Vec<u64> = text.split(['x', 'X']).map(dimension).collect::<Result<_, _>>()?;
    match sides[..] {
        [m, n, k] => Ok((m, n, k)),
        _ => Err("write MxNxK, for example 16x4096x4096".to_owned()),
    }
}

fn factor(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "a factor is a number such as 0.5".to_owned())?;
    if (1e-3..=1e3).contains(&value) { Ok(value) } else { Err("a factor is between 0.001 and 1000".to_owned()) }
}
