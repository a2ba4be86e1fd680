//! The sections of a device file.

use std::{collections::BTreeMap, fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::Peaks;
use crate::units::{ByteRate, Bytes, FlopRate, Hertz};

/// Where a device was described.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "DeviceOrigin")]
pub enum Origin {
    /// Shipped with the program.
    Builtin,
    /// A file the user named or registered.
    #[default]
    User,
    /// Rates given in the question itself.
    Flags,
    /// A described one with some numbers replaced by flags.
    Modified,
}

/// What kind of machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "DeviceKind")]
pub enum Kind {
    /// A graphics or accelerator card with its own memory.
    Gpu,
    /// GPU and CPU on shared memory.
    Soc,
    /// A neural accelerator.
    Npu,
    /// Google's tensor processing unit.
    Tpu,
    /// A processor.
    Cpu,
    /// Anything else, such as a chip that does not exist yet.
    #[default]
    Custom,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Gpu => "gpu",
            Self::Soc => "soc",
            Self::Npu => "npu",
            Self::Tpu => "tpu",
            Self::Cpu => "cpu",
            Self::Custom => "custom",
        })
    }
}

impl FromStr for Kind {
    type Err = crate::Error;

    fn from_str(text: &str) -> crate::Result<Self> {
        let kinds = [Self::Gpu, Self::Soc, Self::Npu, Self::Tpu, Self::Cpu, Self::Custom];
        let name = text.trim().to_lowercase();
        kinds.into_iter().find(|kind| kind.to_string() == name).ok_or_else(|| {
            let names = kinds.map(|kind| kind.to_string());
            let hint = format!("kinds: {}", names.join(", "));
            crate::Error::unknown("kind", text, names.iter().map(String::as_str), hint)
        })
    }
}

/// How far a device's numbers can be trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "DeviceConfidence")]
pub enum Confidence {
    /// The vendor's published dense figure, or half of its sparse one.
    Datasheet,
    /// Units times rate times clock, from published parts.
    Derived,
    /// Partner sheets or third parties only.
    Secondary,
    /// The user's own word.
    #[default]
    User,
}

impl fmt::Display for Confidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Datasheet => "datasheet",
            Self::Derived => "derived",
            Self::Secondary => "secondary",
            Self::User => "user",
        })
    }
}

/// Main memory.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "DeviceMemory")]
pub struct Memory {
    /// Peak bandwidth.
    pub bandwidth: ByteRate,
    /// Size. Vendors write GB and mean GiB.
    pub capacity: Option<Bytes>,
    /// HBM3e, LPDDR5, ...
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Width of the bus.
    pub bus_bits: Option<u32>,
    /// Transfer rate per pin, in Gbit/s.
    pub gbps_per_pin: Option<f64>,
    /// The size its driver reports.
    pub reported: Option<Bytes>,
    /// What the system takes of it, where that is known better than of most devices of its kind.
    pub system: Option<Bytes>,
    /// What is published or seen to be reachable, where that is not one number.
    pub bandwidth_range: Option<BandwidthRange>,
}

/// The least and the most bandwidth that a device is said to have: parts with faster and slower memory under one name, or
/// a rated figure beside what programs are seen to reach. Predictions use `bandwidth`; this is drawn as its uncertainty.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BandwidthRange {
    /// The least bandwidth.
    pub low: ByteRate,
    /// The most bandwidth.
    pub high: ByteRate,
    /// Who says so.
    pub source: String,
}

impl Memory {
    /// What programs can use: the size the driver reports, where known.
    pub fn usable(&self) -> Option<Bytes> {
        self.reported.or(self.capacity)
    }
}

/// How many of what; vendors cut their chips differently.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "DeviceUnits")]
pub struct Units {
    /// Streaming multiprocessors (NVIDIA).
    pub sm: Option<u32>,
    /// Compute units (AMD).
    pub cu: Option<u32>,
    /// Xe cores (Intel).
    pub xe_cores: Option<u32>,
    /// GPU cores (Apple).
    pub gpu_cores: Option<u32>,
    /// CPU cores.
    pub cores: Option<u32>,
    /// Dies in the package.
    pub dies: Option<u32>,
}

impl Units {
    /// The number that GPU peaks scale with.
    pub fn count(&self) -> Option<u32> {
        self.sm.or(self.cu).or(self.xe_cores).or(self.gpu_cores)
    }
}

/// Clocks.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "DeviceClocks")]
pub struct Clock {
    /// Highest boost clock.
    pub boost: Option<Hertz>,
    /// The clock tensor peaks are rated at, when it is another one.
    pub tensor: Option<Hertz>,
    /// Base clock.
    pub base: Option<Hertz>,
}

/// On-chip memory.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "DeviceCaches")]
pub struct Cache {
    /// Second-level cache, shared by all.
    pub l2: Option<Bytes>,
    /// Third level (CPU).
    pub l3: Option<Bytes>,
    /// Memory-side cache (AMD).
    pub infinity: Option<Bytes>,
    /// Software-managed memory (accelerators).
    pub sram: Option<Bytes>,
    /// First level and shared memory together, per multiprocessor.
    pub l1_per_sm: Option<Bytes>,
    /// Shared memory a multiprocessor can give to its blocks.
    pub shared_per_sm: Option<Bytes>,
    /// Local data share per compute unit (AMD).
    pub lds_per_cu: Option<Bytes>,
}

/// A link to other devices or to the host.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "DeviceLink")]
pub struct Link {
    /// NVLink 4, PCIe 5.0 x16, ...
    #[serde(rename = "type")]
    pub kind: String,
    /// Rate in one direction.
    pub per_direction: Option<ByteRate>,
    /// Both ways, as vendors like to print it.
    pub total: Option<ByteRate>,
}

/// Rates that somebody measured and published, kept apart from the peaks.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "PublishedRates")]
pub struct Measured {
    /// Matrix products, per unit.
    pub rates: Peaks,
    /// Memory copy or read.
    pub bandwidth: Option<ByteRate>,
    /// Reading what the second-level cache holds.
    pub l2_bandwidth: Option<ByteRate>,
    /// Who measured, and with what.
    pub source: String,
}

impl<'de> Deserialize<'de> for Measured {
    /// In the file the rates stand beside `bandwidth` and `source`, under the names of their units.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let mut entries = BTreeMap::<String, String>::deserialize(deserializer)?;
        let source = entries.remove("source").ok_or_else(|| Error::missing_field("source"))?;
        let mut bandwidth =
            |name: &str| entries.remove(name).map(|text| text.parse()).transpose().map_err(Error::custom);
        let (bandwidth, l2_bandwidth) = (bandwidth("bandwidth")?, bandwidth("l2_bandwidth")?);
        let rate = |text: &String| text.parse::<FlopRate>();
        let rates = entries.iter().map(|(name, text)| Ok((name.parse()?, rate(text)?)));
        let rates = rates.collect::<crate::Result<Vec<_>>>().and_then(Peaks::distinct).map_err(Error::custom)?;
        Ok(Self { rates, bandwidth, l2_bandwidth, source })
    }
}
