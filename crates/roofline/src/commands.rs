//! One file per command: one call of a verb, and the answer for reading.

mod analyze;
mod basis;
mod calibrate;
mod check;
pub(crate) mod compare;
pub(crate) mod devices;
pub(crate) mod evaluate;
mod export;
mod formats;
mod generate;
mod imatrix;
pub(crate) mod inspect;
mod jetson;
mod manual;
mod measure;
mod models;
pub(crate) mod monitor;
mod pipeline;
pub(crate) mod plot;
mod precisions;
mod predict;
pub(crate) mod quantize;
pub(crate) mod recommend;
mod remote;
mod sweep;
mod tiling;

use roofline_verbs::{self as verbs, Context};

use crate::{
    cli::{Cli, Command},
    failure::Failure,
    report::{Shown, emit, print},
};

pub(crate) fn run(cli: &Cli, context: &Context) -> Result<(), Failure> {
    let form = cli.output.format();
    match &cli.command {
        Command::Predict(request) => predict::run(context, request, form),
        Command::Measure(request) => measure::run(context, request, form),
        Command::Compare(args) => compare::run(context, args, form),
        Command::Calibrate(request) => calibrate::run(context, request, form),
        Command::Sweep(request) => sweep::run(context, request, form),
        Command::Recommend(subject) => recommend::run(context, subject, form),
        Command::Quantize(args) => quantize::run(context, args, form),
        Command::Imatrix(request) => emit(&Shown::all(&verbs::imatrix::imatrix(context, request)?), form),
        Command::Inspect(args) => inspect::run(context, args, form),
        Command::Pipeline(request) => pipeline::run(context, request, form),
        Command::Generate(request) => generate::run(context, request, form),
        Command::Evaluate(args) => evaluate::run(context, args, form),
        Command::Plot(args) => plot::run(context, args, form),
        Command::Analyze(request) => emit(&Shown::all(&verbs::analyze::analyze(context, request)?), form),
        Command::Tiling(request) => emit(&Shown::all(&verbs::tiling::tiling(context, request)?), form),
        Command::Models(request) => models::run(context, request, form),
        Command::Formats(request) => formats::run(context, request, form),
        Command::Precisions(request) => emit(&Shown::all(&verbs::precisions::precisions(context, request)?), form),
        Command::Devices(args) => devices::run(context, args, form),
        Command::Monitor(args) => monitor::run(context, args, form),
        Command::Jetson(args) => jetson::run(context, args, form),
        Command::Export(args) => export::run(context, args, form),
        Command::Check(args) => check::run(context, args, form),
        Command::Serve(args) => crate::server::serve(args),
        Command::Remote(args) => remote::run(args),
        Command::Completions { shell } => manual::completions(*shell),
        Command::Openapi { python: Some(module) } => print(&crate::stubs::stubs(*module)),
        Command::Openapi { python: None } => print(&(crate::server::document().to_string() + "\n")),
        Command::Man { command } => manual::manual(command.as_deref()),
    }
}
