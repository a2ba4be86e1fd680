use std::path::Path;

use roofline_core::{Format, Model, Plan};
use roofline_engine::Settings;

use super::*;

const PASS: Pass = Pass { batch: 2, prompt: 8, generate: 9 };
const QUICK: Effort = Effort { quick: true, budget: Some(0.001), energy: true };

fn engine() -> Engine<'static> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../roofline-engine/tests/data/llama/config.json");
    let model = Model::from_config(&std::fs::read_to_string(path).unwrap(), "llama").unwrap();
    Engine::random(model, &Plan::sixteen(), Settings::with(Format::BF16)).unwrap()
}

/// A processor has one clock, and times every step of every pass; nobody says what it draws.
#[test]
fn a_processor_is_timed_by_the_caller() {
    let timed = timed(&engine(), PASS, QUICK, &Executor::cpu()).unwrap();
    assert_eq!((timed.clock, timed.apart.is_none(), timed.memory), (PassClock::Host, true, None));
    assert_eq!((timed.host(Phase::Prefill), timed.power), (None, Power::default()));
    assert!(timed.steps.iter().all(|step| step.time == step.host && !step.ran.is_empty()));
}

/// As on a GPU: the time of a pass is that of whole passes, the times of operators are of passes of their own.
#[test]
fn operators_of_their_own_passes_are_not_the_time_of_a_pass() {
    let engine = engine();
    let mut timed = timed(&engine, PASS, QUICK, &Executor::cpu()).unwrap();
    let mut session = engine.session(PASS.batch, PASS.prompt + PASS.generate).unwrap();
    let tokens = Tokens { vocabulary: engine.model.vocabulary.get(), state: 1 };
    let mut runner = Runner { session: &mut session, tokens, pass: PASS, watch: Watch::start(None) };
    runner.apart(&mut timed).unwrap();
    timed.clock = PassClock::Device;
    for sample in timed.prompts.iter_mut().chain(&mut timed.steps) {
        sample.ran.clear();
    }
    let first = timed.first();
    let apart = timed.apart.as_mut().unwrap();
    assert_eq!((apart.prompts.len(), apart.steps.len()), (1, APART));
    apart.prompts[0].time = first * 10.0;
    assert_eq!(timed.first(), first);
    assert_eq!(timed.host(Phase::Prefill), Some(first));
    for phase in [Phase::Prefill, Phase::Decode] {
        let operators = timed.operators(phase, None, Tier::Ideal);
        assert!(operators.iter().any(|operator| operator.site == "attention" && operator.count == 3), "{operators:?}");
    }
    let decode = |one: &&Observation| one.phase == Some(Phase::Decode);
    assert!(timed.observations("bf16").iter().filter(decode).all(|one| one.samples == APART));
}
