//! Sixteen sub-blocks side by side: one lane each, so that sums stay in the order of ggml's loops, and so do their
//! roundings, while the compiler has vectors to work with.

use std::ops::{Add, BitAnd, Div, Mul, Neg, Sub};

/// How many lanes.
pub(super) const LANES: usize = 16;

/// A number of each sub-block.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Lanes(pub(super) [f32; LANES]);

/// A choice for each sub-block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mask([bool; LANES]);

macro_rules! operator {
    ($trait:ident, $method:ident) => {
        impl $trait for Lanes {
            type Output = Self;

            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                let mut out = [0.0; LANES];
                for ((out, a), b) in out.iter_mut().zip(&self.0).zip(&other.0) {
                    *out = a.$method(*b);
                }
                Self(out)
            }
        }
    };
}
operator!(Add, add);
operator!(Sub, sub);
operator!(Mul, mul);
operator!(Div, div);

impl Neg for Lanes {
    type Output = Self;

    #[inline(always)]
    fn neg(self) -> Self {
        self.each(|x| -x)
    }
}

impl BitAnd for Mask {
    type Output = Self;

    #[inline(always)]
    fn bitand(self, other: Self) -> Self {
        let mut out = [false; LANES];
        for ((out, a), b) in out.iter_mut().zip(&self.0).zip(&other.0) {
            *out = a & b;
        }
        Self(out)
    }
}

impl Mask {
    /// `yes` where it holds, `no` elsewhere.
    #[inline(always)]
    pub(super) fn pick(self, yes: Lanes, no: Lanes) -> Lanes {
        let mut out = [0.0; LANES];
        for (((out, choice), yes), no) in out.iter_mut().zip(&self.0).zip(&yes.0).zip(&no.0) {
            *out = if *choice { *yes } else { *no };
        }
        Lanes(out)
    }
}

impl Lanes {
    /// The same number in each.
    #[inline(always)]
    pub(super) fn all(x: f32) -> Self {
        Self([x; LANES])
    }

    #[inline(always)]
    pub(super) fn each(self, f: impl Fn(f32) -> f32) -> Self {
        let mut out = [0.0; LANES];
        for (out, x) in out.iter_mut().zip(&self.0) {
            *out = f(*x);
        }
        Self(out)
    }

    #[inline(always)]
    fn compare(self, other: Self, holds: impl Fn(f32, f32) -> bool) -> Mask {
        let mut out = [false; LANES];
        for ((out, a), b) in out.iter_mut().zip(&self.0).zip(&other.0) {
            *out = holds(*a, *b);
        }
        Mask(out)
    }

    #[inline(always)]
    pub(super) fn above(self, other: Self) -> Mask {
        self.compare(other, |a, b| a > b)
    }

    #[inline(always)]
    pub(super) fn below(self, other: Self) -> Mask {
        self.compare(other, |a, b| a < b)
    }

    #[inline(always)]
    pub(super) fn equal(self, other: Self) -> Mask {
        self.compare(other, |a, b| a == b)
    }

    #[inline(always)]
    pub(super) fn differs(self, other: Self) -> Mask {
        self.compare(other, |a, b| a != b)
    }

    /// The nearest whole numbers, ties to even, held between the bounds; the lower one for what is no number. Held first
    /// and rounded then, which comes to the same: as [`nearest`], and the sum and the difference stay floats.
    #[inline(always)]
    pub(super) fn whole(self, low: f32, high: f32) -> Self {
        self.each(|x| {
            let above = if x > low { x } else { low };
            let held = if above < high { above } else { high };
            (held + ROUNDING) - ROUNDING
        })
    }
}

/// At 1.5 * 2^23 a float's last place is one, so adding this rounds to the nearest whole number.
const ROUNDING: f32 = 12_582_912.0;

/// The nearest whole number, ties to even, below 2^22 in magnitude; beyond it, what ggml's trick gives: the low bits.
#[inline(always)]
pub(super) fn nearest(x: f32) -> i32 {
    ((x + ROUNDING).to_bits() & 0x007f_ffff) as i32 - 0x0040_0000
}

/// `values` as columns of lanes: `columns[i]` has the `i`th weight of each of the 16 sub-blocks of `N` weights. Lanes
/// without a sub-block are zero.
#[inline(always)]
pub(super) fn columns<const N: usize>(values: &[f32]) -> [Lanes; N] {
    let mut out = [Lanes::all(0.0); N];
    for (lane, block) in values.chunks_exact(N).enumerate().take(LANES) {
        for (column, x) in out.iter_mut().zip(block) {
            column.0[lane] = *x;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_takes_ties_to_even() {
        for (x, whole) in
            [(0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (-1.5, -2), (2.51, 3), (-31.7, -32), (1e6, 1_000_000)]
        {
            assert_eq!(nearest(x), whole, "{x}");
        }
    }

    #[test]
    fn whole_numbers_are_the_nearest_between_the_bounds() {
        for x in [-1e30, -33.0, -32.5, -0.5, 0.0, 0.5, 1.5, 2.5, 14.5, 15.49, 15.5, 31.5, 1e30] {
            assert_eq!(
                Lanes::all(x).whole(-32.0, 31.0).0[7],
                nearest(x.clamp(-99.0, 99.0)).clamp(-32, 31) as f32,
                "{x}"
            );
        }
        assert_eq!(Lanes::all(f32::NAN).whole(0.0, 15.0).0[0], 0.0);
    }

    #[test]
    fn columns_are_the_transpose() {
        let values: Vec<f32> = (0..256u16).map(f32::from).collect();
        let columns = columns::<16>(&values);
        assert_eq!(columns[3].0[5], 83.0);
        assert_eq!(super::columns::<32>(&values)[1].0[9], 0.0);
    }
}
