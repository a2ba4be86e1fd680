//! A machine: what its maker says it can do. Sourced, dense numbers only; what was measured stands apart.
//!
//! A device is one TOML file. Units are mandatory, unknown keys are errors, and `[peaks]` is dense by definition: a
//! figure with structured sparsity has nowhere to go.

mod file;
mod mode;
mod parts;
mod peaks;
mod room;

pub use mode::PowerMode;
pub use parts::{BandwidthRange, Cache, Clock, Confidence, Kind, Link, Measured, Memory, Origin, Units};
pub use peaks::Peaks;
pub use room::{RESERVE, Room};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Dim, Error, Format, Math, Result,
    format::{BlockScaling, Element},
    units::{ByteRate, Bytes, FlopRate, Intensity, Seconds, Watts},
};

/// A device of the registry, of a file, or built from flags.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// The name commands take: that of its file.
    #[serde(skip_deserializing)]
    pub key: String,
    /// The name people know.
    pub name: String,
    /// Short names.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// The names its driver reports, exactly.
    #[serde(default)]
    pub reported_names: Vec<String>,
    /// Who makes it.
    #[serde(default)]
    pub vendor: String,
    /// Architecture and chip.
    #[serde(default)]
    pub architecture: String,
    /// What kind of machine.
    #[serde(default)]
    pub kind: Kind,
    /// Year of introduction.
    pub year: Option<u16>,
    /// CUDA compute capability.
    pub compute_capability: Option<String>,
    /// Rated power.
    pub tdp: Option<Watts>,
    /// What its vendor multiplies dense rates by for structured sparsity. Never applied here.
    pub sparse_factor: Option<f64>,
    /// The same for FP4, where it differs.
    pub sparse_factor_fp4: Option<f64>,
    /// How far the numbers can be trusted.
    #[serde(default)]
    pub confidence: Confidence,
    /// Whether the vendor's own page was read: `opened`, `transcript`, `modes_only` or `not_opened`.
    pub vendor_document: Option<String>,
    /// Where the numbers come from.
    pub source: Option<String>,
    /// Public material that agrees.
    #[serde(default)]
    pub verified_in: Vec<String>,
    /// What to know before using them.
    pub notes: Option<String>,
    /// Multiprocessors and the like.
    #[serde(default)]
    pub units: Units,
    /// Clocks.
    #[serde(default)]
    pub clock: Clock,
    /// Main memory.
    pub memory: Memory,
    /// On-chip memory.
    #[serde(default)]
    pub cache: Cache,
    /// Link to other devices.
    pub interconnect: Option<Link>,
    /// Link to the host.
    pub host_link: Option<Link>,
    /// Dense peaks.
    pub peaks: Peaks,
    /// Which block scales its units apply; both kinds where an FP4 rate is given and nothing else is said.
    pub block_scaling: Option<Vec<BlockScaling>>,
    /// Rates that somebody measured and published.
    pub measured: Option<Measured>,
    /// Power modes (Jetson).
    #[serde(default)]
    pub power_modes: Vec<PowerMode>,
    /// The power mode these numbers hold in, where one was asked for.
    #[serde(skip_deserializing)]
    pub mode: Option<String>,
    /// Where it was described.
    #[serde(skip_deserializing)]
    pub origin: Origin,
}

/// What several devices exchange through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Between {
    /// Bandwidth one way.
    pub rate: ByteRate,
    /// Latency of a step.
    pub hop: Seconds,
    /// Whether it is the host's bus.
    pub hosted: bool,
}

/// Longest device file that is read at all; the largest of ours has 5 kB.
const MAX_LENGTH: usize = 64 * 1024;

impl Device {
    /// Reads a device file of the user's; its key is made from `file`'s stem.
    pub fn from_toml(text: &str, file: &str) -> Result<Self> {
        let stem = file.rsplit(['/', '\\']).next().unwrap_or(file);
        let key = key_of(stem.strip_suffix(".toml").unwrap_or(stem));
        Self::parse(text, file, key, Origin::User)
    }

    pub(crate) fn parse(text: &str, file: &str, key: String, origin: Origin) -> Result<Self> {
        let refuse = |reason: String| Error::Device { key: file.to_owned(), reason };
        if text.len() > MAX_LENGTH {
            return Err(refuse(format!("{} bytes is too long for a device file", text.len())));
        }
        let device: Self = toml::from_str(text).map_err(|error| refuse(located(text, &error)))?;
        Self { key, origin, ..device }.checked()
    }

