//! The best batch of each plan, and what plans are compared with.

use std::collections::HashMap;

use super::{Candidate, Goal, MOST, Need, Outcome, passes::Passes, quality};
use crate::{Result, units::Bytes};

/// A demand at every batch that is looked at, lowered once for all plans.
pub(super) struct Search<'a> {
    need: &'a Need<'a>,
    capacity: Option<Bytes>,
    /// None where a batch is more than numbers can count.
    passes: HashMap<u64, Option<Passes>>,
}

impl<'a> Search<'a> {
    pub(super) fn new(need: &'a Need<'a>, capacity: Option<Bytes>) -> Self {
        Self { need, capacity, passes: HashMap::new() }
    }

    /// Whether the goal looks for a batch.
    fn looks(&self) -> bool {
        matches!(self.need.goal, Goal::Throughput | Goal::Cost)
    }

    /// The most sequences, or the number of them.
    fn most(&self) -> u64 {
        self.need.batch.unwrap_or(if self.looks() { MOST } else { 1 })
    }

    /// Batches that are tried in any case: the fewest, the most and powers of two between.
    fn grid(&self) -> Vec<u64> {
        let most = self.most();
        if !self.looks() {
            return vec![most];
        }
        let powers = std::iter::successors(Some(1_u64), |batch| batch.checked_mul(2)).take_while(|batch| *batch < most);
        powers.chain([most]).collect()
    }

    fn passes(&mut self, batch: u64) -> Option<&Passes> {
        let need = self.need;
        self.passes.entry(batch).or_insert_with(|| Passes::new(need, batch).ok()).as_ref()
    }

    /// Whether the calibration knows every kernel of a plan. A batch that cannot be is an error where it was asked for.
    pub(super) fn covered(&mut self, candidate: &Candidate) -> Result<bool> {
        let (need, grid) = (self.need, self.grid());
        Passes::new(need, grid[0])?;
        let known = |passes: Option<&Passes>| passes.is_none_or(|passes| passes.covered(need, candidate));
        Ok(need.calibration.is_some() && grid.into_iter().all(|batch| known(self.passes(batch))))
    }

    fn outcome(&mut self, candidate: &Candidate, batch: u64, expected: bool) -> Option<Result<Outcome>> {
        let (need, capacity) = (self.need, self.capacity);
        let passes = self.passes(batch)?;
        let quality = quality::quality(need.model, candidate, passes.shares());
        Some(passes.outcome(need, candidate, expected, quality, capacity))
    }

    /// The plan at the batch that suits the goal: of those that keep the limits, the one with the most tokens per second.
    pub(super) fn best(&mut self, candidate: &Candidate, expected: bool) -> Result<Outcome> {
        let mut best: Option<Outcome> = None;
        let mut consider = |outcome: Outcome| {
            let better = |best: &Outcome| {
                outcome.refused.is_none() && (best.refused.is_some() || outcome.tokens_per_s > best.tokens_per_s)
            };
            let allowed = outcome.refused.is_none();
            if best.as_ref().is_none_or(better) {
                best = Some(outcome);
            }
            allowed
        };
        // More sequences need more memory and make each slower, so what is allowed ends somewhere between two of the grid.
        let (mut last, mut first_refused) = (0, None);
        for batch in self.grid() {
            let allowed = match self.outcome(candidate, batch, expected) {
                Some(outcome) => consider(outcome?),
                None => false,
            };
            if !allowed {
                first_refused = Some(batch);
                break;
            }
            last = batch;
        }
        if let (1.., Some(mut high)) = (last, first_refused) {
            let mut low = last;
            while high - low > 1 {
                let middle = u64::midpoint(low, high);
                let outcome = self.outcome(candidate, middle, expected).transpose()?;
                if outcome.is_some_and(&mut consider) {
                    low = middle;
                } else {
                    high = middle;
                }
            }
        }
        match best {
            Some(best) => Ok(best),
            // Not even the fewest can be counted.
            None => Passes::new(self.need, self.grid()[0]).and_then(|passes| {
                let quality = quality::quality(self.need.model, candidate, passes.shares());
                passes.outcome(self.need, candidate, expected, quality, self.capacity)
            }),
        }
    }

    /// Sets every plan beside 16 bit: at its own best batch where it fits some, else at the plan's.
    pub(super) fn compare(&mut self, outcomes: &mut [Outcome], wide: &Candidate, expected: bool) -> Result<()> {
        let fits = |outcome: &Outcome| self.capacity.is_none_or(|capacity| outcome.memory <= capacity);
        let own =
            outcomes.first().filter(|first| first.candidate == *wide && fits(first)).map(|first| first.tokens_per_s);
        for outcome in outcomes {
            let rate = match own {
                Some(rate) => rate,
                None => {
                    self.outcome(wide, outcome.batch, expected).transpose()?.map_or(f64::NAN, |wide| wide.tokens_per_s)
                }
            };
            outcome.speedup = outcome.tokens_per_s / rate;
        }
        Ok(())
    }
}
