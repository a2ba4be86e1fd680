//! Power over the phases of a pass. A phase is many short stretches, prompts and answers in turn, so that one recording goes
//! over all of them and each phase has its own parts of it.

use std::{sync::Arc, time::Instant};

use roofline_core::{
    measurement::Phase,
    units::{Joules, Seconds, Watts},
};
use roofline_run::telemetry::{PowerReading, PowerTracker, Recording, Source};

/// How long a phase must have been seen: drivers renew their figure every 20 to 100 ms.
const LEAST: f64 = 0.5;
/// How long it is seen where somebody asks for its power.
const ASKED: f64 = 1.0;

/// Seconds that a driver's mean is of, where it tells no other power.
const MEAN: f64 = 1.0;

/// A recording that goes on, and when each phase ran.
pub(super) struct Watch {
    tracker: Option<PowerTracker>,
    started: Instant,
    spans: Vec<Span>,
}

/// A stretch of one phase.
struct Span {
    phase: Phase,
    from: Seconds,
    until: Seconds,
    tokens: usize,
}

/// What each phase drew; none where nobody says, where it was over too soon, or where only means are told and it took turns with
/// the other one within what they are of.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Power {
    pub(super) prefill: Option<Drawn>,
    pub(super) decode: Option<Drawn>,
}

/// Power of a phase, and what it made of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Drawn {
    pub(super) power: Watts,
    pub(super) tokens_per_joule: f64,
}

impl Watch {
    /// Looks from now on, where there is somebody to ask.
    pub(super) fn start(source: Option<Arc<dyn Source>>) -> Self {
        let tracker = source.map(|source| PowerTracker::start(source, PowerTracker::INTERVAL));
        Self { tracker, started: Instant::now(), spans: Vec::new() }
    }

    /// Notes that tokens went through a phase from `start` until now.
    pub(super) fn span(&mut self, phase: Phase, start: Instant, tokens: usize) {
        if self.tracker.is_some() {
            let since = |moment: Instant| Seconds::new(moment.duration_since(self.started).as_secs_f64());
            let span = Span { phase, from: since(start), until: since(Instant::now()), tokens };
            self.spans.push(span);
        }
    }

    /// Whether a phase was seen for less than somebody who asks for its power wants.
    pub(super) fn lacks(&self, phase: Phase) -> bool {
        self.tracker.is_some() && seen(&self.spans, phase).value() < ASKED
    }

    /// What there was to see.
    pub(super) fn finish(&mut self) -> Power {
        let Some(tracker) = self.tracker.take() else { return Power::default() };
        let recording = tracker.stop();
        let of = |phase| drawn(&recording, &self.spans, phase);
        Power { prefill: of(Phase::Prefill), decode: of(Phase::Decode) }
    }
}

fn seen(spans: &[Span], phase: Phase) -> Seconds {
    Seconds::new(spans.iter().filter(|span| span.phase == phase).map(|span| (span.until - span.from).value()).sum())
}

/// The longest time that a phase went on without the other one between.
fn longest(spans: &[Span], phase: Phase) -> Seconds {
    let alone = spans.chunk_by(|one, other| one.phase == other.phase).filter(|alone| alone[0].phase == phase);
    let times = alone.map(|alone| (alone[alone.len() - 1].until - alone[0].from).value());
    Seconds::new(times.fold(0.0, f64::max))
}

fn drawn(recording: &Recording, spans: &[Span], phase: Phase) -> Option<Drawn> {
    let time = seen(spans, phase);
    if time.value() < LEAST {
        return None;
    }
    // A mean of what was drawn before is another phase's as much as this one's.
    if recording.power_reading == Some(PowerReading::Averaged) && longest(spans, phase).value() <= MEAN {
        return None;
    }
    let own = || spans.iter().filter(|span| span.phase == phase);
    let (mut energy, energies) = (Joules::ZERO, recording.energies());
    for span in own() {
        energy += energies.between(span.from, span.until)?;
    }
    let tokens: usize = own().map(|span| span.tokens).sum();
    let tokens_per_joule = tokens as f64 / energy.value();
    (energy > Joules::ZERO).then(|| Drawn { power: Watts::new(energy.value() / time.value()), tokens_per_joule })
}

#[cfg(test)]
mod tests {
    use roofline_run::telemetry::Sample;

    use super::*;

    /// Two seconds: 100 W in the first, 300 W in the second.
    fn recording() -> Recording {
        let sample = |(timestamp, power): (f64, f64)| Sample {
            timestamp: Seconds::new(timestamp),
            power: Some(Watts::new(power)),
            ..Sample::default()
        };
        Recording {
            samples: [(0.0, 100.0), (1.0, 100.0), (1.000_001, 300.0), (2.0, 300.0)].map(sample).to_vec(),
            power_reading: Some(PowerReading::Instant),
            energy_counter: None,
            cut_off: false,
        }
    }

    fn span(phase: Phase, from: f64, until: f64, tokens: usize) -> Span {
        Span { phase, from: Seconds::new(from), until: Seconds::new(until), tokens }
    }

    #[test]
    fn each_phase_has_its_own_power() {
        let spans = [
            span(Phase::Prefill, 0.0, 0.5, 1000),
            span(Phase::Decode, 1.1, 1.4, 30),
            span(Phase::Prefill, 0.5, 1.0, 1000),
            span(Phase::Decode, 1.5, 1.8, 30),
        ];
        let prefill = drawn(&recording(), &spans, Phase::Prefill).unwrap();
        assert!((prefill.power.value() - 100.0).abs() < 0.1 && (prefill.tokens_per_joule - 20.0).abs() < 0.1);
        let decode = drawn(&recording(), &spans, Phase::Decode).unwrap();
        assert!((decode.power.value() - 300.0).abs() < 0.1 && (decode.tokens_per_joule - 1.0 / 3.0).abs() < 0.01);
    }

    /// Means of a second say nothing of phases that take turns within it, and something of one that goes on.
    #[test]
    fn a_mean_is_of_nobody_who_takes_turns() {
        let recording = Recording { power_reading: Some(PowerReading::Averaged), ..recording() };
        let turns = [
            span(Phase::Prefill, 0.0, 0.4, 1000),
            span(Phase::Decode, 0.4, 0.8, 30),
            span(Phase::Prefill, 0.8, 1.2, 1000),
            span(Phase::Decode, 1.2, 1.6, 30),
        ];
        assert_eq!([Phase::Prefill, Phase::Decode].map(|phase| drawn(&recording, &turns, phase)), [None, None]);
        let alone = [
            span(Phase::Prefill, 0.0, 0.3, 1000),
            span(Phase::Decode, 0.4, 1.0, 30),
            span(Phase::Decode, 1.0, 1.6, 30),
        ];
        assert_eq!(drawn(&recording, &alone, Phase::Prefill), None);
        assert!(drawn(&recording, &alone, Phase::Decode).is_some());
    }

    #[test]
    fn what_was_over_too_soon_has_none() {
        let spans = [span(Phase::Decode, 1.1, 1.4, 30)];
        assert_eq!(drawn(&recording(), &spans, Phase::Decode), None);
        assert_eq!(drawn(&recording(), &spans, Phase::Prefill), None);
    }

    #[test]
    fn without_anybody_to_ask_there_is_nothing_to_wait_for() {
        let mut watch = Watch::start(None);
        watch.span(Phase::Decode, Instant::now(), 1);
        assert!(!watch.lacks(Phase::Decode) && watch.finish() == Power::default());
    }
}
