//! The command line as typed. Everything here parses; `commands` gives it meaning.

mod export;
mod flowing;
mod remote;
mod serve;

pub(crate) use export::ExportArgs;
pub(crate) use remote::RemoteArgs;
pub(crate) use serve::ServeArgs;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

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

/// The command line, for what reads it whole: help, manuals, completions.
pub(crate) fn command() -> clap::Command {
    flowing::flowing(Cli::command())
}

impl Cli {
    /// What was typed.
    pub(crate) fn typed() -> Result<Self, clap::Error> {
        let mut command = command();
        let mut matches = command.try_get_matches_from_mut(std::env::args_os())?;
        Self::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
    }
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
    Predict(roofline_verbs::predict::Request),
    /// How fast does it run: kernels on this machine, checked and then timed
    Measure(Box<roofline_verbs::measure::Request>),
    /// Theory against measurement: error, speed-ups, and what explains the rest
    Compare(Box<crate::commands::compare::CompareArgs>),
    /// What this machine really does, for `predict` to use
    Calibrate(roofline_verbs::calibrate::Request),
    /// How fast it would run over ranges of batch, context, precision and device
    Sweep(Box<roofline_verbs::sweep::Request>),
    /// Which precision to use: every plan predicted, ranked by a goal within limits
    #[command(subcommand)]
    Recommend(crate::commands::recommend::RecommendSubject),
    /// Checkpoints in narrow formats that runtimes load, with the error of every weight
    Quantize(Box<crate::commands::quantize::QuantizeArgs>),
    /// How much each input of a model's matrices matters on a text: llama.cpp's importance matrix
    Imatrix(Box<roofline_verbs::imatrix::Request>),
    /// What a checkpoint holds: tensors, formats, bits per weight, what is suspicious
    Inspect(crate::commands::inspect::InspectArgs),
    /// All of it in a row: recommend, quantize, measure and evaluate, with one report
    Pipeline(Box<roofline_verbs::pipeline::Request>),
    /// Text from a model that runs on this machine, as it comes, and how fast
    Generate(Box<roofline_verbs::generate::Request>),
    /// How well a model predicts a text, and what it lost against the one it was made of
    Evaluate(Box<crate::commands::evaluate::EvaluateArgs>),
    /// Pictures: the roofline, time against batch or context, shares of the time
    Plot(crate::commands::plot::PlotArgs),
    /// What a measured run achieved: rates, utilisation, distance to the roof
    Analyze(roofline_verbs::analyze::Request),
    /// How a matrix product cuts into tiles on a device
    Tiling(roofline_verbs::tiling::Request),
    /// Models: dimensions, parameters, cache
    Models(roofline_verbs::models::Request),
    /// Number formats: size, range, error, who supports them
    Formats(roofline_verbs::formats::Request),
    /// Named precisions: which format at which place, and which unit multiplies
    Precisions(roofline_verbs::precisions::Request),
    /// Devices: rates with their sources, compared, registered
    Devices(crate::commands::devices::DevicesArgs),
    /// What a GPU does now: clocks, power, temperature, memory, and what holds it back
    Monitor(crate::commands::monitor::MonitorArgs),
    /// A Jetson: set-up, status, power modes, and what runs best in which
    Jetson(roofline_verbs::jetson::Request),
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
    /// The HTTP interface as an OpenAPI document on standard output, to make clients of
    #[command(after_help = "Example:\n  roofline openapi > roofline.json && npx openapi-typescript roofline.json")]
    Openapi {
        /// The same schemas as stubs of the Python package
        #[arg(long, value_enum, value_name = "MODULE", hide = true)]
        python: Option<crate::stubs::Module>,
    },
    /// The manual page on standard output
    #[command(after_help = "Example:\n  roofline man | man -l -\n  roofline man predict-gemv | man -l -")]
    Man {
        /// A command, its words joined by `-`; the program itself when left out
        command: Option<String>,
    },
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }
}
