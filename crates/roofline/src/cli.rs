//! The command line as typed. Everything here parses; `commands` gives it meaning.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use roofline_core::{
    Dim, Math,
    device::Kind,
    units::{ByteRate, Bytes, FlopRate},
};

use crate::report;

/// How fast a language model can run, how fast it does run, which number format to use, and what that costs.
#[derive(Parser)]
#[command(version, after_help = EXAMPLES, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

const EXAMPLES: &str = "\
Examples:
  roofline predict gemv --n 4096 --k 4096 --on h200,a100
  roofline predict gemm --m 512 --n 14336 --k 4096 --on h200 --precision bf16,fp8,w4a16
  roofline formats nvfp4
  roofline devices h200 b200

Exit codes: 0 answered, 1 a file or the output failed, 2 the input was wrong.";

#[derive(Args)]
pub(crate) struct OutputArgs {
    /// Print JSON
    #[arg(long, global = true, group = "form", help_heading = "Output")]
    json: bool,
    /// Print CSV, one row per result
    #[arg(long, global = true, group = "form", help_heading = "Output")]
    csv: bool,
    /// Print Markdown
    #[arg(long, global = true, group = "form", help_heading = "Output")]
    md: bool,
    /// When to use colour
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN", help_heading = "Output")]
    pub(crate) color: ColorChoice,
}

#[derive(Clone, Copy, Default, ValueEnum)]
pub(crate) enum ColorChoice {
    #[default]
    Auto,
    Always,
    Never,
}

impl OutputArgs {
    pub(crate) fn format(&self) -> report::Format {
        match (self.json, self.csv, self.md) {
            (true, ..) => report::Format::Json,
            (_, true, _) => report::Format::Csv,
            (.., true) => report::Format::Markdown,
            _ => report::Format::Text,
        }
    }
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// How fast can it run: time, bound and reason of an operator, from theory
    #[command(subcommand)]
    Predict(Subject),
    /// Number formats: size, range, error, who supports them
    Formats(FormatsArgs),
    /// Named precisions: which format at which place, and which unit multiplies
    Precisions(PrecisionsArgs),
    /// Devices: rates with their sources, compared, registered
    Devices(DevicesArgs),
    /// Shell completions on standard output
    #[command(
        after_help = "Example:\n  roofline completions bash > ~/.local/share/bash-completion/completions/roofline"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// The manual page on standard output
    #[command(after_help = "Example:\n  roofline man | man -l -\n  roofline man predict-gemv | man -l -")]
    Man {
        /// A command, its words joined by `-`; the program itself when left out
        command: Option<String>,
    },
}

#[derive(Subcommand)]
pub(crate) enum Subject {
    /// A matrix of n rows and k columns times a vector: a linear layer decoding one token
    #[command(after_help = "\
Examples:
  roofline predict gemv --n 4096 --k 4096 --on h200
  roofline predict gemv --n 4096 --k 4096 --bandwidth 60GB/s \\
      --peak fp16=2.7TFLOP/s,int8=5.5TFLOP/s --precision fp16,int8 --sizes nominal --json")]
    Gemv(GemvArgs),
    /// A matrix of n rows and k columns times m vectors: a linear layer over m tokens
    #[command(
        after_help = "Example:\n  roofline predict gemm --m 2048 --n 4096 --k 4096 --on h200 --precision bf16,fp8,w4a16"
    )]
    Gemm(GemmArgs),
    /// Attention over a KV cache, fused or not
    #[command(after_help = "\
Examples:
  roofline predict attention --heads 32 --kv-heads 8 --head-dim 128 --context 8192 --on h200
  roofline predict attention --heads 32 --kv-heads 8 --head-dim 128 \\
      --queries 2048 --context 2048 --on h200 --unfused")]
    Attention(AttentionArgs),
    /// A feed-forward layer: up, gate, activation and down
    #[command(after_help = "Example:\n  roofline predict ffn --hidden 4096 --ffn 14336 --tokens 1 --on h200,gb10")]
    Ffn(FfnArgs),
}

