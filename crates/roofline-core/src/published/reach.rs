//! The terms of one runtime on one device.

use super::{Among, Regime, TERMS, Term, kernel::Kernel};
use crate::{
    predict::{Causes, Estimate, Expected},
    units::Seconds,
};

/// Kernels of a dense layer that is not fused: two norms, queries, keys, values, rotation, writing to the cache, attention,
/// output, gate, up, activation, down, and two sums with the residual stream.
const KERNELS_OF_A_LAYER: f64 = 15.0;

/// How much less sure one kernel is than the sum of a model's, in logarithms: their errors no longer even out.
const ALONE: f64 = 2.0;

/// What a runtime reaches of a device, and what it spends beside that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reach {
    values: [f64; TERMS],
    intervals: [f64; Regime::ALL.len()],
    known: bool,
}

impl Reach {
    pub(super) fn new(values: &[f64; TERMS], intervals: [f64; Regime::ALL.len()], known: bool) -> Self {
        let held = |term: usize| {
            let (least, most) = Term::ALL[term].bounds();
            values[term].clamp(least, most)
        };
        Self { values: std::array::from_fn(held), intervals, known }
    }

    /// The value of a term, in its unit.
    pub const fn value(&self, term: Term) -> f64 {
        self.values[term as usize]
    }

    /// Whether somebody published speeds of the runtime on such devices.
    pub const fn is_known(&self) -> bool {
        self.known
    }

    /// Within which factor four of five figures lie of a forecast.
    pub fn factor(&self, regime: Regime) -> f64 {
        self.intervals[regime as usize].exp()
    }

    /// What a kernel that stands alone takes to start.
    pub(crate) fn alone(&self) -> Seconds {
        self.micros(Term::Layer) / KERNELS_OF_A_LAYER
    }

    /// What a pass spends beside its kernels.
    pub(crate) fn beside(&self, layers: u64, sequences: f64) -> Seconds {
        self.micros(Term::Layer) * layers as f64 + self.micros(Term::Step) + self.micros(Term::Sequence) * sequences
    }

    fn micros(&self, term: Term) -> Seconds {
        Seconds::new(self.value(term) * 1e-6)
    }

    /// Seconds of a kernel that is running already.
    pub(super) fn body(&self, kernel: &Kernel) -> f64 {
        kernel.times(&self.values)[0]
    }

    /// What a kernel takes among others.
    pub(crate) fn expect(&self, kernel: &Kernel, among: Among, ideal: &Estimate) -> Expected {
        let Among { launch, regime, whole } = among;
        let [time, memory, compute, network] = kernel.times(&self.values).map(Seconds::new);
        let causes = Causes { time: launch + time, launch, memory, compute, network };
        let factor = self.factor(regime);
        Expected::new(causes, if whole { factor } else { factor.powf(ALONE) }, ideal)
    }
}
