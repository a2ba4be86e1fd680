//! Eight lanes in two registers, by what every x86-64 processor has: plain loops over bytes that are words that are dwords
//! are what compilers make nothing of.
//!
//! Bytes by index have no instruction here; numbers are made FP16 one by one.

use std::arch::x86_64::*;

use super::Vector;
use crate::number::to_fp16;

#[derive(Clone, Copy)]
/// Two 128-bit vectors: SSE2.
pub struct Pair([__m128; 2]);

type Bits = [__m128i; 2];

/// Of both registers, one after the other: `map` of arrays may be called rather than inlined, and then has no registers.
#[inline(always)]
fn each<A: Copy, B>(a: [A; 2], f: impl Fn(A) -> B) -> [B; 2] {
    [f(a[0]), f(a[1])]
}

#[inline(always)]
fn both(a: Bits, b: Bits, f: impl Fn(__m128i, __m128i) -> __m128i) -> Bits {
    [f(a[0], b[0]), f(a[1], b[1])]
}

/// The first of two where the mask has ones.
#[inline(always)]
unsafe fn select(mask: __m128i, one: __m128i, other: __m128i) -> __m128i {
    unsafe { _mm_or_si128(_mm_and_si128(mask, one), _mm_andnot_si128(mask, other)) }
}

/// Eight words as dwords, zeros above.
#[inline(always)]
unsafe fn widened(words: __m128i) -> Bits {
    unsafe { [_mm_unpacklo_epi16(words, _mm_setzero_si128()), _mm_unpackhi_epi16(words, _mm_setzero_si128())] }
}

/// Eight signed bytes, the lower half of a register, as dwords.
#[inline(always)]
unsafe fn extended(bytes: __m128i) -> Bits {
    unsafe {
        let words = _mm_unpacklo_epi8(bytes, bytes);
        let dwords = [_mm_unpacklo_epi16(words, words), _mm_unpackhi_epi16(words, words)];
        each(dwords, |dwords| _mm_srai_epi32::<24>(dwords))
    }
}

/// Eight E4M3 numbers as the words of FP16 numbers that are 2^8 times too small.
#[inline(always)]
unsafe fn e4m3(from: *const u8) -> __m128i {
    unsafe {
        let bytes = _mm_loadl_epi64(from.cast());
        // The sign, doubled by the extension, lands on bits 15 and 14.
        let words = _mm_srai_epi16::<8>(_mm_unpacklo_epi8(bytes, bytes));
        _mm_and_si128(_mm_slli_epi16::<7>(words), _mm_set1_epi16(0xbfffu16.cast_signed()))
    }
}

/// Four FP16 numbers in the lower halves of dwords. Exponents grow by 112; the largest, of what is no number, by as much again;
/// what has none is counted from 2^-14.
#[inline(always)]
unsafe fn from_fp16(dwords: __m128i) -> __m128 {
    unsafe {
        let magnitude = _mm_and_si128(dwords, _mm_set1_epi32(0x7fff));
        let moved = _mm_slli_epi32::<13>(magnitude);
        let more = _mm_set1_epi32(112 << 23);
        let special = _mm_and_si128(_mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x7bff)), more);
        let normal = _mm_add_epi32(_mm_add_epi32(moved, more), special);
        let least = _mm_set1_epi32(113 << 23);
        let small = _mm_sub_ps(_mm_castsi128_ps(_mm_add_epi32(moved, least)), _mm_castsi128_ps(least));
        let small_ones = _mm_cmplt_epi32(magnitude, _mm_set1_epi32(0x0400));
        let sign = _mm_slli_epi32::<16>(_mm_and_si128(dwords, _mm_set1_epi32(0x8000)));
        _mm_castsi128_ps(_mm_or_si128(select(small_ones, _mm_castps_si128(small), normal), sign))
    }
}

/// Dwords that fit in words as words.
#[inline(always)]
unsafe fn packed(dwords: Bits) -> __m128i {
    unsafe { _mm_packs_epi32(dwords[0], dwords[1]) }
}

