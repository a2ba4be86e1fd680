//! Matrices that are read row by row: as they lie in a file, as a part of what lies there, or in another order.
//!
//! What a layout writes is rarely what a source holds: experts lie in stacks or apart, transposed or not, halves of
//! heads are neighbours or not. Each of these is a way of reading, so that no second copy is ever made.

mod in_memory;
mod plain;
mod rearranged;
mod scaled;

pub use in_memory::InMemory;
pub use plain::Plain;
pub use rearranged::{Added, Ordered, Transposed};
pub use scaled::Factors;
pub(crate) use scaled::Scaled;

use std::{ops::Range, sync::Arc};

use crate::{
    Result,
    coding::Matrix,
    kernel_form::{CodesMut, KernelForm, gather, has_none},
};

/// Room that reading needs, kept between calls.
#[derive(Default)]
pub struct Spare {
    /// Bytes as stored.
    pub bytes: Vec<u8>,
    /// Rows in the source's order.
    pub rows: Vec<f32>,
}

/// A matrix whose rows can be read as numbers.
pub trait Rows: Send + Sync {
    /// Its shape.
    fn matrix(&self) -> Matrix;

    /// Reads these rows.
    fn read(&self, rows: Range<usize>, spare: &mut Spare, out: &mut [f32]) -> Result<()>;

    /// Bytes it takes where it is stored.
    fn stored(&self) -> u64;

    /// How many rows are decoded together, so that reading fewer costs as much.
    fn unit(&self) -> usize {
        1
    }

    /// How it lies in memory for kernels; nothing where no layout of theirs holds exactly what is stored.
    fn kernel_form(&self) -> Option<KernelForm> {
        None
    }

    /// Reads these rows, whole [units](Self::unit) best, in the form that there is. There is room for just them.
    fn read_codes(&self, _rows: Range<usize>, _into: CodesMut<'_>) -> Result<()> {
        Err(has_none())
    }

    /// What the form has once for all rows: the scale of NVFP4.
    fn tensor_part(&self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    /// The same as `parts` matrices one below the other, each of them transposed, where they lie that way or can be read
    /// so: what a checkpoint holds for `x W` as it is for `W x`.
    fn turned(&self, _parts: usize) -> Option<Box<dyn Rows + '_>> {
        None
    }
}

/// What only points to a matrix is one.
macro_rules! rows_behind {
    ($pointer:ty) => {
        impl<R: Rows + ?Sized> Rows for $pointer {
            fn matrix(&self) -> Matrix {
                (**self).matrix()
            }

            fn read(&self, rows: Range<usize>, spare: &mut Spare, out: &mut [f32]) -> Result<()> {
                (**self).read(rows, spare, out)
            }

            fn stored(&self) -> u64 {
                (**self).stored()
            }

            fn unit(&self) -> usize {
                (**self).unit()
            }

            fn kernel_form(&self) -> Option<KernelForm> {
                (**self).kernel_form()
            }

            fn read_codes(&self, rows: Range<usize>, into: CodesMut<'_>) -> Result<()> {
                (**self).read_codes(rows, into)
            }

            fn tensor_part(&self) -> Result<Vec<u8>> {
                (**self).tensor_part()
            }

            fn turned(&self, parts: usize) -> Option<Box<dyn Rows + '_>> {
                (**self).turned(parts)
            }
        }
    };
}

rows_behind!(&R);
rows_behind!(Box<R>);
rows_behind!(Arc<R>);

/// Matrices of equally many columns, one below the other.
pub struct Stacked<'a> {
    all: Vec<Box<dyn Rows + 'a>>,
    /// Where each ends.
    ends: Vec<usize>,
}

impl<'a> Stacked<'a> {
    /// All of them as one; of one, itself.
    pub fn of(mut all: Vec<Box<dyn Rows + 'a>>) -> Box<dyn Rows + 'a> {
        if all.len() == 1 {
            return all.remove(0);
        }
        let mut end = 0;
        let ends = all.iter().map(|one| {
            end += one.matrix().rows;
            end
        });
        let ends = ends.collect();
        Box::new(Self { all, ends })
    }

    /// Calls `each` with every matrix that these rows lie in, which of its rows they are, and where among those asked
    /// for.
    fn pieces(
        &self,
        rows: &Range<usize>,
        mut each: impl FnMut(&dyn Rows, Range<usize>, Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let mut from = rows.start;
        while from < rows.end {
            let source = self.ends.partition_point(|end| *end <= from);
            let start = source.checked_sub(1).map_or(0, |before| self.ends[before]);
            let until = rows.end.min(self.ends[source]);
            each(&self.all[source], from - start..until - start, from - rows.start..until - rows.start)?;
            from = until;
        }
        Ok(())
    }
}

impl Rows for Stacked<'_> {
    fn matrix(&self) -> Matrix {
        let columns = self.all.first().map_or(0, |one| one.matrix().columns);
        Matrix { rows: self.ends.last().copied().unwrap_or(0), columns }
    }

    fn read(&self, rows: Range<usize>, spare: &mut Spare, out: &mut [f32]) -> Result<()> {
        let columns = self.matrix().columns;
        self.pieces(&rows, |source, from, at| source.read(from, spare, &mut out[at.start * columns..at.end * columns]))
    }

    fn stored(&self) -> u64 {
        self.all.iter().map(Rows::stored).sum()
    }

    fn unit(&self) -> usize {
        self.all.first().map_or(1, Rows::unit)
    }

    /// Where all are alike. What there is once for each of them could differ.
    fn kernel_form(&self) -> Option<KernelForm> {
        let first = self.all.first()?.kernel_form()?.with_rows(self.matrix().rows)?;
        let forms = || self.all.iter().map(|one| one.kernel_form()?.with_rows(first.matrix.rows));
        (first.tensor == 0 && forms().all(|form| form == Some(first))).then_some(first)
    }

    fn read_codes(&self, rows: Range<usize>, mut into: CodesMut<'_>) -> Result<()> {
        self.pieces(&rows, |source, from, at| source.read_codes(from, into.part(at)))
    }

    fn turned(&self, parts: usize) -> Option<Box<dyn Rows + '_>> {
        let all = self.all.iter().filter(|_| self.all.len() == parts).map(|one| one.turned(1));
        Some(Stacked::of(all.collect::<Option<Vec<_>>>().filter(|all| !all.is_empty())?))
    }
}

