//! Why, in words with numbers.

use super::{
    Demand, Goal, Need, Outcome,
    rank::{Compromise, class, doubtful, score},
};
use crate::{
    Device, Plan, Registry,
    device::{Kind, Room},
    predict::Bound,
    units::{Bytes, Seconds},
};

/// Losses above this are worth a warning.
const NOTABLE_LOSS: f64 = 0.05;
/// Doubtful plans that are better by this are worth a warning.
const NOTABLE_GAIN: f64 = 1.05;

/// What it costs to take a plan though better ones do not fit.
pub(super) fn last_resort(outcome: &Outcome) -> Option<String> {
    if let Some(offload) = &outcome.offload {
        return Some(format!(
            "{} of {} layers ({}) stay in the host's memory and cross its link in every pass, which takes {}",
            offload.layers, offload.of, offload.host_memory, offload.link_time
        ));
    }
    outcome.candidate.is_narrow().then(|| match outcome.loss() {
        Some(loss) => format!("fewer than 4 bits: may raise the perplexity by {:.0} %", 100.0 * loss),
        None => "fewer than 4 bits: what it costs in quality is unknown".to_owned(),
    })
}

/// Why the first plan leads, or what is missing where none may be chosen.
pub(super) fn reason(need: &Need<'_>, outcomes: &[Outcome], room: Option<Room>) -> String {
    let Some(best) = outcomes.first() else { return "there are no plans for this device".to_owned() };
    if best.refused.is_some() {
        return nothing(need, outcomes, room);
    }
    let plan = &best.candidate.plan;
    let (ai, critical) = (best.figures.ai, best.figures.critical_ai);
    let bound = match best.bound {
        _ if best.offload.is_some() => "bound by the host's link".to_owned(),
        Bound::Memory | Bound::Compute => format!("{}-bound (AI {ai:.1}, critical {critical:.0})", best.bound),
        other => format!("bound by {other}"),
    };
    let place = match best.tp {
        1 => String::new(),
        devices if need.devices.is_some() => format!(" on {devices} devices"),
        devices => format!(" on {devices} of these, since one does not hold it"),
    };
    if best.candidate.is_plain() {
        let others = outcomes.iter().any(|outcome| !outcome.candidate.is_plain() && outcome.refused.is_none());
        let why = if others {
            "no narrower plan is worth its loss for this goal"
        } else {
            "the limits leave no narrower plan"
        };
        return format!("{plan}{place}: {bound}, and {why}");
    }
    let gain = best.gain.map_or_else(String::new, |gain| format!(", {gain:.2}x as fast as 16 bit{}", at(need, best)));
    let wide = outcomes.iter().find(|outcome| outcome.candidate.is_plain() && outcome.batch == best.batch);
    let wide = wide.filter(|wide| wide.tp == best.tp && best.offload.is_none());
    let saved = wide.map(|wide| 1.0 - best.memory.model() / wide.memory.model());
    let saved = saved
        .filter(|saved| *saved > 0.0)
        .map_or_else(String::new, |saved| format!(" and takes {:.0} % less memory", 100.0 * saved));
    let resort = best.last_resort.as_ref().map_or_else(String::new, |cost| format!("; a last resort: {cost}"));
    format!("{plan}{place}: {bound}{gain}{saved}{resort}")
}

/// What a speed-up is compared at, where plans have batches of their own.
fn at(need: &Need<'_>, best: &Outcome) -> String {
    match need.goal {
        Goal::Throughput | Goal::Cost => format!(" at the same batch of {}", best.batch),
        _ => String::new(),
    }
}

/// What is missing where no plan may be chosen, and what would do.
fn nothing(need: &Need<'_>, outcomes: &[Outcome], room: Option<Room>) -> String {
    let smallest = outcomes.iter().min_by(|a, b| a.memory.total.value().total_cmp(&b.memory.total.value()));
    let (Some(smallest), Some(nearest)) = (smallest, outcomes.first()) else { return String::new() };
    let Some((missing, room)) = smallest.memory.missing().zip(room) else {
        let nearest = outcomes.iter().find(|outcome| outcome.memory.missing().is_none()).unwrap_or(nearest);
        return format!(
            "no plan meets every limit; the nearest, {}, {}",
            nearest.candidate.plan,
            nearest.refused.as_deref().unwrap_or("is refused")
        );
    };
    let memory = &smallest.memory;
    let system = if memory.system > Bytes::ZERO { format!(", the system's {}", memory.system) } else { String::new() };
    let mut text = format!(
        "nothing fits: even {} needs {} (weights {}, cache {}, in flight {}{system}, kept free {}), {missing} more than the \
         {} there are",
        smallest.candidate.plan,
        memory.total,
        memory.weights,
        memory.cache,
        memory.in_flight,
        memory.kept_free,
        room.capacity,
    );
    let device = &need.machine.device;
    let there = device.room().filter(|there| there.for_models() >= memory.model() && there.capacity > room.capacity);
    if let Some(there) = there {
        text += &format!("; all of the {} that the device has would do", there.capacity);
        return text;
    }
    let devices = large_enough(device, memory.model());
    if !devices.is_empty() {
        text += &format!("; it would fit {}", devices.join(" or "));
    }
    if memory.cache > memory.weights * 0.25 {
        text += "; a shorter context or a smaller batch would help";
    }
    text
}

