//! Fitting the terms of a GPU to measurements.
//!
//! Families share no term, so each is fitted alone. The error is `|ln(predicted / measured)|`: relative, and the same for
//! twice too slow as for twice too fast. The fastest of several cuts has kinks, so the search needs no derivatives: it
//! goes along one term at a time with a step that shrinks. A lane's terms can explain much of the same, so each lane is
//! looked at again from several starts, with shared sums and without. A term that the samples say nothing about stays at
//! its first guess; one that some lanes do without has to earn what it explains.

use super::{
    Costs, Cut, FamilyTerms, GpuTerms, Lane, LaneTerms, Remainder, Task,
    followed::{self, is_followed},
};
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
/// The same for a term that a lane may do without, `OWN * ln(1 + value / scale)^2`: nothing where it is far below the scale
/// at which it begins to matter.
const OWN: f64 = 0.15;
/// What a lane costs whose waves are all waited for while the family's are not, in errors of one sample.
const OWN_WAVE: f64 = 0.2;
/// What a lane without shared sums has to be better by, in errors of one sample.
const ALONE: f64 = 0.05;
/// How far a measured stream may beat the bandwidth that was measured before it, and a unit its rated peak: the clock may
/// be above the one that a peak is rated at.
const SLACK: f64 = 1.08;

/// A measured kernel, or one that was tried and lost to it.
struct Asked {
    task: Task,
    told: Told,
    lane: usize,
}

/// What a measurement says of the time of a kernel.
#[derive(Clone, Copy)]
enum Told {
    /// It ran, and took so long.
    Takes(f64),
    /// Another was faster and took so long: this one takes no less.
    NoLess(f64),
}

impl Told {
    /// By how much a forecast is off, as a logarithm.
    fn off(self, forecast: f64) -> f64 {
        match self {
            Self::Takes(time) => (forecast / time).ln(),
            Self::NoLess(time) => (forecast / time).ln().min(0.0),
        }
    }

    /// The time, where it ran.
    fn time(self) -> Option<f64> {
        match self {
            Self::Takes(time) => Some(time),
            Self::NoLess(_) => None,
        }
    }
}

/// The terms that explain `samples` best.
pub(in crate::calibration) fn search(samples: &[Sample], device: &Device, units: u32, thin_rows: ThinRows) -> GpuTerms {
    let tasks = samples.iter().flat_map(|sample| {
        let task = |family| Task::of(&sample.op, &sample.precision, Sizes::Exact, family, units);
        let ran = Family::of_sample(sample, thin_rows).map(|family| (task(family), Told::Takes(sample.time.value())));
        let lost = Family::lost(sample, thin_rows).map(|family| (task(family), Told::NoLess(sample.time.value())));
        ran.into_iter().chain(lost)
    });
    let mut by_family: Vec<(Family, Vec<(Task, Told)>)> = Vec::new();
    for (task, told) in tasks {
        match by_family.iter_mut().find(|(family, _)| *family == task.lane.family) {
            Some((_, all)) => all.push((task, told)),
            None => by_family.push((task.lane.family, vec![(task, told)])),
        }
    }
    // Of a lane whose kernels always lost nothing is known but that.
    for (_, tasks) in &mut by_family {
        let ran: Vec<Lane> =
            tasks.iter().filter(|(_, told)| told.time().is_some()).map(|(task, _)| task.lane).collect();
        tasks.retain(|(task, _)| ran.contains(&task.lane));
    }
    by_family.sort_by_key(|(family, _)| *family);
    let (mut families, mut lanes) = (Vec::new(), Vec::new());
    for (family, tasks) in by_family {
        let (after, tasks): (Vec<_>, Vec<_>) = tasks.into_iter().partition(|(task, _)| is_followed(&task.lane));
        let after: Vec<(Task, f64)> = after.into_iter().filter_map(|(task, told)| Some((task, told.time()?))).collect();
        if tasks.is_empty() {
            continue;
        }
        let (shared, of_lanes) = Search::new(tasks, device, units).run(family);
        families.push(shared);
        let after = followed::lanes(&after, &shared, &of_lanes, units);
        lanes.extend(of_lanes.into_iter().chain(after));
    }
    GpuTerms { units, thin_rows, families, lanes }
}

