//! The project's chores: `cargo xtask test`, `cargo xtask kernels`, `cargo xtask oracle [--heavy]`, `cargo xtask generate [--check]`,
//! `cargo xtask calibrations [--check]`, `cargo xtask python`, `cargo xtask serve`, `cargo xtask bench`.

mod bench;
mod calibrations;
mod checkpoint;
mod generate;
mod kernels;
mod machines;
mod oracle;
mod python;
mod serve;
mod test;

use std::{
    env,
    path::PathBuf,
    process::{Command, ExitCode},
    sync::OnceLock,
    time::Instant,
};

const USAGE: &str = "\
Usage: cargo xtask CHORE

  test                everything a change must pass: format, lints, tests, oracle, documentation, generated files
  kernels             every GPU kernel compiled for every architecture, without a GPU (minutes)
  oracle [--heavy]    the checkpoints the program writes, compared with a reference in Python, or loaded by the libraries
                      themselves, family by family (10 GB of packages and half an hour)
  generate [--check]  write docs/reference/ from the program itself, or check that it is up to date
  calibrations [--check]  fit the calibrations of serving stacks to the timings in docs/results/timings and draw the page's
                      figures, or check that what ships is what they give (minutes)
  python              the Python package: its wheel, installed into an empty environment, and its tests
  serve [ARGUMENTS]   build the page, then start a server that has it: `roofline serve ARGUMENTS`
  bench               estimates per second, and the time from process start to answer";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let Some(code) = python::in_place_of_cargo(&words) {
        return code;
    }
    let result = match words[..] {
        ["test"] => test::test(),
        ["kernels"] => kernels::kernels(),
        ["oracle"] => oracle::oracle(),
        ["oracle", "--heavy"] => oracle::heavy(),
        ["generate"] => generate::generate(generate::Mode::Write),
        ["generate", "--check"] => generate::generate(generate::Mode::Check),
        ["calibrations"] => calibrations::calibrations(calibrations::Mode::Write),
        ["calibrations", "--check"] => calibrations::calibrations(calibrations::Mode::Check),
        ["python"] => python::python(),
        ["bench"] => bench::bench(),
        ["serve", ref arguments @ ..] => serve::serve(arguments),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => {
            step("done");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace's folder.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().map(PathBuf::from).unwrap_or_default()
}

fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    command
}

/// Runs a command to its end; an error names it.
fn run(command: &mut Command) -> Result<(), String> {
    let shown = format!("{command:?}").replace('"', "");
    let status = command.status().map_err(|error| format!("{shown}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{shown} failed ({status})")) }
}

/// Whether a command runs and succeeds, without showing what it prints.
fn works(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// A part of a chore, announced with the minutes and seconds that those before it took.
fn step(name: &str) {
    static START: OnceLock<Instant> = OnceLock::new();
    let seconds = START.get_or_init(Instant::now).elapsed().as_secs();
    println!("\n== {}:{:02} {name}", seconds / 60, seconds % 60);
}
