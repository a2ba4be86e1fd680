//! Hazard: a hot or shared machine lowers its clock or gives the core to somebody else, and samples taken meanwhile
//! measure that. The clock is read between blocks of samples; a block that ends slower than the best clock is discarded
//! and counted. The best is known only at the end, so all blocks are judged again then, and against what the machine is
//! known to reach: one that is slow from beginning to end has nothing of its own to be compared with.
//!
//! A clock that the power limit lowers is another matter. A large product on tensor units asks for more power than any GPU of
//! a data centre may draw, and does so every time: samples at that clock are the truth of that kernel. They count, and the
//! result says so. Heat, a failing supply and clocks that others set are no property of a kernel.

use roofline_core::{
    measurement::{Clocks, Warning},
    units::{Hertz, Seconds},
};

use super::Stop;
use crate::telemetry::{ClockDomain, Source, Throttle};

/// A clock below this share of the best one is not the machine that is being measured.
const LOWEST: f64 = 0.93;

/// The clock at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Look {
    /// None where it cannot be known.
    pub clock: Option<Hertz>,
    /// Whether the power limit holds it down, and nothing else does.
    pub power_limited: bool,
}

impl Look {
    /// What a GPU's telemetry says. The clock of an idle GPU is not the one that kernels had.
    pub(crate) fn of(source: &dyn Source) -> Self {
        let reasons = source.throttle_reasons().unwrap_or_default();
        if reasons.contains(&Throttle::GpuIdle) {
            return Self::default();
        }
        let power_limited = reasons.contains(&Throttle::SwPowerCap) && !reasons.iter().any(|reason| reason.is_fault());
        Self { clock: source.clock(ClockDomain::Sm).ok(), power_limited }
    }
}

/// What the clock does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    known: Option<Hertz>,
    /// Of this measurement.
    best: Option<Hertz>,
    clocks: Option<Clocks>,
    blocks: Vec<Block>,
}

/// Samples, and the clock after them.
#[derive(Clone, Debug)]
struct Block {
    look: Look,
    samples: Vec<Seconds>,
    /// Whether its clock was high enough, by what was known of the clock when it ended.
    accepted: bool,
}

/// What is left of the samples.
#[derive(Clone, Debug)]
pub(crate) struct Judged {
    /// Those that count.
    pub(crate) samples: Vec<Seconds>,
    /// How many were thrown away.
    pub(crate) discarded: u32,
    /// What the clock did.
    pub(crate) clocks: Option<Clocks>,
    /// Doubts.
    pub(crate) warnings: Vec<Warning>,
}

impl Watch {
    /// On a machine that reaches `known`, where that is known, read at `clock` before the first block.
    pub(crate) fn new(known: Option<Hertz>, clock: Option<Hertz>) -> Self {
        let mut watch = Self { known, ..Self::default() };
        watch.look(clock);
        watch
    }

    fn look(&mut self, clock: Option<Hertz>) {
        let Some(clock) = clock else { return };
        self.best = Some(self.best.map_or(clock, |best| best.max(clock)));
        let mhz = clock.value() / 1e6;
        let before = self.clocks.unwrap_or(Clocks { first_mhz: mhz, last_mhz: mhz, lowest_mhz: mhz, known_mhz: None });
        let known_mhz = self.known.map(|known| known.value() / 1e6);
        self.clocks = Some(Clocks { last_mhz: mhz, lowest_mhz: before.lowest_mhz.min(mhz), known_mhz, ..before });
    }

    /// Notes a block of samples and the clock after it; false where they are slow by what has been seen so far. What the
    /// machine is known to reach waits until the end: on one that is slow throughout, sampling would never.
    pub(crate) fn accept(&mut self, look: Look, samples: &[Seconds]) -> bool {
        self.look(look.clock);
        let fast = look.clock.zip(self.best).is_none_or(|(clock, best)| clock / best >= LOWEST);
        let accepted = fast || look.power_limited;
        self.blocks.push(Block { look, samples: samples.to_vec(), accepted });
        accepted
    }

