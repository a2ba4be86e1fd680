//! A kernel of a comparison, as JSON and CSV have it.

use roofline_core::{
    compare::{Diagnosis, Observation, Pair, Status},
    measurement::{Path, Residency, Warning},
    units::{Bytes, Flops},
};
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct Row {
    pub(super) site: String,
    pub(super) shape: String,
    pub(super) precision: String,
    pub(super) count: u64,
    pub(super) tier: &'static str,
    pub(super) predicted_time_us: f64,
    pub(super) ideal_time_us: f64,
    pub(super) lo_us: Option<f64>,
    pub(super) hi_us: Option<f64>,
    pub(super) measured_time_us: f64,
    pub(super) p5_us: Option<f64>,
    pub(super) p95_us: Option<f64>,
    pub(super) error_pct: f64,
    pub(super) signed_pct: f64,
    pub(super) error_vs_measured_pct: f64,
    pub(super) ideal_error_pct: f64,
    pub(super) ratio: f64,
    /// Ideal over measured: the share of the roof that was reached.
    pub(super) efficiency: f64,
    pub(super) status: Status,
    pub(super) bottleneck: String,
    pub(super) flops: Flops,
    pub(super) bytes: Bytes,
    pub(super) moved: Bytes,
    pub(super) ai: f64,
    pub(super) critical_ai: f64,
    pub(super) predicted_tflops: f64,
    pub(super) measured_tflops: f64,
    pub(super) measured_bandwidth_gb_s: f64,
    pub(super) kernel: Option<String>,
    pub(super) kernel_path: Option<Path>,
    pub(super) residency: Option<Residency>,
    pub(super) warnings: Vec<Warning>,
    pub(super) diagnoses: Vec<Explained>,
}

#[derive(Serialize)]
pub(super) struct Explained {
    #[serde(flatten)]
    pub(super) diagnosis: Diagnosis,
    pub(super) text: String,
}

pub(super) fn tier(expected: bool) -> &'static str {
    if expected { "expected" } else { "ideal" }
}

pub(super) fn row(pair: &Pair) -> Row {
    let Observation { site, count, range, path, kernel, residency, warnings, .. } = &pair.observation;
    Row {
        site: site.clone(),
        shape: pair.subject(),
        precision: pair.label(),
        count: *count,
        tier: tier(pair.expected.is_some()),
        predicted_time_us: pair.predicted().micros(),
        ideal_time_us: pair.ideal.time().micros(),
        lo_us: pair.expected.map(|expected| expected.low.micros()),
        hi_us: pair.expected.map(|expected| expected.high.micros()),
        measured_time_us: pair.observation.time.micros(),
        p5_us: range.map(|(low, _)| low.micros()),
        p95_us: range.map(|(_, high)| high.micros()),
        error_pct: pair.error() * 100.0,
        signed_pct: pair.signed_error() * 100.0,
        error_vs_measured_pct: pair.error_vs_measured() * 100.0,
        ideal_error_pct: pair.ideal_error() * 100.0,
        ratio: pair.ratio(),
        efficiency: pair.efficiency(),
        status: pair.status(),
        bottleneck: pair.bound().to_string(),
        flops: pair.ideal.work.flops,
        bytes: pair.ideal.work.bytes(),
        moved: pair.moved(),
        ai: pair.ideal.intensity().value(),
        critical_ai: pair.ideal.critical.value(),
        predicted_tflops: (pair.ideal.work.flops / pair.predicted()).value() / 1e12,
        measured_tflops: pair.rate().value() / 1e12,
        measured_bandwidth_gb_s: pair.bandwidth().value() / 1e9,
        kernel: kernel.clone(),
        kernel_path: *path,
        residency: *residency,
        warnings: warnings.clone(),
        diagnoses: pair
            .diagnoses
            .iter()
            .map(|diagnosis| Explained { diagnosis: *diagnosis, text: diagnosis.sentence() })
            .collect(),
    }
}
