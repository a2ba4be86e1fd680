//! What a machine really does: the expected tier.
//!
//! The ideal roofline is the speed of light. Real kernels also start, widen what they read, fill a machine in waves and
//! reach a share of each peak. A calibration holds those terms for one device and one stack of kernels, fitted to
//! measurements, each with a name, a unit and a meaning. A processor has the form of [`Plain`], a GPU that of [`Blocks`].

mod blocks;
mod fit;
mod plain;
mod quality;
mod shipped;
mod terms;

pub use blocks::{Blocks, Lane, LaneTerms, Remainder, Shared};
pub use fit::{Sample, fit};
pub use plain::{Pack, Plain, Rate, Touch, Unpack};
pub use quality::{FamilyQuality, Quality, Spread};
pub use terms::{Family, Terms, ThinRows};

use serde::{Deserialize, Serialize};

use crate::{Error, Graph, Op, Plan, Precision, Result, format::Sizes, predict::Bound, units::Seconds};

/// Fitted terms with where they come from and how good they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The device, as `--on` takes it.
    pub device: String,
    /// Whose kernels ran.
    pub stack: String,
    /// When, and on what: a date and a machine in words.
    pub provenance: String,
    /// The terms.
    pub terms: Terms,
    /// How well they predict shapes they were not fitted to.
    pub quality: Quality,
}

/// What one kernel or several are expected to take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// The time.
    pub time: Seconds,
    /// Nine of ten measurements should lie between this
    pub low: Seconds,
    /// and this.
    pub high: Seconds,
    /// Starting.
    pub launch: Seconds,
    /// Moving bytes.
    pub memory: Seconds,
    /// Widening and multiplying.
    pub compute: Seconds,
}

impl Expected {
    /// What takes longest.
    pub fn bound(&self) -> Bound {
        if self.launch > self.memory && self.launch > self.compute {
            Bound::Launch
        } else if self.memory >= self.compute {
            Bound::Memory
        } else {
            Bound::Compute
        }
    }

    fn times(self, count: u64) -> Self {
        let count = count as f64;
        Self {
            time: self.time * count,
            low: self.low * count,
            high: self.high * count,
            launch: self.launch * count,
            memory: self.memory * count,
            compute: self.compute * count,
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
        }
    }
}

impl Calibration {
    /// Refuses terms that no machine has, for a calibration that comes from a file.
    pub fn checked(self) -> Result<Self> {
        if self.terms.sensible() && self.quality.sensible() {
            return Ok(self);
        }
        let reason = "a rate, a cost, a share or the interval is outside what a machine can have".to_owned();
        Err(Error::Calibration { device: self.device, reason })
    }

    /// The family of a kernel; none for one that this form does not describe.
    pub fn family(&self, op: &Op, precision: &Precision) -> Option<Family> {
        let thin_rows = match &self.terms {
            Terms::Plain(terms) => ThinRows::all(terms.thin_rows),
            Terms::Blocks(terms) => terms.thin_rows,
        };
        Family::of(op, precision, thin_rows)
    }

    /// The expected time of one kernel; none where no term covers it.
    pub fn expect(&self, op: &Op, precision: &Precision, sizes: Sizes) -> Option<Expected> {
        let parts = self.terms.parts(op, precision, sizes)?;
        let (time, factor) = (parts.time, self.quality.interval_of(parts.family).exp());
        let [launch, memory, compute] = [parts.launch, parts.memory, parts.compute].map(Seconds::new);
        Some(Expected {
            time: Seconds::new(time),
            low: Seconds::new(time / factor),
            high: Seconds::new(time * factor),
            launch,
            memory,
            compute,
        })
    }

    /// The expected time of each kernel of `graph`, as often as it runs; the sites without one where some are not covered.
    pub fn forecast(
        &self,
        graph: &Graph,
        plan: &Plan,
        sizes: Sizes,
    ) -> std::result::Result<Vec<Expected>, Vec<&'static str>> {
        let (mut all, mut uncovered) = (Vec::new(), Vec::new());
        for node in &graph.nodes {
            match self.expect(&node.op, plan.at(node.place), sizes) {
                Some(expected) => all.push(expected.times(node.count)),
                None => uncovered.push(node.site),
            }
        }
        if uncovered.is_empty() { Ok(all) } else { Err(uncovered) }
    }

    /// The sum of several kernels.
    pub fn total(parts: &[Expected]) -> Option<Expected> {
        parts.iter().copied().reduce(Expected::then)
    }
}
