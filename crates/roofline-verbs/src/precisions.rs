//! Named precisions: which format at which place, and which unit multiplies.

use clap::Args;
use roofline_core::{
    Device, Dim, Format, Precision,
    format::{Shape, Sizes},
    plan::Mix,
    precision::{NAMED, Named, PrecisionSpec},
    units::{FlopRate, Intensity},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Context, Note, Result};

/// Where.
#[derive(Args, Clone, Debug, Default, Deserialize, JsonSchema)]
#[command(after_help = "Examples:\n  roofline precisions\n  roofline precisions --on t4")]
#[schemars(rename = "PrecisionsRequest")]
pub struct Request {
    /// Only what this device multiplies, with its peaks
    #[arg(long, value_name = "DEVICE")]
    pub on: Option<String>,
}

/// The table of precisions.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PrecisionsAnswer")]
pub struct Answer {
    pub device: Option<String>,
    pub precisions: Vec<NamedPrecision>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// A name, what it stands for, and how fast the device multiplies it.
#[derive(Serialize, JsonSchema)]
pub struct NamedPrecision {
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    pub summary: &'static str,
    pub weights: String,
    pub activations: String,
    pub kv: String,
    pub output: String,
    pub stored_bits_per_weight: f64,
    pub math: Option<&'static str>,
    pub peak_tflops: Option<f64>,
    pub critical_ai: Option<f64>,
    /// Why the device does not multiply it.
    pub unavailable: Option<String>,
}

/// The names, and llama.cpp's recipes by the type of most of their tensors.
pub fn precisions(context: &Context, request: &Request) -> Result<Answer> {
    let device = request.on.as_deref().map(|name| context.device(name)).transpose()?;
    let place = device.as_ref();
    let named = |one: &Named| NamedPrecision::new(one.name, one.aliases, one.summary, &one.precision(), place);
    let recipe = |mix: Mix| {
        NamedPrecision::new(mix.name(), mix.aliases(), mix.summary(), &PrecisionSpec::weights_only(mix.base()), place)
    };
    let precisions = NAMED.iter().map(named).chain(Mix::ALL.into_iter().map(recipe)).collect::<Result<_>>()?;
    Ok(Answer { device: device.map(|device| device.label()), precisions, notes: context.notes() })
}

impl NamedPrecision {
    fn new(
        name: &'static str,
        aliases: &'static [&'static str],
        summary: &'static str,
        spec: &PrecisionSpec,
        device: Option<&Device>,
    ) -> Result<Self> {
        let on_device = device.map(|device| spec.on(device).map(|precision| (device, precision)));
        let formats = spec.formats();
        let dim = Dim::new("columns", 4096)?;
        let bits = |weights: Format| weights.bits_per_element(Shape::matrix(dim, dim), Sizes::Exact);
        let peak = |(device, precision): &(&Device, Precision)| device.peaks.of(precision.math).map(FlopRate::value);
        let ridge = |(device, precision): &(&Device, Precision)| device.critical_intensity(precision.math);
        let ready = on_device.as_ref().and_then(|result| result.as_ref().ok());
        let format = |format: Option<Format>| format.map_or_else(|| "16 bit".to_owned(), |format| format.to_string());
        Ok(Self {
            name,
            aliases,
            summary,
            weights: format(formats.weights),
            activations: format(formats.activations),
            kv: format(formats.kv),
            output: format(formats.output),
            stored_bits_per_weight: formats.weights.map_or(16.0, bits),
            math: ready.map(|(_, precision)| precision.math.key()),
            peak_tflops: ready.and_then(peak).map(|peak| peak / 1e12),
            critical_ai: ready.and_then(ridge).map(Intensity::value),
            unavailable: on_device.and_then(std::result::Result::err).map(|error| error.to_string()),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::request::{answers_fit, from_json};

    /// A T4 has INT8 units at twice the rate of FP16 and none for FP8.
    #[test]
    fn a_device_in_json() {
        let request = from_json(json!({ "on": "t4" })).unwrap();
        let answer = precisions(&Context::pure(), &request).unwrap();
        answers_fit(&answer);
        let of = |name: &str| answer.precisions.iter().find(|one| one.name == name).unwrap();
        assert_eq!(of("int8").peak_tflops.unwrap(), 2.0 * of("fp16").peak_tflops.unwrap());
        assert!(of("fp8").unavailable.is_some() && of("fp8").math.is_none());
        answers_fit(&precisions(&Context::pure(), &Request::default()).unwrap());
    }
}
