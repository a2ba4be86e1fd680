//! `roofline quantize` and `roofline inspect`.

use std::path::PathBuf;

use clap::{Args, builder::NonEmptyStringValueParser};

#[derive(Args)]
#[command(after_help = "\
The result appears whole or not at all: it is written beside the target and renamed. A run that was
killed goes on with --resume and ends with the same bytes.

Examples:
  roofline quantize --list
  roofline quantize ./Llama-3.1-8B --plan w4a16 --to ./Llama-3.1-8B-W4A16
  roofline quantize ./Llama-3.1-8B --plan w4a16 --method mse --keep '*.down_proj' --to ./out
  roofline quantize ./Llama-3.1-8B --plan nvfp4a16 --method four-over-six --to ./Llama-3.1-8B-NVFP4A16
  roofline quantize ./Llama-3.1-8B --plan q4_k_m --to ./llama-3.1-8b-q4_k_m.gguf
  roofline quantize ./Llama-3.1-8B --plan w8a16 --as torchao --to ./Llama-3.1-8B-int8
  roofline quantize ./Llama-3.1-8B --plan plan.toml --to ./out --resume

A plan file:
  scheme = \"w4a16\"            # every product inside the layers; all else is kept
  [[rule]]                    # later rules win
  role = \"down\"               # by role: query, key, value, output, gate, up, down, head, embedding,
  scheme = \"w8a16\"            #   router, attention, feed-forward
  [[rule]]
  weights = \"*.self_attn.*\"   # by name
  layers = [0, -1]            # in these layers, -1 being the last
  scheme = \"keep\"")]
#[expect(clippy::struct_excessive_bools, reason = "flags are what is typed")]
pub(crate) struct QuantizeArgs {
    /// The checkpoint: its folder, its file of weights or its index
    #[arg(value_name = "MODEL", required_unless_present = "list")]
    pub(crate) model: Option<PathBuf>,
    /// What the weights become: a scheme, or a file with a plan
    #[arg(long, value_name = "SCHEME|FILE", required_unless_present = "list", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) plan: Option<String>,
    /// Where the result goes: a folder, or a file for GGUF
    #[arg(long, value_name = "PATH", required_unless_present = "list")]
    pub(crate) to: Option<PathBuf>,
    /// How it is written: compressed-tensors, safetensors, gguf or torchao; from the scheme and the path when left out
    #[arg(long = "as", value_name = "LAYOUT")]
    pub(crate) layout: Option<String>,
    /// How codes are chosen: rtn (as the ecosystem's own tools), mse, four-over-six or hqq
    #[arg(long, value_name = "METHOD", default_value = "rtn")]
    pub(crate) method: String,
    /// Keep modules of this name as they are; `*` stands for anything
    #[arg(long, value_name = "GLOB")]
    pub(crate) keep: Vec<String>,
    /// Replace a checkpoint that is there
    #[arg(long)]
    pub(crate) force: bool,
    /// Go on with a run that was interrupted
    #[arg(long)]
    pub(crate) resume: bool,
    /// Threads; all cores when left out
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Show every weight instead of the worst
    #[arg(long)]
    pub(crate) all: bool,
    /// List the schemes of every layout
    #[arg(long, conflicts_with_all = ["model", "plan", "to"])]
    pub(crate) list: bool,
}

#[derive(Args)]
#[command(after_help = "\
Reads headers only, whatever the size of the checkpoint. Exit code 0 even where something is suspicious:
what is suspicious is said.

Examples:
  roofline inspect ./Llama-3.1-8B-W4A16
  roofline inspect model.gguf --all
  roofline inspect model-00001-of-00004.safetensors --csv")]
pub(crate) struct InspectArgs {
    /// A checkpoint's folder, a safetensors file, an index of shards or a GGUF file
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,
    /// Show every tensor instead of one line per kind
    #[arg(long)]
    pub(crate) all: bool,
}
