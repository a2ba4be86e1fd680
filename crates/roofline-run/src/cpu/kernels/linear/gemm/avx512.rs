//! 512-bit micro-kernels: 14 rows by 32 lanes, 28 of 32 registers for sums. A step is two loads and 28 products.

use std::arch::{
    asm,
    x86_64::{
        _MM_HINT_T0, _mm_prefetch, _mm512_add_epi32, _mm512_dpbusd_epi32, _mm512_loadu_ps, _mm512_loadu_si512,
        _mm512_set1_epi32, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_shuffle_f32x4, _mm512_shuffle_ps,
        _mm512_storeu_ps, _mm512_storeu_si512, _mm512_unpackhi_ps, _mm512_unpacklo_ps,
    },
};

use super::{micro::Tile, operand::COLUMNS_PITCH};

pub(super) const ROWS: usize = 14;

/// Two rows of a step. The first is broadcast once for both its products, the second by each of them: loads alone would
/// then wait for the load ports, broadcasts alone for the decoders, which another thread of the core may share.
macro_rules! two_rows {
    ($multiply:literal, $step:literal, $at:literal, $a:literal, $b:literal, $c:literal, $d:literal) => {
        concat!(
            "vbroadcastss zmm30, dword ptr [{left} + 64*",
            $step,
            " + ",
            $at,
            "]\n",
            $multiply,
            " zmm",
            $a,
            ", zmm28, zmm30\n",
            $multiply,
            " zmm",
            $b,
            ", zmm29, zmm30\n",
            $multiply,
            " zmm",
            $c,
            ", zmm28, dword ptr [{left} + 64*",
            $step,
            " + ",
            $at,
            " + 4]{{1to16}}\n",
            $multiply,
            " zmm",
            $d,
            ", zmm29, dword ptr [{left} + 64*",
            $step,
            " + ",
            $at,
            " + 4]{{1to16}}\n",
        )
    };
}

/// One step, a line of `left` and two of `right`.
macro_rules! step {
    ($multiply:literal, $index:literal) => {
        concat!(
            "prefetcht0 [{left} + 64*",
            $index,
            " + 1024]\n",
            "vmovups zmm28, [{right} + 128*",
            $index,
            "]\n",
            "vmovups zmm29, [{right} + 128*",
            $index,
            " + 64]\n",
            two_rows!($multiply, $index, 0, 0, 1, 2, 3),
            two_rows!($multiply, $index, 8, 4, 5, 6, 7),
            two_rows!($multiply, $index, 16, 8, 9, 10, 11),
            two_rows!($multiply, $index, 24, 12, 13, 14, 15),
            two_rows!($multiply, $index, 32, 16, 17, 18, 19),
            two_rows!($multiply, $index, 40, 20, 21, 22, 23),
            two_rows!($multiply, $index, 48, 24, 25, 26, 27),
        )
    };
}

