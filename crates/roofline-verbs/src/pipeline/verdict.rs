//! What it comes to. What is wrong is said first: a model that got slower, or lost more than was allowed, is no success
//! however small it is.

use roofline_core::measurement::Phase;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Request,
    told::{Found, Side},
};
use crate::{recommend::Goal, text::size};

/// Below this a new model is slower, above the other it is faster; between them nobody would notice.
const SLOWER: f64 = 0.97;
const FASTER: f64 = 1.05;
/// Below this the phase that nobody asked for pays too much.
const MUCH_SLOWER: f64 = 0.8;
/// A rise of the perplexity that is a price; and what is too much, where nobody says, as `recommend` has it.
const PRICE: f64 = 0.05;
const TOO_MUCH: f64 = 0.15;
/// Models that agree less often on the most probable token are two models, whatever their perplexities.
const AGREEMENT: f64 = 0.75;

/// What it comes to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PipelineVerdict")]
pub struct Verdict {
    /// A word or two.
    pub word: String,
    pub tone: Tone,
    /// The same in sentences, what is wrong first.
    pub sentence: String,
    pub points: Vec<String>,
    /// How many times as fast in the phase that was asked for, measured here.
    pub speedup: Option<f64>,
    /// The same by theory, of the passes that ran here.
    pub predicted_speedup: Option<f64>,
    /// The other phase, measured.
    pub other_speedup: Option<f64>,
    /// How much of the perplexity was added, as a share, with its 95 % interval; none where there was no text.
    pub perplexity_change: Option<f64>,
    pub perplexity_change_low: Option<f64>,
    pub perplexity_change_high: Option<f64>,
    /// The most that was allowed.
    pub allowed_change: f64,
    /// The new size of the weights, and the new peak of memory, as shares of the old ones.
    pub size_ratio: Option<f64>,
    pub memory_ratio: Option<f64>,
}

/// How it is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "PipelineTone")]
pub enum Tone {
    Good,
    Fair,
    Bad,
}

/// What the verdict is made of.
struct Facts {
    phase: Phase,
    goal: Goal,
    speedup: Option<f64>,
    /// The rise of the perplexity, and its interval.
    change: Option<(f64, Option<f64>, Option<f64>)>,
    allowed: f64,
    /// How often both think the same most probable.
    agreement: Option<f64>,
    /// How many times as fast the other phase is.
    other: Option<f64>,
}

/// How many times as fast the second is.
fn ratio(before: &Side, after: &Side, phase: Phase) -> Option<f64> {
    let (before, after) = (before.speed.time(phase).0?, after.speed.time(phase).0?);
    Some(before / after)
}

/// The verdict of both models, measured; none where one of them was not.
pub(super) fn verdict(found: &Found, request: &Request) -> Option<Verdict> {
    let before = found.before.as_ref()?;
    let allowed = request.max_quality_loss.map_or(TOO_MUCH, |share| share.0);
    if let Some(told) = found.recommendation.as_ref().filter(|told| told.keeps_original) {
        return Some(kept(&told.reason, allowed));
    }
    let after = found.after.as_ref()?;
    let phase = request.phase;
    let other = if phase == Phase::Decode { Phase::Prefill } else { Phase::Decode };
    let told = found.evaluation.as_ref();
    let less = |ratio: Option<f64>| ratio.map(|ratio| ratio - 1.0);
    let change = told.and_then(|told| Some((told.ratio? - 1.0, less(told.ratio_low), less(told.ratio_high))));
    let agreement = after.quality.as_ref().and_then(|told| told.top1_agreement);
    let facts = Facts {
        phase,
        goal: request.goal,
        speedup: ratio(before, after, phase),
        change,
        allowed,
        agreement,
        other: ratio(before, after, other),
    };
    let (word, tone) = facts.judged();
    let share = |(before, after): (u64, u64)| after as f64 / before as f64;
    let weights = (before.speed.weights_bytes, after.speed.weights_bytes);
    let peaks = before.speed.peak_memory_bytes.zip(after.speed.peak_memory_bytes);
    let smaller = format!(
        "The weights take {} instead of {}: {:.0} % of it",
        size(weights.1),
        size(weights.0),
        100.0 * share(weights)
    );
    let mut points = facts.points();
    points.push(smaller);
    points.extend(
        cached(before.speed.weights_bytes, before.speed.cache_bytes, found.processor_cache_bytes)
            .filter(|_| facts.gains_nothing()),
    );
    points.extend(against_theory(found, facts.speedup));
    Some(Verdict {
        word: word.to_owned(),
        tone,
        sentence: points.join(". "),
        points,
        speedup: facts.speedup,
        predicted_speedup: found.predicted.here.as_ref().and_then(|here| here.speedup),
        other_speedup: facts.other,
        perplexity_change: change.map(|(change, ..)| change),
        perplexity_change_low: change.and_then(|(_, low, _)| low),
        perplexity_change_high: change.and_then(|(.., high)| high),
        allowed_change: allowed,
        size_ratio: Some(share(weights)),
        memory_ratio: peaks.map(share),
    })
}

