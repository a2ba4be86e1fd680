//! Sixteen lanes.

use std::arch::x86_64::*;

use super::Vector;

#[derive(Clone, Copy)]
/// 512-bit vectors: AVX-512 F, BW, DQ and VL.
pub struct V512(__m512);

impl Vector for V512 {
    const LANES: usize = 16;
    type Bits = __m512i;
    type Sums = __m512i;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        unsafe { Self(_mm512_set1_ps(value)) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Self(_mm512_loadu_ps(from)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        }
    }
    #[inline(always)]
    unsafe fn load_fp16(from: *const u8) -> Self {
        unsafe { Self(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Self {
        unsafe { Self(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())))) }
    }
    #[inline(always)]
    unsafe fn load_e4m3(from: *const u8) -> Self {
        unsafe {
            // The sign, doubled by the extension, lands on bits 15 and 14.
            let shifted = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast())));
            Self(_mm512_cvtph_ps(_mm256_and_si256(shifted, _mm256_set1_epi16(0xbfffu16.cast_signed()))))
        }
    }
    #[inline(always)]
    unsafe fn load_e5m2(from: *const u8) -> Self {
        unsafe { Self(_mm512_cvtph_ps(_mm256_slli_epi16::<8>(_mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast()))))) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe {
            _mm512_storeu_ps(to, self.0);
        }
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        unsafe {
            _mm512_stream_ps(to, self.0);
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u8) {
        unsafe {
            let bits = _mm512_castps_si512(self.0);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
            let rounded = _mm512_mask_blend_epi32(nan, rounded, _mm512_set1_epi32(0x7fc0_0000));
            _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded)));
        }
    }
    #[inline(always)]
    unsafe fn store_fp16(self, to: *mut u8) {
        unsafe {
            _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0));
        }
    }
    #[inline(always)]
    unsafe fn store_i8(self, to: *mut u8) {
        unsafe {
            _mm_storeu_si128(to.cast(), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(self.0)));
        }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { Self(_mm512_add_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { Self(_mm512_sub_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { Self(_mm512_mul_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        unsafe { Self(_mm512_div_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn reciprocal(self) -> Self {
        unsafe {
            let y = _mm512_rcp14_ps(self.0);
            let left = _mm512_fnmadd_ps(self.0, y, _mm512_set1_ps(1.0));
            Self(_mm512_fmadd_ps(y, left, y))
        }
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        unsafe { Self(_mm512_max_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        unsafe { Self(_mm512_min_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn fma(self, factor: Self, addend: Self) -> Self {
        unsafe { Self(_mm512_fmadd_ps(self.0, factor.0, addend.0)) }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        unsafe { Self(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0)) }
    }
    #[inline(always)]
    unsafe fn scale2(self, power: Self) -> Self {
        unsafe { Self(_mm512_scalef_ps(self.0, power.0)) }
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe { _mm512_reduce_add_ps(self.0) }
    }
    #[inline(always)]
    unsafe fn maximum(self) -> f32 {
        unsafe { _mm512_reduce_max_ps(self.0) }
    }
    /// Interleave and add until each quarter of the register holds the four sums, then add the quarters.
    #[inline(always)]
    unsafe fn sum4(vectors: [Self; 4], to: *mut f32) {
        unsafe {
            let [a, b, c, d] = vectors.map(|vector| vector.0);
            let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
            let low = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
            let high = _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd));
            let quarters = _mm512_add_ps(low, high);
            let halves = _mm256_add_ps(_mm512_castps512_ps256(quarters), _mm512_extractf32x8_ps::<1>(quarters));
            _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps::<1>(halves)));
        }
    }

    #[inline(always)]
    unsafe fn bits(from: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn pieces16(from: *const u8, stride: usize) -> __m512i {
        unsafe {
            let low = _mm256_inserti128_si256::<1>(
                _mm256_castsi128_si256(_mm_loadu_si128(from.cast())),
                _mm_loadu_si128(from.add(stride).cast()),
            );
            let high = _mm256_inserti128_si256::<1>(
                _mm256_castsi128_si256(_mm_loadu_si128(from.add(2 * stride).cast())),
                _mm_loadu_si128(from.add(3 * stride).cast()),
            );
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
        }
    }
    #[inline(always)]
    unsafe fn pieces32(from: *const u8, stride: usize) -> __m512i {
        unsafe {
            let low = _mm512_castsi256_si512(_mm256_loadu_si256(from.cast()));
            _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(from.add(stride).cast()))
        }
    }
    #[inline(always)]
    unsafe fn dwords(from: *const u8, stride: usize) -> __m512i {
        unsafe {
            let mut part = [_mm_setzero_si128(); 4];
            for (index, part) in part.iter_mut().enumerate() {
                *part = _mm_set1_epi32(from.add(index * stride).cast::<i32>().read_unaligned());
            }
            let low = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(part[0]), part[1]);
            let high = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(part[2]), part[3]);
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
        }
    }
    #[inline(always)]
    unsafe fn repeated16(from: *const u8) -> __m512i {
        unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn has8(a: __m512i, mask: __m512i) -> __m512i {
        unsafe { _mm512_movm_epi8(_mm512_cmpeq_epi8_mask(_mm512_and_si512(a, mask), mask)) }
    }
    #[inline(always)]
    unsafe fn store_bits(bits: __m512i, to: *mut u8) {
        unsafe {
            _mm512_storeu_si512(to.cast(), bits);
        }
    }
    #[inline(always)]
    unsafe fn splat8(value: u8) -> __m512i {
        unsafe { _mm512_set1_epi8(value.cast_signed()) }
    }
    #[inline(always)]
    unsafe fn splat16(value: u16) -> __m512i {
        unsafe { _mm512_set1_epi16(value.cast_signed()) }
    }
    #[inline(always)]
    unsafe fn splat32(value: u32) -> __m512i {
        unsafe { _mm512_set1_epi32(value.cast_signed()) }
    }
    #[inline(always)]
    unsafe fn and(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn xor(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_xor_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn shl16<const N: i32>(a: __m512i) -> __m512i {
        unsafe { _mm512_sll_epi16(a, _mm_cvtsi32_si128(N)) }
    }
    #[inline(always)]
    unsafe fn shr16<const N: i32>(a: __m512i) -> __m512i {
        unsafe { _mm512_srl_epi16(a, _mm_cvtsi32_si128(N)) }
    }
    #[inline(always)]
    unsafe fn sar16<const N: i32>(a: __m512i) -> __m512i {
        unsafe { _mm512_sra_epi16(a, _mm_cvtsi32_si128(N)) }
    }
    #[inline(always)]
    unsafe fn shl32<const N: i32>(a: __m512i) -> __m512i {
        unsafe { _mm512_sll_epi32(a, _mm_cvtsi32_si128(N)) }
    }
    #[inline(always)]
    unsafe fn mul16(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_mullo_epi16(a, b) }
    }
    #[inline(always)]
    unsafe fn lookup(table: __m512i, index: __m512i) -> __m512i {
        unsafe { _mm512_shuffle_epi8(table, index) }
    }
    #[inline(always)]
    unsafe fn shuffle(a: __m512i, index: __m512i) -> __m512i {
        unsafe { _mm512_shuffle_epi8(a, index) }
    }
    #[inline(always)]
    unsafe fn zip_low(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_unpacklo_epi8(a, b) }
    }
    #[inline(always)]
    unsafe fn zip_high(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_unpackhi_epi8(a, b) }
    }
    #[inline(always)]
    unsafe fn as_floats(a: __m512i) -> Self {
        unsafe { Self(_mm512_castsi512_ps(a)) }
    }
    #[inline(always)]
    unsafe fn floats(a: __m512i) -> Self {
        unsafe { Self(_mm512_cvtepi32_ps(a)) }
    }
    #[inline(always)]
    unsafe fn add32(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn sums(from: *const i32) -> __m512i {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn no_sums() -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn multiply16(sums: __m512i, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(sums, _mm512_madd_epi16(a, b)) }
    }
    #[inline(always)]
    unsafe fn totals(sums: __m512i) -> __m512i {
        sums
    }
    #[inline(always)]
    unsafe fn spread<const SPAN: usize>(from: *const f32) -> Self {
        unsafe {
            Self(match SPAN {
                1 => _mm512_loadu_ps(from),
                2 => {
                    let pairs = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
                    _mm512_permutexvar_ps(pairs, _mm512_castps256_ps512(_mm256_loadu_ps(from)))
                }
                4 => {
                    let fours = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
                    _mm512_permutexvar_ps(fours, _mm512_castps128_ps512(_mm_loadu_ps(from)))
                }
                8 => {
                    let eights = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
                    let both = _mm_castpd_ps(_mm_load_sd(from.cast()));
                    _mm512_permutexvar_ps(eights, _mm512_castps128_ps512(both))
                }
                _ => _mm512_set1_ps(*from),
            })
        }
    }
    #[inline(always)]
    unsafe fn four_fp16(codes: u64, to: *mut f32) {
        unsafe {
            _mm_storeu_ps(to, _mm_cvtph_ps(_mm_cvtsi64_si128(codes.cast_signed())));
        }
    }
    #[inline(always)]
    unsafe fn eight_e4m3(from: *const u8, to: *mut f32) {
        unsafe {
            let shifted = _mm_slli_epi16::<7>(_mm_cvtepi8_epi16(_mm_loadl_epi64(from.cast())));
            let half = _mm_and_si128(shifted, _mm_set1_epi16(0xbfffu16.cast_signed()));
            _mm256_storeu_ps(to, _mm256_cvtph_ps(half));
        }
    }
    #[inline(always)]
    unsafe fn store_i16(self, to: *mut i16) {
        unsafe {
            _mm256_storeu_si256(to.cast(), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(self.0)));
        }
    }
    #[inline(always)]
    unsafe fn sar32<const N: i32>(a: __m512i) -> __m512i {
        unsafe { _mm512_sra_epi32(a, _mm_cvtsi32_si128(N)) }
    }
    #[inline(always)]
    unsafe fn sixteen_i8(low: (u64, f32), high: (u64, f32), to: *mut f32) {
        unsafe {
            let bytes = _mm_set_epi64x(high.0.cast_signed(), low.0.cast_signed());
            let factors = _mm512_insertf32x8::<1>(_mm512_set1_ps(low.1), _mm256_set1_ps(high.1));
            _mm512_storeu_ps(to, _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), factors));
        }
    }
}
