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
            let [sum] = sum([(weights, weights)], &self.digits, _mm512_setzero_si512());
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

/// Rows from this many bytes on are long enough that several at a time are streams to the hardware's prefetcher.
const LONG: usize = 4096;

/// See [`Kernel`]; needs AVX-512 (F, BW, DQ, VL) with VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn columns<S: Spread, const TABLE: bool>(job: &Job<'_>, rows: Range<usize>) {
    let row_bytes = job.w.stored.row_bytes;
    let mut row = rows.start;
    // SAFETY: passed on.
    unsafe {
        // The x of long rows is past the nearest cache: several rows share each of its loads.
        while row_bytes >= LONG && job.m == 1 && row + 4 <= rows.end {
            together::<S, TABLE, 1, 4>(job, row, AHEAD.next_multiple_of(4 * row_bytes));
            row += 4;
        }
        while row_bytes >= LONG && row + 2 <= rows.end {
            match job.m {
                1 => together::<S, TABLE, 1, 2>(job, row, AHEAD.next_multiple_of(2 * row_bytes)),
                _ => together::<S, TABLE, 2, 2>(job, row, AHEAD.next_multiple_of(2 * row_bytes)),
            }
            row += 2;
        }
        while row < rows.end {
            match job.m {
                1 => together::<S, TABLE, 1, 1>(job, row, AHEAD.next_multiple_of(row_bytes)),
                _ => together::<S, TABLE, 2, 1>(job, row, AHEAD.next_multiple_of(row_bytes)),
            }
            row += 1;
        }
    }
}

/// `R` rows of weights with `M` rows of `x`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn together<S: Spread, const TABLE: bool, const M: usize, const R: usize>(
    job: &Job<'_>,
    row: usize,
    ahead: usize,
) {
    let codes: [&[u8]; R] = std::array::from_fn(|r| job.w.codes(row + r));
    let scales: [&[u8]; R] = std::array::from_fn(|r| job.w.scales(row + r));
    let count = job.x.len() / M;
    let full = codes[0].len() / BYTES;
    let mut sums = [[_mm512_setzero_ps(); M]; R];
    // SAFETY: full blocks lie within their rows, and what is left is copied to where a block fits.
    unsafe {
        let x = job.x.as_ptr();
        for block in 0..full {
            let (mut at, mut at_scales) = ([std::ptr::null(); R], [std::ptr::null(); R]);
            for r in 0..R {
                at[r] = codes[r].as_ptr().add(block * BYTES);
                at_scales[r] = scales[r].as_ptr().add(block * S::BYTES);
                _mm_prefetch::<_MM_HINT_T0>(at[r].wrapping_add(ahead).cast());
            }
            step::<S, TABLE, M, R>(at, at_scales, x.add(block), count, &mut sums);
        }
        if full < count {
            let (mut last, mut last_scales) = ([[0u8; BYTES]; R], [[0u8; 8]; R]);
            for r in 0..R {
                let (codes, scales) = (&codes[r][full * BYTES..], &scales[r][full * S::BYTES..]);
                last[r][..codes.len()].copy_from_slice(codes);
                last_scales[r][..scales.len()].copy_from_slice(scales);
            }
            let (last, last_scales) =
                (last.each_ref().map(|last| last.as_ptr()), last_scales.each_ref().map(|one| one.as_ptr()));
            step::<S, TABLE, M, R>(last, last_scales, x.add(full), count, &mut sums);
        }
        for (r, sums) in sums.iter().enumerate() {
            let scale = job.w.row_scale(row + r) * S::FACTOR;
            for (index, sum) in sums.iter().enumerate() {
                job.y.put(index, row + r, _mm512_reduce_add_ps(*sum) * scale);
            }
        }
    }
}

/// One block of `R` rows with each of `M` rows of `x`, `count` blocks apart.
#[inline(always)]
unsafe fn step<S: Spread, const TABLE: bool, const M: usize, const R: usize>(
    codes: [*const u8; R],
    scales: [*const u8; R],
    x: *const Block,
    count: usize,
    sums: &mut [[__m512; M]; R],
) {
    // SAFETY: a block of weights, its scales, and a block of each row of `x`.
    unsafe {
        // Loops, not closures: a closure is compiled without the instructions unless it is inlined.
        let mut weights = [(_mm512_setzero_si512(), _mm512_setzero_si512()); R];
        let mut scale = [_mm512_setzero_ps(); R];
        for r in 0..R {
            weights[r] = halves::<TABLE>(_mm512_loadu_si512(codes[r].cast()));
            scale[r] = S::spread(scales[r]);
        }
        for index in 0..M {
            let x = &*x.add(index * count);
            let start = _mm512_loadu_si512(x.start.as_ptr().cast());
            let products = sum(weights, &x.digits, start);
            for (r, sums) in sums.iter_mut().enumerate() {
                let scale = _mm512_mul_ps(scale[r], _mm512_set1_ps(x.scale));
                sums[index] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products[r]), scale, sums[index]);
            }
        }
    }
}

/// Even and odd elements of a block, unsigned.
#[inline(always)]
unsafe fn halves<const TABLE: bool>(weights: __m512i) -> (__m512i, __m512i) {
    // SAFETY: inlined where the instructions are enabled.
    unsafe {
        let nibble = _mm512_set1_epi8(15);
        if TABLE {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(FP4.as_ptr().cast()));
            let even = _mm512_and_si512(weights, nibble);
            let odd = _mm512_and_si512(_mm512_srli_epi16(weights, 4), nibble);
            (_mm512_shuffle_epi8(table, even), _mm512_shuffle_epi8(table, odd))
        } else {
            // Flipping the top bit of two's complement adds 8.
            let flipped = _mm512_xor_si512(weights, _mm512_set1_epi8(-0x78));
            (_mm512_and_si512(flipped, nibble), _mm512_and_si512(_mm512_srli_epi16(flipped, 4), nibble))
        }
    }
}

/// For each row, `start` plus the products of its unsigned weights with the three bytes of each element: exact sums of 128
/// products, eight to a lane.
#[inline(always)]
unsafe fn sum<const R: usize>(
    weights: [(__m512i, __m512i); R],
    digits: &[[[i8; 64]; 2]; 3],
    start: __m512i,
) -> [__m512i; R] {
    // SAFETY: inlined where the instructions are enabled; the digits are whole vectors.
    unsafe {
        let mut sums = [[_mm512_setzero_si512(), _mm512_setzero_si512(), start]; R];
        for (place, digits) in digits.iter().enumerate() {
            let even = _mm512_loadu_si512(digits[0].as_ptr().cast());
            let odd = _mm512_loadu_si512(digits[1].as_ptr().cast());
            for (sums, weights) in sums.iter_mut().zip(&weights) {
                sums[place] = _mm512_dpbusd_epi32(sums[place], weights.0, even);
                sums[place] = _mm512_dpbusd_epi32(sums[place], weights.1, odd);
            }
        }
        let mut whole = [start; R];
        for (whole, sums) in whole.iter_mut().zip(&sums) {
            let upper = _mm512_add_epi32(_mm512_slli_epi32(sums[0], 8), sums[1]);
            *whole = _mm512_add_epi32(_mm512_slli_epi32(upper, 8), sums[2]);
        }
        whole
    }
}
