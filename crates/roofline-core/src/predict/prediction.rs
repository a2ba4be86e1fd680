//! Both tiers of one thing, and the ratios that may be made of them.

use schemars::JsonSchema;
use serde::Serialize;

use super::{Bound, Estimate, Expected};
use crate::{text::named, units::Seconds};

/// Which of the two times is spoken of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tier {
    /// The floor: nothing is faster.
    Ideal,
    /// What is likely.
    #[default]
    Expected,
}

impl Tier {
    /// Both.
    pub const ALL: &[Self] = &[Self::Ideal, Self::Expected];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ideal => "ideal",
            Self::Expected => "expected",
        }
    }
}

named!(Tier, "tier", "tiers", "Which of the two times is spoken of: the floor, or what is likely.");

/// What a kernel, or several, must take and what they are likely to take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// The floor.
    pub ideal: Estimate,
    /// What is likely.
    pub expected: Expected,
}

impl Prediction {
    /// The time of a tier.
    pub fn time(&self, tier: Tier) -> Seconds {
        match tier {
            Tier::Ideal => self.ideal.time().seconds(),
            Tier::Expected => self.expected.time.seconds(),
        }
    }

    /// What takes longest in a tier.
    pub fn bound(&self, tier: Tier) -> Bound {
        match tier {
            Tier::Ideal => self.ideal.bound(),
            Tier::Expected => self.expected.bound(),
        }
    }

    /// How many times as fast as `baseline`, in one tier.
    pub fn speedup(&self, baseline: &Self, tier: Tier) -> f64 {
        match tier {
            Tier::Ideal => baseline.ideal.time() / self.ideal.time(),
            Tier::Expected => baseline.expected.time / self.expected.time,
        }
    }

    /// Which part of `whole` this is, in one tier.
    pub fn share(&self, whole: &Self, tier: Tier) -> f64 {
        whole.speedup(self, tier)
    }

    /// One after the other.
    #[must_use]
    pub fn then(self, next: Self) -> Self {
        Self { ideal: self.ideal.then(next.ideal), expected: self.expected.then(next.expected) }
    }

    /// The same `count` times.
    #[must_use]
    pub fn times(self, count: u64) -> Self {
        Self { ideal: self.ideal.times(count), expected: self.expected.times(count) }
    }
}

/// Which ratio a speed-up comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "SpeedupReason")]
pub enum Reason {
    /// Both wait for memory: the ratio of the bytes.
    Bytes,
    /// Both wait for the units: the ratio of the peaks.
    Peak,
    /// One waits for memory, the other for the units.
    Crossover,
    /// Several kernels with different reasons.
    Mixed,
}

impl Reason {
    /// Of the ideal ratio of `estimate` over `baseline`, for the same computation on one device.
    pub fn of(estimate: &Estimate, baseline: &Estimate) -> Self {
        match (estimate.bound(), baseline.bound()) {
            _ if estimate.is_mixed() || baseline.is_mixed() => Self::Mixed,
            (Bound::Memory, Bound::Memory) => Self::Bytes,
            (Bound::Compute, Bound::Compute) => Self::Peak,
            _ => Self::Crossover,
        }
    }
}
