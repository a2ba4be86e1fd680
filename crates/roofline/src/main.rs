//! `roofline`: how fast a language model can run, how fast it does run, which number format to use, and what that costs.

mod cli;
mod commands;
mod config;
mod failure;
mod report;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    report::style::choose(cli.output.color);
    match commands::run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(cli.output.format()),
    }
}