/// Bytes of a table by an index from 0 to 15, or zero by any other: of each entry in turn those bytes that ask for it. A table
/// that stays the same is spread once.
#[inline(always)]
unsafe fn found(table: __m128i, index: __m128i) -> __m128i {
    unsafe {
        let mut entries = [0u8; 16];
        _mm_storeu_si128(entries.as_mut_ptr().cast(), table);
        let mut found = _mm_setzero_si128();
        for (at, entry) in entries.iter().enumerate() {
            let asked = _mm_cmpeq_epi8(index, _mm_set1_epi8(at as i8));
            found = _mm_or_si128(found, _mm_and_si128(asked, _mm_set1_epi8(entry.cast_signed())));
        }
        found
    }
}

impl Pair {
    #[inline(always)]
    fn each(self, f: impl Fn(__m128) -> __m128) -> Self {
        Self(each(self.0, f))
    }

    #[inline(always)]
    fn both(self, other: Self, f: impl Fn(__m128, __m128) -> __m128) -> Self {
        Self([f(self.0[0], other.0[0]), f(self.0[1], other.0[1])])
    }

    /// To the nearest whole number that a dword holds.
    #[inline(always)]
    unsafe fn whole(self) -> Bits {
        unsafe { each(self.0, |vector| _mm_cvtps_epi32(vector)) }
    }
}

