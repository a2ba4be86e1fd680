//! Fitting the terms of a processor to measurements.
//!
//! The error is `|ln(predicted / measured)|`: relative, and the same for twice too slow as for twice too fast. Each term
//! is a cost that only adds, so a search along one term at a time, with a step that shrinks, finds the minimum without
//! derivatives; a few dozen terms over a hundred samples take milliseconds.
//!
//! Two things keep the terms physical: no unit may be faster than the device's peak and no read faster than its bandwidth,
//! where no kernel was (a write that passes the caches may be up to twice as fast), and of several explanations that fit equally well the one
//! with less widening, faster units and more overlap wins.

use super::{Costs, CpuTerms, Demand, Each, Pack, Rate, Touch, Unpack};
use crate::{
    Device, Math,
    calibration::{Family, Sample},
    format::Sizes,
    units::{ByteRate, FlopRate, Seconds},
};

/// Errors below this are noise, and are not fought over.
const NOISE: f64 = 0.02;
/// What widening or multiplying that takes all of a kernel's time, or memory and compute that never overlap, cost in the search. Far
/// below the noise: it only decides between equals.
const PLAINER: f64 = 0.003;
/// Mean errors that differ by less are the same.
const AS_GOOD: f64 = 1e-4;
/// How far a measured stream may beat the bandwidth that was measured before it.
const SLACK: f64 = 1.05;
/// The terms that explain `samples` best.
pub(in crate::calibration) fn search(samples: &[Sample], device: &Device, thin_rows: u64) -> CpuTerms {
    Search::new(samples, device, thin_rows).run()
}

/// Where each term stands in the vector that is searched.
struct Search {
    demands: Vec<Asked>,
    rates: Vec<(Family, Math)>,
    each: Vec<(Each, Math)>,
    packs: Vec<(Family, Math)>,
    thin_rows: u64,
    start: Vec<f64>,
    /// What no cost may fall below.
    least: Vec<f64>,
}

/// A measured kernel, with the places of its terms.
struct Asked {
    demand: Demand,
    time: f64,
    rate: Option<usize>,
    each: Option<usize>,
    pack: Option<usize>,
}

const LAUNCH: usize = 0;
const RAMP: usize = 1;
const READ: usize = 2;
const WRITE: usize = 3;
const OVERLAP: usize = 4;
const FIRST: usize = 5;

impl Search {
    fn new(samples: &[Sample], device: &Device, thin_rows: u64) -> Self {
        // A kernel's terms are those of the unit that it used, not of the one that could have been fastest.
        let demands: Vec<(Demand, f64)> = samples
            .iter()
            .filter_map(|sample| {
                let demand = Demand::of(&sample.op, &sample.precision, Sizes::Exact, thin_rows)?;
                Some((Demand { math: sample.math, ..demand }, sample.time.value()))
            })
            .collect();
        let (mut rates, mut each, mut packs) = (Vec::new(), Vec::new(), Vec::new());
        for (demand, _) in &demands {
            let key = (demand.family, demand.math);
            if demand.flops > 0.0 && !rates.contains(&key) {
                rates.push(key);
            }
            if demand.inputs > 0.0 && !packs.contains(&key) {
                packs.push(key);
            }
            each.extend(demand.each.map(|one| (one, demand.math)).filter(|one| !each.contains(one)));
        }
        let place = |at: Option<usize>, first: usize| at.map(|at| first + at);
        let demands: Vec<Asked> = demands
            .into_iter()
            .map(|(demand, time)| {
                let key = (demand.family, demand.math);
                let rate = rates.iter().position(|one| *one == key);
                let one = each.iter().position(|(one, math)| Some(*one) == demand.each && *math == demand.math);
                let pack = packs.iter().position(|one| *one == key).filter(|_| demand.inputs > 0.0);
                Asked {
                    demand,
                    time,
                    rate: place(rate, FIRST),
                    each: place(one, FIRST + rates.len()),
                    pack: place(pack, FIRST + rates.len() + each.len()),
                }
            })
            .collect();
        // Costs: seconds per call, per byte read, per byte written, per operation, per element.
        let shortest = demands.iter().map(|asked| asked.time).fold(f64::INFINITY, f64::min);
        // What a kernel was seen to do can be done, whatever was measured before it: a ceiling may have been disturbed.
        let seen = |rate: fn(&Demand) -> f64, of: &dyn Fn(&Demand) -> bool| {
            let rates = demands.iter().filter(|asked| of(&asked.demand)).map(|asked| rate(&asked.demand) / asked.time);
            rates.fold(0.0, f64::max)
        };
        let byte = 1.0 / device.memory.bandwidth.value().max(seen(|demand| demand.read, &|_| true));
        let mut start = vec![shortest / 4.0, shortest / 4.0, byte, 2.0 * byte, 1.0];
        // A unit that was not measured by itself is no faster than the fastest that was.
        let fastest = device.peaks.iter().map(|(_, peak)| peak.value()).fold(0.0, f64::max);
        let peak = |math: Math| {
            let known = device.peaks.of(math).map_or(fastest, FlopRate::value);
            known.max(seen(|demand| demand.flops, &|demand| demand.math == math))
        };
        start.extend(rates.iter().map(|(_, math)| 1.5 / peak(*math)));
        start.extend((0..each.len() + packs.len()).map(|_| byte / 4.0));
        let mut least = vec![1e-9, 1e-12, byte / SLACK, byte / SLACK / 2.0, 0.0];
        least.extend(rates.iter().map(|(_, math)| 1.0 / peak(*math)));
        least.extend((0..each.len() + packs.len()).map(|_| 1e-18));
        Self { demands, rates, each, packs, thin_rows, start, least }
    }

