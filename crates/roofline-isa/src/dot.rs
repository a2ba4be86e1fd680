//! Sums of integer products: stored weights as bytes, times numbers in fixed point.
//!
//! A weight is a byte. What it meets, `x`, is a 16-bit integer (a block of numbers over a power of two), so that nothing
//! that BF16 or FP16 can tell apart within a block is lost. Two ways to multiply them, one layout of `x` each:
//!
//! * [`Words`]: bytes are widened to words and multiplied as words: every processor can.
//! * Digits: `x` is cut into two signed bytes, `256 a + b`, and bytes are multiplied four at a time: where the
//!   processor has an instruction for that, and twice as fast there.

use crate::{Base, Isa, Level, Vector};

/// A way to multiply bytes of weights with `x`.
///
/// Every method needs the instructions of its type and of `V`, which is what [`launch_dot`] sees to.
pub trait Dot<V: Vector> {
    /// What is added to signed bytes so that they can be multiplied; whoever starts a sum takes it off again.
    const OFFSET: i32;
    /// Weights as they are multiplied.
    type Weights: Copy;
    /// `V::BYTES` values of `x` as they are multiplied.
    type Numbers: Copy;
    /// INT32 sums.
    type Sums: Copy;

    /// Of the `V::BYTES` values of `x` that meet a register, the weights' byte that the one at `place` meets.
    fn byte(place: usize) -> usize;
    with_contract! {
        " and of `V`, `x` has `V::BYTES` values, and at `to` there is room for `2 * V::BYTES` bytes",
        /// Writes `V::BYTES` values of `x`, no fewer, in that order, where `add` looks for them: `2 * V::BYTES` bytes.
        unsafe fn place(x: &[i16], to: *mut u8);
    }
    with_contract! {
        " and of `V`",
        /// Weights that are bytes from 0 to 127.
        unsafe fn small(bytes: V::Bits) -> Self::Weights;
        /// Weights that are signed bytes.
        unsafe fn signed(bytes: V::Bits) -> Self::Weights;
        /// Weights that are words: those that meet the first and the second half of the `V::BYTES` values of `x`.
        ///
        /// # Panics
        ///
        /// Where weights are multiplied as bytes; [`Operands::Words`] is for kernels that need this.
        unsafe fn words(first: V::Bits, second: V::Bits) -> Self::Weights;
    }
    with_contract! {
        " and of `V`, and at `from` there is a number for each dword of a register",
        /// Sums that start from one number per dword.
        unsafe fn start(from: *const i32) -> Self::Sums;
    }
    with_contract! {
        " and of `V`",
        /// Sums that start from nothing.
        unsafe fn nothing() -> Self::Sums;
    }
    with_contract! {
        " and of `V`, and at `x` there is what `place` wrote",
        /// Loads what `place` wrote.
        unsafe fn numbers(x: *const u8) -> Self::Numbers;
    }
    with_contract! {
        " and of `V`",
        /// Adds the products of `V::BYTES` weights with as many values of `x`, four bytes of a dword to a sum.
        unsafe fn add(sums: Self::Sums, weights: Self::Weights, x: Self::Numbers) -> Self::Sums;
        /// The sums, one per dword.
        unsafe fn totals(sums: Self::Sums) -> V::Bits;
    }

    /// Bytes that `V::BYTES` INT8 values of `x` take.
    const EXACT: usize;
    with_contract! {
        " and of `V`, `x` has `V::BYTES` values, and at `to` there is room for `EXACT` bytes",
        /// Writes INT8 values, in the order of `byte`, where `add_exact` looks for them.
        unsafe fn place_exact(x: &[i16], to: *mut u8);
    }
    with_contract! {
        " and of `V`, and at `x` there is what `place_exact` wrote",
        /// As `add`, for an `x` of INT8.
        unsafe fn add_exact(sums: V::Bits, weights: Self::Weights, x: *const u8) -> V::Bits;
    }
}

/// By words, on any processor.
#[derive(Clone, Copy)]
pub struct Words;

impl<V: Vector> Dot<V> for Words {
    const OFFSET: i32 = 0;
    type Weights = (V::Bits, V::Bits);
    type Numbers = (V::Bits, V::Bits);
    type Sums = V::Sums;

