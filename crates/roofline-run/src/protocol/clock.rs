//! Hazard: a hot or shared machine lowers its clock or gives the core to somebody else, and samples taken meanwhile
//! measure that. The clock is read between blocks of samples; a block that ends slower than the best clock seen is
//! discarded and counted.

use roofline_core::{measurement::Warning, units::Hertz};

/// A clock below this share of the best one seen is not the machine that is being measured.
const LOWEST: f64 = 0.93;

/// What the clock did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch {
    best: Option<Hertz>,
    lowest: f64,
    discarded: u32,
}

impl Watch {
    /// Notes the clock after a block of `samples`; false where they are to be discarded.
    pub fn accept(&mut self, clock: Option<Hertz>, samples: usize) -> bool {
        let Some(clock) = clock else { return true };
        let best = self.best.map_or(clock, |best| best.max(clock));
        self.best = Some(best);
        let ratio = clock / best;
        if ratio >= LOWEST {
            return true;
        }
        self.lowest = if self.discarded == 0 { ratio } else { self.lowest.min(ratio) };
        self.discarded += samples as u32;
        false
    }

    /// Samples thrown away.
    pub fn discarded(&self) -> u32 {
        self.discarded
    }

    /// The doubt, where there is one.
    pub fn warning(&self) -> Option<Warning> {
        let Self { discarded, lowest: clock_ratio, .. } = *self;
        (discarded > 0).then_some(Warning::Throttled { discarded, clock_ratio })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_blocks_are_discarded_and_counted() {
        let mut watch = Watch::default();
        let ghz = |value: f64| Some(Hertz::new(value * 1e9));
        assert!(watch.accept(None, 5) && watch.warning().is_none());
        assert!(watch.accept(ghz(3.0), 5) && watch.accept(ghz(2.9), 5) && watch.accept(ghz(3.1), 5));
        assert!(!watch.accept(ghz(2.0), 4) && !watch.accept(ghz(2.48), 3));
        assert_eq!(watch.discarded(), 7);
        let Some(Warning::Throttled { discarded: 7, clock_ratio }) = watch.warning() else { panic!() };
        assert!((clock_ratio - 2.0 / 3.1).abs() < 1e-9);
    }
}
