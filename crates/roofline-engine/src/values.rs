//! What steps hand to each other, in memory: room for as many rows as a pass may have.

use roofline_core::Format;
use roofline_run::cpu::{Buffer, Tensor, kernels::elementwise::Target};

use crate::{Error, Result};

/// Rows of numbers.
pub(crate) struct Slot {
    pub(crate) format: Format,
    pub(crate) width: usize,
    bytes: Buffer,
}

impl Slot {
    pub(crate) fn new(format: Format, rows: usize, width: usize) -> Result<Self> {
        let bytes = rows * width * format.nominal_bits() as usize / 8;
        let bytes = Buffer::zeroed(bytes).ok_or_else(|| Error::memory(bytes as u64, "a pass"))?;
        Ok(Self { format, width, bytes })
    }

    /// From now on rows of that width, of which there may be as many more as they are narrower.
    pub(crate) fn widen_to(&mut self, width: usize) {
        self.width = width;
    }

    /// Bytes of a row.
    pub(crate) fn row(&self) -> usize {
        self.width * self.format.nominal_bits() as usize / 8
    }

    /// The first rows.
    pub(crate) fn tensor(&self, rows: usize) -> Tensor<'_> {
        Tensor::plain(self.format, rows, self.width, &self.bytes[..rows * self.row()])
    }

    /// Some of the rows.
    pub(crate) fn part(&self, rows: std::ops::Range<usize>) -> Tensor<'_> {
        let row = self.row();
        Tensor::plain(self.format, rows.len(), self.width, &self.bytes[rows.start * row..rows.end * row])
    }

    /// The first rows, to be written.
    pub(crate) fn target(&mut self, rows: usize) -> Target<'_> {
        Target::plain(self.format, self.bytes_mut(rows))
    }

    /// The bytes of the first rows, to be written.
    pub(crate) fn bytes_mut(&mut self, rows: usize) -> &mut [u8] {
        let bytes = rows * self.row();
        &mut self.bytes[..bytes]
    }

    /// The bytes of some rows, to be written.
    pub(crate) fn part_mut(&mut self, rows: std::ops::Range<usize>) -> &mut [u8] {
        let row = self.row();
        &mut self.bytes[rows.start * row..rows.end * row]
    }

    /// The numbers of the first rows, of FP32.
    pub(crate) fn floats(&self, rows: usize) -> Vec<f32> {
        self.bytes[..rows * self.row()].as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }
}
