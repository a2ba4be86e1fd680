//! How good a calibration is, on shapes it never saw.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    fit::Sample,
    terms::{Family, Stands, Terms},
    timed::six_digits,
};
use crate::{Device, Error, Result, format::Sizes, measurement::quantile, predict::Estimate};

/// Errors of a calibration: `|predicted - measured| / measured`. They are those of terms fitted to two thirds of the shapes;
/// the terms that are kept have seen all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "CalibrationQuality")]
pub struct Quality {
    /// Measurements the terms were fitted to.
    pub fitted: usize,
    /// Mean error on the measurements that the terms were fitted to.
    pub fitted_mean: f64,
    /// Measurements of shapes held out.
    pub held_out: usize,
    /// Mean error on the measurements held out.
    pub mean: f64,
    /// Median error on the measurements held out.
    pub median: f64,
    /// Error that nine of ten measurements held out stay below.
    pub p90: f64,
    /// The largest error on the measurements held out.
    pub max: f64,
    /// The ideal roofline's mean error on the same measurements.
    pub ideal_mean: f64,
    /// Its median.
    pub ideal_median: f64,
    /// Nine of ten held-out ratios of measured to predicted are within `exp(-interval)` and `exp(interval)`.
    pub interval: f64,
    /// How well the machine repeats itself.
    pub spread: Spread,
    /// The same by family.
    #[serde(default)]
    pub families: Vec<FamilyQuality>,
}

/// Errors on the held-out measurements of one family.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FamilyQuality {
    /// Which kernels.
    pub family: Family,
    /// Measurements of shapes held out.
    pub held_out: usize,
    /// Mean error on the measurements held out.
    pub mean: f64,
    /// Median error on the measurements held out.
    pub median: f64,
    /// Error that nine of ten measurements held out stay below.
    pub p90: f64,
    /// As [`Quality::interval`].
    pub interval: f64,
}

/// Fewest held-out measurements that say what nine of ten do.
const FEWEST: usize = 10;

/// How far the same measurement is from itself, some time later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "CalibrationSpread")]
pub struct Spread {
    /// Measurements made twice.
    pub repeats: usize,
    /// Mean relative difference.
    pub mean: f64,
    /// Median relative difference.
    pub median: f64,
}

impl Spread {
    /// From pairs of times of the same kernel.
    pub fn of(pairs: &[(f64, f64)]) -> Self {
        let off: Vec<f64> = pairs.iter().map(|(first, second)| (second - first).abs() / first.min(*second)).collect();
        Self { repeats: off.len(), mean: mean(&off), median: sorted_quantile(off, 0.5) }
    }
}

impl Quality {
    /// A mean error on held-out shapes above this carries no verdict on theory: what differs may be the calibration.
    pub const DOUBTFUL: f64 = 0.20;

    /// Whether too much is wrong with it to judge anything by.
    pub fn doubtful(&self) -> bool {
        self.mean > Self::DOUBTFUL
    }

    pub(super) fn of(
        terms: &Terms,
        seen: &[Sample],
        unseen: &[Sample],
        device: &Device,
        spread: Spread,
    ) -> Result<Self> {
        let ratio = |sample: &Sample| {
            let parts = terms.parts(&sample.op, &sample.precision, Sizes::Exact, Stands::Alone);
            parts.map(|parts| (parts.family, parts.time / sample.time.value())).ok_or_else(|| Error::Calibration {
                device: device.key.clone(),
                reason: "a sample that its terms do not cover".to_owned(),
            })
        };
        let ideal = |sample: &Sample| {
            let estimate = Estimate::of(&sample.op, &sample.precision, Sizes::Exact, device)?;
            Ok((estimate.time().seconds() / sample.time - 1.0).abs())
        };
        let ideal: Vec<f64> = unseen.iter().map(ideal).collect::<Result<_>>()?;
        let ratios = |samples: &[Sample]| samples.iter().map(ratio).collect::<Result<Vec<(Family, f64)>>>();
        let (fitted, held) = (ratios(seen)?, ratios(unseen)?);
        let all: Vec<f64> = held.iter().map(|(_, ratio)| *ratio).collect();
        let mut families: Vec<Family> = held.iter().map(|(family, _)| *family).collect();
        families.sort();
        families.dedup();
        let of_family = |family: Family| {
            let ratios: Vec<f64> = held.iter().filter(|(of, _)| *of == family).map(|(_, ratio)| *ratio).collect();
            let Errors { mean, median, p90, interval, .. } = Errors::of(&ratios);
            FamilyQuality { family, held_out: ratios.len(), mean, median, p90, interval }
        };
        let Errors { mean: held_mean, median, p90, max, interval } = Errors::of(&all);
        Ok(Self {
            fitted: seen.len(),
            fitted_mean: Errors::of(&fitted.iter().map(|(_, ratio)| *ratio).collect::<Vec<_>>()).mean,
            held_out: unseen.len(),
            mean: held_mean,
            median,
            p90,
            max,
            ideal_mean: mean(&ideal),
            ideal_median: sorted_quantile(ideal, 0.5),
            interval,
            spread,
            families: families.into_iter().map(of_family).collect(),
        })
    }

    /// Of measured and predicted times of shapes that a fit did not see, with the ideal roofline's ratios to the measured ones.
    pub(super) fn of_ratios(held_out: &[(f64, f64)], ideal: &[f64], spread: Spread) -> Self {
        let ratios: Vec<f64> = held_out.iter().map(|(measured, predicted)| predicted / measured).collect();
        let off: Vec<f64> = ideal.iter().map(|ratio| (ratio - 1.0).abs()).collect();
        let Errors { mean: held_mean, median, p90, max, interval } = Errors::of(&ratios);
        let [held_mean, median, p90, max, interval] = [held_mean, median, p90, max, interval].map(six_digits);
        Self {
            fitted: ratios.len(),
            fitted_mean: held_mean,
            held_out: ratios.len(),
            mean: held_mean,
            median,
            p90,
            max,
            ideal_mean: six_digits(mean(&off)),
            ideal_median: six_digits(sorted_quantile(off, 0.5)),
            interval,
            spread,
            families: Vec::new(),
        }
    }

    /// The interval of a family: its own where enough of it was held out.
    pub(super) fn interval_of(&self, family: Family) -> f64 {
        let own = self.families.iter().find(|quality| quality.family == family && quality.held_out >= FEWEST);
        own.map_or(self.interval, |quality| quality.interval)
    }

    /// Whether the intervals are such that a time stays a time.
    pub(super) fn sensible(&self) -> bool {
        let own = self.families.iter().map(|quality| quality.interval);
        own.chain([self.interval]).all(|interval| (0.0..10.0).contains(&interval))
    }
}

/// What some ratios of predicted to measured time come to.
pub(super) struct Errors {
    pub(super) mean: f64,
    pub(super) median: f64,
    pub(super) p90: f64,
    max: f64,
    interval: f64,
}

impl Errors {
    pub(super) fn of(ratios: &[f64]) -> Self {
        let off: Vec<f64> = ratios.iter().map(|ratio| (ratio - 1.0).abs()).collect();
        let logs = ratios.iter().map(|ratio| ratio.ln().abs()).collect();
        Self {
            mean: mean(&off),
            max: off.iter().copied().fold(0.0, f64::max),
            median: sorted_quantile(off.clone(), 0.5),
            p90: sorted_quantile(off, 0.9),
            interval: sorted_quantile(logs, 0.9),
        }
    }
}

fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

fn sorted_quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    if values.is_empty() { 0.0 } else { quantile(&values, share) }
}
