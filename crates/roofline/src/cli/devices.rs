//! `roofline devices`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use roofline_core::{Math, device::Kind, units::Bytes};

use super::RateArgs;

#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  roofline devices --vendor nvidia --has fp8 --sort bandwidth
  roofline devices h200                       one device, with sources and power modes
  roofline devices h200 b200 mi300x           side by side
  roofline devices this                       this machine: what it is made of, what it was measured to do
  roofline devices add my-chip --bandwidth 1.2TB/s --peak bf16=300TFLOP/s --memory 64GB
  roofline devices template > my-chip.toml    a file to fill in, for `--on my-chip.toml`"
)]
pub(crate) struct DevicesArgs {
    #[command(subcommand)]
    pub(crate) action: Option<DeviceAction>,
    /// Devices to show; a table of all when left out
    #[arg(
        value_name = "DEVICE",
        conflicts_with_all = ["vendor", "kind", "arch", "has", "min_memory", "mine", "sort", "reverse"]
    )]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) filter: DeviceFilter,
    /// Order of the table; peak is the 16-bit one
    #[arg(long, value_enum, default_value_t)]
    pub(crate) sort: DeviceOrder,
    /// Measure this machine again (`roofline devices this`)
    #[arg(long, requires = "names")]
    pub(crate) measure: bool,
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
        /// Memory capacity, such as 8GB
        #[arg(long, value_name = "SIZE", help_heading = "Device")]
        memory: Option<Bytes>,
        /// Replace one of yours, or hide a built-in one
        #[arg(long)]
        force: bool,
    },
    /// A device file with every field, explained, on standard output: fill it in for a chip of your own
    #[command(after_help = "\
Examples:
  roofline devices template > my-chip.toml
  roofline predict gemv --n 4096 --k 4096 --on my-chip.toml
  roofline devices add my-chip --from my-chip.toml")]
    Template,
    /// Forget a device of your own
    #[command(after_help = "Example:\n  roofline devices remove my-chip")]
    Remove {
        /// Its name
        name: String,
    },
}

fn kind(text: &str) -> Result<Kind, String> {
    let kinds = [Kind::Gpu, Kind::Soc, Kind::Npu, Kind::Tpu, Kind::Cpu, Kind::Custom];
    let known = kinds.into_iter().find(|kind| kind.to_string() == text.to_lowercase());
    known.ok_or_else(|| format!("one of {}", kinds.map(|kind| kind.to_string()).join(", ")))
}
