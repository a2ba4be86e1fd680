//! Plain numbers within a tensor.

use std::ops::Range;

use super::{Rows, Spare, Stacked};
use crate::{
    Error, Result,
    checkpoint::Shard,
    coding::Matrix,
    kernel_form::{CodesMut, KernelForm, check},
    number,
    safetensors::Entry,
};

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

    /// As [`Rows::turned`]: numbers lie where they lay.
    pub(crate) fn turned(self, parts: usize) -> Option<Box<dyn Rows + 'a>> {
        let Matrix { rows, columns } = self.matrix;
        let each = rows.checked_div(parts).filter(|each| *each > 0 && *each <= MOST_COLUMNS && each * parts == rows)?;
        let matrix = Matrix { rows: columns, columns: each };
        let turned = |part: usize| -> Box<dyn Rows + 'a> {
            let first = self.first + part * each * self.down;
            Box::new(Self { matrix, first, down: self.across, across: self.down, ..self })
        };
        Some(Stacked::of((0..parts).map(turned).collect()))
    }

    /// The bytes of these rows, row after row.
    fn bytes(&self, rows: &Range<usize>, out: &mut [u8]) -> Result<()> {
        let Matrix { columns, .. } = self.matrix;
        let size = self.entry.dtype.bytes();
        if rows.is_empty() || columns == 0 {
            return Ok(());
        }
        let from = self.first + rows.start * self.down;
        let read = |at: usize, bytes: &mut [u8]| self.shard.read(self.entry, (at * size) as u64, bytes);
        if self.across == 1 && self.down == columns {
            return read(from, out);
        }
        let lines = out.chunks_exact_mut(columns * size).enumerate();
        if self.across == 1 {
            for (at, out) in lines {
                read(from + at * self.down, out)?;
            }
            return Ok(());
        }
        // Rows with gaps in them.
        if self.across < self.down {
            let mut line = vec![0; ((columns - 1) * self.across + 1) * size];
            for (at, out) in lines {
                read(from + at * self.down, &mut line)?;
                spread(size, &line, self.across, out, 0, 1);
            }
            return Ok(());
        }
        // Rows lie as columns: of each line of the tensor, what belongs to these rows.
        let mut line = vec![0; ((rows.len() - 1) * self.down + 1) * size];
        for column in 0..columns {
            read(from + column * self.across, &mut line)?;
            spread(size, &line, self.down, out, column, columns);
        }
        Ok(())
    }
}

/// Every `by`th number of `line`, from the first on, goes to every `step`th of `out`, from number `first` on.
fn spread(size: usize, line: &[u8], by: usize, out: &mut [u8], first: usize, step: usize) {
    fn of<const N: usize>(line: &[u8], by: usize, out: &mut [u8], first: usize, step: usize) {
        let numbers = line.as_chunks::<N>().0.iter().step_by(by);
        for (to, from) in out.as_chunks_mut::<N>().0.iter_mut().skip(first).step_by(step).zip(numbers) {
            *to = *from;
        }
    }
    match size {
        2 => of::<2>(line, by, out, first, step),
        4 => of::<4>(line, by, out, first, step),
        _ => of::<8>(line, by, out, first, step),
    }
}

impl Rows for Plain<'_> {
    fn matrix(&self) -> Matrix {
        self.matrix
    }

    fn read(&self, rows: Range<usize>, spare: &mut Spare, out: &mut [f32]) -> Result<()> {
        let dtype = self.entry.dtype;
        spare.bytes.resize(rows.len() * self.matrix.columns * dtype.bytes(), 0);
        self.bytes(&rows, &mut spare.bytes)?;
        number::read(dtype, &spare.bytes, out);
        Ok(())
    }

    fn stored(&self) -> u64 {
        (self.matrix.rows * self.matrix.columns * self.entry.dtype.bytes()) as u64
    }

    fn unit(&self) -> usize {
        if self.across == 1 || self.across < self.down { 1 } else { LINE }
    }

    fn kernel_form(&self) -> Option<KernelForm> {
        KernelForm::plain(self.entry.dtype, self.matrix)
    }

    fn read_codes(&self, rows: Range<usize>, into: CodesMut<'_>) -> Result<()> {
        check(self.kernel_form(), &rows, &into)?;
        self.bytes(&rows, into.codes)
    }

    fn turned(&self, parts: usize) -> Option<Box<dyn Rows + '_>> {
        (*self).turned(parts)
    }
}
