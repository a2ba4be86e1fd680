//! Everything a roofline picture shows, ready to be drawn: ceilings, diagonals and the prediction whose operators are the
//! points. Whoever draws it computes nothing.

use roofline_core::{
    Device, Math,
    device::Origin,
    units::{Bytes, FlopRate, Intensity, Watts},
};
use serde::Serialize;

use super::{
    model::{ModelPrediction, predict_model},
    plot::shown,
    predict::{Prediction, predict},
    setting, this, tier,
};
use crate::{
    cli::{Setting, Subject},
    failure::Failure,
};

/// A device's roof, and what stands under it.
#[derive(Serialize)]
pub(crate) struct Chart {
    device: Place,
    /// The diagonals, the slowest first.
    memories: Vec<Slope>,
    /// The horizontal lines, one for each unit that multiplies.
    ceilings: Vec<Ceiling>,
    prediction: Answer,
}

#[derive(Serialize)]
struct Place {
    key: String,
    name: String,
    kind: String,
    modified: bool,
    memory_bytes: Option<f64>,
    tdp_w: Option<f64>,
    source: Option<String>,
    notes: Option<String>,
    /// What the expected tier rests on.
    calibration: Option<String>,
}

#[derive(Serialize)]
struct Slope {
    label: &'static str,
    /// `rated`, or `measured` where no data sheet says it.
    source: &'static str,
    bytes_per_s: f64,
    /// The least that a careful measurement reached or a source gives, and the most: the band of what is uncertain.
    lo_bytes_per_s: Option<f64>,
    hi_bytes_per_s: Option<f64>,
}

#[derive(Serialize)]
struct Ceiling {
    math: &'static str,
    label: &'static str,
    flop_per_s: f64,
    /// Where the memory's diagonal meets it.
    critical_ai: f64,
    lo_flop_per_s: Option<f64>,
    hi_flop_per_s: Option<f64>,
}

/// What `predict` answers.
#[derive(Serialize)]
#[serde(untagged)]
enum Answer {
    Operator(Box<Prediction>),
    Model(Box<ModelPrediction>),
}

pub(crate) fn chart(subject: &Subject) -> Result<Chart, Failure> {
    let (prediction, setting) = match subject {
        Subject::Operator(subject) => (Answer::Operator(Box::new(predict(subject)?)), subject.setting()),
        Subject::Model(args) => (Answer::Model(Box::new(predict_model(args)?)), &args.setting),
    };
    let machine = tier::machine(setting, one(setting)?);
    let (device, calibration) = (&machine.device, machine.calibration());
    Ok(Chart {
        memories: memories(device),
        ceilings: ceilings(device),
        device: Place {
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

/// A picture is of one device.
fn one(setting: &Setting) -> Result<Device, Failure> {
    let mut devices = setting::devices(&setting.on, &setting.rates)?;
    match devices.len() {
        1 => Ok(devices.remove(0)),
        _ => Err(Failure::usage("a roofline belongs to one device", "name one by `on`")),
    }
}

fn memories(device: &Device) -> Vec<Slope> {
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
    slopes.extend(caches(device));
    slopes
}

/// What the caches of this machine were measured to deliver; no data sheet of another says it.
fn caches(device: &Device) -> Vec<Slope> {
    let Some(this) = this::This::kept().filter(|this| this.device().is_ok_and(|known| known.key == device.key)) else {
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

fn ceilings(device: &Device) -> Vec<Ceiling> {
    let measured = |math| device.measured.as_ref().and_then(|measured| measured.rates.of(math)).map(FlopRate::value);
    let ceiling = |(math, peak): (Math, FlopRate)| {
        let (peak, measured) = (peak.value(), measured(math));
        Ceiling {
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
