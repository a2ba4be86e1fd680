//! Somebody else's measurements, answered in the form in which they came.

use roofline_core::{
    Machine,
    compare::{Comparison, Grade, SlowKernel, compare},
    predict::Tier,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    import,
    kernel::{ComparedKernel, kernels},
};
use crate::Result;

/// Measurements in the form of a benchmark script, as an answer to whoever sent them.
#[derive(Serialize, JsonSchema)]
pub struct Judged {
    hardware: String,
    results: Vec<ComparedKernel>,
    summary: JudgedSummary,
    /// The verdict in a sentence with its reasons.
    verdict: String,
    /// What to take home, where there is something.
    insight: Option<String>,
    slow_kernels: Vec<SlowKernel>,
}

/// The errors in short.
#[derive(Serialize, JsonSchema)]
pub struct JudgedSummary {
    mean_error_pct: f64,
    max_error_pct: f64,
    num_benchmarks: usize,
    verdict: String,
    /// How good the prediction was, by the ladder of the verdict.
    grade: Grade,
}

/// Compares measurements in JSON with a tier of `machine`.
pub fn judged(text: &str, machine: &Machine, tier: Tier) -> Result<Judged> {
    let observations = import::parse(text, &machine.device)?;
    let Comparison { pairs, totals, verdict, insight, slow: slow_kernels, .. } = compare(&observations, machine, tier)?;
    let tenth = |value: f64| (value * 10.0).round() / 10.0;
    let mut results = kernels(&pairs, machine);
    for row in &mut results {
        row.error_pct = tenth(row.error_pct);
    }
    let summary = JudgedSummary {
        mean_error_pct: tenth(totals.mean_error_pct),
        max_error_pct: tenth(totals.max_error_pct),
        num_benchmarks: totals.count,
        verdict: totals.verdict.to_string(),
        grade: Grade::of(totals.judged_error_pct / 100.0),
    };
    Ok(Judged { hardware: machine.device.name.clone(), results, summary, verdict, insight, slow_kernels })
}
