//! Points and ceilings of a roofline, in the form that tools of this field exchange.

use roofline_core::{
    Device, Graph, Math, Plan,
    predict::{Tier, predict},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::refusal::Refusal;
use crate::{commands::known, failure::Failure};

/// A point under the roof.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(super) struct RooflinePoint {
    pub(super) ai: f64,
    pub(super) tflops: f64,
    pub(super) time_us: f64,
    pub(super) label: String,
    /// `simulated` or `measured`.
    pub(super) source: String,
    pub(super) precision: String,
    pub(super) shape: String,
    #[serde(default)]
    pub(super) bottleneck: Option<String>,
    #[serde(default)]
    pub(super) bandwidth_gb_s: Option<f64>,
    /// Which time `time_us` is: the floor.
    #[serde(default)]
    pub(super) tier: Option<String>,
    #[serde(default)]
    pub(super) stack: Option<String>,
    /// What the expected time stands on.
    #[serde(default)]
    pub(super) basis: Option<String>,
    #[serde(default)]
    pub(super) ideal_time_us: Option<f64>,
    #[serde(default)]
    pub(super) expected_time_us: Option<f64>,
    #[serde(default)]
    pub(super) lo_us: Option<f64>,
    #[serde(default)]
    pub(super) hi_us: Option<f64>,
}

/// A ceiling.
#[derive(Serialize, JsonSchema)]
pub(super) struct RooflineLine {
    precision: &'static str,
    peak_tflops: f64,
    critical_ai: f64,
}

/// A plan by any of the names that tools of this field give it.
pub(super) fn named(name: &str) -> Result<Plan, Refusal> {
    let shown: String = name.chars().take(80).collect();
    Ok(shown.parse().map_err(Failure::from)?)
}

pub(super) fn point(
    device: &Device,
    (m, n, k): (u64, u64, u64),
    precision: &str,
    what: &str,
) -> Result<RooflinePoint, Refusal> {
    let graph = Graph::gemm(m, n, k).map_err(Failure::from)?;
    let machine = known(device.clone());
    let forecast = predict(&graph, &named(precision)?, &machine).map_err(Failure::from)?;
    let (total, expected) = (forecast.total.ideal, forecast.total.expected);
    Ok(RooflinePoint {
        ai: total.intensity().value(),
        tflops: total.rate().value() / 1e12,
        time_us: total.time().micros(),
        tier: Some(Tier::Ideal.name().to_owned()),
        stack: Some(machine.stack.name().to_owned()),
        basis: Some(forecast.basis.name().to_owned()),
        ideal_time_us: Some(total.time().micros()),
        expected_time_us: Some(expected.time.micros()),
        lo_us: Some(expected.low.micros()),
        hi_us: Some(expected.high.micros()),
        label: format!("{what}{m}x{n}x{k} [{precision}]"),
        source: "simulated".to_owned(),
        precision: precision.to_owned(),
        shape: format!("{m}x{n}x{k}"),
        bottleneck: Some(total.bound().to_string()),
        bandwidth_gb_s: Some(total.bandwidth().value() / 1e9),
    })
}

/// The units of a device by the names of the precisions they multiply.
pub(super) fn units(device: &Device) -> impl Iterator<Item = (&'static str, Math, f64)> + '_ {
    let name = |math| {
        Some(match math {
            Math::Fp32 => "FP32",
            Math::Tf32 => "TF32",
            Math::Fp16 => "FP16",
            Math::Bf16 => "BF16",
            Math::Fp8 => "FP8_E4M3",
            Math::Fp6 => "MXFP6",
            Math::Fp4 => "NVFP4",
            Math::Int8 => "INT8",
            Math::Int4 => "INT4",
            _ => return None,
        })
    };
    device.peaks.iter().filter_map(move |(math, peak)| Some((name(math)?, math, peak.value())))
}

pub(super) fn lines(device: &Device) -> Vec<RooflineLine> {
    let line = |(precision, math, peak): (&'static str, Math, f64)| {
        let critical_ai = device.critical_intensity(math)?.value();
        Some(RooflineLine { precision, peak_tflops: peak / 1e12, critical_ai })
    };
    units(device).filter_map(line).collect()
}
