//! 512-bit kernels. Weights are taken 64 bytes at a time and decoded to vectors of FP32:
//!
//! * BF16: a dword holds two; the even one is shifted up, the odd one masked.
//! * 4 bit: a dword holds eight; shifted by `4j`, its low bits are the index that `vpermps` looks up in a register of 16
//!   values (the instruction ignores the upper bits). Lane `i` then holds element `8i + j`, so the eight vectors of a
//!   block share one vector of scales, applied once per 64 bytes.
//! * FP8: sign and fields moved to their FP16 places, then converted; the factor 2^8 goes into the row's scale.
//!
//! `x` was laid out in the same order (see `Order`).

use std::{
    arch::x86_64::{
        __m512, __m512i, _mm_loadu_si128, _mm256_and_si256, _mm256_cvtepi8_epi16, _mm256_loadu_si256,
        _mm256_set1_epi16, _mm256_slli_epi16, _mm512_add_ps, _mm512_and_si512, _mm512_castsi512_ps,
        _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtph_ps, _mm512_fmadd_ps, _mm512_loadu_ps,
        _mm512_loadu_si512, _mm512_permutexvar_ps, _mm512_reduce_add_ps, _mm512_set1_epi32, _mm512_setzero_ps,
        _mm512_slli_epi32, _mm512_srli_epi32,
    },
    ops::Range,
};

use super::{
    super::stored::{Code, Scale, Stored},
    Job, Kernel,
    ahead::{Ahead, BLOCK},
    spread::{Absmax, Group, Micro, Spread, TwoLevel},
};

pub(super) fn kernel(stored: &Stored) -> Kernel {
    match (stored.code, stored.scale, stored.block) {
        (Code::Fp32, ..) => columns::<Fp32>,
        (Code::Fp16, ..) => columns::<Fp16>,
        (Code::Bf16, ..) => columns::<Bf16>,
        (Code::Int8, ..) => columns::<Int8>,
        (Code::Fp8, ..) => columns::<Fp8>,
        (Code::Nibble, Scale::Micro, _) => columns::<Nibble<Micro>>,
        (Code::Nibble, Scale::TwoLevel, _) => columns::<Nibble<TwoLevel>>,
        (Code::Nibble, Scale::Absmax, _) => columns::<Nibble<Absmax>>,
        (Code::Nibble, _, 32) => columns::<Nibble<Group<4>>>,
        (Code::Nibble, _, 64) => columns::<Nibble<Group<2>>>,
        (Code::Nibble, ..) => columns::<Nibble<Group<1>>>,
    }
}

/// Decodes 64 bytes of weights. Every method needs AVX-512 (F, BW, DQ, VL) and is inlined where that is enabled.
trait Decoder: Copy {
    /// Elements in 64 bytes.
    const ELEMENTS: usize;
    /// Bytes of scales for them; none where a row has one scale.
    const SCALES: usize;
    /// What the row's scale is multiplied by on top.
    const FACTOR: f32;

    unsafe fn new(stored: &Stored) -> Self;

    /// Adds the products of 64 bytes at `codes` with each of `M` rows of `x` to the sums.
    unsafe fn multiply<const M: usize>(self, codes: *const u8, x: *const f32, pitch: usize, sums: &mut [__m512; M]);

    /// The scales of 64 bytes, one per lane.
    unsafe fn scales(self, scales: *const u8) -> __m512;
}

#[inline(always)]
unsafe fn add<const M: usize>(w: __m512, x: *const f32, pitch: usize, sums: &mut [__m512; M]) {
    for (index, sum) in sums.iter_mut().enumerate() {
        // SAFETY: the caller's x has a vector here in each row.
        *sum = unsafe { _mm512_fmadd_ps(w, _mm512_loadu_ps(x.add(index * pitch)), *sum) };
    }
}

