//! One file per command: parse, one call of the library, report.

mod analyze;
mod calibrate;
mod chart;
mod check;
pub(crate) mod compare;
mod devices;
mod export;
mod formats;
mod gpu;
mod inspect;
mod jetson;
mod manual;
pub(crate) mod measure;
mod model;
mod models;
mod monitor;
pub(crate) mod plot;
mod precisions;
mod predict;
mod quantize;
pub(crate) mod question;
mod range;
pub(crate) mod recommend;
mod remote;
pub(crate) mod runner;
mod setting;
pub(crate) mod shapes;
mod source;
mod subjects;
mod sweep;
pub(crate) mod this;
mod tier;
mod tiling;

use crate::{
    cli::{Cli, Command, Subject},
    failure::Failure,
    report::emit,
};

/// A device by name, as `--on` takes it.
pub(crate) fn place(name: &str) -> Result<roofline_core::Device, Failure> {
    setting::device(&crate::config::registry(), name)
}

/// A device with what is known of our kernels on it.
pub(crate) fn known(device: roofline_core::Device) -> roofline_core::Machine {
    calibrate::machine(device, "")
}

pub(crate) fn run(cli: &Cli) -> Result<(), Failure> {
    let form = cli.output.format();
    match &cli.command {
        Command::Predict(Subject::Model(args)) => Ok(emit(&model::predict_model(args)?, form)?),
        Command::Predict(Subject::Operator(subject)) => Ok(emit(&predict::predict(subject)?, form)?),
        Command::Models(args) => Ok(emit(&models::models(args)?, form)?),
        Command::Measure(args) => Ok(emit(&measure::measure(args)?, form)?),
        Command::Compare(args) => compare::compare(args, form),
        Command::Calibrate(args) => calibrate::calibrate(args, form),
        Command::Sweep(args) if args.models.is_empty() => shapes::sweep(args, form),
        Command::Sweep(args) => sweep::sweep(args, form),
        Command::Recommend(subject) => recommend::recommend(subject, form),
        Command::Quantize(args) => quantize::quantize(args, form),
        Command::Inspect(args) => Ok(emit(&inspect::inspect(args)?, form)?),
        Command::Plot(args) => plot::plot(args, form),
        Command::Analyze(args) => Ok(emit(&analyze::analyze(args)?, form)?),
        Command::Tiling(args) => Ok(emit(&tiling::tiling(args)?, form)?),
        Command::Formats(args) => Ok(emit(&formats::formats(args)?, form)?),
        Command::Precisions(args) => Ok(emit(&precisions::precisions(args)?, form)?),
        Command::Devices(args) => devices::devices(args, form),
        Command::Monitor(args) => monitor::monitor(args, form),
        Command::Jetson(args) => jetson::jetson(args, form),
        Command::Export(args) => export::export(args, form),
        Command::Check(args) => check::check(args, form),
        Command::Serve(args) => crate::server::serve(args),
        Command::Remote(args) => remote::remote(args),
        Command::Completions { shell } => manual::completions(*shell),
        Command::Man { command } => manual::manual(command.as_deref()),
    }
}
