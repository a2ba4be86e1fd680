//! Hazard: three samples say little and a thousand take too long. Sampling stops when the median is known to within a
//! stated share with 95 % confidence, or when the time is up; then the measurement says how well it is known.

use roofline_core::{measurement::Summary, units::Seconds};

/// When to stop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stop {
    /// Half width of the 95 % confidence interval of the median, over the median.
    pub confidence: f64,
    /// Samples below which no interval is believed.
    pub fewest: usize,
    /// Samples that are enough for anything.
    pub most: usize,
    /// Time after which it stops in any case, once there are `least` samples.
    pub budget: Seconds,
    /// Samples that are taken however long they take.
    pub least: usize,
}

impl Default for Stop {
    fn default() -> Self {
        Self { confidence: 0.01, fewest: 11, most: 2000, budget: Seconds::new(1.0), least: 3 }
    }
}

impl Stop {
    /// Whether `samples`, which took `spent` with everything around them, are enough.
    pub fn enough(&self, samples: &[Seconds], spent: Seconds) -> bool {
        let count = samples.len();
        if count >= self.most || (spent >= self.budget && count >= self.least) {
            return true;
        }
        count >= self.fewest
            && self.due(count)
            && Summary::of(samples).and_then(|summary| summary.confidence).is_some_and(|known| known <= self.confidence)
    }

    /// The interval costs a sort, and every look is another chance to stop by luck: there is one each time the count has
    /// grown by a quarter.
    fn due(&self, count: usize) -> bool {
        let looks = |count: usize| (count as f64).ln() / 1.25f64.ln();
        count == self.fewest || looks(count).floor() > looks(count - 1).floor()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(values: impl IntoIterator<Item = f64>) -> Vec<Seconds> {
        values.into_iter().map(Seconds::new).collect()
    }

    #[test]
    fn stops_when_the_median_is_known_or_the_time_is_up() {
        let stop = Stop::default();
        let zero = Seconds::ZERO;
        assert!(!stop.enough(&seconds([1.0; 10]), zero), "too few to believe");
        assert!(stop.enough(&seconds([1.0; 11]), zero), "all the same");
        let wild = seconds((0..11).map(|at| 1.0 + f64::from(at)));
        assert!(!stop.enough(&wild, zero), "too far apart");
        assert!(stop.enough(&wild, Seconds::new(1.0)), "time is up");
        assert!(!stop.enough(&seconds([9.0; 2]), Seconds::new(18.0)), "fewer than the least");
        assert!(stop.enough(&seconds([9.0; 3]), Seconds::new(27.0)));
        // Samples that settle stop soon after they have, not at the end.
        let mut settling: Vec<f64> = (0..30).map(|at| 1.0 + f64::from(at % 7) / 10.0).collect();
        let mut stopped = None;
        while stopped.is_none() && settling.len() < 1000 {
            settling.push(1.0);
            stopped = stop.enough(&seconds(settling.iter().copied()), zero).then_some(settling.len());
        }
        assert!(stopped.is_some_and(|count| (40..100).contains(&count)), "{stopped:?}");
        assert!(stop.enough(&seconds((0..2000).map(|at| 1.0 + f64::from(at))), zero), "the most");
    }
}
