//! Matrices in another order, transposed, or with a number added.

use std::ops::Range;

use super::{Rows, Spare};
use crate::{
    Result,
    coding::Matrix,
    kernel_form::{CodesMut, KernelForm, gather},
};

/// A matrix with the same number added everywhere.
pub struct Added<R> {
    rows: R,
    number: f32,
}

impl<R: Rows> Added<R> {
    /// `number` is added.
    pub fn new(rows: R, number: f32) -> Self {
        Self { rows, number }
    }
}

impl<R: Rows> Rows for Added<R> {
    fn matrix(&self) -> Matrix {
        self.rows.matrix()
    }

    fn read(&self, rows: Range<usize>, spare: &mut Spare, out: &mut [f32]) -> Result<()> {
        self.rows.read(rows, spare, out)?;
        for x in out {
            *x += self.number;
        }
        Ok(())
    }

    fn stored(&self) -> u64 {
        self.rows.stored()
    }

    fn unit(&self) -> usize {
        self.rows.unit()
    }
}

/// Blocks of rows in another order; those that are not named are left out.
pub struct Ordered<R> {
    rows: R,
    block: usize,
    order: Vec<usize>,
}

impl<R: Rows> Ordered<R> {
    /// Block `i` is block `order[i]` of `rows`, each of `block` rows. All of them lie inside.
    pub fn new(rows: R, block: usize, order: Vec<usize>) -> Self {
        debug_assert!(order.iter().all(|at| (at + 1) * block <= rows.matrix().rows), "a block lies outside");
        Self { rows, block, order }
    }
}

impl<R: Rows> Rows for Ordered<R> {
    fn matrix(&self) -> Matrix {
        Matrix { rows: self.order.len() * self.block, columns: self.rows.matrix().columns }
    }

    fn read(&self, rows: Range<usize>, spare: &mut Spare, out: &mut [f32]) -> Result<()> {
        let (block, columns) = (self.block, self.rows.matrix().columns);
        let mut from = rows.start;
        while from < rows.end {
            // Blocks that follow each other are read at once.
            let (first, within) = (from / block, from % block);
            let start = self.order[first] * block + within;
            let mut until = rows.end.min((first + 1) * block);
            while until < rows.end && self.order[until / block] * block == start + until - from {
                until = rows.end.min(until + block);
            }
            let out = &mut out[(from - rows.start) * columns..(until - rows.start) * columns];
            self.rows.read(start..start + until - from, spare, out)?;
            from = until;
        }
        Ok(())
    }

    fn stored(&self) -> u64 {
        let (Matrix { rows: all, .. }, Matrix { rows, .. }) = (self.rows.matrix(), self.matrix());
        if all == rows {
            self.rows.stored()
        } else {
            (self.rows.stored() as f64 * rows as f64 / all.max(1) as f64) as u64
        }
    }

    fn unit(&self) -> usize {
        let unit = self.rows.unit();
        if unit == 1 { 1 } else { self.block.max(unit) }
    }

    fn kernel_form(&self) -> Option<KernelForm> {
        self.rows.kernel_form()?.with_rows(self.matrix().rows)
    }

    fn read_codes(&self, rows: Range<usize>, into: CodesMut<'_>) -> Result<()> {
        let source = |row: usize| self.order[row / self.block] * self.block + row % self.block;
        gather(&self.rows, &rows.map(source).collect::<Vec<_>>(), into)
    }

    fn tensor_part(&self) -> Result<Vec<u8>> {
        self.rows.tensor_part()
    }
}

/// Rows as columns.
pub struct Transposed<R>(pub R);

/// Rows that are made together: each time, the whole matrix is read once.
const TOGETHER: usize = 256;
/// Numbers of the source that are held at once, where a row is not longer.
const HELD: usize = 1 << 20;

impl<R: Rows> Rows for Transposed<R> {
    fn matrix(&self) -> Matrix {
        let Matrix { rows, columns } = self.0.matrix();
        Matrix { rows: columns, columns: rows }
    }

    fn read(&self, rows: Range<usize>, spare: &mut Spare, out: &mut [f32]) -> Result<()> {
        let Matrix { rows: high, columns: wide } = self.0.matrix();
        let mut lines = Vec::new();
        // Whole units of the source, which would be decoded twice otherwise.
        let unit = self.0.unit();
        let step = (HELD / wide.max(1) / unit).max(1) * unit;
        for from in (0..high).step_by(step) {
            let until = high.min(from + step);
            lines.resize((until - from) * wide, 0.0);
            self.0.read(from..until, spare, &mut lines)?;
            for (at, line) in lines.chunks_exact(wide).enumerate() {
                for (row, x) in line[rows.clone()].iter().enumerate() {
                    out[row * high + from + at] = *x;
                }
            }
        }
        Ok(())
    }

    fn stored(&self) -> u64 {
        self.0.stored()
    }

    fn unit(&self) -> usize {
        TOGETHER.min(self.matrix().rows.max(1))
    }

    fn turned(&self, parts: usize) -> Option<Box<dyn Rows + '_>> {
        if parts == 1 { Some(Box::new(&self.0)) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Stacked;

    /// The number at row `r` and column `c` is `10 r + c`.
    struct Counted(Matrix);

    impl Rows for Counted {
        fn matrix(&self) -> Matrix {
            self.0
        }

        fn read(&self, rows: Range<usize>, _: &mut Spare, out: &mut [f32]) -> Result<()> {
            for (row, out) in rows.zip(out.chunks_exact_mut(self.0.columns)) {
                out.iter_mut().enumerate().for_each(|(column, x)| *x = (10 * row + column) as f32);
            }
            Ok(())
        }

        fn stored(&self) -> u64 {
            0
        }
    }

    fn all(rows: &dyn Rows, range: Range<usize>) -> Vec<f32> {
        let mut out = vec![0.0; range.len() * rows.matrix().columns];
        rows.read(range, &mut Spare::default(), &mut out).unwrap();
        out
    }

    #[test]
    fn orders_sums_and_turns() {
        let counted = || Counted(Matrix { rows: 6, columns: 2 });
        let ordered = Ordered::new(counted(), 2, vec![2, 0, 1]);
        assert_eq!(all(&ordered, 0..6), [40., 41., 50., 51., 0., 1., 10., 11., 20., 21., 30., 31.]);
        // A part, from within a block into the next.
        assert_eq!(all(&ordered, 1..4), [50., 51., 0., 1., 10., 11.]);
        assert_eq!(all(&Ordered::new(counted(), 1, vec![5, 3]), 0..2), [50., 51., 30., 31.]);
        assert_eq!(all(&Added::new(counted(), 1.0), 1..2), [11., 12.]);
        let transposed = Transposed(counted());
        assert_eq!(transposed.matrix(), Matrix { rows: 2, columns: 6 });
        assert_eq!(all(&transposed, 1..2), [1., 11., 21., 31., 41., 51.]);
        // Heights may differ.
        let stacked = Stacked::of(vec![Box::new(counted()), Box::new(Counted(Matrix { rows: 1, columns: 2 }))]);
        assert_eq!(stacked.matrix().rows, 7);
        assert_eq!(all(&*stacked, 5..7), [50., 51., 0., 1.]);
    }
}
