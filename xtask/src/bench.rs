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
    step("from process start to answer");
    run(&mut cargo(&["build", "--quiet", "--release", "--locked", "--package", "roofline"]))?;
    let program = root().join("target/release/roofline");
    let program = program.to_string_lossy();
    let cases = [
        ("a program that does nothing", "true".to_owned()),
        ("predict gemv, 5 precisions", format!("{program} predict gemv --n 4096 --k 4096 --on h200")),
        (
            "predict ffn, 3 devices, JSON",
            format!("{program} predict ffn --hidden 4096 --ffn 14336 --on h200,a100,t4 --json"),
        ),
        ("devices", format!("{program} devices")),
        ("formats", format!("{program} formats")),
    ];
    println!("{:<32} {:>10} {:>10}   of {RUNS} runs", "", "median", "fastest");
    for (name, command) in cases {
        let mut times = (0..RUNS).map(|_| time(&command)).collect::<Result<Vec<Duration>, String>>()?;
        times.sort();
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        println!("{name:<32} {:>7.2} ms {:>7.2} ms", milliseconds(times[RUNS / 2]), milliseconds(times[0]));
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
