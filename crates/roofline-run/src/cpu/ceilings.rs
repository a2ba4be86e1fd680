//! What this machine can do at most, measured: how fast each level of memory streams and how fast each unit multiplies.
//!
//! A roofline drawn from a data sheet says what the chip might do; in a virtual machine, on a laptop or with one memory
//! channel filled it says nothing. The ceiling is the best of several trials, because everything that disturbs a trial
//! makes it slower; the median stands beside it.

mod device;
mod peaks;
mod streams;
#[cfg(target_arch = "x86_64")]
mod tiles;

pub use device::device;

use std::time::Duration;

use roofline_core::{
    Math,
    units::{ByteRate, Bytes, FlopRate, Hertz},
};
use roofline_isa::Isa;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    cpu::{affinity::bound, clock, machine::Machine, pool::Pool},
    stored,
};

/// Multiplies for about `seconds` on every thread by the loop that the peak of `math` is measured with, and returns the
/// operations per second of all together. For setting a kernel beside it at the same moment; none where there is no unit.
pub fn multiply(pool: &mut Pool, isa: Isa, math: Math, seconds: f64) -> Option<f64> {
    peaks::rate(pool, isa, math, seconds)
}

/// Reads `bytes` once, each thread a part, by the loop that memory is measured with. For setting a kernel beside it at the
/// same moment.
pub fn read(pool: &mut Pool, bytes: &[u8]) {
    streams::read_once(pool, bytes);
}

/// How long to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "CeilingsEffort")]
pub enum Effort {
    /// A few seconds: each kind of stream, for one thread and for all.
    Quick,
    /// About a quarter of a minute: more trials, and the curve from one thread to all.
    Full,
}

/// Measured ceilings of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ProcessorCeilings")]
pub struct Ceilings {
    /// Streams over each level of memory.
    pub streams: Vec<Stream>,
    /// Multiplying units.
    pub peaks: Vec<Peak>,
    /// The clock of the fastest core with all cores busy; none where it cannot be measured.
    #[serde(deserialize_with = "stored::optional")]
    pub clock: Option<Hertz>,
}

/// What a stream does. Bytes are counted as STREAM counts them: what the program reads and writes, without the lines
/// that a plain store makes the cache read first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StreamKind {
    /// `sum += a[i]`: what weights and caches cost in decode.
    Read,
    /// `a[i] = s`.
    Write,
    /// `a[i] = b[i]`: two streams.
    Copy,
    /// `a[i] = b[i] + s * c[i]`: three streams.
    Triad,
}

/// Where the working set lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "StreamLevel")]
pub enum Level {
    /// First-level cache.
    L1,
    /// Second-level cache.
    L2,
    /// Third-level cache.
    L3,
    /// Beyond every cache.
    Memory,
}

/// How a stream moves its lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "StreamWay")]
pub enum Way {
    /// Through the caches, which look ahead by themselves.
    Plain,
    /// Lines to be read are asked for kilobytes ahead of their use.
    Ahead,
    /// Stores go past the caches, without reading a line before it is overwritten.
    Streaming,
}

/// The rate of one stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "StreamRate")]
pub struct Stream {
    /// What it does.
    pub kind: StreamKind,
    /// Where.
    pub level: Level,
    /// Threads that were there to use.
    pub threads: usize,
    /// Threads that reached it: fewer than were there, where more of them came out slower (see `Ceilings::evened`).
    pub busy: usize,
    /// Working set of all threads together.
    #[serde(deserialize_with = "stored::number")]
    pub bytes: Bytes,
    /// The way that was faster.
    pub way: Way,
    /// The fastest trial: the ceiling.
    #[serde(deserialize_with = "stored::number")]
    pub best: ByteRate,
    /// The middle one.
    #[serde(deserialize_with = "stored::number")]
    pub median: ByteRate,
    /// The slowest one.
    #[serde(deserialize_with = "stored::number")]
    pub worst: ByteRate,
    /// How many.
    pub trials: usize,
}

/// The rate of one multiplying unit, with operands in registers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "UnitRate")]
pub struct Peak {
    /// What it multiplies.
    #[serde(deserialize_with = "stored::math")]
    pub math: Math,
    /// The instruction: `AVX-512 FMA`, `AMX`, ...
    pub unit: String,
    /// Threads that were there to use.
    pub threads: usize,
    /// Threads that reached it: one, where all together came out slower than one by itself.
    pub busy: usize,
    /// The fastest trial: the ceiling.
    #[serde(deserialize_with = "stored::number")]
    pub best: FlopRate,
    /// The middle one.
    #[serde(deserialize_with = "stored::number")]
    pub median: FlopRate,
    /// The slowest one.
    #[serde(deserialize_with = "stored::number")]
    pub worst: FlopRate,
    /// How many.
    pub trials: usize,
    /// Operations per cycle and core that the unit is built for, times the measured clock and the cores. Vector units are
    /// taken to be two per core, which server parts and large cores have; where there is one, half of it is reached.
    #[serde(deserialize_with = "stored::optional")]
    pub theory: Option<FlopRate>,
}

