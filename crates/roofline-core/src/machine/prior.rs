//! What devices of a class have in common, where nobody measured the device itself.
//!
//! `time = launch + max(bytes / (share * bandwidth), flops / (share * peak))`, by kernel. The shares and the time of a layer
//! are fitted to speeds that people published of whole models (`data/priors.toml` says which). A layer's time is spread over
//! its kernels, however many a graph has; a kernel that stands alone has the share of one of a layer that is not fused.

use std::sync::LazyLock;

use serde::Deserialize;

use super::{Class, Machine, Stack};
use crate::{
    Device, Op, Precision,
    predict::{Causes, Estimate, Expected},
    units::Seconds,
};

/// Kernels of a dense layer that is not fused: two norms, queries, keys, values, rotation, writing to the cache, attention,
/// output, gate, up, activation, down, and two sums with the residual stream.
const KERNELS_OF_A_LAYER: f64 = 15.0;

/// Terms of a class of devices under a stack.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prior {
    /// The share of the bandwidth that kernels reach.
    pub bandwidth: f64,
    /// The share of the peak that products of many rows reach.
    pub peak: f64,
    /// What a layer takes beside its bytes and operations: starting its kernels and waiting for them.
    pub layer: Seconds,
    /// Nine of ten measurements are within this factor of the expectation, either way.
    pub factor: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    prior: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    /// Any where none is named.
    stack: Option<String>,
    class: Class,
    bandwidth: f64,
    peak: f64,
    layer_us: f64,
    interval: f64,
    #[cfg_attr(not(test), expect(dead_code, reason = "for whoever reads the file"))]
    source: String,
}

static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let text = include_str!("../../data/priors.toml");
    toml::from_str::<File>(text).map(|file| file.prior).unwrap_or_default()
});

impl Prior {
    /// Terms of a device nothing is known of: those of no class would be a guess, so the widest are taken.
    const UNKNOWN: Self = Self { bandwidth: 0.6, peak: 0.4, layer: Seconds::new(5e-5), factor: std::f64::consts::E };

    /// The terms of a device's class under a stack; under any, where that stack has none of its own.
    pub fn of(device: &Device, stack: Stack) -> Self {
        let class = Class::of(device);
        let of = |name: Option<&str>| ROWS.iter().find(|row| row.class == class && row.stack.as_deref() == name);
        let row = of(Some(stack.name())).or_else(|| of(None));
        row.map_or(Self::UNKNOWN, |row| Self {
            bandwidth: row.bandwidth,
            peak: row.peak,
            layer: Seconds::new(row.layer_us * 1e-6),
            factor: row.interval.exp(),
        })
    }

    /// Starting a kernel that stands alone.
    pub(crate) fn alone(&self) -> Seconds {
        self.layer / KERNELS_OF_A_LAYER
    }

    /// Starting one of the `kernels` that `layers` have together.
    pub(crate) fn shared(&self, layers: u64, kernels: u64) -> Seconds {
        self.layer * (layers as f64 / kernels.max(1) as f64)
    }

    /// What a kernel is likely to take that starts in `launch`.
    pub(super) fn expect(
        &self,
        op: &Op,
        precision: &Precision,
        launch: Seconds,
        machine: &Machine,
        ideal: &Estimate,
    ) -> Expected {
        // Where only the floor differs from what is likely, both are the same.
        let likely = match op {
            Op::Experts(_) => Estimate::likely(op, precision, machine.sizes, &machine.device).unwrap_or(*ideal),
            _ => *ideal,
        };
        let (memory, compute) = (likely.memory / self.bandwidth, likely.compute / self.peak);
        let network = likely.network / self.bandwidth;
        let time = launch + memory.max(compute).max(network);
        Expected::new(Causes { time, launch, memory, compute, network }, self.factor, ideal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Registry;

    #[test]
    fn every_device_has_terms_of_its_class() {
        assert!(!ROWS.is_empty());
        for row in ROWS.iter() {
            assert!((0.05..=1.0).contains(&row.bandwidth) && (0.05..=1.0).contains(&row.peak), "{}", row.source);
            assert!(row.layer_us >= 0.0 && row.interval > 0.0 && !row.source.is_empty());
            assert!(row.stack.as_deref().is_none_or(|name| name.parse::<Stack>().is_ok()), "{:?}", row.stack);
        }
        for device in Registry::builtin().devices() {
            assert_ne!(Prior::of(device, Stack::Roofline), Prior::UNKNOWN, "{}", device.key);
        }
    }
}
