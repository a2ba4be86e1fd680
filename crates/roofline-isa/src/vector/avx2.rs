//! Eight lanes.

use std::arch::x86_64::*;

use super::Vector;

#[derive(Clone, Copy)]
/// 256-bit vectors: AVX2, FMA and F16C.
pub struct V256(__m256);

impl Vector for V256 {
    const LANES: usize = 8;
    type Bits = __m256i;
    type Sums = __m256i;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        unsafe { Self(_mm256_set1_ps(value)) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Self(_mm256_loadu_ps(from)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            Self(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide)))
        }
    }
    #[inline(always)]
    unsafe fn load_fp16(from: *const u8) -> Self {
        unsafe { Self(_mm256_cvtph_ps(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Self {
        unsafe { Self(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast())))) }
    }
    #[inline(always)]
    unsafe fn load_e4m3(from: *const u8) -> Self {
        unsafe {
            // The sign, doubled by the extension, lands on bits 15 and 14.
            let shifted = _mm_slli_epi16::<7>(_mm_cvtepi8_epi16(_mm_loadl_epi64(from.cast())));
            Self(_mm256_cvtph_ps(_mm_and_si128(shifted, _mm_set1_epi16(0xbfffu16.cast_signed()))))
        }
    }
    #[inline(always)]
    unsafe fn load_e5m2(from: *const u8) -> Self {
        unsafe { Self(_mm256_cvtph_ps(_mm_slli_epi16::<8>(_mm_cvtepu8_epi16(_mm_loadl_epi64(from.cast()))))) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe {
            _mm256_storeu_ps(to, self.0);
        }
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        unsafe {
            _mm256_stream_ps(to, self.0);
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u8) {
        unsafe {
            let bits = _mm256_castps_si256(self.0);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0);
            let quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc0_0000));
            let rounded = _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(rounded), quiet, nan));
            let words = _mm256_srli_epi32::<16>(rounded);
            let packed = _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(to.cast(), packed);
        }
    }
    #[inline(always)]
    unsafe fn store_fp16(self, to: *mut u8) {
        unsafe {
            _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0));
        }
    }
    #[inline(always)]
    unsafe fn store_i8(self, to: *mut u8) {
        unsafe {
            let whole = _mm256_cvtps_epi32(self.0);
            let words = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256::<1>(whole));
            _mm_storel_epi64(to.cast(), _mm_packs_epi16(words, words));
        }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { Self(_mm256_add_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { Self(_mm256_sub_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { Self(_mm256_mul_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        unsafe { Self(_mm256_div_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn reciprocal(self) -> Self {
        unsafe {
            let y = _mm256_rcp_ps(self.0);
            let left = _mm256_fnmadd_ps(self.0, y, _mm256_set1_ps(1.0));
            Self(_mm256_fmadd_ps(y, left, y))
        }
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        unsafe { Self(_mm256_max_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        unsafe { Self(_mm256_min_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn fma(self, factor: Self, addend: Self) -> Self {
        unsafe { Self(_mm256_fmadd_ps(self.0, factor.0, addend.0)) }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        unsafe { Self(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0)) }
    }
    #[inline(always)]
    unsafe fn scale2(self, power: Self) -> Self {
        unsafe {
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(power.0), _mm256_set1_epi32(127));
            Self(_mm256_mul_ps(self.0, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))))
        }
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    unsafe fn maximum(self) -> f32 {
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    unsafe fn sum4(vectors: [Self; 4], to: *mut f32) {
        unsafe {
            let [a, b, c, d] = vectors.map(|vector| vector.0);
            let ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            let (ab, cd) = (_mm256_castps_pd(ab), _mm256_castps_pd(cd));
            let low = _mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd));
            let high = _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd));
            let halves = _mm256_add_ps(low, high);
            _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps::<1>(halves)));
        }
    }

    #[inline(always)]
    unsafe fn bits(from: *const u8) -> __m256i {
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    unsafe fn pieces16(from: *const u8, stride: usize) -> __m256i {
        unsafe {
            _mm256_inserti128_si256::<1>(
                _mm256_castsi128_si256(_mm_loadu_si128(from.cast())),
                _mm_loadu_si128(from.add(stride).cast()),
            )
        }
    }
    #[inline(always)]
    unsafe fn pieces32(from: *const u8, _: usize) -> __m256i {
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    unsafe fn dwords(from: *const u8, stride: usize) -> __m256i {
        unsafe {
            let (low, high) = (from.cast::<i32>().read_unaligned(), from.add(stride).cast::<i32>().read_unaligned());
            _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(_mm_set1_epi32(low)), _mm_set1_epi32(high))
        }
    }
    #[inline(always)]
    unsafe fn repeated16(from: *const u8) -> __m256i {
        unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn has8(a: __m256i, mask: __m256i) -> __m256i {
        unsafe { _mm256_cmpeq_epi8(_mm256_and_si256(a, mask), mask) }
    }
    #[inline(always)]
    unsafe fn store_bits(bits: __m256i, to: *mut u8) {
        unsafe {
            _mm256_storeu_si256(to.cast(), bits);
        }
    }
    #[inline(always)]
    unsafe fn splat8(value: u8) -> __m256i {
        unsafe { _mm256_set1_epi8(value.cast_signed()) }
    }
    #[inline(always)]
    unsafe fn splat16(value: u16) -> __m256i {
        unsafe { _mm256_set1_epi16(value.cast_signed()) }
    }
    #[inline(always)]
    unsafe fn splat32(value: u32) -> __m256i {
        unsafe { _mm256_set1_epi32(value.cast_signed()) }
    }
    #[inline(always)]
    unsafe fn and(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_and_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_or_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn xor(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_xor_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn shl16<const N: i32>(a: __m256i) -> __m256i {
        unsafe { _mm256_slli_epi16::<N>(a) }
    }
    #[inline(always)]
    unsafe fn shr16<const N: i32>(a: __m256i) -> __m256i {
        unsafe { _mm256_srli_epi16::<N>(a) }
    }
    #[inline(always)]
    unsafe fn sar16<const N: i32>(a: __m256i) -> __m256i {
        unsafe { _mm256_srai_epi16::<N>(a) }
    }
    #[inline(always)]
    unsafe fn shl32<const N: i32>(a: __m256i) -> __m256i {
        unsafe { _mm256_slli_epi32::<N>(a) }
    }
    #[inline(always)]
    unsafe fn mul16(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_mullo_epi16(a, b) }
    }
    #[inline(always)]
    unsafe fn lookup(table: __m256i, index: __m256i) -> __m256i {
        unsafe { _mm256_shuffle_epi8(table, index) }
    }
    #[inline(always)]
    unsafe fn shuffle(a: __m256i, index: __m256i) -> __m256i {
        unsafe { _mm256_shuffle_epi8(a, index) }
    }
    #[inline(always)]
    unsafe fn zip_low(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_unpacklo_epi8(a, b) }
    }
    #[inline(always)]
    unsafe fn zip_high(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_unpackhi_epi8(a, b) }
    }
    #[inline(always)]
    unsafe fn as_floats(a: __m256i) -> Self {
        unsafe { Self(_mm256_castsi256_ps(a)) }
    }
    #[inline(always)]
    unsafe fn floats(a: __m256i) -> Self {
        unsafe { Self(_mm256_cvtepi32_ps(a)) }
    }
    #[inline(always)]
    unsafe fn add32(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn sums(from: *const i32) -> __m256i {
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    unsafe fn no_sums() -> __m256i {
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    unsafe fn multiply16(sums: __m256i, a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_add_epi32(sums, _mm256_madd_epi16(a, b)) }
    }
    #[inline(always)]
    unsafe fn totals(sums: __m256i) -> __m256i {
        sums
    }
    #[inline(always)]
    unsafe fn spread<const SPAN: usize>(from: *const f32) -> Self {
        unsafe {
            Self(match SPAN {
                1 => _mm256_loadu_ps(from),
                2 => {
                    let pairs = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
                    _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(from)), pairs)
                }
                4 => {
                    let fours = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
                    let both = _mm_castpd_ps(_mm_load_sd(from.cast()));
                    _mm256_permutevar8x32_ps(_mm256_castps128_ps256(both), fours)
                }
                _ => _mm256_broadcast_ss(&*from),
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
            let whole = _mm256_cvtps_epi32(self.0);
            let words = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256::<1>(whole));
            _mm_storeu_si128(to.cast(), words);
        }
    }
    #[inline(always)]
    unsafe fn sar32<const N: i32>(a: __m256i) -> __m256i {
        unsafe { _mm256_srai_epi32::<N>(a) }
    }
    #[inline(always)]
    unsafe fn sixteen_i8(low: (u64, f32), high: (u64, f32), to: *mut f32) {
        unsafe {
            for (half, (bytes, factor)) in [low, high].into_iter().enumerate() {
                let wide = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(bytes.cast_signed())));
                _mm256_storeu_ps(to.add(8 * half), _mm256_mul_ps(wide, _mm256_set1_ps(factor)));
            }
        }
    }
}
