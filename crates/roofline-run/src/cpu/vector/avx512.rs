//! Sixteen lanes.

use std::arch::x86_64::*;

use super::Vector;

#[derive(Clone, Copy)]
pub(crate) struct V512(__m512);

impl Vector for V512 {
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self(_mm512_set1_ps(value))
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        Self(_mm512_loadu_ps(from))
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
        Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
    }
    #[inline(always)]
    unsafe fn load_fp16(from: *const u8) -> Self {
        Self(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast())))
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Self {
        Self(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))))
    }
    #[inline(always)]
    unsafe fn load_e4m3(from: *const u8) -> Self {
        // The sign, doubled by the extension, lands on bits 15 and 14.
        let shifted = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast())));
        Self(_mm512_cvtph_ps(_mm256_and_si256(shifted, _mm256_set1_epi16(0xbfffu16.cast_signed()))))
    }
    #[inline(always)]
    unsafe fn load_e5m2(from: *const u8) -> Self {
        Self(_mm512_cvtph_ps(_mm256_slli_epi16::<8>(_mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast())))))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        _mm512_storeu_ps(to, self.0);
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        _mm512_stream_ps(to, self.0);
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u8) {
        let bits = _mm512_castps_si512(self.0);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
        let rounded = _mm512_mask_blend_epi32(nan, rounded, _mm512_set1_epi32(0x7fc0_0000));
        _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded)));
    }
    #[inline(always)]
    unsafe fn store_fp16(self, to: *mut u8) {
        _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0));
    }
    #[inline(always)]
    unsafe fn store_i8(self, to: *mut u8) {
        _mm_storeu_si128(to.cast(), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(self.0)));
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(_mm512_add_ps(self.0, other.0))
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        Self(_mm512_sub_ps(self.0, other.0))
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        Self(_mm512_mul_ps(self.0, other.0))
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        Self(_mm512_div_ps(self.0, other.0))
    }
    #[inline(always)]
    unsafe fn reciprocal(self) -> Self {
        let y = _mm512_rcp14_ps(self.0);
        let left = _mm512_fnmadd_ps(self.0, y, _mm512_set1_ps(1.0));
        Self(_mm512_fmadd_ps(y, left, y))
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        Self(_mm512_max_ps(self.0, other.0))
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        Self(_mm512_min_ps(self.0, other.0))
    }
    #[inline(always)]
    unsafe fn fma(self, factor: Self, addend: Self) -> Self {
        Self(_mm512_fmadd_ps(self.0, factor.0, addend.0))
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        Self(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0))
    }
    #[inline(always)]
    unsafe fn scale2(self, power: Self) -> Self {
        Self(_mm512_scalef_ps(self.0, power.0))
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        _mm512_reduce_add_ps(self.0)
    }
    #[inline(always)]
    unsafe fn maximum(self) -> f32 {
        _mm512_reduce_max_ps(self.0)
    }
    /// Interleave and add until each quarter of the register holds the four sums, then add the quarters.
    #[inline(always)]
    unsafe fn sum4(vectors: [Self; 4], to: *mut f32) {
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
