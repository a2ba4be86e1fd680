//! 256-bit micro-kernels: 6 rows by 16 lanes, 12 of 16 registers for sums.

use std::arch::x86_64::{
    _mm256_add_epi32, _mm256_add_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_madd_epi16,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256, _mm256_storeu_ps, _mm256_storeu_si256,
};

use super::{micro::Tile, operand::PITCH};

pub(super) const ROWS: usize = 6;

/// FP32.
///
/// # Safety
///
/// The processor has AVX2 and FMA; operands and sums are as large as `tile` says, and the sums are the caller's.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn fp32(tile: &Tile) {
    let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
    // SAFETY: packed operands and sums are as large as the tile says.
    unsafe {
        for step in 0..tile.steps {
            let right = tile.right.add(64 * step);
            let (low, high) = (_mm256_loadu_ps(right.cast()), _mm256_loadu_ps(right.add(32).cast()));
            for (row, sums) in sums.iter_mut().enumerate() {
                let left = _mm256_set1_ps(tile.left.add(row * PITCH + 4 * step).cast::<f32>().read());
                sums[0] = _mm256_fmadd_ps(left, low, sums[0]);
                sums[1] = _mm256_fmadd_ps(left, high, sums[1]);
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (half, sum) in sums.iter().enumerate() {
                let at = tile.sums.add(row * tile.pitch + 8 * half);
                _mm256_storeu_ps(at, if tile.first { *sum } else { _mm256_add_ps(_mm256_loadu_ps(at), *sum) });
            }
        }
    }
}

/// Pairs of INT16 into INT32: INT8 products are exact in it, and pairs of them cannot overflow.
///
/// # Safety
///
/// The processor has AVX2; operands and sums are as large as `tile` says, and the sums are the caller's.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn int16(tile: &Tile) {
    let mut sums = [[_mm256_setzero_si256(); 2]; ROWS];
    // SAFETY: packed operands and sums are as large as the tile says.
    unsafe {
        for step in 0..tile.steps {
            let right = tile.right.add(64 * step);
            let (low, high) = (_mm256_loadu_si256(right.cast()), _mm256_loadu_si256(right.add(32).cast()));
            for (row, sums) in sums.iter_mut().enumerate() {
                let left = _mm256_set1_epi32(tile.left.add(row * PITCH + 4 * step).cast::<i32>().read());
                sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(left, low));
                sums[1] = _mm256_add_epi32(sums[1], _mm256_madd_epi16(left, high));
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (half, sum) in sums.iter().enumerate() {
                let at = tile.sums.add(row * tile.pitch + 8 * half).cast();
                let sum = if tile.first { *sum } else { _mm256_add_epi32(_mm256_loadu_si256(at), *sum) };
                _mm256_storeu_si256(at, sum);
            }
        }
    }
}
