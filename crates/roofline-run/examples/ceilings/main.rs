//! Prints what the machine is, what it can do at most, and how near the kernels come.
//!
//! `cargo run --release -p roofline-run --example ceilings [full]`

mod attention;
mod elementwise;

use std::time::Instant;

use roofline_core::Math;
use roofline_run::cpu::{
    ceilings::{Ceilings, Effort, Level, StreamKind, device},
    kernels::{Pool, bound},
    machine::Machine,
};

fn main() {
    let full = std::env::args().any(|argument| argument == "full");
    let machine = Machine::detect();
    println!("{machine:#?}");
    let start = Instant::now();
    let effort = if full { Effort::Full } else { Effort::Quick };
    let ceilings = Ceilings::measure(&machine, effort, &mut |step| eprintln!("{step}"));
    println!("measured in {:.2} s", start.elapsed().as_secs_f64());
    println!("clock {}", ceilings.clock.map_or_else(|| "unknown".to_owned(), |clock| clock.to_string()));
    for stream in &ceilings.streams {
        println!(
            "{:6} {:6} {} threads {:>10}: {:>10} (median {}, worst {}, {:?})",
            format!("{:?}", stream.level),
            format!("{:?}", stream.kind),
            stream.threads,
            stream.bytes.to_string(),
            stream.best.to_string(),
            stream.median,
            stream.worst,
            stream.way,
        );
    }
    for peak in &ceilings.peaks {
        let theory = peak
            .theory
            .map_or_else(String::new, |theory| format!(", {:.1}% of {theory}", 100.0 * (peak.best / theory)));
        println!("{:5} {:14}: {} (median {}{theory})", peak.math.key(), peak.unit, peak.best, peak.median);
    }
    match device(&machine, &ceilings) {
        Ok(device) => println!("{}: {}, {}", device.key, device.name, device.memory.bandwidth),
        Err(error) => println!("{error}"),
    }
    let bandwidth = ceilings.stream(StreamKind::Read, Level::Memory).map_or(f64::NAN, |stream| stream.best.value());
    let fp32 = ceilings.peak(Math::Fp32).map_or(f64::NAN, |peak| peak.best.value());
    if std::env::args().any(|argument| argument == "ceilings-only") {
        return;
    }
    bound(&mut Pool::all(), |pool| {
        attention::report(pool, bandwidth, fp32);
        elementwise::report(pool);
    });
}
