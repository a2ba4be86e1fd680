//! One file per command: parse, one call of the library, report.

mod analyze;
mod devices;
mod formats;
mod manual;
mod model;
mod models;
mod plot;
mod precisions;
mod predict;
mod range;
mod setting;
mod source;
mod sweep;
mod tiling;

use crate::{
    cli::{Cli, Command, Subject},
    failure::Failure,
    report::emit,
};

pub(crate) fn run(cli: &Cli) -> Result<(), Failure> {
    let form = cli.output.format();
    match &cli.command {
        Command::Predict(Subject::Model(args)) => Ok(emit(&model::predict_model(args)?, form)?),
        Command::Predict(Subject::Operator(subject)) => Ok(emit(&predict::predict(subject)?, form)?),
        Command::Models(args) => Ok(emit(&models::models(args)?, form)?),
        Command::Sweep(args) => sweep::sweep(args, form),
        Command::Plot(args) => plot::plot(args),
        Command::Analyze(args) => Ok(emit(&analyze::analyze(args)?, form)?),
        Command::Tiling(args) => Ok(emit(&tiling::tiling(args)?, form)?),
        Command::Formats(args) => Ok(emit(&formats::formats(args)?, form)?),
        Command::Precisions(args) => Ok(emit(&precisions::precisions(args)?, form)?),
        Command::Devices(args) => devices::devices(args, form),
        Command::Completions { shell } => manual::completions(*shell),
        Command::Man { command } => manual::manual(command.as_deref()),
    }
}
