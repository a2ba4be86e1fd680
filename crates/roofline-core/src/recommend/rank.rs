//! Which plan is better, and which may not be chosen at all.

use super::{Candidate, Goal, Need, Outcome, passes::Promise};
use crate::Dim;

/// Plans closer than this by the goal are the same, and quality decides: predictions are not more exact.
pub(super) const SAME: f64 = 1.05;
/// The same where a limit says which quality will do.
const SAME_WITHIN_LIMIT: f64 = 1.01;
/// Gains below this are no reason to quantize.
pub(super) const WORTHWHILE: f64 = 1.02;
/// Losses that cannot be told apart, so that the simpler plan leads: estimates are not more exact than a tenth,
const SAME_LOSS_FACTOR: f64 = 1.1;
/// and differences of perplexities are published to a thousandth.
const SAME_LOSS_STEP: f64 = 0.001;
/// What a share of perplexity is worth in time, where nobody says which quality will do: a percent is worth two. Who buys
/// perplexity with a larger model pays more than twice that (Llama 2 of 7, 13 and 70 billion: 5.47, 4.88 and 3.32 in Table 4
/// of AWQ, arXiv 2306.00978, so 5.4 and 4.4 percent of weights for each), but what is reckoned with here is the worst.
const PRICE: f64 = 2.0;
/// Nobody wants to lose more than this unasked: about twice what 4-bit weights cost published models.
pub(super) const DOUBTFUL: f64 = 0.15;

/// How far a plan is from what was asked for: the kind of compromise, then the devices it takes.
pub(super) type Class = (Compromise, u64);

/// What a plan asks of its user, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Compromise {
    /// Nothing.
    None,
    /// More devices than one.
    Devices,
    /// Quality: fewer than four bits, much of it, or nobody knows how much.
    Quality,
    /// Weights that cross the host's link in every pass.
    Offload,
    /// Not allowed at all.
    Refused,
}

/// The class of plans that ask nothing of anybody.
pub(super) const ORDINARY: Class = (Compromise::None, 0);

/// Why a plan may not be chosen.
pub(super) fn refusal(need: &Need<'_>, candidate: &Candidate, promise: &Promise) -> Option<String> {
    let limits = need.limits;
    if let (Some(missing), Some(capacity)) = (promise.memory.missing(), promise.memory.capacity) {
        return Some(format!("needs {missing} more than the {capacity} there are"));
    }
    if let Some(reason) = candidate.refusal(need) {
        return Some(reason);
    }
    let stored = candidate.stored;
    if let Some(limit) = limits.weights.filter(|limit| stored > *limit) {
        return Some(format!("has weights of {stored}, and {limit} are aimed at"));
    }
    let bits = need.model.bits_per_weight(stored, Dim::ONE);
    if let Some(limit) = limits.bits_per_weight.filter(|limit| bits > *limit) {
        return Some(format!("has {bits:.3} bits for each weight, and {limit} are aimed at"));
    }
    if let Some(limit) = limits.quality_loss {
        match candidate.losses.worst {
            None => return Some("what it costs in quality is unknown".to_owned()),
            Some(loss) if loss > limit => return Some(format!("may raise the perplexity by {:.1} %", 100.0 * loss)),
            Some(_) => {}
        }
    }
    let each = promise.tokens_per_s / promise.batch as f64;
    if let Some(least) = limits.tokens_per_s.filter(|least| each < *least) {
        return Some(format!("gives {each:.1} of the {least} tokens/s asked for"));
    }
    if let (Some(limit), Some(time)) = (limits.first_token, promise.first_token)
        && time > limit
    {
        return Some(format!("has its first token after {time}, and {limit} are allowed"));
    }
    None
}

/// What the goal wants least of; infinite where it is not known. Times are those that the plan's runtimes are known to need.
pub(super) fn score(outcome: &Outcome, goal: Goal) -> f64 {
    let pace = outcome.candidate.pace;
    match goal {
        Goal::Latency => outcome.time.value() / pace,
        // For each device; at one price per hour, the most tokens are the cheapest.
        Goal::Throughput | Goal::Cost => outcome.tp as f64 / outcome.tokens_per_s / pace,
        Goal::Memory => outcome.memory.model().value() * outcome.tp as f64,
        Goal::Energy => outcome.energy_per_token.map_or(f64::INFINITY, |energy| energy.joules().value()),
    }
}

/// What a plan is worth less of: its score, dearer by what it loses. Where a limit says which quality will do, or any will,
/// and where memory is what matters, loss has no price.
fn worth(score: f64, loss: f64, priced: bool) -> f64 {
    if priced { score * (PRICE * loss).exp() } else { score }
}

/// Marks plans that no other beats in speed, memory and quality at once.
pub(super) fn mark_pareto(outcomes: &mut [Outcome]) {
    let key = |outcome: &Outcome| {
        let memory = outcome.memory.model().value() * outcome.tp as f64;
        (1.0 / outcome.tokens_per_s, memory, outcome.loss().unwrap_or(f64::INFINITY))
    };
    let allowed: Vec<_> = outcomes.iter().filter(|outcome| outcome.refused.is_none()).map(key).collect();
    for outcome in outcomes {
        let own = key(outcome);
        let beats = |other: &(f64, f64, f64)| other.0 <= own.0 && other.1 <= own.1 && other.2 <= own.2 && *other != own;
        outcome.pareto = outcome.refused.is_none() && !allowed.iter().any(beats);
    }
}

