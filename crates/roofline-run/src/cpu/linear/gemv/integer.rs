//! INT8 weights times INT8 activations, summed exactly in INT32 and scaled once per element of `y`.
//!
//! VNNI multiplies unsigned by signed bytes. Weights become unsigned by flipping their top bit (`w + 128`), and what that
//! adds, `128 * sum(x)`, is taken off at the end.

#![allow(unsafe_code)]

use std::{ops::Range, slice};

use super::super::{Unsupported, no_memory, output::Output, stored::Rows};
use super::piece;
#[cfg(target_arch = "x86_64")]
use crate::cpu::simd::Level;
use crate::cpu::{buffer::Buffer, linear::number::from_bf16, pool::Pool, simd::Simd, tensor::Tensor};

/// Rows of `x` are padded with zeros to a multiple of this.
const PAD: usize = 64;

struct Job<'a> {
    w: Rows<'a>,
    /// `m` rows of `pitch` codes.
    x: &'a [i8],
    pitch: usize,
    m: usize,
    /// `128 * sum(x)` of each row of `x`.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    offsets: &'a [i32],
    /// The scale of each row of `x`.
    scales: &'a [u8],
    y: Output,
}

type Kernel = unsafe fn(&Job<'_>, Range<usize>);

/// A planned product of INT8 weights and activations.
pub(in super::super) struct IntegerGemv {
    kernel: Kernel,
    pitch: usize,
    x: Buffer,
    offsets: Vec<i32>,
}

impl IntegerGemv {
    pub(in super::super) fn plan(simd: Simd, m: usize, k: usize) -> Result<Self, Unsupported> {
        let pitch = k.next_multiple_of(PAD);
        let kernel: Kernel = match simd.level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 if simd.vnni => vnni,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Avx2 => avx2,
            _ => plain,
        };
        Ok(Self { kernel, pitch, x: Buffer::zeroed(m * pitch).ok_or_else(no_memory)?, offsets: vec![0; m] })
    }

    pub(in super::super) fn run(&mut self, pool: &mut Pool, x: &Tensor<'_>, w: Rows<'_>, y: Output) {
        let (m, k, pitch) = (x.rows, x.columns, self.pitch);
        let rows = self.x.chunks_exact_mut(pitch).zip(x.codes.chunks_exact(k));
        for ((row, codes), offset) in rows.zip(&mut self.offsets) {
            row[..k].copy_from_slice(codes);
            let sum: i32 = codes.iter().map(|code| i32::from(*code as i8)).sum();
            *offset = sum.wrapping_mul(128);
        }
        // SAFETY: bytes are bytes.
        let codes = unsafe { slice::from_raw_parts(self.x.as_ptr().cast::<i8>(), m * pitch) };
        let job = Job { w, x: codes, pitch, m, offsets: &self.offsets, scales: x.scales, y };
        // SAFETY: planned for instructions that were found, and each thread has rows of its own.
        pool.deal(w.count, 4, piece(w.stored), |_, rows| unsafe { (self.kernel)(&job, rows) });
    }
}

impl Job<'_> {
    /// Writes the element of `y` whose exact sum is `sum`.
    ///
    /// # Safety
    ///
    /// The element belongs to the caller.
    #[inline(always)]
    unsafe fn put(&self, index: usize, row: usize, sum: i32) {
        let scale = from_bf16(u16::from_le_bytes([self.scales[2 * index], self.scales[2 * index + 1]]));
        // SAFETY: passed on.
        unsafe { self.y.put(index, row, sum as f32 * (scale * self.w.row_scale(row))) };
    }

    #[inline(always)]
    fn x(&self, index: usize) -> &[i8] {
        &self.x[index * self.pitch..][..self.pitch]
    }
}

#[inline(always)]
unsafe fn columns(job: &Job<'_>, rows: Range<usize>) {
    for row in rows {
        let w = job.w.codes(row);
        for index in 0..job.m {
            let pairs = w.iter().zip(job.x(index));
            let sum = pairs.map(|(w, x)| i32::from(*w as i8) * i32::from(*x)).sum();
            // SAFETY: the caller's own column.
            unsafe { job.put(index, row, sum) };
        }
    }
}

unsafe fn plain(job: &Job<'_>, rows: Range<usize>) {
    // SAFETY: passed on.
    unsafe { columns(job, rows) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2(job: &Job<'_>, rows: Range<usize>) {
    // SAFETY: passed on.
    unsafe { columns(job, rows) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn vnni(job: &Job<'_>, rows: Range<usize>) {
    for row in rows {
        for first in (0..job.m).step_by(4) {
            // SAFETY: passed on.
            unsafe {
                match job.m - first {
                    1 => vnni_row::<1>(job, row, first),
                    2 => vnni_row::<2>(job, row, first),
                    3 => vnni_row::<3>(job, row, first),
                    _ => vnni_row::<4>(job, row, first),
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn vnni_row<const M: usize>(job: &Job<'_>, row: usize, first: usize) {
    use std::arch::x86_64::{
        _mm512_dpbusd_epi32, _mm512_loadu_si512, _mm512_maskz_loadu_epi8, _mm512_reduce_add_epi32, _mm512_set1_epi8,
        _mm512_setzero_si512, _mm512_xor_si512,
    };
    let w = job.w.codes(row);
    let ahead = super::ahead::Ahead::new(job.w.stored, 1);
    let x: [*const i8; M] = std::array::from_fn(|index| job.x(first + index).as_ptr());
    let top = _mm512_set1_epi8(-128);
    let mut sums = [_mm512_setzero_si512(); M];
    // SAFETY: `w` is read up to its length and `x` up to its padded one.
    unsafe {
        for at in (0..w.len()).step_by(PAD) {
            ahead.ask(w.as_ptr(), at);
            let left = w.len() - at;
            let codes = if left >= PAD {
                _mm512_loadu_si512(w.as_ptr().add(at).cast())
            } else {
                _mm512_maskz_loadu_epi8((1 << left) - 1, w.as_ptr().add(at).cast())
            };
            let codes = _mm512_xor_si512(codes, top);
            for (sum, x) in sums.iter_mut().zip(x) {
                *sum = _mm512_dpbusd_epi32(*sum, codes, _mm512_loadu_si512(x.add(at).cast()));
            }
        }
        for (index, sum) in sums.iter().enumerate() {
            // Wrapped sums of wrapped parts: what is left fits.
            let sum = _mm512_reduce_add_epi32(*sum).wrapping_sub(job.offsets[first + index]);
            job.put(first + index, row, sum);
        }
    }
}
