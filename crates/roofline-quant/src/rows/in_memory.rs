//! A matrix that a method made, or that stands in for one that lies in a file.

use std::ops::Range;

use super::{Rows, Spare};
use crate::{
    Dtype, Result,
    coding::Matrix,
    kernel_form::{CodesMut, KernelForm},
};

/// Numbers in memory, row after row.
#[derive(Clone, Debug, PartialEq)]
pub struct InMemory {
    matrix: Matrix,
    numbers: Vec<f32>,
}

impl InMemory {
    /// A matrix of these numbers.
    ///
    /// # Panics
    ///
    /// Where there are not as many as rows and columns say.
    pub fn new(matrix: Matrix, numbers: Vec<f32>) -> Self {
        assert_eq!(numbers.len(), matrix.rows * matrix.columns, "a matrix is full");
        Self { matrix, numbers }
    }

    /// All of `rows`, read.
    pub fn of(rows: &dyn Rows) -> Result<Self> {
        let matrix = rows.matrix();
        let mut numbers = vec![0.0; matrix.rows * matrix.columns];
        rows.read(0..matrix.rows, &mut Spare::default(), &mut numbers)?;
        Ok(Self { matrix, numbers })
    }

    /// Its numbers.
    pub fn numbers(&self) -> &[f32] {
        &self.numbers
    }

    fn part(&self, rows: &Range<usize>) -> &[f32] {
        &self.numbers[rows.start * self.matrix.columns..rows.end * self.matrix.columns]
    }
}

impl Rows for InMemory {
    fn matrix(&self) -> Matrix {
        self.matrix
    }

    fn read(&self, rows: Range<usize>, _spare: &mut Spare, out: &mut [f32]) -> Result<()> {
        out.copy_from_slice(self.part(&rows));
        Ok(())
    }

    fn stored(&self) -> u64 {
        4 * self.numbers.len() as u64
    }

    fn kernel_form(&self) -> Option<KernelForm> {
        KernelForm::plain(Dtype::F32, self.matrix)
    }

    fn read_codes(&self, rows: Range<usize>, into: CodesMut<'_>) -> Result<()> {
        for (bytes, number) in into.codes.as_chunks_mut::<4>().0.iter_mut().zip(self.part(&rows)) {
            *bytes = number.to_le_bytes();
        }
        Ok(())
    }
}
