//! Weights that are small integers (INT8, INT4; FP4 doubled), times one or two rows of `x`, by VNNI.
//!
//! Widening weights to FP32 and multiplying them takes longer than reading them, and twice as long where another thread
//! shares the core. Byte products take a third of that, so `x` is turned to fixed point first: per block of 128, a power of
//! two times integers in signed bytes, their digits. Three digits are about as exact as FP32 sums are: what is lost is 2^-22
//! of the block's largest magnitude, 2^-20 with INT8 weights. Two lose 2^-14 of it, a thirty-second of the 2^-9 that an `x`
//! stored as BF16 lost of each number before, and serve that one.
//!
//! `sum w*x = s * sum w * (65536 a + 256 b + c)`. VNNI takes unsigned weights, `w + offset`; what the offset adds,
//! `offset * sum x`, is where the sums start from, negated.

#![allow(unsafe_code)]

use std::{
    arch::x86_64::{
        __m512, __m512i, _mm_loadu_si128, _mm_storeu_si128, _mm512_abs_ps, _mm512_add_epi32, _mm512_and_si512,
        _mm512_broadcast_i32x4, _mm512_cvtepi32_epi8, _mm512_cvtepi32_ps, _mm512_cvtps_epi32, _mm512_dpbusd_epi32,
        _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_max_ps, _mm512_mul_ps, _mm512_permutex2var_ps,
        _mm512_reduce_add_ps, _mm512_reduce_max_ps, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps,
        _mm512_setzero_ps, _mm512_setzero_si512, _mm512_shuffle_epi8, _mm512_slli_epi32, _mm512_srai_epi32,
        _mm512_srli_epi16, _mm512_storeu_si512, _mm512_sub_epi32, _mm512_xor_si512,
    },
    marker::PhantomData,
    ops::Range,
    slice,
};

use super::{
    super::{
        Unsupported, no_memory,
        number::Wide,
        output::Output,
        stored::{Code, Rows, Scale, Stored},
    },
    ahead::{Ahead, BLOCK as LINE},
    piece,
    spread::{Group, Micro, Spread, TwoLevel},
};
use crate::cpu::{buffer::Buffer, pool::Pool, tensor::Tensor};

/// Elements of a block.
const ELEMENTS: usize = 128;

/// A block of `x` in `D` digits.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Block<const D: usize> {
    /// The bytes of each element, the highest first; each in the two halves that weights come in.
    digits: [[[i8; 64]; 2]; D],
    /// What each lane of sums starts from.
    start: [i32; 16],
    /// What sums are multiplied by.
    scale: f32,
}

/// How weights are stored, and what integers they become.
trait Form: Copy {
    /// Bytes of a block.
    const BYTES: usize;
    /// Bytes of its scales.
    const SCALES: usize;
    /// What the row's scale is multiplied by on top.
    const FACTOR: f32;
    /// Bits of the largest magnitude.
    const BITS: u32;
    /// Added to weights, so that they are unsigned.
    const OFFSET: u8;
    /// What an integer stands for.
    const UNIT: f32;
    /// Whether the halves are the even and the odd elements, rather than the first and the second 64.
    const PAIRS: bool;

    /// The two halves of a block, unsigned.
    unsafe fn halves(weights: *const u8) -> (__m512i, __m512i);

    /// The scale of each lane.
    unsafe fn scales(scales: *const u8) -> __m512;
}

/// Two's complement in 8 bits; a row has one scale.
#[derive(Clone, Copy)]
struct Int8;

impl Form for Int8 {
    const BYTES: usize = 128;
    const SCALES: usize = 0;
    const FACTOR: f32 = 1.0;
    const BITS: u32 = 7;
    const OFFSET: u8 = 128;
    const UNIT: f32 = 1.0;
    const PAIRS: bool = false;

    #[inline(always)]
    unsafe fn halves(weights: *const u8) -> (__m512i, __m512i) {
        // SAFETY: 128 bytes; inlined where the instructions are enabled.
        unsafe {
            let top = _mm512_set1_epi8(-128);
            let (low, high) = (_mm512_loadu_si512(weights.cast()), _mm512_loadu_si512(weights.add(64).cast()));
            (_mm512_xor_si512(low, top), _mm512_xor_si512(high, top))
        }
    }

    #[inline(always)]
    unsafe fn scales(_: *const u8) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_set1_ps(1.0) }
    }
}

/// Two's complement in 4 bits.
#[derive(Clone, Copy)]
struct Int4<S>(PhantomData<S>);

impl<S: Spread> Form for Int4<S> {
    const BYTES: usize = 64;
    const SCALES: usize = S::BYTES;
    const FACTOR: f32 = S::FACTOR;
    const BITS: u32 = 3;
    const OFFSET: u8 = 8;
    const UNIT: f32 = 1.0;
    const PAIRS: bool = true;

