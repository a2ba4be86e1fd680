//! The factor of an inverse: an upper triangle `U` with `U^T U = A^-1`, for a symmetric positive `A`.
//!
//! GPTQ wants `U`, row `i` of which says how what is lost in column `i` is made up for in the columns after it. No inverse is
//! ever formed: with the order of rows and columns turned round, `A = L L^T` becomes `A = V V^T` with an upper triangle `V`,
//! and `U = V^-1`. So it takes a Cholesky factorization and the inverse of a triangle, a third of `n^3` each. Both are in
//! FP64, since moments of a text are badly conditioned.

use super::{
    panels::{ROWS, WIDTH, WIDTH_F64, add_f64},
    share::{share, shared},
};

/// Columns that are factored at once, and columns of the inverse that a thread computes at once.
const BLOCK: usize = 64;
/// Panels of a block.
const PANELS: usize = BLOCK / WIDTH_F64;

/// Numbers of eight columns, line after line.
type Panel = Vec<[f64; WIDTH_F64]>;

/// `U` in panels of columns as [`super::panels`] has them, each as long as it has numbers above the diagonal.
pub(crate) struct UpperFactor {
    lines: Vec<[f32; WIDTH]>,
}

impl UpperFactor {
    /// Where the lines of a panel begin.
    fn begin(panel: usize) -> usize {
        WIDTH * (panel * (panel + 1) / 2)
    }

    fn new(n: usize) -> Self {
        Self { lines: vec![[0.0; WIDTH]; Self::begin(n.div_ceil(WIDTH))] }
    }

    fn put(&mut self, row: usize, column: usize, number: f32) {
        self.lines[Self::begin(column / WIDTH) + row][column % WIDTH] = number;
    }

    /// Columns `panel * WIDTH` and on: a line for each row, from the first to the last above the diagonal.
    pub(super) fn panel(&self, panel: usize) -> &[[f32; WIDTH]] {
        &self.lines[Self::begin(panel)..Self::begin(panel + 1)]
    }

    /// The number at a row and a column.
    #[cfg(test)]
    pub(super) fn at(&self, row: usize, column: usize) -> f32 {
        if row > column { 0.0 } else { self.panel(column / WIDTH)[row][column % WIDTH] }
    }

    /// Bytes that one of `n` columns takes.
    pub(super) fn bytes(n: u64) -> u64 {
        2 * n.pow(2)
    }
}

/// `U` with `U^T U = A^-1`; none where `A` is not positive. `a(i, j)` is asked for where `i >= j`.
pub(crate) fn inverse_factor(n: usize, a: impl Fn(usize, usize) -> f64 + Sync, threads: usize) -> Option<UpperFactor> {
    let mut lower = vec![0.0; n * n];
    let rows: Vec<(usize, &mut [f64])> = lower.chunks_mut(n.max(1)).enumerate().collect();
    share(threads, rows, |(i, row)| {
        for (j, number) in row[..=i].iter_mut().enumerate() {
            // Turned round: the larger of the two indices comes first there, too.
            *number = a(n - 1 - j, n - 1 - i);
        }
    });
    cholesky(&mut lower, n, threads)?;
    let strips = shared(threads, (0..n).step_by(BLOCK).collect(), |from| (from, inverse_strip(&lower, n, from)));
    let mut upper = UpperFactor::new(n);
    let mut finite = true;
    for (from, panels) in strips {
        for (at, panel) in panels.iter().enumerate() {
            for (line, numbers) in panel.iter().enumerate() {
                let first = from + at * WIDTH_F64;
                for (column, number) in (first..n.min(from + line + 1)).zip(numbers) {
                    finite &= number.is_finite();
                    upper.put(n - 1 - from - line, n - 1 - column, *number as f32);
                }
            }
        }
    }
    finite.then_some(upper)
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
        // The columns below it, turned: what the block makes of them is `L` there.
        let bands: Vec<&mut [f64]> = rows.chunks_mut(BLOCK * n).collect();
        let solved = shared(threads, bands, |band| {
            let mut panels: Vec<Panel> = band.chunks(WIDTH_F64 * n).map(|rows| turn(rows, n, k, width)).collect();
            solve(above, n, k..below, &mut panels);
            for (row, numbers) in band.chunks_exact_mut(n).enumerate() {
                for (t, number) in numbers[k..below].iter_mut().enumerate() {
                    *number = panels[row / WIDTH_F64][t][row % WIDTH_F64];
                }
            }
            panels
        });
        let solved: Vec<Panel> = solved.into_iter().flatten().collect();
        // What is left loses the products of these columns.
        let bands: Vec<(usize, &mut [f64])> = rows.chunks_mut(ROWS * n).enumerate().collect();
        share(threads, bands, |(band, rows)| {
            let left = negative(rows, n, k..below);
            let last = band * ROWS + rows.len() / n;
            for (panel, right) in solved[..last.div_ceil(WIDTH_F64)].iter().enumerate() {
                let from = below + panel * WIDTH_F64;
                let mut sums = [[0.0; WIDTH_F64]; ROWS];
                let kept = WIDTH_F64.min(n - from);
                for (sums, row) in sums.iter_mut().zip(rows.chunks_exact(n)) {
                    sums[..kept].copy_from_slice(&row[from..][..kept]);
                }
                add_f64(&mut sums, &left, right);
                for (sums, row) in sums.iter().zip(rows.chunks_exact_mut(n)) {
                    row[from..][..kept].copy_from_slice(&sums[..kept]);
                }
            }
        });
    }
    Some(())
}

