//! The highest rates that a saturating run reached.

use roofline_core::{Device, Op, measurement::Measurement};
use roofline_run::Ceiling;
use schemars::JsonSchema;
use serde::Serialize;

/// The best of what was tried.
#[derive(Serialize, JsonSchema)]
pub struct Saturation {
    pub product: Option<BestRate>,
    pub per_precision: Vec<BestRate>,
    pub stream: Option<BestRate>,
    /// What memory does when nothing is computed; empty where `devices this` has it.
    pub ceilings: Vec<Ceiling>,
}

/// A rate, and what reached it.
#[derive(Clone, Serialize, JsonSchema)]
pub struct BestRate {
    pub shape: String,
    pub precision: String,
    pub tflops: f64,
    pub bandwidth_gb_s: f64,
    /// Of the device's peak, or of its bandwidth.
    pub share: Option<f64>,
}

impl Saturation {
    /// The best of `all` that `device` did.
    pub(crate) fn of(all: &[Measurement], device: &Device, ceilings: Vec<Ceiling>) -> Self {
        let stream = |measured: &&Measurement| matches!(measured.op, Op::Linear(linear) if linear.m.get() == 1);
        let best = |measured: &Measurement, share: Option<f64>| BestRate {
            shape: measured.op.words(&measured.site),
            precision: measured.precision.clone(),
            tflops: measured.rate().value() / 1e12,
            bandwidth_gb_s: measured.bandwidth().value() / 1e9,
            share,
        };
        let product = |measured: &Measurement| {
            let peak = device.peaks.of(measured.formats.math);
            best(measured, peak.map(|peak| measured.rate() / peak))
        };
        let fastest = |one: &&Measurement, other: &&Measurement| one.rate().value().total_cmp(&other.rate().value());
        let mut names: Vec<&str> = Vec::new();
        for measured in all {
            if !names.contains(&measured.precision.as_str()) {
                names.push(&measured.precision);
            }
        }
        let products = || all.iter().filter(|measured| !stream(measured));
        let per = |name: &str| products().filter(|measured| measured.precision == name).max_by(fastest).map(product);
        let read =
            |one: &&Measurement, other: &&Measurement| one.bandwidth().value().total_cmp(&other.bandwidth().value());
        let streamed = all.iter().filter(stream).max_by(read);
        Self {
            product: products().max_by(fastest).map(product),
            per_precision: names.into_iter().filter_map(per).collect(),
            stream: streamed.map(|measured| best(measured, Some(measured.bandwidth() / device.memory.bandwidth))),
            ceilings,
        }
    }
}
