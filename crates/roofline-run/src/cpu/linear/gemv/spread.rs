//! The scales of 64 bytes of 4-bit weights as a vector: lane `i` of 16 holds the scale of elements `8i` to `8i + 7`.

use std::arch::x86_64::{
    __m512, _mm_cvtsi32_si128, _mm_loadl_epi64, _mm256_set1_epi64x, _mm256_setr_epi8, _mm256_shuffle_epi8,
    _mm256_srli_epi16, _mm512_broadcastd_epi32, _mm512_broadcastq_epi64, _mm512_castsi512_ps, _mm512_cvtph_ps,
    _mm512_loadu_si512, _mm512_permutevar_ps, _mm512_set1_epi32, _mm512_set1_epi64, _mm512_shuffle_epi8,
    _mm512_srli_epi32,
};

/// How the scales of 128 four-bit elements spread over 16 lanes.
pub(super) trait Spread: Copy {
    const BYTES: usize;
    const FACTOR: f32;
    unsafe fn spread(scales: *const u8) -> __m512;
}

/// `N` BF16 scales per 128 elements.
#[derive(Clone, Copy)]
pub(super) struct Group<const N: usize>;

/// Byte indices for `vpshufb` that put word `16-byte lane * N / 4` into the upper half of every dword, over zeros.
const fn upper_words(count: usize) -> [u8; 64] {
    let mut index = [0x80; 64];
    let mut dword = 0;
    while dword < 16 {
        let word = dword / 4 * count / 4;
        index[4 * dword + 2] = 2 * word as u8;
        index[4 * dword + 3] = 2 * word as u8 + 1;
        dword += 1;
    }
    index
}

impl<const N: usize> Spread for Group<N> {
    const BYTES: usize = 2 * N;
    const FACTOR: f32 = 1.0;

    #[inline(always)]
    unsafe fn spread(scales: *const u8) -> __m512 {
        // SAFETY: `N` words.
        unsafe {
            let index = const { upper_words(N) };
            match N {
                1 => {
                    let word = scales.cast::<u16>().read_unaligned();
                    _mm512_castsi512_ps(_mm512_set1_epi32((u32::from(word) << 16) as i32))
                }
                2 => {
                    let both = _mm512_set1_epi32(scales.cast::<i32>().read_unaligned());
                    _mm512_castsi512_ps(_mm512_shuffle_epi8(both, _mm512_loadu_si512(index.as_ptr().cast())))
                }
                _ => {
                    let four = _mm512_set1_epi64(scales.cast::<i64>().read_unaligned());
                    _mm512_castsi512_ps(_mm512_shuffle_epi8(four, _mm512_loadu_si512(index.as_ptr().cast())))
                }
            }
        }
    }
}

/// Four E8M0 scales: the byte is the exponent field of an FP32 number. Code zero, 2^-127, becomes zero.
#[derive(Clone, Copy)]
pub(super) struct Micro;

/// Byte `16-byte lane` into the top of every dword.
const TOP_BYTES: [u8; 64] = {
    let mut index = [0x80; 64];
    let mut dword = 0;
    while dword < 16 {
        index[4 * dword + 3] = (dword / 4) as u8;
        dword += 1;
    }
    index
};

impl Spread for Micro {
    const BYTES: usize = 4;
    const FACTOR: f32 = 1.0;

    #[inline(always)]
    unsafe fn spread(scales: *const u8) -> __m512 {
        // SAFETY: four bytes.
        unsafe {
            let all = _mm512_broadcastd_epi32(_mm_cvtsi32_si128(scales.cast::<i32>().read_unaligned()));
            let top = _mm512_shuffle_epi8(all, _mm512_loadu_si512(TOP_BYTES.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_srli_epi32(top, 1))
        }
    }
}

/// Eight E4M3 scales, none negative: through FP16, with the factor 2^8 left to the row.
#[derive(Clone, Copy)]
pub(super) struct TwoLevel;

impl Spread for TwoLevel {
    const BYTES: usize = 8;
    const FACTOR: f32 = 256.0;

    #[inline(always)]
    unsafe fn spread(scales: *const u8) -> __m512 {
        // SAFETY: eight bytes.
        unsafe {
            let all = _mm256_set1_epi64x(scales.cast::<i64>().read_unaligned());
            // Each byte twice, in the upper halves of words.
            let index = _mm256_setr_epi8(
                -1, 0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1, 4, -1, 4, -1, 5, -1, 5, -1, 6, -1, 6, -1,
                7, -1, 7,
            );
            _mm512_cvtph_ps(_mm256_srli_epi16(_mm256_shuffle_epi8(all, index), 1))
        }
    }
}

/// Two FP32 scales.
#[derive(Clone, Copy)]
pub(super) struct Absmax;

impl Spread for Absmax {
    const BYTES: usize = 8;
    const FACTOR: f32 = 1.0;

    #[inline(always)]
    unsafe fn spread(scales: *const u8) -> __m512 {
        const LANES: [i32; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];
        // SAFETY: eight bytes.
        unsafe {
            let both = _mm512_broadcastq_epi64(_mm_loadl_epi64(scales.cast()));
            _mm512_permutevar_ps(_mm512_castsi512_ps(both), _mm512_loadu_si512(LANES.as_ptr().cast()))
        }
    }
}
