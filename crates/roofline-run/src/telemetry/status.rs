//! Everything a GPU says of itself at one moment.

use std::collections::BTreeMap;

use roofline_core::units::{ByteRate, Bytes, Celsius, Hertz, Joules, Watts};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::{Capability, ClockDomain, Reading, Source, Throttle, Way};

/// One look at a GPU. What could not be read is missing here and named in `errors`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "GpuStatus")]
pub struct Status {
    /// The name that its driver reports.
    pub device_name: Option<String>,
    /// CUDA compute capability.
    pub compute_capability: Option<String>,
    /// Whether that is Blackwell or later.
    pub is_blackwell: Option<bool>,
    /// Whether that is Hopper.
    pub is_hopper: Option<bool>,
    /// Whether that has tensor cores for FP8.
    pub has_fp8: Option<bool>,
    /// Multiprocessors.
    pub sm_count: Option<u32>,
    /// Version of the driver.
    pub driver_version: Option<String>,
    /// Graphics clock.
    #[serde(rename = "gpu_clock_mhz", serialize_with = "megahertz")]
    #[schemars(with = "Option<f64>")]
    pub gpu_clock: Option<Hertz>,
    /// Its maximum.
    #[serde(rename = "gpu_clock_max_mhz", serialize_with = "megahertz")]
    #[schemars(with = "Option<f64>")]
    pub gpu_clock_max: Option<Hertz>,
    /// Clock of the multiprocessors.
    #[serde(rename = "sm_clock_mhz", serialize_with = "megahertz")]
    #[schemars(with = "Option<f64>")]
    pub sm_clock: Option<Hertz>,
    /// Its maximum.
    #[serde(rename = "sm_clock_max_mhz", serialize_with = "megahertz")]
    #[schemars(with = "Option<f64>")]
    pub sm_clock_max: Option<Hertz>,
    /// Clock of the memory.
    #[serde(rename = "mem_clock_mhz", serialize_with = "megahertz")]
    #[schemars(with = "Option<f64>")]
    pub mem_clock: Option<Hertz>,
    /// Its maximum.
    #[serde(rename = "mem_clock_max_mhz", serialize_with = "megahertz")]
    #[schemars(with = "Option<f64>")]
    pub mem_clock_max: Option<Hertz>,
    /// Power, as the driver averages it.
    #[serde(rename = "power_draw_w")]
    pub power_draw: Option<Watts>,
    /// Power that is allowed.
    #[serde(rename = "power_limit_w")]
    pub power_limit: Option<Watts>,
    /// Temperature of the chip.
    #[serde(rename = "temperature_c")]
    pub temperature: Option<Celsius>,
    /// Where the hardware slows itself down.
    #[serde(rename = "temperature_throttle_c")]
    pub temperature_throttle: Option<Celsius>,
    /// All memory.
    #[serde(rename = "mem_total_mb", serialize_with = "mebibytes")]
    #[schemars(with = "Option<f64>")]
    pub mem_total: Option<Bytes>,
    /// Memory in use.
    #[serde(rename = "mem_used_mb", serialize_with = "mebibytes")]
    #[schemars(with = "Option<f64>")]
    pub mem_used: Option<Bytes>,
    /// Memory that is left.
    #[serde(rename = "mem_free_mb", serialize_with = "mebibytes")]
    #[schemars(with = "Option<f64>")]
    pub mem_free: Option<Bytes>,
    /// Share of time with a kernel running.
    pub gpu_utilization_pct: Option<u32>,
    /// Share of time with memory in use.
    pub mem_utilization_pct: Option<u32>,
    /// Generation of the PCIe link now.
    pub pcie_gen: Option<u32>,
    /// Lanes of the PCIe link now.
    pub pcie_width: Option<u32>,
    /// What the GPU sends over the link.
    #[serde(rename = "pcie_tx_kb_s", serialize_with = "kilobytes")]
    #[schemars(with = "Option<f64>")]
    pub pcie_sent: Option<ByteRate>,
    /// What it receives.
    #[serde(rename = "pcie_rx_kb_s", serialize_with = "kilobytes")]
    #[schemars(with = "Option<f64>")]
    pub pcie_received: Option<ByteRate>,
    /// What keeps the clocks down; empty when nothing does.
    pub throttle_reasons: Option<Vec<Throttle>>,
    /// Energy since the driver was loaded.
    #[serde(rename = "total_energy_j")]
    pub total_energy: Option<Joules>,
    /// Queries that failed, with the driver's reason.
    pub errors: BTreeMap<&'static str, String>,
}

