//! How far a kernel's numbers are from the exact ones, for tests.

/// How far `got` is from `want`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deviation {
    /// Root mean square of the differences over that of the values.
    pub(crate) rms: f64,
    /// The largest difference over the root mean square of the values.
    pub(crate) worst: f64,
}

impl Deviation {
    /// Of two lists of equal length. Where every wanted value is zero, differences count as they are.
    pub(crate) fn between(got: &[f32], want: &[f64]) -> Self {
        let count = want.len().max(1) as f64;
        let size = (want.iter().map(|value| value * value).sum::<f64>() / count).sqrt();
        let size = if size == 0.0 { 1.0 } else { size };
        let differences = got.iter().zip(want).map(|(got, want)| (f64::from(*got) - want).abs());
        let rms = (differences.clone().map(|difference| difference * difference).sum::<f64>() / count).sqrt() / size;
        // A NaN must not hide behind `max`.
        let worst = differences.fold(0.0, |worst, difference| if difference <= worst { worst } else { difference });
        Self { rms, worst: worst / size }
    }

    /// Whether both are within `rms` and `worst`.
    pub(crate) fn within(self, rms: f64, worst: f64) -> bool {
        self.rms <= rms && self.worst <= worst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviation_sees_every_difference() {
        let off = Deviation::between(&[3.0, 5.0], &[3.0, 4.0]);
        assert!((off.worst - 1.0 / 12.5f64.sqrt()).abs() < 1e-12 && off.within(0.2001, 0.283));
        assert!(!Deviation::between(&[f32::NAN, 4.0], &[3.0, 4.0]).within(1.0, 1.0));
    }
}
