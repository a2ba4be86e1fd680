//! `y[m,n] = x[m,k] * W[n,k]^T`, element by element.

/// The elements of `y` where `rows` of `x` meet `columns` of `y` (rows of `w`), row-major in the order given. A sample
/// checks a product that is too large to be computed this way as a whole.
pub(crate) fn linear(x: &[f32], w: &[f32], k: usize, rows: &[usize], columns: &[usize]) -> Vec<f64> {
    let dot = |row: usize, column: usize| -> f64 {
        let pairs = x[row * k..][..k].iter().zip(&w[column * k..][..k]);
        pairs.map(|(x, w)| f64::from(*x) * f64::from(*w)).sum()
    };
    rows.iter().flat_map(|row| columns.iter().map(move |column| dot(*row, *column))).collect()
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
}
