//! Devices: rates with their sources, compared, registered.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use clap::{Args, ValueEnum};
use roofline_core::{
    Device, Error as Core, Math,
    device::{Kind, Origin, Peaks},
    units::{Bytes, FlopRate, Watts},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Context, Error, Note, Result,
    context::{Registered, files::read_text},
    request::{Rates, list},
};

/// Devices by name, or those of the registry that a filter leaves.
#[derive(Args, Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "DevicesRequest")]
pub struct Request {
    /// Devices to show; a table of all when left out
    #[arg(value_name = "DEVICE")]
    #[serde(deserialize_with = "list::read")]
    #[schemars(schema_with = "list::schema::<String>")]
    pub names: Vec<String>,
    #[command(flatten)]
    #[serde(flatten)]
    pub filter: Filter,
    /// Order of the table; peak is the 16-bit one
    #[arg(long, value_enum, default_value_t)]
    pub sort: Order,
    /// Measure this machine again (`roofline devices this`)
    #[arg(long)]
    #[schemars(extend("x-local" = true))]
    pub measure: bool,
    /// Smallest first for numbers, last first for names
    #[arg(long)]
    pub reverse: bool,
}

/// What a device must be to be listed.
#[derive(Args, Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Filter {
    /// Only this vendor
    #[arg(long)]
    pub vendor: Option<String>,
    /// Only this kind: gpu, soc, npu, tpu, cpu or custom
    #[arg(long)]
    pub kind: Option<Kind>,
    /// Only architectures whose name contains this
    #[arg(long, value_name = "TEXT")]
    pub arch: Option<String>,
    /// Only devices with all of these units, such as fp8,int8
    #[arg(long, value_name = "UNIT", value_delimiter = ',')]
    #[serde(deserialize_with = "list::split")]
    #[schemars(schema_with = "list::schema::<String>")]
    pub has: Vec<Math>,
    /// Only devices with at least this much memory
    #[arg(long, value_name = "SIZE")]
    pub min_memory: Option<Bytes>,
    /// Only your own
    #[arg(long)]
    pub mine: bool,
}

/// What devices are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "DeviceOrder")]
pub enum Order {
    #[default]
    Key,
    Year,
    Bandwidth,
    Memory,
    Peak,
    Fp8,
    Int8,
    Fp4,
    Tdp,
}

/// A device of one's own.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
#[command(after_help = "\
Examples:
  roofline devices add my-chip --bandwidth 1.2TB/s --peak bf16=300TFLOP/s --memory 64GB
  roofline devices add my-chip --from my-chip.toml")]
#[schemars(rename = "AddDeviceRequest")]
pub struct Add {
    /// What to call it
    pub name: String,
    /// A device file
    #[arg(long, value_name = "FILE")]
    #[schemars(extend("x-local" = true))]
    pub from: Option<PathBuf>,
    #[command(flatten)]
    #[serde(flatten)]
    pub rates: Rates,
    /// Memory capacity, such as 8GB
    #[arg(long, value_name = "SIZE", help_heading = "Device")]
    pub memory: Option<Bytes>,
    /// Replace one of yours, or hide a built-in one
    #[arg(long)]
    #[serde(default)]
    pub force: bool,
}

