//! Fitting the terms of a GPU to measurements.
//!
//! Families share no term, so each is fitted alone. The error is `|ln(predicted / measured)|`: relative, and the same for
//! twice too slow as for twice too fast. The fastest of several cuts has kinks, so the search needs no derivatives: it
//! goes along one term at a time with a step that shrinks. A lane's two rates can explain much of the same, so each lane
//! is looked at again from several starts. A term that the samples say nothing about stays at its first guess.

use super::{Blocks, Costs, Lane, LaneTerms, Remainder, Shared, Task};
use crate::{
    Device,
    calibration::{
        Sample,
        terms::{Family, ThinRows},
    },
    format::Sizes,
    units::{ByteRate, FlopRate, Seconds},
};

/// Errors below this are noise, and are not fought over.
const NOISE: f64 = 0.02;
/// What being off its first guess by a factor of `e` costs a term, in errors of one sample.
const PRIOR: f64 = 0.004;
/// How far a measured stream may beat the bandwidth that was measured before it, and a unit its rated peak: the clock may
/// be above the one that a peak is rated at.
const SLACK: f64 = 1.08;

/// A measured kernel.
struct Asked {
    task: Task,
    time: f64,
    lane: usize,
}

/// The terms that explain `samples` best.
pub(in crate::calibration) fn search(samples: &[Sample], device: &Device, units: u32, thin_rows: ThinRows) -> Blocks {
    let tasks = samples.iter().filter_map(|sample| {
        let task = Task::of(&sample.op, &sample.precision, Sizes::Exact, thin_rows)?;
        Some((task, sample.time.value()))
    });
    let mut by_family: Vec<(Family, Vec<(Task, f64)>)> = Vec::new();
    for (task, time) in tasks {
        match by_family.iter_mut().find(|(family, _)| *family == task.lane.family) {
            Some((_, all)) => all.push((task, time)),
            None => by_family.push((task.lane.family, vec![(task, time)])),
        }
    }
    by_family.sort_by_key(|(family, _)| *family);
    let (mut families, mut lanes) = (Vec::new(), Vec::new());
    for (family, tasks) in by_family {
        let (shared, of_lanes) = Search::new(tasks, device, units).run(family);
        families.push(shared);
        lanes.extend(of_lanes);
    }
    Blocks { units, thin_rows, families, lanes }
}

/// Places of a family's terms in the vector that is searched; its lanes' follow.
const LAUNCH: usize = 0;
const READ: usize = 1;
const WRITE: usize = 2;
const BLOCK: usize = 3;
const SPLIT: usize = 4;
const WAVE: usize = 5;
const THROTTLE: usize = 6;
const FIRST: usize = 7;
/// Places of a lane's terms.
const OPERATION: usize = 0;
const STREAM: usize = 1;
const ELEMENT: usize = 2;
const EACH: usize = 3;

struct Search {
    asked: Vec<Asked>,
    lanes: Vec<Lane>,
    units: f64,
    start: Vec<f64>,
    least: Vec<f64>,
    most: Vec<f64>,
}

impl Search {
    fn new(tasks: Vec<(Task, f64)>, device: &Device, units: u32) -> Self {
        let mut lanes: Vec<Lane> = Vec::new();
        let mut widened = Vec::new();
        let mut asked = Vec::with_capacity(tasks.len());
        for (task, time) in tasks {
            let lane = lanes.iter().position(|lane| *lane == task.lane).unwrap_or_else(|| {
                lanes.push(task.lane);
                widened.push(task.widened);
                lanes.len() - 1
            });
            asked.push(Asked { task, time, lane });
        }
        let units = f64::from(units);
        let byte = 1.0 / device.memory.bandwidth.value();
        let fastest = asked.iter().map(|one| one.time).fold(f64::INFINITY, f64::min);
        // Seconds per call, byte read, byte written, block and split; two shares.
        let mut start = vec![0.6 * fastest, 1.15 * byte, 0.8 * byte, 0.2e-6, 1.5e-6, 0.1, 0.05];
        let mut least = vec![1e-8, byte / SLACK, byte / 8.0, 1e-9, 1e-8, 0.0, 0.0];
        let mut most = vec![fastest, 20.0 * byte, 20.0 * byte, 1e-4, 1e-3, 1.0, 0.5];
        for (lane, widened) in lanes.iter().zip(widened) {
            // Every sample has a roof, so every unit here that multiplies has a peak.
            let operation = device.peaks.of(lane.math).map_or(0.0, |peak| 1.0 / peak.value());
            let element = if widened { byte } else { 0.0 };
            start.extend([1.25 * operation, 0.3 * byte * units, 0.1 * element]);
            least.extend([operation / SLACK, byte * units / 12.0, 0.005 * element]);
            most.extend([50.0 * operation, 20.0 * byte * units, 50.0 * element]);
        }
        Self { asked, lanes, units, start, least, most }
    }