    /// All blocks against the best clock that was seen or is known. Where too few are that fast, what was accepted on the
    /// way is kept; where too little was, everything is. A doubt says so.
    pub(crate) fn judge(&self, stop: &Stop) -> Judged {
        let reference = self.best.map(|best| self.known.map_or(best, |known| known.max(best)));
        let ratio = |block: &Block| block.look.clock.zip(reference).map(|(clock, reference)| clock / reference);
        let low = |block: &Block| ratio(block).is_some_and(|ratio| ratio < LOWEST);
        let slow = |block: &Block| low(block) && !block.look.power_limited;
        let count = |of: &dyn Fn(&Block) -> bool| -> usize {
            self.blocks.iter().filter(|block| of(block)).map(|block| block.samples.len()).sum()
        };
        let (fast, accepted) = (count(&|block| !slow(block)), count(&|block| block.accepted));
        let keep: &dyn Fn(&Block) -> bool = if fast >= stop.fewest.min(accepted.div_ceil(2)).max(1) {
            &|block| !slow(block)
        } else if accepted >= stop.least {
            &|block| block.accepted
        } else {
            &|_| true
        };
        let (kept, dropped): (Vec<&Block>, Vec<&Block>) = self.blocks.iter().partition(|block| keep(block));
        let discarded = dropped.iter().map(|block| block.samples.len() as u32).sum();
        let lowest = dropped.iter().filter_map(|block| ratio(block)).reduce(f64::min);
        let throttled = lowest.filter(|_| discarded > 0);
        let middle = |blocks: &[&&Block]| {
            let mut ratios: Vec<f64> = blocks.iter().filter_map(|block| ratio(block)).collect();
            ratios.sort_by(f64::total_cmp);
            ratios.get(ratios.len() / 2).copied()
        };
        let (limited, free): (Vec<&&Block>, Vec<&&Block>) =
            kept.iter().partition(|block| block.look.power_limited && low(block));
        let typical = middle(&free).filter(|ratio| *ratio < LOWEST);
        let limited = middle(&limited).zip(reference).map(|(clock_ratio, reference)| {
            let clock_mhz = clock_ratio * reference.value() / 1e6;
            Warning::PowerLimited { clock_mhz, clock_ratio }
        });
        Judged {
            samples: kept.iter().flat_map(|block| &block.samples).copied().collect(),
            discarded,
            clocks: self.clocks,
            warnings: (throttled.map(|clock_ratio| Warning::Throttled { discarded, clock_ratio }).into_iter())
                .chain(typical.map(|clock_ratio| Warning::LowClock { clock_ratio }))
                .chain(limited)
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::fake::Fake;

    fn ghz(value: f64) -> Hertz {
        Hertz::new(value * 1e9)
    }

    /// Blocks of `samples` each; every sample takes the inverse of its block's clock.
    fn watch(known: Option<Hertz>, clocks: &[f64], samples: usize) -> (Watch, Vec<bool>) {
        let mut watch = Watch::new(known, None);
        let block = |clock: f64| vec![Seconds::new(1.0 / clock); samples];
        let look = |clock: f64| Look { clock: Some(ghz(clock)), power_limited: false };
        let accepted = clocks.iter().map(|clock| watch.accept(look(*clock), &block(*clock))).collect();
        (watch, accepted)
    }

    /// What a GPU with those reasons says of itself.
    fn look(reasons: &[Throttle]) -> Look {
        Look::of(&Fake::held_by(reasons))
    }

    #[test]
    fn the_power_limit_is_told_from_heat_and_from_others() {
        use Throttle as T;
        let clock = Some(Hertz::new(1_756e6));
        assert_eq!(look(&[]), Look { clock, power_limited: false });
        assert_eq!(look(&[Throttle::SwPowerCap]), Look { clock, power_limited: true });
        for fault in [T::HwSlowdown, T::SwThermalSlowdown, T::HwThermalSlowdown, T::HwPowerBrakeSlowdown, T::SyncBoost]
        {
            assert!(!look(&[T::SwPowerCap, fault]).power_limited, "{}", fault.words());
        }
        assert!(!look(&[T::SwPowerCap, T::ApplicationsClocksSetting]).power_limited, "somebody set the clocks");
        // Nothing runs: whatever the clock is, it was not the kernel's. And what cannot be read is not guessed.
        assert_eq!(look(&[T::GpuIdle]), Look::default());
        let blind = Look::of(&Fake::failing(&["throttle_reasons", "sm_clock_mhz"]));
        assert_eq!(blind, Look::default());
    }

    /// The clock of a product that runs into the power limit falls from its first block to its next: all of them count.
    #[test]
    fn what_the_power_limit_slows_counts_and_is_named() {
        let mut watch = Watch::new(None, Some(ghz(1.98)));
        let blocks = [(1.98, false), (1.5, true), (1.4, true), (1.45, true)];
        for (clock, power_limited) in blocks {
            let look = Look { clock: Some(ghz(clock)), power_limited };
            assert!(watch.accept(look, &[Seconds::new(1.0 / clock); 10]));
        }
        let judged = watch.judge(&Stop::default());
        assert_eq!((judged.samples.len(), judged.discarded), (40, 0));
        let [Warning::PowerLimited { clock_mhz, clock_ratio }] = judged.warnings[..] else { panic!("{judged:?}") };
        assert_eq!((clock_mhz.round(), (clock_ratio * 1e3).round()), (1450.0, (1.45 / 1.98 * 1e3_f64).round()));
        // Heat at the same clocks: those samples are gone, and counted.
        let mut hot = Watch::new(None, Some(ghz(1.98)));
        for (clock, _) in blocks {
            hot.accept(Look { clock: Some(ghz(clock)), power_limited: false }, &[Seconds::new(1.0 / clock); 10]);
        }
        let judged = hot.judge(&Stop { fewest: 5, ..Stop::default() });
        assert_eq!((judged.samples.len(), judged.discarded), (10, 30));
        assert!(matches!(judged.warnings[..], [Warning::Throttled { discarded: 30, .. }]), "{judged:?}");
    }

    #[test]
    fn slow_blocks_are_discarded_and_counted() {
        let (watch, accepted) = watch(None, &[3.0, 2.9, 3.1, 2.0, 2.48], 4);
        assert_eq!(accepted, [true, true, true, false, false]);
        let judged = watch.judge(&Stop::default());
        assert_eq!((judged.samples.len(), judged.discarded), (12, 8));
        let [Warning::Throttled { discarded: 8, clock_ratio }] = judged.warnings[..] else { panic!("{judged:?}") };
        assert!((clock_ratio - 2.0 / 3.1).abs() < 1e-9);
        let clocks = judged.clocks.unwrap();
        let mhz = [clocks.first_mhz, clocks.last_mhz, clocks.lowest_mhz].map(f64::round);
        assert_eq!((mhz, clocks.known_mhz), ([3000.0, 2480.0, 2000.0], None));
    }

    #[test]
    fn without_a_clock_everything_counts() {
        let mut watch = Watch::new(Some(ghz(3.0)), None);
        assert!(watch.accept(Look::default(), &[Seconds::new(1.0); 5]));
        let judged = watch.judge(&Stop::default());
        assert_eq!((judged.samples.len(), judged.discarded, judged.clocks), (5, 0, None));
        assert!(judged.warnings.is_empty());
    }

    /// Blocks that were the best so far are not when the clock rises.
    #[test]
    fn what_was_accepted_too_early_is_discarded_in_the_end() {
        let (watch, accepted) = watch(None, &[2.0, 2.0, 3.0, 3.0], 20);
        assert_eq!(accepted, [true; 4]);
        let judged = watch.judge(&Stop::default());
        assert_eq!((judged.samples.len(), judged.discarded), (40, 40));
        assert!(judged.samples.iter().all(|sample| sample.value() < 0.4));
        // One fast moment is too little to throw all the rest away for.
        let (watch, _) = self::watch(None, &[2.0, 2.0, 2.0, 2.0, 3.0], 5);
        let judged = watch.judge(&Stop::default());
        assert_eq!((judged.samples.len(), judged.discarded), (25, 0));
        assert!(matches!(judged.warnings[..], [Warning::LowClock { .. }]), "{judged:?}");
    }

    #[test]
    fn a_machine_that_is_slow_throughout_is_noticed_and_measured() {
        let (slow, accepted) = watch(Some(ghz(3.0)), &[2.4; 4], 20);
        assert_eq!(accepted, [true; 4], "no longer than without");
        let judged = slow.judge(&Stop::default());
        assert_eq!((judged.samples.len(), judged.discarded), (80, 0));
        let [Warning::LowClock { clock_ratio }] = judged.warnings[..] else { panic!("{judged:?}") };
        assert!((clock_ratio - 0.8).abs() < 1e-9);
        assert_eq!(judged.clocks.unwrap().known_mhz, Some(3000.0));
        // As fast as is known, and faster: nothing to say.
        for clock in [2.9, 3.3] {
            let judged = watch(Some(ghz(3.0)), &[clock; 4], 20).0.judge(&Stop::default());
            assert!(judged.samples.len() == 80 && judged.warnings.is_empty(), "{judged:?}");
        }
        // Slow after the first look, and for good: all that there is.
        let mut sudden = Watch::new(None, Some(ghz(3.0)));
        assert!(!sudden.accept(Look { clock: Some(ghz(2.0)), power_limited: false }, &[Seconds::new(1.0); 5]));
        let judged = sudden.judge(&Stop::default());
        assert_eq!((judged.samples.len(), judged.discarded), (5, 0));
        assert!(matches!(judged.warnings[..], [Warning::LowClock { .. }]), "{judged:?}");
    }
}
