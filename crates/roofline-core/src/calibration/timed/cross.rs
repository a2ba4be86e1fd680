//! From timings to terms, and how good they are on shapes that the fit did not see.

use std::cmp::Reverse;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Found, KernelTerms, Remainder, TimedTerms,
    kernel::{Regime, Shape, TimedKernel},
    search::{Place, Row, search},
    spec::six_digits,
};
use crate::{
    Device, Error, Result,
    calibration::{Calibration, Quality, Spread, Terms},
    measurement::quantile,
    units::Seconds,
};

/// A kernel that somebody timed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// What it was.
    pub kernel: TimedKernel,
    /// How long it took.
    pub time: Seconds,
}

impl Timing {
    /// The part that it is in, with all timings of its shape.
    fn fold(&self) -> u64 {
        self.kernel.shape.hash() % FOLDS
    }
}

/// Errors of a kernel's terms, `|predicted - measured| / measured`, each shape predicted by terms fitted to others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimedQuality {
    /// Timings.
    pub rows: usize,
    /// Half of the errors are below this.
    pub median: f64,
    /// Their mean.
    pub mean: f64,
    /// Nine of ten are below this.
    pub p90: f64,
    /// The median without the correction.
    pub plain_median: f64,
    /// The mean without the correction.
    pub plain_mean: f64,
    /// The ideal roofline's mean error on the same.
    pub ideal_mean: f64,
    /// Four of five ratios of measured to predicted are within `exp(-interval)` and `exp(interval)`, by regime.
    pub intervals: [f64; 4],
    /// The share of timings inside intervals that come from other shapes than theirs.
    #[serde(default)]
    pub coverage80: f64,
}

/// Fewest timings that say anything of a kernel, and fewest of a regime that say how sure one is there.
pub(super) const FEWEST: usize = 40;
const FEWEST_OF_REGIME: usize = 20;
/// Parts of which each is predicted by the others.
const FOLDS: u64 = 3;
/// The share that an interval holds.
const HOLDS: f64 = 0.8;

/// What came of a fit: the terms, and each timing beside what terms fitted to other shapes say of it.
#[derive(Clone, Debug)]
pub struct TimedFit {
    /// The terms, fitted to all.
    pub terms: KernelTerms,
    /// Measured and predicted.
    pub held_out: Vec<(Timing, f64)>,
}

/// Fits the terms of one kind of kernel to timings of it, all of one operator and format.
pub fn fit_timings(timings: &[Timing], device: &Device) -> Result<TimedFit> {
    let refuse = |reason: String| Error::Calibration { device: device.key.clone(), reason };
    let first = timings.first().ok_or_else(|| refuse("no timings".to_owned()))?.kernel;
    let (op, dtype) = (first.shape.op(), first.dtype);
    if timings.len() < FEWEST {
        return Err(refuse(format!("{} timings of {op} in {dtype} are too few: {FEWEST} is the least", timings.len())));
    }
    let place = place(device, &first).ok_or_else(|| {
        refuse(format!("multiprocessors, an L2 and a peak of {} are needed, and the device has not all", dtype.math()))
    })?;
    let fitted = |timings: &[&Timing]| {
        let rows: Vec<Row> =
            timings.iter().map(|timing| Row::new(&timing.kernel, timing.time.value(), place.units)).collect();
        let (terms, choice) = search(op, &rows, &place);
        let off: Vec<(Shape, f64)> = timings
            .iter()
            .zip(&rows)
            .map(|(timing, row)| {
                let predicted = row.predicted(terms.all(), &choice, place.units);
                (timing.kernel.shape, libm::log(timing.time.value() / predicted))
            })
            .collect();
        let remainder = Remainder::fit(&off, place.units);
        let quality = TimedQuality::none();
        KernelTerms { op, dtype, library: None, quality, choice, terms, remainder }
    };
    let mut held_out = Vec::with_capacity(timings.len());
    let mut plain = Vec::with_capacity(timings.len());
    for fold in 0..FOLDS {
        let is_out = |timing: &&Timing| timing.fold() == fold;
        let seen: Vec<&Timing> = timings.iter().filter(|timing| !is_out(timing)).collect();
        if seen.is_empty() {
            continue;
        }
        let terms = fitted(&seen);
        for timing in timings.iter().filter(is_out) {
            let uncorrected = terms.causes(&timing.kernel, place.units, Found::AsTimed).time;
            let factor = terms.remainder.factor(&timing.kernel.shape, place.units);
            plain.push(uncorrected / timing.time.value());
            held_out.push((*timing, uncorrected * factor));
        }
    }
    let mut terms = fitted(&timings.iter().collect::<Vec<_>>());
    let ideal = |timing: &Timing| (floor(&timing.kernel, device) / timing.time.value() - 1.0).abs();
    terms.quality = TimedQuality::of(&held_out, &plain, &timings.iter().map(ideal).collect::<Vec<_>>());
    Ok(TimedFit { terms, held_out })
}

