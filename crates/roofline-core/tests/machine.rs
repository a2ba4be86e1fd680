//! What is expected of a machine: by its calibration, by the nearest kernel that was measured, by its class; and what no
//! expectation may claim.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::near;
use roofline_core::{
    Graph, Machine, Math, Model, Plan, Registry, Role,
    format::Sizes,
    machine::{Basis, Stack},
    model::{Lowering, Workload},
    predict::{Forecast, Prediction, Tier, predict},
};

fn machine(device: &str) -> Machine {
    Machine::new(Registry::builtin().find(device).unwrap().into_owned(), Stack::Roofline)
}

fn product(m: u64, n: u64, k: u64, plan: &str, machine: &Machine) -> Forecast {
    predict(&Graph::gemm(m, n, k).unwrap(), &plan.parse().unwrap(), machine).unwrap()
}

fn decode(model: &str, batch: u64, context: u64, plan: &str, machine: &Machine) -> Forecast {
    let graph = Model::find(model).unwrap().graph(Workload::decode(batch, context).unwrap(), Lowering::default());
    predict(&graph.unwrap(), &plan.parse().unwrap(), machine).unwrap()
}

/// Four-bit weights that wait for the multipliers gain nothing, and widening them is no gift. The
/// ratio used to be that of an expected time over an ideal one: 1.38.
#[test]
fn a_speedup_is_within_a_tier() {
    let h200 = machine("h200");
    let total = |plan: &str| product(512, 14_336, 4096, plan, &h200).total;
    let (wide, narrow) = (total("bf16"), total("w4a16"));
    assert_eq!(narrow.speedup(&wide, Tier::Ideal), 1.0);
    // Widening costs what it was measured to.
    let measured = narrow.speedup(&wide, Tier::Expected);
    assert!((0.7..1.1).contains(&measured), "{measured}");
    // What has no kernel is expected to be about as fast as its like.
    near(total("int3").speedup(&narrow, Tier::Expected), 1.0, 0.2);
    // Few rows and many are measured in both.
    assert_eq!(product(1, 4096, 4096, "w4a16", &h200).basis, Basis::Calibrated);
    assert_eq!(product(512, 4096, 4096, "w4a16", &h200).basis, Basis::Calibrated);
    assert_eq!(product(512, 4096, 4096, "int3", &h200).basis, Basis::Transferred);
}

/// A cache of FP8 has 8.125 bits where BF16 has 16: 1.97 times as fast is all there is.
#[test]
fn a_narrow_cache_gains_no_more_than_its_bytes() {
    let h200 = machine("h200");
    let attention = |plan: &str| {
        let forecast = decode("llama-3-8b", 1, 8192, plan, &h200);
        let kernel = forecast.kernels.iter().find(|kernel| kernel.node.part.role() == Role::Mix).unwrap();
        (kernel.prediction, kernel.basis)
    };
    let ((wide, _), (narrow, basis)) = (attention("bf16"), attention("bf16,kv=fp8"));
    assert_eq!(basis, Basis::Calibrated);
    let gain = narrow.speedup(&wide, Tier::Expected);
    assert!((1.0..=1.97).contains(&gain), "{gain}");
    // FP16 moves as many bytes at the same rates.
    near(attention("fp16").0.speedup(&wide, Tier::Expected), 1.0, 1e-9);
}

#[test]
fn what_is_not_measured_is_named() {
    let h200 = machine("h200");
    // Nobody measured experts of three bits; those of sixteen, and a dense model, have nothing that was not.
    assert!(decode("mixtral-8x7b", 1, 2048, "bf16", &h200).weaker().is_empty());
    let forecast = decode("mixtral-8x7b", 1, 2048, "*=bf16,experts=int3", &h200);
    assert_eq!(forecast.basis, Basis::Transferred);
    let weaker = forecast.weaker();
    assert_eq!((weaker.len(), weaker[0].basis), (1, Basis::Transferred));
    assert_eq!(weaker[0].kernels, ["experts_gate_up", "experts_down"]);
    let graph = Model::find("llama-3-8b").unwrap().graph(Workload::prefill(1, 2048).unwrap(), Lowering::default());
    let prompt = predict(&graph.unwrap(), &"bf16".parse().unwrap(), &h200).unwrap();
    assert_eq!((prompt.basis, prompt.weaker().len()), (Basis::Calibrated, 0));
    assert!(decode("llama-3-8b", 1, 2048, "bf16", &h200).weaker().is_empty());
    // Without a calibration all kernels stand on the same.
    let other = decode("llama-3-8b", 1, 2048, "bf16", &machine("h100_sxm"));
    assert_eq!((other.basis, other.weaker().len()), (Basis::Prior, 0));
}

/// An interval widens as the basis weakens.
#[test]
fn less_is_known_of_what_was_not_measured() {
    let width = |forecast: &Forecast| forecast.total.expected.high / forecast.total.expected.time;
    let h200 = machine("h200");
    let calibrated = width(&product(1, 8192, 8192, "bf16", &h200));
    let transferred = width(&product(1, 8192, 8192, "q4_k", &h200));
    let prior = width(&product(1, 8192, 8192, "bf16", &machine("h100_sxm")));
    assert!(calibrated < transferred && transferred < prior, "{calibrated} {transferred} {prior}");
}

