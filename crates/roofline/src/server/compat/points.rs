//! Points and ceilings of a roofline, in the form that tools of this field exchange.

use roofline_core::{
    Device, Graph, Math, Plan,
    machine::Stack,
    predict::{Tier, predict},
};
use roofline_verbs::{Context, machine};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::refusal::Refusal;

/// A point under the roof.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(in crate::server) struct RooflinePoint {
    pub(in crate::server) ai: f64,
    pub(in crate::server) tflops: f64,
    pub(in crate::server) time_us: f64,
    pub(in crate::server) label: String,
    /// `simulated` or `measured`.
    pub(in crate::server) source: String,
    pub(in crate::server) precision: String,
    pub(in crate::server) shape: String,
    #[serde(default)]
    pub(in crate::server) bottleneck: Option<String>,
    #[serde(default)]
    pub(in crate::server) bandwidth_gb_s: Option<f64>,
    /// Which time `time_us` is: the floor.
    #[serde(default)]
    pub(in crate::server) tier: Option<String>,
    #[serde(default)]
    pub(in crate::server) stack: Option<String>,
    /// What the expected time stands on.
    #[serde(default)]
    pub(in crate::server) basis: Option<String>,
    #[serde(default)]
    pub(in crate::server) ideal_time_us: Option<f64>,
    #[serde(default)]
    pub(in crate::server) expected_time_us: Option<f64>,
    #[serde(default)]
    pub(in crate::server) lo_us: Option<f64>,
    #[serde(default)]
    pub(in crate::server) hi_us: Option<f64>,
}

/// A ceiling.
#[derive(Serialize, JsonSchema)]
pub(in crate::server) struct RooflineLine {
    precision: &'static str,
    peak_tflops: f64,
    critical_ai: f64,
}

/// A plan by any of the names that tools of this field give it.
pub(in crate::server) fn named(name: &str) -> Result<Plan, Refusal> {
    let shown: String = name.chars().take(80).collect();
    Ok(shown.parse()?)
}

pub(in crate::server) fn point(
    context: &Context,
    device: &Device,
    (m, n, k): (u64, u64, u64),
    precision: &str,
    what: &str,
) -> Result<RooflinePoint, Refusal> {
    let graph = Graph::gemm(m, n, k)?;
    let machine = machine::machine(context, device.clone(), Stack::Roofline);
    let forecast = predict(&graph, &named(precision)?, &machine)?;
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
pub(in crate::server) fn units(device: &Device) -> impl Iterator<Item = (&'static str, Math, f64)> + '_ {
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

pub(in crate::server) fn lines(device: &Device) -> Vec<RooflineLine> {
    let line = |(precision, math, peak): (&'static str, Math, f64)| {
        let critical_ai = device.critical_intensity(math)?.value();
        Some(RooflineLine { precision, peak_tflops: peak / 1e12, critical_ai })
    };
    units(device).filter_map(line).collect()
}
