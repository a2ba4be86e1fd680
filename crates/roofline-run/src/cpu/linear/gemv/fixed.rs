//! 4-bit weights whose values are small integers (INT4; FP4 doubled), times one or two rows of `x`, by VNNI.
//!
//! Looking up 128 FP32 values and multiplying them takes longer than reading their 64 bytes. Byte products take a third
//! of that, so `x` is turned to fixed point first: per block of 128, a power of two times integers of 23 bits, in three
//! signed bytes. That is as exact as FP32 sums are: what is lost is 2^-23 of the block's largest magnitude.
//!
//! `sum w*x = s * sum w * (65536 a + 256 b + c)`. VNNI takes unsigned weights, `w + offset`; what the offset adds,
//! `offset * sum x`, is where the sums start from, negated.

#![allow(unsafe_code)]

use std::{
    arch::x86_64::{
        __m512i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm512_add_epi32, _mm512_and_si512,
        _mm512_broadcast_i32x4, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_loadu_si512,
        _mm512_mul_ps, _mm512_reduce_add_ps, _mm512_set1_epi8, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512,
        _mm512_shuffle_epi8, _mm512_slli_epi32, _mm512_srli_epi16, _mm512_xor_si512,
    },
    ops::Range,
    slice,
};

use super::{
    super::{
        Unsupported,
        number::Wide,
        output::Output,
        stored::{Rows, Scale, Stored},
    },
    spread::{Group, Micro, Spread, TwoLevel},
};
use crate::cpu::{buffer::Buffer, pool::Pool, tensor::Tensor};

/// Elements of a block: 64 bytes of weights.
const ELEMENTS: usize = 128;
const BYTES: usize = 64;
/// How far ahead of its use a line is asked for, at least.
const AHEAD: usize = 4096;

/// A block of `x`.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Block {
    /// The three bytes of each element, the highest first; each the even elements, then the odd ones.
    digits: [[[i8; 64]; 2]; 3],
    /// What each lane of sums starts from.
    start: [i32; 16],
    /// What sums are multiplied by.
    scale: f32,
}

impl Block {
    /// Of at most 128 finite values. The weights have `offset` added and are `1 / unit` times what they stand for.
    #[inline(always)]
    fn fill(&mut self, values: &[f32], offset: i32, unit: f32) {
        let mut padded = [0f32; ELEMENTS];
        padded[..values.len()].copy_from_slice(values);
        let largest = padded.iter().fold(0, |largest: u32, value| largest.max(value.to_bits() & 0x7fff_ffff));
        // 2^22 over the power of two below the largest: integers stay within 23 bits, and so do the three bytes' carries.
        let exponent = (largest >> 23).clamp(30, 250);
        let inverse = f32::from_bits((127 + 127 + 21 - exponent) << 23);
        self.scale = f32::from_bits((exponent - 21) << 23) * unit;
        let integers = padded.map(|value| (value * inverse).round_ties_even() as i32);
        let mut rest = integers;
        for digit in [2, 1, 0] {
            for (index, rest) in rest.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                let low = rest.map(|rest| rest as i8);
                self.digits[digit][0][index] = low[0];
                self.digits[digit][1][index] = low[1];
                *rest = [(rest[0] - i32::from(low[0])) >> 8, (rest[1] - i32::from(low[1])) >> 8];
            }
        }
        for (start, integers) in self.start.iter_mut().zip(integers.as_chunks::<8>().0) {
            *start = -offset * integers.iter().sum::<i32>();
        }
    }
}

struct Job<'a> {
    w: Rows<'a>,
    /// `m` rows of blocks.
    x: &'a [Block],
    m: usize,
    y: Output,
}

