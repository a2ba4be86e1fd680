//! What a checkpoint holds: tensors, formats, bits per weight, what is suspicious.

use std::path::PathBuf;

use clap::Args;
pub use roofline_quant::inspect::Inspection as Answer;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{Context, Error, Result, demo};

/// Where it is.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
#[command(after_help = "\
Reads headers only, whatever the size of the checkpoint. Exit code 0 even where something is suspicious:
what is suspicious is said.

Examples:
  roofline inspect ./Llama-3.1-8B-W4A16
  roofline inspect model.gguf --all
  roofline inspect model-00001-of-00004.safetensors --csv")]
#[schemars(rename = "InspectRequest")]
pub struct Request {
    /// A checkpoint's folder, a file of weights (safetensors or PyTorch's), an index of shards or a GGUF file
    #[arg(value_name = "PATH")]
    #[schemars(extend("x-local" = true))]
    pub path: PathBuf,
}

/// Looks at the headers of a checkpoint.
pub fn inspect(context: &Context, request: &Request) -> Result<Answer> {
    if !context.is_local() {
        return Err(Error::Path { what: "checkpoint", name: request.path.display().to_string() });
    }
    Ok(roofline_quant::inspect::inspect(&demo::checkpoint(context, &request.path)?)?)
}