/// Devices, each with everything its file says.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "DevicesAnswer")]
pub struct Answer {
    pub devices: Vec<DeviceFacts>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// A device.
#[derive(Serialize, JsonSchema)]
pub struct DeviceFacts {
    #[serde(flatten)]
    pub device: Device,
    /// Peak over bandwidth, per unit.
    pub critical_ai: BTreeMap<&'static str, f64>,
}

/// A device file that says everything a device file can say, for a chip of one's own.
pub const TEMPLATE: &str = include_str!("../assets/device.toml");

/// The devices that were named, or those of the registry.
pub fn devices(context: &Context, request: &Request) -> Result<Answer> {
    request.check()?;
    let devices = if request.names.is_empty() {
        listed(context, request)?
    } else {
        request.names.iter().map(|name| context.device(name)).collect::<Result<_>>()?
    };
    Ok(Answer::new(context, devices))
}

/// The template as a device.
pub fn template(context: &Context) -> Result<Answer> {
    Ok(Answer::new(context, vec![Device::from_toml(TEMPLATE, "my-chip.toml")?]))
}

/// Registers a device for whoever runs this process.
pub fn add(context: &Context, request: &Add) -> Result<Registered> {
    let Add { name, from, rates, memory, force } = request;
    let text = match from {
        Some(_) if rates.given() || memory.is_some() => {
            let hint = "leave `⟨bandwidth⟩`, `⟨peak⟩` and `⟨memory⟩` to the file, or `⟨from⟩` out";
            return Err(Error::request("a device is described by a file or by its rates", hint));
        }
        Some(path) if !context.is_local() => {
            return Err(Error::Path { what: "device", name: path.display().to_string() });
        }
        Some(path) => read_text(path)?,
        None => {
            let missing =
                || Error::request("the device has no bandwidth", "say `⟨bandwidth 1.2TB/s⟩`, or `⟨from FILE⟩`");
            let bandwidth = rates.bandwidth.ok_or_else(missing)?;
            let peaks = Peaks::distinct(rates.peak.iter().map(|peak| (peak.math, peak.rate)))?;
            Device::custom(name, bandwidth, peaks, *memory)?.to_toml()
        }
    };
    context.home().register(name, &text, *force)
}

/// Forgets a device that was registered.
pub fn remove(context: &Context, name: &str) -> Result<PathBuf> {
    context.home().remove(name)
}

impl Answer {
    fn new(context: &Context, devices: Vec<Device>) -> Self {
        let facts = |device: Device| {
            let ridge = |math: &Math| Some((math.key(), device.critical_intensity(*math)?.value()));
            DeviceFacts { critical_ai: Math::ALL.iter().filter_map(ridge).collect(), device }
        };
        Self { devices: devices.into_iter().map(facts).collect(), notes: context.notes() }
    }
}

impl Request {
    /// Refuses what would have no effect.
    fn check(&self) -> Result<()> {
        let Filter { vendor, kind, arch, has, min_memory, mine } = &self.filter;
        let picks = [
            ("vendor", vendor.is_some()),
            ("kind", kind.is_some()),
            ("arch", arch.is_some()),
            ("has", !has.is_empty()),
            ("min_memory", min_memory.is_some()),
            ("mine", *mine),
            ("sort", self.sort != Order::Key),
            ("reverse", self.reverse),
        ];
        let named = !self.names.is_empty();
        if let Some((pick, _)) = picks.iter().find(|(_, given)| named && *given) {
            let message = format!("`⟨{pick}⟩` is for the list of all devices, and here some are named");
            return Err(Error::request(message, format!("leave the names out, or `⟨{pick}⟩`")));
        }
        if self.measure && self.names != ["this"] {
            let hint = "`⟨roofline devices this --measure⟩` measures this machine";
            return Err(Error::request("no other machine can be measured from here", hint));
        }
        Ok(())
    }
}

fn listed(context: &Context, request: &Request) -> Result<Vec<Device>> {
    let registry = context.registry();
    if let Some(vendor) = &request.filter.vendor {
        let known: BTreeSet<&str> = registry.devices().map(|device| device.vendor.as_str()).collect();
        if !known.iter().any(|known| known.eq_ignore_ascii_case(vendor)) {
            let lower: Vec<String> = known.iter().map(|vendor| vendor.to_lowercase()).collect();
            let list = known.into_iter().filter(|vendor| !vendor.is_empty()).collect::<Vec<_>>().join(", ");
            let hint = format!("vendors: {list}");
            return Err(Core::unknown("vendor", vendor, lower.iter().map(String::as_str), hint).into());
        }
    }
    let mut devices: Vec<Device> = registry.devices().filter(|device| request.filter.lets(device)).cloned().collect();
    let rate = |device: &Device, math| device.peaks.of(math).map_or(0.0, FlopRate::value);
    let order = |device: &Device| match request.sort {
        Order::Key => 0.0,
        Order::Year => device.year.map_or(0.0, f64::from),
        Order::Bandwidth => device.memory.bandwidth.value(),
        Order::Memory => device.memory.capacity.map_or(0.0, Bytes::value),
        Order::Peak => rate(device, Math::Bf16).max(rate(device, Math::Fp16)),
        Order::Fp8 => rate(device, Math::Fp8),
        Order::Int8 => rate(device, Math::Int8),
        Order::Fp4 => rate(device, Math::Fp4),
        Order::Tdp => device.tdp.map_or(0.0, Watts::value),
    };
    // Largest first, then by name.
    devices.sort_by(|a, b| order(b).total_cmp(&order(a)).then_with(|| a.key.cmp(&b.key)));
    if request.reverse {
        devices.reverse();
    }
    Ok(devices)
}

impl Filter {
    fn lets(&self, device: &Device) -> bool {
        let Self { vendor, kind, arch, has, min_memory, mine } = self;
        vendor.as_ref().is_none_or(|vendor| device.vendor.eq_ignore_ascii_case(vendor))
            && kind.is_none_or(|kind| device.kind == kind)
            && arch.as_ref().is_none_or(|arch| device.architecture.to_lowercase().contains(&arch.to_lowercase()))
            && has.iter().all(|math| device.peaks.of(*math).is_some())
            && min_memory.is_none_or(|least| device.memory.capacity.is_some_and(|capacity| capacity >= least))
            && (!mine || device.origin == Origin::User)
    }
}

#[cfg(test)]
mod tests {
    use roofline_core::Registry;
    use serde_json::{Value, json};

