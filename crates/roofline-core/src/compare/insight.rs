//! The sentence to take home, made from the numbers.

use super::{Pair, SpeedupPair};
use crate::{Op, predict::Bound};

/// What the widest speed-up of a memory-bound product says, and what happens to it where the units are the limit.
pub(super) fn insight(pairs: &[Pair], speedups: &[SpeedupPair]) -> Option<String> {
    let limited = |subject: &str, precision: &str, wanted: Bound| {
        let product = |pair: &&Pair| matches!(pair.observation.op, Op::Linear(_) | Op::ActivatedLinear(_));
        let same = |pair: &&Pair| pair.subject() == subject && pair.label() == precision;
        pairs.iter().filter(product).find(same).is_some_and(|pair| pair.bound() == wanted)
    };
    // Both ends of a speed-up must wait for the same thing, or one sentence cannot explain it.
    let bound = |wanted: Bound| {
        let both = |speedup: &&SpeedupPair| {
            limited(&speedup.subject, &speedup.from, wanted) && limited(&speedup.subject, &speedup.to, wanted)
        };
        let told = |speedup: &&SpeedupPair| !speedup.to.ends_with("(cast)");
        speedups.iter().filter(told).filter(both).max_by(|one, other| one.ideal.total_cmp(&other.ideal))
    };
    let memory = bound(Bound::Memory).map(|best| {
        format!(
            "{} is memory-bound: from {} to {} the bytes shrink {:.1} times, and it ran {:.1} times as fast ({:.1} predicted)",
            best.subject, best.from, best.to, best.ideal, best.measured, best.predicted
        )
    });
    let compute = bound(Bound::Compute).map(|best| {
        format!(
            "{} is compute-bound: from {} to {} the ideal gain is {:.1} times, measured {:.1}",
            best.subject, best.from, best.to, best.ideal, best.measured
        )
    });
    match (memory, compute) {
        (Some(memory), Some(compute)) => Some(format!("{memory}. {compute}.")),
        (Some(one), None) | (None, Some(one)) => Some(format!("{one}.")),
        (None, None) => None,
    }
}