/// Places of a family's terms in the vector that is searched; its lanes' follow.
const LAUNCH: usize = 0;
const READ: usize = 1;
const WRITE: usize = 2;
const BLOCK: usize = 3;
const SPLIT: usize = 4;
const WAVE: usize = 5;
const THROTTLE: usize = 6;
const SUMS: usize = 7;
const FIRST: usize = 8;
/// Places of a lane's terms.
const OPERATION: usize = 0;
const STREAM: usize = 1;
const ELEMENT: usize = 2;
/// From here on those that it may do without.
const EXTRA: usize = 3;
const WAIT: usize = 4;
const OUTPUT: usize = 5;
/// How far its share of the last wave is from the family's.
const APART: usize = 6;
const EACH: usize = 7;

struct Search {
    asked: Vec<Asked>,
    lanes: Vec<Lane>,
    units: f64,
    start: Vec<f64>,
    least: Vec<f64>,
    most: Vec<f64>,
}

impl Search {
    fn new(tasks: Vec<(Task, Told)>, device: &Device, units: u32) -> Self {
        let mut lanes: Vec<Lane> = Vec::new();
        let mut widened = Vec::new();
        let mut asked = Vec::with_capacity(tasks.len());
        for (task, told) in tasks {
            let lane = lanes.iter().position(|lane| *lane == task.lane).unwrap_or_else(|| {
                lanes.push(task.lane);
                widened.push(task.widened);
                lanes.len() - 1
            });
            asked.push(Asked { task, told, lane });
        }
        let units = f64::from(units);
        let byte = 1.0 / device.memory.bandwidth.value();
        let fastest = asked.iter().filter_map(|one| one.told.time()).fold(f64::INFINITY, f64::min);
        // Seconds per call, byte read, byte written, block and split; two shares; seconds per byte of a partial sum.
        let mut start = vec![0.6 * fastest, 1.15 * byte, 0.8 * byte, 0.2e-6, 1.5e-6, 0.1, 0.05, 1.5 * byte];
        let mut least = vec![1e-8, byte / SLACK, byte / 8.0, 1e-9, 1e-8, 0.0, 0.0, byte / 8.0];
        let mut most = vec![fastest, 20.0 * byte, 20.0 * byte, 1e-5, 1e-5, 1.0, 0.5, 20.0 * byte];
        for (at, (lane, widened)) in lanes.iter().zip(widened).enumerate() {
            let any = |of: fn(&Cut) -> f64| {
                let here = asked.iter().any(|one| one.lane == at && one.task.cuts.iter().any(|cut| of(cut) > 0.0));
                f64::from(u8::from(here))
            };
            // A step of a prompt has a softmax, its outputs wait for the first keys and are written behind the last.
            let (softmax, prompt) = if lane.family == Family::Prefill { (15.0, 5.0) } else { (1.0, 1.0) };
            let (wait, output) = (any(|cut| cut.steps) * softmax, any(|cut| cut.outputs) * byte * prompt);
            // Every sample has a roof, so every unit here that multiplies has a peak.
            let operation = device.peaks.of(lane.math).map_or(0.0, |peak| 1.0 / peak.value());
            let element = if widened { byte } else { 0.0 };
            start.extend([1.25 * operation, 0.3 * byte * units, 0.1 * element, 0.2e-6, 20e-9 * wait, output, 0.0]);
            least.extend([
                operation / SLACK,
                byte * units / 12.0,
                0.005 * element,
                1e-9,
                1e-10 * wait,
                0.01 * output,
                -1.0,
            ]);
            most.extend([
                50.0 * operation,
                20.0 * byte * units,
                50.0 * element,
                1e-5,
                1e-5 * wait,
                100.0 * output,
                1.0,
            ]);
        }
        Self { asked, lanes, units, start, least, most }
    }

