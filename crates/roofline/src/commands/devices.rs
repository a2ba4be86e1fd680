//! `roofline devices`: list, explain, compare and register.

mod table;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
};

use roofline_core::{
    Device, Error, Math, Registry,
    device::{Origin, Peaks},
    units::{ByteRate, Bytes, FlopRate},
};
use serde::Serialize;

use super::{
    setting::device,
    this::{This, ThisReport},
};
use crate::{
    cli::{DeviceAction, DeviceFilter, DeviceOrder, DevicesArgs, RateArgs},
    config,
    failure::Failure,
    report::{Format, Report, Section, emit, style},
};

/// Devices, each with everything its file says.
#[derive(Serialize)]
pub(crate) struct Devices {
    devices: Vec<Row>,
    #[serde(skip)]
    view: View,
}

#[derive(Clone, Copy, PartialEq)]
enum View {
    List,
    Detail,
    Compare,
}

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    device: Device,
    /// Peak over bandwidth, per unit.
    critical_ai: BTreeMap<&'static str, f64>,
}

pub(crate) fn devices(args: &DevicesArgs, form: Format) -> Result<(), Failure> {
    match &args.action {
        Some(DeviceAction::Add { name, from, rates, memory, force }) => {
            let text = match from {
                Some(path) => config::read_text(path)?,
                None => description(name, rates, *memory)?,
            };
            let (key, path) = config::register(name, &text, *force)?;
            style::talk("note", &format!("registered `{key}` in {}", path.display()));
            Ok(())
        }
        Some(DeviceAction::Remove { name }) => {
            let path = config::remove(name)?;
            style::talk("note", &format!("removed {}", path.display()));
            Ok(())
        }
        Some(DeviceAction::Template) if form == Format::Json => Ok(emit(&described(vec![template()?]), form)?),
        Some(DeviceAction::Template) => Ok(io::stdout().write_all(TEMPLATE.as_bytes())?),
        None if args.names == ["this"] => Ok(emit(&ThisReport::new(This::thorough(args.measure)?)?, form)?),
        None => Ok(emit(&select(args)?, form)?),
    }
}

pub(crate) fn select(args: &DevicesArgs) -> Result<Devices, Failure> {
    let registry = config::registry();
    let (devices, view) = match args.names.len() {
        0 => (list(&registry, args)?, View::List),
        count => {
            let named =
                args.names.iter().map(|name| device(&registry, name)).collect::<Result<Vec<Device>, Failure>>()?;
            (named, if count == 1 { View::Detail } else { View::Compare })
        }
    };
    Ok(Devices { view, ..described(devices) })
}

fn described(devices: Vec<Device>) -> Devices {
    let row = |device: Device| {
        let ridge = |math: Math| Some((math.key(), device.critical_intensity(math)?.value()));
        Row { critical_ai: Math::ALL.iter().filter_map(|math| ridge(*math)).collect(), device }
    };
    Devices { devices: devices.into_iter().map(row).collect(), view: View::Detail }
}

/// A device file that says everything a device file can say, for a chip of one's own.
const TEMPLATE: &str = include_str!("../../assets/device.toml");

fn template() -> Result<Device, Failure> {
    Ok(Device::from_toml(TEMPLATE, "my-chip.toml")?)
}

