//! A device as the text of its file: what [`Device::from_toml`] reads, written.

use std::{
    fmt::{Display, Write},
    str::FromStr,
};

use super::{Confidence, Device, Kind, Link, Peaks, PowerMode};
use crate::{format::BlockScaling, units::Quantity};

impl Device {
    /// The text of a device file that reads back as this device. Key, power mode and origin are no part of a file.
    pub fn to_toml(&self) -> String {
        let mut file = File::default();
        file.text("name", Some(&self.name));
        file.list("aliases", &self.aliases);
        file.list("reported_names", &self.reported_names);
        file.text("vendor", Some(&self.vendor).filter(|vendor| !vendor.is_empty()));
        file.text("architecture", Some(&self.architecture).filter(|name| !name.is_empty()));
        file.text("kind", (self.kind != Kind::Custom).then(|| self.kind.to_string()).as_ref());
        file.plain("year", self.year);
        file.text("compute_capability", self.compute_capability.as_ref());
        file.exact("tdp", self.tdp, "W");
        file.plain("sparse_factor", self.sparse_factor.map(decimal));
        file.plain("sparse_factor_fp4", self.sparse_factor_fp4.map(decimal));
        file.text("confidence", (self.confidence != Confidence::User).then(|| self.confidence.to_string()).as_ref());
        file.text("vendor_document", self.vendor_document.as_ref());
        file.text("source", self.source.as_ref());
        file.list("verified_in", &self.verified_in);
        file.text("notes", self.notes.as_ref());
        if let Some(scaling) = &self.block_scaling {
            let name = |kind: &BlockScaling| if *kind == BlockScaling::Mx { "mx" } else { "nvfp4" }.to_owned();
            file.plain("block_scaling", Some(list(&scaling.iter().map(name).collect::<Vec<_>>())));
        }
        self.sections(&mut file);
        file.0
    }

    fn sections(&self, file: &mut File) {
        file.section("units", |file| {
            let units = &self.units;
            file.plain("sm", units.sm);
            file.plain("cu", units.cu);
            file.plain("xe_cores", units.xe_cores);
            file.plain("gpu_cores", units.gpu_cores);
            file.plain("cores", units.cores);
            file.plain("dies", units.dies);
        });
        file.section("clock", |file| {
            for (name, clock) in [("boost", self.clock.boost), ("tensor", self.clock.tensor), ("base", self.clock.base)]
            {
                file.exact(name, clock, "Hz");
            }
        });
        file.section("memory", |file| {
            let memory = &self.memory;
            file.exact("bandwidth", Some(memory.bandwidth), "B/s");
            file.exact("capacity", memory.capacity, "B");
            file.text("type", memory.kind.as_ref());
            file.plain("bus_bits", memory.bus_bits);
            file.plain("gbps_per_pin", memory.gbps_per_pin.map(decimal));
            file.exact("reported", memory.reported, "B");
        });
        if let Some(range) = &self.memory.bandwidth_range {
            file.section("memory.bandwidth_range", |file| {
                file.exact("low", Some(range.low), "B/s");
                file.exact("high", Some(range.high), "B/s");
                file.text("source", Some(&range.source));
            });
        }
        file.section("cache", |file| {
            let cache = &self.cache;
            let sizes = [
                ("l2", cache.l2),
                ("l3", cache.l3),
                ("infinity", cache.infinity),
                ("sram", cache.sram),
                ("l1_per_sm", cache.l1_per_sm),
                ("shared_per_sm", cache.shared_per_sm),
                ("lds_per_cu", cache.lds_per_cu),
            ];
            for (name, size) in sizes {
                file.exact(name, size, "B");
            }
        });
        for (name, link) in [("interconnect", &self.interconnect), ("host_link", &self.host_link)] {
            if let Some(Link { kind, per_direction, total }) = link {
                file.section(name, |file| {
                    file.text("type", Some(kind));
                    file.exact("per_direction", *per_direction, "B/s");
                    file.exact("total", *total, "B/s");
                });
            }
        }
        file.0 += "\n[peaks]\n";
        file.rates(&self.peaks);
        if let Some(measured) = &self.measured {
            file.section("measured", |file| {
                file.rates(&measured.rates);
                file.exact("bandwidth", measured.bandwidth, "B/s");
                file.exact("l2_bandwidth", measured.l2_bandwidth, "B/s");
                file.text("source", Some(&measured.source));
            });
        }
        self.power_modes.iter().for_each(|mode| file.mode(mode));
    }
}

