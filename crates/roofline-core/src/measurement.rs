//! What was measured: samples, doubts and provenance, never a mean alone.
//!
//! These are plain data, so that a run made on one machine can be analysed on any other; `roofline-run` fills them.

mod summary;
mod warning;

pub use summary::{Summary, quantile};
pub use warning::Warning;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Device, Math, Op, Precision, Result as CoreResult, Work,
    format::Sizes,
    graph::Node,
    predict::Estimate,
    units::{ByteRate, Bytes, FlopRate, Flops, FlopsPerJoule, Joules, Seconds, Watts},
};

/// Where the operands were before each sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Residency {
    /// Weights and caches are in memory: every sample reads another copy, and all copies together are past the processor's
    /// caches. Inputs and outputs of products and attention stay where the kernel before would have left them.
    #[default]
    Cold,
    /// In the caches, as far as they fit: every sample reads the same copy.
    Warm,
}

impl std::fmt::Display for Residency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Cold => "cold",
            Self::Warm => "warm",
        })
    }
}

/// The pass of a model that a kernel belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "ModelPhase")]
pub enum Phase {
    /// One new token for each sequence.
    Decode,
    /// The whole prompt.
    Prefill,
}

impl Phase {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::Prefill => "prefill",
        }
    }
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Phase {
    type Err = crate::Error;

    fn from_str(text: &str) -> crate::Result<Self> {
        let named = [Self::Decode, Self::Prefill].into_iter().find(|phase| phase.name() == text);
        named.ok_or_else(|| crate::Error::unknown("phase", text, ["decode", "prefill"], "prefill or decode"))
    }
}

/// How a kernel comes from stored numbers to multiplied ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "KernelPath")]
pub enum Path {
    /// What is stored is what multiplies.
    Native,
    /// Stored narrow, widened in registers or on the way into the cache: memory sees the narrow bytes only.
    FusedDequant,
    /// Widened to memory first, then read again: slower than storing wide.
    CastEmulated,
    /// A kernel of others, of which only its author knows.
    Unknown,
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Native => "native",
            Self::FusedDequant => "fused_dequant",
            Self::CastEmulated => "cast_emulated",
            Self::Unknown => "unknown",
        })
    }
}

/// The code that ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "MeasuredKernel")]
pub struct Kernel {
    /// Its name, such as `gemv int4-g128 avx512`.
    pub name: String,
    /// How it reads its weights.
    pub path: Path,
    /// The unit it multiplies with.
    pub math: Math,
}

/// How far a kernel's result was from a float64 reference. [`Check::of`] refuses a result that is too far off, and so does
/// whatever reads one: nothing wrong is ever timed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "MeasurementCheck")]
pub struct Check {
    /// Root mean square of the error over that of the reference.
    pub error: f64,
    /// Largest error over the root mean square of the reference.
    pub worst: f64,
    /// The largest `error` that is accepted.
    pub limit: f64,
    /// Values compared.
    pub values: u64,
}

/// A single wrong value hides in the root mean square of many; it may be this many limits off.
const WORST: f64 = 64.0;

impl Check {
    /// Compares `result` with `reference`; the text of the error says how far they are apart.
    pub fn of(result: &[f64], reference: &[f64], limit: f64) -> Result<Self, String> {
        if result.len() != reference.len() || result.is_empty() {
            return Err(format!("{} values, {} expected", result.len(), reference.len()));
        }
        let mean = |sum: f64| (sum / result.len() as f64).sqrt();
        let scale = mean(reference.iter().map(|value| value * value).sum());
        let off = || result.iter().zip(reference).map(|(result, reference)| (result - reference).abs());
        // A reference of zeros is matched exactly or not at all.
        let relative = |off: f64| if off == 0.0 { 0.0 } else { off / scale };
        let error = relative(mean(off().map(|off| off * off).sum()));
        let worst = relative(off().fold(0.0, f64::max));
        let check = Self { error, worst, limit, values: result.len() as u64 };
        // Written so that a NaN fails.
        if check.error <= limit && check.worst <= limit * WORST {
            Ok(check)
        } else {
            Err(format!("relative error {error:.2e} (worst value {worst:.2e}) where {limit:.0e} is allowed"))
        }
    }
}

/// What a call costs in energy, while the machine does nothing else: idle power is in it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "MeasuredEnergy")]
pub struct Energy {
    /// Calls that were made while power was watched.
    pub calls: u64,
    /// Joules per call, by power over time.
    #[serde(rename = "integrated_j", with = "crate::units::number")]
    #[schemars(with = "f64")]
    pub integrated: Joules,
    /// Joules per call, by the driver's own counter, where it has one.
    pub counted_j: Option<f64>,
    /// Mean power, in watts.
    #[serde(rename = "power_w", with = "crate::units::number")]
    #[schemars(with = "f64")]
    pub power: Watts,
    /// Mean clock of what computes.
    pub clock_mhz: Option<f64>,
}

