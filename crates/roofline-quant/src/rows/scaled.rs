//! A matrix whose rows and columns are multiplied by factors.

use std::ops::Range;

use super::{Rows, Spare};
use crate::{Result, coding::Matrix};

/// What a matrix is multiplied by. Nothing stands for ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Factors {
    /// One for each input channel.
    pub columns: Option<Vec<f32>>,
    /// One for each output channel.
    pub rows: Option<Vec<f32>>,
    /// What a number stands for more than it says: one in families whose norms multiply by `1 + w`.
    pub offset: f32,
}

/// A matrix times its factors.
pub(crate) struct Scaled<R> {
    pub(crate) inner: R,
    pub(crate) factors: Factors,
}

impl<R: Rows> Rows for Scaled<R> {
    fn matrix(&self) -> Matrix {
        self.inner.matrix()
    }

    fn read(&self, rows: Range<usize>, spare: &mut Spare, out: &mut [f32]) -> Result<()> {
        self.inner.read(rows.clone(), spare, out)?;
        let Factors { columns, rows: outputs, offset } = &self.factors;
        for (row, numbers) in rows.zip(out.chunks_exact_mut(self.matrix().columns.max(1))) {
            let own = outputs.as_ref().map_or(1.0, |outputs| outputs[row]);
            match columns {
                Some(columns) => numbers
                    .iter_mut()
                    .zip(columns)
                    .for_each(|(number, factor)| *number = (*number + offset) * factor * own - offset),
                None => numbers.iter_mut().for_each(|number| *number = (*number + offset) * own - offset),
            }
        }
        Ok(())
    }

    fn stored(&self) -> u64 {
        self.inner.stored()
    }

    fn unit(&self) -> usize {
        self.inner.unit()
    }
}