    fn run(&self, family: Family) -> (FamilyTerms, Vec<LaneTerms>) {
        let mut state = State::new(self, self.start.clone(), vec![true; self.lanes.len()]);
        state.descend(0..self.start.len(), 0.5, 0.02);
        for lane in 0..self.lanes.len() {
            state.look_again(lane);
        }
        state.descend(0..self.start.len(), 0.25, 0.002);
        let State { terms, splits, .. } = state;
        let costs = |at: usize| self.costs(&terms, &splits, at);
        let lane = |(at, lane): (usize, &Lane)| {
            let own = |term: usize| terms[FIRST + EACH * at + term];
            let near = self.asked.iter().filter(|one| one.lane == at);
            let remainder = near.filter_map(|one| {
                let log = (one.told.time()? / costs(at).parts(&one.task).time).ln();
                Some(Remainder::new(one.task.at, log))
            });
            let multiplies =
                self.asked.iter().any(|one| one.lane == at && one.task.cuts.iter().any(|cut| cut.flops > 0.0));
            LaneTerms {
                lane: *lane,
                rate: multiplies.then(|| FlopRate::new(1.0 / own(OPERATION))),
                stream: ByteRate::new(1.0 / own(STREAM)),
                unpack: Seconds::new(own(ELEMENT)),
                launch: Seconds::new(own(EXTRA)),
                step: Seconds::new(own(WAIT)),
                output: Seconds::new(own(OUTPUT)),
                wave: Some((terms[WAVE] + own(APART)).clamp(0.0, 1.0)),
                splits: splits[at],
                remainder: remainder.collect(),
            }
        };
        let lanes = self.lanes.iter().enumerate().map(lane).collect();
        let shared = FamilyTerms {
            family,
            launch: Seconds::new(terms[LAUNCH]),
            read: ByteRate::new(1.0 / terms[READ]),
            write: ByteRate::new(1.0 / terms[WRITE]),
            sums: ByteRate::new(1.0 / terms[SUMS]),
            block: Seconds::new(terms[BLOCK]),
            split: Seconds::new(terms[SPLIT]),
            wave: terms[WAVE],
            throttle: terms[THROTTLE],
        };
        (shared, lanes)
    }

    fn costs(&self, terms: &[f64], splits: &[bool], lane: usize) -> Costs {
        let splits = splits[lane];
        let lane = &terms[FIRST + EACH * lane..][..EACH];
        Costs {
            units: self.units,
            launch: terms[LAUNCH] + lane[EXTRA],
            byte_read: terms[READ],
            byte_written: terms[WRITE],
            byte_summed: terms[SUMS],
            block: terms[BLOCK],
            split: terms[SPLIT],
            wave: (terms[WAVE] + lane[APART]).clamp(0.0, 1.0),
            throttle: terms[THROTTLE],
            operation: lane[OPERATION],
            byte_streamed: lane[STREAM],
            element: lane[ELEMENT],
            step: lane[WAIT],
            output: lane[OUTPUT],
            splits,
        }
    }

    /// The error of the samples of one lane.
    fn lane_error(&self, terms: &[f64], splits: &[bool], lane: usize) -> f64 {
        let costs = self.costs(terms, splits, lane);
        let one = |asked: &Asked| {
            let off = asked.told.off(costs.parts(&asked.task).time);
            (off * off + NOISE * NOISE).sqrt() - NOISE
        };
        self.asked.iter().filter(|asked| asked.lane == lane).map(one).sum()
    }