impl Ceilings {
    /// Measures everything that `machine` has, on as many threads as it may run at once, each bound to a core meanwhile.
    /// `progress` is told what comes next.
    pub fn measure(machine: &Machine, effort: Effort, progress: &mut dyn FnMut(&str)) -> Self {
        let mut pool = Pool::new(machine.threads);
        bound(&mut pool, |pool| Self::measure_bound(pool, machine, effort, progress))
    }

    fn measure_bound(pool: &mut Pool, machine: &Machine, effort: Effort, progress: &mut dyn FnMut(&str)) -> Self {
        progress("core clock");
        let clock = busy_clock(pool);
        // Half of the multiplying before and half after the streams: a disturbance of a second then misses one half.
        let units = peaks::units();
        let mut peaks = peaks::Trial::all(&units, progress);
        let trials = if effort == Effort::Quick { 10 } else { 40 };
        peaks::turns(pool, &mut peaks, trials / 2);
        let streams = streams::measure(pool, machine, effort, progress);
        progress("multiplying units again");
        peaks::turns(pool, &mut peaks, trials / 2);
        let peaks = peaks.iter().map(|trial| trial.peak(pool.threads(), machine.cores, clock)).collect();
        Self { streams, peaks, clock }.evened()
    }

    /// No stream is slower than the same stream by fewer threads: who has the more can leave some idle. What says otherwise is
    /// a neighbour who came between, and then the figure of the fewer stands for both.
    fn evened(mut self) -> Self {
        for at in 0..self.streams.len() {
            let here = &self.streams[at];
            let fewer = |one: &&Stream| {
                (one.kind, one.level) == (here.kind, here.level) && one.threads < here.threads && one.best > here.best
            };
            let faster = self.streams.iter().filter(fewer).max_by(|a, b| a.best.value().total_cmp(&b.best.value()));
            if let Some(faster) = faster {
                self.streams[at] = Stream { threads: here.threads, ..faster.clone() };
            }
        }
        self
    }

    /// The better of two measurements of one machine, stream by stream and unit by unit: what disturbs one for seconds on a
    /// shared machine need not disturb the other. A stream that only one of them has, because memory was short for the other,
    /// is taken from that one.
    #[must_use]
    pub fn or_better(mut self, other: &Self) -> Self {
        for theirs in &other.streams {
            let same =
                |one: &&mut Stream| (one.kind, one.level, one.threads) == (theirs.kind, theirs.level, theirs.threads);
            match self.streams.iter_mut().find(same) {
                Some(ours) if ours.best >= theirs.best => {}
                Some(ours) => *ours = theirs.clone(),
                None => self.streams.push(theirs.clone()),
            }
        }
        self.streams.sort_by_key(|stream| (stream.level, stream.kind, stream.threads));
        for ours in &mut self.peaks {
            let same = |one: &&Peak| (one.math, &one.unit, one.threads) == (ours.math, &ours.unit, ours.threads);
            if let Some(better) = other.peaks.iter().find(same).filter(|one| one.best > ours.best) {
                *ours = better.clone();
            }
        }
        let clock = [self.clock, other.clock].into_iter().flatten().reduce(Hertz::max);
        Self { clock, ..self }.evened()
    }

    /// The best rate of a stream on the most threads it was measured with.
    pub fn stream(&self, kind: StreamKind, level: Level) -> Option<&Stream> {
        let matching = self.streams.iter().filter(|stream| stream.kind == kind && stream.level == level);
        matching.max_by_key(|stream| stream.threads)
    }

    /// The fastest unit for `math`.
    pub fn peak(&self, math: Math) -> Option<&Peak> {
        let matching = self.peaks.iter().filter(|peak| peak.math == math);
        matching.max_by(|a, b| a.best.value().total_cmp(&b.best.value()))
    }
}

/// The highest clock among the cores while all of them run.
fn busy_clock(pool: &mut Pool) -> Option<Hertz> {
    let best = std::sync::Mutex::new(None::<Hertz>);
    pool.run(|_| {
        let clock = clock::measure(Duration::from_millis(10));
        if let (Some(clock), Ok(mut best)) = (clock, best.lock()) {
            *best = Some(best.map_or(clock, |best| best.max(clock)));
        }
    });
    best.into_inner().ok().flatten()
}

/// Rates of several trials, in units per second.
struct Trials(Vec<f64>);

impl Trials {
    fn best(&self) -> f64 {
        self.0.iter().copied().fold(0.0, f64::max)
    }

    fn worst(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let half = sorted.len() / 2;
        if sorted.len().is_multiple_of(2) { f64::midpoint(sorted[half - 1], sorted[half]) } else { sorted[half] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_trials() {
        assert_eq!(Trials(vec![3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(Trials(vec![3.0, 1.0, 2.0, 10.0]).median(), 2.5);
        assert_eq!((Trials(vec![3.0, 1.0]).best(), Trials(vec![3.0, 1.0]).worst()), (3.0, 1.0));
    }
}
