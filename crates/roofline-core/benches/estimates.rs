//! How many estimates a core makes in a second, and what the codecs cost. `cargo bench -p roofline-core`.

#![expect(clippy::unwrap_used, reason = "a benchmark may panic")]

use divan::{Bencher, black_box, counter::ItemsCount};
use roofline_core::{
    Device, Dim, Format, Model, Op, Plan, Precision, Registry,
    format::{Distribution, Sizes},
    model::{Lowering, Workload},
    op::{Attention, Cache, Linear},
    precision::PrecisionSpec,
    predict::{Estimate, predict},
    recommend::{Demand, Goal, Limits, Need, recommend, sensitivity},
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

/// Whole models, from dimensions to the total time; the rate must not depend on the number of layers.
#[divan::bench(args = ["tinyllama-1.1b", "llama-3-8b", "llama-3.1-405b", "gemma-3-27b", "deepseek-v3"])]
fn whole_model(bencher: Bencher<'_, '_>, name: &str) {
    let device = Registry::builtin().find("h200").unwrap().into_owned();
    let plan = Plan::model(&"bf16".parse::<PrecisionSpec>().unwrap(), &device).unwrap();
    let model = Model::find(name).unwrap();
    let workloads: Vec<Workload> = (1..=256).map(|i| Workload::decode(1 + i % 16, 128 * i).unwrap()).collect();
    bencher.counter(ItemsCount::new(workloads.len())).bench_local(|| {
        for workload in black_box(&workloads) {
            let graph = model.graph(*workload, Lowering::default()).unwrap();
            black_box(predict(&graph, &plan, Sizes::Exact, &device).unwrap().total);
        }
    });
}

/// All plans of a model, predicted and ranked: latency at one batch, throughput at nine.
#[divan::bench(args = [Goal::Latency, Goal::Throughput])]
fn recommendation(bencher: Bencher<'_, '_>, goal: Goal) {
    let device = Registry::builtin().find("b200").unwrap().into_owned();
    let (model, limits, demand) =
        (Model::find("llama-3-8b").unwrap(), Limits::default(), Demand::Decode { context: 4096 });
    let (model, limits) = (&model, &limits);
    let need =
        Need { model, device: &device, calibration: None, batch: None, demand, goal, dollars_per_hour: None, limits };
    let plans = recommend(&need).unwrap().outcomes.len();
    assert!(plans >= 200, "{plans}");
    bencher.counter(ItemsCount::new(plans)).bench_local(|| recommend(black_box(&need)).unwrap());
}

/// The same under four other circumstances.
#[divan::bench]
fn firmness(bencher: Bencher<'_, '_>) {
    let device = Registry::builtin().find("b200").unwrap().into_owned();
    let (model, limits, demand) =
        (Model::find("llama-3-8b").unwrap(), Limits::default(), Demand::Decode { context: 4096 });
    let (model, limits, goal) = (&model, &limits, Goal::Latency);
    let need =
        Need { model, device: &device, calibration: None, batch: None, demand, goal, dollars_per_hour: None, limits };
    let advice = recommend(&need).unwrap();
    bencher.bench_local(|| sensitivity(black_box(&need), &advice).unwrap());
}