macro_rules! unscaled {
    ($(#[$doc:meta])* $name:ident, $elements:literal, $factor:literal, |$codes:ident, $j:ident| $vector:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        struct $name;

        impl Decoder for $name {
            const ELEMENTS: usize = $elements;
            const SCALES: usize = 0;
            const FACTOR: f32 = $factor;

            #[inline(always)]
            unsafe fn new(_: &Stored) -> Self {
                Self
            }

            #[inline(always)]
            unsafe fn multiply<const M: usize>(
                self,
                $codes: *const u8,
                x: *const f32,
                pitch: usize,
                sums: &mut [__m512; M],
            ) {
                for $j in 0..$elements / 16 {
                    // SAFETY: 64 bytes of codes, and as many x as they hold elements.
                    unsafe { add($vector, x.add(16 * $j), pitch, sums) };
                }
            }

            #[inline(always)]
            unsafe fn scales(self, _: *const u8) -> __m512 {
                // SAFETY: see the trait.
                unsafe { _mm512_setzero_ps() }
            }
        }
    };
}

unscaled!(Fp32, 16, 1.0, |codes, j| _mm512_loadu_ps(codes.add(64 * j).cast()));
unscaled!(Fp16, 32, 1.0, |codes, j| _mm512_cvtph_ps(_mm256_loadu_si256(codes.add(32 * j).cast())));
unscaled!(Bf16, 32, 1.0, |codes, j| {
    let both = _mm512_loadu_si512(codes.cast());
    let upper = _mm512_set1_epi32(0xffff_0000u32 as i32);
    _mm512_castsi512_ps(if j == 0 { _mm512_slli_epi32(both, 16) } else { _mm512_and_si512(both, upper) })
});
unscaled!(Int8, 64, 1.0, |codes, j| {
    _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes.add(16 * j).cast())))
});
unscaled!(Fp8, 64, 256.0, |codes, j| {
    let wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(codes.add(16 * j).cast()));
    _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(!0x4000)))
});

#[derive(Clone, Copy)]
struct Nibble<S> {
    table: __m512,
    scales: std::marker::PhantomData<S>,
}

impl<S: Spread> Nibble<S> {
    #[inline(always)]
    unsafe fn value(self, index: __m512i) -> __m512 {
        // SAFETY: see the trait.
        unsafe { _mm512_permutexvar_ps(index, self.table) }
    }
}

impl<S: Spread> Decoder for Nibble<S> {
    const ELEMENTS: usize = 128;
    const SCALES: usize = S::BYTES;
    const FACTOR: f32 = S::FACTOR;

    #[inline(always)]
    unsafe fn new(stored: &Stored) -> Self {
        // SAFETY: 16 values.
        Self { table: unsafe { _mm512_loadu_ps(stored.table.as_ptr()) }, scales: std::marker::PhantomData }
    }

    #[inline(always)]
    unsafe fn multiply<const M: usize>(self, codes: *const u8, x: *const f32, pitch: usize, sums: &mut [__m512; M]) {
        // SAFETY: 64 bytes of codes and 128 of each x.
        unsafe {
            let codes = _mm512_loadu_si512(codes.cast());
            add(self.value(codes), x, pitch, sums);
            add(self.value(_mm512_srli_epi32(codes, 4)), x.add(16), pitch, sums);
            add(self.value(_mm512_srli_epi32(codes, 8)), x.add(32), pitch, sums);
            add(self.value(_mm512_srli_epi32(codes, 12)), x.add(48), pitch, sums);
            add(self.value(_mm512_srli_epi32(codes, 16)), x.add(64), pitch, sums);
            add(self.value(_mm512_srli_epi32(codes, 20)), x.add(80), pitch, sums);
            add(self.value(_mm512_srli_epi32(codes, 24)), x.add(96), pitch, sums);
            add(self.value(_mm512_srli_epi32(codes, 28)), x.add(112), pitch, sums);
        }
    }

    #[inline(always)]
    unsafe fn scales(self, scales: *const u8) -> __m512 {
        // SAFETY: as many bytes as `SCALES` says.
        unsafe { S::spread(scales) }
    }
}

/// See [`Kernel`]; needs AVX-512 (F, BW, DQ, VL).
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn columns<D: Decoder>(job: &Job<'_>, rows: Range<usize>) {
    // SAFETY: the instructions are enabled here, and the columns are the caller's.
    unsafe {
        let decoder = D::new(job.w.stored);
        // A few rows stay in the nearest cache while every x meets them, four at a time.
        let few = if job.m > 4 { 8 } else { rows.len() };
        for start in rows.clone().step_by(few) {
            let rows = start..(start + few).min(rows.end);
            for first in (0..job.m).step_by(4) {
                match job.m - first {
                    1 => batch::<D, 1, 4>(decoder, job, rows.clone(), first),
                    2 => batch::<D, 2, 4>(decoder, job, rows.clone(), first),
                    3 => batch::<D, 3, 4>(decoder, job, rows.clone(), first),
                    _ => batch::<D, 4, 4>(decoder, job, rows.clone(), first),
                }
            }
        }
    }
}