/// Whether a plan may lose much, or nobody knows how much, or has fewer than four bits, though none was asked for.
pub(super) fn doubtful(outcome: &Outcome, need: &Need<'_>) -> bool {
    let limits = need.limits;
    let much = limits.quality_loss.is_none() && outcome.loss().is_none_or(|loss| loss > DOUBTFUL);
    !limits.any_quality && (much || outcome.candidate.is_narrow())
}

/// How far a plan is from what was asked for.
pub(super) fn class(outcome: &Outcome, need: &Need<'_>) -> Class {
    let more = if need.devices.is_none() && outcome.tp > 1 { outcome.tp } else { 0 };
    if outcome.refused.is_some() {
        (Compromise::Refused, more)
    } else if outcome.offload.is_some() {
        (Compromise::Offload, more)
    } else if doubtful(outcome, need) {
        (Compromise::Quality, more)
    } else if more > 0 {
        (Compromise::Devices, more)
    } else {
        ORDINARY
    }
}

/// What a plan may lose, to compare by: where the cost of the cache is unknown, that of the weights still counts.
fn loss(outcome: &Outcome) -> f64 {
    let unknown = if outcome.loss().is_none() { 1.0 } else { 0.0 };
    let cache = outcome.candidate.losses.cache_quality.as_ref().and_then(super::Quality::worst).unwrap_or(0.0);
    outcome.candidate.losses.quality.worst().unwrap_or(f64::INFINITY) + cache + unknown
}

/// The best first, by class; of plans that are worth the same the one with the better quality leads, and of those that
/// cannot be told apart in that either, the simpler one. Where quality is what has to give, the least loss leads.
pub(super) fn rank(outcomes: &mut [Outcome], need: &Need<'_>) {
    let goal = need.goal;
    let class = |outcome: &Outcome| class(outcome, need);
    let dear = |outcome: &Outcome| if class(outcome).0 == Compromise::Quality { loss(outcome) } else { 0.0 };
    let free = need.limits.quality_loss.is_some() || need.limits.any_quality;
    let worth = |outcome: &Outcome| worth(score(outcome, goal), loss(outcome), !free && goal != Goal::Memory);
    outcomes.sort_by(|a, b| {
        class(a)
            .cmp(&class(b))
            .then(dear(a).total_cmp(&dear(b)))
            .then(worth(a).total_cmp(&worth(b)))
            .then(loss(a).total_cmp(&loss(b)))
            .then(a.candidate.parts().cmp(&b.candidate.parts()))
    });
    let Some(first) = outcomes.first() else { return };
    let (least, leading) = (worth(first), class(first));
    if matches!(leading.0, Compromise::Quality | Compromise::Refused) {
        return;
    }
    let margin = match goal {
        Goal::Memory => 1.0,
        _ if free => SAME_WITHIN_LIMIT,
        _ => SAME,
    };
    let same = |outcome: &&Outcome| class(outcome) == leading && worth(outcome) <= least * margin;
    let equals = outcomes.iter().take_while(same).count();
    let lowest = outcomes[..equals].iter().map(loss).fold(f64::INFINITY, f64::min);
    let good = (0..equals).filter(|at| loss(&outcomes[*at]) <= lowest * SAME_LOSS_FACTOR + SAME_LOSS_STEP);
    // Sorted by worth, so the first of the simplest is the best of them; formats that the device has units for come first.
    let device = &need.machine.device;
    let simple = |candidate: &Candidate| (candidate.parts(), !candidate.is_native(device));
    let best = good.min_by_key(|at| simple(&outcomes[*at].candidate));
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
pub(super) fn explain_losses(outcomes: &mut [Outcome], need: &Need<'_>) {
    let Some(best) = outcomes.first().filter(|best| best.refused.is_none()).cloned() else { return };
    let (goal, own) = (need.goal, class(&best, need));
    for outcome in outcomes.iter_mut().skip(1).filter(|outcome| outcome.refused.is_none()) {
        let more = 100.0 * (score(outcome, goal) / score(&best, goal) - 1.0);
        let what = match goal {
            Goal::Latency => "slower",
            Goal::Throughput => "more time per token",
            Goal::Memory => "more memory",
            Goal::Energy => "more energy",
            Goal::Cost => "dearer",
        };
        let (compromise, devices) = class(outcome, need);
        let reason = match (outcome.loss(), compromise) {
            _ if compromise > own.0 && compromise == Compromise::Offload => {
                format!("{more:.0} % {what}: weights cross the host's link")
            }
            (None, Compromise::Quality) if own.0 < Compromise::Quality => "its cost in quality is unknown".to_owned(),
            (Some(loss), Compromise::Quality) if own.0 < Compromise::Quality => {
                let bits = if outcome.candidate.is_narrow() { "a last resort: " } else { "" };
                format!("{bits}may raise the perplexity by {:.0} %", 100.0 * loss)
            }
            _ if devices > own.1 && compromise == Compromise::Devices => format!("takes {devices} devices"),
            _ if more >= 0.05 && more.is_finite() => {
                let (pace, own) = (outcome.candidate.pace, best.candidate.pace);
                let runtime = outcome.candidate.known_as.keys().next().filter(|_| pace < own);
                let runtime = runtime.map_or_else(String::new, |name| {
                    format!(" in {name}, which reaches {:.0} % of what others do on such devices", 100.0 * pace / own)
                });
                format!("{more:.1} % {what}{runtime}")
            }
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