type Kernel = unsafe fn(&Job<'_>, Range<usize>);

/// A planned product.
pub(in super::super) struct FixedGemv {
    kernel: Kernel,
    /// Added to weights.
    offset: i32,
    /// What an integer stands for.
    unit: f32,
    x: Buffer,
    values: Vec<f32>,
}

impl FixedGemv {
    /// None where the weights are no small integers.
    pub(in super::super) fn plan(m: usize, stored: &Stored) -> Option<Result<Self, Unsupported>> {
        let (kernel, offset, unit): (Kernel, i32, f32) = match (stored.scale, stored.block) {
            (Scale::Group, 32) => (columns::<Group<4>, false>, 8, 1.0),
            (Scale::Group, 64) => (columns::<Group<2>, false>, 8, 1.0),
            (Scale::Group, 128) => (columns::<Group<1>, false>, 8, 1.0),
            (Scale::Micro, _) => (columns::<Micro, true>, 12, 0.5),
            (Scale::TwoLevel, _) => (columns::<TwoLevel, true>, 12, 0.5),
            _ => return None,
        };
        let blocks = m * stored.k.div_ceil(ELEMENTS);
        let values = vec![0.0; stored.k];
        let x = Buffer::zeroed(blocks * size_of::<Block>()).ok_or_else(Unsupported::memory);
        Some(x.map(|x| Self { kernel, offset, unit, x, values }))
    }

    pub(in super::super) fn run(&mut self, pool: &mut Pool, (x, wide): (&Tensor<'_>, Wide), w: Rows<'_>, y: Output) {
        let (m, k) = (x.rows, x.columns);
        let count = m * k.div_ceil(ELEMENTS);
        // SAFETY: the buffer is aligned to lines and zeroed, and any bytes are a block.
        let blocks = unsafe { slice::from_raw_parts_mut(self.x.as_mut_ptr().cast::<Block>(), count) };
        for (blocks, codes) in blocks.chunks_exact_mut(count / m).zip(x.codes.chunks_exact(k * wide.bytes())) {
            // SAFETY: planned where there is AVX-512.
            unsafe { fill(blocks, (codes, wide), &mut self.values, (self.offset, self.unit)) };
        }
        let job = Job { w, x: blocks, m, y };
        // SAFETY: planned for instructions that were found, and each thread has rows of its own.
        pool.split(w.count, 4, |_, rows| unsafe { (self.kernel)(&job, rows) });
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn fill(blocks: &mut [Block], (codes, wide): (&[u8], Wide), values: &mut [f32], (offset, unit): (i32, f32)) {
    wide.decode(codes, values);
    for (block, values) in blocks.iter_mut().zip(values.chunks(ELEMENTS)) {
        block.fill(values, offset, unit);
    }
}

/// FP4 codes as twice their value plus 12.
const FP4: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// See [`Kernel`]; needs AVX-512 (F, BW, DQ, VL) with VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn columns<S: Spread, const TABLE: bool>(job: &Job<'_>, rows: Range<usize>) {
    for row in rows {
        // SAFETY: passed on.
        unsafe {
            if job.m == 1 {
                one_row::<S, TABLE, 1>(job, row);
            } else {
                one_row::<S, TABLE, 2>(job, row);
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn one_row<S: Spread, const TABLE: bool, const M: usize>(job: &Job<'_>, row: usize) {
    let (codes, scales) = (job.w.codes(row), job.w.scales(row));
    let count = job.x.len() / M;
    let full = codes.len() / BYTES;
    let ahead = AHEAD.next_multiple_of(codes.len());
    let mut sums = [_mm512_setzero_ps(); M];
    // SAFETY: full blocks lie within the row, and what is left is copied to where a block fits.
    unsafe {
        for block in 0..full {
            let at = codes.as_ptr().add(block * BYTES);
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(ahead).cast());
            let weights = _mm512_loadu_si512(at.cast());
            let scale = S::spread(scales.as_ptr().add(block * S::BYTES));
            for (index, sum) in sums.iter_mut().enumerate() {
                let x = &*job.x.as_ptr().add(index * count + block);
                let product = _mm512_cvtepi32_ps(dot::<TABLE>(weights, x));
                *sum = _mm512_fmadd_ps(product, _mm512_mul_ps(scale, _mm512_set1_ps(x.scale)), *sum);
            }
        }
        if full < count {
            let (mut last, mut last_scales) = ([0u8; BYTES], [0u8; 8]);
            last[..codes.len() - full * BYTES].copy_from_slice(&codes[full * BYTES..]);
            last_scales[..scales.len() - full * S::BYTES].copy_from_slice(&scales[full * S::BYTES..]);
            let (weights, scale) = (_mm512_loadu_si512(last.as_ptr().cast()), S::spread(last_scales.as_ptr()));
            for (index, sum) in sums.iter_mut().enumerate() {
                let x = &*job.x.as_ptr().add(index * count + full);
                let product = _mm512_cvtepi32_ps(dot::<TABLE>(weights, x));
                *sum = _mm512_fmadd_ps(product, _mm512_mul_ps(scale, _mm512_set1_ps(x.scale)), *sum);
            }
        }
        for (index, sum) in sums.iter().enumerate() {
            job.y.put(index, row, _mm512_reduce_add_ps(*sum) * (job.w.row_scale(row) * S::FACTOR));
        }
    }
}

/// The exact sums of 128 products, eight to a lane.
#[inline(always)]
unsafe fn dot<const TABLE: bool>(weights: __m512i, x: &Block) -> __m512i {
    // SAFETY: inlined where the instructions are enabled; the digits are whole vectors.
    unsafe {
        let nibble = _mm512_set1_epi8(15);
        let (even, odd) = if TABLE {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(FP4.as_ptr().cast()));
            let even = _mm512_and_si512(weights, nibble);
            let odd = _mm512_and_si512(_mm512_srli_epi16(weights, 4), nibble);
            (_mm512_shuffle_epi8(table, even), _mm512_shuffle_epi8(table, odd))
        } else {
            // Flipping the top bit of two's complement adds 8.
            let flipped = _mm512_xor_si512(weights, _mm512_set1_epi8(-0x78));
            (_mm512_and_si512(flipped, nibble), _mm512_and_si512(_mm512_srli_epi16(flipped, 4), nibble))
        };
        let mut digits = [_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_loadu_si512(x.start.as_ptr().cast())];
        for (sum, x) in digits.iter_mut().zip(&x.digits) {
            *sum = _mm512_dpbusd_epi32(*sum, even, _mm512_loadu_si512(x[0].as_ptr().cast()));
            *sum = _mm512_dpbusd_epi32(*sum, odd, _mm512_loadu_si512(x[1].as_ptr().cast()));
        }
        let upper = _mm512_add_epi32(_mm512_slli_epi32(digits[0], 8), digits[1]);
        _mm512_add_epi32(_mm512_slli_epi32(upper, 8), digits[2])
    }
}