/// The least time of a kernel from memory, in seconds.
pub(super) fn floor(kernel: &TimedKernel, device: &Device) -> f64 {
    let (bytes, flops) = kernel.work();
    let peak = device.peaks.of(kernel.dtype.math()).map_or(f64::INFINITY, crate::units::FlopRate::value);
    (bytes / device.memory.bandwidth.value()).max(flops / peak)
}

fn place(device: &Device, kernel: &TimedKernel) -> Option<Place> {
    Some(Place {
        units: f64::from(device.units.count()?),
        bandwidth: device.memory.bandwidth.value(),
        peak: device.peaks.of(kernel.dtype.math())?.value(),
        cache: device.cache.l2?.value(),
    })
}

impl TimedQuality {
    const fn none() -> Self {
        Self {
            rows: 0,
            median: 0.0,
            mean: 0.0,
            p90: 0.0,
            plain_median: 0.0,
            plain_mean: 0.0,
            ideal_mean: 0.0,
            intervals: [0.0; 4],
            coverage80: 0.0,
        }
    }

    fn of(held_out: &[(Timing, f64)], plain: &[f64], ideal: &[f64]) -> Self {
        let errors: Vec<f64> =
            held_out.iter().map(|(timing, predicted)| (predicted / timing.time.value() - 1.0).abs()).collect();
        let plain: Vec<f64> = plain.iter().map(|ratio| (ratio - 1.0).abs()).collect();
        let covered = (0..FOLDS).map(|fold| {
            // Nobody is judged by an interval that his own error is part of.
            let (own, others): (Vec<_>, Vec<_>) = held_out.iter().partition(|(timing, _)| timing.fold() == fold);
            let intervals = intervals(&others);
            let inside = |one: &&&(Timing, f64)| log_error(one) <= intervals[Regime::of(&one.0.kernel.shape) as usize];
            own.iter().filter(inside).count()
        });
        let covered = covered.sum::<usize>() as f64;
        Self {
            rows: held_out.len(),
            median: six_digits(share(errors.clone(), 0.5)),
            mean: six_digits(mean(&errors)),
            p90: six_digits(share(errors, 0.9)),
            plain_median: six_digits(share(plain.clone(), 0.5)),
            plain_mean: six_digits(mean(&plain)),
            ideal_mean: six_digits(mean(ideal)),
            intervals: intervals(&held_out.iter().collect::<Vec<_>>()).map(six_digits),
            coverage80: six_digits(covered / held_out.len().max(1) as f64),
        }
    }

    /// How sure one is in a regime.
    pub(super) fn interval_of(&self, regime: Regime) -> f64 {
        self.intervals[regime as usize]
    }

    pub(super) fn sensible(&self) -> bool {
        self.intervals.iter().all(|interval| (0.0..10.0).contains(interval))
    }
}

fn log_error((timing, predicted): &(Timing, f64)) -> f64 {
    libm::log(predicted / timing.time.value()).abs()
}

