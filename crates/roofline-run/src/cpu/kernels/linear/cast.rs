//! Weights decoded to memory before they are multiplied: what a framework without a kernel for the stored format does. It
//! reads the stored size, writes 16 bit and reads 16 bit again, so it is slower than weights stored in 16 bit.

#![allow(unsafe_code)]

use roofline_core::Format;

use roofline_isa::Isa;

use super::{
    Unsupported,
    gemm::pack::Pack,
    output::Output,
    thin::Thin,
    weights::{Rows, Stored},
    wide::Wide,
};
use crate::cpu::{pool::Pool, tensor::Tensor};

/// A planned product of weights that are cast to BF16 first.
pub(super) struct CastFirst {
    pack: Pack,
    /// The cast matrix.
    stored: Stored,
    thin: Thin,
    rows: usize,
}

impl CastFirst {
    pub(super) fn plan(isa: Isa, (m, n, k): (usize, usize, usize), wide: Wide) -> Result<Self, Unsupported> {
        let stored = Stored::new(Format::BF16, k)?;
        Ok(Self { pack: Pack::choose(isa), stored, thin: Thin::plan(isa, m, Some(wide), &stored)?, rows: n })
    }

    /// Bytes of the cast matrix.
    pub(super) fn bytes(&self) -> usize {
        self.rows * self.stored.row_bytes
    }

    /// Casts to `matrix`, and multiplies what is there.
    pub(super) fn run(&mut self, pool: &mut Pool, x: &Tensor<'_>, w: Rows<'_>, matrix: &mut [u8], y: Output) {
        assert_eq!(matrix.len(), self.bytes(), "the cast matrix is not what was planned for");
        let (pack, bytes) = (self.pack, self.stored.row_bytes);
        let start = matrix.as_mut_ptr() as usize;
        pool.split(self.rows, 1, |_, rows| {
            for row in rows {
                // SAFETY: rows of a matrix that holds them all, each written by one thread.
                let out = unsafe { std::slice::from_raw_parts_mut((start + row * bytes) as *mut u8, bytes) };
                pack.cast(&w, row, out);
            }
        });
        let tensor = Tensor {
            format: Format::BF16,
            rows: self.rows,
            columns: self.stored.k,
            codes: matrix,
            scales: &[],
            zeros: &[],
            tensor: &[],
        };
        self.thin.run(pool, x, self.stored.rows(&tensor), y);
    }
}
