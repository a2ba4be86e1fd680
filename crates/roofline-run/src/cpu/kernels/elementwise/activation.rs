//! The functions between the layers of a feed-forward network, of a vector at a time.

#![allow(unsafe_code, clippy::inline_always)]

use roofline_isa::Vector;

/// What a model does to each number between two layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x / (1 + e^-x)`.
    Silu,
    /// `x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2` (Hendrycks and Gimpel, arXiv 1606.08415).
    GeluTanh,
    /// `x * (1 + erf(x / sqrt(2))) / 2`.
    Gelu,
    /// `x / (1 + e^(-alpha x))` of `x` no larger than `limit`; what it is multiplied with is held within `limit` on both
    /// sides, and one is added to it (gpt-oss, arXiv 2508.10925).
    ClampedSwish {
        /// The largest input.
        limit: f32,
        /// What the exponent is multiplied by.
        alpha: f32,
    },
}

/// One function of vectors, so that a loop over it has no choice left to make.
pub(super) trait Function: Copy {
    /// The function of a number, before anything is multiplied with it.
    ///
    /// # Safety
    ///
    /// The processor has `V`'s instruction set.
    unsafe fn of<V: Vector>(self, x: V) -> V;

    /// What a number that it gates becomes before both are multiplied.
    ///
    /// # Safety
    ///
    /// The processor has `V`'s instruction set.
    #[inline(always)]
    unsafe fn gated<V: Vector>(self, up: V) -> V {
        up
    }
}

#[derive(Clone, Copy)]
pub(super) struct Silu;

impl Function for Silu {
    #[inline(always)]
    unsafe fn of<V: Vector>(self, x: V) -> V {
        unsafe { x.silu() }
    }
}

#[derive(Clone, Copy)]
pub(super) struct GeluTanh;

impl Function for GeluTanh {
    /// By way of `(1 + tanh(y)) / 2 = 1 / (1 + e^-2y)`.
    #[inline(always)]
    unsafe fn of<V: Vector>(self, x: V) -> V {
        const STEEP: f32 = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::SQRT_2;
        unsafe {
            let cubed = x.mul(x).mul(x);
            let inner = cubed.fma(V::splat(0.044_715), x).mul(V::splat(STEEP));
            x.mul(sigmoid(inner))
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Gelu;

impl Function for Gelu {
    /// `max(x, 0) - |x| q` with `q = erfc(|x| / sqrt(2)) / 2`, by Abramowitz and Stegun 7.1.26, good to 7.5e-8.
    #[inline(always)]
    unsafe fn of<V: Vector>(self, x: V) -> V {
        unsafe {
            let size = x.abs();
            let argument = size.mul(V::splat(std::f32::consts::FRAC_1_SQRT_2));
            let t = argument.fma(V::splat(0.327_591_1), V::splat(1.0)).reciprocal();
            let mut y = V::splat(1.061_405_4);
            y = y.fma(t, V::splat(-1.453_152));
            y = y.fma(t, V::splat(1.421_413_8));
            y = y.fma(t, V::splat(-0.284_496_74));
            y = y.fma(t, V::splat(0.254_829_6));
            let power = argument.mul(argument).mul(V::splat(-std::f32::consts::LOG2_E)).exp2();
            let half = y.mul(t).mul(power).mul(V::splat(0.5));
            x.max(V::zero()).sub(size.mul(half))
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct ClampedSwish {
    pub(super) limit: f32,
    pub(super) alpha: f32,
}

impl Function for ClampedSwish {
    #[inline(always)]
    unsafe fn of<V: Vector>(self, x: V) -> V {
        unsafe {
            let x = x.min(V::splat(self.limit));
            x.mul(sigmoid(x.mul(V::splat(self.alpha))))
        }
    }

    #[inline(always)]
    unsafe fn gated<V: Vector>(self, up: V) -> V {
        unsafe { up.max(V::splat(-self.limit)).min(V::splat(self.limit)).add(V::splat(1.0)) }
    }
}

/// `1 / (1 + e^-x)`.
///
/// # Safety
///
/// The processor has `V`'s instruction set.
#[inline(always)]
unsafe fn sigmoid<V: Vector>(x: V) -> V {
    unsafe { V::splat(1.0).add(x.mul(V::splat(-std::f32::consts::LOG2_E)).exp2()).reciprocal() }
}