    #[inline(always)]
    unsafe fn halves(weights: *const u8) -> (__m512i, __m512i) {
        // SAFETY: 64 bytes; inlined where the instructions are enabled.
        unsafe {
            let nibble = _mm512_set1_epi8(15);
            // Flipping the top bit of two's complement adds 8.
            let flipped = _mm512_xor_si512(_mm512_loadu_si512(weights.cast()), _mm512_set1_epi8(-0x78));
            (_mm512_and_si512(flipped, nibble), _mm512_and_si512(_mm512_srli_epi16(flipped, 4), nibble))
        }
    }

    #[inline(always)]
    unsafe fn scales(scales: *const u8) -> __m512 {
        // SAFETY: the scales of a block.
        unsafe { S::spread(scales) }
    }
}

/// E2M1, as twice its value.
#[derive(Clone, Copy)]
struct Fp4<S>(PhantomData<S>);

/// Codes as twice their value plus 12.
const FP4: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

impl<S: Spread> Form for Fp4<S> {
    const BYTES: usize = 64;
    const SCALES: usize = S::BYTES;
    const FACTOR: f32 = S::FACTOR;
    const BITS: u32 = 4;
    const OFFSET: u8 = 12;
    const UNIT: f32 = 0.5;
    const PAIRS: bool = true;

    #[inline(always)]
    unsafe fn halves(weights: *const u8) -> (__m512i, __m512i) {
        // SAFETY: 64 bytes; inlined where the instructions are enabled.
        unsafe {
            let nibble = _mm512_set1_epi8(15);
            let weights = _mm512_loadu_si512(weights.cast());
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(FP4.as_ptr().cast()));
            let even = _mm512_and_si512(weights, nibble);
            let odd = _mm512_and_si512(_mm512_srli_epi16(weights, 4), nibble);
            (_mm512_shuffle_epi8(table, even), _mm512_shuffle_epi8(table, odd))
        }
    }

    #[inline(always)]
    unsafe fn scales(scales: *const u8) -> __m512 {
        // SAFETY: the scales of a block.
        unsafe { S::spread(scales) }
    }
}

impl<const D: usize> Block<D> {
    /// Bits of the integers below the largest's own: the sign and carries between digits need two more, and eight products
    /// with the largest weight fit 31.
    const fn bits<F: Form>() -> u32 {
        let (digits, sums) = (8 * D as u32 - 3, 26 - F::BITS);
        if digits < sums { digits } else { sums }
    }

    /// Of 128 finite values, for weights of the form `F`.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn fill<F: Form>(&mut self, values: &[f32; ELEMENTS]) {
        const EVEN: [i32; 16] = [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30];
        // SAFETY: 128 values are four pairs of vectors, and digits are written sixteen at a time.
        unsafe {
            let bits = const { Self::bits::<F>() };
            let mut largest = _mm512_setzero_ps();
            for part in values.as_chunks::<16>().0 {
                largest = _mm512_max_ps(largest, _mm512_abs_ps(_mm512_loadu_ps(part.as_ptr())));
            }
            // Over the power of two below the largest: integers are below twice that, and so are the bytes' carries.
            let exponent = (_mm512_reduce_max_ps(largest).to_bits() >> 23).clamp(30, 250);
            let inverse = _mm512_set1_ps(f32::from_bits((127 + 127 + bits - exponent) << 23));
            self.scale = f32::from_bits((exponent - bits) << 23) * F::UNIT;
            let even = _mm512_loadu_si512(EVEN.as_ptr().cast());
            let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
            for pair in 0..4 {
                let (low, high) =
                    (_mm512_loadu_ps(values[32 * pair..].as_ptr()), _mm512_loadu_ps(values[32 * pair + 16..].as_ptr()));
                for (index, values) in [low, high].into_iter().enumerate() {
                    let (side, at, values) = if F::PAIRS {
                        let of_side = if index == 0 { even } else { odd };
                        (index, 16 * pair, _mm512_permutex2var_ps(low, of_side, high))
                    } else {
                        (pair / 2, 32 * (pair % 2) + 16 * index, values)
                    };
                    let mut rest = _mm512_cvtps_epi32(_mm512_mul_ps(values, inverse));
                    for digits in self.digits.iter_mut().rev() {
                        _mm_storeu_si128(digits[side][at..].as_mut_ptr().cast(), _mm512_cvtepi32_epi8(rest));
                        let digit = _mm512_srai_epi32(_mm512_slli_epi32(rest, 24), 24);
                        rest = _mm512_srai_epi32(_mm512_sub_epi32(rest, digit), 8);
                    }
                }
            }
            let weights = _mm512_set1_epi8(F::OFFSET as i8);
            let [sum] = sum([(weights, weights)], &self.digits, _mm512_setzero_si512());
            let start = _mm512_sub_epi32(_mm512_setzero_si512(), sum);
            _mm512_storeu_si512(self.start.as_mut_ptr().cast(), start);
        }
    }
}

