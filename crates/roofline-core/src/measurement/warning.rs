//! Doubts about a measurement: what is wrong, why, and what to do about it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Something that may have made a number untrue.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[schemars(rename = "MeasurementWarning")]
pub enum Warning {
    /// Faster than the roof: a cache served the bytes, or the roof is wrong.
    AboveRoofline {
        /// Measured over possible.
        ratio: f64,
    },
    /// The median is not known as well as was asked for.
    Noisy {
        /// Half width of its 95 % confidence interval, in percent.
        confidence_pct: f64,
        /// What was asked for.
        wanted_pct: f64,
    },
    /// Too few samples to say how well the median is known.
    FewSamples {
        /// How many there are.
        samples: usize,
    },
    /// The clock fell; samples taken meanwhile were discarded.
    Throttled {
        /// Samples thrown away.
        discarded: u32,
        /// Lowest clock seen, over the highest.
        clock_ratio: f64,
    },
    /// The whole measurement ran below the clock that the machine is known to reach.
    LowClock {
        /// The clock while it ran, over the best one that was seen or is known.
        clock_ratio: f64,
    },
    /// The power limit held the clock down while the kernel ran: no doubt about its time, but what that time is of.
    PowerLimited {
        /// The median clock of the samples that ran so, in MHz.
        clock_mhz: f64,
        /// That clock over the best one that was seen or is known.
        clock_ratio: f64,
    },
    /// Somebody else had the processor.
    Interrupted {
        /// Time that a hypervisor gave to others, in percent of the run, averaged over processors.
        stolen_pct: f64,
        /// Times that the scheduler took a core away.
        preemptions: u64,
    },
    /// So short that the clock's own cost shows.
    TooFast {
        /// The clock's cost over the sample.
        overhead_pct: f64,
    },
    /// The copies do not fit past the caches: what was called cold is partly warm.
    NotCold {
        /// Bytes of all copies over the bytes of the caches.
        times_cache: f64,
    },
}

impl Warning {
    /// A name for tables.
    pub fn name(&self) -> &'static str {
        match self {
            Self::AboveRoofline { .. } => "above the roof",
            Self::Noisy { .. } => "noisy",
            Self::FewSamples { .. } => "few samples",
            Self::Throttled { .. } => "slow clock",
            Self::LowClock { .. } => "low clock",
            Self::PowerLimited { .. } => "power-limited",
            Self::Interrupted { .. } => "interrupted",
            Self::TooFast { .. } => "too fast",
            Self::NotCold { .. } => "not cold",
        }
    }

    /// Whether others may have slowed the machine down meanwhile: measured again, it may be gone.
    pub fn is_disturbance(&self) -> bool {
        matches!(self, Self::Noisy { .. } | Self::LowClock { .. } | Self::Interrupted { .. })
    }

    /// In a sentence, with what to do.
    pub fn sentence(&self) -> String {
        match self {
            Self::AboveRoofline { ratio } => format!(
                "{ratio:.2} times the roof: a cache served part of the bytes, or the device's peak is set too low; \
                 measure without `⟨warm⟩` and look at `⟨roofline devices this⟩`"
            ),
            Self::Noisy { confidence_pct, wanted_pct } => format!(
                "the median is known to {confidence_pct:.1} % only ({wanted_pct:.1} % wanted): close other programs or \
                 give it more time by `⟨seconds⟩`"
            ),
            Self::FewSamples { samples } => format!(
                "{samples} samples say little about how well the median is known: give it more time by `⟨seconds⟩`"
            ),
            Self::Throttled { discarded, clock_ratio } => format!(
                "it ran at {:.0} % of its best clock, throttled or shared with others; {discarded} samples taken \
                 meanwhile were discarded: let the machine cool and close other programs",
                clock_ratio * 100.0
            ),
            Self::LowClock { clock_ratio } => format!(
                "all of it ran at {:.0} % of the clock that this machine reaches: hot, saving power, shared with others, \
                 or slowed by wide vectors; let it cool and close other programs, or see with \
                 `⟨roofline devices this --measure⟩` what it reaches now",
                clock_ratio * 100.0
            ),
            Self::PowerLimited { clock_mhz, clock_ratio } => format!(
                "the power limit held the clock at {clock_mhz:.0} MHz, {:.0} % of its best: that is what this kernel takes \
                 here, and its samples count; a higher limit (`nvidia-smi -pl`) would make it faster",
                clock_ratio * 100.0
            ),
            Self::Interrupted { stolen_pct, preemptions } => format!(
                "others had the processor: {stolen_pct:.1} % of the time stolen, {preemptions} preemptions; measure on \
                 an idle machine"
            ),
            Self::TooFast { overhead_pct } => {
                format!("so short that reading the clock is {overhead_pct:.0} % of it; take a larger shape")
            }
            Self::NotCold { times_cache } => format!(
                "all copies together are only {times_cache:.1} times the caches, so part of the bytes came from there; \
                 free some memory"
            ),
        }
    }
}
