//! Which plan is better, and which may not be chosen at all.

use super::{Goal, Limits, Need, Outcome};
use crate::units::Bytes;

/// Plans closer than this by the goal are the same, and quality decides: predictions are not more exact.
pub(super) const SAME: f64 = 1.05;
/// The same where a limit says which quality will do.
const SAME_WITHIN_LIMIT: f64 = 1.01;
/// Gains below this are no reason to quantize.
pub(super) const WORTHWHILE: f64 = 1.02;
/// Losses this close are the same, and the simpler plan leads.
const SAME_LOSS: f64 = 0.01;
/// Nobody wants to lose more than this unasked: about twice what 4-bit weights cost published models.
pub(super) const DOUBTFUL: f64 = 0.15;

/// Why a plan may not be chosen.
pub(super) fn refusal(need: &Need<'_>, outcome: &Outcome, capacity: Option<Bytes>) -> Option<String> {
    let limits = need.limits;
    if let Some(capacity) = capacity.filter(|capacity| outcome.memory > *capacity) {
        let missing = outcome.memory - capacity;
        return Some(format!("needs {missing} more than the {capacity} there are"));
    }
    if let Some(reason) = outcome.candidate.refusal(limits) {
        return Some(reason);
    }
    if let Some(limit) = limits.quality_loss {
        match outcome.loss() {
            None => return Some("what it costs in quality is unknown".to_owned()),
            Some(loss) if loss > limit => return Some(format!("may raise the perplexity by {:.1} %", 100.0 * loss)),
            Some(_) => {}
        }
    }
    let each = outcome.tokens_per_s / outcome.batch as f64;
    if limits.tokens_per_s.is_some_and(|least| each < least) {
        let least = limits.tokens_per_s.unwrap_or_default();
        return Some(format!("gives {each:.1} of the {least} tokens/s asked for"));
    }
    if let (Some(limit), Some(time)) = (limits.first_token, outcome.first_token)
        && time > limit
    {
        return Some(format!("has its first token after {time}, and {limit} are allowed"));
    }
    None
}

/// What the goal wants least of; infinite where it is not known.
pub(super) fn score(outcome: &Outcome, goal: Goal) -> f64 {
    match goal {
        Goal::Latency => outcome.time.value(),
        // At one price per hour, the most tokens are the cheapest.
        Goal::Throughput | Goal::Cost => 1.0 / outcome.tokens_per_s,
        Goal::Memory => outcome.footprint.total().value(),
        Goal::Energy => outcome.energy_per_token.map_or(f64::INFINITY, |energy| energy.joules().value()),
    }
}

/// Marks plans that no other beats in speed, memory and quality at once.
pub(super) fn mark_front(outcomes: &mut [Outcome]) {
    let key = |outcome: &Outcome| {
        (1.0 / outcome.tokens_per_s, outcome.memory.value(), outcome.loss().unwrap_or(f64::INFINITY))
    };
    let allowed: Vec<_> = outcomes.iter().filter(|outcome| outcome.refused.is_none()).map(key).collect();
    for outcome in outcomes {
        let own = key(outcome);
        let beats = |other: &(f64, f64, f64)| other.0 <= own.0 && other.1 <= own.1 && other.2 <= own.2 && *other != own;
        outcome.pareto = outcome.refused.is_none() && !allowed.iter().any(beats);
    }
}

/// Whether a plan may lose much, or nobody knows how much, though neither was asked for.
pub(super) fn doubtful(outcome: &Outcome, limits: &Limits) -> bool {
    !limits.any_quality && limits.quality_loss.is_none() && outcome.loss().is_none_or(|loss| loss > DOUBTFUL)
}

/// What a plan may lose, to compare by: where the cost of the cache is unknown, that of the weights still counts.
fn loss(outcome: &Outcome) -> f64 {
    let unknown = if outcome.loss().is_none() { 1.0 } else { 0.0 };
    outcome.quality.worst().unwrap_or(f64::INFINITY) + unknown
}

/// The best first. Doubtful plans come after the others; of plans that are the same by the goal the one with the better
/// quality leads, and of those that are the same in that too, the simpler one.
pub(super) fn rank(outcomes: &mut [Outcome], goal: Goal, limits: &Limits) {
    let class = |outcome: &Outcome| (outcome.refused.is_some(), doubtful(outcome, limits));
    outcomes.sort_by(|a, b| {
        class(a)
            .cmp(&class(b))
            .then(score(a, goal).total_cmp(&score(b, goal)))
            .then(loss(a).total_cmp(&loss(b)))
            .then(a.candidate.parts().cmp(&b.candidate.parts()))
    });
    let Some(first) = outcomes.first() else { return };
    let (least, leading) = (score(first, goal), class(first));
    let margin = match goal {
        Goal::Memory => 1.0,
        _ if limits.quality_loss.is_some() => SAME_WITHIN_LIMIT,
        _ => SAME,
    };
    let same = |outcome: &&Outcome| class(outcome) == leading && score(outcome, goal) <= least * margin;
    let equals = outcomes.iter().take_while(same).count();
    let lowest = outcomes[..equals].iter().map(loss).fold(f64::INFINITY, f64::min);
    let good = (0..equals).filter(|at| loss(&outcomes[*at]) <= lowest + SAME_LOSS);
    // Sorted by score, so the first of the simplest is the best of them.
    let best = good.min_by_key(|at| outcomes[*at].candidate.parts());
    if let Some(best) = best {
        outcomes[..=best].rotate_right(1);
    }
    let plain = outcomes.iter().position(|outcome| outcome.candidate.is_plain() && class(outcome) == leading);
    if let Some(plain) = plain.filter(|plain| score(&outcomes[*plain], goal) <= score(&outcomes[0], goal) * WORTHWHILE)
    {
        outcomes[..=plain].rotate_right(1);
    }
}

/// Says of every plan that may be chosen and was not why.
pub(super) fn explain_losses(outcomes: &mut [Outcome], goal: Goal) {
    let Some(best) = outcomes.first().filter(|best| best.refused.is_none()).cloned() else { return };
    for outcome in outcomes.iter_mut().skip(1).filter(|outcome| outcome.refused.is_none()) {
        let more = 100.0 * (score(outcome, goal) / score(&best, goal) - 1.0);
        let what = match goal {
            Goal::Latency => "slower",
            Goal::Throughput => "more time per token",
            Goal::Memory => "more memory",
            Goal::Energy => "more energy",
            Goal::Cost => "dearer",
        };
        let dear = outcome.loss().filter(|own| *own > DOUBTFUL && best.loss().is_some_and(|least| least <= DOUBTFUL));
        let reason = match (outcome.loss(), best.loss()) {
            (None, Some(_)) => "its cost in quality is unknown".to_owned(),
            _ if dear.is_some() => format!("may raise the perplexity by {:.0} %", 100.0 * dear.unwrap_or_default()),
            _ if more >= 0.05 && more.is_finite() => format!("{more:.1} % {what}"),
            _ => {
                let gain =
                    if more <= -0.05 { format!("{:.1} % better for the goal", -more) } else { "as good".to_owned() };
                let cost = if loss(outcome) > loss(&best) + 1e-9 {
                    ", but loses more quality"
                } else if outcome.candidate.parts() > best.candidate.parts() {
                    ", but is less simple"
                } else {
                    ""
                };
                gain + cost
            }
        };
        outcome.lost = Some(reason);
    }
}
