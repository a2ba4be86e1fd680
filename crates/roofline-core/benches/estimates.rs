//! How many estimates a core makes in a second, and what the codecs cost. `cargo bench -p roofline-core`.

#![expect(clippy::unwrap_used, reason = "a benchmark may panic")]

use divan::{Bencher, black_box, counter::ItemsCount};
use roofline_core::{
    Device, Dim, Format, Machine, Model, Op, Plan, Precision, Registry,
    format::{Distribution, Sizes},
    machine::{Basis, Stack},
    model::{Lowering, Workload},
    op::{Attention, Cache, Linear},
    precision::PrecisionSpec,
    predict::{Estimate, forecast},
    recommend::{Goal, Need, recommend, sensitivity},
};

fn main() {
    divan::main();
}

/// Different shapes, so that nothing is computed once and reused.
fn shapes() -> Vec<Op> {
    (0..1024u64).map(|i| Op::Linear(Linear::new(1 + i % 512, 1024 + 8 * i, 4096 + 128 * (i % 64)).unwrap())).collect()
}

fn h200(precision: &str) -> (Device, Precision) {
    let device = Registry::builtin().find("h200").unwrap().into_owned();
    let precision = precision.parse::<PrecisionSpec>().unwrap().on(&device).unwrap();
    (device, precision)
}

#[divan::bench(args = ["bf16", "fp8", "w4a16", "nf4"])]
fn ideal_gemm(bencher: Bencher<'_, '_>, precision: &str) {
    let (device, precision) = h200(precision);
    let ops = shapes();
    bencher.counter(ItemsCount::new(ops.len())).bench_local(|| {
        for op in black_box(&ops) {
            black_box(Estimate::of(op, &precision, Sizes::Exact, &device).unwrap());
        }
    });
}

/// Both times, the expected one by timings of a serving stack.
#[divan::bench(args = ["bf16", "fp8"])]
fn expected_gemm_by_timings(bencher: Bencher<'_, '_>, precision: &str) {
    let (device, precision) = h200(precision);
    let machine = Machine::new(device, Stack::Vllm);
    let ops = shapes();
    bencher.counter(ItemsCount::new(ops.len())).bench_local(|| {
        for op in black_box(&ops) {
            let (prediction, basis) = machine.prediction(op, &precision).unwrap();
            assert_eq!(basis, Basis::Calibrated);
            black_box(prediction);
        }
    });
}

#[divan::bench]
fn ideal_attention(bencher: Bencher<'_, '_>) {
    let (device, precision) = h200("bf16");
    let dim = |value| Dim::new("bench", value).unwrap();
    let ops: Vec<Op> = (1..=1024)
        .map(|context| {
            let (batch, heads, kv_heads, head_dim) = (dim(8), dim(32), dim(8), dim(128));
            let (queries, context, causal) = (dim(1), dim(context * 16), true);
            Op::Attention(Attention {
                batch,
                heads,
                kv_heads,
                head_dim,
                value_dim: head_dim,
                queries,
                context,
                causal,
                window: None,
                cache: Cache::Separate,
            })
        })
        .collect();
    bencher.counter(ItemsCount::new(ops.len())).bench_local(|| {
        for op in black_box(&ops) {
            black_box(Estimate::of(op, &precision, Sizes::Exact, &device).unwrap());
        }
    });
}

#[divan::bench(args = ["fp8-e4m3", "int4-g128", "nvfp4", "nf4"])]
fn encode(bencher: Bencher<'_, '_>, format: &str) {
    let format: Format = format.parse().unwrap();
    let weights = Distribution::Gaussian.sample();
    let columns = Dim::new("columns", 4096).unwrap();
    bencher.counter(ItemsCount::new(weights.len())).bench_local(|| format.encode(black_box(&weights), columns));
}

#[divan::bench]
fn find_device_by_key(bencher: Bencher<'_, '_>) {
    let registry = Registry::builtin();
    bencher.bench_local(|| registry.find(black_box("h200_sxm")).unwrap().into_owned());
}

#[divan::bench]
fn parse_every_device() {
    for (key, text) in roofline_core::registry::files() {
        black_box(Device::from_toml(black_box(text), key).unwrap());
    }
}

/// Whole models, from dimensions to both times; the rate must not depend on the number of layers.
fn whole(bencher: Bencher<'_, '_>, device: &str, name: &str, plan: &str) {
    whole_with(bencher, device, Stack::Roofline, name, plan);
}

fn whole_with(bencher: Bencher<'_, '_>, device: &str, stack: Stack, name: &str, plan: &str) {
    let machine = Machine::new(Registry::builtin().find(device).unwrap().into_owned(), stack);
    let model = Model::find(name).unwrap();
    let plan = plan.parse::<Plan>().unwrap().on(&machine.device, Some(&model.anatomy)).unwrap();
    let workloads: Vec<Workload> = (1..=256).map(|i| Workload::decode(1 + i % 16, 128 * i).unwrap()).collect();
    bencher.counter(ItemsCount::new(workloads.len())).bench_local(|| {
        for workload in black_box(&workloads) {
            let graph = model.graph(*workload, Lowering::default()).unwrap();
            black_box(forecast(&graph, &plan, &machine).unwrap().total);
        }
    });
}

/// By what devices of a class have in common.
#[divan::bench(args = ["tinyllama-1.1b", "llama-3-8b", "llama-3.1-405b", "gemma-3-27b", "deepseek-v3"])]
fn whole_model_by_prior(bencher: Bencher<'_, '_>, name: &str) {
    whole(bencher, "h100_sxm", name, "bf16");
}

/// By the calibration of a GPU.
#[divan::bench(args = ["tinyllama-1.1b", "llama-3-8b", "llama-3.1-405b", "gemma-3-27b", "deepseek-v3"])]
fn whole_model_by_calibration(bencher: Bencher<'_, '_>, name: &str) {
    whole(bencher, "h200", name, "bf16");
}

/// By timings of a serving stack.
#[divan::bench(args = ["tinyllama-1.1b", "llama-3-8b", "llama-3.1-405b"])]
fn whole_model_by_timings(bencher: Bencher<'_, '_>, name: &str) {
    whole_with(bencher, "h200", Stack::Vllm, name, "bf16");
}

/// A recipe that tells layers apart.
#[divan::bench(args = ["llama-3-8b", "llama-3.1-405b"])]
fn whole_model_mixed(bencher: Bencher<'_, '_>, name: &str) {
    whole(bencher, "h100_sxm", name, "q4_k_m");
}

/// All plans of a model, predicted and ranked: latency at one batch, throughput at nine.
#[divan::bench(args = [Goal::Latency, Goal::Throughput])]
fn recommendation(bencher: Bencher<'_, '_>, goal: Goal) {
    asked(goal, |need| {
        let plans = recommend(need).unwrap().outcomes.len();
        assert!(plans >= 200, "{plans}");
        bencher.counter(ItemsCount::new(plans)).bench_local(|| recommend(black_box(need)).unwrap());
    });
}

/// The same under four other circumstances.
#[divan::bench]
fn firmness(bencher: Bencher<'_, '_>) {
    asked(Goal::Latency, |need| {
        let advice = recommend(need).unwrap();
        bencher.bench_local(|| sensitivity(black_box(need), &advice).unwrap());
    });
}

fn asked(goal: Goal, ask: impl FnOnce(&Need<'_>)) {
    let machine = Machine::new(Registry::builtin().find("b200").unwrap().into_owned(), Stack::Roofline);
    let model = Model::find("llama-3-8b").unwrap();
    ask(&Need { goal, ..Need::new(&model, &machine) });
}
