//! What explains a measurement that is not what was predicted, and what to do about it.

use schemars::JsonSchema;
use serde::Serialize;

use super::{Pair, Status};
use crate::{
    Device,
    device::Origin,
    measurement::{Path, Residency, Warning},
    predict::Bound,
    units::Seconds,
};

/// A cause.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
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
    /// A product or an attention that reaches less than a third of its roof and takes a visible part of the time.
    SlowKernel {
        /// The share of the roof.
        of_roof: f64,
        /// The part of the time.
        share: f64,
    },
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

/// Samples that differ by less than this are not what noise looks like.
const NOISY: f64 = 1.2;

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
        return found;
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
            Warning::LowClock { clock_ratio } if slower => {
                found.push(Diagnosis::Throttled { clock_ratio: *clock_ratio });
            }
            Warning::Noisy { .. } | Warning::Interrupted { .. } => {
                let spread = observation.range.map_or(1.0, |(low, high)| high / low);
                let noisy = Diagnosis::NoisyNeighbour { spread };
                // Samples that agree with each other do not explain a time that is far off.
                let wide = spread >= NOISY && spread - 1.0 >= pair.error() / 2.0;
                if slower && wide && !found.contains(&noisy) {
                    found.push(noisy);
                }
            }
            _ => {}
        }
    }
    if slower && tiny(pair) {
        found
            .push(Diagnosis::LaunchOverhead { overhead_us: (observation.time - pair.ideal.time().seconds()).micros() });
    }
    let half = (1.8..2.3).contains(&(observation.time / pair.ideal.time().seconds()));
    // The registry's peaks are dense; a figure that somebody copied from a data sheet may not be.
    let copied = device.origin != Origin::Builtin;
    if half && copied && pair.ideal.bound() == Bound::Compute && device.sparse_factor.is_some_and(|factor| factor > 1.0)
    {
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

/// Whether a kernel is so small that, without a calibration, what it takes beyond the ideal is put down to its start.
fn tiny(pair: &Pair) -> bool {
    pair.observation.time < TINY && pair.calibrated().is_none()
}

/// Whether starting it is most of what a kernel does: then its roof says nothing about its code.
pub(super) fn mostly_launch(pair: &Pair) -> bool {
    pair.bound() == Bound::Launch || tiny(pair)
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
            Self::SlowKernel { .. } => "slow kernel",
            Self::Unexplained { .. } => "unexplained",
        }
    }

    /// In a sentence, with what to do.
    pub fn sentence(&self) -> String {
        match self {
            Self::CacheResident { ratio } => format!(
                "{ratio:.2} times the memory bandwidth: a cache served part of the bytes (measure cold, or a larger shape), \
                 or the bandwidth is set too low (`⟨roofline devices this --measure⟩`)"
            ),
            Self::WrongPeak { ratio } => format!(
                "{ratio:.2} times the peak: the device's figure is too low (another clock, another unit); check \
                 `⟨roofline devices⟩` or give `⟨peak⟩`"
            ),
            Self::Emulated => {
                "the weights are cast to memory first, so their narrow format saves nothing: this is not \
                               the speed of the format, use a kernel that widens in registers"
                    .to_owned()
            }
            Self::LaunchOverhead { overhead_us } => format!(
                "{overhead_us:.1} us beyond the ideal in a kernel this small is the cost of starting it; \
                 `⟨roofline calibrate⟩` measures that cost, batching or fusing avoids it"
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
            Self::SlowKernel { of_roof, share } => format!(
                "it reaches {} % of its roof and takes {:.0} % of the time of what it belongs to: the roof allows {:.1} \
                 times its speed; look at the kernel, or take another format",
                percent(*of_roof),
                share * 100.0,
                1.0 / of_roof
            ),
            Self::Unexplained { ratio } if *ratio > 1.0 => format!(
                "{ratio:.2} times slower than predicted and no known cause: a kernel that leaves something on the table, \
                 or a cost that only a calibration knows; `⟨roofline calibrate⟩`, then look at the kernel"
            ),
            Self::Unexplained { ratio } => format!(
                "{:.2} times faster than predicted and no known cause: the machine may have been busier when it was \
                 calibrated; `⟨roofline calibrate⟩` again",
                1.0 / ratio
            ),
        }
    }
}