impl Status {
    /// Asks everything once.
    pub fn read(source: &dyn Source) -> Self {
        let mut errors = BTreeMap::new();
        let asked = &mut errors;
        let memory = keep(asked, "memory", source.memory());
        let utilization = keep(asked, "utilization", source.utilization());
        let compute_capability = keep(asked, "compute_capability", source.compute_capability());
        let generation: Option<Capability> = compute_capability.as_ref().and_then(|text| text.parse().ok());
        Self {
            device_name: keep(asked, "device_name", source.device_name()),
            compute_capability,
            is_blackwell: generation.map(Capability::is_blackwell),
            is_hopper: generation.map(Capability::is_hopper),
            has_fp8: generation.map(Capability::has_fp8),
            sm_count: keep(asked, "sm_count", source.multiprocessors()),
            driver_version: keep(asked, "driver_version", source.driver_version()),
            gpu_clock: keep(asked, "gpu_clock_mhz", source.clock(ClockDomain::Graphics)),
            gpu_clock_max: keep(asked, "gpu_clock_max_mhz", source.max_clock(ClockDomain::Graphics)),
            sm_clock: keep(asked, "sm_clock_mhz", source.clock(ClockDomain::Sm)),
            sm_clock_max: keep(asked, "sm_clock_max_mhz", source.max_clock(ClockDomain::Sm)),
            mem_clock: keep(asked, "mem_clock_mhz", source.clock(ClockDomain::Memory)),
            mem_clock_max: keep(asked, "mem_clock_max_mhz", source.max_clock(ClockDomain::Memory)),
            power_draw: keep(asked, "power_draw_w", source.power_draw()),
            power_limit: keep(asked, "power_limit_w", source.power_limit()),
            temperature: keep(asked, "temperature_c", source.temperature()),
            temperature_throttle: keep(asked, "temperature_throttle_c", source.temperature_throttle()),
            mem_total: memory.map(|memory| memory.total),
            mem_used: memory.map(|memory| memory.used),
            mem_free: memory.map(|memory| memory.free),
            gpu_utilization_pct: utilization.map(|utilization| utilization.gpu),
            mem_utilization_pct: utilization.map(|utilization| utilization.memory),
            pcie_gen: keep(asked, "pcie_gen", source.pcie_generation()),
            pcie_width: keep(asked, "pcie_width", source.pcie_width()),
            pcie_sent: keep(asked, "pcie_tx_kb_s", source.pcie_traffic(Way::Sent)),
            pcie_received: keep(asked, "pcie_rx_kb_s", source.pcie_traffic(Way::Received)),
            throttle_reasons: keep(asked, "throttle_reasons", source.throttle_reasons()),
            total_energy: keep(asked, "total_energy_j", source.total_energy()),
            errors,
        }
    }

    /// Power over the limit; none where either is unknown.
    pub fn power_share(&self) -> Option<f64> {
        Some(self.power_draw? / self.power_limit.filter(|limit| *limit > Watts::ZERO)?)
    }

    /// Used over total memory.
    pub fn memory_share(&self) -> Option<f64> {
        Some(self.mem_used? / self.mem_total.filter(|total| *total > Bytes::ZERO)?)
    }
}

fn keep<T>(errors: &mut BTreeMap<&'static str, String>, query: &'static str, reading: Reading<T>) -> Option<T> {
    reading.map_err(|unread| errors.insert(query, unread.to_string())).ok()
}

/// Writes a clock in MHz, which is what drivers count in.
#[expect(clippy::ref_option, reason = "serde hands over a reference to the field")]
pub(super) fn megahertz<S: Serializer>(clock: &Option<Hertz>, serializer: S) -> Result<S::Ok, S::Error> {
    clock.map(|clock| clock / 1e6).serialize(serializer)
}

/// Writes a rate in KB/s, which is what drivers count traffic in.
#[expect(clippy::ref_option, reason = "serde hands over a reference to the field")]
fn kilobytes<S: Serializer>(rate: &Option<ByteRate>, serializer: S) -> Result<S::Ok, S::Error> {
    rate.map(|rate| rate / 1e3).serialize(serializer)
}

