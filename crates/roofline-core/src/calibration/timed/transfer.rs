//! Terms of a device that nobody timed, from those of another of its architecture.
//!
//! Rates follow what limits them: reading the bandwidth, multiplying the peak of its unit, what a multiprocessor takes from the
//! L2 the clock, room in the L2 its size. Starting a kernel and waiting take as long as they did.

use super::{TimedTerms, spec::at};
use crate::Device;

impl TimedTerms {
    /// The same kernels on `to`, whose architecture is that of `from`, where they were timed.
    pub(in crate::calibration) fn moved(&self, from: &Device, to: &Device) -> Option<Self> {
        let multiprocessors = to.units.count()?;
        let bandwidth = to.memory.bandwidth / from.memory.bandwidth;
        let clock = match (from.clock.boost, to.clock.boost) {
            (Some(from), Some(to)) => to / from,
            _ => 1.0,
        };
        let cores = f64::from(multiprocessors) / f64::from(self.multiprocessors);
        let room = to.cache.l2?.value() / from.cache.l2?.value();
        let mut kernels = self.kernels.clone();
        kernels.retain_mut(|kernel| {
            let math = kernel.dtype.math();
            let (Some(theirs), Some(own)) = (to.peaks.of(math), from.peaks.of(math)) else { return false };
            let peak = theirs / own;
            let mut scale = |term: usize, factor: f64| {
                let value = kernel.terms.get(term);
                kernel.terms.set(term, value * factor);
            };
            scale(at::READ, bandwidth);
            scale(at::RATE, peak);
            scale(at::VECTOR, clock * cores);
            scale(at::PAIR, 1.0 / (clock * cores));
            scale(at::WRITE, clock * cores);
            scale(at::STREAM, clock);
            for term in [at::ROW, at::ELEMENT] {
                scale(term, 1.0 / (clock * cores));
            }
            for term in [at::WARM_WEIGHTS, at::WARM_INPUT, at::WARM_OUTPUT, at::WARM_CACHE] {
                scale(term, room);
            }
            true
        });
        Some(Self { multiprocessors, kernels })
    }
}