/// The smallest devices of the same maker and kind that hold a model of that size.
fn large_enough(device: &Device, model: Bytes) -> Vec<String> {
    let registry = Registry::builtin();
    let alike = |other: &&Device| {
        other.vendor == device.vendor
            && (other.kind == device.kind || other.kind == Kind::Gpu && device.kind == Kind::Soc)
    };
    let has = |other: &&Device| other.room().is_some_and(|room| room.for_models() >= model);
    let mut all: Vec<&Device> = registry.devices().filter(alike).filter(has).collect();
    let size = |other: &Device| other.memory.usable().map_or(f64::INFINITY, Bytes::value);
    all.sort_by(|a, b| {
        (a.kind != device.kind).cmp(&(b.kind != device.kind)).then(size(a).total_cmp(&size(b))).then(a.key.cmp(&b.key))
    });
    let name = |other: &&Device| format!("{} ({})", other.name, other.memory.usable().unwrap_or(Bytes::ZERO));
    all.iter().take(2).map(name).collect()
}

/// What a user should know of the choice.
pub(super) fn warnings(need: &Need<'_>, outcomes: &[Outcome], open: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    let device = &need.machine.device;
    if let (Some(limit), Some(there)) = (need.limits.memory, device.memory.usable())
        && limit > there
    {
        warnings.push(format!("the memory limit of {limit} is more than the {there} there are, which are what counts"));
    }
    if open {
        warnings.push(format!(
            "no runtime that we know runs on {}: every precision that its units multiply competes",
            device.name
        ));
    }
    let Some(best) = outcomes.first().filter(|outcome| outcome.refused.is_none()) else { return warnings };
    let context = need.demand.context();
    if let Some(most) = need.model.max_context.filter(|most| most.get() < context) {
        warnings.push(format!("{context} tokens are more than the {most} this model was made for"));
    }
    warnings.extend(alone(need, best, outcomes));
    let weight_only = |outcome: &Outcome| outcome.candidate.weight_only() && outcome.bound == Bound::Compute;
    if matches!(need.demand, Demand::Prefill { .. }) && outcomes.iter().any(weight_only) {
        warnings.push("prompts wait for multipliers: weight-only formats save memory here and no time".to_owned());
    }
    match best.loss() {
        None => warnings
            .push(format!("what {} costs in quality is unknown: evaluate before you rely on it", best.candidate.plan)),
        Some(loss) if loss > NOTABLE_LOSS => warnings.push(format!(
            "it may raise the perplexity by up to {:.1} %: evaluate before you rely on it",
            100.0 * loss
        )),
        Some(_) => {}
    }
    warnings.extend(rival(need, best, outcomes));
    if best.candidate.plan.kv().is_some() && best.candidate.known_as.contains_key("vLLM") {
        warnings.push(
            "a narrow cache gains time only where the attention kernel reads it as it is stored; it always gains room"
                .to_owned(),
        );
    }
    warnings
}

/// What one device alone could do, where the choice takes several.
fn alone(need: &Need<'_>, best: &Outcome, outcomes: &[Outcome]) -> Option<String> {
    if best.tp == 1 || need.devices.is_some() {
        return None;
    }
    let told = |outcome: &Outcome| {
        let cost = outcome
            .last_resort
            .clone()
            .or_else(|| Some(format!("it may raise the perplexity by {:.0} %", 100.0 * outcome.loss()?)));
        let cost = cost.unwrap_or_else(|| "what it costs in quality is unknown".to_owned());
        format!("{} at {:.2} tokens/s ({cost})", outcome.candidate.plan, outcome.tokens_per_s)
    };
    let of =
        |kind: Compromise| outcomes.iter().find(|outcome| outcome.tp == 1 && class(outcome, need).0 == kind).map(told);
    let found: Vec<String> = [of(Compromise::Quality), of(Compromise::Offload)].into_iter().flatten().collect();
    (!found.is_empty()).then(|| format!("one device alone would take a last resort: {}", found.join(", or ")))
}

/// What a plan does to prompts.
pub(super) fn prompts(prompt: u64, time: Seconds, speedup: Option<f64>, plan: &Plan) -> String {
    let beside = speedup.map_or_else(String::new, |speedup| format!(", {speedup:.2}x as fast as 16 bit"));
    format!("a prompt of {prompt} tokens takes {time} with {plan}{beside}")
}

/// A plan that would be better, were its quality beyond doubt.
fn rival(need: &Need<'_>, best: &Outcome, outcomes: &[Outcome]) -> Option<String> {
    let own = score(best, need.goal);
    let doubted = |outcome: &&Outcome| {
        outcome.refused.is_none()
            && outcome.offload.is_none()
            && outcome.tp == best.tp
            && !outcome.candidate.is_narrow()
            && doubtful(outcome, need)
    };
    let rivals = outcomes.iter().filter(doubted);
    let rival = rivals.min_by(|a, b| score(a, need.goal).total_cmp(&score(b, need.goal)))?;
    if doubtful(best, need) || score(rival, need.goal) * NOTABLE_GAIN >= own {
        return None;
    }
    let doubt = rival.loss().map_or_else(
        || "what it costs in quality is unknown".to_owned(),
        |loss| format!("it may raise the perplexity by {:.0} %", 100.0 * loss),
    );
    Some(format!(
        "{} would be {:.2}x as good for this goal, but {doubt}; `⟨any_quality⟩` lets it compete",
        rival.candidate.plan,
        own / score(rival, need.goal)
    ))
}
