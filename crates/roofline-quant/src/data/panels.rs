//! Sums of products in tiles that stay in registers, of operands cut into panels: what moments, factors and errors that are
//! made up for are all computed with.
//!
//! A [tile](roofline_isa::tile) is four rows by as many columns as a cache line holds. A panel has the columns of a tile side by
//! side, one line for each number of the sum: both operands are read from front to back whatever the width of their matrices.

pub(super) use roofline_isa::tile::{ROWS, WIDTH, add};
use roofline_isa::widest;

/// Columns of a tile in FP64.
pub(super) const WIDTH_F64: usize = 8;

/// `sums += factor * numbers`.
#[inline(always)]
fn line(sums: &mut [f64; WIDTH_F64], factor: f64, numbers: &[f64; WIDTH_F64]) {
    for (sum, number) in sums.iter_mut().zip(numbers) {
        *sum += factor * number;
    }
}

widest! {
    /// As [`add`], in FP64. Rows have names of their own: an array of arrays would not stay in registers.
    pub(super) fn add_f64(sums: &mut [[f64; WIDTH_F64]; ROWS], left: &[[f64; ROWS]], right: &[[f64; WIDTH_F64]]) {
        let [mut first, mut second, mut third, mut fourth] = *sums;
        for (left, right) in left.iter().zip(right) {
            line(&mut first, left[0], right);
            line(&mut second, left[1], right);
            line(&mut third, left[2], right);
            line(&mut fourth, left[3], right);
        }
        *sums = [first, second, third, fourth];
    }
}

/// A matrix in panels of `W` columns; the last has zeros where there are no more.
pub(super) struct Panels<const W: usize> {
    lines: usize,
    data: Vec<[f32; W]>,
}

impl<const W: usize> Panels<W> {
    /// Of a matrix, row after row.
    pub(super) fn of(values: &[f32], columns: usize) -> Self {
        let lines = values.len() / columns.max(1);
        let mut data = vec![[0.0; W]; columns.div_ceil(W) * lines];
        for (line, row) in values.chunks_exact(columns.max(1)).enumerate() {
            for (panel, numbers) in row.chunks(W).enumerate() {
                data[panel * lines + line][..numbers.len()].copy_from_slice(numbers);
            }
        }
        Self { lines, data }
    }

    /// The lines of a panel.
    pub(super) fn panel(&self, at: usize) -> &[[f32; W]] {
        &self.data[at * self.lines..][..self.lines]
    }

    /// How many panels there are.
    pub(super) fn count(&self) -> usize {
        self.data.len().checked_div(self.lines).unwrap_or(0)
    }
}

/// Rows of a matrix as the left side of tiles: four rows at a time, a line for each column.
pub(super) fn turned(rows: &[f32], columns: usize) -> Vec<[f32; ROWS]> {
    let mut lines = vec![[0.0; ROWS]; columns];
    for (at, row) in rows.chunks_exact(columns).take(ROWS).enumerate() {
        lines.iter_mut().zip(row).for_each(|(line, number)| line[at] = *number);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(at: usize) -> f32 {
        (at * 7919 % 1009) as f32 / 504.5 - 1.0
    }

    /// A product of matrices whose sides no tile divides, beside the plain sums; the same bits with every instruction set.
    #[test]
    fn tiles_are_the_product() {
        let (rows, inner, columns) = (6, 37, 21);
        let left: Vec<f32> = (0..rows * inner).map(number).collect();
        let right: Vec<f32> = (0..inner * columns).map(|at| number(at + 5)).collect();
        let product = || {
            let panels = Panels::<WIDTH>::of(&right, columns);
            let mut out = vec![0.0; rows * columns];
            for (band, own) in left.chunks(ROWS * inner).enumerate() {
                let own = turned(own, inner);
                for panel in 0..panels.count() {
                    let mut sums = [[0.0; WIDTH]; ROWS];
                    add(&mut sums, &own, panels.panel(panel));
                    for (row, sums) in sums.iter().enumerate().take(rows - (band * ROWS).min(rows)) {
                        let (from, width) = (panel * WIDTH, WIDTH.min(columns - panel * WIDTH));
                        out[(band * ROWS + row) * columns + from..][..width].copy_from_slice(&sums[..width]);
                    }
                }
            }
            out
        };
        let found = roofline_isa::at_every_level(product);
        assert!(found.iter().all(|own| *own == found[0]));
        for (at, found) in found[0].iter().enumerate() {
            let (row, column) = (at / columns, at % columns);
            let want: f32 = (0..inner).map(|t| left[row * inner + t] * right[t * columns + column]).sum();
            assert!((found - want).abs() < 1e-4, "{row} {column}: {found} {want}");
        }
    }

    #[test]
    fn nothing_has_no_panels() {
        let panels = Panels::<4>::of(&[], 7);
        assert_eq!((panels.count(), panels.lines), (0, 0));
    }
}