    /// What a term costs for being off its first guess.
    fn prior(&self, term: usize, value: f64) -> f64 {
        let start = self.start[term];
        if is_apart(term) {
            OWN_WAVE * value * value
        } else if start == 0.0 {
            0.0
        } else if is_share(term) {
            PRIOR * (value - start).powi(2)
        } else if term >= FIRST && (term - FIRST) % EACH >= EXTRA {
            OWN * (1.0 + value / start).ln().powi(2)
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

fn is_apart(term: usize) -> bool {
    term >= FIRST && (term - FIRST) % EACH == APART
}

fn is_share(term: usize) -> bool {
    matches!(term, WAVE | THROTTLE) || is_apart(term)
}

/// Terms on their way, with the error of each lane, so that a lane's own term costs only its own samples.
#[derive(Clone)]
struct State<'a> {
    search: &'a Search,
    terms: Vec<f64>,
    splits: Vec<bool>,
    errors: Vec<f64>,
    priors: f64,
}

impl<'a> State<'a> {
    fn new(search: &'a Search, terms: Vec<f64>, splits: Vec<bool>) -> Self {
        let errors = (0..search.lanes.len()).map(|lane| search.lane_error(&terms, &splits, lane)).collect();
        let priors = terms.iter().enumerate().map(|(term, value)| search.prior(term, *value)).sum();
        Self { search, terms, splits, errors, priors }
    }

    fn error(&self) -> f64 {
        let alone = self.splits.iter().filter(|splits| !**splits).count() as f64;
        self.errors.iter().sum::<f64>() + self.priors + ALONE * alone
    }

    /// Counts the error of a lane and the priors again.
    fn recount(&mut self, lane: usize) {
        let search = self.search;
        self.errors[lane] = search.lane_error(&self.terms, &self.splits, lane);
        self.priors = self.terms.iter().enumerate().map(|(term, value)| search.prior(term, *value)).sum();
    }

    /// Sets a term if that makes things better.
    fn try_value(&mut self, term: usize, value: f64) -> bool {
        let search = self.search;
        let kept = std::mem::replace(&mut self.terms[term], value);
        let priors = self.priors + search.prior(term, value) - search.prior(term, kept);
        if term < FIRST {
            let errors: Vec<f64> =
                (0..self.errors.len()).map(|lane| search.lane_error(&self.terms, &self.splits, lane)).collect();
            let gained = self.errors.iter().sum::<f64>() + self.priors - errors.iter().sum::<f64>() - priors;
            if gained > 0.0 {
                (self.errors, self.priors) = (errors, priors);
                return true;
            }
        } else {
            let lane = (term - FIRST) / EACH;
            let error = search.lane_error(&self.terms, &self.splits, lane);
            if self.errors[lane] + self.priors - error - priors > 0.0 {
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

    /// One lane from other starts: multiplying may be what limits it, or reading, or waiting, or what comes after the sum;
    /// and its blocks may share sums, or not.
    fn look_again(&mut self, lane: usize) {
        let first = FIRST + EACH * lane;
        let start = &self.search.start[first..first + EACH];
        let here = || self.search.asked.iter().filter(|one| one.lane == lane);
        // Kernels that always share are not asked to do without.
        let splits = here().any(|one| one.task.cuts.iter().any(|cut| cut.split))
            && here().all(|one| one.task.cuts.iter().any(|cut| !cut.split));
        // Operations, bytes, waiting, outputs, as multiples of the first guess.
        let starts = [
            (1.6, 0.3, 0.05, 0.05),
            (0.8, 0.3, 0.05, 0.05),
            (0.8, 1.0, 0.05, 0.05),
            (0.8, 3.0, 0.05, 0.05),
            (1.6, 3.0, 0.05, 0.05),
            (0.8, 0.3, 5.0, 0.05),
            (0.8, 0.3, 0.05, 10.0),
        ];
        // Waves as the family has them, and waves that are all waited for.
        let apart = [0.0, 1.0 - self.terms[WAVE]];
        for ((operation, stream, wait, output), apart) in
            starts.into_iter().flat_map(|start| apart.map(|apart| (start, apart)))
        {
            for shared in if splits { &[true, false][..] } else { &[true] } {
                let mut other = self.clone();
                other.splits[lane] = *shared;
                other.terms[first + OPERATION] = operation * start[OPERATION];
                other.terms[first + STREAM] = stream * start[STREAM];
                other.terms[first + WAIT] = wait * start[WAIT];
                other.terms[first + OUTPUT] = output * start[OUTPUT];
                other.terms[first + APART] = apart;
                other.recount(lane);
                other.descend(first..first + EACH, 0.4, 0.06);
                if other.error() < self.error() {
                    *self = other;
                }
            }
        }
    }
}
