//! Vectors of FP32 numbers, one width per instruction set, and the bytes of a register: a kernel is written once.
//!
//! A kernel is a value with a generic `run`; [`launch`] calls it inside a function that has the instruction set enabled.
//! Everything below must be `inline(always)`: a call that stays a call has no vector registers to pass values in.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(any(test, not(target_arch = "x86_64")))]
mod portable;
#[cfg(target_arch = "x86_64")]
mod sse2;

#[cfg(target_arch = "x86_64")]
pub use avx2::V256;
#[cfg(target_arch = "x86_64")]
pub use avx512::V512;
#[cfg(target_arch = "aarch64")]
pub use neon::V128;
/// What runs where nothing wider was found, or was allowed: every processor of the target has it.
#[cfg(not(target_arch = "x86_64"))]
pub use portable::Plain as Base;
/// What runs where nothing wider was found, or was allowed: every processor of the target has it.
#[cfg(target_arch = "x86_64")]
pub use sse2::Pair as Base;

use crate::{Isa, Level};

/// `LANES` numbers in FP32.
///
/// Every method needs the instruction set of its type, which is what [`launch`] sees to. Pointers may have any alignment,
/// but for [`Vector::stream`].
pub trait Vector: Copy {
    /// FP32 numbers of a vector.
    const LANES: usize;
    /// Whether there are enough registers, and instructions worth having, to multiply several rows with several others in
    /// them; plain loops are compiled once, for any processor, and are quick to compile rather than quick.
    const TILED: bool = true;
    /// Bytes of a register.
    const BYTES: usize = 4 * Self::LANES;
    /// A register as bytes, words or dwords.
    type Bits: Copy;
    /// INT32 sums of INT16 products that are not yet in the order of dwords.
    type Sums: Copy;

    with_contract! {
        "",
        /// One number in every lane.
        unsafe fn splat(value: f32) -> Self;
    }
    with_contract! {
        ", and at `from` there are `LANES` stored numbers",
        /// `LANES` numbers.
        unsafe fn load(from: *const f32) -> Self;
        /// BF16 numbers.
        unsafe fn load_bf16(from: *const u8) -> Self;
        /// FP16 numbers.
        unsafe fn load_fp16(from: *const u8) -> Self;
        /// Signed bytes.
        unsafe fn load_i8(from: *const u8) -> Self;
        /// The values times 2^-8: E4M3 bits are read as FP16, whose exponent is biased by 8 more. A NaN, the code past 448,
        /// is read as 480.
        unsafe fn load_e4m3(from: *const u8) -> Self;
        /// E5M2 numbers.
        unsafe fn load_e5m2(from: *const u8) -> Self;
    }

    with_contract! {
        ", and at `to` there is room for `LANES` stored numbers",
        /// All lanes.
        unsafe fn store(self, to: *mut f32);
    }
    with_contract! {
        ", and at `to` there is room for `LANES` numbers, aligned to all of them together",
        /// Past the caches.
        unsafe fn stream(self, to: *mut f32);
    }
    with_contract! {
        ", and at `to` there is room for `LANES` stored numbers",
        /// Rounded to even.
        unsafe fn store_bf16(self, to: *mut u8);
        /// Rounded to even.
        unsafe fn store_fp16(self, to: *mut u8);
        /// Rounded to even, saturating, of numbers below 2^31: by way of a dword on some processors. What larger ones and a NaN
        /// become differs between them.
        unsafe fn store_i8(self, to: *mut u8);
        /// As signed words, in the same way.
        unsafe fn store_i16(self, to: *mut i16);
    }

    with_contract! {
        "",
        /// `self + other`.
        unsafe fn add(self, other: Self) -> Self;
        /// `self - other`.
        unsafe fn sub(self, other: Self) -> Self;
        /// `self * other`.
        unsafe fn mul(self, other: Self) -> Self;
        /// `self / other`.
        unsafe fn div(self, other: Self) -> Self;
        /// The larger of each lane; where either is a NaN, `other` or a NaN.
        unsafe fn max(self, other: Self) -> Self;
        /// The smaller of each lane; where either is a NaN, `other` or a NaN.
        unsafe fn min(self, other: Self) -> Self;
        /// `self * factor + addend`, rounded once where the processor has the instruction, and twice where it has not (SSE2,
        /// plain loops): nothing may need the one or the other.
        unsafe fn fma(self, factor: Self, addend: Self) -> Self;
        /// To the nearest whole number, ties to even, of magnitudes up to 2^22: beyond it, where there is no instruction
        /// (SSE2, plain loops), what is whole may move. A zero has either sign.
        unsafe fn round(self) -> Self;
        /// `self * 2^power` for whole powers from -126 to 127.
        unsafe fn scale2(self, power: Self) -> Self;

        /// All lanes together.
        unsafe fn sum(self) -> f32;
        /// The largest lane.
        unsafe fn maximum(self) -> f32;
    }
    with_contract! {
        ", and at `to` there is room for four numbers",
        /// The sums of four vectors, written side by side.
        unsafe fn sum4(vectors: [Self; 4], to: *mut f32);
    }

