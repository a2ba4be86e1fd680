//! Somebody else's measurements, answered in the form in which they came.

use roofline_core::{
    Device,
    compare::{Comparison, compare},
    format::Sizes,
};
use serde::Serialize;

use super::{
    import,
    row::{Row, row},
};
use crate::failure::Failure;

/// Measurements in the form of a benchmark script, as an answer to whoever sent them.
#[derive(Serialize)]
pub(crate) struct Judged {
    hardware: String,
    results: Vec<Row>,
    summary: Summary,
}

#[derive(Serialize)]
struct Summary {
    mean_error_pct: f64,
    max_error_pct: f64,
    num_benchmarks: usize,
    verdict: String,
}

/// Compares measurements in JSON with the ideal roofline of `device`.
pub(crate) fn judged(text: &str, device: &Device) -> Result<Judged, Failure> {
    let observations = import::parse(text, device)?;
    let Comparison { pairs, totals, .. } = compare(&observations, device, None, Sizes::Exact)?;
    let tenth = |value: f64| (value * 10.0).round() / 10.0;
    let mut results: Vec<Row> = pairs.iter().map(row).collect();
    for row in &mut results {
        row.error_pct = tenth(row.error_pct);
    }
    let summary = Summary {
        mean_error_pct: tenth(totals.mean_error_pct),
        max_error_pct: tenth(totals.max_error_pct),
        num_benchmarks: totals.count,
        verdict: totals.verdict.to_string(),
    };
    Ok(Judged { hardware: device.name.clone(), results, summary })
}