/// Some neighbouring rows of a matrix: one expert of a stack.
pub struct Band<R> {
    rows: R,
    first: usize,
    count: usize,
}

impl<R: Rows> Band<R> {
    /// `count` rows from `first` on, which the matrix has.
    pub fn new(rows: R, first: usize, count: usize) -> Self {
        Self { rows, first, count }
    }
}

impl<R: Rows> Rows for Band<R> {
    fn matrix(&self) -> Matrix {
        Matrix { rows: self.count, ..self.rows.matrix() }
    }

    fn read(&self, rows: Range<usize>, spare: &mut Spare, out: &mut [f32]) -> Result<()> {
        self.rows.read(self.first + rows.start..self.first + rows.end, spare, out)
    }

    fn stored(&self) -> u64 {
        let all = self.rows.matrix().rows.max(1) as u128;
        (u128::from(self.rows.stored()) * self.count as u128 / all) as u64
    }

    fn unit(&self) -> usize {
        self.rows.unit()
    }

    fn kernel_form(&self) -> Option<KernelForm> {
        self.rows.kernel_form()?.with_rows(self.count)
    }

    fn read_codes(&self, rows: Range<usize>, into: CodesMut<'_>) -> Result<()> {
        self.rows.read_codes(self.first + rows.start..self.first + rows.end, into)
    }

    fn tensor_part(&self) -> Result<Vec<u8>> {
        self.rows.tensor_part()
    }
}

/// Which order the rows of a head come in. Rotary embeddings rotate pairs of rows: transformers has the two of a pair half a
/// head apart, llama.cpp beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// From halves to neighbours: row `2i` comes from row `i` of the head, row `2i + 1` from row `head / 2 + i`.
    Joined,
    /// From neighbours to halves.
    Parted,
}

impl Pairs {
    /// The row that comes at `row`, of heads of so many.
    pub(crate) fn source(self, head: usize, row: usize) -> usize {
        let (first, within) = (row / head * head, row % head);
        match self {
            Self::Joined => first + within % 2 * (head / 2) + within / 2,
            Self::Parted => first + within % (head / 2) * 2 + within / (head / 2),
        }
    }
}

/// The rows of each head in another order.
pub struct Heads<R> {
    rows: R,
    head: usize,
    pairs: Pairs,
}

impl<R: Rows> Heads<R> {
    /// `head` rows are a head; it is even, and divides the rows.
    pub fn new(rows: R, head: usize, pairs: Pairs) -> Self {
        Self { rows, head, pairs }
    }

    /// Where a row comes from.
    fn source(&self, row: usize) -> usize {
        self.pairs.source(self.head, row)
    }
}

impl<R: Rows> Rows for Heads<R> {
    fn matrix(&self) -> Matrix {
        self.rows.matrix()
    }

    fn read(&self, rows: Range<usize>, spare: &mut Spare, out: &mut [f32]) -> Result<()> {
        let (head, columns) = (self.head, self.rows.matrix().columns);
        // Whole heads are read, whatever is asked for.
        let whole = rows.start / head * head..rows.end.next_multiple_of(head).min(self.rows.matrix().rows);
        let mut plain = std::mem::take(&mut spare.rows);
        let mut inner = Spare { bytes: std::mem::take(&mut spare.bytes), rows: Vec::new() };
        plain.resize(whole.len() * columns, 0.0);
        let done = self.rows.read(whole.clone(), &mut inner, &mut plain);
        for (at, row) in out.chunks_exact_mut(columns.max(1)).enumerate() {
            let from = self.source(rows.start + at) - whole.start;
            row.copy_from_slice(&plain[from * columns..(from + 1) * columns]);
        }
        (spare.bytes, spare.rows) = (inner.bytes, plain);
        done
    }

    fn stored(&self) -> u64 {
        self.rows.stored()
    }

    fn unit(&self) -> usize {
        let (head, unit) = (self.head, self.rows.unit());
        if head.is_multiple_of(unit) { head } else { head * unit }
    }

    fn kernel_form(&self) -> Option<KernelForm> {
        self.rows.kernel_form()
    }

    fn read_codes(&self, rows: Range<usize>, into: CodesMut<'_>) -> Result<()> {
        gather(&self.rows, &rows.map(|row| self.source(row)).collect::<Vec<_>>(), into)
    }

    fn tensor_part(&self) -> Result<Vec<u8>> {
        self.rows.tensor_part()
    }
}

#[cfg(test)]
mod tests;
