//! What a kernel is likely to take, by cause, and within which bounds.

use super::{Bound, Estimate, Outlook};
use crate::units::Seconds;

/// What one kernel or several are expected to take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// The time.
    pub time: Outlook,
    /// Nine of ten measurements should lie between this
    pub low: Outlook,
    /// and this.
    pub high: Outlook,
    /// Starting.
    pub launch: Seconds,
    /// Moving bytes.
    pub memory: Seconds,
    /// Widening and multiplying.
    pub compute: Seconds,
    /// Exchanging with other devices.
    pub network: Seconds,
}

/// A time by cause, before anything is said of how sure it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Causes {
    /// All of it; not the sum, since some of it overlaps.
    pub time: Seconds,
    /// Starting.
    pub launch: Seconds,
    /// Moving bytes.
    pub memory: Seconds,
    /// Widening and multiplying.
    pub compute: Seconds,
    /// Exchanging with other devices.
    pub network: Seconds,
}

impl Causes {
    /// What takes longest.
    pub fn bound(&self) -> Bound {
        let Self { launch, memory, compute, network, .. } = *self;
        if launch > memory && launch > compute && launch > network {
            Bound::Launch
        } else if network > memory && network > compute {
            Bound::Network
        } else if memory >= compute {
            Bound::Memory
        } else {
            Bound::Compute
        }
    }
}

impl Expected {
    /// `causes` within `factor` either way, nine times of ten. Nothing is expected to be faster than the
    /// floor: terms that say so are wrong by that much.
    pub(crate) fn new(causes: Causes, factor: f64, ideal: &Estimate) -> Self {
        let Causes { time, launch, memory, compute, network } = causes;
        let floor = ideal.time().seconds();
        let time = time.max(floor);
        let (low, high) = (Outlook::new((time / factor).max(floor)), Outlook::new(time * factor));
        Self { time: Outlook::new(time), low, high, launch, memory, compute, network }
    }

    /// What takes longest.
    pub fn bound(&self) -> Bound {
        let Self { launch, memory, compute, network, .. } = *self;
        Causes { time: self.time.seconds(), launch, memory, compute, network }.bound()
    }

    /// The same `count` times.
    #[must_use]
    pub(crate) fn times(self, count: u64) -> Self {
        let count = count as f64;
        Self {
            time: self.time * count,
            low: self.low * count,
            high: self.high * count,
            launch: self.launch * count,
            memory: self.memory * count,
            compute: self.compute * count,
            network: self.network * count,
        }
    }

    /// One after the other. The error is mostly in the terms, which all kernels share, so intervals add.
    #[must_use]
    pub fn then(self, next: Self) -> Self {
        Self {
            time: self.time + next.time,
            low: self.low + next.low,
            high: self.high + next.high,
            launch: self.launch + next.launch,
            memory: self.memory + next.memory,
            compute: self.compute + next.compute,
            network: self.network + next.network,
        }
    }
}
