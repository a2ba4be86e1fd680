//! What explains a measurement that is not what was predicted, and what to do about it.

use serde::Serialize;

use super::{Pair, Status};
use crate::{
    Device,
    measurement::{Path, Residency, Warning},
    predict::Bound,
    units::Seconds,
};

/// A cause.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Diagnosis {
    /// More bytes per second than memory delivers.
    CacheResident {
        /// Measured bandwidth over the device's.
        ratio: f64,
    },
    /// More operations per second than the unit's peak.
    WrongPeak {
        /// Measured rate over the peak.
        ratio: f64,
    },
    /// A kernel that does not do what the format promises.
    Emulated,
    /// So little work that starting it takes longest.
    LaunchOverhead {
        /// What is left when the ideal time is taken away.
        overhead_us: f64,
    },
    /// The clock fell while it ran.
    Throttled {
        /// Lowest clock over the highest.
        clock_ratio: f64,
    },
    /// Others used the machine.
    NoisyNeighbour {
        /// 95th over 5th percentile of the samples.
        spread: f64,
    },
    /// Half of the predicted rate, on a device whose vendor quotes rates with structured sparsity.
    SparsePeak,
    /// None of these.
    Unexplained {
        /// Measured over predicted.
        ratio: f64,
    },
}

/// Kernels below this are at the mercy of whatever starts them.
const TINY: Seconds = Seconds::new(50e-6);
/// Measurements have errors, too: a peak is beaten when it is beaten by this much.
const MARGIN: f64 = 1.05;

/// Reasons for an error that needs one; a measurement above the roof always does.
pub(super) fn diagnose(pair: &Pair, device: &Device) -> Vec<Diagnosis> {
    let observation = &pair.observation;
    let efficiency = pair.efficiency();
    if pair.status() == Status::Ok && efficiency <= MARGIN {
        return Vec::new();
    }
    let mut found = Vec::new();
    if efficiency > MARGIN {
        let bandwidth = pair.bandwidth() / device.memory.bandwidth;
        found.push(if bandwidth > MARGIN {
            Diagnosis::CacheResident { ratio: bandwidth }
        } else {
            Diagnosis::WrongPeak { ratio: pair.ideal.compute / observation.time }
        });
    }
    if observation.path == Some(Path::CastEmulated) {
        found.push(Diagnosis::Emulated);
    }
    let slower = pair.ratio() > 1.0;
    for warning in &observation.warnings {
        match warning {
            // Samples at a low clock were discarded; where they were many, those that were kept are suspect, too.
            Warning::Throttled { discarded, clock_ratio }
                if slower && *discarded as usize > observation.samples / 2 =>
            {
                found.push(Diagnosis::Throttled { clock_ratio: *clock_ratio });
            }
            Warning::Noisy { .. } | Warning::Interrupted { .. } => {
                let spread = observation.range.map_or(1.0, |(low, high)| high / low);
                let noisy = Diagnosis::NoisyNeighbour { spread };
                if slower && !found.contains(&noisy) {
                    found.push(noisy);
                }
            }
            _ => {}
        }
    }
    if slower && observation.time < TINY && pair.expected.is_none() {
        found.push(Diagnosis::LaunchOverhead { overhead_us: (observation.time - pair.ideal.time()).micros() });
    }
    let half = (1.8..2.3).contains(&(observation.time / pair.ideal.time()));
    if half && pair.ideal.bound() == Bound::Compute && device.sparse_factor.is_some_and(|factor| factor > 1.0) {
        found.push(Diagnosis::SparsePeak);
    }
    if observation.residency == Some(Residency::Warm) && !slower && found.is_empty() {
        found.push(Diagnosis::CacheResident { ratio: pair.bandwidth() / device.memory.bandwidth });
    }
    if found.is_empty() {
        found.push(Diagnosis::Unexplained { ratio: pair.ratio() });
    }
    found
}

impl Diagnosis {
    /// A name for tables.
    pub fn name(&self) -> &'static str {
        match self {
            Self::CacheResident { .. } => "cache resident",
            Self::WrongPeak { .. } => "wrong peak",
            Self::Emulated => "emulated path",
            Self::LaunchOverhead { .. } => "launch overhead",
            Self::Throttled { .. } => "throttled",
            Self::NoisyNeighbour { .. } => "noisy neighbour",
            Self::SparsePeak => "sparse peak",
            Self::Unexplained { .. } => "unexplained",
        }
    }

    /// In a sentence, with what to do.
    pub fn sentence(&self) -> String {
        match self {
            Self::CacheResident { ratio } => format!(
                "{ratio:.2} times the memory bandwidth: a cache served part of the bytes (measure cold, or a larger shape), \
                 or the bandwidth is set too low (`roofline devices this --measure`)"
            ),
            Self::WrongPeak { ratio } => format!(
                "{ratio:.2} times the peak: the device's figure is too low (another clock, another unit); check \
                 `roofline devices` or give `--peak`"
            ),
            Self::Emulated => {
                "the weights are cast to memory first, so their narrow format saves nothing: this is not \
                               the speed of the format, use a kernel that widens in registers"
                    .to_owned()
            }
            Self::LaunchOverhead { overhead_us } => format!(
                "{overhead_us:.1} us beyond the ideal in a kernel this small is the cost of starting it; `roofline \
                 calibrate` measures that cost, batching or fusing avoids it"
            ),
            Self::Throttled { clock_ratio } => format!(
                "the clock fell to {:.0} % so often that a third of the samples had to go, and the rest may be slow, too: \
                 cool the machine or fix its frequency, and measure again",
                clock_ratio * 100.0
            ),
            Self::NoisyNeighbour { spread } => format!(
                "the 95th percentile of its samples is {spread:.1} times the 5th: others use the machine; measure when it \
                 is idle"
            ),
            Self::SparsePeak => "half of the predicted rate: the peak may have been quoted with structured sparsity; \
                                 dense products reach half of it"
                .to_owned(),
            Self::Unexplained { ratio } if *ratio > 1.0 => format!(
                "{ratio:.2} times slower than predicted and no known cause: a kernel that leaves something on the table, \
                 or a cost that only a calibration knows; `roofline calibrate`, then look at the kernel"
            ),
            Self::Unexplained { ratio } => format!(
                "{:.2} times faster than predicted and no known cause: the machine may have been busier when it was \
                 calibrated; `roofline calibrate` again",
                1.0 / ratio
            ),
        }
    }
}