    use super::*;
    use crate::request::{answers_fit, from_json};

    fn asked(body: Value) -> Result<Answer> {
        devices(&Context::pure(), &from_json(body)?)
    }

    #[test]
    fn filters_and_names_in_json() {
        let answer =
            asked(json!({ "vendor": "nvidia", "has": ["fp4"], "min_memory": "90GB", "sort": "bandwidth" })).unwrap();
        answers_fit(&answer);
        let bandwidths = answer.devices.iter().map(|one| one.device.memory.bandwidth.value());
        assert!(answer.devices.len() > 2 && bandwidths.is_sorted_by(|one, next| one >= next));
        let h200 = &asked(json!({ "names": "h200" })).unwrap().devices[0];
        assert_eq!(h200.critical_ai["bf16"], h200.device.critical_intensity(Math::Bf16).unwrap().value());
        answers_fit(&asked(json!({})).unwrap());
    }

    /// Nobody but clap would say so, and nobody but the command line has that.
    #[test]
    fn what_has_no_effect_is_refused() {
        let refused = |body| asked(body).err().unwrap().to_string();
        assert!(refused(json!({ "names": ["h200"], "kind": "gpu" })).contains("⟨kind⟩"));
        assert!(refused(json!({ "names": ["h200"], "reverse": true })).contains("⟨reverse⟩"));
        assert!(refused(json!({ "measure": true })).contains("measured"));
        assert!(refused(json!({ "vendor": "nvida" })).contains("did you mean `nvidia`?"));
        let add = from_json(json!({ "name": "x", "from": "x.toml", "bandwidth": "1TB/s" })).unwrap();
        assert!(super::add(&Context::pure(), &add).is_err());
    }

    /// The template is a device as it stands, and names every field that a file can have: a field that is added to devices
    /// and not to it fails here.
    #[test]
    fn the_template_says_everything() {
        let answer = template(&Context::pure()).unwrap();
        answers_fit(&answer);
        let device = &answer.devices[0].device;
        assert_eq!((device.key.as_str(), device.origin), ("my_chip", Origin::User));
        assert!(Registry::shadowed(device).is_none());
        let json = serde_json::to_value(device).unwrap();
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
