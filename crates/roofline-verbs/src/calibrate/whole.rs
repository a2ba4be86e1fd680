//! What lies between the kernels of a pass, from models that ran whole.

use std::{fs, path::PathBuf};

use roofline_core::{
    Device, Machine, Plan,
    calibration::{Beside, Calibration, Gap, Pass},
    machine::{Basis, Stack},
    model::{Lowering, Workload},
    plan::Kernel,
    predict::forecast,
    units::{Bytes, Seconds},
};
use serde::Deserialize;

use super::{Request, keep};
use crate::{
    Context, Error, Result, gpu,
    machine::calibration,
    request::{BackendName, ModelName},
    runner::now,
};

/// What `measure model` answers, as far as it is needed here.
#[derive(Deserialize)]
struct Told {
    device: Option<String>,
    backend: Option<String>,
    passes: Vec<Ran>,
}

/// A pass of it; also a line of the file that `--out` names.
#[derive(Deserialize)]
struct Ran {
    model: String,
    precision: String,
    kv: Option<String>,
    batch: u64,
    prompt: u64,
    generated: u64,
    ttft_us: Option<f64>,
    tpot_us: Option<f64>,
}

/// Which part of a pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Prompt,
    Step,
}

/// Finds the gap that explains what passes took beside their kernels, and keeps it with the calibration in use.
pub(super) fn fit(context: &Context, asked: &Request, files: &[PathBuf]) -> Result<(Calibration, Device)> {
    context.home().can_keep("calibrations")?;
    let told = files.iter().map(read).collect::<Result<Vec<_>>>()?;
    let device = device(context, asked, &told)?;
    let stack = Stack::Roofline;
    let own = calibration(context, &device, stack).filter(|own| own.has_gaps()).ok_or_else(|| {
        let message = format!("there are no calibrated kernels of {} ({}) to add up", device.name, device.key);
        Error::request(message, "`⟨roofline calibrate --backend cuda⟩` first, on that GPU")
    })?;
    let own = Calibration { gap: None, ..own.into_owned() };
    let machine = Machine::new(device.clone(), stack).calibrated(Some(std::borrow::Cow::Owned(own.clone())));
    let (mut passes, mut left_out) = (Vec::new(), 0);
    for ran in told.iter().flat_map(|told| &told.passes) {
        match pass(context, &machine, ran, Part::Step)? {
            Some(pass) => passes.push(pass),
            None => left_out += 1,
        }
    }
    if left_out > 0 {
        context.note(format!("{left_out} passes left out: no token followed, or some kernels were never measured"));
    }
    let mut models: Vec<&str> = passes.iter().map(|pass| pass.model.as_str()).collect();
    models.dedup();
    let provenance = format!("{}, decode steps of {}", now(), models.join(", "));
    let mut gap = Gap::of(&passes, &device.key, provenance)?;
    // Prompts are looked at with the gaps in place.
    let spaced = Calibration { gap: Some(gap.clone()), ..own.clone() };
    let machine = Machine::new(device.clone(), stack).calibrated(Some(std::borrow::Cow::Owned(spaced)));
    let mut prompts = Vec::new();
    for ran in told.iter().flat_map(|told| &told.passes) {
        prompts.extend(pass(context, &machine, ran, Part::Prompt)?.filter(|pass| pass.beside > Bytes::ZERO));
    }
    gap.prompts = Beside::of(&prompts);
    let calibration = Calibration { gap: Some(gap), ..own };
    let path = keep(context, &calibration, &device)?;
    context.note(format!("kept in {}; `⟨roofline predict model⟩` uses it", path.display()));
    Ok((calibration, device))
}

/// One answer, or lines of passes.
fn read(path: &PathBuf) -> Result<Told> {
    let text = fs::read_to_string(path).map_err(Error::file(path))?;
    if let Ok(told) = serde_json::from_str::<Told>(&text) {
        return Ok(told);
    }
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let passes = lines.map(serde_json::from_str::<Ran>).collect::<std::result::Result<Vec<_>, _>>();
    let passes = passes.map_err(|error| {
        let hint = "`⟨roofline measure model llama-3-8b --random --backend cuda --json⟩` writes such a file";
        Error::request(format!("{}: no passes of whole models ({error})", path.display()), hint)
    })?;
    Ok(Told { device: None, backend: None, passes })
}

