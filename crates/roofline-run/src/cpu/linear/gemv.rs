//! Products with few rows of `x`: each row of `W` is read once, decoded in registers, and multiplied with every `x`.
//!
//! Such a product takes as long as reading `W` (2 operations per weight and row of `x`), so a kernel is good when it
//! reads as fast as a loop that does nothing else. Threads share the rows of `W`.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod ahead;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
pub(super) mod fixed;
pub(super) mod integer;
#[cfg(target_arch = "aarch64")]
mod neon;
mod plain;
#[cfg(target_arch = "x86_64")]
mod spread;

use std::{ops::Range, slice};

use super::{
    Unsupported, no_memory,
    number::Wide,
    output::Output,
    stored::{Code, Rows, Stored},
};
use crate::cpu::{
    buffer::Buffer,
    pool::Pool,
    simd::{Level, Simd},
    tensor::Tensor,
};

/// The order `x` is laid out in, so that it meets weights the way vectors decode them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// As stored.
    Natural,
    /// Of 32 elements the even ones, then the odd ones: a dword holds two 16-bit weights.
    Pairs,
    /// Of 128 elements those at `8 * lane + j` for `j` in 0..8: a dword holds eight 4-bit weights.
    Eights,
}

impl Order {
    /// Rows of `x` are padded with zeros to a multiple of this: the elements of 64 bytes of the narrowest weights.
    const PAD: usize = 128;

    fn of(simd: Simd, code: Code) -> Self {
        match (simd.level, code) {
            (Level::Avx512, Code::Bf16) => Self::Pairs,
            (Level::Avx512, Code::Nibble) => Self::Eights,
            _ => Self::Natural,
        }
    }

    /// Puts `row`, whose length is a multiple of the padding, into this order.
    fn arrange(self, row: &mut [f32]) {
        let (width, lanes) = match self {
            Self::Natural => return,
            Self::Pairs => (2, 16),
            Self::Eights => (8, 16),
        };
        let mut block = [0.0; Self::PAD];
        for part in row.chunks_exact_mut(width * lanes) {
            block[..part.len()].copy_from_slice(part);
            for (j, vector) in part.chunks_exact_mut(lanes).enumerate() {
                for (lane, value) in vector.iter_mut().enumerate() {
                    *value = block[width * lane + j];
                }
            }
        }
    }
}

/// Rows that a thread takes at a time: long enough that taking them costs nothing, and a few to each core of a small `W`.
fn piece(stored: &Stored) -> usize {
    const BYTES: usize = 1 << 17;
    (BYTES / stored.row_bytes.max(1)).next_multiple_of(4).max(4)
}

/// What a thread is given.
struct Job<'a> {
    w: Rows<'a>,
    /// `m` rows of `pitch` elements, in the kernel's order, padded with zeros.
    x: &'a [f32],
    pitch: usize,
    m: usize,
    y: Output,
}

/// Computes the columns of `y` that belong to a range of rows of `W`; the caller makes sure of the instructions and that
/// no other thread writes those columns.
type Kernel = unsafe fn(&Job<'_>, Range<usize>);

/// A planned product.
pub(super) struct Gemv {
    kernel: Kernel,
    order: Order,
    pitch: usize,
    x: Buffer,
}

impl Gemv {
    pub(super) fn plan(simd: Simd, m: usize, stored: &Stored) -> Result<Self, Unsupported> {
        let pitch = stored.k.next_multiple_of(Order::PAD);
        let x = Buffer::zeroed(m * pitch * 4).ok_or_else(no_memory)?;
        let kernel = match simd.level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => avx512::kernel(stored),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => avx2::kernel(stored),
            #[cfg(target_arch = "aarch64")]
            Level::Neon => neon::kernel(stored),
            _ => plain::kernel(),
        };
        Ok(Self { kernel, order: Order::of(simd, stored.code), pitch, x })
    }

    pub(super) fn run(&mut self, pool: &mut Pool, (x, wide): (&Tensor<'_>, Wide), w: Rows<'_>, y: Output) {
        let (m, k, pitch) = (x.rows, x.columns, self.pitch);
        // SAFETY: the buffer is aligned for, and any bytes are, FP32.
        let scratch = unsafe { slice::from_raw_parts_mut(self.x.as_mut_ptr().cast::<f32>(), m * pitch) };
        for (row, codes) in scratch.chunks_exact_mut(pitch).zip(x.codes.chunks_exact(k * wide.bytes())) {
            wide.decode(codes, &mut row[..k]);
            row[k..].fill(0.0);
            self.order.arrange(row);
        }
        let job = Job { w, x: scratch, pitch, m, y };
        // SAFETY: planned for instructions that were found, and each thread has rows of its own.
        pool.deal(w.count, 4, piece(w.stored), |_, rows| unsafe { (self.kernel)(&job, rows) });
    }
}