    /// The best of several starts: how much overlaps is the one term with two very different answers.
    fn run(&self) -> CpuTerms {
        let starts = [1.0, 0.5, 0.0].map(|overlap| {
            let mut costs = self.start.clone();
            costs[OVERLAP] = overlap;
            self.descend(costs, 1.0, &[])
        });
        let best = starts.into_iter().min_by(|one, other| one.1.total_cmp(&other.1));
        let best = best.unwrap_or_else(|| (self.start.clone(), f64::INFINITY));
        self.terms(&self.unhidden(best))
    }

    /// A rate that no measurement shows may stand anywhere, and the search along one term at a time leaves it where others
    /// make up for it. As fast as its unit can be, it is the plainest; the others follow, where that explains as much.
    fn unhidden(&self, (mut costs, mut error): (Vec<f64>, f64)) -> Vec<f64> {
        let mut held = Vec::new();
        for rate in FIRST..FIRST + self.rates.len() {
            let mut faster = costs.clone();
            faster[rate] = self.least[rate];
            held.push(rate);
            let (tried, off) = self.descend(faster, 0.125, &held);
            if off <= error + AS_GOOD {
                (costs, error) = (tried, off.min(error));
            } else {
                held.pop();
            }
        }
        costs
    }

    /// The best nearby, with steps that start at `step` and some terms held where they are.
    fn descend(&self, mut costs: Vec<f64>, mut step: f64, held: &[usize]) -> (Vec<f64>, f64) {
        let mut error = self.error(&costs);
        while step > 1e-3 {
            let before = error;
            for term in (0..costs.len()).filter(|term| !held.contains(term)) {
                for direction in [step, -step] {
                    let kept = costs[term];
                    costs[term] = if term == OVERLAP {
                        (kept + direction / 4.0).clamp(0.0, 1.0)
                    } else {
                        (kept * direction.exp()).max(self.least[term])
                    };
                    let tried = self.error(&costs);
                    if tried < error {
                        error = tried;
                        break;
                    }
                    costs[term] = kept;
                }
            }
            if before - error < 1e-6 * before {
                step /= 2.0;
            }
        }
        (costs, error)
    }

    fn error(&self, costs: &[f64]) -> f64 {
        let one = |asked: &Asked| {
            let Asked { demand, time, .. } = asked;
            let cost = |place: Option<usize>| place.map_or(0.0, |at| costs[at]);
            let (element, input) = (cost(asked.each), cost(asked.pack));
            let each = Costs {
                launch: costs[LAUNCH],
                ramp: costs[RAMP],
                byte_read: costs[READ],
                byte_written: costs[WRITE],
                operation: cost(asked.rate),
                element,
                input,
                overlap: costs[OVERLAP],
            };
            let off = (demand.parts(&each).time / time).ln();
            (off * off + NOISE * NOISE).sqrt() - NOISE
                + PLAINER * (demand.elements * element + demand.inputs * input + demand.flops * each.operation) / time
        };
        self.demands.iter().map(one).sum::<f64>() / self.demands.len() as f64 + PLAINER * (1.0 - costs[OVERLAP])
    }

    fn terms(&self, costs: &[f64]) -> CpuTerms {
        let rates = &self.rates;
        let rate = |(at, (family, math)): (usize, &(Family, Math))| Rate {
            family: *family,
            math: *math,
            rate: FlopRate::new(1.0 / costs[FIRST + at]),
        };
        let cost = |at: usize| Seconds::new(costs[FIRST + rates.len() + at]);
        let (mut unpack, mut touch) = (Vec::new(), Vec::new());
        for (at, (each, math)) in self.each.iter().enumerate() {
            match *each {
                Each::Stored(family, format, inputs) => {
                    unpack.push(Unpack { family, format, inputs, math: *math, cost: cost(at) });
                }
                Each::Touched(kind, format) => touch.push(Touch { kind, format, cost: cost(at) }),
            }
        }
        let pack = |(at, (family, math)): (usize, &(Family, Math))| Pack {
            family: *family,
            math: *math,
            cost: cost(self.each.len() + at),
        };
        CpuTerms {
            launch: Seconds::new(costs[LAUNCH]),
            ramp: Seconds::new(costs[RAMP]),
            read: ByteRate::new(1.0 / costs[READ]),
            write: ByteRate::new(1.0 / costs[WRITE]),
            overlap: costs[OVERLAP],
            thin_rows: self.thin_rows,
            rates: rates.iter().enumerate().map(rate).collect(),
            unpack,
            pack: self.packs.iter().enumerate().map(pack).collect(),
            touch,
        }
    }
}