    with_contract! {
        ", and at `from` there are `BYTES` bytes",
        /// `BYTES` bytes.
        unsafe fn bits(from: *const u8) -> Self::Bits;
    }
    with_contract! {
        ", and at `from` there is a piece of 16 bytes at every stride, for each 16 bytes of a register",
        /// As many 16-byte pieces as fit, `stride` bytes apart.
        unsafe fn pieces16(from: *const u8, stride: usize) -> Self::Bits;
    }
    with_contract! {
        ", and at `from` there is a piece at every stride, for each 32 bytes of a register",
        /// As many 32-byte pieces as fit, `stride` bytes apart; half of one where a register is no longer.
        unsafe fn pieces32(from: *const u8, stride: usize) -> Self::Bits;
    }
    with_contract! {
        ", and at `from` there are four bytes at every stride, for each 16 bytes of a register",
        /// As many 32-bit numbers as there are 16-byte parts, `stride` bytes apart, each to all of its part.
        unsafe fn dwords(from: *const u8, stride: usize) -> Self::Bits;
    }
    with_contract! {
        ", and at `from` there are 16 bytes",
        /// 16 bytes to each 16-byte part.
        unsafe fn repeated16(from: *const u8) -> Self::Bits;
    }
    with_contract! {
        ", and at `to` there is room for `BYTES` bytes",
        /// All bytes.
        unsafe fn store_bits(bits: Self::Bits, to: *mut u8);
    }
    with_contract! {
        "",
        /// One byte everywhere.
        unsafe fn splat8(value: u8) -> Self::Bits;
        /// One word everywhere.
        unsafe fn splat16(value: u16) -> Self::Bits;
        /// One dword everywhere.
        unsafe fn splat32(value: u32) -> Self::Bits;
        /// Bits of both.
        unsafe fn and(a: Self::Bits, b: Self::Bits) -> Self::Bits;
        /// Bits of either.
        unsafe fn or(a: Self::Bits, b: Self::Bits) -> Self::Bits;
        /// Bits of one alone.
        unsafe fn xor(a: Self::Bits, b: Self::Bits) -> Self::Bits;
        /// Words shifted left.
        unsafe fn shl16<const N: i32>(a: Self::Bits) -> Self::Bits;
        /// Words shifted right, zeros from above.
        unsafe fn shr16<const N: i32>(a: Self::Bits) -> Self::Bits;
        /// Words shifted right, the sign from above.
        unsafe fn sar16<const N: i32>(a: Self::Bits) -> Self::Bits;
        /// Dwords shifted left.
        unsafe fn shl32<const N: i32>(a: Self::Bits) -> Self::Bits;
        /// Dwords shifted right, the sign from above.
        unsafe fn sar32<const N: i32>(a: Self::Bits) -> Self::Bits;
        /// The lower halves of the products of words.
        unsafe fn mul16(a: Self::Bits, b: Self::Bits) -> Self::Bits;
        /// All bits of the bytes that have every bit of `mask`.
        unsafe fn has8(a: Self::Bits, mask: Self::Bits) -> Self::Bits;
        /// Bytes of `table` by the low four bits of `index`, which has no others, within each 16-byte part.
        unsafe fn lookup(table: Self::Bits, index: Self::Bits) -> Self::Bits;
        /// Bytes by index from 0 to 15 within each 16-byte part, zero where the index has its top bit.
        unsafe fn shuffle(a: Self::Bits, index: Self::Bits) -> Self::Bits;
        /// The first eight bytes of each 16-byte part, in turns with those of `b`.
        unsafe fn zip_low(a: Self::Bits, b: Self::Bits) -> Self::Bits;
        /// The last eight.
        unsafe fn zip_high(a: Self::Bits, b: Self::Bits) -> Self::Bits;
        /// The same bits as FP32 numbers.
        unsafe fn as_floats(a: Self::Bits) -> Self;
        /// INT32 numbers as FP32.
        unsafe fn floats(a: Self::Bits) -> Self;
        /// Sums of dwords.
        unsafe fn add32(a: Self::Bits, b: Self::Bits) -> Self::Bits;
    }

    with_contract! {
        ", and at `from` there is a number for each dword of a register",
        /// Sums that start from one number per dword.
        unsafe fn sums(from: *const i32) -> Self::Sums;
    }
    with_contract! {
        "",
        /// Sums that start from nothing.
        unsafe fn no_sums() -> Self::Sums;
        /// Adds the products of INT16 words; two words that share a dword end up in one sum.
        unsafe fn multiply16(sums: Self::Sums, a: Self::Bits, b: Self::Bits) -> Self::Sums;
        /// One INT32 per dword.
        unsafe fn totals(sums: Self::Sums) -> Self::Bits;
    }