struct Job<'a, const D: usize> {
    w: Rows<'a>,
    /// `m` rows of blocks.
    x: &'a [Block<D>],
    m: usize,
    y: Output,
}

/// The digits of `x`.
#[derive(Clone, Copy)]
enum Digits {
    Two,
    Three,
}

/// What runs a product; needs AVX-512 (F, BW, DQ, VL) with VNNI.
type Runner = unsafe fn(&mut FixedGemv, &mut Pool, &Tensor<'_>, Rows<'_>, Output);

/// A planned product.
pub(in super::super) struct FixedGemv {
    run: Runner,
    wide: Wide,
    x: Buffer,
    values: Vec<f32>,
}

impl FixedGemv {
    /// None where the weights are no small integers.
    pub(in super::super) fn plan(m: usize, wide: Wide, stored: &Stored) -> Option<Result<Self, Unsupported>> {
        let digits = if wide == Wide::Bf16 { Digits::Two } else { Digits::Three };
        let run = match (stored.code, stored.scale, stored.block) {
            (Code::Int8, Scale::Row, _) => runner::<Int8>(digits),
            (Code::Nibble, Scale::Group, 32) => runner::<Int4<Group<4>>>(digits),
            (Code::Nibble, Scale::Group, 64) => runner::<Int4<Group<2>>>(digits),
            (Code::Nibble, Scale::Group, 128) => runner::<Int4<Group<1>>>(digits),
            (Code::Nibble, Scale::Micro, _) => runner::<Fp4<Micro>>(digits),
            (Code::Nibble, Scale::TwoLevel, _) => runner::<Fp4<TwoLevel>>(digits),
            _ => return None,
        };
        let block = match digits {
            Digits::Two => size_of::<Block<2>>(),
            Digits::Three => size_of::<Block<3>>(),
        };
        // The padding stays zero.
        let values = vec![0.0; stored.k.next_multiple_of(ELEMENTS)];
        let x = Buffer::zeroed(m * stored.k.div_ceil(ELEMENTS) * block).ok_or_else(no_memory);
        Some(x.map(|x| Self { run, wide, x, values }))
    }

    pub(in super::super) fn run(&mut self, pool: &mut Pool, x: &Tensor<'_>, w: Rows<'_>, y: Output) {
        // SAFETY: planned for instructions that were found.
        unsafe { (self.run)(self, pool, x, w, y) };
    }
}

fn runner<F: Form>(digits: Digits) -> Runner {
    match digits {
        Digits::Two => run::<F, 2>,
        Digits::Three => run::<F, 3>,
    }
}

/// See [`Runner`].
unsafe fn run<F: Form, const D: usize>(fixed: &mut FixedGemv, pool: &mut Pool, x: &Tensor<'_>, w: Rows<'_>, y: Output) {
    let (m, k) = (x.rows, x.columns);
    let count = m * k.div_ceil(ELEMENTS);
    // SAFETY: the buffer is aligned to lines and zeroed, and any bytes are a block.
    let blocks = unsafe { slice::from_raw_parts_mut(fixed.x.as_mut_ptr().cast::<Block<D>>(), count) };
    for (blocks, codes) in blocks.chunks_exact_mut(count / m).zip(x.codes.chunks_exact(k * fixed.wide.bytes())) {
        // SAFETY: the caller's instructions.
        unsafe { fill::<F, D>(blocks, (codes, fixed.wide), &mut fixed.values) };
    }
    let job = Job { w, x: blocks, m, y };
    // SAFETY: the caller's instructions, and each thread has rows of its own.
    pool.deal(w.count, 4, piece(w.stored), |_, rows| unsafe { columns::<F, D>(&job, rows) });
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn fill<F: Form, const D: usize>(blocks: &mut [Block<D>], (codes, wide): (&[u8], Wide), values: &mut [f32]) {
    wide.decode(codes, values);
    for (block, values) in blocks.iter_mut().zip(values.as_chunks::<ELEMENTS>().0) {
        // SAFETY: the same instructions.
        unsafe { block.fill::<F>(values) };
    }
}

/// The columns of `y` that belong to a range of rows of `W`, several rows at a time so that they share each load of `x`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn columns<F: Form, const D: usize>(job: &Job<'_, D>, rows: Range<usize>) {
    let mut row = rows.start;
    // SAFETY: passed on.
    unsafe {
        while job.m == 1 && row + 4 <= rows.end {
            together::<F, D, 1, 4>(job, row);
            row += 4;
        }
        while row + 2 <= rows.end {
            match job.m {
                1 => together::<F, D, 1, 2>(job, row),
                _ => together::<F, D, 2, 2>(job, row),
            }
            row += 2;
        }
        while row < rows.end {
            match job.m {
                1 => together::<F, D, 1, 1>(job, row),
                _ => together::<F, D, 2, 1>(job, row),
            }
            row += 1;
        }
    }
}

