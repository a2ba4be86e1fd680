//! 512-bit micro-kernels: 14 rows by 32 lanes, 28 of 32 registers for sums. A step is 14 broadcasts and 2 loads for 28
//! products, so that the two multiplying ports are what it waits for.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _MM_HINT_T0, _mm_prefetch, _mm512_add_epi32, _mm512_add_ps, _mm512_dpbf16_ps,
    _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_setzero_ps, _mm512_setzero_si512, _mm512_shuffle_f32x4, _mm512_shuffle_ps, _mm512_storeu_ps,
    _mm512_storeu_si512, _mm512_unpackhi_ps, _mm512_unpacklo_ps,
};

use super::{
    micro::Tile,
    operand::{DEPTH, PITCH},
};

pub(super) const ROWS: usize = 14;

macro_rules! kernel {
    ($(#[$doc:meta])* $name:ident, $features:literal, $vector:ty, $zero:ident, $add:ident,
     $load:expr, $store:expr, $broadcast:expr, $right:expr, $multiply:expr) => {
        $(#[$doc])*
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $name(tile: &Tile) {
            let mut sums: [[$vector; 2]; ROWS] = [[$zero(); 2]; ROWS];
            // SAFETY: packed operands and sums are as large as the tile says.
            unsafe {
                for row in 0..ROWS {
                    let at = tile.sums.add(row * tile.pitch);
                    _mm_prefetch::<_MM_HINT_T0>(at.cast());
                    _mm_prefetch::<_MM_HINT_T0>(at.add(16).cast());
                }
                for start in (0..tile.steps).step_by(DEPTH) {
                    // All rows reach their next cache line at the same step; ask for those lines, or the next rows', now.
                    let next = start + DEPTH;
                    let next = if next < tile.steps { 4 * next } else { ROWS * PITCH };
                    for row in 0..ROWS {
                        _mm_prefetch::<_MM_HINT_T0>(tile.left.wrapping_add(row * PITCH + next).cast());
                    }
                    for step in start..start + DEPTH {
                        let right = tile.right.add(128 * step);
                        let (low, high) = ($right(right), $right(right.add(64)));
                        for (row, sums) in sums.iter_mut().enumerate() {
                            let left = $broadcast(tile.left.add(row * PITCH + 4 * step));
                            sums[0] = $multiply(sums[0], left, low);
                            sums[1] = $multiply(sums[1], left, high);
                        }
                    }
                }
                for (row, sums) in sums.iter().enumerate() {
                    for (half, sum) in sums.iter().enumerate() {
                        let at = tile.sums.add(row * tile.pitch + 16 * half);
                        $store(at, if tile.first { *sum } else { $add($load(at), *sum) });
                    }
                }
            }
        }
    };
}

kernel!(
    /// FP32.
    fp32, "avx512f", __m512, _mm512_setzero_ps, _mm512_add_ps,
    |at: *mut f32| _mm512_loadu_ps(at),
    |at: *mut f32, sum| _mm512_storeu_ps(at, sum),
    |at: *const u8| _mm512_set1_ps(at.cast::<f32>().read()),
    |at: *const u8| _mm512_loadu_ps(at.cast()),
    |sum, left, right| _mm512_fmadd_ps(left, right, sum)
);

kernel!(
    /// Pairs of BF16 into FP32.
    bf16, "avx512f,avx512bf16", __m512, _mm512_setzero_ps, _mm512_add_ps,
    |at: *mut f32| _mm512_loadu_ps(at),
    |at: *mut f32, sum| _mm512_storeu_ps(at, sum),
    |at: *const u8| std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(at.cast::<i32>().read())),
    |at: *const u8| std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(at.cast())),
    |sum, left, right| _mm512_dpbf16_ps(sum, left, right)
);

kernel!(
    /// Fours of unsigned and signed INT8 into INT32.
    int8, "avx512f,avx512vnni", __m512i, _mm512_setzero_si512, _mm512_add_epi32,
    |at: *mut f32| _mm512_loadu_si512(at.cast()),
    |at: *mut f32, sum| _mm512_storeu_si512(at.cast(), sum),
    |at: *const u8| _mm512_set1_epi32(at.cast::<i32>().read()),
    |at: *const u8| _mm512_loadu_si512(at.cast()),
    |sum, left, right| _mm512_dpbusd_epi32(sum, left, right)
);

/// Transposes 16 x 16 dwords; strides in bytes.
///
/// # Safety
///
/// AVX-512F, and 64 bytes to read and to write in each of 16 rows.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn transpose(from: *const u8, from_stride: usize, to: *mut u8, to_stride: usize) {
    // SAFETY: the caller's rows.
    unsafe {
        let mut rows = [_mm512_setzero_ps(); 16];
        for (index, row) in rows.iter_mut().enumerate() {
            *row = _mm512_loadu_ps(from.add(index * from_stride).cast());
        }
        // Within 128-bit lanes: 4 x 4 dwords by two rounds of unpacking.
        let mut fours = [_mm512_setzero_ps(); 16];
        for group in 0..4 {
            let [a, b, c, d] = [rows[4 * group], rows[4 * group + 1], rows[4 * group + 2], rows[4 * group + 3]];
            let (ab, cd) = (_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d));
            fours[4 * group] = _mm512_shuffle_ps(ab, cd, 0x44);
            fours[4 * group + 1] = _mm512_shuffle_ps(ab, cd, 0xee);
            let (ab, cd) = (_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d));
            fours[4 * group + 2] = _mm512_shuffle_ps(ab, cd, 0x44);
            fours[4 * group + 3] = _mm512_shuffle_ps(ab, cd, 0xee);
        }
        // Lane l of fours[4g + j] holds column 4l + j of rows 4g..4g+4: a transpose of lanes puts them in order.
        for j in 0..4 {
            let [a, b, c, d] = [fours[j], fours[4 + j], fours[8 + j], fours[12 + j]];
            let (ab, cd) = (_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(c, d, 0x88));
            _mm512_storeu_ps(to.add(j * to_stride).cast(), _mm512_shuffle_f32x4(ab, cd, 0x88));
            _mm512_storeu_ps(to.add((8 + j) * to_stride).cast(), _mm512_shuffle_f32x4(ab, cd, 0xdd));
            let (ab, cd) = (_mm512_shuffle_f32x4(a, b, 0xdd), _mm512_shuffle_f32x4(c, d, 0xdd));
            _mm512_storeu_ps(to.add((4 + j) * to_stride).cast(), _mm512_shuffle_f32x4(ab, cd, 0x88));
            _mm512_storeu_ps(to.add((12 + j) * to_stride).cast(), _mm512_shuffle_f32x4(ab, cd, 0xdd));
        }
    }
}
