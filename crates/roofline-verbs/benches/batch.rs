//! Rows of a batch: `cargo bench --package roofline-verbs --no-default-features --bench batch`. Held to one core
//! (`taskset --cpu-list 0`), it is the rate of a core.

#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark")]

use divan::{Bencher, counter::ItemsCount};
use roofline_verbs::{
    Context,
    batch::{Column, Names, Request, batch},
};

fn main() {
    divan::main();
}

const ROWS: usize = 100_000;

/// Every row has a workload of its own.
fn asked(on: &str, precision: &str) -> Request {
    Request {
        model: Names::one(Some("llama-3-8b".into())),
        on: Names::one(Some(on.to_owned())),
        precision: Names::one(Some(precision.to_owned())),
        batch: Column::Rows((0..ROWS).map(|row| 1.0 + (row % 64) as f64).collect()),
        context: Column::Rows((0..ROWS).map(|row| 1.0 + row as f64).collect()),
        phase: Names::one(None),
        tier: Names::one(None),
    }
}

fn rate(bencher: Bencher<'_, '_>, request: &Request) {
    let context = Context::pure();
    bencher.counter(ItemsCount::new(ROWS)).bench_local(|| batch(&context, request).unwrap());
}

/// Both tiers, by what devices of a class have in common.
#[divan::bench(args = ["bf16", "w4a16", "q4_k_m"])]
fn by_prior(bencher: Bencher<'_, '_>, precision: &str) {
    rate(bencher, &asked("h100_sxm", precision));
}

/// By the calibration of a GPU.
#[divan::bench(args = ["bf16", "w4a16"])]
fn by_calibration(bencher: Bencher<'_, '_>, precision: &str) {
    rate(bencher, &asked("h200", precision));
}

/// Prompts: no two rows have as many tokens, so that nothing that is known of one kernel serves another.
#[divan::bench(args = ["h100_sxm", "h200"])]
fn prompts(bencher: Bencher<'_, '_>, on: &str) {
    let phase = Names::one(Some("prefill".to_owned()));
    rate(bencher, &Request { phase, batch: Column::One(1.0), ..asked(on, "bf16") });
}

/// Experts, and layers that see different parts of the context.
#[divan::bench(args = ["mixtral-8x7b", "gemma-2-9b", "deepseek-v3"])]
fn by_model(bencher: Bencher<'_, '_>, model: &str) {
    rate(bencher, &Request { model: Names::one(Some(model.into())), ..asked("h100_sxm", "bf16") });
}

/// Names in columns, and each workload on three devices.
#[divan::bench]
fn by_names(bencher: Bencher<'_, '_>) {
    let row = |row: usize| (row % 3) as u32;
    let devices = ["h100_sxm", "a100", "rtx_4090"].map(|name| Some(name.to_owned())).to_vec();
    let on = Names { distinct: devices, rows: Column::Rows((0..ROWS).map(row).collect()) };
    let context = Column::Rows((0..ROWS).map(|row| 1.0 + (row / 3) as f64).collect());
    rate(bencher, &Request { on, batch: Column::One(8.0), context, ..asked("", "bf16") });
}