    /// A device that exists only as a bandwidth and a few peaks.
    pub fn custom(name: &str, bandwidth: ByteRate, peaks: Peaks, capacity: Option<Bytes>) -> Result<Self> {
        let memory = Memory { bandwidth, capacity, ..Memory::default() };
        let (key, name, origin) = (key_of(name), name.to_owned(), Origin::Flags);
        let device = Self { key, name, memory, peaks, origin, ..Self::default() };
        device.checked()
    }

    /// The same device with some numbers replaced.
    pub fn modified(mut self, bandwidth: Option<ByteRate>, peaks: &Peaks) -> Result<Self> {
        if let Some(bandwidth) = bandwidth {
            self.memory.bandwidth = bandwidth;
            // What was said of another bandwidth says nothing of this one.
            self.memory.bandwidth_range = None;
        }
        peaks.iter().for_each(|(math, peak)| self.peaks.set(math, peak));
        self.origin = Origin::Modified;
        self.checked()
    }

    /// A chip like this one with other rates.
    pub fn scaled(&self, bandwidth: f64, compute: f64) -> Result<Self> {
        let mut device = self.clone();
        device.memory.bandwidth = self.memory.bandwidth * bandwidth;
        if let Some(range) = &mut device.memory.bandwidth_range {
            (range.low, range.high) = (range.low * bandwidth, range.high * bandwidth);
        }
        device.peaks = self.peaks.scaled(compute);
        device.checked()
    }

    /// Refuses rates that no machine has, where a slip in a unit would otherwise become an answer.
    fn checked(self) -> Result<Self> {
        self.check_rates("", self.memory.bandwidth, self.peaks.iter().map(|(math, peak)| (math.key(), peak)))?;
        for mode in &self.power_modes {
            let rates = [("fp16", Some(mode.fp16)), ("int8", mode.int8)];
            let rates = rates.into_iter().filter_map(|(unit, rate)| Some((unit, rate?)));
            self.check_rates(&format!("power mode {}: ", mode.name), mode.bandwidth, rates)?;
        }
        let refuse = |reason: String| Err(Error::Device { key: self.key.clone(), reason });
        if let Some(BandwidthRange { low, high, source }) = &self.memory.bandwidth_range {
            for bandwidth in [low, high] {
                self.check_rates("bandwidth_range: ", *bandwidth, std::iter::empty())?;
            }
            if low > high {
                return refuse(format!("bandwidth_range: its low end, {low}, is above its high end, {high}"));
            }
            if source.trim().is_empty() {
                return refuse("bandwidth_range: it has no source".to_owned());
            }
        }
        let capacities = Bytes::new(1e3)..=Bytes::new(1e18);
        if let Some(capacity) = self.memory.capacity.filter(|capacity| !capacities.contains(capacity)) {
            let (low, high) = capacities.into_inner();
            return refuse(format!("memory capacity of {capacity} is outside {low} to {high}"));
        }
        if self.key.is_empty() || self.key.len() > 64 || self.name.trim().is_empty() {
            return refuse("its name must have 1 to 64 letters".to_owned());
        }
        Ok(self)
    }

