//! Codes and their scales, read row by row.

use std::ops::Range;

use super::Located;
use crate::{
    Error, Result,
    checkpoint::Shard,
    coding::{Coding, Matrix, Part, Placing},
    job::part_bytes,
    kernel_form::{CodesMut, KernelForm, check},
    rows::{Rows, Spare},
    safetensors::Entry,
};

/// The stored tensors that `coding` would have written, if they are there with the right types and shapes.
pub(super) fn matching<'a>(
    coding: &dyn Coding,
    matrix: Matrix,
    find: impl Fn(&str) -> Option<Located<'a>>,
) -> Option<Vec<(Part, Located<'a>)>> {
    let parts = coding.parts(matrix).ok()?;
    let found = parts.into_iter().map(|part| {
        let (shard, entry) = find(part.name)?;
        (entry.dtype == part.dtype && entry.shape == part.shape).then_some((part, (shard, entry)))
    });
    found.collect()
}

/// Weights that are decoded together where they lie transposed.
const TOGETHER: usize = 1 << 20;

/// Codes and their scales, each in a tensor of its own.
pub(super) struct Codes<'a> {
    pub(super) matrix: Matrix,
    pub(super) coding: Box<dyn Coding>,
    pub(super) parts: Vec<(Part, Located<'a>)>,
}

impl Codes<'_> {
    /// The whole units of rows that these lie in, and the bytes of their parts.
    fn units(&self, rows: &Range<usize>) -> Result<(Range<usize>, Vec<Vec<u8>>)> {
        let unit = self.coding.unit();
        let whole = rows.start / unit * unit..rows.end.next_multiple_of(unit).min(self.matrix.rows);
        let parts =
            self.parts.iter().map(|(part, (shard, entry))| part_of(part, shard, entry, &whole, self.matrix.rows));
        let parts = parts.collect::<Result<_>>()?;
        Ok((whole, parts))
    }
}

impl Rows for Codes<'_> {
    fn matrix(&self) -> Matrix {
        self.matrix
    }

    fn read(&self, rows: Range<usize>, spare: &mut Spare, out: &mut [f32]) -> Result<()> {
        let columns = self.matrix.columns;
        let (whole, bytes) = self.units(&rows)?;
        let slices: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
        if whole == rows {
            self.coding.decode(columns, &slices, out);
        } else {
            spare.rows.resize(whole.len() * columns, 0.0);
            self.coding.decode(columns, &slices, &mut spare.rows);
            out.copy_from_slice(&spare.rows[(rows.start - whole.start) * columns..][..rows.len() * columns]);
        }
        Ok(())
    }

    fn stored(&self) -> u64 {
        self.parts.iter().map(|(_, (_, entry))| entry.bytes()).sum()
    }

    fn unit(&self) -> usize {
        let unit = self.coding.unit();
        // Each line of what lies transposed is a read of its own: the more rows it brings, the fewer there are.
        let transposed = self.parts.iter().any(|(part, _)| matches!(part.placing, Placing::Columns { .. }));
        if transposed { (TOGETHER / self.matrix.columns / unit).max(1) * unit } else { unit }
    }

    fn kernel_form(&self) -> Option<KernelForm> {
        self.coding.kernel_form(self.matrix)
    }

    fn read_codes(&self, rows: Range<usize>, mut into: CodesMut<'_>) -> Result<()> {
        let form = check(self.kernel_form(), &rows, &into)?;
        let (whole, bytes) = self.units(&rows)?;
        let slices: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
        let refuse = |reason| Error::Weight { name: self.parts[0].1.1.name.clone(), reason, hint: None };
        if whole == rows {
            return self.coding.arrange(self.matrix.columns, &slices, into).map_err(refuse);
        }
        let mut room = form.room(whole.len());
        self.coding.arrange(self.matrix.columns, &slices, room.all()).map_err(refuse)?;
        into.copy_from(&room.all().part(rows.start - whole.start..rows.end - whole.start));
        Ok(())
    }

    fn tensor_part(&self) -> Result<Vec<u8>> {
        let once = self.parts.iter().filter(|(part, _)| matches!(part.placing, Placing::Once { .. }));
        let once = once.map(|(part, (shard, entry))| part_of(part, shard, entry, &(0..0), self.matrix.rows));
        let once = once.collect::<Result<Vec<_>>>()?;
        Ok(self.coding.tensor_part(&once.iter().map(Vec::as_slice).collect::<Vec<_>>()))
    }
}

/// The bytes of a part that belong to these rows.
fn part_of(part: &Part, shard: &Shard, entry: &Entry, rows: &Range<usize>, all: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; part_bytes(part, rows.len())];
    match part.placing {
        Placing::Rows { rows: unit, bytes: size } => {
            shard.read(entry, (rows.start / unit * size) as u64, &mut bytes)?;
        }
        Placing::Flat { columns, run, bytes: size } => {
            shard.read(entry, (rows.start * columns / run * size) as u64, &mut bytes)?;
        }
        Placing::Columns { lines, rows: unit, bytes: size } => {
            let (run, all) = (rows.len().div_ceil(unit) * size, all.div_ceil(unit));
            for line in 0..lines {
                let from = ((line * all + rows.start / unit) * size) as u64;
                shard.read(entry, from, &mut bytes[line * run..(line + 1) * run])?;
            }
        }
        Placing::Once { .. } => shard.read(entry, 0, &mut bytes)?,
    }
    Ok(bytes)
}
