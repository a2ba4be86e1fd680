//! Speed with its limit beside it: the library's benchmarks, then the program from process start to answer against a
//! program that does nothing.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::{cargo, root, run, step};

const RUNS: usize = 300;

pub(crate) fn bench() -> Result<(), String> {
    step("estimates (divan)");
    run(&mut cargo(&["bench", "--quiet", "--locked", "--package", "roofline-core", "--bench", "estimates"]))?;
    step("rows of a batch (divan)");
    run(&mut cargo(&[
        "bench",
        "--quiet",
        "--locked",
        "--package",
        "roofline-verbs",
        "--no-default-features",
        "--bench",
        "batch",
    ]))?;
    step("from process start to answer");
    run(&mut cargo(&["build", "--quiet", "--profile", "dist", "--locked", "--package", "roofline"]))?;
    let program = root().join("target/dist/roofline");
    let program = program.to_string_lossy();
    let sweep =
        "sweep llama-3-8b --on h200 --precision bf16 --phase decode --batch 1..1000+1 --context 128..128000+128 --csv";
    let cases = [
        ("a program that does nothing", "true".to_owned(), RUNS),
        ("predict gemv, 5 precisions", format!("{program} predict gemv --n 4096 --k 4096 --on h200"), RUNS),
        ("predict model, 2 precisions", format!("{program} predict model llama-3-8b --on h200 -p bf16,w4a16"), RUNS),
        ("models", format!("{program} models"), RUNS),
        ("devices", format!("{program} devices"), RUNS),
        ("formats", format!("{program} formats"), RUNS / 10),
        ("plot in the terminal", format!("{program} plot roofline llama-3-8b --on h200 -p bf16"), RUNS / 10),
        ("sweep of a million points", format!("{program} {sweep}"), RUNS / 60),
    ];
    println!("{:<32} {:>11} {:>11} {:>6}", "", "median", "fastest", "runs");
    for (name, command, runs) in cases {
        let mut times = (0..runs).map(|_| time(&command)).collect::<Result<Vec<Duration>, String>>()?;
        times.sort();
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        println!("{name:<32} {:>8.2} ms {:>8.2} ms {runs:>6}", milliseconds(times[runs / 2]), milliseconds(times[0]));
    }
    Ok(())
}

fn time(command: &str) -> Result<Duration, String> {
    let mut words = command.split_whitespace();
    let mut process = Command::new(words.next().unwrap_or_default());
    process.args(words).stdout(Stdio::null()).env("ROOFLINE_CONFIG_DIR", "/nonexistent");
    let start = Instant::now();
    run(&mut process)?;
    Ok(start.elapsed())
}
