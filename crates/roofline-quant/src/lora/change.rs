//! What an adapter does to a weight.

use std::{collections::HashMap, ops::Range, sync::Arc};

use roofline_isa::widest;

use crate::{
    Result,
    checkpoint::Shard,
    coding::{Block, Coding, Matrix, Numbers},
    number,
    rows::{Rows, Spare},
    safetensors::Entry,
};

/// Changes by the name of the tensor, in the order in which they are made.
pub(crate) type Changes = HashMap<String, Vec<Change>>;

/// A change of a tensor.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Something is added.
    Add(Arc<Delta>),
    /// Its numbers are those of another.
    Replace(Arc<(Shard, Entry)>),
}

/// `factor * up * down`, of which the first has the rank as columns and the second as rows.
#[derive(Debug)]
pub(crate) struct Delta {
    pub(super) matrix: Matrix,
    pub(super) rank: usize,
    pub(super) factor: f32,
    pub(super) up: Vec<f32>,
    pub(super) down: Vec<f32>,
}

widest! {
    /// Adds `factor` times the sum of the lines of `down`, each times its number of `up`, to a part of a row. The lines
    /// are `columns` long and begin with that part.
    fn add_row(up: &[f32], down: &[f32], columns: usize, factor: f32, out: &mut [f32]) {
        // So many sums stay in registers.
        const LANES: usize = 64;
        for (at, out) in out.chunks_mut(LANES).enumerate() {
            let mut sums = [0.0f32; LANES];
            for (line, up) in up.iter().enumerate() {
                let down = &down[line * columns + at * LANES..][..out.len()];
                for (sum, down) in sums.iter_mut().zip(down) {
                    *sum += up * down;
                }
            }
            for (out, sum) in out.iter_mut().zip(&sums) {
                *out += sum * factor;
            }
        }
    }
}

impl Delta {
    pub(super) fn shape(&self) -> [usize; 2] {
        [self.matrix.rows, self.matrix.columns]
    }

    /// Adds its numbers from number `first` on.
    fn add(&self, first: usize, out: &mut [f32]) {
        let columns = self.matrix.columns;
        let (mut at, mut left) = (first, out);
        while !left.is_empty() {
            let (row, column) = (at / columns, at % columns);
            let (here, rest) = left.split_at_mut(left.len().min(columns - column));
            let up = &self.up[row * self.rank..][..self.rank];
            add_row(up, &self.down[column..], columns, self.factor, here);
            at += here.len();
            left = rest;
        }
    }
}

impl Change {
    /// Changes the numbers of a tensor from number `first` on.
    fn apply(&self, first: usize, values: &mut [f32]) -> Result<()> {
        match self {
            Self::Add(delta) => delta.add(first, values),
            Self::Replace(other) => {
                let (shard, entry) = &**other;
                let size = entry.dtype.bytes();
                let mut bytes = vec![0; values.len() * size];
                shard.read(entry, (first * size) as u64, &mut bytes)?;
                number::read(entry.dtype, &bytes, values);
            }
        }
        Ok(())
    }

    /// Changes stored numbers in place; they are whole, and rounded to their type again.
    pub(crate) fn apply_to_bytes(all: &[Self], entry: &Entry, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let size = entry.dtype.bytes();
        let mut values = vec![0.0; bytes.len() / size];
        number::read(entry.dtype, bytes, &mut values);
        for change in all {
            change.apply(offset as usize / size, &mut values)?;
        }
        let mut rounded = vec![0.0; values.len()];
        let block = Block { values: &values, columns: values.len(), peak: 0.0, importance: None, chosen: None };
        Numbers(entry.dtype).encode(block, &mut [bytes], &mut rounded);
        Ok(())
    }
}

/// A matrix in codes, changed after it is decoded.
pub(crate) struct Merged<'a> {
    /// What it decodes to.
    pub(crate) rows: Box<dyn Rows + 'a>,
    /// What is done to it.
    pub(crate) changes: &'a [Change],
}

impl Rows for Merged<'_> {
    fn matrix(&self) -> Matrix {
        self.rows.matrix()
    }

    fn read(&self, rows: Range<usize>, spare: &mut Spare, out: &mut [f32]) -> Result<()> {
        let first = rows.start * self.rows.matrix().columns;
        self.rows.read(rows, spare, out)?;
        self.changes.iter().try_for_each(|change| change.apply(first, out))
    }

    fn stored(&self) -> u64 {
        self.rows.stored()
    }

    fn unit(&self) -> usize {
        self.rows.unit()
    }
}
