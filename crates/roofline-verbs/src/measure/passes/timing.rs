//! Passes by the clock.

use std::time::{Duration, Instant};

use roofline_core::{
    compare::Observation,
    measurement::{Phase, Summary},
    predict::{Prediction, Tier},
    units::{Bytes, Seconds},
};
use roofline_engine::{Engine, Error as Refusal, Ran, Session, Wanted};

use super::MeasuredOperator;
use crate::Result;

/// Prompts that are timed at most; the median of them counts.
const PROMPTS: usize = 5;
/// How long prompts are repeated, where nobody says.
const BUDGET: f64 = 10.0;
/// Tokens of a small model are over in milliseconds, which says more about the moment than about the model: answers are
/// repeated until their tokens took this long.
const ANSWERS: f64 = 0.5;

/// Sequences, the tokens of their prompts, and those that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pass {
    pub(super) batch: usize,
    pub(super) prompt: usize,
    pub(super) generate: usize,
}

/// A prompt or a token, with every step of it.
pub(super) struct Sample {
    pub(super) time: Seconds,
    ran: Vec<Ran>,
}

/// What was timed.
pub(super) struct Timed {
    pub(super) pass: Pass,
    /// Tokens of each sequence that are taken at once.
    pub(super) chunk: usize,
    prompts: Vec<Sample>,
    pub(super) steps: Vec<Sample>,
    pub(super) cache: Bytes,
    /// Whether somebody had enough before all of it was timed.
    pub(super) stopped: bool,
}

/// Runs a prompt untimed, so that pages are there and plans are made; then prompts and further tokens by the clock. Tokens
/// are drawn at random: a dense model takes the same time for any, and a router spreads them over its experts.
pub(super) fn timed(engine: &Engine<'_>, pass: Pass, quick: bool, budget: Option<f64>) -> Result<Timed> {
    let Pass { batch, prompt, generate } = pass;
    let mut session = engine.session(batch, prompt + generate)?;
    // As the session cuts a prompt: chunks of about one length.
    let most = (engine.chunk / batch).max(1);
    let chunk = prompt.div_ceil(prompt.div_ceil(most).max(1)).max(1);
    let mut tokens = Tokens { vocabulary: engine.model.vocabulary.get(), state: 1 };
    let mut runner = Runner { session: &mut session, batch, chunk };
    runner.prompt(&mut tokens, prompt)?;
    runner.step(&mut tokens)?;
    let mut timed = Timed {
        pass,
        chunk,
        prompts: Vec::new(),
        steps: Vec::new(),
        cache: Bytes::new(runner.session.cache_bytes() as f64),
        stopped: false,
    };
    let budget = Duration::from_secs_f64(budget.unwrap_or(if quick { 0.25 } else { BUDGET }));
    let answers = ANSWERS.min(budget.as_secs_f64());
    let start = Instant::now();
    let mut rounds = || -> Result<(), Refusal> {
        while timed.prompts.is_empty() || (timed.prompts.len() < PROMPTS && start.elapsed() < budget) {
            runner.session.clear();
            timed.prompts.push(runner.prompt(&mut tokens, prompt)?);
        }
        for answer in 0.. {
            if answer > 0 {
                runner.session.clear();
                timed.prompts.push(runner.prompt(&mut tokens, prompt)?);
            }
            for _ in 0..generate {
                timed.steps.push(runner.step(&mut tokens)?);
            }
            let took: f64 = timed.steps.iter().map(|step| step.time.value()).sum();
            if took >= answers || start.elapsed() >= budget || generate == 0 {
                break;
            }
        }
        Ok(())
    };
    match rounds() {
        Ok(()) => Ok(timed),
        // Without a prompt there is nothing to tell.
        Err(Refusal::Stopped) if !timed.prompts.is_empty() => {
            timed.stopped = true;
            Ok(timed)
        }
        Err(error) => Err(error.into()),
    }
}

/// A session at work.
struct Runner<'s, 'e, 'a> {
    session: &'s mut Session<'e, 'a>,
    batch: usize,
    chunk: usize,
}

impl Runner<'_, '_, '_> {
    /// Feeds prompts of this length, chunk by chunk.
    fn prompt(&mut self, tokens: &mut Tokens, length: usize) -> Result<Sample, Refusal> {
        let prompts: Vec<Vec<u32>> = (0..self.batch).map(|_| tokens.draw(length)).collect();
        let chunks: Vec<Vec<Vec<u32>>> = (0..length)
            .step_by(self.chunk)
            .map(|from| {
                let until = (from + self.chunk).min(length);
                prompts.iter().map(|own| own[from..until].to_vec()).collect()
            })
            .collect();
        self.feed(&chunks)
    }

    /// Feeds one more token to each sequence.
    fn step(&mut self, tokens: &mut Tokens) -> Result<Sample, Refusal> {
        let step = (0..self.batch).map(|_| tokens.draw(1)).collect();
        self.feed(&[step])
    }

    fn feed(&mut self, chunks: &[Vec<Vec<u32>>]) -> Result<Sample, Refusal> {
        self.session.take_ran();
        let start = Instant::now();
        for chunk in chunks {
            self.session.feed(0..self.batch, chunk, Wanted::Last)?;
        }
        let time = Seconds::new(start.elapsed().as_secs_f64());
        Ok(Sample { time, ran: self.session.take_ran() })
    }
}

