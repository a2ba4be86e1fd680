use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use roofline_core::machine::Stack;
use serde_json::json;

use super::*;
use crate::{
    Watcher,
    context::Home,
    measure::{Asked, Request},
    request::{answers_fit, from_json},
};

/// A Llama of three layers, 60 features and 131 tokens.
fn llama() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../roofline-engine/tests/data/llama")
}

/// Somebody who has enough after so many questions.
struct Patience(AtomicUsize);

impl Watcher for Patience {
    fn cancelled(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err()
    }
}

fn context(patience: usize) -> Context {
    Context::local(Arc::new(Home::none()), Arc::new(Patience(AtomicUsize::new(patience))))
}

fn request(fields: &serde_json::Value) -> Request {
    let mut body = json!({ "subject": "model", "model": llama(), "quick": true, "backend": "cpu" });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    from_json(body).unwrap()
}

fn asked(request: &Request) -> &ModelPass {
    match request.subject.as_ref().unwrap().asked() {
        Asked::Model(asked) => asked,
        _ => unreachable!(),
    }
}

/// On the terms of a processor of the registry: what is measured is this one.
fn machine(context: &Context) -> Machine {
    Machine::new(context.device("xeon_8480p").unwrap(), Stack::Roofline)
}

fn ran(patience: usize, fields: &serde_json::Value) -> Result<Outcome> {
    let (context, request) = (context(patience), request(fields));
    assert!(request.passes.wanted(&context, Some(asked(&request)), &request.run)?);
    run(&context, &request.passes, asked(&request), &request.run, &Executor::cpu(), &machine(&context))
}

#[test]
fn every_batch_meets_every_prompt() {
    let told = ran(usize::MAX, &json!({ "batches": [1, 3], "prompt": "8,40", "generate": 5, "chunk": 16 })).unwrap();
    let shapes: Vec<(u64, u64)> = told.passes.iter().map(|pass| (pass.batch, pass.prompt)).collect();
    assert_eq!(shapes, [(1, 8), (1, 40), (3, 8), (3, 40)]);
    for pass in &told.passes {
        assert_eq!((pass.generated, pass.precision.as_str()), (5, "bf16"));
        // One time, said in two ways: neither may call a model faster that the other calls slower.
        let product = pass.tokens_per_s.unwrap() * pass.tpot_us.unwrap() / 1e6;
        assert!((product - pass.batch as f64).abs() < 1e-9, "{product}");
        assert!(pass.ttft_us > 0.0 && pass.tpot_us.unwrap() > 0.0 && pass.tpot_p95_us >= pass.tpot_us);
        // Three layers, keys and values of one head with 20 features, 2 bytes each.
        assert!(pass.cache_bytes.value() >= (pass.batch * (pass.prompt + 5) * 240) as f64, "{pass:?}");
        let of = |phase: Phase| -> Vec<&MeasuredOperator> {
            pass.operators.iter().filter(|operator| operator.phase == phase).collect()
        };
        // Each of three layers has one attention in a step; a prompt that comes in chunks has one for each.
        let chunks = pass.prompt.div_ceil((16 / pass.batch).max(1));
        let count = |phase| of(phase).iter().find(|operator| operator.site == "attention").unwrap().count;
        assert_eq!((count(Phase::Decode), count(Phase::Prefill)), (3, 3 * chunks), "{shapes:?}");
    }
    // What the operators took is what the pass took, but for the clock and the copies between. They are timed one after the
    // other, and what else runs on the machine may get in the way of either: not of all four.
    let part = |pass: &super::MeasuredPass| {
        let own = pass.operators.iter().filter(|operator| operator.phase == Phase::Prefill);
        own.map(|operator| operator.measured_time_us).sum::<f64>() / pass.ttft_us
    };
    let parts: Vec<f64> = told.passes.iter().map(part).collect();
    assert!(parts.iter().any(|part| (0.2..1.5).contains(part)), "{parts:?}");
    // Kinds of kernels that a comparison can tell apart, the shape in their name since there are several.
    assert!(told.observations.iter().any(|one| one.precision == "bf16, batch 3, prompt 40"));
}