/// The device that was named, that the files name, or that is here. Passes of processors have no gaps.
fn device(context: &Context, asked: &Request, told: &[Told]) -> Result<Device> {
    if let Some(other) = told.iter().filter_map(|told| told.backend.as_deref()).find(|name| *name != "cuda") {
        let message = format!("the passes ran on the {other} backend, where no graph starts kernels");
        return Err(Error::request(message, "passes of ⟨backend cuda⟩ say what lies between kernels"));
    }
    let mut named = told.iter().filter_map(|told| told.device.as_deref());
    let first = named.next();
    if let Some(other) = named.find(|name| Some(*name) != first) {
        let message = format!("passes of `{}` and of `{other}`", first.unwrap_or_default());
        return Err(Error::request(message, "passes of one device at a time"));
    }
    match asked.on.as_deref().or(first) {
        Some(on) => context.device(on),
        None if asked.run.backend() == BackendName::Cuda => gpu::device(context, asked.run.gpu),
        None => Err(Error::request("the passes do not say on which device they ran", "name it by ⟨on h200⟩")),
    }
}

/// The kernels of a pass, added up; none where that says nothing of what lies between them.
fn pass(context: &Context, machine: &Machine, ran: &Ran, part: Part) -> Result<Option<Pass>> {
    let took = match part {
        Part::Prompt => ran.ttft_us,
        Part::Step => ran.tpot_us.filter(|_| ran.generated > 0),
    };
    let Some(took) = took else { return Ok(None) };
    let model = context.model(&ModelName::from(ran.model.as_str()))?;
    let plan: Plan = ran.precision.parse()?;
    let plan = match &ran.kv {
        Some(kv) => plan.with_kv(kv.parse()?),
        None => plan,
    };
    let assignment = plan.on(&machine.device, Some(&model.anatomy))?;
    let workload = match part {
        Part::Prompt => Workload::prefill(ran.batch, ran.prompt)?,
        // The step in the middle is the median one.
        Part::Step => Workload::decode(ran.batch, ran.prompt.saturating_add(ran.generated.div_ceil(2)))?,
    };
    let graph = model.graph(workload, Lowering::default())?;
    let told = forecast(&graph, &assignment, machine)?;
    if !matches!(told.basis, Basis::Calibrated | Basis::Transferred) {
        return Ok(None);
    }
    let mut moved = Bytes::ZERO;
    if let Some(own) = machine.calibration() {
        assignment.kernels(&graph, |Kernel { node, precision }| {
            moved += own.moved_beside(&node.op, precision) * node.count as f64;
        });
    }
    Ok(Some(Pass {
        model: model.name,
        kernels: graph.nodes.iter().map(|node| node.count).sum(),
        beside: moved,
        sum: told.total.expected.time.seconds(),
        measured: Seconds::new(took * 1e-6),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        let machine = Machine::new(Context::pure().device("h200").unwrap(), Stack::Roofline);
        // What ships has a gap already.
        let own = Calibration { gap: None, ..machine.calibration().unwrap().clone() };
        machine.calibrated(Some(std::borrow::Cow::Owned(own)))
    }

    fn ran(model: &str, precision: &str, batch: u64, tpot_us: f64) -> Ran {
        let (model, precision, kv) = (model.to_owned(), precision.to_owned(), Some("bf16".to_owned()));
        let ttft_us = Some(20.0 * tpot_us);
        Ran { model, precision, kv, batch, prompt: 512, generated: 32, ttft_us, tpot_us: Some(tpot_us) }
    }

    /// Names as answers have them, plans as labels say them.
    #[test]
    fn passes_are_added_up() {
        let machine = machine();
        let sum = |model: &str, precision: &str| {
            pass(&Context::pure(), &machine, &ran(model, precision, 1, 5000.0), Part::Step).unwrap().unwrap()
        };
        let (wide, narrow) = (sum("Llama 3 8B", "bf16"), sum("Llama 3 8B", "w4a16"));
        // Five kernels in each of 32 layers, the lookup and the head.
        assert_eq!((wide.kernels, narrow.kernels), (162, 162));
        assert!(wide.sum / narrow.sum > 2.0 && wide.sum > Seconds::new(3e-3), "{} {}", wide.sum, narrow.sum);
        for model in ["Llama 2 7B", "Llama 2 13B", "Qwen2.5 1.5B", "llama-2-7b"] {
            for precision in ["bf16", "fp8", "w8a16", "w4a16"] {
                assert!(sum(model, precision).kernels > 100, "{model} {precision}");
            }
        }
        let silent = Ran { tpot_us: None, ..ran("llama-3-8b", "bf16", 1, 1.0) };
        assert!(pass(&Context::pure(), &machine, &silent, Part::Step).unwrap().is_none());
        for odd in
            [ran("no-such-model", "bf16", 1, 1.0), ran("llama-3-8b", "w99", 1, 1.0), ran("llama-3-8b", "bf16", 0, 1.0)]
        {
            assert!(pass(&Context::pure(), &machine, &odd, Part::Step).is_err());
        }
    }

    /// A gap that is in the times is found, and a forecast with it is what was measured.
    #[test]
    fn a_gap_is_found_and_used() {
        let machine = machine();
        let context = Context::pure();
        let truth = 1.4e-6;
        let made = |model: &str, precision: &str, batch: u64| {
            let sum = pass(&context, &machine, &ran(model, precision, batch, 1.0), Part::Step).unwrap().unwrap();
            Pass { measured: sum.sum + Seconds::new(truth * sum.kernels as f64), ..sum }
        };
        let passes: Vec<Pass> = ["llama-2-7b", "qwen2.5-1.5b", "llama-3-8b"]
            .iter()
            .flat_map(|model| [made(model, "bf16", 1), made(model, "w4a16", 8), made(model, "w8a16", 1)])
            .collect();
        let gap = Gap::of(&passes, "h200", "a test".to_owned()).unwrap();
        assert!((gap.kernel.value() - truth).abs() < 1e-12 && gap.mean < 1e-9 && gap.models == 3, "{gap:?}");
        assert!(gap.without_mean > 0.02, "{gap:?}");
        let own = Calibration { gap: Some(gap), ..machine.calibration().unwrap().clone() };
        let with = machine.clone().calibrated(Some(std::borrow::Cow::Owned(own)));
        let told = pass(&context, &with, &ran("llama-2-7b", "bf16", 1, 1.0), Part::Step).unwrap().unwrap();
        assert!((told.sum / passes[0].measured - 1.0).abs() < 1e-9, "{} {}", told.sum, passes[0].measured);
        // A kernel that stands alone has no neighbours.
        let op = roofline_core::Graph::gemv(4096, 4096).unwrap().nodes[0].op;
        let bf16 = "bf16".parse::<roofline_core::precision::PrecisionSpec>().unwrap().on(&machine.device).unwrap();
        assert_eq!(with.prediction(&op, &bf16).unwrap(), machine.prediction(&op, &bf16).unwrap());
    }

    #[test]
    fn files_are_answers_or_lines_of_passes() {
        let path = std::env::temp_dir().join(format!("roofline-whole-{}", std::process::id()));
        let write = |text: &str| {
            fs::write(&path, text).unwrap();
            path.clone()
        };
        let line = r#"{"model":"Llama 3 8B","precision":"bf16","kv":"bf16","batch":1,"prompt":512,"generated":32,"tpot_us":4100.5,"else":1}"#;
        assert_eq!(read(&write(&format!("{line}\n\n{line}\n"))).unwrap().passes.len(), 2);
        let answer = format!(r#"{{"device":"h200_sxm","backend":"cuda","passes":[{line}]}}"#);
        let told = read(&write(&answer)).unwrap();
        assert_eq!((told.device.as_deref(), told.passes.len()), (Some("h200_sxm"), 1));
        for hostile in
            ["[]", "nonsense", "{\"passes\":1}", &line.replace("512", "-1"), &line.replace("4100.5", "\"x\"")]
        {
            assert!(read(&write(hostile)).is_err(), "{hostile}");
        }
        fs::remove_file(&path).unwrap();
        assert!(read(&path).is_err());
    }
}