/// Every row with `M` rows of `x`, `R` at a time so that they share its loads.
#[inline(always)]
unsafe fn batch<D: Decoder, const M: usize, const R: usize>(
    decoder: D,
    job: &Job<'_>,
    rows: Range<usize>,
    first: usize,
) {
    let mut row = rows.start;
    let (ahead, ahead_alone) = (Ahead::new(job.w.stored, R), Ahead::new(job.w.stored, 1));
    // SAFETY: the caller's contract, passed on.
    unsafe {
        while row + R <= rows.end {
            group::<D, M, R>(decoder, job, (row, first), ahead);
            row += R;
        }
        while row < rows.end {
            group::<D, M, 1>(decoder, job, (row, first), ahead_alone);
            row += 1;
        }
    }
}

/// One block of one row.
#[inline(always)]
unsafe fn step<D: Decoder, const M: usize>(
    decoder: D,
    codes: *const u8,
    scales: *const u8,
    x: *const f32,
    pitch: usize,
    sums: &mut [__m512; M],
) {
    // SAFETY: the caller's pointers, passed on.
    unsafe {
        if D::SCALES == 0 && D::ELEMENTS <= 32 {
            decoder.multiply(codes, x, pitch, sums);
        } else if D::SCALES == 0 {
            // Four dependent sums a block would take longer than reading it.
            let mut block = [_mm512_setzero_ps(); M];
            decoder.multiply(codes, x, pitch, &mut block);
            for (sum, block) in sums.iter_mut().zip(block) {
                *sum = _mm512_add_ps(*sum, block);
            }
        } else {
            let mut block = [_mm512_setzero_ps(); M];
            decoder.multiply(codes, x, pitch, &mut block);
            let scale = decoder.scales(scales);
            for (sum, block) in sums.iter_mut().zip(block) {
                *sum = _mm512_fmadd_ps(block, scale, *sum);
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn group<D: Decoder, const M: usize, const R: usize>(
    decoder: D,
    job: &Job<'_>,
    (row, first): (usize, usize),
    ahead: Ahead,
) {
    // SAFETY: full blocks lie within their rows, what is left is copied to where a block fits, and `x` is padded.
    unsafe {
        let x = job.x.as_ptr().add(first * job.pitch);
        let codes: [*const u8; R] = std::array::from_fn(|r| job.w.codes(row + r).as_ptr());
        let scales: [*const u8; R] = std::array::from_fn(|r| job.w.scales(row + r).as_ptr());
        let mut sums = [[_mm512_setzero_ps(); M]; R];
        let row_bytes = job.w.stored.row_bytes;
        let full = row_bytes / BLOCK;
        for block in 0..full {
            if D::SCALES > 0 {
                ahead.ask_scales(scales[0], block * R * D::SCALES);
            }
            for r in 0..R {
                ahead.ask(codes[r], block * BLOCK);
                let scales = scales[r].add(block * D::SCALES);
                step(decoder, codes[r].add(block * BLOCK), scales, x.add(block * D::ELEMENTS), job.pitch, &mut sums[r]);
            }
        }
        let left = row_bytes % BLOCK;
        if left > 0 {
            for r in 0..R {
                let (mut last, mut last_scales) = ([0u8; BLOCK], [0u8; 8]);
                last.as_mut_ptr().copy_from_nonoverlapping(codes[r].add(full * BLOCK), left);
                if D::SCALES > 0 {
                    let at = full * D::SCALES;
                    last_scales.as_mut_ptr().copy_from_nonoverlapping(scales[r].add(at), job.w.stored.row_scales - at);
                }
                step(decoder, last.as_ptr(), last_scales.as_ptr(), x.add(full * D::ELEMENTS), job.pitch, &mut sums[r]);
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            let scale = job.w.row_scale(row + r) * D::FACTOR;
            for (index, sum) in sums.iter().enumerate() {
                job.y.put(first + index, row + r, _mm512_reduce_add_ps(*sum) * scale);
            }
        }
    }
}
