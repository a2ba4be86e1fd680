//! `roofline measure`, `compare`, `calibrate`.

use std::{path::PathBuf, sync::Arc};

use clap::{Args, Subcommand, ValueEnum};

use super::{OperatorSubject, Subject};
use crate::commands::runner::Watcher;

/// Who runs the kernels, for how long, and where the results go.
#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(crate) struct RunArgs {
    /// Who runs the kernels: all cores of this machine (cpu), its NVIDIA GPU (cuda), or exact fake times on the device of
    /// --on (null); the GPU where there is one, else the processor, when left out
    #[arg(long, global = true, value_enum, help_heading = "Measuring")]
    pub(crate) backend: Option<BackendArg>,
    /// Which GPU, as `nvidia-smi -L` counts them
    #[arg(long, global = true, value_name = "INDEX", default_value_t = 0, help_heading = "Measuring")]
    pub(crate) gpu: usize,
    /// Read the same operands every time, so that caches serve what they hold
    #[arg(long, global = true, help_heading = "Measuring")]
    pub(crate) warm: bool,
    /// Fewer shapes, and a quarter of a second for each
    #[arg(long, global = true, help_heading = "Measuring")]
    pub(crate) quick: bool,
    /// Longest time for each kernel; it ends earlier when the median is known
    #[arg(long, global = true, value_name = "SECONDS", value_parser = seconds, help_heading = "Measuring")]
    pub(crate) seconds: Option<f64>,
    /// Also watch the power of each kernel for a second: joules per call, and operations per joule
    #[arg(long, global = true, help_heading = "Measuring")]
    pub(crate) energy: bool,
    /// Where the run is kept, one line per finished measurement; a new file in the data folder when left out
    #[arg(long, global = true, value_name = "FILE", help_heading = "Measuring")]
    pub(crate) out: Option<PathBuf>,
    /// Go on with the run in --out: what it holds is not measured again
    #[arg(long, global = true, requires = "out", help_heading = "Measuring")]
    pub(crate) resume: bool,
    /// Who watches, where it is not somebody at a terminal.
    #[arg(skip)]
    pub(crate) watcher: Option<Arc<dyn Watcher>>,
}

