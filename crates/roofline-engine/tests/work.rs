//! What is counted is what runs: operations and bytes of the steps that ran against those that predictions count.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::Fixture;
use roofline_core::{
    Device, Format, Machine, Model, Op, Plan, Registry,
    device::Kind,
    format::Sizes,
    machine::Stack,
    model::{Lowering, Workload},
    predict::forecast,
};
use roofline_engine::{Engine, Ran, Settings, Wanted};

fn processor() -> Machine {
    let device = Registry::builtin().devices().find(|device| device.kind == Kind::Cpu).cloned();
    let device: Device = device.expect("the registry has a processor");
    Machine::new(device, Stack::Roofline)
}

/// Operations and bytes of what ran.
fn work(ran: &[Ran]) -> (f64, f64) {
    let work = |one: &Ran| one.op.work(&one.precision, Sizes::Exact);
    (ran.iter().map(|one| work(one).flops.value()).sum(), ran.iter().map(|one| work(one).bytes().value()).sum())
}

fn check(engine: &Engine<'_>, name: &str) {
    let machine = processor();
    let mut session = engine.session(2, 24).unwrap();
    let vocabulary = engine.model.vocabulary.get() as u32;
    let tokens =
        |count: u32| (0..2).map(|row| (0..count).map(|at| (at * 7 + row) % vocabulary).collect()).collect::<Vec<_>>();
    for (new, context, wanted) in [(9, 9, Wanted::Last), (5, 14, Wanted::Last), (1, 15, Wanted::Last)] {
        session.feed(0..2, &tokens(new), wanted).unwrap();
        let ran = session.take_ran();
        let graph =
            engine.model.graph(Workload::chunk(2, u64::from(new), context).unwrap(), Lowering::default()).unwrap();
        let counted = forecast(&graph, &engine.assignment(&machine.device).unwrap(), &machine).unwrap();
        let (flops, bytes) = work(&ran);
        let ideal = counted.total.ideal.work;
        assert!((flops / ideal.flops.value() - 1.0).abs() < 1e-9, "{name}: {flops} ran, {ideal:?} counted");
        assert!((bytes / ideal.bytes().value() - 1.0).abs() < 1e-9, "{name}: {bytes} ran, {ideal:?} counted");
        // Kernel by kernel: each site as often as it is counted.
        for kernel in &counted.kernels {
            // A kernel without weights says nothing of how they are stored.
            let small = matches!(kernel.node.op, Op::Elementwise(_));
            let same = |one: &&Ran| {
                let stored = small || one.precision.weights == kernel.precision.weights;
                one.site == kernel.node.site && one.op == kernel.node.op && stored
            };
            let often = ran.iter().filter(same).count();
            assert_eq!(often as u64, kernel.node.count, "{name}: {}", kernel.node.site);
        }
    }
}

#[test]
fn what_is_counted_is_what_runs() {
    for family in
        ["gemma2", "gemma3-text", "gpt-oss-mxfp4", "llama", "llama-tied", "mixtral", "phi", "phi3", "qwen3-moe"]
    {
        let fixture = Fixture::open(family);
        let settings = Settings { threads: 1, ..Settings::with(Format::BF16) };
        let engine = Engine::load(&fixture.checkpoint, settings, &mut |_, _| Ok(())).unwrap();
        check(&engine, family);
    }
}

/// Recipes store queries and values in different ways, and some layers otherwise than others.
#[test]
fn what_is_stored_apart_runs_apart() {
    let config = r#"{"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 320}"#;
    for plan in ["q4_k_m", "q3_k_m", "w4a16,up=w8a16", "fp8,layers.0-1=bf16", "bf16"] {
        let model = Model::from_config(config, "small").unwrap();
        let settings = Settings { threads: 1, ..Settings::with(Format::BF16) };
        let engine = Engine::random(model, &plan.parse::<Plan>().unwrap(), settings).unwrap();
        check(&engine, plan);
    }
}
