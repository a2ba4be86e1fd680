//! What tests of forecasts and of fits share.

#![allow(dead_code, reason = "every test takes what it needs")]

use roofline_core::{
    Device, Graph, Op, Precision, Registry,
    calibration::{Calibration, GpuTerms, Terms},
    precision::PrecisionSpec,
};

/// Within a share of what is expected.
#[track_caller]
pub(crate) fn near(value: f64, expected: f64, tolerance: f64) {
    assert!((value / expected - 1.0).abs() < tolerance, "{value} is not {expected}");
}

/// A device of the registry.
pub(crate) fn named(device: &str) -> Device {
    Registry::builtin().find(device).unwrap().into_owned()
}

/// The GPU that fits are tried on.
pub(crate) fn h200() -> Device {
    named("h200")
}

/// A precision on it.
pub(crate) fn precision(name: &str) -> Precision {
    name.parse::<PrecisionSpec>().unwrap().on(&h200()).unwrap()
}

/// One product.
pub(crate) fn product(m: u64, n: u64, k: u64) -> Op {
    Graph::gemm(m, n, k).unwrap().nodes[0].op
}

/// The terms of a GPU.
pub(crate) fn terms_of(calibration: &Calibration) -> &GpuTerms {
    match &calibration.terms {
        Terms::Gpu(terms) => terms,
        Terms::Cpu(_) | Terms::Timed(_) => panic!("a GPU has the terms of one"),
    }
}