/// A share in percent, with a digit more where it would be nothing.
pub(super) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent < 1.0 { format!("{percent:.1}") } else { format!("{percent:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Machine,
        compare::{Comparison, Observation, compare, samples},
        machine::Stack,
        predict::Tier,
        units::ByteRate,
    };

    /// A product that took `ratio` times its ideal time.
    fn observed(rows: u64, side: u64, ratio: f64, change: impl Fn(&mut Observation)) -> Observation {
        let mut observation = samples::product("bf16", (rows, side, side), ratio);
        change(&mut observation);
        observation
    }

    fn names_on(device: &Device, observation: Observation) -> Vec<&'static str> {
        let Comparison { pairs, .. } =
            compare(&[observation], &Machine::new(device.clone(), Stack::Null), Tier::Ideal).unwrap();
        pairs[0].diagnoses.iter().map(Diagnosis::name).collect()
    }

    fn names(observation: Observation) -> Vec<&'static str> {
        names_on(&samples::device(), observation)
    }

    fn noisy(observation: &mut Observation, spread: f64) {
        observation.warnings.push(Warning::Noisy { confidence_pct: 1.2, wanted_pct: 1.0 });
        observation.range = Some((observation.time, observation.time * spread));
    }

    #[test]
    fn each_cause_has_its_signs() {
        let same = |_: &mut Observation| {};
        assert!(names(observed(1, 16384, 1.1, same)).is_empty(), "within a fifth nothing needs explaining");
        assert_eq!(names(observed(1, 16384, 0.5, same)), ["cache resident"]);
        assert_eq!(names(observed(8192, 8192, 0.8, same)), ["wrong peak"]);
        assert_eq!(names(observed(1, 256, 30.0, same)), ["launch overhead"]);
        assert_eq!(names(observed(1, 16384, 1.5, same)), ["unexplained"]);
        assert_eq!(names(observed(1, 16384, 4.0, |one| one.path = Some(Path::CastEmulated))), ["emulated path"]);
        let throttled = |discarded| {
            move |one: &mut Observation| one.warnings.push(Warning::Throttled { discarded, clock_ratio: 0.6 })
        };
        assert_eq!(names(observed(1, 16384, 1.5, throttled(80))), ["throttled"]);
        assert_eq!(names(observed(1, 16384, 1.5, throttled(3))), ["unexplained"], "three of a hundred explain nothing");
    }

    #[test]
    fn noise_explains_only_what_it_can() {
        assert_eq!(names(observed(1, 16384, 1.5, |one| noisy(one, 1.6))), ["noisy neighbour"]);
        assert_eq!(names(observed(1, 16384, 2.0, |one| noisy(one, 1.01))), ["unexplained"], "its samples agree");
        assert_eq!(names(observed(1, 16384, 3.0, |one| noisy(one, 1.3))), ["unexplained"], "far beyond the noise");
        let cast = |one: &mut Observation| {
            noisy(one, 5.0);
            one.path = Some(Path::CastEmulated);
        };
        assert_eq!(names(observed(1, 16384, 4.0, cast)), ["emulated path"]);
    }

    #[test]
    fn a_sparse_peak_is_suspected_only_of_figures_that_somebody_copied() {
        let half = observed(8192, 8192, 2.0, |_| {});
        assert_eq!(names(half.clone()), ["unexplained"]);
        let copied = Device { origin: Origin::User, ..samples::device() };
        assert_eq!(names_on(&copied, half.clone()), ["sparse peak"]);
        let mut slow = copied.clone();
        slow.memory.bandwidth = ByteRate::new(1e9);
        assert_eq!(names_on(&slow, half), ["cache resident"], "a bandwidth that is beaten comes first");
    }
}
