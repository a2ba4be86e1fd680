//! `y[m,n] = x[m,k] * W[n,k]^T`, element by element.

/// The elements of `y` where `rows` of `x` meet `columns` of `y` (rows of `w`), row-major in the order given. A sample
/// checks a product that is too large to be computed this way as a whole.
pub fn linear(x: &[f32], w: &[f32], k: usize, rows: &[usize], columns: &[usize]) -> Vec<f64> {
    let dot = |row: usize, column: usize| -> f64 {
        let pairs = x[row * k..][..k].iter().zip(&w[column * k..][..k]);
        pairs.map(|(x, w)| f64::from(*x) * f64::from(*w)).sum()
    };
    rows.iter().flat_map(|row| columns.iter().map(move |column| dot(*row, *column))).collect()
}

/// How far `got` is from `want`.
#[derive(Clone, Copy, Debug)]
pub struct Deviation {
    /// Root mean square of the differences over that of the values.
    pub rms: f64,
    /// The largest difference over the root mean square of the values.
    pub worst: f64,
}

impl Deviation {
    /// Of two lists of equal length. Where every wanted value is zero, differences count as they are.
    pub fn between(got: &[f32], want: &[f64]) -> Self {
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
    pub fn within(self, rms: f64, worst: f64) -> bool {
        self.rms <= rms && self.worst <= worst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_part_of_the_whole() {
        let x = [1.0, 2.0, 3.0, 4.0]; // 2 x 2
        let w = [1.0, 0.0, 0.0, 1.0, 1.0, -1.0]; // 3 x 2
        assert_eq!(linear(&x, &w, 2, &[0, 1], &[0, 1, 2]), [1.0, 2.0, -1.0, 3.0, 4.0, -1.0]);
        assert_eq!(linear(&x, &w, 2, &[1], &[2, 0]), [-1.0, 3.0]);
    }

    #[test]
    fn deviation_sees_every_difference() {
        let off = Deviation::between(&[3.0, 5.0], &[3.0, 4.0]);
        assert!((off.worst - 1.0 / 12.5f64.sqrt()).abs() < 1e-12 && off.within(0.2001, 0.283));
        assert!(!Deviation::between(&[f32::NAN, 4.0], &[3.0, 4.0]).within(1.0, 1.0));
    }
}