    /// The even ones, then the odd ones.
    fn byte(place: usize) -> usize {
        2 * place % V::BYTES + 2 * place / V::BYTES
    }
    #[inline(always)]
    unsafe fn place(x: &[i16], to: *mut u8) {
        unsafe {
            std::ptr::copy_nonoverlapping(x.as_ptr().cast(), to, 2 * V::BYTES);
        }
    }
    #[inline(always)]
    unsafe fn words(first: V::Bits, second: V::Bits) -> Self::Weights {
        (first, second)
    }
    #[inline(always)]
    unsafe fn small(bytes: V::Bits) -> Self::Weights {
        unsafe { (V::and(bytes, V::splat16(0xff)), V::shr16::<8>(bytes)) }
    }
    #[inline(always)]
    unsafe fn signed(bytes: V::Bits) -> Self::Weights {
        unsafe { (V::sar16::<8>(V::shl16::<8>(bytes)), V::sar16::<8>(bytes)) }
    }
    #[inline(always)]
    unsafe fn start(from: *const i32) -> Self::Sums {
        unsafe { V::sums(from) }
    }
    #[inline(always)]
    unsafe fn nothing() -> Self::Sums {
        unsafe { V::no_sums() }
    }
    #[inline(always)]
    unsafe fn numbers(x: *const u8) -> Self::Numbers {
        unsafe { (V::bits(x), V::bits(x.add(V::BYTES))) }
    }
    #[inline(always)]
    unsafe fn add(sums: Self::Sums, weights: Self::Weights, x: Self::Numbers) -> Self::Sums {
        unsafe { V::multiply16(V::multiply16(sums, weights.0, x.0), weights.1, x.1) }
    }
    #[inline(always)]
    unsafe fn totals(sums: Self::Sums) -> V::Bits {
        unsafe { V::totals(sums) }
    }