/// `R` rows of weights with `M` rows of `x`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn together<F: Form, const D: usize, const M: usize, const R: usize>(job: &Job<'_, D>, row: usize) {
    let ahead = Ahead::new(job.w.stored, R);
    let codes: [&[u8]; R] = std::array::from_fn(|r| job.w.codes(row + r));
    let scales: [&[u8]; R] = std::array::from_fn(|r| job.w.scales(row + r));
    let count = job.x.len() / M;
    let full = codes[0].len() / F::BYTES;
    let mut sums = [[_mm512_setzero_ps(); M]; R];
    // SAFETY: full blocks lie within their rows, and what is left is copied to where a block fits.
    unsafe {
        let x = job.x.as_ptr();
        for block in 0..full {
            let (mut at, mut at_scales) = ([std::ptr::null(); R], [std::ptr::null(); R]);
            for r in 0..R {
                at[r] = codes[r].as_ptr().add(block * F::BYTES);
                at_scales[r] = scales[r].as_ptr().add(block * F::SCALES);
                for line in (0..F::BYTES).step_by(LINE) {
                    ahead.ask(codes[r].as_ptr(), block * F::BYTES + line);
                }
            }
            if F::SCALES > 0 {
                ahead.ask_scales(scales[0].as_ptr(), block * R * F::SCALES);
            }
            step::<F, D, M, R>(at, at_scales, x.add(block), count, &mut sums);
        }
        if full < count {
            let (mut last, mut last_scales) = ([[0u8; 2 * LINE]; R], [[0u8; 8]; R]);
            for r in 0..R {
                let (codes, scales) = (&codes[r][full * F::BYTES..], &scales[r][full * F::SCALES..]);
                last[r][..codes.len()].copy_from_slice(codes);
                if F::SCALES > 0 {
                    last_scales[r][..scales.len()].copy_from_slice(scales);
                }
            }
            let (last, last_scales) =
                (last.each_ref().map(|last| last.as_ptr()), last_scales.each_ref().map(|one| one.as_ptr()));
            step::<F, D, M, R>(last, last_scales, x.add(full), count, &mut sums);
        }
        for (r, sums) in sums.iter().enumerate() {
            let scale = job.w.row_scale(row + r) * F::FACTOR;
            for (index, sum) in sums.iter().enumerate() {
                job.y.put(index, row + r, _mm512_reduce_add_ps(*sum) * scale);
            }
        }
    }
}

/// One block of `R` rows with each of `M` rows of `x`, `count` blocks apart.
#[inline(always)]
unsafe fn step<F: Form, const D: usize, const M: usize, const R: usize>(
    codes: [*const u8; R],
    scales: [*const u8; R],
    x: *const Block<D>,
    count: usize,
    sums: &mut [[__m512; M]; R],
) {
    // SAFETY: a block of weights, its scales, and a block of each row of `x`.
    unsafe {
        // Loops, not closures: a closure is compiled without the instructions unless it is inlined.
        let mut weights = [(_mm512_setzero_si512(), _mm512_setzero_si512()); R];
        let mut scale = [_mm512_setzero_ps(); R];
        for r in 0..R {
            weights[r] = F::halves(codes[r]);
            scale[r] = F::scales(scales[r]);
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

/// For each row, `start` plus the products of its unsigned weights with the bytes of each element: exact sums of 128 products,
/// eight to a lane.
#[inline(always)]
unsafe fn sum<const R: usize, const D: usize>(
    weights: [(__m512i, __m512i); R],
    digits: &[[[i8; 64]; 2]; D],
    start: __m512i,
) -> [__m512i; R] {
    // SAFETY: inlined where the instructions are enabled; the digits are whole vectors.
    unsafe {
        let mut sums = [[_mm512_setzero_si512(); D]; R];
        for (place, digits) in digits.iter().enumerate() {
            let low = _mm512_loadu_si512(digits[0].as_ptr().cast());
            let high = _mm512_loadu_si512(digits[1].as_ptr().cast());
            for (sums, weights) in sums.iter_mut().zip(&weights) {
                let sum = if place + 1 == D { start } else { sums[place] };
                sums[place] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, weights.0, low), weights.1, high);
            }
        }
        let mut whole = [start; R];
        for (whole, sums) in whole.iter_mut().zip(&sums) {
            *whole = sums[0];
            for sum in &sums[1..] {
                *whole = _mm512_add_epi32(_mm512_slli_epi32(*whole, 8), *sum);
            }
        }
        whole
    }
}