/// Tokens drawn at random, the same ones every time.
struct Tokens {
    vocabulary: u64,
    state: u64,
}

impl Tokens {
    fn draw(&mut self, count: usize) -> Vec<u32> {
        let mut next = || {
            // Knuth's MMIX; the upper bits are the good ones.
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.state >> 33) % self.vocabulary) as u32
        };
        (0..count).map(|_| next()).collect()
    }
}

impl Timed {
    /// Tokens that followed a prompt: fewer than were asked for where somebody had enough.
    pub(super) fn generated(&self) -> usize {
        self.steps.len().min(self.pass.generate)
    }

    /// The median of the prompts.
    pub(super) fn first(&self) -> Seconds {
        median(self.prompts.iter().map(|sample| sample.time))
    }

    fn samples(&self, phase: Phase) -> &[Sample] {
        match phase {
            Phase::Prefill => &self.prompts,
            Phase::Decode => &self.steps,
        }
    }

    /// The kernels of each site, in the order in which they run, beside what theory says of the site.
    pub(super) fn operators(
        &self,
        phase: Phase,
        theory: Option<&[(&'static str, Prediction)]>,
        tier: Tier,
    ) -> Vec<MeasuredOperator> {
        let samples = self.samples(phase);
        let Some(first) = samples.first() else { return Vec::new() };
        let mut sites: Vec<(&'static str, u64)> = Vec::new();
        for ran in &first.ran {
            match sites.iter_mut().find(|(site, _)| *site == ran.site) {
                Some((_, count)) => *count += 1,
                None => sites.push((ran.site, 1)),
            }
        }
        let told = |(site, count)| {
            let sums = samples.iter().map(|sample| sample.sum(|ran| ran.site == site));
            let measured = median(sums).micros();
            let predicted = theory.and_then(|theory| theory.iter().find(|(own, _)| *own == site));
            let predicted_time_us = predicted.map(|(_, prediction)| prediction.time(tier).micros());
            MeasuredOperator {
                phase,
                site,
                count,
                measured_time_us: measured,
                predicted_time_us,
                ideal_time_us: predicted.map(|(_, prediction)| prediction.time(Tier::Ideal).micros()),
                ratio: predicted_time_us.map(|predicted| measured / predicted),
            }
        };
        sites.into_iter().map(told).collect()
    }

    /// Each kind of kernel as a comparison takes it: once, with how often it ran in a pass. Attention grows with every token;
    /// the one in the middle stands for all.
    pub(super) fn observations(&self, label: &str) -> Vec<Observation> {
        [Phase::Prefill, Phase::Decode].into_iter().flat_map(|phase| self.observed(phase, label)).collect()
    }

    fn observed(&self, phase: Phase, label: &str) -> Vec<Observation> {
        let samples = self.samples(phase);
        let round = if phase == Phase::Decode { self.generated() } else { samples.len() };
        let Some(middle) = samples.get(round / 2) else { return Vec::new() };
        // Steps of one kind, by their places in a pass.
        let mut kinds: Vec<Vec<usize>> = Vec::new();
        for (at, ran) in middle.ran.iter().enumerate() {
            let alike = |kind: &&mut Vec<usize>| {
                let other = &middle.ran[kind[0]];
                (other.site, other.op, other.precision) == (ran.site, ran.op, ran.precision)
            };
            match kinds.iter_mut().find(alike) {
                Some(kind) => kind.push(at),
                None => kinds.push(vec![at]),
            }
        }
        let observation = |kind: Vec<usize>| {
            let ran = middle.ran[kind[0]];
            let mean = |sample: &Sample| sample.at(&kind) / kind.len() as f64;
            let times: Vec<Seconds> = samples.iter().map(mean).collect();
            let summary = Summary::of(&times)?;
            Some(Observation {
                site: ran.site.to_owned(),
                phase: Some(phase),
                precision: label.to_owned(),
                op: ran.op,
                formats: ran.precision,
                count: kind.len() as u64,
                time: summary.median,
                samples: summary.samples,
                range: Some((summary.p5, summary.p95)),
                residency: None,
                path: None,
                kernel: None,
                detour: Bytes::ZERO,
                warnings: Vec::new(),
            })
        };
        kinds.into_iter().filter_map(observation).collect()
    }
}

impl Sample {
    /// The time of some of its steps.
    fn sum(&self, which: impl Fn(&Ran) -> bool) -> Seconds {
        Seconds::new(self.ran.iter().filter(|ran| which(ran)).map(|ran| ran.time.as_secs_f64()).sum())
    }

    /// The time of the steps at these places.
    fn at(&self, places: &[usize]) -> Seconds {
        let time = |at: &usize| self.ran.get(*at).map_or(0.0, |ran| ran.time.as_secs_f64());
        Seconds::new(places.iter().map(time).sum())
    }
}

/// Half of the times are below; zero of none.
fn median(times: impl Iterator<Item = Seconds>) -> Seconds {
    Summary::of(&times.collect::<Vec<_>>()).map_or(Seconds::ZERO, |summary| summary.median)
}
