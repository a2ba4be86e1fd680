//! The products of AVX512_VNNI.

use std::arch::x86_64::{__m512i, _mm512_dpbusd_epi32, _mm512_dpwssd_epi32, _mm512_set1_epi8, _mm512_xor_si512};

use super::{Dot, Words};
use crate::{V512, Vector};

/// AVX512_VNNI: unsigned bytes of weights by signed bytes of `x`.
#[derive(Clone, Copy)]
pub(super) struct Vnni;

digits!(Vnni, V512, __m512i, 128, _mm512_dpbusd_epi32, |bytes| _mm512_xor_si512(bytes, _mm512_set1_epi8(-128)));

/// AVX512_VNNI: words, multiplied and added in one instruction. With 16-bit `x` that is one product where digits are
/// two, for the price of widening the weights once for all rows of `x`.
#[derive(Clone, Copy)]
pub(super) struct Pairs;

type Plain = <Words as Dot<V512>>::Weights;

impl Dot<V512> for Pairs {
    const OFFSET: i32 = 0;
    type Weights = Plain;
    type Numbers = Plain;
    type Sums = __m512i;

    fn byte(place: usize) -> usize {
        <Words as Dot<V512>>::byte(place)
    }
    #[inline(always)]
    unsafe fn place(x: &[i16], to: *mut u8) {
        unsafe {
            <Words as Dot<V512>>::place(x, to);
        }
    }
    #[inline(always)]
    unsafe fn small(bytes: __m512i) -> Plain {
        unsafe { <Words as Dot<V512>>::small(bytes) }
    }
    #[inline(always)]
    unsafe fn signed(bytes: __m512i) -> Plain {
        unsafe { <Words as Dot<V512>>::signed(bytes) }
    }
    #[inline(always)]
    unsafe fn words(first: __m512i, second: __m512i) -> Plain {
        (first, second)
    }
    #[inline(always)]
    unsafe fn start(from: *const i32) -> __m512i {
        unsafe { V512::bits(from.cast()) }
    }
    #[inline(always)]
    unsafe fn nothing() -> __m512i {
        unsafe { V512::splat32(0) }
    }
    #[inline(always)]
    unsafe fn numbers(x: *const u8) -> Plain {
        unsafe { <Words as Dot<V512>>::numbers(x) }
    }
    #[inline(always)]
    unsafe fn add(sums: __m512i, weights: Plain, x: Plain) -> __m512i {
        unsafe { _mm512_dpwssd_epi32(_mm512_dpwssd_epi32(sums, weights.0, x.0), weights.1, x.1) }
    }
    #[inline(always)]
    unsafe fn totals(sums: __m512i) -> __m512i {
        sums
    }

    const EXACT: usize = 2 * V512::BYTES;
    #[inline(always)]
    unsafe fn place_exact(x: &[i16], to: *mut u8) {
        unsafe {
            <Words as Dot<V512>>::place(x, to);
        }
    }
    #[inline(always)]
    unsafe fn add_exact(sums: __m512i, weights: Plain, x: *const u8) -> __m512i {
        unsafe { Self::add(sums, weights, Self::numbers(x)) }
    }
}
