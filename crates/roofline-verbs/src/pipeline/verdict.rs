//! What it comes to. What is wrong is said first: a model that got slower, or lost more than was allowed, is no success
//! however small it is.

use roofline_core::measurement::Phase;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::told::{Found, Side};
use crate::text::{number, size};

/// Below this a new model is slower, above the other it is faster; between them nobody would notice.
const SLOWER: f64 = 0.97;
const FASTER: f64 = 1.05;

/// What it comes to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PipelineVerdict")]
pub struct Verdict {
    /// A word or two.
    pub word: String,
    pub tone: Tone,
    /// The same in a sentence.
    pub sentence: String,
    /// How many times as fast in the phase that was asked for, measured here.
    pub speedup: Option<f64>,
    /// The same by theory, of the passes that ran here.
    pub predicted_speedup: Option<f64>,
    /// The other phase, measured.
    pub other_speedup: Option<f64>,
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

/// The word for a phase's time.
fn phase_words(phase: Phase) -> &'static str {
    match phase {
        Phase::Prefill => "prompts",
        Phase::Decode => "each further token",
    }
}

/// How many times as fast the second is.
fn ratio(before: &Side, after: &Side, phase: Phase) -> Option<f64> {
    let (before, after) = (before.speed.time(phase).0?, after.speed.time(phase).0?);
    Some(before / after)
}

/// The verdict of both models, measured; none where one of them was not.
pub(super) fn verdict(found: &Found, phase: Phase) -> Option<Verdict> {
    let before = found.before.as_ref()?;
    if found.recommendation.as_ref().is_some_and(|told| told.keeps_original) {
        return Some(kept(found));
    }
    let after = found.after.as_ref()?;
    let other = if phase == Phase::Decode { Phase::Prefill } else { Phase::Decode };
    let speedup = ratio(before, after, phase);
    let share = |before: u64, after: u64| after as f64 / before as f64;
    let peaks = before.speed.peak_memory_bytes.zip(after.speed.peak_memory_bytes);
    let (word, tone) = judged(speedup);
    let pace = match speedup {
        Some(speedup) if speedup < 1.0 => format!("{:.2} times slower in {}", 1.0 / speedup, phase_words(phase)),
        Some(speedup) => format!("{speedup:.2} times as fast in {}", phase_words(phase)),
        None => "its speed could not be compared".to_owned(),
    };
    let weights = (before.speed.weights_bytes, after.speed.weights_bytes);
    let smaller = format!(
        "weights of {} instead of {} ({} %)",
        size(weights.1),
        size(weights.0),
        number(100.0 * share(weights.0, weights.1))
    );
    Some(Verdict {
        word: word.to_owned(),
        tone,
        sentence: format!("{pace}; {smaller}; what it costs in quality was not measured"),
        speedup,
        predicted_speedup: found.predicted.here.as_ref().and_then(|here| here.speedup),
        other_speedup: ratio(before, after, other),
        size_ratio: Some(share(weights.0, weights.1)),
        memory_ratio: peaks.map(|(before, after)| share(before, after)),
    })
}

fn judged(speedup: Option<f64>) -> (&'static str, Tone) {
    match speedup {
        Some(speedup) if speedup < SLOWER => ("SLOWER", Tone::Bad),
        Some(speedup) if speedup < FASTER => ("NO FASTER", Tone::Fair),
        Some(_) => ("FASTER, QUALITY UNKNOWN", Tone::Fair),
        None => ("UNKNOWN", Tone::Fair),
    }
}

/// The original stays.
fn kept(found: &Found) -> Verdict {
    let reason = found.recommendation.as_ref().map(|told| told.reason.clone()).unwrap_or_default();
    Verdict {
        word: "KEEP IT".to_owned(),
        tone: Tone::Fair,
        sentence: format!("the original stays as it is: {reason}"),
        speedup: None,
        predicted_speedup: None,
        other_speedup: None,
        size_ratio: None,
        memory_ratio: None,
    }
}
