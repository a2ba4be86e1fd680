//! `roofline export`.

use std::path::PathBuf;

use clap::Args;

#[derive(Args)]
#[command(after_help = "\
Without a run the products are GEMV 4096 x 4096 and 8192 x 8192, GEMM 4096^3 and 8192^3.
What the Python program prints is read by `roofline compare --measured` and by POST /api/validate.

Examples:
  roofline export run.jsonl > again.sh                   the commands that made the run
  roofline export run.jsonl --python -o products.py      the same products with PyTorch
  roofline export --python --on h200 -p bf16,fp8 | ssh machine python3 - > measured.json")]
pub(crate) struct ExportArgs {
    /// A run of `measure`, `compare`, `sweep --measure` or `calibrate`; standard products when left out
    #[arg(value_name = "RUN")]
    pub(crate) run: Option<PathBuf>,
    /// A program in Python that times products with PyTorch, instead of a shell script
    #[arg(long)]
    pub(crate) python: bool,
    /// The device that the Python program is for, and refuses to run without; the run's, or any, when left out
    #[arg(long, value_name = "DEVICE", requires = "python")]
    pub(crate) on: Option<String>,
    /// Precisions of the standard products
    #[arg(short, long, value_name = "PRECISION", value_delimiter = ',', conflicts_with = "run")]
    pub(crate) precision: Vec<String>,
    /// A new file for the script; standard output when left out
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}