    const EXACT: usize = 2 * V::BYTES;
    #[inline(always)]
    unsafe fn place_exact(x: &[i16], to: *mut u8) {
        unsafe {
            <Self as Dot<V>>::place(x, to);
        }
    }
    #[inline(always)]
    unsafe fn add_exact(sums: V::Bits, weights: Self::Weights, x: *const u8) -> V::Bits {
        unsafe { V::add32(sums, V::totals(<Self as Dot<V>>::add(V::no_sums(), weights, <Self as Dot<V>>::numbers(x)))) }
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! digits {
    ($name:ident, $vector:ident, $bits:ty, $offset:literal, $multiply:expr, $flip:expr) => {
        impl Dot<$vector> for $name {
            const OFFSET: i32 = $offset;
            type Weights = $bits;
            /// Upper and lower digits.
            type Numbers = ($bits, $bits);
            /// Of the upper and of the lower digits.
            type Sums = ($bits, $bits);

            fn byte(place: usize) -> usize {
                place
            }
            /// The signed bytes of `256 a + b`: first all `a`, then all `b`.
            #[inline(always)]
            unsafe fn place(x: &[i16], to: *mut u8) {
                unsafe {
                    let (mut upper, mut lower) = ([0u8; $vector::BYTES], [0u8; $vector::BYTES]);
                    let mut at = 0;
                    while at < $vector::BYTES {
                        let value = *x.get_unchecked(at);
                        let low = value as i8;
                        upper[at] = ((value - i16::from(low)) >> 8) as u8;
                        lower[at] = low.cast_unsigned();
                        at += 1;
                    }
                    $vector::store_bits($vector::bits(upper.as_ptr()), to);
                    $vector::store_bits($vector::bits(lower.as_ptr()), to.add($vector::BYTES));
                }
            }
            #[inline(always)]
            unsafe fn words(_: $bits, _: $bits) -> $bits {
                unreachable!("bytes are multiplied here")
            }
            #[inline(always)]
            unsafe fn small(bytes: $bits) -> $bits {
                bytes
            }
            #[inline(always)]
            #[allow(unused_unsafe, reason = "where bytes stay as they are")]
            unsafe fn signed(bytes: $bits) -> $bits {
                unsafe { $flip(bytes) }
            }
            #[inline(always)]
            unsafe fn start(from: *const i32) -> Self::Sums {
                unsafe { ($vector::splat32(0), $vector::bits(from.cast())) }
            }
            #[inline(always)]
            unsafe fn nothing() -> Self::Sums {
                unsafe { ($vector::splat32(0), $vector::splat32(0)) }
            }
            #[inline(always)]
            unsafe fn numbers(x: *const u8) -> Self::Numbers {
                unsafe { ($vector::bits(x), $vector::bits(x.add($vector::BYTES))) }
            }
            #[inline(always)]
            unsafe fn add(sums: Self::Sums, weights: $bits, x: Self::Numbers) -> Self::Sums {
                unsafe { ($multiply(sums.0, weights, x.0), $multiply(sums.1, weights, x.1)) }
            }
            #[inline(always)]
            unsafe fn totals(sums: Self::Sums) -> $bits {
                unsafe { $vector::add32($vector::shl32::<8>(sums.0), sums.1) }
            }

            const EXACT: usize = $vector::BYTES;
            #[inline(always)]
            unsafe fn place_exact(x: &[i16], to: *mut u8) {
                unsafe {
                    let mut bytes = [0u8; $vector::BYTES];
                    let mut at = 0;
                    while at < $vector::BYTES {
                        bytes[at] = *x.get_unchecked(at) as u8;
                        at += 1;
                    }
                    $vector::store_bits($vector::bits(bytes.as_ptr()), to);
                }
            }
            #[inline(always)]
            unsafe fn add_exact(sums: $bits, weights: $bits, x: *const u8) -> $bits {
                unsafe { $multiply(sums, weights, $vector::bits(x)) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "x86_64")]
use x86::{Pairs, Vnni};

#[cfg(target_arch = "aarch64")]
mod arm;
#[cfg(target_arch = "aarch64")]
use arm::Sdot;

/// A computation that is generic over the width and the way to multiply integers.
pub trait DotKernel {
    /// # Safety
    ///
    /// The processor has the instructions of `V` and `D`.
    unsafe fn run<V: Vector, D: Dot<V>>(self);
}

/// What a kernel multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operands {
    /// Bytes with bytes.
    Bytes,
    /// Bytes with 16-bit numbers, whose sums are used after several registers of them.
    Mixed,
    /// The same, whose sums are used after each register: what puts digits together again would cost as much as digits win.
    Short,
    /// Words with words.
    Words,
}

/// Runs `kernel` with the vectors of `isa` and its best way to multiply such operands. AVX-512 without VNNI multiplies words
/// in 256-bit vectors: another copy of every kernel would serve two generations of servers.
#[inline]
pub fn launch_dot<K: DotKernel>(isa: Isa, operands: Operands, kernel: K) {
    match (isa.level(), isa.has_dot(), operands) {
        // SAFETY: an `Isa` holds only what the processor has.
        #[cfg(target_arch = "x86_64")]
        (Level::Avx512, true, Operands::Bytes | Operands::Mixed) => unsafe { on_vnni::<_, Vnni>(kernel) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        (Level::Avx512, true, _) => unsafe { on_vnni::<_, Pairs>(kernel) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        (Level::Avx512 | Level::Avx2, ..) => unsafe { on_avx2(kernel) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        (Level::Neon, true, Operands::Bytes | Operands::Mixed | Operands::Short) => unsafe { on_sdot(kernel) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        (Level::Neon, ..) => unsafe { kernel.run::<crate::V128, Words>() },
        // SAFETY: every processor has it.
        _ => unsafe { kernel.run::<Base, Words>() },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn on_vnni<K: DotKernel, D: Dot<crate::V512>>(kernel: K) {
    // SAFETY: the instructions are enabled here.
    unsafe { kernel.run::<crate::V512, D>() };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn on_avx2<K: DotKernel>(kernel: K) {
    // SAFETY: the instructions are enabled here.
    unsafe { kernel.run::<crate::V256, Words>() };
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "dotprod")]
fn on_sdot<K: DotKernel>(kernel: K) {
    // SAFETY: the instructions are enabled here.
    unsafe { kernel.run::<crate::V128, Sdot>() };
}
