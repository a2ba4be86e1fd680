//! The factor of an inverse: an upper triangle `U` with `U^T U = A^-1`, for a symmetric positive `A`.
//!
//! GPTQ wants `U`, row `i` of which says how what is lost in column `i` is made up for in the columns after it. No inverse is
//! ever formed: with the order of rows and columns turned round, `A = L L^T` becomes `A = V V^T` with an upper triangle `V`,
//! and `U = V^-1`. So it takes a Cholesky factorization and the inverse of a triangle, a third of `n^3` each. Both are in
//! FP64, since moments of a text are badly conditioned.

use roofline_isa::widest;

use super::{
    lines::lines,
    share::{share, shared},
};

/// Columns that are factored at once.
const BLOCK: usize = 64;
/// Columns of the inverse that a thread computes at once: as many sums as fit the registers.
const STRIP: usize = 64;
/// Rows that a thread takes at once.
const BAND: usize = 16;

/// `U` with `U^T U = A^-1`, row after row with zeros below the diagonal; none where `A` is not positive. `a(i, j)` is asked
/// for where `i >= j`.
pub(crate) fn inverse_factor(n: usize, a: impl Fn(usize, usize) -> f64 + Sync, threads: usize) -> Option<Vec<f32>> {
    let mut lower = vec![0.0; n * n];
    let bands: Vec<(usize, &mut [f64])> = lower.chunks_mut(n.max(1)).enumerate().collect();
    share(threads, bands, |(i, row)| {
        for (j, number) in row[..=i].iter_mut().enumerate() {
            // Turned round: the larger of the two indices comes first there, too.
            *number = a(n - 1 - j, n - 1 - i);
        }
    });
    cholesky(&mut lower, n, threads)?;
    let strips = shared(threads, (0..n).step_by(STRIP).collect(), |from| (from, inverse_strip(&lower, n, from)));
    let mut upper = vec![0.0; n * n];
    for (from, strip) in strips {
        for (row, numbers) in strip.chunks_exact(STRIP).enumerate() {
            let row = from + row;
            for (column, number) in (from..n.min(from + STRIP)).zip(numbers) {
                upper[(n - 1 - row) * n + n - 1 - column] = *number as f32;
            }
        }
    }
    upper.iter().all(|number: &f32| number.is_finite()).then_some(upper)
}

/// Replaces the lower triangle of a matrix by `L` with `L L^T` the matrix; none where a pivot is not positive.
fn cholesky(a: &mut [f64], n: usize, threads: usize) -> Option<()> {
    for k in (0..n).step_by(BLOCK) {
        let width = BLOCK.min(n - k);
        // The block on the diagonal.
        for i in k..k + width {
            for j in k..=i {
                let dot: f64 = (k..j).map(|t| a[i * n + t] * a[j * n + t]).sum();
                let rest = a[i * n + j] - dot;
                a[i * n + j] = if i > j {
                    rest / a[j * n + j]
                } else if rest > 0.0 && rest.is_finite() {
                    rest.sqrt()
                } else {
                    return None;
                };
            }
        }
        let below = k + width;
        if below == n {
            break;
        }
        let (above, rows) = a.split_at_mut(below * n);
        let diagonal = &above[k * n..];
        share(threads, rows.chunks_mut(BAND * n).collect(), |band| {
            for row in band.chunks_exact_mut(n) {
                for j in 0..width {
                    let dot: f64 = (0..j).map(|t| row[k + t] * diagonal[j * n + k + t]).sum();
                    row[k + j] = (row[k + j] - dot) / diagonal[j * n + k + j];
                }
            }
        });
        // What is left loses the products of these columns.
        let count = n - below;
        let mut turned = vec![0.0; width * count];
        for (at, row) in rows.chunks_exact(n).enumerate() {
            for t in 0..width {
                turned[t * count + at] = row[k + t];
            }
        }
        let bands: Vec<(usize, &mut [f64])> = rows.chunks_mut(BAND * n).enumerate().collect();
        share(threads, bands, |(band, rows)| {
            for (at, row) in rows.chunks_exact_mut(n).enumerate() {
                let (left, right) = row.split_at_mut(below);
                let until = band * BAND + at + 1;
                for from in (0..until).step_by(STRIP) {
                    let strip = &mut right[from..(from + STRIP).min(until)];
                    subtract(strip, &left[k..k + width], &turned[from..], count);
                }
            }
        });
    }
    Some(())
}

/// Columns `from..from + STRIP` of the inverse of a lower triangle, from row `from` on.
fn inverse_strip(lower: &[f64], n: usize, from: usize) -> Vec<f64> {
    let mut strip = vec![0.0; (n - from) * STRIP];
    for i in from..n {
        let (before, own) = strip.split_at_mut((i - from) * STRIP);
        let own = &mut own[..STRIP];
        if i < from + STRIP {
            own[i - from] = 1.0;
        }
        subtract(own, &lower[i * n + from..i * n + i], before, STRIP);
        let pivot = lower[i * n + i];
        for number in own {
            *number /= pivot;
        }
    }
    strip
}

widest! {
    /// `out -= sum over t of factors[t] * rows[t * stride..]`, for up to a strip of numbers.
    fn subtract(out: &mut [f64], factors: &[f64], rows: &[f64], stride: usize) {
        lines::<f64, STRIP>(out, factors, rows, stride, |sum, product| *sum -= product);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A positive matrix of any size.
    fn positive() -> impl Fn(usize, usize) -> f64 + Sync {
        move |i, j| {
            let near = 1.0 / (1.0 + i.abs_diff(j) as f64);
            near + if i == j { 0.5 + (i % 7) as f64 } else { 0.0 }
        }
    }

    #[test]
    fn a_known_factor() {
        // The inverse of [[4, 2], [2, 3]] is [[3, -2], [-2, 4]] / 8.
        let a = [[4.0, 2.0], [2.0, 3.0]];
        let found = inverse_factor(2, |i, j| a[i][j], 1).unwrap();
        let first = (3f32 / 8.0).sqrt();
        let want = [first, -0.25 / first, 0.0, (0.5f32 - (0.25 / first).powi(2)).sqrt()];
        assert!(found.iter().zip(want).all(|(found, want)| (found - want).abs() < 1e-6), "{found:?} {want:?}");
    }

    /// `U^T U A` is the identity, at sizes around those of blocks and strips, and the same for any number of threads.
    #[test]
    fn it_is_the_inverse() {
        for n in [1, 5, 63, 64, 65, 130, 200] {
            let a = positive();
            let u = inverse_factor(n, &a, 1).unwrap();
            assert!(inverse_factor(n, &a, 3).unwrap() == u, "{n}");
            for i in 0..n {
                assert!(u[i * n..i * n + i].iter().all(|below| *below == 0.0));
                // Row i of U A U^T.
                for j in [0, i, n - 1] {
                    let mut sum = 0.0;
                    for s in i..n {
                        for t in j..n {
                            sum += f64::from(u[i * n + s]) * a(s, t) * f64::from(u[j * n + t]);
                        }
                    }
                    let want = if i == j { 1.0 } else { 0.0 };
                    assert!((sum - want).abs() < 1e-4, "{n}: {i} {j} {sum}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_positive_has_none() {
        assert!(inverse_factor(2, |_, _| 1.0, 1).is_none());
        assert!(inverse_factor(3, |_, _| f64::NAN, 1).is_none());
        assert!(inverse_factor(100, |i, j| if i == j && i != 30 { 1.0 } else { 0.0 }, 2).is_none());
    }
}