macro_rules! kernel {
    ($(#[$doc:meta])* $name:ident, $features:literal, $multiply:literal) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// The processor has these features; operands and sums are as large as `tile` says, and the sums are the caller's.
        #[target_feature(enable = $features)]
        #[rustfmt::skip]
        pub(super) unsafe fn $name(tile: &Tile) {
            // SAFETY: packed operands and sums are as large as the tile says, and steps come in sixteens.
            unsafe {
                fetch(tile);
                asm!(
                    "vpxord zmm0, zmm0, zmm0", "vpxord zmm1, zmm1, zmm1", "vpxord zmm2, zmm2, zmm2", "vpxord zmm3, zmm3, zmm3",
                    "vpxord zmm4, zmm4, zmm4", "vpxord zmm5, zmm5, zmm5", "vpxord zmm6, zmm6, zmm6", "vpxord zmm7, zmm7, zmm7",
                    "vpxord zmm8, zmm8, zmm8", "vpxord zmm9, zmm9, zmm9", "vpxord zmm10, zmm10, zmm10", "vpxord zmm11, zmm11, zmm11",
                    "vpxord zmm12, zmm12, zmm12", "vpxord zmm13, zmm13, zmm13", "vpxord zmm14, zmm14, zmm14", "vpxord zmm15, zmm15, zmm15",
                    "vpxord zmm16, zmm16, zmm16", "vpxord zmm17, zmm17, zmm17", "vpxord zmm18, zmm18, zmm18", "vpxord zmm19, zmm19, zmm19",
                    "vpxord zmm20, zmm20, zmm20", "vpxord zmm21, zmm21, zmm21", "vpxord zmm22, zmm22, zmm22", "vpxord zmm23, zmm23, zmm23",
                    "vpxord zmm24, zmm24, zmm24", "vpxord zmm25, zmm25, zmm25", "vpxord zmm26, zmm26, zmm26", "vpxord zmm27, zmm27, zmm27",
                    "2:",
                    step!($multiply, 0),
                    step!($multiply, 1),
                    step!($multiply, 2),
                    step!($multiply, 3),
                    "add {left}, 256",
                    "add {right}, 512",
                    "dec {count}",
                    "jnz 2b",
                    "test {first}, {first}",
                    "jnz 3f",
                    "vaddps zmm0, zmm0, [{sums}]", "vaddps zmm1, zmm1, [{sums} + 64]", "add {sums}, {pitch}",
                    "vaddps zmm2, zmm2, [{sums}]", "vaddps zmm3, zmm3, [{sums} + 64]", "add {sums}, {pitch}",
                    "vaddps zmm4, zmm4, [{sums}]", "vaddps zmm5, zmm5, [{sums} + 64]", "add {sums}, {pitch}",
                    "vaddps zmm6, zmm6, [{sums}]", "vaddps zmm7, zmm7, [{sums} + 64]", "add {sums}, {pitch}",
                    "vaddps zmm8, zmm8, [{sums}]", "vaddps zmm9, zmm9, [{sums} + 64]", "add {sums}, {pitch}",
                    "vaddps zmm10, zmm10, [{sums}]", "vaddps zmm11, zmm11, [{sums} + 64]", "add {sums}, {pitch}",
                    "vaddps zmm12, zmm12, [{sums}]", "vaddps zmm13, zmm13, [{sums} + 64]", "add {sums}, {pitch}",
                    "vaddps zmm14, zmm14, [{sums}]", "vaddps zmm15, zmm15, [{sums} + 64]", "add {sums}, {pitch}",
                    "vaddps zmm16, zmm16, [{sums}]", "vaddps zmm17, zmm17, [{sums} + 64]", "add {sums}, {pitch}",
                    "vaddps zmm18, zmm18, [{sums}]", "vaddps zmm19, zmm19, [{sums} + 64]", "add {sums}, {pitch}",
                    "vaddps zmm20, zmm20, [{sums}]", "vaddps zmm21, zmm21, [{sums} + 64]", "add {sums}, {pitch}",
                    "vaddps zmm22, zmm22, [{sums}]", "vaddps zmm23, zmm23, [{sums} + 64]", "add {sums}, {pitch}",
                    "vaddps zmm24, zmm24, [{sums}]", "vaddps zmm25, zmm25, [{sums} + 64]", "add {sums}, {pitch}",
                    "vaddps zmm26, zmm26, [{sums}]", "vaddps zmm27, zmm27, [{sums} + 64]", "add {sums}, {pitch}",
                    "3:",
                    "vmovups [{again}], zmm0", "vmovups [{again} + 64], zmm1", "add {again}, {pitch}",
                    "vmovups [{again}], zmm2", "vmovups [{again} + 64], zmm3", "add {again}, {pitch}",
                    "vmovups [{again}], zmm4", "vmovups [{again} + 64], zmm5", "add {again}, {pitch}",
                    "vmovups [{again}], zmm6", "vmovups [{again} + 64], zmm7", "add {again}, {pitch}",
                    "vmovups [{again}], zmm8", "vmovups [{again} + 64], zmm9", "add {again}, {pitch}",
                    "vmovups [{again}], zmm10", "vmovups [{again} + 64], zmm11", "add {again}, {pitch}",
                    "vmovups [{again}], zmm12", "vmovups [{again} + 64], zmm13", "add {again}, {pitch}",
                    "vmovups [{again}], zmm14", "vmovups [{again} + 64], zmm15", "add {again}, {pitch}",
                    "vmovups [{again}], zmm16", "vmovups [{again} + 64], zmm17", "add {again}, {pitch}",
                    "vmovups [{again}], zmm18", "vmovups [{again} + 64], zmm19", "add {again}, {pitch}",
                    "vmovups [{again}], zmm20", "vmovups [{again} + 64], zmm21", "add {again}, {pitch}",
                    "vmovups [{again}], zmm22", "vmovups [{again} + 64], zmm23", "add {again}, {pitch}",
                    "vmovups [{again}], zmm24", "vmovups [{again} + 64], zmm25", "add {again}, {pitch}",
                    "vmovups [{again}], zmm26", "vmovups [{again} + 64], zmm27", "add {again}, {pitch}",
                    left = inout(reg) tile.left => _,
                    right = inout(reg) tile.right => _,
                    count = inout(reg) tile.steps / 4 => _,
                    first = in(reg) usize::from(tile.first),
                    sums = inout(reg) tile.sums => _,
                    again = inout(reg) tile.sums => _,
                    pitch = in(reg) 4 * tile.pitch,
                    out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _,
                    out("zmm6") _, out("zmm7") _, out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
                    out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _, out("zmm16") _, out("zmm17") _,
                    out("zmm18") _, out("zmm19") _, out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
                    out("zmm24") _, out("zmm25") _, out("zmm26") _, out("zmm27") _, out("zmm28") _, out("zmm29") _,
                    out("zmm30") _,
                    options(nostack),
                );
            }
        }
    };
}

kernel!(
    /// FP32.
    fp32, "avx512f", "vfmadd231ps"
);
kernel!(
    /// Pairs of BF16 into FP32.
    bf16, "avx512f,avx512bf16", "vdpbf16ps"
);

/// Asks for the sums, which are needed last.
#[inline(always)]
fn fetch(tile: &Tile) {
    for row in 0..ROWS {
        // SAFETY: a prefetch of anything is allowed.
        unsafe {
            let at = tile.sums.wrapping_add(row * tile.pitch);
            _mm_prefetch::<_MM_HINT_T0>(at.cast());
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(16).cast());
        }
    }
}