impl Facts {
    fn loses(&self) -> bool {
        // What is no number is no model any more.
        self.change.is_some_and(|(change, ..)| change.is_nan() || change > self.allowed)
    }

    /// Whether it costs something that has to be said before what it brings; what may be too much is such a thing.
    fn costs(&self) -> bool {
        let too_much = |high: Option<f64>| high.is_some_and(|high| high > self.allowed);
        self.change.is_some_and(|(change, _, high)| change > PRICE || too_much(high))
            || self.agreement.is_some_and(|share| share < AGREEMENT)
    }

    /// Whether fewer bytes did not make further tokens faster, which is what they are expected to do.
    fn gains_nothing(&self) -> bool {
        self.phase == Phase::Decode && self.speedup.is_some_and(|speedup| speedup < FASTER)
    }

    fn slower(&self) -> bool {
        self.speedup.is_some_and(|speedup| speedup < SLOWER)
    }

    fn judged(&self) -> (&'static str, Tone) {
        let faster = self.speedup.is_some_and(|speedup| speedup >= FASTER);
        let small = matches!(self.goal, Goal::Memory);
        match (self.loses(), self.slower()) {
            (true, true) => ("SLOWER AND WORSE", Tone::Bad),
            (true, false) => ("LOSES TOO MUCH", Tone::Bad),
            (false, true) if small => ("SMALLER, BUT SLOWER", Tone::Fair),
            (false, true) => ("SLOWER", Tone::Bad),
            (false, false) => match self.change {
                None if faster => ("FASTER, QUALITY UNKNOWN", Tone::Fair),
                None => ("NO FASTER, QUALITY UNKNOWN", Tone::Fair),
                Some(_) if self.costs() => ("AT A PRICE", Tone::Fair),
                Some(_) if faster && self.other.is_some_and(|other| other < MUCH_SLOWER) => ("MIXED", Tone::Fair),
                Some(_) if faster => ("WORTH IT", Tone::Good),
                Some(_) if small => ("SMALLER", Tone::Good),
                Some(_) => ("SMALLER, BUT NO FASTER", Tone::Fair),
            },
        }
    }

    /// Quality and speed, the worse of them first.
    fn points(&self) -> Vec<String> {
        let (quality, pace) = (self.quality(), self.pace());
        let quality_first = self.loses() || (!self.slower() && self.costs());
        let mut points = if quality_first { vec![quality, pace] } else { vec![pace, quality] };
        // What was not asked for pays, too.
        if let Some(other) = self.other.filter(|other| *other < SLOWER) {
            let what = if self.phase == Phase::Decode { "A prompt" } else { "Each further token" };
            points.push(format!("{what} takes {:.2} times as long", 1.0 / other));
        }
        points
    }

    fn pace(&self) -> String {
        let what = match self.phase {
            Phase::Prefill => "a prompt",
            Phase::Decode => "each further token",
        };
        match self.speedup {
            Some(speedup) if speedup < 1.0 => format!("It is slower: {what} takes {:.2} times as long", 1.0 / speedup),
            Some(speedup) => format!("It is {speedup:.2} times as fast: {what}, measured here"),
            None => "Speeds could not be compared".to_owned(),
        }
    }

    fn quality(&self) -> String {
        let Some((change, low, high)) = self.change else {
            return "What it costs in quality was not measured: there was no text".to_owned();
        };
        let percent = |share: f64| format!("{:+.1} %", 100.0 * share);
        let range = low.zip(high).map(|(low, high)| format!(" ({} to {})", percent(low), percent(high)));
        let limit =
            if self.loses() { format!(", more than the {:.0} % allowed", 100.0 * self.allowed) } else { String::new() };
        let unsure = low.is_some_and(|low| low <= 0.0) && high.is_some_and(|high| high >= 0.0);
        let note = if unsure { ", which could be chance" } else { "" };
        let same =
            |share: f64| format!("; both think the same token most probable in {:.1} % of places", 100.0 * share);
        let same = self.agreement.map(same).unwrap_or_default();
        format!("The perplexity changes by {}{}{limit}{note}{same}", percent(change), range.unwrap_or_default())
    }
}

/// Why fewer bytes win nothing where even the original is never read from memory.
fn cached(weights: u64, keys_and_values: u64, cache: Option<u64>) -> Option<String> {
    let (bytes, cache) = (weights + keys_and_values, cache?);
    (bytes <= cache).then(|| {
        let (bytes, cache) = (size(bytes), size(cache));
        format!(
            "Even the original, {bytes} with its keys and values, fits this processor's cache of {cache} and is not read \
             from memory: fewer bytes pay for models that do not fit"
        )
    })
}

/// How right the prediction was.
fn against_theory(found: &Found, speedup: Option<f64>) -> Option<String> {
    let here = found.predicted.here.as_ref()?;
    let (told, got) = (here.speedup?, speedup?);
    Some(format!("Predicted were {told:.2} times ({} terms), measured {got:.2}", here.basis))
}

