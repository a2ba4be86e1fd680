//! How fast a model of random weights runs: `speed MODEL|CONFIG PLAN [PROMPT [GENERATE [BATCH [CHUNK|- [all]]]]]`; on the first GPU
//! where `ROOFLINE_GPU` is set.

use std::{error::Error, time::Instant};

use roofline_core::{Format, Model, Plan, units::Seconds};
use roofline_engine::{Backend, Engine, Settings, Wanted};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, usual: usize| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(usual);
    let (prompt, generate, batch) = (number(2, 512), number(3, 32), number(4, 1));
    let plan: Plan = arguments[1].parse()?;
    let values = if arguments[1].starts_with("fp16") { Format::FP16 } else { Format::BF16 };
    let model = match std::fs::read_to_string(&arguments[0]) {
        Ok(config) => Model::from_config(&config, &arguments[0])?,
        Err(_) => Model::find(&arguments[0])?,
    };
    let chunk = arguments.get(5).and_then(|text| text.parse().ok());
    let all_logits = arguments.get(6).is_some_and(|text| text == "all");
    let wanted = if all_logits { Wanted::All } else { Wanted::Last };
    let gpu = std::env::var_os("ROOFLINE_GPU").is_some();
    let kernels = Some(std::env::temp_dir().join("roofline-kernels"));
    let backend = if gpu { Backend::Cuda { index: 0, kernels } } else { Backend::Cpu };
    let kv = plan.kv().unwrap_or(values);
    let start = Instant::now();
    let engine = Engine::random(model, &plan, Settings { backend, chunk, all_logits, kv, ..Settings::with(values) })?;
    println!("made in {:.1} s", start.elapsed().as_secs_f64());
    let mut session = engine.session(batch, prompt + generate + 2)?;
    let vocabulary = engine.model.vocabulary.get() as u32;
    let tokens: Vec<Vec<u32>> = (0..batch as u32)
        .map(|sequence| (0..prompt as u32).map(|at| (at * 7919 + sequence * 131) % vocabulary).collect())
        .collect();
    // The first passes take memory and plan, and are not what is asked.
    for _ in 0..2 {
        session.feed(0..batch, &tokens, wanted)?;
        session.take_ran();
        session.clear();
    }
    let start = Instant::now();
    session.feed(0..batch, &tokens, wanted)?;
    let first = start.elapsed().as_secs_f64();
    let on_device = session.device_time();
    report("prefill", &session.take_ran());
    let mut times = Vec::new();
    let mut device = Vec::new();
    for step in 0..generate as u32 {
        let next: Vec<Vec<u32>> = (0..batch as u32).map(|sequence| vec![(step * 31 + sequence) % vocabulary]).collect();
        let start = Instant::now();
        session.feed(0..batch, &next, if gpu { Wanted::Nothing } else { Wanted::Last })?;
        times.push(start.elapsed().as_secs_f64());
        device.extend(session.device_time().map(Seconds::value));
    }
    report("decode", &session.take_ran());
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    println!("weights {:.3} GB, cache {:.3} GB", engine.bytes() as f64 / 1e9, session.cache_bytes() as f64 / 1e9);
    println!("prefill {:.1} ms, {:.1} tokens/s", first * 1e3, (prompt * batch) as f64 / first);
    println!(
        "decode {:.2} ms, {:.2} tokens/s, {:.2} GB/s",
        median * 1e3,
        batch as f64 / median,
        engine.bytes() as f64 / median / 1e9
    );
    device.sort_by(f64::total_cmp);
    if let (Some(prompt), Some(step)) = (on_device, device.get(device.len() / 2)) {
        println!("by the device's clock: prefill {:.2} ms, decode {:.3} ms", prompt.value() * 1e3, step * 1e3);
        session.time_steps(true);
        session.clear();
        session.feed(0..batch, &tokens, Wanted::Nothing)?;
        report("prefill", &session.take_ran());
        session.feed(0..batch, &vec![vec![1]; batch], Wanted::Nothing)?;
        session.take_ran();
        session.feed(0..batch, &vec![vec![1]; batch], Wanted::Nothing)?;
        report("decode", &session.take_ran());
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    println!("{}", status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default());
    Ok(())
}

fn report(what: &str, ran: &[roofline_engine::Ran]) {
    let mut sites: Vec<(&str, f64)> = Vec::new();
    for one in ran {
        match sites.iter_mut().find(|(site, _)| *site == one.site) {
            Some((_, sum)) => *sum += one.time.as_secs_f64(),
            None => sites.push((one.site, one.time.as_secs_f64())),
        }
    }
    let all: Vec<String> = sites.iter().map(|(site, time)| format!("{site} {:.2} ms", time * 1e3)).collect();
    println!("{what}: {}", all.join(", "));
}
