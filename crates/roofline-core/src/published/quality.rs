//! How far forecasts are from figures they have not seen.

use std::collections::BTreeMap;

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
/// The share of figures that an interval holds.
const HELD: f64 = 0.8;

/// Fits to all figures, and to all but some as often as it takes to forecast each without having seen it. `each` runs
/// independent fits, side by side where it can.
pub fn validate(figures: &[Figure], provenance: String, each: &dyn Fn(usize, &(dyn Fn(usize) + Sync))) -> Validation {
    let all: Vec<&Figure> = figures.iter().collect();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let by = |key: &dyn Fn(usize, &Figure) -> String| -> Vec<Vec<usize>> {
        let mut found: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        figures.iter().enumerate().for_each(|(at, figure)| found.entry(key(at, figure)).or_default().push(at));
        found.into_values().collect()
    };
    let devices = by(&|_, figure| figure.device().to_owned());
    let parts = by(&|at, _| (at % PARTS).to_string());
    let stacks = by(&|_, figure| figure.stack().name().to_owned());
    let (first, second) = (devices.len(), devices.len() + parts.len());
    groups.extend(devices.into_iter().chain(parts).chain(stacks));
    let whole = Effects { effect: fit(&all, &[]), ..Effects::default() };
    let fits: Vec<std::sync::OnceLock<Effects>> = groups.iter().map(|_| std::sync::OnceLock::new()).collect();
    if std::env::var("QUICK").is_ok() { groups.truncate(first); }
    each(groups.len(), &|at| {
        let kept: Vec<&Figure> =
            all.iter().enumerate().filter(|(row, _)| !groups[at].contains(row)).map(|(_, figure)| *figure).collect();
        let _ = fits[at].set(Effects { effect: fit(&kept, if std::env::var("WARM").is_ok() { &whole.effect } else { &[] }), ..Effects::default() });
    });
    let fitted = |at: usize| fits[at].get().cloned().unwrap_or_default();
    let raw = |range: std::ops::Range<usize>| -> Vec<f64> {
        let mut off = vec![0.0; figures.len()];
        for at in range {
            let effects = fitted(at);
            groups[at].iter().for_each(|row| {
                off[*row] = libm::log(figures[*row].expected(&effects).0 / figures[*row].seconds);
            });
        }
        off
    };
    let off = [raw(0..first), if groups.len() > first { raw(first..second) } else { vec![0.0; figures.len()] }, if groups.len() > second { raw(second..groups.len()) } else { vec![0.0; figures.len()] }];
    let known = known(figures, &off[0]);
    let interval = Regime::ALL.iter().map(|regime| interval(figures, *regime, &off)).collect();
    let effects = Effects { provenance, known, interval, ..whole };
    let scored = |which: usize, width: &dyn Fn(&Interval) -> f64| -> Vec<Scored> {
        let one = |(figure, off): (&Figure, &f64)| {
            let own = effects.interval.iter().find(|interval| interval.regime == figure.regime());
            Scored {
                ratio: libm::exp(-off),
                inside: own.is_some_and(|own| off.abs() <= width(own)),
                ideal: figure.seconds / figure.floor,
            }
        };
        figures.iter().zip(&off[which]).map(one).collect()
    };
    Validation {
        unseen: scored(0, &|interval| interval.unseen),
        seen: scored(1, &|interval| interval.seen),
        foreign: scored(2, &|interval| interval.foreign),
        effects,
    }
}

/// The interval of a kind of pass; of one with few figures, that of all.
fn interval(figures: &[Figure], regime: Regime, off: &[Vec<f64>; 3]) -> Interval {
    let width = |off: &Vec<f64>| {
        let of = |which: &dyn Fn(&Figure) -> bool| {
            let own = figures.iter().zip(off).filter(|(figure, _)| which(figure));
            let mut own: Vec<f64> = own.map(|(_, off)| off.abs()).collect();
            own.sort_by(f64::total_cmp);
            own
        };
        let own = of(&|figure| figure.regime() == regime);
        let own = if own.len() < 10 { of(&|_| true) } else { own };
        four_digits(if own.is_empty() { 1.0 } else { quantile(&own, HELD) })
    };
    let [unseen, seen, foreign] = off.each_ref().map(width);
    Interval { regime, seen, unseen: unseen.max(seen), foreign: foreign.max(unseen) }
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
