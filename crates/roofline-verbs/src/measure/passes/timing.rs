//! Passes by the clock.

use std::time::{Duration, Instant};

use roofline_core::{
    compare::Observation,
    measurement::{Phase, Summary},
    predict::{Prediction, Tier},
    units::{Bytes, Seconds},
};
use roofline_engine::{Engine, Error as Refusal, Ran, Session, Wanted};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    MeasuredOperator,
    power::{Power, Watch},
};
use crate::{Result, running::Executor};

/// Prompts that are timed at most; the median of them counts.
const PROMPTS: usize = 5;
/// How long prompts are repeated, where nobody says.
const BUDGET: f64 = 10.0;
/// Tokens of a small model are over in milliseconds, which says more about the moment than about the model: answers are
/// repeated until their tokens took this long.
const ANSWERS: f64 = 0.5;
/// Tokens whose steps are timed one by one where that takes passes of their own.
const APART: usize = 4;
/// Further prompts and tokens before a GPU is under watch, for prompts of which each chunk has the length of the one before and
/// for others. A pass that comes a second time is recorded, which runs it a few hundred times to find its fastest kernels; and
/// one of another shape may take more scratch memory in between, of which recordings are lost. Memory grows in the first round
/// only, so that every pass is known after the second. Recorded it is then where it came twice, and else after the third.
const SETTLING: [usize; 2] = [1, 2];

/// Sequences, the tokens of their prompts, and those that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pass {
    pub(super) batch: usize,
    pub(super) prompt: usize,
    pub(super) generate: usize,
}

/// How long, and whether power is to be known of every phase.
#[derive(Clone, Copy)]
pub(super) struct Effort {
    pub(super) quick: bool,
    pub(super) budget: Option<f64>,
    pub(super) energy: bool,
}

/// Whose clock times are by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PassClock {
    /// The caller's: from the call to its return.
    Host,
    /// The device's own, which does not count what the host needs to start a pass and to hear of its end.
    Device,
}

/// A prompt or a token, with those of its steps that were timed one by one.
pub(super) struct Sample {
    /// By the device's clock where it has one, else by the caller's.
    pub(super) time: Seconds,
    /// By the caller's.
    pub(super) host: Seconds,
    ran: Vec<Ran>,
}

/// What was timed.
pub(super) struct Timed {
    pub(super) pass: Pass,
    /// Tokens of each sequence that are taken at once.
    pub(super) chunk: usize,
    pub(super) clock: PassClock,
    prompts: Vec<Sample>,
    pub(super) steps: Vec<Sample>,
    /// A prompt and some tokens whose steps were timed one by one; none on a processor, where those of all passes are.
    apart: Option<Apart>,
    pub(super) cache: Bytes,
    /// Memory of a GPU that was in use.
    pub(super) memory: Option<Bytes>,
    pub(super) power: Power,
    /// Whether somebody had enough before all of it was timed.
    pub(super) stopped: bool,
}

/// Passes with a clock between their kernels, which keeps those apart: what each took is known, and the sum is more than
/// the pass takes.
#[derive(Default)]
struct Apart {
    prompts: Vec<Sample>,
    steps: Vec<Sample>,
}