/// The steps that ran are those that are predicted: the same sites, as often, with the same work.
#[test]
fn what_ran_is_what_is_predicted() {
    let threads = crate::this_machine::machine().threads;
    let told = ran(usize::MAX, &json!({ "prompt": 24, "generate": 3, "threads": threads })).unwrap();
    let pass = &told.passes[0];
    assert!(pass.operators.iter().all(|operator| operator.predicted_time_us.is_some()), "{:?}", pass.operators);
    let sum = |phase: Phase, of: fn(&MeasuredOperator) -> Option<f64>| -> f64 {
        pass.operators.iter().filter(|one| one.phase == phase).filter_map(of).sum()
    };
    let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a} is not {b}");
    close(sum(Phase::Prefill, |one| one.predicted_time_us), pass.predicted_ttft_us.unwrap());
    close(sum(Phase::Decode, |one| one.ideal_time_us), pass.ideal_tpot_us.unwrap());
    let error = (pass.ttft_us / pass.predicted_ttft_us.unwrap() - 1.0).abs() * 100.0;
    close(pass.ttft_error_pct.unwrap(), error);
    // Theory is of all threads.
    let told = ran(usize::MAX, &json!({ "prompt": 8, "generate": 1, "threads": threads + 1 })).unwrap();
    assert!(told.passes[0].predicted_ttft_us.is_none() && told.passes[0].basis.is_none());
}

/// Passes that are finished are kept; so are the tokens of one that is not, once there was a prompt.
#[test]
fn whoever_has_enough_keeps_what_is_finished() {
    let fields = json!({ "batches": [1, 2, 4], "prompt": 8, "generate": 4 });
    let whole = ran(usize::MAX, &fields).unwrap();
    assert!(!whole.stopped && whole.passes.len() == 3);
    let (mut none, mut some) = (0, 0);
    for patience in (0..600).step_by(23) {
        match ran(patience, &fields) {
            Err(Error::Cancelled) => none += 1,
            Ok(told) if told.stopped => {
                assert!((1..=3).contains(&told.passes.len()));
                some += 1;
            }
            Ok(told) => assert_eq!(told.passes.len(), 3),
            Err(error) => panic!("{error}"),
        }
    }
    assert!(none > 0 && some > 3, "{none} {some}");
}

