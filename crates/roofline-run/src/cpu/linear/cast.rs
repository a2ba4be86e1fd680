//! Weights decoded to memory before they are multiplied: what a framework without a kernel for the stored format does. It
//! reads the stored size, writes 16 bit and reads 16 bit again, so it is slower than weights stored in 16 bit.

#![allow(unsafe_code)]

use roofline_core::Format;

use super::{
    Unsupported,
    gemm::turn::Turn,
    gemv::Gemv,
    number::Wide,
    output::Output,
    stored::{Rows, Stored},
};
use crate::cpu::{pool::Pool, simd::Simd, tensor::Tensor};

/// A planned product of weights that are cast to BF16 first.
pub(super) struct CastFirst {
    turn: Turn,
    /// The cast matrix.
    stored: Stored,
    gemv: Gemv,
    rows: usize,
}

impl CastFirst {
    pub(super) fn plan(simd: Simd, (m, n, k): (usize, usize, usize)) -> Result<Self, Unsupported> {
        let stored = Stored::new(Format::BF16, k)?;
        Ok(Self { turn: Turn::choose(simd), stored, gemv: Gemv::plan(simd, m, &stored)?, rows: n })
    }

    /// Bytes of the cast matrix.
    pub(super) fn bytes(&self) -> usize {
        self.rows * self.stored.row_bytes
    }

    /// Casts to `matrix`, and multiplies what is there.
    pub(super) fn run(&mut self, pool: &mut Pool, x: (&Tensor<'_>, Wide), w: Rows<'_>, matrix: &mut [u8], y: Output) {
        assert_eq!(matrix.len(), self.bytes(), "the cast matrix is not what was planned for");
        let (turn, bytes) = (self.turn, self.stored.row_bytes);
        let start = matrix.as_mut_ptr() as usize;
        pool.split(self.rows, 1, |_, rows| {
            for row in rows {
                // SAFETY: rows of a matrix that holds them all, each written by one thread.
                let out = unsafe { std::slice::from_raw_parts_mut((start + row * bytes) as *mut u8, bytes) };
                turn.cast(&w, row, out);
            }
        });
        let tensor = Tensor {
            format: Format::BF16,
            rows: self.rows,
            columns: self.stored.k,
            codes: matrix,
            scales: &[],
            tensor: &[],
        };
        self.gemv.run(pool, x, self.stored.rows(&tensor), y);
    }
}