/// Runs a prompt untimed, so that pages are there, plans are made, and passes are recorded where that is done; then prompts
/// and further tokens by the clock. Tokens are drawn at random: a dense model takes the same time for any, and a router
/// spreads them over its experts.
pub(super) fn timed(engine: &Engine<'_>, pass: Pass, effort: Effort, executor: &Executor) -> Result<Timed> {
    let Pass { batch, prompt, .. } = pass;
    let mut session = engine.session(batch, prompt + pass.generate)?;
    // As the session cuts a prompt: chunks of about one length.
    let most = (engine.chunk / batch).max(1);
    let chunk = prompt.div_ceil(prompt.div_ceil(most).max(1)).max(1);
    let tokens = Tokens { vocabulary: engine.model.vocabulary.get(), state: 1 };
    let mut runner = Runner { session: &mut session, tokens, pass, watch: Watch::start(None) };
    runner.prompt()?;
    runner.step()?;
    let clock = if runner.session.device_time().is_some() { PassClock::Device } else { PassClock::Host };
    let alike = prompt > chunk && prompt.is_multiple_of(chunk);
    let settling = if clock == PassClock::Device { SETTLING[usize::from(!alike)] } else { 0 };
    for _ in 0..settling {
        runner.session.clear();
        runner.prompt()?;
        runner.step()?;
    }
    let mut timed = Timed {
        pass,
        chunk,
        clock,
        prompts: Vec::new(),
        steps: Vec::new(),
        apart: None,
        cache: Bytes::new(runner.session.cache_bytes() as f64),
        memory: None,
        power: Power::default(),
        stopped: false,
    };
    runner.watch = Watch::start(executor.power());
    let told = runner.rounds(&mut timed, effort);
    timed.power = runner.watch.finish();
    timed.memory = if executor.is_gpu() { executor.memory_used() } else { None };
    let told = told.and_then(|()| if clock == PassClock::Device { runner.apart(&mut timed) } else { Ok(()) });
    match told {
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
    tokens: Tokens,
    pass: Pass,
    watch: Watch,
}

impl Runner<'_, '_, '_> {
    /// Prompts, then answers to them, until the median of each is known well enough or there is no time left.
    fn rounds(&mut self, timed: &mut Timed, effort: Effort) -> Result<(), Refusal> {
        let budget = Duration::from_secs_f64(effort.budget.unwrap_or(if effort.quick { 0.25 } else { BUDGET }));
        let answers = ANSWERS.min(budget.as_secs_f64());
        let mut start = Instant::now();
        while timed.prompts.is_empty() || (timed.prompts.len() < PROMPTS && start.elapsed() < budget) {
            self.session.clear();
            timed.prompts.push(self.prompt()?);
        }
        if timed.clock == PassClock::Device {
            // Prompts have left a GPU at the clock that its power allows them; steps have a time of their own to be over it.
            start = Instant::now();
        }
        for answer in 0.. {
            if answer > 0 {
                timed.prompts.extend(self.back()?);
            }
            for _ in 0..self.pass.generate {
                timed.steps.push(self.step()?);
            }
            let took: f64 = timed.steps.iter().map(|step| step.time.value()).sum();
            if took >= answers || start.elapsed() >= budget || self.pass.generate == 0 {
                break;
            }
        }
        if effort.energy { self.watched() } else { Ok(()) }
    }

    /// Back to the end of the prompt, which is only fed again where its end is no longer in the cache.
    fn back(&mut self) -> Result<Option<Sample>, Refusal> {
        if self.session.rewind(self.pass.prompt) {
            return Ok(None);
        }
        self.session.clear();
        self.prompt().map(Some)
    }

    /// Goes on until both phases were under watch for long enough that their power can be told.
    fn watched(&mut self) -> Result<(), Refusal> {
        while self.watch.lacks(Phase::Prefill) {
            self.session.clear();
            self.prompt()?;
        }
        while self.pass.generate > 0 && self.watch.lacks(Phase::Decode) {
            self.back()?;
            for _ in 0..self.pass.generate {
                self.step()?;
            }
        }
        Ok(())
    }

    /// One prompt and a few tokens from the middle of an answer, each step of them by the clock.
    fn apart(&mut self, timed: &mut Timed) -> Result<(), Refusal> {
        let few = APART.min(self.pass.generate);
        let apart = timed.apart.insert(Apart::default());
        self.session.clear();
        self.session.time_steps(true);
        apart.prompts.push(self.prompt()?);
        self.session.time_steps(false);
        for _ in 0..(self.pass.generate - few) / 2 {
            self.step()?;
        }
        self.session.time_steps(true);
        for _ in 0..few {
            apart.steps.push(self.step()?);
        }
        self.session.time_steps(false);
        Ok(())
    }

    /// Feeds prompts.
    fn prompt(&mut self) -> Result<Sample, Refusal> {
        self.feed(Phase::Prefill, self.pass.prompt)
    }

    /// Feeds one more token to each sequence.
    fn step(&mut self) -> Result<Sample, Refusal> {
        self.feed(Phase::Decode, 1)
    }

    fn feed(&mut self, phase: Phase, length: usize) -> Result<Sample, Refusal> {
        let batch = self.pass.batch;
        let fed: Vec<Vec<u32>> = (0..batch).map(|_| self.tokens.draw(length)).collect();
        self.session.take_ran();
        let start = Instant::now();
        self.session.feed(0..batch, &fed, Wanted::Nothing)?;
        let host = Seconds::new(start.elapsed().as_secs_f64());
        self.watch.span(phase, start, batch * length);
        let time = self.session.device_time().unwrap_or(host);
        Ok(Sample { time, host, ran: self.session.take_ran() })
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

    /// The median by the caller's clock, where the times that are told are by the device's.
    pub(super) fn host(&self, phase: Phase) -> Option<Seconds> {
        let samples = match phase {
            Phase::Prefill => &self.prompts,
            Phase::Decode => &self.steps,
        };
        let known = self.clock == PassClock::Device && !samples.is_empty();
        known.then(|| median(samples.iter().map(|sample| sample.host)))
    }

    /// Those whose steps were timed one by one.
    fn samples(&self, phase: Phase) -> &[Sample] {
        match (phase, &self.apart) {
            (Phase::Prefill, None) => &self.prompts,
            (Phase::Decode, None) => &self.steps,
            (Phase::Prefill, Some(apart)) => &apart.prompts,
            (Phase::Decode, Some(apart)) => &apart.steps,
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
        let round = if phase == Phase::Decode { self.generated().min(samples.len()) } else { samples.len() };
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

#[cfg(test)]
mod tests;
