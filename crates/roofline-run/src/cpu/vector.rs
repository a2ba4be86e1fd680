//! Vectors of FP32 numbers, one width per instruction set, so that a kernel is written once.
//!
//! A kernel is a value with a generic `run`; `launch` calls it inside a function that has the instruction set enabled.
//! Everything below must be `inline(always)`: a call that stays a call has no vector registers to pass values in.

#![allow(unsafe_code, unsafe_op_in_unsafe_fn, clippy::inline_always, clippy::wildcard_imports)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod convert;
pub(crate) mod half;
mod portable;
pub(crate) mod stored;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::V256;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::V512;
pub(crate) use portable::Plain;

/// The instruction set that a kernel runs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// 16 lanes: AVX-512 F, BW, DQ and VL.
    Avx512,
    /// 8 lanes: AVX2, FMA and F16C.
    Avx2,
    /// What the compiler makes of plain loops: NEON on ARM.
    Portable,
}

impl Isa {
    /// The widest that this processor has.
    pub fn best() -> Self {
        Self::available()[0]
    }

    /// All that this processor has, widest first.
    pub fn available() -> Vec<Self> {
        let mut found = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let wide = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            let narrow =
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            found.extend((wide && narrow).then_some(Self::Avx512));
            found.extend(narrow.then_some(Self::Avx2));
        }
        found.push(Self::Portable);
        found
    }

    /// For names of kernels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Portable => "portable",
        }
    }

    /// FP32 numbers in a vector.
    pub fn lanes(self) -> usize {
        match self {
            Self::Avx512 => 16,
            Self::Avx2 | Self::Portable => 8,
        }
    }
}

/// `LANES` numbers in FP32.
///
/// # Safety
///
/// Every method needs the instruction set of its type, which is what [`launch`] sees to. Pointers are to `LANES`
/// elements of the stored type, of any alignment but for [`Vector::stream`], which needs that of the vector.
pub(crate) trait Vector: Copy {
    const LANES: usize;

    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn load_bf16(from: *const u8) -> Self;
    unsafe fn load_fp16(from: *const u8) -> Self;
    unsafe fn load_i8(from: *const u8) -> Self;
    /// The values times 2^-8: E4M3 bits are read as FP16, whose exponent is biased by 8 more.
    unsafe fn load_e4m3(from: *const u8) -> Self;
    unsafe fn load_e5m2(from: *const u8) -> Self;

    unsafe fn store(self, to: *mut f32);
    /// Past the caches.
    unsafe fn stream(self, to: *mut f32);
    unsafe fn store_bf16(self, to: *mut u8);
    unsafe fn store_fp16(self, to: *mut u8);
    /// Rounded to even, saturating.
    unsafe fn store_i8(self, to: *mut u8);

    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn div(self, other: Self) -> Self;
    unsafe fn max(self, other: Self) -> Self;
    unsafe fn min(self, other: Self) -> Self;
    /// `self * factor + addend`, rounded once.
    unsafe fn fma(self, factor: Self, addend: Self) -> Self;
    /// To the nearest whole number, ties to even.
    unsafe fn round(self) -> Self;
    /// `self * 2^power` for whole powers between -126 and 127.
    unsafe fn scale2(self, power: Self) -> Self;

    unsafe fn sum(self) -> f32;
    unsafe fn maximum(self) -> f32;
    /// The sums of four vectors, written side by side.
    unsafe fn sum4(vectors: [Self; 4], to: *mut f32);

    /// Asks for the line at `at`, which need not be readable, to come into the second cache: the first has room for few
    /// lines in flight, and loads need it.
    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        #[cfg(target_arch = "x86_64")]
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(at.cast());
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self::splat(0.0)
    }

    #[inline(always)]
    unsafe fn abs(self) -> Self {
        self.max(Self::zero().sub(self))
    }

    /// `2^self`: whole and fractional part apart, the latter by Cephes' polynomial of degree 6 on [-1/2, 1/2] (relative
    /// error below 2e-7). Below -126 it stays at 2^-126, which is nothing beside the 1 of a softmax.
    #[inline(always)]
    unsafe fn exp2(self) -> Self {
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

    /// `1 / self` for normal numbers, to about the last bit of FP32: estimated and improved by Newton's step
    /// `y(2 - xy)` where the processor estimates, because a division keeps the unit busy for 16 cycles.
    #[inline(always)]
    unsafe fn reciprocal(self) -> Self {
        Self::splat(1.0).div(self)
    }

    /// `self / (1 + e^-self)`.
    #[inline(always)]
    unsafe fn silu(self) -> Self {
        let power = self.mul(Self::splat(-std::f32::consts::LOG2_E)).exp2();
        self.mul(Self::splat(1.0).add(power).reciprocal())
    }
}

/// A computation that is generic over the width.
pub(crate) trait Kernel {
    /// # Safety
    ///
    /// The processor has `V`'s instruction set.
    unsafe fn run<V: Vector>(self);
}

/// Runs `kernel` with the instruction set `isa`.
///
/// # Panics
///
/// When the processor does not have it.
#[inline]
pub(crate) fn launch<K: Kernel>(isa: Isa, kernel: K) {
    match isa {
        // SAFETY: `Isa` values come from `Isa::available`; the check is one load of a cached word.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe {
            assert!(is_x86_feature_detected!("avx512bw"), "AVX-512 is not there");
            on_avx512(kernel);
        },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe {
            assert!(is_x86_feature_detected!("avx2"), "AVX2 is not there");
            on_avx2(kernel);
        },
        // SAFETY: plain Rust.
        _ => unsafe { kernel.run::<Plain>() },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn on_avx512<K: Kernel>(kernel: K) {
    kernel.run::<V512>();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn on_avx2<K: Kernel>(kernel: K) {
    kernel.run::<V256>();
}

#[cfg(test)]
mod tests;
