//! Scores that are bounded smoothly: what is small stays, what is large ends at the cap.

#![allow(unsafe_code, clippy::inline_always)]

use roofline_isa::Vector;

/// `cap * tanh(x / cap)`, by `tanh(y) = 1 - 2 / (1 + e^2y)`.
///
/// # Safety
///
/// The processor has `V`'s instruction set.
#[inline(always)]
pub(super) unsafe fn capped<V: Vector>(x: V, cap: f32) -> V {
    unsafe {
        // Beyond 2^30 the quotient is below the last bit of one, and the reciprocal stays a normal number.
        let power = x.mul(V::splat(2.0 * std::f32::consts::LOG2_E / cap));
        let power = power.max(V::splat(-30.0)).min(V::splat(30.0)).exp2();
        V::splat(1.0).add(power).reciprocal().fma(V::splat(-2.0 * cap), V::splat(cap))
    }
}
