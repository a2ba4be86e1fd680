//! Why, in words with numbers.

use super::{
    Demand, Need, Outcome, RESERVE,
    rank::{doubtful, score},
};
use crate::{Device, Registry, device::Kind, predict::Bound, units::Bytes};

/// Losses above this are worth a warning.
const NOTABLE_LOSS: f64 = 0.05;
/// Devices that commonly share a model: those of one machine.
const NODE: f64 = 8.0;
/// Doubtful plans that are better by this are worth a warning.
const NOTABLE_GAIN: f64 = 1.05;

/// Why the first plan leads, or what is missing where none may be chosen.
pub(super) fn reason(need: &Need<'_>, outcomes: &[Outcome], capacity: Option<Bytes>) -> String {
    let Some(best) = outcomes.first() else { return "there are no plans for this device".to_owned() };
    if best.refused.is_some() {
        return nothing(need, outcomes, capacity);
    }
    let (ai, critical) = (best.intensity.value(), best.critical.value());
    let bound = match best.bound {
        Bound::Memory | Bound::Compute => format!("{}-bound (AI {ai:.1}, critical {critical:.0})", best.bound),
        other => format!("bound by {other}"),
    };
    if best.candidate.is_plain() {
        let others = outcomes.iter().any(|outcome| !outcome.candidate.is_plain() && outcome.refused.is_none());
        let why = if others {
            "no narrower plan is worth its loss for this goal"
        } else {
            "the limits leave no narrower plan"
        };
        return format!("{}: {bound}, and {why}", best.candidate.name);
    }
    let wide = outcomes.iter().find(|outcome| outcome.candidate.is_plain() && outcome.batch == best.batch);
    let saved = wide.map(|wide| 1.0 - best.footprint.total() / wide.footprint.total());
    let saved = saved
        .filter(|saved| *saved > 0.0)
        .map_or_else(String::new, |saved| format!(" and takes {:.0} % less memory", 100.0 * saved));
    format!("{}: {bound}, {:.2}x as fast as 16 bit{saved}", best.candidate.name, best.speedup)
}

/// What is missing where no plan may be chosen, and what would do.
fn nothing(need: &Need<'_>, outcomes: &[Outcome], capacity: Option<Bytes>) -> String {
    let smallest = outcomes.iter().min_by(|a, b| a.memory.value().total_cmp(&b.memory.value()));
    let (Some(smallest), Some(nearest)) = (smallest, outcomes.first()) else { return String::new() };
    let Some(capacity) = capacity.filter(|capacity| smallest.memory > *capacity) else {
        let fits = |outcome: &&Outcome| capacity.is_none_or(|capacity| outcome.memory <= capacity);
        let nearest = outcomes.iter().find(fits).unwrap_or(nearest);
        return format!(
            "no plan meets every limit; the nearest, {}, {}",
            nearest.candidate.name,
            nearest.refused.as_deref().unwrap_or("is refused")
        );
    };
    let footprint = &smallest.footprint;
    let mut text = format!(
        "nothing fits: even {} needs {} (weights {}, cache {}, in flight {}, a tenth kept free), {} more than the {capacity} \
         there are",
        smallest.candidate.name,
        smallest.memory,
        footprint.weights,
        footprint.kv,
        footprint.activations,
        smallest.memory - capacity,
    );
    let room = footprint.total() / (1.0 - RESERVE);
    if need.device.memory.usable().is_some_and(|there| there >= room) {
        text += &format!("; a memory limit of {room} would do, which the device has");
        return text;
    }
    let devices = large_enough(need.device, room);
    if !devices.is_empty() {
        text += &format!("; it would fit {}", devices.join(" or "));
    }
    if footprint.kv > footprint.weights * 0.25 {
        text += "; a shorter context or a smaller batch would help";
    }
    text
}

/// The smallest devices of the same maker and kind that have `room`; where none has, several of the same.
fn large_enough(device: &Device, room: Bytes) -> Vec<String> {
    let registry = Registry::builtin();
    let alike = |other: &&Device| {
        other.vendor == device.vendor
            && (other.kind == device.kind || other.kind == Kind::Gpu && device.kind == Kind::Soc)
    };
    let has = |other: &&Device| other.memory.usable().is_some_and(|there| there >= room);
    let mut all: Vec<&Device> = registry.devices().filter(alike).filter(has).collect();
    let size = |other: &Device| other.memory.usable().map_or(f64::INFINITY, Bytes::value);
    all.sort_by(|a, b| {
        (a.kind != device.kind).cmp(&(b.kind != device.kind)).then(size(a).total_cmp(&size(b))).then(a.key.cmp(&b.key))
    });
    let name = |other: &&Device| format!("{} ({})", other.name, other.memory.usable().unwrap_or(Bytes::ZERO));
    if !all.is_empty() {
        return all.iter().take(2).map(name).collect();
    }
    let several = device.memory.usable().map(|there| (room / there).ceil()).filter(|several| *several <= NODE);
    several.map(|several| format!("{several} of these together (`predict --tp {several}`)")).into_iter().collect()
}

/// What a user should know of the choice.
pub(super) fn warnings(need: &Need<'_>, outcomes: &[Outcome]) -> Vec<String> {
    let mut warnings = Vec::new();
    let Some(best) = outcomes.first().filter(|outcome| outcome.refused.is_none()) else { return warnings };
    let context = need.demand.context();
    if let Some(most) = need.model.max_context.filter(|most| most.get() < context) {
        warnings.push(format!("{context} tokens are more than the {most} this model was made for"));
    }
    let prefill = matches!(need.demand, Demand::Prefill { .. });
    if prefill && outcomes.iter().any(|outcome| outcome.candidate.weight_only() && outcome.bound == Bound::Compute) {
        warnings.push("prompts wait for multipliers: weight-only formats save memory here and no time".to_owned());
    }
    match best.loss() {
        None => warnings
            .push(format!("what {} costs in quality is unknown: evaluate before you rely on it", best.candidate.name)),
        Some(loss) if loss > NOTABLE_LOSS => warnings.push(format!(
            "it may raise the perplexity by up to {:.1} %: evaluate before you rely on it",
            100.0 * loss
        )),
        Some(_) => {}
    }
    let own = score(best, need.goal);
    let rival = outcomes.iter().find(|outcome| outcome.refused.is_none() && doubtful(outcome, need.limits));
    let better = |rival: &&Outcome| !doubtful(best, need.limits) && score(rival, need.goal) * NOTABLE_GAIN < own;
    if let Some(rival) = rival.filter(better) {
        let doubt = rival.loss().map_or_else(
            || "what it costs in quality is unknown".to_owned(),
            |loss| format!("it may raise the perplexity by {:.0} %", 100.0 * loss),
        );
        warnings.push(format!(
            "{} would be {:.2}x as good for this goal, but {doubt}; `--any-quality` lets it compete",
            rival.candidate.name,
            own / score(rival, need.goal)
        ));
    }
    if best.candidate.kv.nominal_bits() < 16 && best.candidate.runtimes.contains(&"vLLM") {
        warnings.push(
            "a narrow cache gains time only where the attention kernel reads it as it is stored; it always gains room"
                .to_owned(),
        );
    }
    warnings
}
