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
  roofline quantize ./Llama-3.1-8B --plan w4a16,down=w8a16,layers.0-1=bf16 --to ./out
  roofline quantize ./Llama-3.1-8B --plan q4_k_m,head=q8_0 --to ./llama-3.1-8b.gguf
  roofline quantize ./Llama-3.1-8B --plan plan.toml --to ./out --resume
  roofline quantize ./Llama-3.1-8B --lora ./my-adapter=0.8 --plan w4a16 --to ./out
  roofline quantize ./Llama-3.1-8B --plan w4a16 --to ./out --dry-run
  roofline quantize ./Llama-3.1-8B --plan fp8 --to ./out --max-shard-size 5GB --verify

A plan is a name (--list has them), rules with commas between, or both; the last rule that fits wins, and
what nothing names stays at 16 bit:
  w4a16,head=w8a16            by role: query, key, value, output, gate, up, down, router, experts, head,
                              embedding; attention and ffn are groups, * is all
  w4a16,layers.0-1=bf16       by layer, -1 being the last; layers.-1.down for a role of it
  w4a16,*.self_attn.*=keep    by name of module
The same text is what `roofline predict --precision` takes and `roofline recommend` prints. A file holds it as
plan = \"w4a16,head=w8a16\", or as a list of its parts.")]
#[expect(clippy::struct_excessive_bools, reason = "flags are what is typed")]
pub(crate) struct QuantizeArgs {
    /// The checkpoint: its folder, its file of weights (safetensors or PyTorch's) or its index
    #[arg(value_name = "MODEL", required_unless_present = "list")]
    pub(crate) model: Option<PathBuf>,
    /// What the weights become: a plan, or a file with one
    #[arg(long, value_name = "PLAN|FILE", required_unless_present = "list", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) plan: Option<String>,
    /// Where the result goes: a folder, or a file for GGUF
    #[arg(long, value_name = "PATH", required_unless_present = "list")]
    pub(crate) to: Option<PathBuf>,
    /// How it is written: compressed-tensors, safetensors, gguf, torchao, gptq, awq, fp8, bitsandbytes or mlx; from the plan and
    /// the path when left out
    #[arg(long = "as", value_name = "LAYOUT")]
    pub(crate) layout: Option<String>,
    /// How codes are chosen: rtn (as the ecosystem's own tools), mse, four-over-six or hqq
    #[arg(long, value_name = "METHOD", default_value = "rtn")]
    pub(crate) method: String,
    /// Who alone shall load it: transformers, vllm or llama.cpp; every runtime of the layout when left out
    #[arg(long, value_name = "NAME")]
    pub(crate) runtime: Option<String>,
    /// What data were seen to reach, as JSON: plans that store scales of activations or of the cache need it
    #[arg(long, value_name = "FILE")]
    pub(crate) ranges: Option<PathBuf>,
    /// Keep modules of this name as they are; `*` stands for anything
    #[arg(long, value_name = "GLOB")]
    pub(crate) keep: Vec<String>,
    /// Merge an adapter of PEFT's on the way, times a scale; several are added up
    #[arg(long, value_name = "FOLDER[=SCALE]", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) lora: Vec<String>,
    /// Spread the weights over files of at most this size, such as 5GB; 0 for one file. As many as the source has when left out
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_shard_size: Option<String>,
    /// Say what would be written, what stays as it is and how long it takes, and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Read the result back before it gets its name: every weight must have the error that was reported
    #[arg(long)]
    pub(crate) verify: bool,
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
    /// List the plans of one name that every layout can store
    #[arg(long, conflicts_with_all = ["model", "plan", "to", "dry_run", "verify"])]
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
    /// A checkpoint's folder, a file of weights (safetensors or PyTorch's), an index of shards or a GGUF file
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,
    /// Show every tensor instead of one line per kind
    #[arg(long)]
    pub(crate) all: bool,
}
