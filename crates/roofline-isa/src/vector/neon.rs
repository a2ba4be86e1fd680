//! Four lanes of ARM.

use std::arch::{aarch64::*, asm};

use super::Vector;
use crate::number::to_fp16;

#[derive(Clone, Copy)]
/// 128-bit vectors: every 64-bit ARM has them.
pub struct V128(float32x4_t);

/// Four FP16 numbers as FP32.
#[inline(always)]
fn half(from: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    // SAFETY: every 64-bit ARM has the instruction, which touches these two registers only.
    unsafe {
        asm!("fcvtl {wide:v}.4s, {half:v}.4h", wide = out(vreg) wide, half = in(vreg) from, options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

/// Four bytes, twice.
///
/// # Safety
///
/// At `from` there are four bytes.
#[inline(always)]
unsafe fn four(from: *const u8) -> uint8x8_t {
    unsafe { vreinterpret_u8_u32(vdup_n_u32(from.cast::<u32>().read_unaligned())) }
}

impl Vector for V128 {
    const LANES: usize = 4;
    type Bits = uint8x16_t;
    /// Products of the lower and of the upper words.
    type Sums = (int32x4_t, int32x4_t);

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        unsafe { Self(vdupq_n_f32(value)) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Self(vld1q_f32(from)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        unsafe { Self(vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(from))))) }
    }
    #[inline(always)]
    unsafe fn load_fp16(from: *const u8) -> Self {
        unsafe { Self(half(vreinterpret_u16_u8(vld1_u8(from)))) }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Self {
        unsafe {
            let words = vmovl_s8(vreinterpret_s8_u8(four(from)));
            Self(vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))))
        }
    }
    #[inline(always)]
    unsafe fn load_e4m3(from: *const u8) -> Self {
        unsafe {
            // The sign, doubled by the extension, lands on bits 15 and 14.
            let shifted = vshl_n_s16::<7>(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(four(from)))));
            Self(half(vand_u16(vreinterpret_u16_s16(shifted), vdup_n_u16(0xbfff))))
        }
    }
    #[inline(always)]
    unsafe fn load_e5m2(from: *const u8) -> Self {
        unsafe { Self(half(vshl_n_u16::<8>(vget_low_u16(vmovl_u8(four(from)))))) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe {
            vst1q_f32(to, self.0);
        }
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        unsafe {
            self.store(to);
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u8) {
        unsafe {
            let bits = vreinterpretq_u32_f32(self.0);
            let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
            let rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
            let number = vceqq_f32(self.0, self.0);
            let kept = vbslq_u32(number, rounded, vdupq_n_u32(0x7fc0_0000));
            vst1_u8(to, vreinterpret_u8_u16(vshrn_n_u32::<16>(kept)));
        }
    }
    #[inline(always)]
    unsafe fn store_fp16(self, to: *mut u8) {
        unsafe {
            let mut values = [0f32; 4];
            self.store(values.as_mut_ptr());
            to.cast::<[u16; 4]>().write_unaligned(values.map(to_fp16));
        }
    }
    #[inline(always)]
    unsafe fn store_i8(self, to: *mut u8) {
        unsafe {
            let words = vqmovn_s32(vcvtnq_s32_f32(self.0));
            let bytes = vqmovn_s16(vcombine_s16(words, words));
            to.cast::<u32>().write_unaligned(vget_lane_u32::<0>(vreinterpret_u32_s8(bytes)));
        }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { Self(vaddq_f32(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { Self(vsubq_f32(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { Self(vmulq_f32(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        unsafe { Self(vdivq_f32(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        unsafe { Self(vmaxq_f32(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        unsafe { Self(vminq_f32(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn fma(self, factor: Self, addend: Self) -> Self {
        unsafe { Self(vfmaq_f32(addend.0, self.0, factor.0)) }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        unsafe { Self(vrndnq_f32(self.0)) }
    }
    #[inline(always)]
    unsafe fn scale2(self, power: Self) -> Self {
        unsafe {
            let biased = vaddq_s32(vcvtnq_s32_f32(power.0), vdupq_n_s32(127));
            Self(vmulq_f32(self.0, vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased))))
        }
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe { vaddvq_f32(self.0) }
    }
    #[inline(always)]
    unsafe fn maximum(self) -> f32 {
        unsafe { vmaxvq_f32(self.0) }
    }
    #[inline(always)]
    unsafe fn sum4(vectors: [Self; 4], to: *mut f32) {
        unsafe {
            let [a, b, c, d] = vectors;
            vst1q_f32(to, vpaddq_f32(vpaddq_f32(a.0, b.0), vpaddq_f32(c.0, d.0)));
        }
    }

    #[inline(always)]
    unsafe fn bits(from: *const u8) -> uint8x16_t {
        unsafe { vld1q_u8(from) }
    }
    #[inline(always)]
    unsafe fn pieces16(from: *const u8, _: usize) -> uint8x16_t {
        unsafe { vld1q_u8(from) }
    }
    #[inline(always)]
    unsafe fn pieces32(from: *const u8, _: usize) -> uint8x16_t {
        unsafe { vld1q_u8(from) }
    }
    #[inline(always)]
    unsafe fn dwords(from: *const u8, _: usize) -> uint8x16_t {
        unsafe { vreinterpretq_u8_u32(vdupq_n_u32(from.cast::<u32>().read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn repeated16(from: *const u8) -> uint8x16_t {
        unsafe { vld1q_u8(from) }
    }
    #[inline(always)]
    unsafe fn store_bits(bits: uint8x16_t, to: *mut u8) {
        unsafe {
            vst1q_u8(to, bits);
        }
    }
    #[inline(always)]
    unsafe fn splat8(value: u8) -> uint8x16_t {
        unsafe { vdupq_n_u8(value) }
    }
    #[inline(always)]
    unsafe fn splat16(value: u16) -> uint8x16_t {
        unsafe { vreinterpretq_u8_u16(vdupq_n_u16(value)) }
    }
    #[inline(always)]
    unsafe fn splat32(value: u32) -> uint8x16_t {
        unsafe { vreinterpretq_u8_u32(vdupq_n_u32(value)) }
    }
    #[inline(always)]
    unsafe fn and(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        unsafe { vandq_u8(a, b) }
    }
    #[inline(always)]
    unsafe fn or(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        unsafe { vorrq_u8(a, b) }
    }
    #[inline(always)]
    unsafe fn xor(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        unsafe { veorq_u8(a, b) }
    }
    #[inline(always)]
    unsafe fn shl16<const N: i32>(a: uint8x16_t) -> uint8x16_t {
        unsafe { vreinterpretq_u8_u16(vshlq_u16(vreinterpretq_u16_u8(a), vdupq_n_s16(N as i16))) }
    }
    #[inline(always)]
    unsafe fn shr16<const N: i32>(a: uint8x16_t) -> uint8x16_t {
        unsafe { vreinterpretq_u8_u16(vshlq_u16(vreinterpretq_u16_u8(a), vdupq_n_s16(-N as i16))) }
    }
    #[inline(always)]
    unsafe fn sar16<const N: i32>(a: uint8x16_t) -> uint8x16_t {
        unsafe { vreinterpretq_u8_s16(vshlq_s16(vreinterpretq_s16_u8(a), vdupq_n_s16(-N as i16))) }
    }
    #[inline(always)]
    unsafe fn shl32<const N: i32>(a: uint8x16_t) -> uint8x16_t {
        unsafe { vreinterpretq_u8_u32(vshlq_u32(vreinterpretq_u32_u8(a), vdupq_n_s32(N))) }
    }
    #[inline(always)]
    unsafe fn mul16(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        unsafe { vreinterpretq_u8_u16(vmulq_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b))) }
    }
    #[inline(always)]
    unsafe fn has8(a: uint8x16_t, mask: uint8x16_t) -> uint8x16_t {
        unsafe { vceqq_u8(vandq_u8(a, mask), mask) }
    }
    #[inline(always)]
    unsafe fn lookup(table: uint8x16_t, index: uint8x16_t) -> uint8x16_t {
        unsafe { vqtbl1q_u8(table, index) }
    }
    #[inline(always)]
    unsafe fn shuffle(a: uint8x16_t, index: uint8x16_t) -> uint8x16_t {
        unsafe { vqtbl1q_u8(a, index) }
    }
    #[inline(always)]
    unsafe fn zip_low(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        unsafe { vzip1q_u8(a, b) }
    }
    #[inline(always)]
    unsafe fn zip_high(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        unsafe { vzip2q_u8(a, b) }
    }
    #[inline(always)]
    unsafe fn as_floats(a: uint8x16_t) -> Self {
        unsafe { Self(vreinterpretq_f32_u8(a)) }
    }
    #[inline(always)]
    unsafe fn floats(a: uint8x16_t) -> Self {
        unsafe { Self(vcvtq_f32_s32(vreinterpretq_s32_u8(a))) }
    }
    #[inline(always)]
    unsafe fn add32(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        unsafe { vreinterpretq_u8_u32(vaddq_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b))) }
    }
    /// Where neighbours are added at the end, each number stands beside a zero.
    #[inline(always)]
    unsafe fn sums(from: *const i32) -> Self::Sums {
        unsafe {
            let (start, zero) = (vld1q_s32(from), vdupq_n_s32(0));
            (vzip1q_s32(start, zero), vzip2q_s32(start, zero))
        }
    }
    #[inline(always)]
    unsafe fn no_sums() -> Self::Sums {
        unsafe { (vdupq_n_s32(0), vdupq_n_s32(0)) }
    }
    #[inline(always)]
    unsafe fn multiply16(sums: Self::Sums, a: uint8x16_t, b: uint8x16_t) -> Self::Sums {
        unsafe {
            let (a, b) = (vreinterpretq_s16_u8(a), vreinterpretq_s16_u8(b));
            (vmlal_s16(sums.0, vget_low_s16(a), vget_low_s16(b)), vmlal_high_s16(sums.1, a, b))
        }
    }
    #[inline(always)]
    unsafe fn totals(sums: Self::Sums) -> uint8x16_t {
        unsafe { vreinterpretq_u8_s32(vpaddq_s32(sums.0, sums.1)) }
    }
    #[inline(always)]
    unsafe fn spread<const SPAN: usize>(from: *const f32) -> Self {
        unsafe {
            Self(match SPAN {
                1 => vld1q_f32(from),
                2 => {
                    let pair = vld1_f32(from);
                    vcombine_f32(vdup_lane_f32::<0>(pair), vdup_lane_f32::<1>(pair))
                }
                _ => vdupq_n_f32(*from),
            })
        }
    }
    #[inline(always)]
    unsafe fn four_fp16(codes: u64, to: *mut f32) {
        unsafe {
            vst1q_f32(to, half(vcreate_u16(codes)));
        }
    }
    #[inline(always)]
    unsafe fn eight_e4m3(from: *const u8, to: *mut f32) {
        unsafe {
            Self::load_e4m3(from).store(to);
            Self::load_e4m3(from.add(4)).store(to.add(4));
        }
    }
    #[inline(always)]
    unsafe fn store_i16(self, to: *mut i16) {
        unsafe {
            vst1_s16(to, vqmovn_s32(vcvtnq_s32_f32(self.0)));
        }
    }
    #[inline(always)]
    unsafe fn sar32<const N: i32>(a: uint8x16_t) -> uint8x16_t {
        unsafe { vreinterpretq_u8_s32(vshlq_s32(vreinterpretq_s32_u8(a), vdupq_n_s32(-N))) }
    }
    #[inline(always)]
    unsafe fn sixteen_i8(low: (u64, f32), high: (u64, f32), to: *mut f32) {
        unsafe {
            for (half, (bytes, factor)) in [low, high].into_iter().enumerate() {
                let words = vmovl_s8(vcreate_s8(bytes));
                let (first, last) = (vmovl_s16(vget_low_s16(words)), vmovl_s16(vget_high_s16(words)));
                vst1q_f32(to.add(8 * half), vmulq_n_f32(vcvtq_f32_s32(first), factor));
                vst1q_f32(to.add(8 * half + 4), vmulq_n_f32(vcvtq_f32_s32(last), factor));
            }
        }
    }
}
