//! Devices that are alike in how close kernels come to their limits.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Device, device::Kind};

/// A class of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "DeviceClass")]
pub enum Class {
    /// Cards with stacked memory, made for servers.
    Hbm,
    /// Cards with graphics memory.
    Gddr,
    /// Apple's chips.
    Apple,
    /// Other chips whose GPU shares the processor's memory.
    Shared,
    /// Processors.
    Cpu,
    /// Accelerators, and chips nobody has described further.
    Other,
}

impl Class {
    /// That of a device.
    pub fn of(device: &Device) -> Self {
        let stacked = device.memory.kind.as_deref().is_some_and(|kind| kind.starts_with("HBM"));
        match device.kind {
            Kind::Cpu => Self::Cpu,
            Kind::Soc if device.vendor == "Apple" => Self::Apple,
            Kind::Soc => Self::Shared,
            Kind::Gpu if stacked => Self::Hbm,
            Kind::Gpu => Self::Gddr,
            Kind::Npu | Kind::Tpu | Kind::Custom => Self::Other,
        }
    }
}