impl RunArgs {
    /// Who runs, where nobody was named: a GPU that is there is what people ask about.
    pub(crate) fn backend(&self) -> BackendArg {
        let there = || if roofline_run::cuda::present() { BackendArg::Cuda } else { BackendArg::Cpu };
        self.backend.unwrap_or_else(there)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendArg {
    Cpu,
    Cuda,
    Null,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  roofline measure gemv --n 4096 --k 4096 --precision fp32,bf16,w8a16,w4a16
  roofline measure attention --heads 32 --kv-heads 8 --head-dim 128 --context 8192
  roofline measure model llama-3.2-1b --precision bf16,w4a16              decode, then prefill
  roofline measure --saturate --precision fp32,bf16
  roofline measure --saturate --write-device my_gpu.toml                 then `--on my_gpu.toml`
  roofline measure gemm --m 512 --n 4096 --k 4096 --out run.jsonl        interrupted? add --resume")]
pub(crate) struct MeasureArgs {
    #[command(subcommand)]
    pub(crate) subject: Option<Subject>,
    /// The highest rates: products and matrix-vector products large enough to fill the machine
    #[arg(long)]
    pub(crate) saturate: bool,
    /// Write what --saturate measured, bandwidth and the rate of each unit, into a device file for `--on FILE`
    #[arg(long, value_name = "FILE", requires = "saturate")]
    pub(crate) write_device: Option<PathBuf>,
    /// Replace the file of --write-device
    #[arg(long, requires = "write_device")]
    pub(crate) force: bool,
    /// The device that the null backend plays, for --saturate; a subject has its own
    #[arg(long, value_name = "DEVICE")]
    pub(crate) on: Option<String>,
    /// Precisions of --saturate; a subject has its own
    #[arg(short, long, value_name = "PLAN")]
    pub(crate) precision: Vec<String>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Args)]
#[command(after_help = "\
Without a subject it is a tour of this machine: what it is made of, what theory says of it, what it does.

A file of measurements made elsewhere (--measured) is a CSV with the columns m, n, k, precision and time_us, or
JSON of the form {\"benchmarks\": [{\"kernel_type\": \"gemm\", \"shape\": [m, n, k], \"precision\": ..., \"measured_time_us\": ...}]}.

Examples:
  roofline compare
  roofline compare gemv --n 4096 --k 4096
  roofline compare model llama-3.2-1b --precision bf16,w4a16              decode, then prefill
  roofline compare sizes                               does the error change with size?
  roofline compare --from run.jsonl                    analyse a run again, on any machine
  roofline compare --measured points.csv --on gb10     somebody else's measurements")]
pub(crate) struct CompareArgs {
    #[command(subcommand)]
    pub(crate) subject: Option<CompareSubject>,
    /// Analyse a run that is on disk; nothing is measured
    #[arg(long, value_name = "FILE", conflicts_with = "measured")]
    pub(crate) from: Option<PathBuf>,
    /// Analyse measurements made elsewhere; needs --on
    #[arg(long, value_name = "FILE", requires = "on")]
    pub(crate) measured: Option<PathBuf>,
    /// The device that --measured was made on, that --from is to be judged by, or that the null backend plays
    #[arg(long, value_name = "DEVICE")]
    pub(crate) on: Option<String>,
    /// Plans of the tour, as `predict` takes them
    #[arg(short, long, value_name = "PLAN")]
    pub(crate) precision: Vec<String>,
    /// Which time is judged, the floor or the one to expect; the latter when left out
    #[arg(long, value_enum)]
    pub(crate) tier: Option<super::TierArg>,
    /// Show everything: each time, rate and speed-up, what explains the errors, what the machine is made of
    #[arg(long = "all", global = true, help_heading = "Output")]
    pub(crate) unfolded: bool,
    /// Where the report in HTML goes; beside the run when left out
    #[arg(long, global = true, value_name = "FILE", help_heading = "Output")]
    pub(crate) report: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Subcommand)]
pub(crate) enum CompareSubject {
    #[command(flatten)]
    Operator(OperatorSubject),
    /// A whole model: each of its kernels once, counted as often as it runs
    Model(super::ModelArgs),
    /// Square matrix-vector products from small to large: does the error change with size?
    Sizes(SquaresArgs),
}

#[derive(Args)]
pub(crate) struct SquaresArgs {
    /// Sides of the matrices
    #[arg(long, value_name = "RANGE", default_value = "256..16384")]
    pub(crate) n: String,
    #[command(flatten)]
    pub(crate) setting: super::Setting,
}

#[derive(Args)]
#[command(after_help = "\
Measures a grid of kernels, fits the terms of the expected tier to them, states the error on shapes that were left out
of a first fit, and keeps the result: from then on `predict` shows what to expect of this machine beside the ideal.

Examples:
  roofline calibrate
  roofline calibrate --quick
  roofline calibrate --show                            the terms in use, and how good they are
  roofline calibrate --from run.jsonl                  fit again, without measuring
  roofline calibrate --validate 300                    how far it is from random shapes")]
pub(crate) struct CalibrateArgs {
    /// Show the calibration in use; nothing is measured
    #[arg(long, conflicts_with_all = ["from", "forget"])]
    pub(crate) show: bool,
    /// Remove the calibration in use
    #[arg(long, conflicts_with = "from")]
    pub(crate) forget: bool,
    /// Fit to a run that is on disk
    #[arg(long, value_name = "FILE")]
    pub(crate) from: Option<PathBuf>,
    /// Measure so many random shapes that the grid does not have, and say how far the calibration in use is from them
    #[arg(long, value_name = "COUNT", value_parser = count, conflicts_with_all = ["show", "forget", "from", "warm"])]
    pub(crate) validate: Option<usize>,
    /// Which random shapes
    #[arg(long, value_name = "NUMBER", default_value_t = 1, requires = "validate")]
    pub(crate) seed: u64,
    /// The device, where it is not this machine
    #[arg(long, value_name = "DEVICE")]
    pub(crate) on: Option<String>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

fn count(text: &str) -> Result<usize, String> {
    let counts = 1..=10_000;
    let count = text.parse().ok().filter(|count| counts.contains(count));
    count.ok_or_else(|| "a count is a number from 1 to 10000".to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.trim_end_matches('s').parse().map_err(|_| "seconds are a number such as 0.5".to_owned())?;
    if (0.001..=3600.0).contains(&value) { Ok(value) } else { Err("seconds are between 0.001 and 3600".to_owned()) }
}