/// What the clock of a core did while a kernel was sampled.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "MeasuredClocks")]
pub struct Clocks {
    /// Clock before the first sample, in MHz.
    pub first_mhz: f64,
    /// Clock after the last sample, in MHz.
    pub last_mhz: f64,
    /// Lowest clock seen between two blocks of samples, in MHz.
    pub lowest_mhz: f64,
    /// The clock that the machine is known to reach, in MHz.
    pub known_mhz: Option<f64>,
}

/// One kernel's time on one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Stored")]
pub struct Measurement {
    /// Where the kernel belongs: `gemv`, `q_proj`, ...
    pub site: String,
    /// The pass that it is a part of, where it is one of a model's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// The precision's name, as asked for.
    pub precision: String,
    /// What was computed.
    pub op: Op,
    /// The formats of its operands.
    pub formats: Precision,
    /// How often it runs in whatever it is a part of; it was timed alone.
    pub count: u64,
    /// Where the operands were.
    pub residency: Residency,
    /// Who ran it: `cpu`, `cuda`, `null`.
    pub backend: String,
    /// The code that ran.
    pub kernel: Kernel,
    /// How far its result was from a reference.
    pub check: Check,
    /// Each accepted sample: one call of the kernel.
    #[serde(rename = "samples_us", with = "micros")]
    #[schemars(with = "Vec<f64>")]
    samples: Vec<Seconds>,
    /// Samples that were taken while something else held the machine, and thrown away.
    pub discarded: u32,
    /// Bytes that had to move at least: the operator's, at their exact stored sizes.
    #[serde(with = "crate::units::number")]
    #[schemars(with = "f64")]
    pub bytes: Bytes,
    /// Bytes that this kernel read and wrote: those, and what it puts into memory only to read it again.
    #[serde(with = "crate::units::number")]
    #[schemars(with = "f64")]
    pub moved: Bytes,
    /// What may have made the number untrue.
    pub warnings: Vec<Warning>,
    /// The clock, where it could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<Clocks>,
    /// Energy, where it was asked for and could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy: Option<Energy>,
    /// What the samples say.
    summary: Summary,
}

/// A measurement as a file holds it; the summary is made from the samples, whatever the file says.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "StoredMeasurement")]
struct Stored {
    site: String,
    #[serde(default)]
    phase: Option<Phase>,
    precision: String,
    op: Op,
    formats: Precision,
    count: u64,
    residency: Residency,
    backend: String,
    kernel: Kernel,
    check: Check,
    #[serde(rename = "samples_us", with = "micros")]
    #[schemars(with = "Vec<f64>")]
    samples: Vec<Seconds>,
    discarded: u32,
    /// Not in files of before it was counted: then as many as had to.
    #[serde(default)]
    moved: Option<f64>,
    warnings: Vec<Warning>,
    #[serde(default)]
    clock: Option<Clocks>,
    #[serde(default)]
    energy: Option<Energy>,
}

impl TryFrom<Stored> for Measurement {
    type Error = String;

    fn try_from(stored: Stored) -> Result<Self, String> {
        let Stored { site, phase, precision, op, formats, count, residency, backend, .. } = stored;
        let Stored { kernel, check, samples, discarded, moved, warnings, clock, energy, .. } = stored;
        let op = op.checked().map_err(|error| error.to_string())?;
        let right = check.error <= check.limit;
        if count == 0 || !right {
            return Err("a measurement that never ran, or was wrong".to_owned());
        }
        if moved.is_some_and(|moved| !(moved.is_finite() && moved >= 0.0)) {
            return Err("a measurement that moved fewer than no bytes".to_owned());
        }
        let cast = kernel.path == Path::CastEmulated;
        let subject = Subject { site, phase, precision, op, formats, count, cast };
        let measured = Self::new(subject, residency, backend, kernel, check, samples);
        measured
            .map(|measured| Self {
                discarded,
                moved: moved.map_or(measured.bytes, Bytes::new),
                warnings,
                clock,
                energy,
                ..measured
            })
            .ok_or_else(|| "a measurement without positive samples".to_owned())
    }
}

/// What is to be measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Subject {
    /// Where the kernel belongs.
    pub site: String,
    /// The pass that it is a part of, where it is one of a model's.
    pub phase: Option<Phase>,
    /// The precision's name.
    pub precision: String,
    /// What is computed.
    pub op: Op,
    /// The formats of its operands.
    pub formats: Precision,
    /// How often it runs in whatever it is a part of.
    pub count: u64,
    /// Whether to cast the weights to memory first, which is what not to do.
    pub cast: bool,
}

impl Subject {
    /// A node of a graph at a precision.
    pub fn new(node: &Node, precision: &str, formats: Precision) -> Self {
        let (site, op, count) = (node.site.to_owned(), node.op, node.count);
        Self { site, phase: None, precision: precision.to_owned(), op, formats, count, cast: false }
    }

    /// The same as a part of a model's pass.
    #[must_use]
    pub fn of(self, phase: Phase) -> Self {
        Self { phase: Some(phase), ..self }
    }

    /// Kind, shape and precision in words.
    pub fn words(&self) -> String {
        let cast = if self.cast { " (cast)" } else { "" };
        format!("{} {}{cast}", self.op.words(&self.site), self.precision)
    }
}

