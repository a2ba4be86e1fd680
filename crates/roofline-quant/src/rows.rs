//! Matrices that are read row by row: as they lie in a file, as a part of what lies there, or in another order.
//!
//! What a layout writes is rarely what a source holds: experts lie in stacks or apart, transposed or not, halves of
//! heads are neighbours or not. Each of these is a way of reading, so that no second copy is ever made.

mod rearranged;

pub use rearranged::{Added, Ordered, Transposed};

use std::ops::Range;

use crate::{Error, Result, checkpoint::Shard, coding::Matrix, number, safetensors::Entry};

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
}

impl<R: Rows + ?Sized> Rows for Box<R> {
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
}

/// The longest row: whole rows are held in memory.
const MOST_COLUMNS: usize = 1 << 24;
/// Rows that are read together where they lie as columns: each read brings as many numbers that are neighbours.
const LINE: usize = 64;

/// A matrix of plain numbers within a tensor: the number at row `r` and column `c` is `first + r down + c across` of it.
#[derive(Clone, Copy)]
pub struct Plain<'a> {
    shard: &'a Shard,
    entry: &'a Entry,
    matrix: Matrix,
    first: usize,
    down: usize,
    across: usize,
}

impl<'a> Plain<'a> {
    /// A tensor of one dimension is one row; of more than two, as many rows as all but the last give.
    pub fn new(shard: &'a Shard, entry: &'a Entry) -> Result<Self> {
        let columns = entry.shape.last().copied().unwrap_or(1);
        let rows = entry.elements() as usize / columns.max(1);
        Self::within(shard, entry, Matrix { rows, columns }, 0, columns, 1)
    }

    /// A matrix within a tensor, from its number `first` on, `down` numbers from row to row and `across` from column to
    /// column.
    pub fn within(
        shard: &'a Shard,
        entry: &'a Entry,
        matrix: Matrix,
        first: usize,
        down: usize,
        across: usize,
    ) -> Result<Self> {
        let refuse = |reason: String| Err(Error::Weight { name: entry.name.clone(), reason, hint: None });
        if !number::is_number(entry.dtype) {
            return refuse(format!("is stored as {}, which is not a floating-point number", entry.dtype));
        }
        let Matrix { rows, columns } = matrix;
        if columns > MOST_COLUMNS {
            return refuse(format!(
                "has rows of {columns} numbers, more than the {MOST_COLUMNS} that are held at once"
            ));
        }
        let span = |count: usize, step: usize| count.saturating_sub(1).checked_mul(step);
        let last = span(rows, down).zip(span(columns, across)).and_then(|(a, b)| a.checked_add(b)?.checked_add(first));
        if rows > 0 && columns > 0 && last.is_none_or(|last| last as u64 >= entry.elements()) {
            return refuse(format!("has the shape {:?}, too small for the matrix in it", entry.shape));
        }
        Ok(Self { shard, entry, matrix, first, down, across })
    }

    /// The same numbers, one to a row. Only of a matrix without gaps.
    pub(crate) fn upright(self) -> Self {
        let matrix = Matrix { rows: self.matrix.rows * self.matrix.columns, columns: 1 };
        Self { matrix, down: 1, across: 1, ..self }
    }

    /// `count` numbers that follow each other, from number `from` of the tensor on.
    fn numbers(&self, from: usize, count: usize, bytes: &mut Vec<u8>, out: &mut [f32]) -> Result<()> {
        let size = self.entry.dtype.bytes();
        bytes.resize(count * size, 0);
        self.shard.read(self.entry, (from * size) as u64, bytes)?;
        number::read(self.entry.dtype, bytes, out);
        Ok(())
    }
}

impl Rows for Plain<'_> {
    fn matrix(&self) -> Matrix {
        self.matrix
    }

    fn read(&self, rows: Range<usize>, spare: &mut Spare, out: &mut [f32]) -> Result<()> {
        let columns = self.matrix.columns;
        let from = self.first + rows.start * self.down;
        if self.across == 1 && self.down == columns {
            return self.numbers(from, rows.len() * columns, &mut spare.bytes, out);
        }
        if self.across == 1 {
            for (at, out) in out.chunks_exact_mut(columns.max(1)).enumerate() {
                self.numbers(from + at * self.down, columns, &mut spare.bytes, out)?;
            }
            return Ok(());
        }
        // Rows with gaps in them.
        if self.across < self.down {
            let span = columns.saturating_sub(1) * self.across + 1;
            spare.rows.resize(span, 0.0);
            for (at, out) in out.chunks_exact_mut(columns.max(1)).enumerate() {
                self.numbers(from + at * self.down, span, &mut spare.bytes, &mut spare.rows)?;
                out.iter_mut().zip(spare.rows.iter().step_by(self.across)).for_each(|(to, from)| *to = *from);
            }
            return Ok(());
        }
        // Rows lie as columns: of each line of the tensor, what belongs to these rows.
        let count = (rows.len() - 1) * self.down + 1;
        spare.rows.resize(count, 0.0);
        for column in 0..columns {
            self.numbers(from + column * self.across, count, &mut spare.bytes, &mut spare.rows)?;
            for (row, value) in spare.rows.iter().step_by(self.down).enumerate() {
                out[row * columns + column] = *value;
            }
        }
        Ok(())
    }

    fn stored(&self) -> u64 {
        (self.matrix.rows * self.matrix.columns * self.entry.dtype.bytes()) as u64
    }

    fn unit(&self) -> usize {
        if self.across == 1 || self.across < self.down { 1 } else { LINE }
    }
}

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
}

impl Rows for Stacked<'_> {
    fn matrix(&self) -> Matrix {
        let columns = self.all.first().map_or(0, |one| one.matrix().columns);
        Matrix { rows: self.ends.last().copied().unwrap_or(0), columns }
    }

    fn read(&self, rows: Range<usize>, spare: &mut Spare, out: &mut [f32]) -> Result<()> {
        let columns = self.matrix().columns;
        let mut from = rows.start;
        while from < rows.end {
            let source = self.ends.partition_point(|end| *end <= from);
            let start = source.checked_sub(1).map_or(0, |before| self.ends[before]);
            let until = rows.end.min(self.ends[source]);
            let out = &mut out[(from - rows.start) * columns..(until - rows.start) * columns];
            self.all[source].read(from - start..until - start, spare, out)?;
            from = until;
        }
        Ok(())
    }

    fn stored(&self) -> u64 {
        self.all.iter().map(Rows::stored).sum()
    }

    fn unit(&self) -> usize {
        self.all.first().map_or(1, Rows::unit)
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
            let at = rows.start + at - whole.start;
            let (first, within) = (at / head * head, at % head);
            let from = match self.pairs {
                Pairs::Joined => first + within % 2 * (head / 2) + within / 2,
                Pairs::Parted => first + within % (head / 2) * 2 + within / (head / 2),
            };
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
}

#[cfg(test)]
mod tests;