    fn run(&self, family: Family) -> (Shared, Vec<LaneTerms>) {
        let mut state = State::new(self, self.start.clone());
        state.descend(0..self.start.len(), 0.5, 0.02);
        for lane in 0..self.lanes.len() {
            state.look_again(lane);
        }
        state.descend(0..self.start.len(), 0.25, 0.002);
        let terms = state.terms;
        let costs = |at: usize| self.costs(&terms, at);
        let lane = |(at, lane): (usize, &Lane)| {
            let [operation, stream, element] = [OPERATION, STREAM, ELEMENT].map(|term| terms[FIRST + EACH * at + term]);
            let near = self.asked.iter().filter(|one| one.lane == at);
            let remainder = near.map(|one| {
                let log = (one.time / costs(at).parts(&one.task).time).ln();
                Remainder::new(one.task.at, log)
            });
            let multiplies =
                self.asked.iter().any(|one| one.lane == at && one.task.cuts.iter().any(|cut| cut.flops > 0.0));
            LaneTerms {
                lane: *lane,
                rate: multiplies.then(|| FlopRate::new(1.0 / operation)),
                stream: ByteRate::new(1.0 / stream),
                unpack: Seconds::new(element),
                remainder: remainder.collect(),
            }
        };
        let lanes = self.lanes.iter().enumerate().map(lane).collect();
        let shared = Shared {
            family,
            launch: Seconds::new(terms[LAUNCH]),
            read: ByteRate::new(1.0 / terms[READ]),
            write: ByteRate::new(1.0 / terms[WRITE]),
            block: Seconds::new(terms[BLOCK]),
            split: Seconds::new(terms[SPLIT]),
            wave: terms[WAVE],
            throttle: terms[THROTTLE],
        };
        (shared, lanes)
    }

    fn costs(&self, terms: &[f64], lane: usize) -> Costs {
        let lane = &terms[FIRST + EACH * lane..][..EACH];
        Costs {
            units: self.units,
            launch: terms[LAUNCH],
            byte_read: terms[READ],
            byte_written: terms[WRITE],
            block: terms[BLOCK],
            split: terms[SPLIT],
            wave: terms[WAVE],
            throttle: terms[THROTTLE],
            operation: lane[OPERATION],
            byte_streamed: lane[STREAM],
            element: lane[ELEMENT],
        }
    }

    /// The error of the samples of one lane.
    fn lane_error(&self, terms: &[f64], lane: usize) -> f64 {
        let costs = self.costs(terms, lane);
        let one = |asked: &Asked| {
            let off = (costs.parts(&asked.task).time / asked.time).ln();
            (off * off + NOISE * NOISE).sqrt() - NOISE
        };
        self.asked.iter().filter(|asked| asked.lane == lane).map(one).sum()
    }

    /// What a term costs for being off its first guess.
    fn prior(&self, term: usize, value: f64) -> f64 {
        let start = self.start[term];
        if start == 0.0 {
            0.0
        } else if is_share(term) {
            PRIOR * (value - start).powi(2)
        } else {
            PRIOR * (value / start).ln().powi(2)
        }
    }

    /// `value` a step further.
    fn stepped(&self, term: usize, value: f64, step: f64) -> f64 {
        let next = if is_share(term) { value + step / 2.0 } else { value * step.exp() };
        next.clamp(self.least[term], self.most[term])
    }
}

fn is_share(term: usize) -> bool {
    matches!(term, WAVE | THROTTLE)
}

/// Terms on their way, with the error of each lane, so that a lane's own term costs only its own samples.
struct State<'a> {
    search: &'a Search,
    terms: Vec<f64>,
    errors: Vec<f64>,
    priors: f64,
}

impl<'a> State<'a> {
    fn new(search: &'a Search, terms: Vec<f64>) -> Self {
        let errors = (0..search.lanes.len()).map(|lane| search.lane_error(&terms, lane)).collect();
        let priors = terms.iter().enumerate().map(|(term, value)| search.prior(term, *value)).sum();
        Self { search, terms, errors, priors }
    }

    fn error(&self) -> f64 {
        self.errors.iter().sum::<f64>() + self.priors
    }

    /// Sets a term if that makes things better.
    fn try_value(&mut self, term: usize, value: f64) -> bool {
        let search = self.search;
        let before = self.error();
        let kept = std::mem::replace(&mut self.terms[term], value);
        let priors = self.priors + search.prior(term, value) - search.prior(term, kept);
        if term < FIRST {
            let errors: Vec<f64> = (0..self.errors.len()).map(|lane| search.lane_error(&self.terms, lane)).collect();
            if errors.iter().sum::<f64>() + priors < before {
                (self.errors, self.priors) = (errors, priors);
                return true;
            }
        } else {
            let lane = (term - FIRST) / EACH;
            let error = search.lane_error(&self.terms, lane);
            if before - self.errors[lane] + error - self.priors + priors < before {
                self.errors[lane] = error;
                self.priors = priors;
                return true;
            }
        }
        self.terms[term] = kept;
        false
    }

    fn descend(&mut self, terms: std::ops::Range<usize>, from: f64, to: f64) {
        let mut step = from;
        while step > to {
            let before = self.error();
            for term in terms.clone() {
                for direction in [step, -step] {
                    let next = self.search.stepped(term, self.terms[term], direction);
                    if next != self.terms[term] && self.try_value(term, next) {
                        break;
                    }
                }
            }
            if before - self.error() < 1e-3 * before {
                step /= 2.0;
            }
        }
    }

    /// One lane from other starts: multiplying may be what limits it, or reading.
    fn look_again(&mut self, lane: usize) {
        let first = FIRST + EACH * lane;
        let start = &self.search.start[first..first + EACH];
        let starts = [(2.0, 0.3), (1.25, 0.3), (1.0, 0.3), (1.25, 1.0), (1.0, 1.0), (1.0, 3.0), (2.0, 3.0)];
        for (operation, stream) in starts {
            let mut other =
                Self { search: self.search, terms: self.terms.clone(), errors: self.errors.clone(), priors: 0.0 };
            other.terms[first + OPERATION] = operation / 1.25 * start[OPERATION];
            other.terms[first + STREAM] = stream * start[STREAM];
            let mut other = Self::new(self.search, other.terms);
            other.descend(first..first + EACH, 0.3, 0.03);
            if other.error() < self.error() {
                *self = other;
            }
        }
    }
}
