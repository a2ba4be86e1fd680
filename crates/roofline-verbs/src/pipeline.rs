//! All of it in a row: which format, written, measured before and after, and what it cost.

mod asked;
mod lost;
mod predicting;
mod recommending;
mod state;
mod steps;
mod told;
mod verdict;

use std::path::PathBuf;

use clap::Args;
use roofline_core::{Dim, units::Bytes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::{
    lost::{Evaluation, LayerLoss, PositionLoss, Quality, TokenLoss},
    told::{
        Alternative, Expected, Failed, Forecasts, Found, MeasuredSite, PredictedPlace, Quantized, Recommended, Side,
        Speed, Step, StepName, StepState, WeightLoss,
    },
    verdict::{Tone, Verdict},
};
use crate::{
    Context, Note, Result,
    recommend::{Goal, Share},
    request::{BackendName, PHASES, Phase, one_of},
    running::Execution,
};

/// A model, where it shall run, and what must hold.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
#[command(after_help = HELP)]
#[serde(default)]
#[schemars(rename = "PipelineRequest")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct Request {
    /// The original: a checkpoint's folder, its file of weights, or a GGUF file
    #[arg(value_name = "MODEL", required_unless_present = "demo")]
    #[schemars(extend("x-local" = true))]
    pub model: Option<PathBuf>,
    /// The small model that comes with the program, and its text
    #[arg(long, conflicts_with = "model")]
    pub demo: bool,
    /// The device that the plan is for: a key, an alias, a TOML file or `this`, which is who runs the models. Another one is
    /// predicted; everything is measured here
    #[arg(long, value_name = "DEVICE", default_value = "this")]
    pub on: String,
    /// Memory that may be used, such as 8GB; the device's when left out
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    #[schemars(with = "Option<String>")]
    pub memory_limit: Option<Bytes>,
    /// What shall be fast: the prompt, or each further token
    #[arg(long, value_parser = one_of::<Phase>(PHASES), default_value = "decode")]
    pub phase: Phase,
    /// Where everything goes: the checkpoint, the report and how far it came; ./NAME-PLAN when left out
    #[arg(long, value_name = "FOLDER")]
    #[schemars(extend("x-local" = true))]
    pub to: Option<PathBuf>,
    /// The text that quality is measured on; without one it is not, but for --demo, which has its own
    #[arg(long, value_name = "FILE")]
    #[schemars(extend("x-local" = true))]
    pub text: Option<PathBuf>,
    /// Tokens of the text at most
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    pub tokens: Option<Dim>,
    /// Take this plan, and recommend none
    #[arg(long, value_name = "PLAN")]
    pub plan: Option<String>,
    /// How codes are chosen: rtn, mse, four-over-six or hqq; as recommended when left out
    #[arg(long, value_name = "METHOD")]
    pub method: Option<String>,
    /// What matters most
    #[arg(long, value_enum, default_value_t)]
    pub goal: Goal,
    /// The largest rise of the perplexity, such as 1%
    #[arg(long, value_name = "SHARE")]
    pub max_quality_loss: Option<Share>,
    /// Tokens of the prompt that is timed; 512, or what the model has room for, when left out
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    pub prompt: Option<Dim>,
    /// Tokens that follow it
    #[arg(long, value_name = "COUNT", default_value = "32", allow_negative_numbers = true)]
    pub generate: Dim,
    /// Threads; all cores when left out
    #[arg(long, value_name = "COUNT")]
    #[schemars(range(min = 1, max = 1024))]
    pub threads: Option<u16>,
    #[command(flatten)]
    #[serde(flatten)]
    pub execution: Execution,
    /// Fewer repetitions, and less of a long text
    #[arg(long)]
    pub quick: bool,
    /// Say what would be done, how large it gets and how long it takes, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Go on where it stopped: what is done is not done again
    #[arg(long)]
    pub resume: bool,
    /// Start again where something is there
    #[arg(long, conflicts_with = "resume")]
    pub force: bool,
}

const HELP: &str = "\
Six steps: look at the model, recommend a plan, write the checkpoint, measure the original and the new one,
evaluate both on a text, and say what it comes to. Everything goes into one folder: the checkpoint, report.html,
and pipeline.json, which is written after each step. A step that fails, or Ctrl-C, loses none of those before:
--resume goes on. Models run on the GPU where there is one, else on the processor; --backend says which.

Examples:
  roofline pipeline --demo
  roofline pipeline ./Llama-3.2-1B --text wiki.test.raw
  roofline pipeline ./Llama-3.2-1B --text wiki.test.raw --memory-limit 2GB --max-quality-loss 2%
  roofline pipeline ./Llama-3.2-1B --on jetson_orin_nano --memory-limit 8GB --phase decode --text wiki.test.raw
  roofline pipeline ./Llama-3.2-1B --plan q4_k_m --text wiki.test.raw --to ./out
  roofline pipeline ./Llama-3.2-1B --backend cuda --text wiki.test.raw
  roofline pipeline ./Llama-3.2-1B --dry-run
  roofline pipeline ./Llama-3.2-1B --text wiki.test.raw --to ./out --resume";

impl Default for Request {
    fn default() -> Self {
        Self {
            model: None,
            demo: false,
            on: "this".to_owned(),
            memory_limit: None,
            phase: Phase::Decode,
            to: None,
            text: None,
            tokens: None,
            plan: None,
            method: None,
            goal: Goal::default(),
            max_quality_loss: None,
            prompt: None,
            generate: asked::generated(),
            threads: None,
            execution: Execution::default(),
            quick: false,
            dry_run: false,
            resume: false,
            force: false,
        }
    }
}

/// What was recommended, written, measured and lost; as far as it came.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PipelineAnswer")]
pub struct Answer {
    pub model: String,
    /// The original.
    pub checkpoint: PathBuf,
    pub parameters: u64,
    /// Where everything is.
    pub folder: PathBuf,
    /// Whether nothing was done.
    pub dry_run: bool,
    /// The device that the plan is for, and the one that everything was measured on.
    pub device: String,
    pub device_name: String,
    pub here: Option<String>,
    pub here_name: Option<String>,
    /// Whether these are two.
    pub elsewhere: bool,
    /// Who runs the models.
    pub backend: BackendName,
    pub phase: Phase,
    pub prompt: u64,
    pub generate: u64,
    #[serde(flatten)]
    pub found: Found,
    /// What it comes to; none before everything is done.
    pub verdict: Option<Verdict>,
    pub steps: Vec<Step>,
    /// Why it did not come to its end, and how to go on.
    pub error: Option<Failed>,
    /// How far it came, for `resume`.
    pub state: PathBuf,
    /// The page about it; none before everything is done.
    pub report: Option<PathBuf>,
    /// What to type to do each step alone.
    pub commands: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// Does every step that is not done yet, or says what each would do.
pub fn pipeline(context: &Context, request: &Request) -> Result<Answer> {
    steps::run(context, request)
}
