//! One file per command: parse, one call of the library, report.

mod devices;
mod formats;
mod manual;
mod precisions;
mod predict;
mod setting;

use crate::{
    cli::{Cli, Command},
    failure::Failure,
    report::emit,
};

pub(crate) fn run(cli: &Cli) -> Result<(), Failure> {
    let form = cli.output.format();
    match &cli.command {
        Command::Predict(subject) => Ok(emit(&predict::predict(subject)?, form)?),
        Command::Formats(args) => Ok(emit(&formats::formats(args)?, form)?),
        Command::Precisions(args) => Ok(emit(&precisions::precisions(args)?, form)?),
        Command::Devices(args) => devices::devices(args, form),
        Command::Completions { shell } => manual::completions(*shell),
        Command::Man { command } => manual::manual(command.as_deref()),
    }
}