    fn check_rates(
        &self,
        place: &str,
        bandwidth: ByteRate,
        mut peaks: impl Iterator<Item = (&'static str, FlopRate)>,
    ) -> Result<()> {
        let refuse = |reason: String| Err(Error::Device { key: self.key.clone(), reason });
        let bandwidths = ByteRate::new(1e6)..=ByteRate::new(1e16);
        if !bandwidths.contains(&bandwidth) {
            let (low, high) = bandwidths.into_inner();
            return refuse(format!("{place}memory bandwidth of {bandwidth} is outside {low} to {high}"));
        }
        let rates = FlopRate::new(1e6)..=FlopRate::new(1e19);
        if let Some((unit, peak)) = peaks.find(|(_, peak)| !rates.contains(peak)) {
            let (low, high) = rates.into_inner();
            return refuse(format!("{place}{unit} peak of {peak} is outside {low} to {high}"));
        }
        Ok(())
    }

    /// The fastest of several units, if the device has one of them.
    pub fn fastest(&self, units: &[Math]) -> Option<Math> {
        let known = units.iter().filter_map(|math| Some((*math, self.peaks.of(*math)?)));
        known.reduce(|best, other| if other.1 > best.1 { other } else { best }).map(|(math, _)| math)
    }

    /// Whether its units take operands of this format as they are, given that they have its rate. Block scales and FP6
    /// came with FP4; older units have an FP8 rate and neither.
    pub fn takes(&self, format: Format) -> bool {
        let both = [BlockScaling::Mx, BlockScaling::Nvfp4];
        let implied = if self.peaks.of(Math::Fp4).is_some() { &both[..] } else { &[] };
        let applied = self.block_scaling.as_deref().unwrap_or(implied);
        match (format.block_scaling(), format.element()) {
            (Some(scaling), _) => applied.contains(&scaling),
            (None, Element::Fp6E3M2 | Element::Fp6E2M3) => !applied.is_empty(),
            _ => true,
        }
    }

    /// The 16-bit format this device multiplies fastest; BF16 when it makes no difference.
    pub fn sixteen_bit(&self) -> Format {
        match self.fastest(&[Math::Bf16, Math::Fp16]) {
            Some(Math::Fp16) => Format::FP16,
            _ => Format::BF16,
        }
    }

    /// The least and the most that its memory may deliver: the rated bandwidth and what was measured, else the published
    /// range. None where nobody said anything but the rated figure.
    pub fn bandwidth_band(&self) -> Option<(ByteRate, ByteRate)> {
        let rated = self.memory.bandwidth;
        let measured = self.measured.as_ref().and_then(|measured| measured.bandwidth).map(|rate| (rate, rate));
        let range = || self.memory.bandwidth_range.as_ref().map(|range| (range.low, range.high));
        let (low, high) = measured.or_else(range)?;
        Some((low.min(rated), high.max(rated)))
    }

    /// Where memory and compute time are equal: peak over bandwidth.
    pub fn critical_intensity(&self, math: Math) -> Option<Intensity> {
        Some(self.peaks.of(math)? / self.memory.bandwidth)
    }

    /// Everything it answers to, as keys.
    pub fn names(&self) -> impl Iterator<Item = String> + '_ {
        let names = [&self.key, &self.name].into_iter().chain(&self.aliases).chain(&self.reported_names);
        names.map(|name| key_of(name))
    }

    /// Bandwidth one way and latency per step of the link between `ranks` devices: the interconnect, else the host link, which
    /// is also the one where bridges join pairs and there are more. The latencies are those of NCCL's own tuning model for low-latency rings (src/graph/tuning.cc: NVLink 0.6 us, PCIe
    /// 1 us).
    pub fn link(&self, ranks: Dim) -> Result<Between> {
        let reaches = |link: &&Link| ranks.get() <= 2 || !link.kind.contains("pairs only");
        let link = self.interconnect.as_ref().filter(reaches).or(self.host_link.as_ref());
        let rate = link.and_then(|link| link.per_direction.or(link.total.map(|total| total / 2.0)));
        let (Some(link), Some(rate)) = (link, rate) else {
            let reason = "its file names no link to other devices".to_owned();
            return Err(Error::Device { key: self.key.clone(), reason });
        };
        let hosted = link.kind.starts_with("PCIe");
        let hop = Seconds::new(if hosted { 1e-6 } else { 0.6e-6 });
        Ok(Between { rate, hop, hosted })
    }

    /// Key and power mode, as `on` takes them.
    pub fn label(&self) -> String {
        let modified = if self.origin == Origin::Modified { " (modified)" } else { "" };
        match &self.mode {
            Some(mode) => format!("{}@{mode}{modified}", self.key),
            None => format!("{}{modified}", self.key),
        }
    }
}

/// What is wrong and where, without quoting a hostile file.
fn located(text: &str, error: &toml::de::Error) -> String {
    match error.span().and_then(|span| text.get(..span.start)) {
        Some(before) => format!("line {}: {}", before.matches('\n').count() + 1, error.message()),
        None => error.message().to_owned(),
    }
}

/// `text` as a key: lower case, with an underscore for everything that is no letter, digit or point.
pub fn key_of(text: &str) -> String {
    let keep = |letter: char| if letter.is_ascii_alphanumeric() || letter == '.' { letter } else { '_' };
    text.trim().chars().map(|letter| keep(letter.to_ascii_lowercase())).collect()
}
