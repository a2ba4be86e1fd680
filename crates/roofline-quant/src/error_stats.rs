//! What quantizing did to the weights, counted while it happens.

use serde::{Deserialize, Serialize};

use roofline_isa::widest;

/// Sums over weights and what they decode to. Adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ErrorStats {
    /// How many weights.
    pub weights: u64,
    /// Sum of the weights' squares.
    pub power: f64,
    /// Sum of the errors' squares.
    pub noise: f64,
    /// The largest error.
    pub largest_error: f32,
    /// The largest weight.
    pub largest_weight: f32,
    /// Weights beyond the range of the format by more than half a step.
    pub clipped: u64,
}

impl ErrorStats {
    /// Counts weights and what they decode to.
    pub fn of(values: &[f32], decoded: &[f32], clipped: u64) -> Self {
        let (power, noise, largest_error, largest_weight) = sums(values, decoded);
        Self { weights: values.len() as u64, power, noise, largest_error, largest_weight, clipped }
    }

    /// Relative error `||W - Q(W)|| / ||W||`; zero for weights that are all zero.
    pub fn relative_error(&self) -> f64 {
        if self.power == 0.0 { 0.0 } else { (self.noise / self.power).sqrt() }
    }

    /// Signal to noise in decibel, `10 log10(||W||^2 / ||W - Q(W)||^2)`; none without noise.
    pub fn snr(&self) -> Option<f64> {
        (self.noise > 0.0 && self.power > 0.0).then(|| 10.0 * (self.power / self.noise).log10())
    }

    /// Whether a weight is beyond what a format holds: its scale stops short of it. MLX's two bits give up as much as half of the
    /// largest to hit the other end of a group, and no method more.
    pub(crate) fn is_out_of_reach(&self) -> bool {
        !self.noise.is_finite() || self.clipped > 0 && self.largest_error > self.largest_weight * 0.625
    }

    /// Share of clipped weights.
    pub fn clipped_share(&self) -> f64 {
        if self.weights == 0 { 0.0 } else { self.clipped as f64 / self.weights as f64 }
    }
}

impl std::ops::AddAssign for ErrorStats {
    fn add_assign(&mut self, other: Self) {
        self.weights += other.weights;
        self.power += other.power;
        self.noise += other.noise;
        self.largest_error = self.largest_error.max(other.largest_error);
        self.largest_weight = self.largest_weight.max(other.largest_weight);
        self.clipped += other.clipped;
    }
}

impl std::iter::Sum for ErrorStats {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |mut sum, stats| {
            sum += stats;
            sum
        })
    }
}

widest! {
    /// Sums of squares of the values and of the errors, and the largest of each. The lanes are added in the same order
    /// whatever the width of the vectors, so the result is the same on every CPU.
    fn sums(values: &[f32], decoded: &[f32]) -> (f64, f64, f32, f32) {
        const LANES: usize = 16;
        let (mut power, mut noise) = ([0f64; LANES], [0f64; LANES]);
        let (mut error, mut weight) = ([0f32; LANES], [0f32; LANES]);
        let (chunks, rest) = values.as_chunks::<LANES>();
        let (decoded_chunks, decoded_rest) = decoded.as_chunks::<LANES>();
        for (values, decoded) in chunks.iter().zip(decoded_chunks) {
            for lane in 0..LANES {
                let difference = values[lane] - decoded[lane];
                power[lane] += f64::from(values[lane]) * f64::from(values[lane]);
                noise[lane] += f64::from(difference) * f64::from(difference);
                error[lane] = if difference.abs() > error[lane] { difference.abs() } else { error[lane] };
                weight[lane] = if values[lane].abs() > weight[lane] { values[lane].abs() } else { weight[lane] };
            }
        }
        let mut total = (power.iter().sum::<f64>(), noise.iter().sum::<f64>(), 0f32, 0f32);
        total.2 = error.into_iter().fold(0.0, f32::max);
        total.3 = weight.into_iter().fold(0.0, f32::max);
        for (value, decoded) in rest.iter().zip(decoded_rest) {
            let difference = value - decoded;
            total.0 += f64::from(*value) * f64::from(*value);
            total.1 += f64::from(difference) * f64::from(difference);
            total.2 = total.2.max(difference.abs());
            total.3 = total.3.max(value.abs());
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_a_small_example() {
        let stats = ErrorStats::of(&[3.0, -4.0, 0.0], &[3.0, -3.0, 0.5], 1);
        assert_eq!(stats.power, 25.0);
        assert_eq!(stats.noise, 1.25);
        assert_eq!((stats.largest_error, stats.largest_weight), (1.0, 4.0));
        assert_eq!(stats.relative_error(), (1.25f64 / 25.0).sqrt());
        assert!((stats.snr().unwrap() - 13.0103).abs() < 1e-4);
        assert_eq!(stats.clipped_share(), 1.0 / 3.0);
    }

    #[test]
    fn zeros_have_no_error() {
        let stats = ErrorStats::of(&[0.0; 40], &[0.0; 40], 0);
        assert_eq!((stats.relative_error(), stats.snr()), (0.0, None));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_width_of_vectors_gives_the_same_sums() {
        let values: Vec<f32> = (0..1000u16).map(|at| (f32::from(at) * 0.37).sin()).collect();
        let decoded: Vec<f32> = values.iter().map(|value| (value * 8.0).round() / 8.0).collect();
        let all = roofline_isa::at_every_level(|| ErrorStats::of(&values, &decoded, 0));
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{all:?}");
    }
}