/// What holds four of five of some timings, by regime; of all where a regime has few.
fn intervals(timings: &[&(Timing, f64)]) -> [f64; 4] {
    let all = share(timings.iter().map(|one| log_error(one)).collect(), HOLDS);
    Regime::ALL.map(|regime| {
        let inside = |one: &&&(Timing, f64)| Regime::of(&one.0.kernel.shape) == regime;
        let logs: Vec<f64> = timings.iter().filter(inside).map(|one| log_error(one)).collect();
        if logs.len() < FEWEST_OF_REGIME { all } else { share(logs, HOLDS) }
    })
}

fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

fn share(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    if values.is_empty() { 0.0 } else { quantile(&values, share) }
}

impl Calibration {
    /// What was fitted to timings of several kernels of one device and stack.
    pub fn of_timings(device: &Device, stack: &str, provenance: String, mut fits: Vec<TimedFit>) -> Result<Self> {
        let refuse = |reason: &str| Error::Calibration { device: device.key.clone(), reason: reason.to_owned() };
        let multiprocessors = device.units.count().ok_or_else(|| refuse("it has no multiprocessors that are known"))?;
        if fits.is_empty() {
            return Err(refuse("nothing was fitted"));
        }
        fits.sort_by_key(|fit| (fit.terms.op, fit.terms.dtype, Reverse(fit.held_out.len())));
        let held_out: Vec<(f64, f64)> = fits
            .iter()
            .flat_map(|fit| fit.held_out.iter().map(|(timing, predicted)| (timing.time.value(), *predicted)))
            .collect();
        let ideal: Vec<f64> = fits
            .iter()
            .flat_map(|fit| fit.held_out.iter())
            .map(|(timing, _)| floor(&timing.kernel, device) / timing.time.value())
            .collect();
        let quality = Quality::of_ratios(&held_out, &ideal, Spread::default());
        let kernels = fits.into_iter().map(|fit| fit.terms).collect();
        let terms = Terms::Timed(TimedTerms { multiprocessors, kernels });
        Self { device: device.label(), stack: stack.to_owned(), provenance, terms, quality, gap: None }.checked()
    }

    /// The time of a kernel that somebody timed as they did, and the logarithm of the factor that four of five timings are
    /// within; none where no term covers it. Never below the floor of what it found in the cache.
    pub fn as_timed(
        &self,
        kernel: &TimedKernel,
        library: Option<&str>,
        device: &Device,
        corrected: bool,
    ) -> Option<(Seconds, f64)> {
        let Terms::Timed(terms) = &self.terms else { return None };
        let (causes, interval) = terms.time(kernel, library, Found::AsTimed, corrected)?;
        let (bytes, flops) = kernel.work();
        let peak = device.peaks.of(kernel.dtype.math())?.value();
        let floor = (bytes / (super::CACHE_RATE * device.memory.bandwidth.value())).max(flops / peak);
        Some((Seconds::new(causes.time.max(floor)), interval))
    }
}

impl TimedKernel {
    /// Bytes that a kernel reads and writes, each once, and its operations.
    pub fn work(&self) -> (f64, f64) {
        let (stored, input) = self.dtype.bytes();
        match self.shape {
            Shape::Product { m, n, k } => (n * k * stored + m * k * input + 2.0 * m * n, 2.0 * m * n * k),
            Shape::Attention { batch, queries, heads, kv_heads, head_dim, .. } => {
                let asked = super::attention::Asked::of(self);
                let bytes = 2.0 * batch * kv_heads * asked.visible() * head_dim * stored
                    + batch * heads * queries * head_dim * (input + 2.0);
                (bytes, 4.0 * batch * heads * head_dim * asked.causal_pairs())
            }
        }
    }

    /// The floor of a kernel on a device, from memory.
    pub fn floor(&self, device: &Device) -> Seconds {
        Seconds::new(floor(self, device))
    }
}
