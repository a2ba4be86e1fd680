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
        __m512, __m512i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_storeu_si128, _mm512_abs_ps, _mm512_add_epi32,
        _mm512_and_si512, _mm512_broadcast_i32x4, _mm512_cvtepi32_epi8, _mm512_cvtepi32_ps, _mm512_cvtps_epi32,
        _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_max_ps, _mm512_mul_ps,
        _mm512_permutex2var_ps, _mm512_reduce_add_ps, _mm512_reduce_max_ps, _mm512_set1_epi8, _mm512_set1_epi32,
        _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_shuffle_epi8, _mm512_slli_epi32,
        _mm512_srai_epi32, _mm512_srli_epi16, _mm512_storeu_si512, _mm512_sub_epi32, _mm512_xor_si512,
    },
    ops::Range,
    slice,
};

use super::{
    super::{
        Unsupported, no_memory,
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
    /// Of 128 finite values. The weights have `offset` added and are `1 / unit` times what they stand for.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn fill(&mut self, values: &[f32; ELEMENTS], offset: i8, unit: f32) {
        const EVEN: [i32; 16] = [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30];
        // SAFETY: 128 values are four pairs of vectors, and digits are written sixteen at a time.
        unsafe {
            let mut largest = _mm512_setzero_ps();
            for part in values.as_chunks::<16>().0 {
                largest = _mm512_max_ps(largest, _mm512_abs_ps(_mm512_loadu_ps(part.as_ptr())));
            }
            // 2^21 over the power of two below the largest: integers stay within 23 bits, and so do the bytes' carries.
            let exponent = (_mm512_reduce_max_ps(largest).to_bits() >> 23).clamp(30, 250);
            let inverse = _mm512_set1_ps(f32::from_bits((127 + 127 + 21 - exponent) << 23));
            self.scale = f32::from_bits((exponent - 21) << 23) * unit;
            let even = _mm512_loadu_si512(EVEN.as_ptr().cast());
            let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
            for pair in 0..4 {
                let (low, high) =
                    (_mm512_loadu_ps(values[32 * pair..].as_ptr()), _mm512_loadu_ps(values[32 * pair + 16..].as_ptr()));
                for (side, index) in [even, odd].into_iter().enumerate() {
                    let values = _mm512_mul_ps(_mm512_permutex2var_ps(low, index, high), inverse);
                    let mut rest = _mm512_cvtps_epi32(values);
                    for digits in self.digits.iter_mut().rev() {
                        _mm_storeu_si128(digits[side][16 * pair..].as_mut_ptr().cast(), _mm512_cvtepi32_epi8(rest));
                        let digit = _mm512_srai_epi32(_mm512_slli_epi32(rest, 24), 24);
                        rest = _mm512_srai_epi32(_mm512_sub_epi32(rest, digit), 8);
                    }
                }
            }
            let weights = _mm512_set1_epi8(offset);
            let sum = sum(weights, weights, &self.digits, _mm512_setzero_si512());
            let start = _mm512_sub_epi32(_mm512_setzero_si512(), sum);
            _mm512_storeu_si512(self.start.as_mut_ptr().cast(), start);
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
    offset: i8,
    /// What an integer stands for.
    unit: f32,
    x: Buffer,
    values: Vec<f32>,
}

impl FixedGemv {
    /// None where the weights are no small integers.
    pub(in super::super) fn plan(m: usize, stored: &Stored) -> Option<Result<Self, Unsupported>> {
        let (kernel, offset, unit): (Kernel, i8, f32) = match (stored.scale, stored.block) {
            (Scale::Group, 32) => (columns::<Group<4>, false>, 8, 1.0),
            (Scale::Group, 64) => (columns::<Group<2>, false>, 8, 1.0),
            (Scale::Group, 128) => (columns::<Group<1>, false>, 8, 1.0),
            (Scale::Micro, _) => (columns::<Micro, true>, 12, 0.5),
            (Scale::TwoLevel, _) => (columns::<TwoLevel, true>, 12, 0.5),
            _ => return None,
        };
        let blocks = m * stored.k.div_ceil(ELEMENTS);
        // The padding stays zero.
        let values = vec![0.0; stored.k.next_multiple_of(ELEMENTS)];
        let x = Buffer::zeroed(blocks * size_of::<Block>()).ok_or_else(no_memory);
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

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn fill(blocks: &mut [Block], (codes, wide): (&[u8], Wide), values: &mut [f32], (offset, unit): (i8, f32)) {
    wide.decode(codes, values);
    for (block, values) in blocks.iter_mut().zip(values.as_chunks::<ELEMENTS>().0) {
        // SAFETY: the same instructions.
        unsafe { block.fill(values, offset, unit) };
    }
}

/// FP4 codes as twice their value plus 12.
const FP4: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// See [`Kernel`]; needs AVX-512 (F, BW, DQ, VL) with VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn columns<S: Spread, const TABLE: bool>(job: &Job<'_>, rows: Range<usize>) {
    let ahead = AHEAD.next_multiple_of(job.w.stored.row_bytes);
    for row in rows {
        // SAFETY: passed on.
        unsafe {
            match job.m {
                1 => one_row::<S, TABLE, 1>(job, row, ahead),
                _ => one_row::<S, TABLE, 2>(job, row, ahead),
            }
        }
    }
}

/// One row of weights with `M` rows of `x`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn one_row<S: Spread, const TABLE: bool, const M: usize>(job: &Job<'_>, row: usize, ahead: usize) {
    let (codes, scales) = (job.w.codes(row), job.w.scales(row));
    let count = job.x.len() / M;
    let full = codes.len() / BYTES;
    let mut sums = [_mm512_setzero_ps(); M];
    // SAFETY: full blocks lie within the row, and what is left is copied to where a block fits.
    unsafe {
        let x = job.x.as_ptr();
        for block in 0..full {
            let at = codes.as_ptr().add(block * BYTES);
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(ahead).cast());
            step::<S, TABLE, M>(at, scales.as_ptr().add(block * S::BYTES), x.add(block), count, &mut sums);
        }
        if full < count {
            let (mut last, mut last_scales) = ([0u8; BYTES], [0u8; 8]);
            let (codes, scales) = (&codes[full * BYTES..], &scales[full * S::BYTES..]);
            last[..codes.len()].copy_from_slice(codes);
            last_scales[..scales.len()].copy_from_slice(scales);
            step::<S, TABLE, M>(last.as_ptr(), last_scales.as_ptr(), x.add(full), count, &mut sums);
        }
        for (index, sum) in sums.iter().enumerate() {
            job.y.put(index, row, _mm512_reduce_add_ps(*sum) * (job.w.row_scale(row) * S::FACTOR));
        }
    }
}

/// One block of a row with each of `M` rows of `x`, `count` blocks apart.
#[inline(always)]
unsafe fn step<S: Spread, const TABLE: bool, const M: usize>(
    codes: *const u8,
    scales: *const u8,
    x: *const Block,
    count: usize,
    sums: &mut [__m512; M],
) {
    // SAFETY: a block of weights, its scales, and a block of each row of `x`.
    unsafe {
        let weights = _mm512_loadu_si512(codes.cast());
        let scale = S::spread(scales);
        for (index, sum) in sums.iter_mut().enumerate() {
            let x = &*x.add(index * count);
            let product = _mm512_cvtepi32_ps(dot::<TABLE>(weights, x));
            *sum = _mm512_fmadd_ps(product, _mm512_mul_ps(scale, _mm512_set1_ps(x.scale)), *sum);
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
        sum(even, odd, &x.digits, _mm512_loadu_si512(x.start.as_ptr().cast()))
    }
}

/// `start` plus the products of unsigned weights with the three bytes of each element.
#[inline(always)]
unsafe fn sum(even: __m512i, odd: __m512i, digits: &[[[i8; 64]; 2]; 3], start: __m512i) -> __m512i {
    // SAFETY: inlined where the instructions are enabled; the digits are whole vectors.
    unsafe {
        let mut sums = [_mm512_setzero_si512(), _mm512_setzero_si512(), start];
        for (sum, digits) in sums.iter_mut().zip(digits) {
            *sum = _mm512_dpbusd_epi32(*sum, even, _mm512_loadu_si512(digits[0].as_ptr().cast()));
            *sum = _mm512_dpbusd_epi32(*sum, odd, _mm512_loadu_si512(digits[1].as_ptr().cast()));
        }
        let upper = _mm512_add_epi32(_mm512_slli_epi32(sums[0], 8), sums[1]);
        _mm512_add_epi32(_mm512_slli_epi32(upper, 8), sums[2])
    }
}
