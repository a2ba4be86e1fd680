//! Everything a roofline picture shows, ready to be drawn: ceilings, diagonals and the prediction whose operators are the
//! points. Whoever draws it computes nothing.

use roofline_core::{
    Device, Math,
    device::Origin,
    units::{Bytes, FlopRate, Intensity, Watts},
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    Context, Error, Result, machine,
    picture::shown,
    predict::{self, predict},
};

/// A device's roof, and what stands under it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RooflineAnswer")]
pub struct Answer {
    pub device: ChartDevice,
    /// The diagonals, the slowest first.
    pub memories: Vec<Slope>,
    /// The horizontal lines, one for each unit that multiplies.
    pub ceilings: Vec<ChartCeiling>,
    pub prediction: predict::Answer,
}

/// The device.
#[derive(Serialize, JsonSchema)]
pub struct ChartDevice {
    pub key: String,
    pub name: String,
    pub kind: String,
    pub modified: bool,
    pub memory_bytes: Option<f64>,
    pub tdp_w: Option<f64>,
    pub source: Option<String>,
    pub notes: Option<String>,
    /// What the expected tier rests on.
    pub calibration: Option<String>,
}

/// A diagonal.
#[derive(Serialize, JsonSchema)]
pub struct Slope {
    pub label: &'static str,
    /// `rated`, or `measured` where no data sheet says it.
    pub source: &'static str,
    pub bytes_per_s: f64,
    /// The least that a careful measurement reached or a source gives, and the most: the band of what is uncertain.
    pub lo_bytes_per_s: Option<f64>,
    pub hi_bytes_per_s: Option<f64>,
}

/// A horizontal line.
#[derive(Serialize, JsonSchema)]
pub struct ChartCeiling {
    pub math: &'static str,
    pub label: &'static str,
    pub flop_per_s: f64,
    /// Where the memory's diagonal meets it.
    pub critical_ai: f64,
    pub lo_flop_per_s: Option<f64>,
    pub hi_flop_per_s: Option<f64>,
}

/// The roof of one device, and what stands under it.
pub fn chart(context: &Context, request: &predict::Request) -> Result<Answer> {
    let setting = request.setting();
    let mut devices = machine::devices(context, &setting.on, &setting.rates)?;
    let (Some(device), true) = (devices.pop(), devices.is_empty()) else {
        return Err(Error::request("a roofline belongs to one device", "name one by `⟨on⟩`"));
    };
    let prediction = predict(context, request)?;
    let machine = machine::usual(context, device, setting.stack);
    let (device, calibration) = (&machine.device, machine.calibration());
    Ok(Answer {
        memories: memories(context, device),
        ceilings: ceilings(device),
        device: ChartDevice {
            key: device.label(),
            name: device.name.clone(),
            kind: device.kind.to_string(),
            modified: device.origin == Origin::Modified,
            memory_bytes: device.memory.usable().map(Bytes::value),
            tdp_w: device.tdp.map(Watts::value),
            source: device.source.clone(),
            notes: device.notes.clone(),
            calibration: calibration.map(|known| known.provenance.clone()),
        },
        prediction,
    })
}

fn memories(context: &Context, device: &Device) -> Vec<Slope> {
    let band = device.bandwidth_band();
    let mut slopes = vec![Slope {
        label: "memory",
        source: "rated",
        bytes_per_s: device.memory.bandwidth.value(),
        lo_bytes_per_s: band.map(|(low, _)| low.value()),
        hi_bytes_per_s: band.map(|(_, high)| high.value()),
    }];
    slopes.extend(device.measured.as_ref().and_then(|measured| measured.l2_bandwidth).map(|rate| Slope {
        label: "L2",
        source: "measured",
        bytes_per_s: rate.value(),
        lo_bytes_per_s: None,
        hi_bytes_per_s: None,
    }));
    slopes.extend(caches(context, device));
    slopes
}

/// What the caches of this machine were measured to deliver; no data sheet of another says it.
#[cfg(feature = "hardware")]
fn caches(context: &Context, device: &Device) -> Vec<Slope> {
    let kept = crate::this_machine::This::kept(context);
    let Some(this) = kept.filter(|this| this.device().is_ok_and(|known| known.key == device.key)) else {
        return Vec::new();
    };
    let slope = |(label, best, median): (&'static str, f64, f64)| Slope {
        label,
        source: "measured",
        bytes_per_s: best,
        lo_bytes_per_s: Some(median),
        hi_bytes_per_s: Some(best),
    };
    this.levels().into_iter().map(slope).collect()
}

#[cfg(not(feature = "hardware"))]
fn caches(_: &Context, _: &Device) -> Vec<Slope> {
    Vec::new()
}

fn ceilings(device: &Device) -> Vec<ChartCeiling> {
    let measured = |math| device.measured.as_ref().and_then(|measured| measured.rates.of(math)).map(FlopRate::value);
    let ceiling = |(math, peak): (Math, FlopRate)| {
        let (peak, measured) = (peak.value(), measured(math));
        ChartCeiling {
            math: math.key(),
            label: math.label(),
            flop_per_s: peak,
            critical_ai: device.critical_intensity(math).map_or(0.0, Intensity::value),
            lo_flop_per_s: measured.map(|measured| measured.min(peak)),
            hi_flop_per_s: measured.map(|measured| measured.max(peak)),
        }
    };
    device.peaks.iter().filter(|(math, _)| shown(*math)).map(ceiling).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::request::{answers_fit, from_json};

    #[test]
    fn a_chart_is_of_one_device() {
        let asked = |on: &[&str]| {
            let body = json!({ "subject": "gemv", "n": 4096, "k": 4096, "on": on, "precision": "bf16" });
            chart(&Context::pure(), &from_json(body).unwrap())
        };
        let told = asked(&["h200"]).unwrap();
        answers_fit(&told);
        let bf16 = told.ceilings.iter().find(|roof| roof.math == "bf16").unwrap();
        assert_eq!(bf16.critical_ai, bf16.flop_per_s / told.memories[0].bytes_per_s);
        assert!(told.device.calibration.is_some(), "the H200 ships with one");
        assert_eq!(asked(&["h200", "a100"]).err().unwrap().to_string(), "a roofline belongs to one device");
    }
}