/// The original stays.
fn kept(reason: &str, allowed: f64) -> Verdict {
    let sentence = format!("The original stays as it is: {reason}");
    Verdict {
        word: "KEEP IT".to_owned(),
        tone: Tone::Fair,
        points: vec![sentence.clone()],
        sentence,
        speedup: None,
        predicted_speedup: None,
        other_speedup: None,
        perplexity_change: None,
        perplexity_change_low: None,
        perplexity_change_high: None,
        allowed_change: allowed,
        size_ratio: None,
        memory_ratio: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(speedup: f64, change: Option<f64>) -> (&'static str, Tone, String) {
        let change = change.map(|change| (change, Some(change - 0.01), Some(change + 0.01)));
        let facts = Facts {
            phase: Phase::Decode,
            goal: Goal::Latency,
            speedup: Some(speedup),
            change,
            allowed: 0.15,
            agreement: None,
            other: None,
        };
        let (word, tone) = facts.judged();
        (word, tone, facts.points().remove(0))
    }

    /// What is wrong is said first, whatever else was won.
    #[test]
    fn nothing_slow_or_wrong_is_praised() {
        let told = |speedup, change| {
            let (word, tone, first) = judged(speedup, change);
            (word, tone, first.starts_with("It is slower"), first.starts_with("The perplexity"))
        };
        assert_eq!(told(2.0, Some(0.01)), ("WORTH IT", Tone::Good, false, false));
        assert_eq!(told(0.5, Some(0.01)), ("SLOWER", Tone::Bad, true, false));
        assert_eq!(told(4.0, Some(0.5)), ("LOSES TOO MUCH", Tone::Bad, false, true));
        assert_eq!(told(4.0, Some(f64::NAN)), ("LOSES TOO MUCH", Tone::Bad, false, true));
        assert_eq!(told(0.5, Some(0.5)), ("SLOWER AND WORSE", Tone::Bad, false, true));
        assert_eq!(told(2.0, Some(0.1)), ("AT A PRICE", Tone::Fair, false, true));
        assert_eq!(told(1.0, Some(0.0)), ("SMALLER, BUT NO FASTER", Tone::Fair, false, false));
        assert_eq!(told(2.0, None), ("FASTER, QUALITY UNKNOWN", Tone::Fair, false, false));
    }

    /// Tokens that are faster while prompts are slower are half of a success, and that is said.
    #[test]
    fn the_other_phase_counts() {
        let facts = |other| Facts {
            phase: Phase::Decode,
            goal: Goal::Latency,
            speedup: Some(2.0),
            change: Some((0.0, Some(-0.01), Some(0.01))),
            allowed: 0.15,
            agreement: Some(0.99),
            other: Some(other),
        };
        assert_eq!(facts(0.5).judged(), ("MIXED", Tone::Fair));
        assert!(facts(0.5).points().contains(&"A prompt takes 2.00 times as long".to_owned()));
        assert_eq!((facts(1.0).judged().0, facts(1.0).points().len()), ("WORTH IT", 2));
    }

    /// A perplexity that stays while predictions change is luck.
    #[test]
    fn models_that_disagree_are_no_success() {
        let facts = |agreement| Facts {
            phase: Phase::Decode,
            goal: Goal::Latency,
            speedup: Some(2.0),
            change: Some((0.0, Some(-0.01), Some(0.01))),
            allowed: 0.15,
            agreement: Some(agreement),
            other: None,
        };
        assert_eq!(facts(0.95).judged().0, "WORTH IT");
        assert_eq!(facts(0.5).judged().0, "AT A PRICE");
    }

    /// Fewer bytes win nothing where none come from memory, and only then is that the reason.
    #[test]
    fn what_fits_the_cache_is_said() {
        let facts = |phase, speedup| Facts {
            phase,
            goal: Goal::Latency,
            speedup: Some(speedup),
            change: None,
            allowed: 0.15,
            agreement: None,
            other: None,
        };
        assert!(facts(Phase::Decode, 1.0).gains_nothing() && facts(Phase::Decode, 0.8).gains_nothing());
        assert!(!facts(Phase::Decode, 1.2).gains_nothing() && !facts(Phase::Prefill, 0.8).gains_nothing());
        assert!(cached(10, 6, Some(16)).is_some() && cached(10, 6, Some(15)).is_none());
        assert!(cached(10, 6, None).is_none());
    }

    /// A change whose interval has both signs may be none.
    #[test]
    fn chance_is_said() {
        let facts = |low, high| Facts {
            phase: Phase::Decode,
            goal: Goal::Latency,
            speedup: None,
            change: Some((0.01, Some(low), Some(high))),
            allowed: 0.15,
            agreement: None,
            other: None,
        };
        assert!(facts(-0.01, 0.03).quality().contains("chance"));
        assert!(!facts(0.005, 0.03).quality().contains("chance"));
    }
}
