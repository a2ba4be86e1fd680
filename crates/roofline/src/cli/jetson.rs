//! `roofline jetson`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use roofline_core::units::Bytes;

use super::dimension;

#[derive(Args)]
#[command(after_help = "\
Everything is read from the board's files; nothing is changed without --apply, and nothing here becomes root.

Examples:
  roofline jetson setup                            is everything there, and what to do next
  roofline jetson status --json
  roofline jetson modes                            what each power mode leaves of the roofline
  roofline jetson set-mode 15W                     prints the command; --apply runs it
  roofline jetson schedule --goal power --model llama-3.2-1b
  roofline jetson validate --predict-only --on jetson_orin_nano
  roofline jetson status --root copied-tree        files that were copied from a board")]
pub(crate) struct JetsonArgs {
    #[command(subcommand)]
    pub(crate) action: JetsonAction,
    /// Where the board's files are; another folder than / is read and never acted on
    #[arg(long, global = true, value_name = "PATH", default_value = "/", help_heading = "Board")]
    pub(crate) root: PathBuf,
}

#[derive(Subcommand)]
pub(crate) enum JetsonAction {
    /// A checklist: JetPack, CUDA, power mode, clocks, memory, and what to do next
    Setup,
    /// Power mode, clocks, memory, power by rail and temperatures, as they are now
    Status,
    /// The board's power modes, and what each leaves of bandwidth and compute
    Modes(OnArgs),
    /// Choose a power mode by name; prints the command unless --apply
    SetMode(SetModeArgs),
    /// Which power mode, precision and batch for a goal
    Schedule(ScheduleArgs),
    /// Time and energy of matrix-vector products in the power modes
    PowerBench(PowerBenchArgs),
    /// Theory against measurement: matrix-vector products of 2048 and 4096, FP16 and INT8
    Validate(ValidateArgs),
}

/// A board of the registry instead of files.
#[derive(Args)]
pub(crate) struct OnArgs {
    /// A Jetson of `roofline devices` with its known modes, instead of the files; `KEY@MODE` for one of them
    #[arg(long, value_name = "DEVICE", conflicts_with = "root", help_heading = "Board")]
    pub(crate) on: Option<String>,
}

#[derive(Args)]
#[command(after_help = "\
Modes are chosen by name because ids differ: mode 1 of an Orin Nano is 7 W, and 25 W with the Super image.

Examples:
  roofline jetson set-mode 15W
  roofline jetson set-mode MAXN_SUPER --clocks --apply")]
pub(crate) struct SetModeArgs {
    /// The mode's name, as `roofline jetson modes` lists it
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Also hold all clocks at the mode's maximum (jetson_clocks)
    #[arg(long)]
    pub(crate) clocks: bool,
    /// Run the commands, as whoever runs this
    #[arg(long)]
    pub(crate) apply: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GoalArg {
    /// The shortest time for a token of one sequence
    Latency,
    /// The most tokens per second of all sequences together
    Throughput,
    /// The least energy for a token, by the modes' budgets
    Power,
}

#[derive(Args)]
#[command(after_help = "\
Nothing is changed without --apply.

Examples:
  roofline jetson schedule --goal power --model llama-3.2-1b
  roofline jetson schedule --goal throughput --on jetson_orin_nano
  roofline jetson schedule --goal latency --apply")]
pub(crate) struct ScheduleArgs {
    /// What matters most
    #[arg(long, value_enum, default_value = "latency")]
    pub(crate) goal: GoalArg,
    /// A model, decoding; a 4096 x 4096 matrix-vector product when left out
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Tokens in the cache of each sequence
    #[arg(long, value_parser = dimension, default_value = "1024", allow_negative_numbers = true)]
    pub(crate) context: u64,
    /// Memory that weights, cache and activations may take; what the board has when left out
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory_limit: Option<Bytes>,
    /// Put the board into the mode that was chosen, as `set-mode --apply` does
    #[arg(long)]
    pub(crate) apply: bool,
    #[command(flatten)]
    pub(crate) board: OnArgs,
}

#[derive(Args)]
pub(crate) struct PowerBenchArgs {
    /// Modes to go through; all with a budget when left out
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) modes: Vec<String>,
    /// Change the power mode, and change it back; without it only the current mode is measured
    #[arg(long, conflicts_with = "predict_only")]
    pub(crate) apply: bool,
    /// What theory says of every mode; nothing is measured
    #[arg(long)]
    pub(crate) predict_only: bool,
    #[command(flatten)]
    pub(crate) board: OnArgs,
}

#[derive(Args)]
pub(crate) struct ValidateArgs {
    /// What theory says; nothing is measured
    #[arg(long)]
    pub(crate) predict_only: bool,
    /// A quarter of a second for each product
    #[arg(long)]
    pub(crate) quick: bool,
    #[command(flatten)]
    pub(crate) board: OnArgs,
}
