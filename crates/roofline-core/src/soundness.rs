//! Whether the data that ships makes sense: files parse, say where their numbers are from, and stay within what there is.
//!
//! Tests ask this of the source tree, and `roofline check` of an installed program.

use crate::{
    Device, Model, Registry,
    calibration::Calibration,
    device::{Confidence, Kind, Origin},
    model, registry,
};

/// What is wrong with the devices that ship: `key: reason`.
pub fn devices() -> Vec<String> {
    let parsed = registry::files().iter().filter_map(|(key, text)| {
        Device::from_toml(text, &format!("{key}.toml")).err().map(|error| format!("{key}: {error}"))
    });
    let sound = Registry::builtin();
    let sensible =
        sound.devices().filter_map(|device| device_fault(device).map(|why| format!("{}: {why}", device.key)));
    parsed.chain(sensible).collect()
}

fn device_fault(device: &Device) -> Option<String> {
    let said = |text: Option<&String>| text.is_some_and(|text| text.len() > 8);
    let within = |value: f64, least: f64, most: f64| (least..most).contains(&value);
    let peaks = || device.peaks.iter().find(|(_, peak)| !within(peak.value(), 1e10, 2e16));
    let capacity = device.memory.capacity.map(crate::units::Bytes::value);
    let faults = [
        (device.origin != Origin::Builtin || device.confidence == Confidence::User, "it is not one of ours"),
        (device.kind == Kind::Custom, "its kind is custom"),
        (!said(device.source.as_ref()), "it has no source"),
        (device.vendor.is_empty() || device.architecture.is_empty(), "it has no vendor or no architecture"),
        (!matches!(device.year, Some(2016..=2026)), "its year is out of range"),
        (
            !device.sparse_factor.is_some_and(|factor| (1.0..=4.0).contains(&factor)),
            "its sparse factor is out of range",
        ),
        (!within(device.memory.bandwidth.value(), 1e10, 2e13), "its bandwidth is out of range"),
        (!capacity.is_some_and(|capacity| within(capacity, 2e9, 2e12)), "its capacity is out of range"),
        (device.peaks.iter().count() < 2, "it has too few peaks"),
        (
            device.measured.as_ref().is_some_and(|measured| measured.source.len() <= 8),
            "it was measured without a source",
        ),
    ];
    let fault = faults.into_iter().find(|(wrong, _)| *wrong).map(|(_, why)| why.to_owned());
    fault.or_else(|| peaks().map(|(math, peak)| format!("its peak of {peak} in {math} is out of range")))
}

/// What is wrong with the models that ship.
pub fn models() -> Vec<String> {
    let read = |(key, text): &(&str, &str)| match Model::from_toml(text, key) {
        Ok(model) => model_fault(&model).map(|why| format!("{key}: {why}")),
        Err(error) => Some(format!("{key}: {error}")),
    };
    model::files().iter().filter_map(read).collect()
}

/// Publishers round, and count padding or not: half a per cent.
const PARAMETERS: f64 = 0.005;

fn model_fault(model: &Model) -> Option<String> {
    let Some(published) = &model.published else { return Some("nobody published its parameters".to_owned()) };
    let (counted, stated) = (model.parameters() as f64, published.parameters as f64);
    if (counted / stated - 1.0).abs() > PARAMETERS {
        return Some(format!("{counted} parameters, published are {stated}"));
    }
    let sourced = published.source.len() > 8 && model.source.as_ref().is_some_and(|source| source.len() > 8);
    (!sourced).then(|| "it has no source".to_owned())
}

/// What is wrong with the calibrations that ship.
pub fn calibrations() -> Vec<String> {
    let read = |shipped: crate::Result<Calibration>| match shipped {
        Ok(calibration) => calibration_fault(&calibration),
        Err(error) => Some(error.to_string()),
    };
    Calibration::shipped().filter_map(read).collect()
}

fn calibration_fault(calibration: &Calibration) -> Option<String> {
    let Calibration { device, stack, quality, provenance, .. } = calibration;
    let why = if Registry::builtin().find(device).is_err() {
        "no device of that name ships".to_owned()
    } else if provenance.len() <= 8 {
        "it does not say what it was fitted to".to_owned()
    } else if quality.doubtful() {
        format!("it is off by {:.0} % on shapes it never saw", quality.mean * 100.0)
    } else {
        return None;
    };
    Some(format!("{device} {stack}: {why}"))
}