/// Experts: the floor is that all tokens agree, the expectation that they choose evenly. Published figures of gpt-oss and
/// Qwen3 at batches above one lie between.
#[test]
fn experts_have_a_floor_and_an_expectation() {
    for device in ["h200", "h100_sxm"] {
        let machine = machine(device);
        let time = |batch| decode("qwen3-30b-a3b", batch, 1024, "bf16", &machine).total;
        let grown = |tier| time(1).speedup(&time(64), tier);
        // 8 of 128 experts for one token; all but 2 of them for 64 tokens, or still 8.
        assert!(
            grown(Tier::Ideal) < 3.0 && grown(Tier::Expected) > 4.0,
            "{device}: {} {}",
            grown(Tier::Ideal),
            grown(Tier::Expected)
        );
    }
}

/// GeForce cards add FP16 products up in FP16 at twice the rate; a plan names that unit, and the floor knows it.
#[test]
fn a_plan_names_its_unit() {
    let geforce = machine("rtx_4090");
    let ideal = |plan: &str| product(4096, 4096, 4096, plan, &geforce).total.ideal;
    assert_eq!(ideal("fp16@fp16_fp16acc").math, Math::Fp16Acc16);
    near(ideal("fp16").time() / ideal("fp16@fp16_fp16acc").time(), 2.0, 0.01);
    // llama.cpp's kernels take the fastest unit that multiplies their blocks: INT8 here.
    assert_eq!(ideal("q4_k_m").math, Math::Int8);
    assert_eq!(ideal("q4_k_m@fp16").math, Math::Fp16);
    // A unit that cannot do it is refused, and so is one that the device lacks.
    let why = |plan: &str, machine: &Machine| {
        predict(&Graph::gemv(64, 64).unwrap(), &plan.parse().unwrap(), machine).unwrap_err().to_string()
    };
    assert!(why("bf16@int8", &geforce).contains("unknown unit for this precision `int8`"));
    assert!(why("fp16@fp16_fp16acc", &machine("h100_sxm")).contains("does not have"));
}

/// Llama-3-8B in Q4_K_M: the file that llama.cpp makes has 4.92 GB.
#[test]
fn recipes_have_the_sizes_of_their_files() {
    let device = Registry::builtin().find("rtx_4090").unwrap().into_owned();
    let weights = |model: &str, plan: &str| {
        let model = Model::find(model).unwrap();
        let plan = plan.parse::<Plan>().unwrap().on(&device, Some(&model.anatomy)).unwrap();
        let decode = Workload::decode(1, 1).unwrap();
        model.footprint(decode, Lowering::default(), &plan, Sizes::Exact).unwrap().weights.value() / 1e9
    };
    // Sizes of the files of bartowski/Meta-Llama-3-8B-Instruct-GGUF and TheBloke/Llama-2-7B-GGUF, without 8 MB of tokenizer.
    for (model, plan, size) in [
        ("llama-3-8b", "q8_0", 8.54),
        ("llama-3-8b", "q6_k", 6.60),
        ("llama-3-8b", "q5_k_m", 5.73),
        ("llama-3-8b", "q5_k_s", 5.60),
        ("llama-3-8b", "q4_k_m", 4.92),
        ("llama-3-8b", "q4_k_s", 4.69),
        ("llama-2-7b", "q4_k_m", 4.08),
        ("llama-2-7b", "q4_0", 3.83),
    ] {
        near(weights(model, plan), size, 0.006);
    }
}

/// A cached element of FP8 has a 16-bit scale for each head of 128.
#[test]
fn bits_of_a_cached_element_count_its_scales() {
    let bits = |model: &str, kv: &str| Model::find(model).unwrap().bits_per_kv(kv.parse().unwrap(), Sizes::Exact);
    assert_eq!(bits("llama-3-8b", "fp8"), 8.125);
    assert_eq!(bits("llama-3-8b", "bf16"), 16.0);
    assert_eq!(bits("llama-3.2-1b", "int8"), 8.25);
    assert_eq!(bits("llama-3-8b", "q8_0"), 8.5);
}

/// Devices with and without a calibration, from a watch to a rack: the expectation is never below the floor.
#[test]
fn nothing_is_expected_to_beat_the_floor() {
    for device in Registry::builtin().devices() {
        let machine = Machine::new(device.clone(), Stack::LlamaCpp);
        let graph =
            Model::find("qwen3-30b-a3b").unwrap().graph(Workload::decode(16, 4096).unwrap(), Lowering::default());
        let Ok(forecast) = predict(&graph.unwrap(), &"q4_k_m".parse().unwrap(), &machine) else { continue };
        for kernel in &forecast.kernels {
            let Prediction { ideal, expected } = kernel.prediction;
            assert!(expected.time.seconds() >= ideal.time().seconds(), "{} {}", device.key, kernel.node.site);
            assert!(expected.low.seconds() >= ideal.time().seconds(), "{} {}", device.key, kernel.node.site);
        }
    }
}
