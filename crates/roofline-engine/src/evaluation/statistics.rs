//! How sure a mean over windows is, and how divergences are spread.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A mean, and the interval that it lies in with 95 % confidence; none where a single window says nothing of others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// The mean.
    pub value: f64,
    /// Half of the width of the interval.
    pub margin: Option<f64>,
}

impl Estimate {
    /// Where the interval begins.
    pub fn low(&self) -> Option<f64> {
        self.margin.map(|margin| self.value - margin)
    }

    /// Where it ends.
    pub fn high(&self) -> Option<f64> {
        self.margin.map(|margin| self.value + margin)
    }
}

/// The mean over tokens of a quantity of which windows have sums, as pairs of a sum and how many tokens are in it.
///
/// Tokens of one window hang together, so windows are what is drawn: the mean is the ratio of two sums over them, and its
/// variance that of a ratio (W. G. Cochran, Sampling Techniques, 3rd edition, 6.4), with Student's t for few windows.
pub fn ratio(windows: &[(f64, usize)]) -> Estimate {
    let tokens: usize = windows.iter().map(|(_, tokens)| *tokens).sum();
    if tokens == 0 {
        return Estimate::default();
    }
    let value = windows.iter().map(|(sum, _)| *sum).sum::<f64>() / tokens as f64;
    let count = windows.len();
    let margin = (count > 1).then(|| {
        let residues: f64 = windows.iter().map(|(sum, tokens)| (sum - value * *tokens as f64).powi(2)).sum();
        let variance = count as f64 / (count - 1) as f64 * residues / (tokens as f64).powi(2);
        student(count - 1) * variance.sqrt()
    });
    Estimate { value, margin }
}

/// What 97.5 % of Student's t distribution stay below: in closed form for one and two degrees of freedom, by the expansion
/// of R. A. Fisher and E. A. Cornish (1960) for more, of which five terms are within 0.2 % from three on.
fn student(freedom: usize) -> f64 {
    const NORMAL: f64 = 1.959_963_984_540_054;
    const SHARE: f64 = 0.975;
    let z = NORMAL;
    let n = freedom as f64;
    match freedom {
        0 => f64::INFINITY,
        1 => (std::f64::consts::PI * (SHARE - 0.5)).tan(),
        2 => (2.0 * SHARE - 1.0) / (2.0 * SHARE * (1.0 - SHARE)).sqrt(),
        _ => {
            let terms = [
                (z.powi(3) + z) / 4.0,
                (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0,
                (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0,
                (79.0 * z.powi(9) + 776.0 * z.powi(7) + 1482.0 * z.powi(5) - 1920.0 * z.powi(3) - 945.0 * z) / 92160.0,
            ];
            terms.iter().rev().fold(0.0, |sum, term| (sum + term) / n) + z
        }
    }
}

/// Steps of a spread for each doubling: a step is 2.2 % wide.
const STEPS: f64 = 32.0;
/// What is smaller counts as this.
const SMALLEST: f64 = 1e-12;

/// How often divergences of each size came. Sizes go in steps of 2.2 %, so that a text may be as long as it likes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    steps: BTreeMap<i32, u64>,
    largest: f64,
}

impl Spread {
    /// One more.
    pub(super) fn add(&mut self, value: f64) {
        let step = (value.max(SMALLEST).log2() * STEPS).floor() as i32;
        *self.steps.entry(step).or_default() += 1;
        self.largest = self.largest.max(value);
    }

    /// Those of others, too.
    pub fn merge(&mut self, other: &Self) {
        for (step, count) in &other.steps {
            *self.steps.entry(*step).or_default() += count;
        }
        self.largest = self.largest.max(other.largest);
    }

    /// The largest of all.
    pub fn largest(&self) -> f64 {
        self.largest
    }

    /// What this share of them stays below, to the middle of a step; none of nothing.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let total: u64 = self.steps.values().sum();
        let wanted = (share * total as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        self.steps.iter().find_map(|(step, count)| {
            seen += count;
            let middle = || ((f64::from(*step) + 0.5) / STEPS).exp2();
            (seen >= wanted).then(|| if middle() < 2.0 * SMALLEST { 0.0 } else { middle().min(self.largest) })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums 2, 4 and 9 over 1, 2 and 3 tokens: the mean is 15 / 6 = 2.5, residues are -0.5, -1 and 1.5, of which the
    /// squares add up to 3.5; the variance is 3 / 2 * 3.5 / 36 = 0.1458, its root 0.3819, times t(2) = 4.3027: 1.643.
    #[test]
    fn a_ratio_by_hand() {
        let told = ratio(&[(2.0, 1), (4.0, 2), (9.0, 3)]);
        assert!((told.value - 2.5).abs() < 1e-12);
        assert!((told.margin.unwrap() - 4.302_65 * (3.5f64 / 24.0).sqrt()).abs() < 1e-4, "{told:?}");
        assert!((told.low().unwrap() - 0.857).abs() < 1e-3 && (told.high().unwrap() - 4.143).abs() < 1e-3);
        // Windows that all say the same are sure, and one alone is not.
        assert_eq!(ratio(&[(2.0, 1), (4.0, 2)]).margin, Some(0.0));
        assert_eq!(ratio(&[(2.0, 1)]), Estimate { value: 2.0, margin: None });
        assert_eq!(ratio(&[]), Estimate::default());
    }

    /// Of samples from one distribution, 95 of 100 intervals hold the mean: windows of uniform numbers, whose mean is 1/2.
    #[test]
    fn intervals_hold_the_mean_as_often_as_they_say() {
        let mut state = 1u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let held = (0..2000).filter(|_| {
            let windows: Vec<(f64, usize)> = (0..12).map(|_| ((0..5).map(|_| uniform()).sum(), 5)).collect();
            let told = ratio(&windows);
            (told.low().unwrap()..told.high().unwrap()).contains(&0.5)
        });
        let held = held.count();
        assert!((1870..1930).contains(&held), "{held} of 2000");
    }

    /// Tables of Student's t, 97.5 %.
    #[test]
    fn student_as_in_tables() {
        for (freedom, table) in
            [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423), (120, 1.9799)]
        {
            let told = student(freedom);
            assert!((told / table - 1.0).abs() < 2e-3, "{freedom}: {told} {table}");
        }
    }

    /// A thousand sizes from 0.001 to 1: 99 % stay below 0.99, within a step of 2.2 %.
    #[test]
    fn quantiles_of_a_spread() {
        let (mut one, mut other) = (Spread::default(), Spread::default());
        for at in 1..=1000u32 {
            let of = if at % 3 == 0 { &mut one } else { &mut other };
            of.add(f64::from(at) / 1000.0);
        }
        one.merge(&other);
        assert_eq!(one.largest(), 1.0);
        for share in [0.01, 0.5, 0.99] {
            let told = one.quantile(share).unwrap();
            assert!((told / share - 1.0).abs() < 0.012, "{share}: {told}");
        }
        assert_eq!(Spread::default().quantile(0.99), None);
        let mut equal = Spread::default();
        equal.add(0.0);
        assert_eq!((equal.quantile(0.99), equal.largest()), (Some(0.0), 0.0));
    }
}
