//! How far forecasts are from figures they have not seen.

use std::{collections::BTreeMap, sync::OnceLock};

use super::{Effects, Figure, Known, Regime, effects::Interval, fit, fit::four_digits};
use crate::{machine::Stack, measurement::quantile};

/// A figure and its forecast, in tokens per second over what was published.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored {
    /// Forecast over published.
    pub ratio: f64,
    /// Whether the published figure is inside the interval that four of five should be in.
    pub inside: bool,
    /// The floor's tokens per second over what was published.
    pub ideal: f64,
}

/// Errors of several forecasts, as shares of what was published.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Judged {
    /// How many.
    pub rows: usize,
    /// Half are within this.
    pub median: f64,
    /// On average.
    pub mean: f64,
    /// Nine of ten are within this.
    pub p90: f64,
    /// The share inside its interval.
    pub coverage80: f64,
}

/// What factors say of figures.
pub fn scores(figures: &[&Figure], effects: &Effects) -> Vec<Scored> {
    let score = |figure: &&Figure| {
        let (time, factor) = figure.expected(effects);
        let off = libm::log(time / figure.seconds).abs();
        Scored { ratio: figure.seconds / time, inside: off <= factor.ln(), ideal: figure.seconds / figure.floor }
    };
    figures.iter().map(score).collect()
}

/// Errors of scored figures.
pub fn judge(scored: &[Scored]) -> Judged {
    let mut errors: Vec<f64> = scored.iter().map(|one| (one.ratio - 1.0).abs()).collect();
    errors.sort_by(f64::total_cmp);
    if errors.is_empty() {
        return Judged::default();
    }
    let count = errors.len() as f64;
    Judged {
        rows: errors.len(),
        median: quantile(&errors, 0.5),
        mean: errors.iter().sum::<f64>() / count,
        p90: quantile(&errors, 0.9),
        coverage80: scored.iter().filter(|one| one.inside).count() as f64 / count,
    }
}

/// Every figure, forecast by factors that did not see it.
#[derive(Clone, Debug)]
pub struct Validation {
    /// By those of all other devices.
    pub unseen: Vec<Scored>,
    /// By those that saw others of its device.
    pub seen: Vec<Scored>,
    /// By those of all other runtimes.
    pub foreign: Vec<Scored>,
    /// What ships: factors of all figures, with intervals of those three.
    pub effects: Effects,
}

/// Parts that figures are left out in, where the device is not.
const PARTS: usize = 5;
/// Fewest figures that an interval is of.
const FEWEST: usize = 10;
/// The share of figures that an interval holds.
const HELD: f64 = 0.8;

/// Runs so many pieces of work, side by side where it can.
pub type Runner<'a> = &'a dyn Fn(usize, &(dyn Fn(usize) + Sync));

/// Fits to all figures, and to all but some as often as it takes to forecast each without having seen it. `each` runs
/// independent fits.
pub fn validate(figures: &[Figure], provenance: String, each: Runner<'_>) -> Validation {
    let all: Vec<&Figure> = figures.iter().collect();
    let whole = Effects { effect: fit(&all), ..Effects::default() };
    let unseen = left_out(figures, each, &|_, figure| figure.device().to_owned());
    let seen = left_out(figures, each, &|at, _| (at % PARTS).to_string());
    let foreign = left_out(figures, each, &|_, figure| figure.stack().name().to_owned());
    let interval = |regime: &Regime| {
        let [unseen, seen, foreign] = [&unseen, &seen, &foreign].map(|off| width(figures, *regime, off, None));
        Interval { regime: *regime, seen, unseen: unseen.max(seen), foreign: foreign.max(unseen) }
    };
    let interval = Regime::ALL.iter().map(interval).collect();
    Validation {
        unseen: scored(figures, &unseen),
        seen: scored(figures, &seen),
        foreign: scored(figures, &foreign),
        effects: Effects { provenance, interval, known: known(figures, &unseen), ..whole },
    }
}

/// The logarithm of forecast over measured time of each figure, by factors of all that do not share its key.
fn left_out(figures: &[Figure], each: Runner<'_>, key: &dyn Fn(usize, &Figure) -> String) -> Vec<f64> {
    let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    figures.iter().enumerate().for_each(|(at, figure)| groups.entry(key(at, figure)).or_default().push(at));
    let groups: Vec<Vec<usize>> = groups.into_values().collect();
    let fits: Vec<OnceLock<Effects>> = groups.iter().map(|_| OnceLock::new()).collect();
    each(groups.len(), &|at| {
        let others = figures.iter().enumerate().filter(|(row, _)| !groups[at].contains(row));
        let kept: Vec<&Figure> = others.map(|(_, figure)| figure).collect();
        fits[at].get_or_init(|| Effects { effect: fit(&kept), ..Effects::default() });
    });
    let mut off = vec![0.0; figures.len()];
    for (group, fit) in groups.iter().zip(&fits) {
        for row in group {
            // A fit that was not run, because somebody stopped it, forecasts nothing.
            let time = fit.get().map_or(f64::NAN, |effects| figures[*row].expected(effects).0);
            off[*row] = libm::log(time / figures[*row].seconds);
        }
    }
    off
}

/// Figures with their forecasts, inside or not by what the figures of other devices say of intervals.
fn scored(figures: &[Figure], off: &[f64]) -> Vec<Scored> {
    let one = |(figure, own): (&Figure, &f64)| Scored {
        ratio: libm::exp(-own),
        inside: own.abs() <= width(figures, figure.regime(), off, Some(figure.device())),
        ideal: figure.seconds / figure.floor,
    };
    figures.iter().zip(off).map(one).collect()
}

/// How far four of five figures of a kind of pass are off, those of one device left out; of a kind with few figures, of all.
fn width(figures: &[Figure], regime: Regime, off: &[f64], without: Option<&str>) -> f64 {
    let of = |which: &dyn Fn(&Figure) -> bool| {
        let own = figures.iter().zip(off).filter(|(figure, _)| Some(figure.device()) != without && which(figure));
        let mut own: Vec<f64> = own.map(|(_, off)| off.abs()).collect();
        own.sort_by(f64::total_cmp);
        own
    };
    let own = of(&|figure| figure.regime() == regime);
    let own = if own.len() < FEWEST { of(&|_| true) } else { own };
    four_digits(if own.is_empty() { 1.0 } else { quantile(&own, HELD) })
}

/// What is known of each runtime on each class, and how well without having seen the device.
fn known(figures: &[Figure], off: &[f64]) -> Vec<Known> {
    let mut cells: BTreeMap<(Stack, String), (Known, Vec<f64>)> = BTreeMap::new();
    for (figure, off) in figures.iter().zip(off) {
        let (stack, class) = (figure.place.stack, figure.place.class);
        let new = || Known { stack, class, figures: 0, devices: Vec::new(), median: 0.0, p90: 0.0 };
        let (known, errors) = cells.entry((stack, format!("{class:?}"))).or_insert_with(|| (new(), Vec::new()));
        known.figures += 1;
        if !known.devices.contains(&figure.place.device) {
            known.devices.push(figure.place.device.clone());
        }
        errors.push((libm::exp(-off) - 1.0).abs());
    }
    let told = |(mut known, mut errors): (Known, Vec<f64>)| {
        errors.sort_by(f64::total_cmp);
        known.devices.sort();
        (known.median, known.p90) = (four_digits(quantile(&errors, 0.5)), four_digits(quantile(&errors, 0.9)));
        known
    };
    cells.into_values().map(told).collect()
}