fn list(registry: &Registry, args: &DevicesArgs) -> Result<Vec<Device>, Failure> {
    if let Some(vendor) = &args.filter.vendor {
        let known: BTreeSet<&str> = registry.devices().map(|device| device.vendor.as_str()).collect();
        if !known.iter().any(|known| known.eq_ignore_ascii_case(vendor)) {
            let lower: Vec<String> = known.iter().map(|vendor| vendor.to_lowercase()).collect();
            let list = known.into_iter().filter(|vendor| !vendor.is_empty()).collect::<Vec<_>>().join(", ");
            return Err(
                Error::unknown("vendor", vendor, lower.iter().map(String::as_str), format!("vendors: {list}")).into()
            );
        }
    }
    let mut devices: Vec<Device> = registry.devices().filter(|device| passes(device, &args.filter)).cloned().collect();
    let rate = |device: &Device, math| device.peaks.of(math).map_or(0.0, FlopRate::value);
    let order = |device: &Device| match args.sort {
        DeviceOrder::Key => 0.0,
        DeviceOrder::Year => device.year.map_or(0.0, f64::from),
        DeviceOrder::Bandwidth => device.memory.bandwidth.value(),
        DeviceOrder::Memory => device.memory.capacity.map_or(0.0, Bytes::value),
        DeviceOrder::Peak => rate(device, Math::Bf16).max(rate(device, Math::Fp16)),
        DeviceOrder::Fp8 => rate(device, Math::Fp8),
        DeviceOrder::Int8 => rate(device, Math::Int8),
        DeviceOrder::Fp4 => rate(device, Math::Fp4),
        DeviceOrder::Tdp => device.tdp.map_or(0.0, roofline_core::units::Watts::value),
    };
    // Largest first, then by name.
    devices.sort_by(|a, b| order(b).total_cmp(&order(a)).then_with(|| a.key.cmp(&b.key)));
    if args.reverse {
        devices.reverse();
    }
    Ok(devices)
}

fn passes(device: &Device, filter: &DeviceFilter) -> bool {
    let DeviceFilter { vendor, kind, arch, has, min_memory, mine } = filter;
    vendor.as_ref().is_none_or(|vendor| device.vendor.eq_ignore_ascii_case(vendor))
        && kind.is_none_or(|kind| device.kind == kind)
        && arch.as_ref().is_none_or(|arch| device.architecture.to_lowercase().contains(&arch.to_lowercase()))
        && has.iter().all(|math| device.peaks.of(*math).is_some())
        && min_memory.is_none_or(|least| device.memory.capacity.is_some_and(|capacity| capacity >= least))
        && (!mine || device.origin == Origin::User)
}

/// A device file of what the flags say.
fn description(name: &str, rates: &RateArgs, memory: Option<Bytes>) -> Result<String, Failure> {
    let missing = || Failure::usage("the device has no bandwidth", "say `--bandwidth 1.2TB/s`, or `--from FILE`");
    let bandwidth: ByteRate = rates.bandwidth.ok_or_else(missing)?;
    let peaks = Peaks::distinct(rates.peak.iter().copied())?;
    Ok(Device::custom(name, bandwidth, peaks, memory)?.to_toml())
}

impl Report for Devices {
    const ROWS: &'static str = "devices";

    fn sections(&self) -> Vec<Section> {
        let devices: Vec<&Device> = self.devices.iter().map(|row| &row.device).collect();
        match self.view {
            View::List => table::list(&devices),
            View::Detail => devices.iter().flat_map(|device| table::detail(device)).collect(),
            View::Compare => table::compare(&devices),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The template is a device as it stands, and names every field that a file can have: a field that is added to devices
    /// and not to it fails here.
    #[test]
    fn the_template_says_everything() {
        let device = template().unwrap();
        assert_eq!((device.key.as_str(), device.origin), ("my_chip", Origin::User));
        assert!(Registry::shadowed(&device).is_none());
        let json = serde_json::to_value(&device).unwrap();
        let computed = ["key", "mode", "origin", "rates"];
        let mentioned = |name: &str| {
            let lines = TEMPLATE.lines().map(|line| line.trim_start_matches(['#', ' ']));
            let table = |line: &str| {
                let head = line.split('#').next().unwrap_or_default().trim().trim_matches(['[', ']']);
                head.rsplit('.').next() == Some(name)
            };
            lines.clone().any(|line| line.starts_with(&format!("{name} =")) || (line.starts_with('[') && table(line)))
        };
        let tables = ["units", "clock", "memory", "cache", "interconnect", "host_link", "measured"];
        let fields = json.as_object().unwrap().keys().map(String::as_str);
        let inner = tables.iter().flat_map(|table| json[table].as_object().unwrap().keys().map(String::as_str));
        let mode = json["power_modes"][0].as_object().unwrap().keys().map(String::as_str);
        for field in fields.chain(inner).chain(mode).filter(|field| !computed.contains(field)) {
            assert!(mentioned(field), "`{field}` is not in the template");
        }
        for math in Math::ALL {
            assert!(mentioned(math.key()), "{math} is not in the template");
        }
    }
}
