//! Order statistics: a few slow samples, which every shared machine has, move a mean but not a median.

use schemars::JsonSchema;
use serde::Serialize;

use crate::units::Seconds;

/// What samples say.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "SampleSummary")]
pub struct Summary {
    /// How many samples there are.
    pub samples: usize,
    /// Half of the samples took less.
    #[serde(rename = "median_us", serialize_with = "micros")]
    #[schemars(with = "f64")]
    pub median: Seconds,
    /// Time that 5 % of the samples stayed below.
    #[serde(rename = "p5_us", serialize_with = "micros")]
    #[schemars(with = "f64")]
    pub p5: Seconds,
    /// Time that 5 % of the samples went above.
    #[serde(rename = "p95_us", serialize_with = "micros")]
    #[schemars(with = "f64")]
    pub p95: Seconds,
    /// Median distance from the median.
    #[serde(rename = "mad_us", serialize_with = "micros")]
    #[schemars(with = "f64")]
    pub mad: Seconds,
    /// The fastest sample.
    #[serde(rename = "min_us", serialize_with = "micros")]
    #[schemars(with = "f64")]
    pub min: Seconds,
    /// Standard deviation, for whoever compares with tools that have nothing else; none for a single sample. A few slow
    /// samples make most of it, which is why nothing here is decided by it.
    #[serde(rename = "std_us", serialize_with = "optional_micros")]
    #[schemars(with = "Option<f64>")]
    pub std: Option<Seconds>,
    /// Half the width of the 95 % confidence interval of the median, over the median; none for fewer than six samples, of
    /// which no two ranks reach 95 %.
    pub confidence: Option<f64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn micros<S: serde::Serializer>(time: &Seconds, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((time.micros() * 1e3).round() / 1e3)
}

#[expect(clippy::ref_option, reason = "serde passes a reference")]
fn optional_micros<S: serde::Serializer>(time: &Option<Seconds>, serializer: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => micros(time, serializer),
        None => serializer.serialize_none(),
    }
}

impl Summary {
    /// None without samples, or with one that is not a positive time.
    pub fn of(samples: &[Seconds]) -> Option<Self> {
        let mut sorted: Vec<f64> = samples.iter().map(|sample| sample.value()).collect();
        if sorted.is_empty() || sorted.iter().any(|sample| !(sample.is_finite() && *sample > 0.0)) {
            return None;
        }
        sorted.sort_by(f64::total_cmp);
        let median = quantile(&sorted, 0.5);
        let mut distances: Vec<f64> = sorted.iter().map(|sample| (sample - median).abs()).collect();
        distances.sort_by(f64::total_cmp);
        let interval = median_interval(sorted.len());
        Some(Self {
            samples: sorted.len(),
            median: Seconds::new(median),
            p5: Seconds::new(quantile(&sorted, 0.05)),
            p95: Seconds::new(quantile(&sorted, 0.95)),
            mad: Seconds::new(quantile(&distances, 0.5)),
            min: Seconds::new(sorted[0]),
            std: deviation(&sorted).map(Seconds::new),
            confidence: interval.map(|(low, high)| (sorted[high] - sorted[low]) / 2.0 / median),
        })
    }
}

/// With Bessel's correction; none for fewer than two.
fn deviation(values: &[f64]) -> Option<f64> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (count > 1.0).then(|| (squares / (count - 1.0)).sqrt())
}

/// Linear interpolation between the closest ranks of sorted values, of which there must be one (Hyndman and Fan 1996, definition 7).
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * place.fract()
}

/// Ranks between which the true median lies with 95 % confidence, whatever the distribution: the number of samples below
/// it is binomial with p = 1/2, so the ranks are `n/2 -+ 1.96 sqrt(n)/2` (Conover, "Practical Nonparametric Statistics",
/// 3.2), as if samples were independent.
fn median_interval(samples: usize) -> Option<(usize, usize)> {
    let (count, last) = (samples as f64, samples - 1);
    if samples < 6 {
        return None;
    }
    let half = 1.96 * count.sqrt() / 2.0;
    let low = ((count / 2.0 - half).floor() as usize).min(last);
    Some((low, ((count / 2.0 + half).ceil() as usize).min(last)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(samples: &[f64]) -> Option<Summary> {
        Summary::of(&samples.iter().map(|sample| Seconds::from_micros(*sample)).collect::<Vec<_>>())
    }

    #[test]
    fn order_statistics() {
        let summary = of(&[3.0, 1.0, 2.0, 100.0, 4.0]).unwrap();
        assert!((summary.median.micros() - 3.0).abs() < 1e-9);
        assert!((summary.mad.micros() - 1.0).abs() < 1e-9);
        // p95 of five: place 3.8, four fifths of the way from 4 to 100.
        assert!((summary.p95.micros() - 80.8).abs() < 1e-9);
        assert!((summary.min.micros() - 1.0).abs() < 1e-9);
        // Around 22: 19^2 + 21^2 + 20^2 + 78^2 + 18^2 = 7610, over four.
        assert!((summary.std.unwrap().micros() - (7610.0f64 / 4.0).sqrt()).abs() < 1e-9);
        assert_eq!(of(&[5.0]).unwrap().std, None);
        assert!(of(&[]).is_none() && of(&[1.0, f64::NAN]).is_none() && of(&[0.0]).is_none() && of(&[-1.0]).is_none());
        assert_eq!(of(&[5.0; 5]).unwrap().confidence, None);
        assert_eq!(of(&[5.0; 6]).unwrap().confidence, Some(0.0));
    }

    /// Of 100 samples the interval runs from the 41st to the 61st (n/2 -+ 9.8).
    #[test]
    fn the_median_has_a_confidence_interval() {
        let samples: Vec<f64> = (1..=100).map(f64::from).collect();
        let expected = (61.0 - 41.0) / 2.0 / 50.5;
        assert!((of(&samples).unwrap().confidence.unwrap() - expected).abs() < 1e-9);
    }
}