/// The device, the precision and how sizes count.
#[derive(Args)]
pub(crate) struct Setting {
    /// Devices: keys, aliases, KEY@MODE for a power mode, or TOML files
    #[arg(long, value_name = "DEVICE", value_delimiter = ',', help_heading = "Device")]
    pub(crate) on: Vec<String>,
    #[command(flatten)]
    pub(crate) rates: RateArgs,
    /// Precisions: names, or weights/activations[/kv]; left out, the 16-bit baseline and the common quantized ones
    /// that the device multiplies
    #[arg(short, long, value_name = "PRECISION", value_delimiter = ',', help_heading = "Precision")]
    pub(crate) precision: Vec<String>,
    /// Store the KV cache in this format
    #[arg(long, value_name = "FORMAT", help_heading = "Precision")]
    pub(crate) kv: Option<String>,
    /// What products write: a format, `activations`, or `accumulator` (INT32 and FP32 as the unit holds them)
    #[arg(long, value_name = "FORMAT", help_heading = "Precision")]
    pub(crate) output: Option<String>,
    /// Count scales and padding (exact), or element bits only as text books do (nominal)
    #[arg(long, value_enum, default_value_t, help_heading = "Precision")]
    pub(crate) sizes: SizesArg,
}

/// Numbers of a device that is in no file, or that replace those of one that is.
#[derive(Args)]
pub(crate) struct RateArgs {
    /// Memory bandwidth, such as 60GB/s
    #[arg(long, value_name = "RATE", help_heading = "Device")]
    pub(crate) bandwidth: Option<ByteRate>,
    /// Dense peaks, such as fp16=2.7TFLOP/s,int8=5.5TFLOP/s
    #[arg(long, value_name = "UNIT=RATE", value_delimiter = ',', value_parser = peak, help_heading = "Device")]
    pub(crate) peak: Vec<(Math, FlopRate)>,
    /// Memory capacity, such as 8GB
    #[arg(long, value_name = "SIZE", help_heading = "Device")]
    pub(crate) memory: Option<Bytes>,
}

#[derive(Clone, Copy, Default, ValueEnum)]
pub(crate) enum SizesArg {
    #[default]
    Exact,
    Nominal,
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
    pub(crate) setting: Setting,
}

#[derive(Args)]
#[command(
    after_help = "Examples:\n  roofline formats\n  roofline formats nvfp4 int4-g64-zp\n  roofline formats --json"
)]
pub(crate) struct FormatsArgs {
    /// Formats to explain; all when left out
    #[arg(value_name = "FORMAT")]
    pub(crate) names: Vec<String>,
    /// Shape of the tensor that sizes are given for, as ROWSxCOLUMNS
    #[arg(long, default_value = "4096x4096", value_name = "SHAPE", value_parser = shape)]
    pub(crate) shape: (u64, u64),
}

#[derive(Args)]
#[command(after_help = "Examples:\n  roofline precisions\n  roofline precisions --on t4")]
pub(crate) struct PrecisionsArgs {
    /// Only what this device multiplies, with its peaks
    #[arg(long, value_name = "DEVICE")]
    pub(crate) on: Option<String>,
}

#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  roofline devices --vendor nvidia --has fp8 --sort bandwidth
  roofline devices h200                       one device, with sources and power modes
  roofline devices h200 b200 mi300x           side by side
  roofline devices add my-chip --bandwidth 1.2TB/s --peak bf16=300TFLOP/s,fp8=600TFLOP/s --memory 64GB"
)]
pub(crate) struct DevicesArgs {
    #[command(subcommand)]
    pub(crate) action: Option<DeviceAction>,
    /// Devices to show; a table of all when left out
    #[arg(value_name = "DEVICE")]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) filter: DeviceFilter,
    /// Order of the table; peak is the 16-bit one
    #[arg(long, value_enum, default_value_t)]
    pub(crate) sort: DeviceOrder,
    /// Smallest first for numbers, last first for names
    #[arg(long)]
    pub(crate) reverse: bool,
}

