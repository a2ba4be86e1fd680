//! The command line as typed. Everything here parses; `commands` gives it meaning.

mod devices;
mod export;
mod jetson;
mod measure;
mod model;
mod monitor;
mod plot;
mod predict;
mod quantize;
mod recommend;
mod remote;
mod serve;

pub(crate) use devices::{DeviceAction, DeviceFilter, DeviceOrder, DevicesArgs};
pub(crate) use export::ExportArgs;
pub(crate) use jetson::{
    GoalArg, JetsonAction, JetsonArgs, OnArgs, PowerBenchArgs, ScheduleArgs, SetModeArgs, ValidateArgs,
};
pub(crate) use measure::{BackendArg, CalibrateArgs, CompareArgs, CompareSubject, MeasureArgs, RunArgs, SquaresArgs};
pub(crate) use model::{AnalyzeArgs, LoweringArgs, ModelArgs, ModelsArgs, Phase, SweepArgs, TilingArgs};
pub(crate) use monitor::MonitorArgs;
pub(crate) use plot::{PlotArgs, PlotKind, ThemeArg};
pub(crate) use predict::{AttentionArgs, FfnArgs, OperatorSubject, Setting, SizesArg, StackArg, Subject, TierArg};
pub(crate) use quantize::{InspectArgs, QuantizeArgs};
pub(crate) use recommend::{
    ProductArgs, RecommendGoal, RecommendModelArgs, RecommendPicture, RecommendPlace, RecommendSubject,
};
pub(crate) use remote::RemoteArgs;
pub(crate) use serve::ServeArgs;

use clap::{Args, Parser, Subcommand, ValueEnum};
use roofline_core::{
    Dim, Math,
    units::{ByteRate, FlopRate},
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
  roofline compare
  roofline predict gemv --n 4096 --k 4096 --on h200,a100
  roofline predict gemm --m 512 --n 14336 --k 4096 --on h200 --precision bf16,fp8,w4a16
  roofline predict model llama-3-8b --on h200 --precision bf16,w4a16 --context 4096
  roofline models deepseek-v3
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
    /// How fast can it run: time, bound and reason of an operator or a model, from theory
    #[command(subcommand)]
    Predict(Subject),
    /// How fast does it run: kernels on this machine, checked and then timed
    Measure(MeasureArgs),
    /// Theory against measurement: error, speed-ups, and what explains the rest
    Compare(Box<CompareArgs>),
    /// What this machine really does, for `predict` to use
    Calibrate(CalibrateArgs),
    /// How fast it would run over ranges of batch, context, precision and device
    Sweep(SweepArgs),
    /// Which precision to use: every plan predicted, ranked by a goal within limits
    #[command(subcommand)]
    Recommend(RecommendSubject),
    /// Checkpoints in narrow formats that runtimes load, with the error of every weight
    Quantize(QuantizeArgs),
    /// What a checkpoint holds: tensors, formats, bits per weight, what is suspicious
    Inspect(InspectArgs),
    /// Pictures: the roofline, time against batch or context, shares of the time
    Plot(PlotArgs),
    /// What a measured run achieved: rates, utilisation, distance to the roof
    Analyze(AnalyzeArgs),
    /// How a matrix product cuts into tiles on a device
    Tiling(TilingArgs),
    /// Models: dimensions, parameters, cache
    Models(ModelsArgs),
    /// Number formats: size, range, error, who supports them
    Formats(FormatsArgs),
    /// Named precisions: which format at which place, and which unit multiplies
    Precisions(PrecisionsArgs),
    /// Devices: rates with their sources, compared, registered
    Devices(DevicesArgs),
    /// What a GPU does now: clocks, power, temperature, memory, and what holds it back
    Monitor(MonitorArgs),
    /// A Jetson: set-up, status, power modes, and what runs best in which
    Jetson(JetsonArgs),
    /// A script that repeats a run: these commands, or the same products with PyTorch
    Export(ExportArgs),
    /// This program against what is known without it: numbers, data, kernels, faces
    Check(CheckArgs),
    /// Everything over HTTP, and the page
    Serve(ServeArgs),
    /// The page of a machine far away, over ssh
    Remote(RemoteArgs),
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
#[command(after_help = "\
Needs no source tree, no network and no GPU, and measures nothing. The exit code is 1 where a check fails.

Examples:
  roofline check
  roofline check --all                             every number with its reason
  roofline check --json")]
pub(crate) struct CheckArgs {
    /// Show every number, with why it must be that
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Args)]
#[command(after_help = "Examples:\n  roofline precisions\n  roofline precisions --on t4")]
pub(crate) struct PrecisionsArgs {
    /// Only what this device multiplies, with its peaks
    #[arg(long, value_name = "DEVICE")]
    pub(crate) on: Option<String>,
}

/// Rates of a device that is in no file, or that replace those of one that is.
#[derive(Args)]
pub(crate) struct RateArgs {
    /// Memory bandwidth, such as 60GB/s
    #[arg(long, value_name = "RATE", help_heading = "Device")]
    pub(crate) bandwidth: Option<ByteRate>,
    /// Dense peaks, such as fp16=2.7TFLOP/s,int8=5.5TFLOP/s
    #[arg(long, value_name = "UNIT=RATE", value_delimiter = ',', value_parser = peak, help_heading = "Device")]
    pub(crate) peak: Vec<(Math, FlopRate)>,
}

fn dimension(text: &str) -> Result<u64, String> {
    let digits = text.replace('_', "");
    let number = || format!("a dimension is a whole number from 1 to {}", Dim::MAX);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
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
