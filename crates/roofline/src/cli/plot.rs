//! `roofline plot`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{LoweringArgs, Phase, Setting, dimension};

#[derive(Args)]
#[command(after_help = "\
Without --out the picture is drawn in the terminal. A CSV of measured points has the columns
label, ai (FLOP/B), tflops and perhaps precision, in any order.

Examples:
  roofline plot roofline llama-3-8b --on h200 --precision bf16,w4a16
  roofline plot roofline llama-3-8b --on h200 --phase prefill --out roofline.png --theme dark
  roofline plot batch llama-3-8b --on h200,a100 --precision bf16,w4a16 --out batch.svg
  roofline plot context gemma-3-27b --on h200 --precision bf16
  roofline plot shares llama-3-8b mixtral-8x7b --on h200 --precision bf16")]
pub(crate) struct PlotArgs {
    /// What to draw
    #[arg(value_enum)]
    pub(crate) kind: PlotKind,
    /// Models: names, `config.json` files or folders; the roofline takes one
    #[arg(value_name = "MODEL", required = true)]
    pub(crate) models: Vec<String>,
    /// Which pass
    #[arg(long, value_enum, default_value = "decode")]
    pub(crate) phase: Phase,
    /// Sequences side by side; a range on the batch plot (1..512 there when left out)
    #[arg(long, value_name = "RANGE")]
    pub(crate) batch: Option<String>,
    /// Tokens; a range on the context plot (512..131072 there when left out, else 4096)
    #[arg(long, value_name = "RANGE")]
    pub(crate) context: Option<String>,
    /// Measured points to lay over the roofline
    #[arg(long, value_name = "FILE")]
    pub(crate) measured: Option<PathBuf>,
    /// Write a picture: .svg or .png
    #[arg(long, short, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Replace the file if it is there
    #[arg(long)]
    pub(crate) force: bool,
    /// Colours of the picture
    #[arg(long, value_enum, default_value_t)]
    pub(crate) theme: ThemeArg,
    /// Pixels of a PNG per unit of the picture
    #[arg(long, default_value = "2", value_parser = dimension)]
    pub(crate) scale: u64,
    #[command(flatten)]
    pub(crate) lowering: LoweringArgs,
    #[command(flatten)]
    pub(crate) setting: Setting,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlotKind {
    /// Kernels under the ceilings of the device
    Roofline,
    /// Time per token against the batch
    Batch,
    /// Time per token against the context
    Context,
    /// Share of the time per kernel
    Shares,
}

#[derive(Clone, Copy, Default, ValueEnum)]
pub(crate) enum ThemeArg {
    #[default]
    Light,
    Dark,
}