impl Vector for Pair {
    const LANES: usize = 8;
    const TILED: bool = false;
    type Bits = Bits;
    type Sums = Bits;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        unsafe { Self([_mm_set1_ps(value); 2]) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Self([_mm_loadu_ps(from), _mm_loadu_ps(from.add(4))]) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        unsafe {
            let (words, zero) = (_mm_loadu_si128(from.cast()), _mm_setzero_si128());
            Self::as_floats([_mm_unpacklo_epi16(zero, words), _mm_unpackhi_epi16(zero, words)])
        }
    }
    #[inline(always)]
    unsafe fn load_fp16(from: *const u8) -> Self {
        unsafe { Self(each(widened(_mm_loadu_si128(from.cast())), |dwords| from_fp16(dwords))) }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Self {
        unsafe { Self::floats(extended(_mm_loadl_epi64(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_e4m3(from: *const u8) -> Self {
        unsafe { Self(each(widened(e4m3(from)), |dwords| from_fp16(dwords))) }
    }
    #[inline(always)]
    unsafe fn load_e5m2(from: *const u8) -> Self {
        unsafe {
            let words = _mm_unpacklo_epi8(_mm_setzero_si128(), _mm_loadl_epi64(from.cast()));
            Self(each(widened(words), |dwords| from_fp16(dwords)))
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe {
            _mm_storeu_ps(to, self.0[0]);
            _mm_storeu_ps(to.add(4), self.0[1]);
        }
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        unsafe {
            _mm_stream_ps(to, self.0[0]);
            _mm_stream_ps(to.add(4), self.0[1]);
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u8) {
        unsafe {
            let words = each(self.0, |vector| {
                let bits = _mm_castps_si128(vector);
                let odd = _mm_and_si128(_mm_srli_epi32::<16>(bits), _mm_set1_epi32(1));
                let rounded = _mm_add_epi32(bits, _mm_add_epi32(odd, _mm_set1_epi32(0x7fff)));
                let nan = _mm_castps_si128(_mm_cmpunord_ps(vector, vector));
                _mm_srai_epi32::<16>(select(nan, _mm_set1_epi32(0x7fc0_0000), rounded))
            });
            _mm_storeu_si128(to.cast(), packed(words));
        }
    }
    #[inline(always)]
    unsafe fn store_fp16(self, to: *mut u8) {
        unsafe {
            let mut values = [0.0; 8];
            self.store(values.as_mut_ptr());
            for (lane, value) in values.iter().enumerate() {
                to.cast::<u16>().add(lane).write_unaligned(to_fp16(*value));
            }
        }
    }
    #[inline(always)]
    unsafe fn store_i8(self, to: *mut u8) {
        unsafe {
            let words = packed(self.whole());
            _mm_storel_epi64(to.cast(), _mm_packs_epi16(words, words));
        }
    }
    #[inline(always)]
    unsafe fn store_i16(self, to: *mut i16) {
        unsafe {
            _mm_storeu_si128(to.cast(), packed(self.whole()));
        }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { self.both(other, |a, b| _mm_add_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { self.both(other, |a, b| _mm_sub_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { self.both(other, |a, b| _mm_mul_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        unsafe { self.both(other, |a, b| _mm_div_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        unsafe { self.both(other, |a, b| _mm_max_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        unsafe { self.both(other, |a, b| _mm_min_ps(a, b)) }
    }
    /// Rounded twice.
    #[inline(always)]
    unsafe fn fma(self, factor: Self, addend: Self) -> Self {
        unsafe { self.mul(factor).add(addend) }
    }
    /// Adding and taking away 3 * 2^22 leaves no place for a fraction.
    #[inline(always)]
    unsafe fn round(self) -> Self {
        unsafe {
            let large = _mm_set1_ps(12_582_912.0);
            self.each(|vector| _mm_sub_ps(_mm_add_ps(vector, large), large))
        }
    }
    #[inline(always)]
    unsafe fn scale2(self, power: Self) -> Self {
        unsafe {
            let exponents =
                each(power.whole(), |dwords| _mm_slli_epi32::<23>(_mm_add_epi32(dwords, _mm_set1_epi32(127))));
            self.mul(Self::as_floats(exponents))
        }
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe {
            let four = _mm_add_ps(self.0[0], self.0[1]);
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    unsafe fn maximum(self) -> f32 {
        unsafe {
            let four = _mm_max_ps(self.0[0], self.0[1]);
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    unsafe fn sum4(vectors: [Self; 4], to: *mut f32) {
        unsafe {
            for (lane, vector) in vectors.iter().enumerate() {
                to.add(lane).write(vector.sum());
            }
        }
    }

    #[inline(always)]
    unsafe fn bits(from: *const u8) -> Bits {
        unsafe { Self::pieces16(from, 16) }
    }
    #[inline(always)]
    unsafe fn pieces16(from: *const u8, stride: usize) -> Bits {
        unsafe { [_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(stride).cast())] }
    }
    #[inline(always)]
    unsafe fn pieces32(from: *const u8, _: usize) -> Bits {
        unsafe { Self::bits(from) }
    }
    #[inline(always)]
    unsafe fn dwords(from: *const u8, stride: usize) -> Bits {
        unsafe { each([0, stride], |at| _mm_set1_epi32(from.add(at).cast::<i32>().read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn repeated16(from: *const u8) -> Bits {
        unsafe { [_mm_loadu_si128(from.cast()); 2] }
    }
    #[inline(always)]
    unsafe fn store_bits(bits: Bits, to: *mut u8) {
        unsafe {
            _mm_storeu_si128(to.cast(), bits[0]);
            _mm_storeu_si128(to.add(16).cast(), bits[1]);
        }
    }
    #[inline(always)]
    unsafe fn splat8(value: u8) -> Bits {
        unsafe { [_mm_set1_epi8(value.cast_signed()); 2] }
    }
    #[inline(always)]
    unsafe fn splat16(value: u16) -> Bits {
        unsafe { [_mm_set1_epi16(value.cast_signed()); 2] }
    }
    #[inline(always)]
    unsafe fn splat32(value: u32) -> Bits {
        unsafe { [_mm_set1_epi32(value.cast_signed()); 2] }
    }
    #[inline(always)]
    unsafe fn and(a: Bits, b: Bits) -> Bits {
        unsafe { both(a, b, |a, b| _mm_and_si128(a, b)) }
    }
    #[inline(always)]
    unsafe fn or(a: Bits, b: Bits) -> Bits {
        unsafe { both(a, b, |a, b| _mm_or_si128(a, b)) }
    }
    #[inline(always)]
    unsafe fn xor(a: Bits, b: Bits) -> Bits {
        unsafe { both(a, b, |a, b| _mm_xor_si128(a, b)) }
    }
    #[inline(always)]
    unsafe fn shl16<const N: i32>(a: Bits) -> Bits {
        unsafe { each(a, |a| _mm_slli_epi16::<N>(a)) }
    }
    #[inline(always)]
    unsafe fn shr16<const N: i32>(a: Bits) -> Bits {
        unsafe { each(a, |a| _mm_srli_epi16::<N>(a)) }
    }
    #[inline(always)]
    unsafe fn sar16<const N: i32>(a: Bits) -> Bits {
        unsafe { each(a, |a| _mm_srai_epi16::<N>(a)) }
    }
    #[inline(always)]
    unsafe fn shl32<const N: i32>(a: Bits) -> Bits {
        unsafe { each(a, |a| _mm_slli_epi32::<N>(a)) }
    }
    #[inline(always)]
    unsafe fn sar32<const N: i32>(a: Bits) -> Bits {
        unsafe { each(a, |a| _mm_srai_epi32::<N>(a)) }
    }
    #[inline(always)]
    unsafe fn mul16(a: Bits, b: Bits) -> Bits {
        unsafe { both(a, b, |a, b| _mm_mullo_epi16(a, b)) }
    }
    #[inline(always)]
    unsafe fn has8(a: Bits, mask: Bits) -> Bits {
        unsafe { both(a, mask, |a, mask| _mm_cmpeq_epi8(_mm_and_si128(a, mask), mask)) }
    }
    #[inline(always)]
    unsafe fn lookup(table: Bits, index: Bits) -> Bits {
        unsafe { both(table, index, |table, index| found(table, index)) }
    }
    #[inline(always)]
    unsafe fn shuffle(a: Bits, index: Bits) -> Bits {
        unsafe { both(a, Self::and(index, Self::splat8(0x8f)), |a, index| found(a, index)) }
    }
    #[inline(always)]
    unsafe fn zip_low(a: Bits, b: Bits) -> Bits {
        unsafe { both(a, b, |a, b| _mm_unpacklo_epi8(a, b)) }
    }
    #[inline(always)]
    unsafe fn zip_high(a: Bits, b: Bits) -> Bits {
        unsafe { both(a, b, |a, b| _mm_unpackhi_epi8(a, b)) }
    }
    #[inline(always)]
    unsafe fn as_floats(a: Bits) -> Self {
        unsafe { Self(each(a, |a| _mm_castsi128_ps(a))) }
    }
    #[inline(always)]
    unsafe fn floats(a: Bits) -> Self {
        unsafe { Self(each(a, |a| _mm_cvtepi32_ps(a))) }
    }
    #[inline(always)]
    unsafe fn add32(a: Bits, b: Bits) -> Bits {
        unsafe { both(a, b, |a, b| _mm_add_epi32(a, b)) }
    }
    #[inline(always)]
    unsafe fn sums(from: *const i32) -> Bits {
        unsafe { Self::bits(from.cast()) }
    }
    #[inline(always)]
    unsafe fn no_sums() -> Bits {
        unsafe { [_mm_setzero_si128(); 2] }
    }
    #[inline(always)]
    unsafe fn multiply16(sums: Bits, a: Bits, b: Bits) -> Bits {
        unsafe { Self::add32(sums, both(a, b, |a, b| _mm_madd_epi16(a, b))) }
    }
    #[inline(always)]
    unsafe fn totals(sums: Bits) -> Bits {
        sums
    }
    #[inline(always)]
    unsafe fn spread<const SPAN: usize>(from: *const f32) -> Self {
        unsafe {
            match SPAN {
                1 => Self::load(from),
                2 => {
                    let four = _mm_loadu_ps(from);
                    Self([_mm_unpacklo_ps(four, four), _mm_unpackhi_ps(four, four)])
                }
                4 => Self([_mm_set1_ps(*from), _mm_set1_ps(*from.add(1))]),
                _ => Self::splat(*from),
            }
        }
    }
    #[inline(always)]
    unsafe fn four_fp16(codes: u64, to: *mut f32) {
        unsafe {
            let dwords = _mm_unpacklo_epi16(_mm_cvtsi64_si128(codes.cast_signed()), _mm_setzero_si128());
            _mm_storeu_ps(to, from_fp16(dwords));
        }
    }
    #[inline(always)]
    unsafe fn eight_e4m3(from: *const u8, to: *mut f32) {
        unsafe {
            Self::load_e4m3(from).store(to);
        }
    }
    #[inline(always)]
    unsafe fn sixteen_i8(low: (u64, f32), high: (u64, f32), to: *mut f32) {
        unsafe {
            for (half, (bytes, factor)) in [low, high].into_iter().enumerate() {
                let wide = Self::floats(extended(_mm_cvtsi64_si128(bytes.cast_signed())));
                wide.mul(Self::splat(factor)).store(to.add(8 * half));
            }
        }
    }
}