/// The text as it grows.
#[derive(Default)]
struct File(String);

impl File {
    /// A table; left out where nothing is in it.
    fn section(&mut self, name: &str, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        fill(&mut inner);
        if !inner.0.is_empty() {
            let _ = write!(self.0, "\n[{name}]\n{}", inner.0);
        }
    }

    fn plain(&mut self, name: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            let _ = writeln!(self.0, "{name} = {value}");
        }
    }

    fn text(&mut self, name: &str, value: Option<&String>) {
        self.plain(name, value.map(|text| quoted(text)));
    }

    /// A quantity as people write it, where that reads back as it was; else with every digit it has.
    fn exact<Q: Quantity + Display + FromStr + PartialEq>(&mut self, name: &str, value: Option<Q>, unit: &str) {
        self.plain(name, value.map(|value| quoted(&spelled(value, unit))));
    }

    fn list(&mut self, name: &str, values: &[String]) {
        self.plain(name, (!values.is_empty()).then(|| list(values)));
    }

    fn rates(&mut self, rates: &Peaks) {
        rates.iter().for_each(|(math, rate)| self.exact(math.key(), Some(rate), "FLOP/s"));
    }

    fn mode(&mut self, mode: &PowerMode) {
        self.0 += "\n[[power_modes]]\n";
        self.text("name", Some(&mode.name));
        self.plain("id", Some(mode.id));
        self.exact("power", mode.power, "W");
        self.exact("gpu_clock", Some(mode.gpu_clock), "Hz");
        self.plain("sm", Some(mode.sm));
        self.exact("memory_clock", Some(mode.memory_clock), "Hz");
        self.exact("bandwidth", Some(mode.bandwidth), "B/s");
        self.exact("fp16", Some(mode.fp16), "FLOP/s");
        self.exact("int8", mode.int8, "FLOP/s");
        self.plain("default", mode.default.then_some(true));
        self.plain("unverified", mode.unverified.then_some(true));
    }
}

/// The shortest spelling that reads back as the same quantity: with a prefix, memories by binary ones, else by its exponent.
fn spelled<Q: Quantity + Display + FromStr + PartialEq>(value: Q, unit: &str) -> String {
    let base = value.base_units();
    let binary = [("GiB", 30), ("MiB", 20), ("KiB", 10)].map(|(unit, power)| (unit, base / f64::from(1u32 << power)));
    let binary = binary.into_iter().find(|(_, count)| *count >= 1.0).filter(|_| unit == "B");
    let binary = binary.map(|(unit, count)| format!("{count} {unit}"));
    let short = binary.into_iter().filter(|text| text.len() <= 10).chain([value.to_string()]);
    let same = |text: &String| text.parse::<Q>().is_ok_and(|again| again == value);
    short.into_iter().find(same).unwrap_or_else(|| format!("{base:e} {unit}"))
}

/// A number that TOML reads as a float.
fn decimal(value: f64) -> String {
    format!("{value:?}")
}

/// An array of strings.
fn list(values: &[String]) -> String {
    let values: Vec<String> = values.iter().map(|text| quoted(text)).collect();
    format!("[{}]", values.join(", "))
}

/// A TOML string: a backslash, a quote and what cannot be seen are written by their codes.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            letter if letter.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(letter));
            }
            letter => out.push(letter),
        }
    }
    out + "\""
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Registry, device::Origin};

    /// Whatever a file can say survives: every device of the registry, and a power mode of one.
    #[test]
    fn every_device_reads_back_as_it_was() {
        let registry = Registry::builtin();
        for device in registry.devices() {
            let text = device.to_toml();
            let again = Device::from_toml(&text, &format!("{}.toml", device.key))
                .unwrap_or_else(|error| panic!("{error}\n{text}"));
            assert_eq!(Device { origin: Origin::Builtin, ..again }, *device, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_survives(name in "(?s).{1,40}", notes in "(?s).{0,60}") {
            prop_assume!(!name.trim().is_empty());
            let bandwidth = crate::units::ByteRate::new(1.234_567_890_123e12);
            let device = Device::custom("x", bandwidth, Peaks::default(), None).unwrap();
            let device = Device { name, notes: Some(notes), origin: Origin::User, ..device };
            prop_assert_eq!(Device::from_toml(&device.to_toml(), "x.toml").unwrap(), device);
        }
    }
}
