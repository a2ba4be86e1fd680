//! `roofline measure --saturate --write-device FILE`: what was measured, as a device of one's own.
//!
//! A data sheet says what a chip could do; this writes down what this one did. The file starts from the device as the
//! registry knows it, takes the measured bandwidth and the measured rate of every unit that a product ran on, and says in
//! its source what is measured and what is not.

use std::{
    fmt::Display,
    path::{Path, PathBuf},
    str::FromStr,
};

use roofline_core::{
    Device, Op,
    device::{Confidence, Peaks},
    measurement::{Measurement, Residency},
    units::ByteRate,
};
use roofline_run::Ceiling;

use super::Request;
use crate::{
    Error, Result,
    context::files::{replace, writable},
};

/// The file that was asked for, refused before anything is measured where it could not be written or would be wrong.
pub(crate) fn wanted(asked: &Request) -> Result<Option<&Path>> {
    let Some(path) = asked.write_device.as_deref() else { return Ok(None) };
    if !asked.saturate {
        return Err(Error::request("⟨write_device⟩ writes what ⟨saturate⟩ measured", "say ⟨saturate⟩ as well"));
    }
    let refuse = |message: String, hint: &str| Err(Error::request(message, hint));
    if path.extension().is_none_or(|extension| extension != "toml") {
        return refuse(
            format!("⟨write_device⟩: `{}` does not end in .toml", path.display()),
            "`⟨on⟩` takes my-gpu.toml",
        );
    }
    if asked.run.warm {
        return refuse("⟨write_device⟩ needs cold operands".to_owned(), "leave out ⟨warm⟩: caches are not the memory");
    }
    if path.exists() && !asked.force {
        return refuse(format!("{} is there already", path.display()), "say `⟨force⟩` to replace it");
    }
    if !path.exists() {
        writable(path)?;
    }
    Ok(Some(path))
}

/// Writes `device` with what was measured of it, and reads it back.
pub(crate) fn write(
    path: &Path,
    device: &Device,
    all: &[Measurement],
    ceilings: &[Ceiling],
    provenance: &str,
) -> Result<PathBuf> {
    let text = described(device, all, ceilings, provenance)?.to_toml();
    Device::from_toml(&text, &path.display().to_string())?;
    replace(path, text.as_bytes())?;
    Ok(path.to_owned())
}

fn described(device: &Device, all: &[Measurement], ceilings: &[Ceiling], provenance: &str) -> Result<Device> {
    let cold: Vec<&Measurement> = all.iter().filter(|measured| measured.residency == Residency::Cold).collect();
    let bandwidth = bandwidth(&cold, ceilings).map(rounded);
    let peaks = peaks(&cold);
    let measured: Vec<&str> =
        bandwidth.map(|_| "bandwidth").into_iter().chain(peaks.iter().map(|(math, _)| math.key())).collect();
    if measured.is_empty() {
        return Err(Error::request("nothing was measured that a device file could hold", "leave out ⟨write_device⟩"));
    }
    let kept: Vec<&str> =
        device.peaks.iter().filter(|(math, _)| peaks.of(*math).is_none()).map(|(math, _)| math.key()).collect();
    let kept = match kept.len() {
        0 => String::new(),
        _ => format!(
            " Not measured: {}, which are {}'s ({}).",
            kept.join(", "),
            device.key,
            device.source.as_deref().unwrap_or("no source")
        ),
    };
    let changed = device.clone().modified(bandwidth, &peaks)?;
    Ok(Device {
        name: format!("{} as measured", device.name),
        // The registered device keeps its names, and its modes have other clocks than those measured in.
        aliases: Vec::new(),
        reported_names: Vec::new(),
        power_modes: Vec::new(),
        verified_in: Vec::new(),
        measured: None,
        confidence: Confidence::User,
        vendor_document: None,
        source: Some(format!(
            "Measured by `roofline measure --saturate`: {provenance}. Measured: {}.{kept}",
            measured.join(", ")
        )),
        ..changed
    })
}

/// What memory delivers: a kernel that only reads, else the fastest matrix-vector product.
fn bandwidth(all: &[&Measurement], ceilings: &[Ceiling]) -> Option<ByteRate> {
    let read = ceilings.iter().find_map(|ceiling| match ceiling {
        Ceiling::Stream { name: "read", rate, .. } => Some(*rate),
        _ => None,
    });
    let streams = all.iter().filter(|measured| rows(measured) == Some(1)).map(|measured| measured.bandwidth());
    streams.chain(read).reduce(ByteRate::max)
}

/// The fastest product on each unit.
fn peaks(all: &[&Measurement]) -> Peaks {
    let mut peaks = Peaks::default();
    for measured in all.iter().filter(|measured| rows(measured).is_some_and(|rows| rows > 1)) {
        let (math, rate) = (measured.formats.math, rounded(measured.rate()));
        if peaks.of(math).is_none_or(|known| rate > known) {
            peaks.set(math, rate);
        }
    }
    peaks
}

/// A rate as it is shown, with four digits: no measurement has more.
fn rounded<Q: Copy + Display + FromStr>(rate: Q) -> Q {
    rate.to_string().parse().unwrap_or(rate)
}

/// Rows of a product's input; none of another operator.
fn rows(measured: &Measurement) -> Option<u64> {
    match measured.op {
        Op::Linear(linear) => Some(linear.m.get()),
        _ => None,
    }
}