impl Measurement {
    /// None where there is no sample, or one that is no time.
    pub fn new(
        subject: Subject,
        residency: Residency,
        backend: String,
        kernel: Kernel,
        check: Check,
        samples: Vec<Seconds>,
    ) -> Option<Self> {
        let summary = Summary::of(&samples)?;
        let Subject { site, phase, precision, op, formats, count, .. } = subject;
        let bytes = op.work(&formats, Sizes::Exact).bytes();
        let (discarded, warnings) = (0, Vec::new());
        Some(Self {
            site,
            phase,
            precision,
            op,
            formats,
            count,
            residency,
            backend,
            kernel,
            check,
            samples,
            discarded,
            bytes,
            moved: bytes,
            warnings,
            clock: None,
            energy: None,
            summary,
        })
    }

    /// The same kernel where `subject` has it.
    #[must_use]
    pub fn at(self, subject: &Subject) -> Self {
        let (site, precision) = (subject.site.clone(), subject.precision.clone());
        Self { site, precision, phase: subject.phase, count: subject.count, ..self }
    }

    /// Each accepted sample.
    pub fn samples(&self) -> &[Seconds] {
        &self.samples
    }

    /// What the samples say.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The median, which is what a measurement is quoted as.
    pub fn time(&self) -> Seconds {
        self.summary.median
    }

    /// The operator's work, at exact sizes.
    pub fn work(&self) -> Work {
        self.op.work(&self.formats, Sizes::Exact)
    }

    /// Whether it shows signs of others who had the machine. They can only have made it slower.
    pub fn is_disturbed(&self) -> bool {
        self.warnings.iter().any(Warning::is_disturbance)
    }

    /// Operations per second.
    pub fn rate(&self) -> FlopRate {
        self.work().flops / self.time()
    }

    /// Bytes that moved, per second.
    pub fn bandwidth(&self) -> ByteRate {
        self.moved / self.time()
    }

    /// The least time on `device` of what the kernel did: the operator's, or that of the bytes it moved where those are
    /// more. A kernel that takes a detour may keep the memory as busy as one that does not.
    pub fn roof(&self, device: &Device) -> CoreResult<Seconds> {
        let ideal = Estimate::of(&self.op, &self.formats, Sizes::Exact, device)?;
        Ok(ideal.time().seconds().max(self.moved / device.memory.bandwidth))
    }

    /// Operations per joule, which is FLOP/s per watt.
    pub fn efficiency(&self) -> Option<FlopsPerJoule> {
        let flops = self.work().flops;
        self.energy
            .filter(|energy| energy.integrated > Joules::ZERO && flops > Flops::ZERO)
            .map(|energy| flops / energy.integrated)
    }

    /// What was measured.
    pub fn subject(&self) -> Subject {
        let (site, precision, cast) =
            (self.site.clone(), self.precision.clone(), self.kernel.path == Path::CastEmulated);
        Subject { site, phase: self.phase, precision, op: self.op, formats: self.formats, count: self.count, cast }
    }

    /// Whether `other` measured the same thing the same way, so that a resumed run need not do it again.
    pub fn repeats(&self, subject: &Subject, residency: Residency, backend: &str) -> bool {
        self.op == subject.op
            && self.formats == subject.formats
            && self.precision == subject.precision
            && self.site == subject.site
            && self.phase == subject.phase
            && self.residency == residency
            && self.backend == backend
            && (self.kernel.path == Path::CastEmulated) == subject.cast
    }
}

/// Times as microseconds.
mod micros {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::units::Seconds;

    pub(super) fn serialize<S: Serializer>(times: &[Seconds], serializer: S) -> Result<S::Ok, S::Error> {
        // A nanosecond is finer than any clock used here.
        let rounded = |time: &Seconds| (time.micros() * 1e3).round() / 1e3;
        times.iter().map(rounded).collect::<Vec<f64>>().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Seconds>, D::Error> {
        Ok(Vec::<f64>::deserialize(deserializer)?.into_iter().map(Seconds::from_micros).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_result_is_no_check() {
        let reference: Vec<f64> = (0..1000).map(|value| f64::from(value) - 500.0).collect();
        let near: Vec<f64> = reference.iter().map(|value| value * 1.001).collect();
        let check = Check::of(&near, &reference, 2e-3).unwrap();
        assert!((check.error - 1e-3).abs() < 1e-9, "{}", check.error);
        assert!(Check::of(&near, &reference, 5e-4).unwrap_err().contains("where 5e-4 is allowed"));
        // One value out of a thousand, off by twice the scale: 6 % in the root mean square, and 200 % itself.
        let mut one = reference.clone();
        one[3] += 600.0;
        assert!(Check::of(&one, &reference, 0.1).is_ok());
        assert!(Check::of(&one, &reference, 1e-2).is_err());
        one[3] = f64::NAN;
        assert!(Check::of(&one, &reference, 0.1).is_err());
        assert!(Check::of(&[0.0], &[0.0], 1e-9).is_ok());
        assert!(Check::of(&[1e-30], &[0.0], 1e-9).is_err());
        assert!(Check::of(&[], &[], 1.0).is_err());
    }
}
