//! `roofline`: how fast a language model can run, how fast it does run, which number format to use, and what that costs.

#![forbid(unsafe_code)]

mod cli;
mod commands;
mod failure;
mod report;
mod server;
mod stubs;
mod terminal;

use std::{process::ExitCode, sync::Arc};

use roofline_verbs::{Context, context::Home};

use crate::failure::Failure;

fn main() -> ExitCode {
    let cli = match cli::Cli::typed() {
        Ok(cli) => cli,
        // What clap says is made for people; who asked for JSON gets the same words as JSON.
        Err(error) if error.use_stderr() && std::env::args().any(|argument| argument == "--json") => {
            return Failure::typed(&error).report(report::Format::Json);
        }
        Err(error) => error.exit(),
    };
    report::style::choose(cli.output.color);
    if let Err(error) = roofline_isa::Isa::from_environment() {
        let hint = "it holds kernels back to narrower instructions; unset it to use all that the processor has";
        return Failure::usage(error.to_string(), hint).report(cli.output.format());
    }
    let terminal = terminal::Terminal::of(cli.output.format());
    let context = Context::local(Arc::new(Home::of_user()), Arc::new(terminal));
    match commands::run(&cli, &context.typed(std::env::args().skip(1).collect())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(cli.output.format()),
    }
}