/// Writes a size in MiB, which `nvidia-smi` and most tools call MB.
#[expect(clippy::ref_option, reason = "serde hands over a reference to the field")]
fn mebibytes<S: Serializer>(size: &Option<Bytes>, serializer: S) -> Result<S::Ok, S::Error> {
    size.map(|size| size / (1024.0 * 1024.0)).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::telemetry::fake::{Fake, QUERIES};

    /// What is no part of a status: a recording asks for the one, an error for the other.
    const NOT_ASKED: [&str; 2] = ["instant_power_w", "holders"];

    fn fields(failing: &[&'static str]) -> serde_json::Map<String, Value> {
        let status = Status::read(&Fake::failing(failing));
        serde_json::to_value(&status).unwrap().as_object().unwrap().clone()
    }

    #[test]
    fn a_status_names_every_value_with_its_unit() {
        let fields = fields(&[]);
        for (name, value) in [
            ("device_name", Value::from("NVIDIA H200")),
            ("gpu_clock_mhz", 1755.into()),
            ("gpu_clock_max_mhz", 1980.into()),
            ("mem_clock_mhz", 3201.into()),
            ("mem_clock_max_mhz", 3202.into()),
            ("sm_clock_mhz", 1756.into()),
            ("power_draw_w", 350.into()),
            ("power_limit_w", 700.into()),
            ("temperature_c", 51.into()),
            ("temperature_throttle_c", 87.into()),
            ("mem_total_mb", 143_771.into()),
            ("mem_used_mb", 1024.into()),
            ("mem_free_mb", 142_154.into()),
            ("gpu_utilization_pct", 97.into()),
            ("mem_utilization_pct", 41.into()),
            ("pcie_gen", 5.into()),
            ("pcie_width", 16.into()),
            ("pcie_tx_kb_s", 1_500_000.into()),
            ("pcie_rx_kb_s", 2500.into()),
            ("compute_capability", "9.0".into()),
            ("is_blackwell", false.into()),
            ("is_hopper", true.into()),
            ("has_fp8", true.into()),
            ("sm_count", 132.into()),
            ("driver_version", "580.82.07".into()),
            ("throttle_reasons", vec!["sw_power_cap"].into()),
            ("errors", Value::Object(serde_json::Map::new())),
        ] {
            assert_eq!(fields[name], value, "{name}");
        }
    }

    /// Each query fails alone: its own fields are missing and named, every other field is as it was.
    #[test]
    fn one_failure_hides_nothing_else() {
        let whole = fields(&[]);
        for query in QUERIES.iter().copied().filter(|query| !NOT_ASKED.contains(query)) {
            let part = fields(&[query]);
            let expected: &[&str] = match query {
                "memory" => &["mem_total_mb", "mem_used_mb", "mem_free_mb"],
                "utilization" => &["gpu_utilization_pct", "mem_utilization_pct"],
                "compute_capability" => &["compute_capability", "is_blackwell", "is_hopper", "has_fp8"],
                _ => &[query],
            };
            for (name, value) in &whole {
                match name.as_str() {
                    "errors" => {
                        assert_eq!(part["errors"], serde_json::json!({ query: format!("no {query}") }));
                    }
                    name if expected.contains(&name) => assert_eq!(part[name], Value::Null, "{query}"),
                    name => assert_eq!(&part[name], value, "{query}: {name}"),
                }
            }
        }
    }

    #[test]
    fn a_gpu_that_answers_nothing_is_still_a_status() {
        let status = Status::read(&Fake::failing(QUERIES));
        let errors = status.errors.clone();
        assert_eq!(errors.len(), QUERIES.len() - NOT_ASKED.len());
        assert_eq!(status, Status { errors, ..Status::default() });
        assert_eq!((status.power_share(), status.memory_share()), (None, None));
    }

    #[test]
    fn shares() {
        let status = Status::read(&Fake::default());
        assert_eq!(status.power_share(), Some(0.5));
        assert_eq!(status.memory_share(), Some(1024.0 / 143_771.0));
        let none = Status { power_limit: Some(Watts::ZERO), ..status };
        assert_eq!(none.power_share(), None);
    }
}