#[derive(Args)]
pub(crate) struct DeviceFilter {
    /// Only this vendor
    #[arg(long)]
    pub(crate) vendor: Option<String>,
    /// Only this kind: gpu, soc, npu, tpu, cpu or custom
    #[arg(long, value_parser = kind)]
    pub(crate) kind: Option<Kind>,
    /// Only architectures whose name contains this
    #[arg(long, value_name = "TEXT")]
    pub(crate) arch: Option<String>,
    /// Only devices with all of these units, such as fp8,int8
    #[arg(long, value_name = "UNIT", value_delimiter = ',')]
    pub(crate) has: Vec<Math>,
    /// Only devices with at least this much memory
    #[arg(long, value_name = "SIZE")]
    pub(crate) min_memory: Option<Bytes>,
    /// Only your own
    #[arg(long)]
    pub(crate) mine: bool,
}

#[derive(Clone, Copy, Default, ValueEnum)]
pub(crate) enum DeviceOrder {
    #[default]
    Key,
    Year,
    Bandwidth,
    Memory,
    Peak,
    Fp8,
    Int8,
    Fp4,
    Tdp,
}

#[derive(Subcommand)]
pub(crate) enum DeviceAction {
    /// Register a device of your own
    #[command(after_help = "\
Examples:
  roofline devices add my-chip --bandwidth 1.2TB/s --peak bf16=300TFLOP/s --memory 64GB
  roofline devices add my-chip --from my-chip.toml")]
    Add {
        /// What to call it
        name: String,
        /// A device file
        #[arg(long, value_name = "FILE", conflicts_with_all = ["bandwidth", "peak", "memory"])]
        from: Option<PathBuf>,
        #[command(flatten)]
        rates: RateArgs,
        /// Replace one of the same name, or hide a built-in one
        #[arg(long)]
        force: bool,
    },
    /// Forget a device of your own
    Remove {
        /// Its name
        name: String,
    },
}

fn dimension(text: &str) -> Result<u64, String> {
    let digits = text.replace('_', "");
    let number = || format!("a dimension is a whole number from 1 to {}", Dim::MAX);
    let plain = digits.strip_prefix('-').unwrap_or(&digits);
    if plain.is_empty() || !plain.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(number());
    }
    digits.parse().ok().filter(|value| (1..=Dim::MAX).contains(value)).ok_or_else(number)
}

fn peak(text: &str) -> Result<(Math, FlopRate), String> {
    let (unit, rate) = text.split_once('=').ok_or("write UNIT=RATE, for example fp16=2.7TFLOP/s")?;
    let unit = unit.parse::<Math>().map_err(|error| error.to_string())?;
    let rate = rate.parse::<FlopRate>().map_err(|error| error.to_string())?;
    Ok((unit, rate))
}

fn shape(text: &str) -> Result<(u64, u64), String> {
    let (rows, columns) = text.split_once(['x', 'X']).ok_or("write ROWSxCOLUMNS, for example 4096x4096")?;
    Ok((dimension(rows)?, dimension(columns)?))
}

fn kind(text: &str) -> Result<Kind, String> {
    let kinds = [Kind::Gpu, Kind::Soc, Kind::Npu, Kind::Tpu, Kind::Cpu, Kind::Custom];
    let known = kinds.into_iter().find(|kind| kind.to_string() == text.to_lowercase());
    known.ok_or_else(|| format!("one of {}", kinds.map(|kind| kind.to_string()).join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn dimensions() {
        assert_eq!(dimension("4_096"), Ok(4096));
        for bad in ["0", "-1", "", "-", "4096.0", "2147483648", "99999999999999999999999", "4k", "+1"] {
            assert!(dimension(bad).unwrap_err().contains("1 to 2147483647"), "{bad}");
        }
    }

    #[test]
    fn peaks() {
        assert_eq!(peak("fp16=2.7TFLOP/s"), Ok((Math::Fp16, FlopRate::new(2.7e12))));
        assert!(peak("fp16").unwrap_err().contains("UNIT=RATE"));
        assert!(peak("fp17=1TFLOP/s").unwrap_err().contains("did you mean `fp16`?"));
        assert!(peak("fp16=1").unwrap_err().contains("no unit"));
    }
}