/// Columns `k..k + width` of up to eight rows, a line for each column.
fn turn(rows: &[f64], n: usize, k: usize, width: usize) -> Panel {
    let mut panel = vec![[0.0; WIDTH_F64]; width];
    for (at, row) in rows.chunks_exact(n).enumerate() {
        panel.iter_mut().zip(&row[k..]).for_each(|(line, number)| line[at] = *number);
    }
    panel
}

/// Some columns of up to four rows with their signs turned: the left side of tiles that are taken away.
fn negative(rows: &[f64], n: usize, columns: std::ops::Range<usize>) -> Vec<[f64; ROWS]> {
    let mut left = vec![[0.0; ROWS]; columns.len()];
    for (at, row) in rows.chunks_exact(n).enumerate() {
        left.iter_mut().zip(&row[columns.clone()]).for_each(|(line, number)| line[at] = -number);
    }
    left
}

/// Replaces every panel `B` by `L^-1 B`, for the triangle `L` of these rows and columns of `lower`.
fn solve(lower: &[f64], n: usize, triangle: std::ops::Range<usize>, panels: &mut [Panel]) {
    let start = triangle.start;
    for i in triangle.clone().step_by(ROWS) {
        let rows = ROWS.min(triangle.end - i);
        let own = &lower[i * n..][..rows * n];
        let left = negative(own, n, start..i);
        for panel in &mut *panels {
            let (before, lines) = panel.split_at_mut(i - start);
            let mut sums = [[0.0; WIDTH_F64]; ROWS];
            sums[..rows].copy_from_slice(&lines[..rows]);
            add_f64(&mut sums, &left, before);
            for at in 0..rows {
                let row = &own[at * n + i..];
                let mut line = sums[at];
                for (factor, solved) in row.iter().zip(&sums[..at]) {
                    line.iter_mut().zip(solved).for_each(|(number, solved)| *number -= factor * solved);
                }
                sums[at] = line.map(|number| number / row[at]);
            }
            lines[..rows].copy_from_slice(&sums[..rows]);
        }
    }
}

/// Columns `from..from + BLOCK` of the inverse of a lower triangle, from row `from` on, in panels.
fn inverse_strip(lower: &[f64], n: usize, from: usize) -> Vec<Panel> {
    let one = |panel: usize| {
        let mut identity = vec![[0.0; WIDTH_F64]; n - from];
        identity.iter_mut().skip(panel * WIDTH_F64).take(WIDTH_F64).enumerate().for_each(|(at, line)| line[at] = 1.0);
        identity
    };
    let mut panels: Vec<Panel> = (0..PANELS.min((n - from).div_ceil(WIDTH_F64))).map(one).collect();
    solve(lower, n, from..n, &mut panels);
    panels
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
        let found = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(row, column)| found.at(row, column));
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
            assert!(inverse_factor(n, &a, 3).unwrap().lines == u.lines, "{n}");
            let u: Vec<f32> = (0..n * n).map(|at| u.at(at / n, at % n)).collect();
            for i in 0..n {
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
