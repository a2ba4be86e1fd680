//! How good a calibration is, on shapes it never saw.

use serde::{Deserialize, Serialize};

use super::{fit::Sample, terms::Terms};
use crate::{Device, Error, Result, format::Sizes, measurement::quantile, predict::Estimate};

/// Errors of a calibration: `|predicted - measured| / measured`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quality {
    /// Measurements the terms were fitted to.
    pub fitted: usize,
    /// Their mean error.
    pub fitted_mean: f64,
    /// Measurements of shapes held out.
    pub held_out: usize,
    /// Their mean error.
    pub mean: f64,
    /// Half are better.
    pub median: f64,
    /// Nine of ten are better.
    pub p90: f64,
    /// The worst.
    pub max: f64,
    /// The ideal roofline's mean error on the same measurements.
    pub ideal_mean: f64,
    /// Its median.
    pub ideal_median: f64,
    /// Nine of ten held-out ratios of measured to predicted are within `exp(-interval)` and `exp(interval)`.
    pub interval: f64,
    /// How well the machine repeats itself.
    pub spread: Spread,
}

/// How far the same measurement is from itself, some time later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Measurements made twice.
    pub repeats: usize,
    /// Mean relative difference.
    pub mean: f64,
    /// Half are closer.
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
    pub(super) fn of(
        terms: &Terms,
        seen: &[Sample],
        unseen: &[Sample],
        device: &Device,
        spread: Spread,
    ) -> Result<Self> {
        let predicted = |sample: &Sample| {
            let parts = terms.parts(&sample.op, &sample.precision, Sizes::Exact);
            parts.map(|parts| parts.time(terms.overlap)).ok_or_else(|| Error::Calibration {
                device: device.key.clone(),
                reason: "a sample that its terms do not cover".to_owned(),
            })
        };
        let off = |predicted: f64, sample: &Sample| (predicted / sample.time.value() - 1.0).abs();
        let errors = |samples: &[Sample]| {
            samples.iter().map(|sample| Ok(off(predicted(sample)?, sample))).collect::<Result<Vec<f64>>>()
        };
        let ideal = |sample: &Sample| {
            let estimate = Estimate::of(&sample.op, &sample.precision, Sizes::Exact, device)?;
            Ok(off(estimate.time().value(), sample))
        };
        let ideal: Vec<f64> = unseen.iter().map(ideal).collect::<Result<_>>()?;
        let (fitted, held) = (errors(seen)?, errors(unseen)?);
        let logs: Vec<f64> = unseen
            .iter()
            .map(|sample| Ok((predicted(sample)? / sample.time.value()).ln().abs()))
            .collect::<Result<_>>()?;
        Ok(Self {
            fitted: seen.len(),
            fitted_mean: mean(&fitted),
            held_out: unseen.len(),
            mean: mean(&held),
            max: held.iter().copied().fold(0.0, f64::max),
            p90: sorted_quantile(held.clone(), 0.9),
            median: sorted_quantile(held, 0.5),
            ideal_mean: mean(&ideal),
            ideal_median: sorted_quantile(ideal, 0.5),
            interval: sorted_quantile(logs, 0.9),
            spread,
        })
    }
}

fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

fn sorted_quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    if values.is_empty() { 0.0 } else { quantile(&values, share) }
}
