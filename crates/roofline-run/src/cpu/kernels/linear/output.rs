//! Where results go: a matrix that threads write disjoint parts of.

#![allow(unsafe_code)]

use roofline_isa::number::{to_bf16, to_fp16};

use super::wide::Wide;

/// The output matrix. Threads share it, each with columns or rows of its own.
#[derive(Clone, Copy)]
pub(super) struct Output {
    start: *mut u8,
    length: usize,
    columns: usize,
    wide: Wide,
}

// SAFETY: every method that writes asks its caller for elements that no other thread touches.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

impl Output {
    pub(super) fn new(bytes: &mut [u8], columns: usize, wide: Wide) -> Self {
        Self { start: bytes.as_mut_ptr(), length: bytes.len(), columns, wide }
    }

    /// The same without its first `rows` rows.
    pub(super) fn after(self, rows: usize) -> Self {
        let bytes = rows * self.columns * self.wide.bytes();
        Self { start: self.start.wrapping_add(bytes), length: self.length - bytes, ..self }
    }

    /// The same without its first `columns` columns: rows are as far apart as before.
    pub(super) fn beside(self, columns: usize) -> Self {
        let bytes = columns * self.wide.bytes();
        Self { start: self.start.wrapping_add(bytes), length: self.length - bytes, ..self }
    }

    /// Writes one element.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes that element meanwhile.
    #[inline(always)]
    pub(super) unsafe fn put(&self, row: usize, column: usize, value: f32) {
        let at = (row * self.columns + column) * self.wide.bytes();
        debug_assert!(column < self.columns && at + self.wide.bytes() <= self.length);
        // SAFETY: within the matrix, and ours by this function's contract.
        unsafe {
            let at = self.start.add(at);
            match self.wide {
                Wide::Fp32 => at.cast::<[u8; 4]>().write(value.to_le_bytes()),
                Wide::Fp16 => at.cast::<[u8; 2]>().write(to_fp16(value).to_le_bytes()),
                Wide::Bf16 => at.cast::<[u8; 2]>().write(to_bf16(value).to_le_bytes()),
            }
        }
    }

    /// Writes part of a row.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes those elements meanwhile.
    #[inline(always)]
    pub(super) unsafe fn put_row(&self, row: usize, column: usize, values: &[f32]) {
        let at = (row * self.columns + column) * self.wide.bytes();
        let length = values.len() * self.wide.bytes();
        debug_assert!(column + values.len() <= self.columns && at + length <= self.length);
        // SAFETY: within the matrix, and ours by this function's contract.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.start.add(at), length) };
        self.wide.encode(values, bytes);
    }
}
