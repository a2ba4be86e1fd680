//! `roofline export`: a script that repeats a run, by this program or by PyTorch.

mod python;
mod shell;

use std::io::Write;

use roofline_core::{Graph, graph::Node};
use roofline_run::Run;
use roofline_verbs::{Context, context::files::replace};
use serde::Serialize;

use crate::{cli::ExportArgs, failure::Failure, report::Format};

/// Products where no run is given: what one row and many rows of a large layer take.
const STANDARD: [(u64, u64, u64); 4] = [(1, 4096, 4096), (1, 8192, 8192), (4096, 4096, 4096), (8192, 8192, 8192)];

/// A script, and what it is without.
#[derive(Serialize)]
pub(crate) struct Exported {
    language: &'static str,
    script: String,
    /// Kernels or commands in it.
    count: usize,
    /// Kernels that it has no words for, and why.
    left_out: Vec<String>,
}

pub(crate) fn run(context: &Context, args: &ExportArgs, form: Format) -> Result<(), Failure> {
    let exported = exported(context, args)?;
    for kernel in &exported.left_out {
        context.warn(format!("left out: {kernel}"));
    }
    let text = if form == Format::Json {
        serde_json::to_string(&exported).map_err(|error| Failure::Output(error.into()))? + "\n"
    } else {
        exported.script.clone()
    };
    match &args.output {
        Some(path) if path.exists() => {
            Err(Failure::usage(format!("{} is there already", path.display()), "name a new file by --output"))
        }
        Some(path) => Ok(replace(path, text.as_bytes())?),
        None => std::io::stdout().write_all(text.as_bytes()).map_err(Failure::Output),
    }
}

fn exported(context: &Context, args: &ExportArgs) -> Result<Exported, Failure> {
    let run = args.run.as_deref().map(Run::read).transpose()?;
    let exported =
        if args.python { python::python(context, args, run.as_ref())? } else { shell::shell(args, run.as_ref())? };
    if exported.count == 0 {
        let reason = exported.left_out.first().map_or_else(|| "the run is empty".to_owned(), Clone::clone);
        return Err(Failure::usage(format!("there is nothing to export: {reason}"), "take another run"));
    }
    Ok(exported)
}

/// The standard products as operators.
fn standard() -> Result<Vec<Node>, Failure> {
    let product = |(m, n, k): &(u64, u64, u64)| Ok(Graph::gemm(*m, *n, *k)?.nodes[0]);
    STANDARD.iter().map(product).collect()
}