#[test]
fn finished_passes_are_lines_of_a_file() {
    let path = std::env::temp_dir().join(format!("roofline-passes-{}.jsonl", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let fields = json!({ "prompt": "8,16", "generate": 2, "out": path });
    ran(usize::MAX, &fields).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().map(|line| line["prompt"].as_u64().unwrap()).collect::<Vec<_>>(), [8, 16]);
    assert!(matches!(ran(usize::MAX, &fields), Err(Error::Taken { .. })));
    std::fs::remove_file(path).unwrap();
}

/// A name of the registry and a configuration are kernels, as they were; weights are passes; the rest is refused by name.
#[test]
fn weights_run_and_names_are_measured_by_kernel() {
    let context = context(usize::MAX);
    let wanted = |fields: serde_json::Value| {
        let request = request(&fields);
        request.passes.wanted(&context, Some(asked(&request)), &request.run).map_err(|error| error.to_string())
    };
    assert_eq!(wanted(json!({})), Ok(true));
    assert_eq!(wanted(json!({ "model": llama().join("model.safetensors") })), Ok(true));
    assert_eq!(wanted(json!({ "model": llama().join("config.json") })), Ok(false));
    assert_eq!(wanted(json!({ "model": "llama-3.2-1b" })), Ok(false));
    assert_eq!(wanted(json!({ "model": "llama-3.2-1b", "random": true })), Ok(true));
    assert_eq!(wanted(json!({ "backend": "cuda" })), Ok(true));
    assert_eq!(wanted(json!({ "backend": "null" })), Ok(false));
    assert!(wanted(json!({ "model": "llama-3.2-1b", "prompt": 8 })).unwrap_err().starts_with("⟨prompt⟩ is of models"));
    assert!(wanted(json!({ "backend": "null", "threads": 2 })).unwrap_err().starts_with("⟨threads⟩ is of models"));
    for (fields, said) in [
        (json!({ "phase": "decode" }), "⟨phase⟩ is of single kernels, and this is a whole model"),
        (json!({ "context": 100 }), "⟨context⟩ is of single kernels, and this is a whole model"),
        (json!({ "precision": "w4a16" }), "a checkpoint runs in the formats that it is stored in"),
        (json!({ "on": "h200" }), "the processor of this machine cannot run as `h200`"),
        (json!({ "prompt": 120 }), "152 tokens do not fit the 128 that llama was made for"),
        (json!({ "beside": "/nonexistent" }), "there are no weights in /nonexistent"),
    ] {
        let error = ran(usize::MAX, &fields).err().unwrap();
        assert!(error.is_input() && error.hint().is_some(), "{error:?}");
        assert_eq!(error.to_string(), said);
    }
}

#[test]
fn two_checkpoints_stand_side_by_side() {
    let other = llama().with_file_name("qwen2");
    let told = ran(usize::MAX, &json!({ "beside": [other], "prompt": 8, "generate": 2 })).unwrap();
    let names: Vec<&str> = told.passes.iter().map(|pass| pass.model.as_str()).collect();
    assert_eq!(names, ["llama", "qwen2"]);
    for pass in &told.passes {
        answers_fit(pass);
    }
}

/// What fails takes nothing from what was finished before it; where nothing was, it is the answer.
#[test]
fn what_is_finished_outlives_what_fails() {
    let folder = std::env::temp_dir().join(format!("roofline-cut-short-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for file in std::fs::read_dir(llama()).unwrap().map(|file| file.unwrap().path()) {
        std::fs::copy(&file, folder.join(file.file_name().unwrap())).unwrap();
    }
    let weights = folder.join("model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &whole[..whole.len() / 2]).unwrap();
    let told = ran(usize::MAX, &json!({ "beside": [folder], "prompt": "8,16", "generate": 2 })).unwrap();
    let broken = told.broken.unwrap();
    assert_eq!((told.passes.len(), told.stopped), (2, false));
    assert_eq!(broken.during, folder.display().to_string());
    assert!(broken.message.contains("model.safetensors") && broken.is_input, "{broken:?}");
    let error = ran(usize::MAX, &json!({ "model": folder, "beside": [llama()], "prompt": 8 })).err().unwrap();
    assert_eq!(error.to_string(), broken.message);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Weights that are made up have the plan's formats: eight bits take about half of sixteen.
#[test]
fn made_up_weights_are_stored_by_the_plan() {
    let config = llama().join("config.json");
    let fields = json!({ "model": config, "random": true, "precision": "bf16,w8a16", "prompt": 8, "generate": 2 });
    let told = ran(usize::MAX, &fields).unwrap();
    let [wide, narrow] = &told.passes[..] else { panic!("{:?}", told.words) };
    assert_eq!((wide.precision.as_str(), narrow.precision.as_str()), ("bf16", "w8a16"));
    assert!(wide.checkpoint.is_none() && narrow.weights_bytes < wide.weights_bytes);
    // So has the cache: one byte and a scale for 20 features instead of two bytes for each.
    let fields = json!({ "model": config, "random": true, "precision": "bf16,kv=fp8", "prompt": 8, "generate": 2 });
    let told = ran(usize::MAX, &fields).unwrap();
    assert_eq!(told.passes[0].kv, "fp8-e4m3");
    assert!(told.passes[0].cache_bytes < wide.cache_bytes);
}

/// A comparison has both passes whole: their kernels are told apart, and counted as often as they run.
#[test]
fn the_steps_of_a_pass_can_be_compared() {
    let told = ran(usize::MAX, &json!({ "prompt": 24, "generate": 3, "chunk": 16 })).unwrap();
    let comparison =
        roofline_core::compare::compare(&told.observations, &machine(&context(0)), Tier::Expected).unwrap();
    let [prefill, decode] = &comparison.passes[..] else { panic!("{:?}", comparison.passes) };
    assert_eq!((prefill.phase, decode.phase), (Some(Phase::Prefill), Some(Phase::Decode)));
    // Two chunks: every kernel of a step twice.
    assert_eq!(prefill.kernels, 2 * decode.kernels);
    let steps: u64 = told.passes[0].operators.iter().map(|operator| operator.count).sum();
    assert_eq!(prefill.kernels + decode.kernels, steps);
}
