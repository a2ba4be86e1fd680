//! Observations for the tests: products on an H200 that took a known multiple of their ideal time.

use super::Observation;
use crate::{
    Device, Graph, Machine, Registry,
    format::Sizes,
    machine::Stack,
    measurement::{Path, Residency},
    precision::PrecisionSpec,
    predict::Estimate,
    units::Bytes,
};

pub(super) fn device() -> Device {
    Registry::builtin().find("h200").unwrap().into_owned()
}

/// The same, of which nothing was measured.
pub(super) fn machine() -> Machine {
    Machine::new(device(), Stack::Null)
}

/// A product of `m` x `n` x `k` that took `ratio` times its ideal time.
pub(super) fn product(precision: &str, (m, n, k): (u64, u64, u64), ratio: f64) -> Observation {
    let formats = precision.parse::<PrecisionSpec>().unwrap().on(&device()).unwrap();
    let node = Graph::gemm(m, n, k).unwrap().nodes[0];
    let time = Estimate::of(&node.op, &formats, Sizes::Exact, &device()).unwrap().time().seconds() * ratio;
    Observation {
        site: node.site.to_owned(),
        phase: None,
        precision: precision.to_owned(),
        op: node.op,
        formats,
        count: 1,
        time,
        samples: 100,
        range: Some((time * 0.99, time * 1.01)),
        residency: Some(Residency::Cold),
        path: Some(Path::Native),
        kernel: None,
        warnings: Vec::new(),
        detour: Bytes::ZERO,
    }
}