/// Fours of unsigned and signed INT8 into INT32. The unsigned ones are those broadcast, which the instruction cannot do by
/// itself.
///
/// # Safety
///
/// The processor has AVX-512 with VNNI; operands and sums are as large as `tile` says, and the sums are the caller's.
#[target_feature(enable = "avx512f,avx512vnni")]
pub(super) unsafe fn int8(tile: &Tile) {
    let mut sums = [[_mm512_setzero_si512(); 2]; ROWS];
    // SAFETY: packed operands and sums are as large as the tile says.
    unsafe {
        fetch(tile);
        for step in 0..tile.steps {
            let (left, right) = (tile.left.add(COLUMNS_PITCH * step), tile.right.add(128 * step));
            _mm_prefetch::<_MM_HINT_T0>(left.wrapping_add(1024).cast());
            let (low, high) = (_mm512_loadu_si512(right.cast()), _mm512_loadu_si512(right.add(64).cast()));
            for (row, sums) in sums.iter_mut().enumerate() {
                let left = _mm512_set1_epi32(left.cast::<i32>().add(row).read());
                sums[0] = _mm512_dpbusd_epi32(sums[0], left, low);
                sums[1] = _mm512_dpbusd_epi32(sums[1], left, high);
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (half, sum) in sums.iter().enumerate() {
                let at = tile.sums.add(row * tile.pitch + 16 * half).cast();
                let sum = if tile.first { *sum } else { _mm512_add_epi32(_mm512_loadu_si512(at), *sum) };
                _mm512_storeu_si512(at, sum);
            }
        }
    }
}

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
