//! Stored weights to BF16 tiles in 512-bit vectors: decoded, scaled, rounded and stored without a stop in memory.

use std::{
    arch::x86_64::{
        __m512, __m512bh, _mm_and_si128, _mm_loadl_epi64, _mm_loadu_si128, _mm_set1_epi8, _mm_srli_epi16,
        _mm_unpacklo_epi8, _mm256_and_si256, _mm256_cvtepi8_epi16, _mm256_loadu_si256, _mm256_set1_epi16,
        _mm256_slli_epi16, _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32, _mm512_cvtne2ps_pbh,
        _mm512_cvtph_ps, _mm512_loadu_ps, _mm512_mul_ps, _mm512_permutexvar_ps, _mm512_set1_ps,
    },
    ops::Range,
};

use super::{
    super::weights::{Code, Rows, Zero},
    operand::Operand,
};

/// Elements of a row in a tile.
const WIDTH: usize = 32;

/// Whether [`pack`] can: whole blocks of weights that are not BF16 already, nor need more than a look-up.
pub(super) fn can(rows: &Rows<'_>, block: usize, (operand, steps): (Operand, usize)) -> bool {
    let simple = match rows.stored.code {
        Code::Fp32 | Code::Fp16 | Code::Int8 | Code::Fp8 => true,
        Code::Nibble => rows.stored.zero == Zero::None,
        Code::Bf16 | Code::Int3 | Code::Int2 | Code::Gguf(_) => false,
    };
    operand == Operand::Bf16 && simple && 2 * steps * (block + 1) <= rows.stored.k
}

/// One block of up to 32 rows, cut to tiles. Subnormal results become zero, which is what tile products take them for.
///
/// # Safety
///
/// AVX-512 (F, BW, DQ, VL, BF16), and [`can`] said so.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) unsafe fn pack(rows: &Rows<'_>, range: Range<usize>, block: usize, steps: usize, out: &mut [u8]) {
    let count = 2 * steps / WIDTH;
    let start = 2 * steps * block;
    assert!(range.len() <= 32 && out.len() >= 2048 * count);
    for (index, row) in range.enumerate() {
        let (codes, scales) = (rows.codes(row).as_ptr(), rows.scales(row));
        // SAFETY: elements of a block that the row has, and a line of each pair of tiles.
        unsafe {
            let to = out.as_mut_ptr().add(64 * index);
            match rows.stored.code {
                Code::Fp32 => line(count, to, |at| _mm512_loadu_ps(codes.cast::<f32>().add(start + at))),
                Code::Fp16 => line(count, to, |at| {
                    _mm512_cvtph_ps(_mm256_loadu_si256(codes.cast::<u16>().add(start + at).cast()))
                }),
                Code::Int8 => {
                    let scale = _mm512_set1_ps(rows.row_scale(row));
                    line(count, to, |at| {
                        let wide = _mm512_cvtepi8_epi32(_mm_loadu_si128(codes.add(start + at).cast()));
                        _mm512_mul_ps(_mm512_cvtepi32_ps(wide), scale)
                    });
                }
                Code::Fp8 => {
                    // Through FP16, whose exponents are 2^8 apart.
                    let scale = _mm512_set1_ps(rows.row_scale(row) * 256.0);
                    line(count, to, |at| {
                        let wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(codes.add(start + at).cast()));
                        let half = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(!0x4000));
                        _mm512_mul_ps(_mm512_cvtph_ps(half), scale)
                    });
                }
                Code::Bf16 | Code::Int3 | Code::Int2 | Code::Gguf(_) => unreachable!("refused by `can`"),
                Code::Nibble => {
                    let table = _mm512_loadu_ps(rows.stored.table.as_ptr());
                    // Blocks of 4-bit formats are powers of two, and a shift takes a twentieth of a division.
                    let shift = rows.stored.block.trailing_zeros();
                    line(count, to, |at| {
                        let pairs = _mm_loadl_epi64(codes.add(start / 2 + at / 2).cast());
                        let low = _mm_and_si128(pairs, _mm_set1_epi8(15));
                        let high = _mm_and_si128(_mm_srli_epi16(pairs, 4), _mm_set1_epi8(15));
                        let values = _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(_mm_unpacklo_epi8(low, high)), table);
                        _mm512_mul_ps(values, _mm512_set1_ps(rows.block_scale(scales, (start + at) >> shift)))
                    });
                }
            }
        }
    }
}

/// A row of `count` pairs of tiles, of sixteen values at a time.
///
/// # Safety
///
/// AVX-512 with BF16 is enabled where this is inlined, and `to` has room for 64 bytes in each of `count` pairs of
/// tiles.
#[inline(always)]
unsafe fn line(count: usize, to: *mut u8, values: impl Fn(usize) -> __m512) {
    for index in 0..count {
        // SAFETY: the caller's lines; inlined where the instructions are enabled.
        unsafe {
            let (low, high) = (values(WIDTH * index), values(WIDTH * index + 16));
            to.add(2048 * index).cast::<__m512bh>().write_unaligned(_mm512_cvtne2ps_pbh(high, low));
        }
    }
}