    with_contract! {
        ", and at `to` there is room for four numbers",
        /// Four FP16 numbers to FP32.
        unsafe fn four_fp16(codes: u64, to: *mut f32);
    }
    with_contract! {
        ", and at `to` there is room for 16 numbers",
        /// Two times eight signed bytes to FP32, each eight times a factor of their own: without a stop in memory, where narrow
        /// stores keep a wide load waiting.
        unsafe fn sixteen_i8(low: (u64, f32), high: (u64, f32), to: *mut f32);
    }
    with_contract! {
        ", and there are eight bytes at `from` and room for eight numbers at `to`",
        /// Eight E4M3 numbers to FP32, times 2^-8.
        unsafe fn eight_e4m3(from: *const u8, to: *mut f32);
    }

    with_contract! {
        ", and at `from` there are `LANES / SPAN` numbers, at least one",
        /// `LANES / SPAN` numbers, each to `SPAN` lanes; one to all where a span is longer than a vector.
        unsafe fn spread<const SPAN: usize>(from: *const f32) -> Self;
    }

    /// Asks for the line at `at`, which need not be readable, to come into the first cache.
    #[inline(always)]
    fn prefetch_near(at: *const u8) {
        // SAFETY: any address may be asked for.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
            #[cfg(target_arch = "aarch64")]
            std::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            let _ = at;
        }
    }

    /// Asks for the line at `at`, which need not be readable, to come into the second cache: the first has room for few
    /// lines in flight, and loads need it.
    #[inline(always)]
    fn prefetch(at: *const u8) {
        // SAFETY: any address may be asked for.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(at.cast());
            #[cfg(target_arch = "aarch64")]
            std::arch::asm!("prfm pldl2keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            let _ = at;
        }
    }

    /// Zero in every lane.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of this type.
    #[inline(always)]
    unsafe fn zero() -> Self {
        unsafe { Self::splat(0.0) }
    }

    /// Magnitudes.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of this type.
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        unsafe { self.max(Self::zero().sub(self)) }
    }

    /// `2^self`: whole and fractional part apart, the latter by Cephes' polynomial of degree 6 on [-1/2, 1/2] (relative
    /// error below 2e-7). Below -126 it stays at 2^-126, which is nothing beside the 1 of a softmax.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of this type.
    #[inline(always)]
    unsafe fn exp2(self) -> Self {
        unsafe {
            let x = self.max(Self::splat(-126.0)).min(Self::splat(127.0));
            let whole = x.round();
            let f = x.sub(whole);
            let mut y = Self::splat(1.535_336_2e-4);
            y = y.fma(f, Self::splat(1.339_887_4e-3));
            y = y.fma(f, Self::splat(9.618_437e-3));
            y = y.fma(f, Self::splat(5.550_332_5e-2));
            y = y.fma(f, Self::splat(2.402_264_8e-1));
            y = y.fma(f, Self::splat(6.931_472e-1));
            y = y.fma(f, Self::splat(1.0));
            y.scale2(whole)
        }
    }

    /// `1 / self` for normal numbers, to about the last bit of FP32: estimated and improved by Newton's step
    /// `y(2 - xy)` where the processor estimates, because a division keeps the unit busy for 16 cycles.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of this type.
    #[inline(always)]
    unsafe fn reciprocal(self) -> Self {
        unsafe { Self::splat(1.0).div(self) }
    }

    /// `self / (1 + e^-self)`.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of this type.
    #[inline(always)]
    unsafe fn silu(self) -> Self {
        unsafe {
            let power = self.mul(Self::splat(-std::f32::consts::LOG2_E)).exp2();
            self.mul(Self::splat(1.0).add(power).reciprocal())
        }
    }
}

/// A computation that is generic over the width.
pub trait Kernel {
    /// # Safety
    ///
    /// The processor has `V`'s instruction set.
    unsafe fn run<V: Vector>(self);
}

/// Runs `kernel` with the vectors of `isa`.
#[inline]
pub fn launch<K: Kernel>(isa: Isa, kernel: K) {
    match isa.level() {
        // SAFETY: an `Isa` holds only what the processor has.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { on_avx512(kernel) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { on_avx2(kernel) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Level::Neon => unsafe { kernel.run::<V128>() },
        // SAFETY: every processor has it.
        _ => unsafe { kernel.run::<Base>() },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn on_avx512<K: Kernel>(kernel: K) {
    // SAFETY: the instructions are enabled here.
    unsafe { kernel.run::<V512>() };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn on_avx2<K: Kernel>(kernel: K) {
    // SAFETY: the instructions are enabled here.
    unsafe { kernel.run::<V256>() };
}

#[cfg(test)]
mod tests;
