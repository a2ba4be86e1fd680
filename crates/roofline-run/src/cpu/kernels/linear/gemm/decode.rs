//! Stored weights to FP32 in 512-bit vectors, in the order they are stored in.

use std::arch::x86_64::{
    _mm_and_si128, _mm_loadl_epi64, _mm_set1_epi8, _mm_srli_epi16, _mm_unpacklo_epi8, _mm512_cvtepu8_epi32,
    _mm512_loadu_ps, _mm512_mul_ps, _mm512_permutexvar_ps, _mm512_set1_ps, _mm512_storeu_ps,
};

use super::super::weights::{Code, Rows, Zero};

/// As [`Rows::decode`], with vectors for what the compiler cannot vectorise by itself.
///
/// # Safety
///
/// AVX-512 (F, BW, DQ, VL) is enabled where this is inlined.
#[inline(always)]
pub(super) unsafe fn decode(rows: &Rows<'_>, row: usize, start: usize, out: &mut [f32]) {
    if rows.stored.code != Code::Nibble || rows.stored.zero != Zero::None {
        rows.decode(row, start, out);
        return;
    }
    let (block, scales) = (rows.stored.block, rows.scales(row));
    let codes = &rows.codes(row)[start / 2..];
    let whole = out.len() / 16;
    // SAFETY: 16 elements are 8 bytes of codes, and blocks are whole sixteens.
    unsafe {
        let table = _mm512_loadu_ps(rows.stored.table.as_ptr());
        for index in 0..whole {
            let pairs = _mm_loadl_epi64(codes[8 * index..][..8].as_ptr().cast());
            let low = _mm_and_si128(pairs, _mm_set1_epi8(15));
            let high = _mm_and_si128(_mm_srli_epi16(pairs, 4), _mm_set1_epi8(15));
            let values = _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(_mm_unpacklo_epi8(low, high)), table);
            let scale = _mm512_set1_ps(rows.block_scale(scales, (start + 16 * index) / block));
            _mm512_storeu_ps(out[16 * index..][..16].as_mut_ptr(), _mm512_mul_ps(values, scale));
        }
    }
    for (index, value) in out.iter_mut().enumerate().skip(16 * whole) {
        let code = codes[index / 2] >> (4 * (index % 2)) & 15;
        *value = rows.stored.table[usize::from(code)] * rows.block_scale(scales, (start + index) / block);
    }
}
