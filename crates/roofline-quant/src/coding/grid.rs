//! What happens to one weight under one scale and zero point, and to groups of them under those that a method chooses.

use std::marker::PhantomData;

use super::{
    element::{E2M1_MAX, E4M3_MAX, e2m1, e4m3, from_e2m1, from_e4m3},
    row::expand,
    scales::Span,
};
use crate::{
    method::search::{NEGLIGIBLE, least_error},
    rounding::{Rounding, clamp, nearest_byte},
};

/// Codes with a scale and a zero point per group of a row, as a method sees them that chooses all three.
pub trait Grid: Send + Sync {
    /// How many weights of a row of `columns` share a scale.
    fn group(&self, columns: usize) -> usize;

    /// Whether the scales of a row are stored so that they hang together: they are then chosen for whole rows, before any
    /// weight is rounded.
    fn by_rows(&self) -> bool {
        false
    }

    /// The scales and zero points, as they are stored, of the groups of `weights`, clipped where that lowers the squared error
    /// of outputs as far as inputs are independent. Whole rows where they are chosen [so](Grid::by_rows).
    fn choose(&self, weights: &[f32], importance: &[f32], scales: &mut [f32], zeros: &mut [f32]);

    /// The same, quickly: scales that reach every weight, where that is less work.
    fn reach(&self, weights: &[f32], importance: &[f32], scales: &mut [f32], zeros: &mut [f32]) {
        self.choose(weights, importance, scales, zeros);
    }

    /// The nearest code of a weight, and what it stands for.
    fn round(&self, weight: f32, scale: f32, zero: f32) -> (u8, f32);

    /// What codes of one group stand for.
    fn values(&self, codes: &[u8], scale: f32, zero: f32, values: &mut [f32]);
}

/// The fractions of the largest magnitude that are tried as the largest code's value.
pub(crate) fn clippings() -> [f32; 24] {
    std::array::from_fn(|at| 1.06 - 0.02 * at as f32)
}

/// A grid of some element.
pub(crate) struct Elements<E, F> {
    pub(crate) element: E,
    pub(crate) span: Span,
    /// The scale and the zero point, as they are stored, of weights between `low <= 0` and `high >= 0`.
    pub(crate) reach: F,
}

/// The least and the greatest of a group's weights and zero.
fn range(weights: &[f32]) -> (f32, f32) {
    weights.iter().fold((0f32, 0f32), |(low, high), weight| (low.min(*weight), high.max(*weight)))
}

impl<E: Element, F: Fn(f32, f32) -> (f32, f32) + Send + Sync> Elements<E, F> {
    /// The scale and the zero point of a group's weights that lose least.
    fn least_clipping(&self, weights: &[f32], importance: &[f32]) -> (f32, f32) {
        let (low, high) = range(weights);
        if high.max(-low) < NEGLIGIBLE {
            return (self.reach)(low, high);
        }
        let (mut scales, mut zeros) = ([0.0; 24], [0.0; 24]);
        for ((scale, zero), part) in scales.iter_mut().zip(&mut zeros).zip(clippings()) {
            (*scale, *zero) = (self.reach)(low * part, high * part);
        }
        let best = least_error(self.element, weights, importance, &scales, &zeros);
        (scales[best], zeros[best])
    }
}

impl<E: Element, F: Fn(f32, f32) -> (f32, f32) + Send + Sync> Grid for Elements<E, F> {
    fn group(&self, columns: usize) -> usize {
        self.span.length(columns)
    }

    fn choose(&self, weights: &[f32], importance: &[f32], scales: &mut [f32], zeros: &mut [f32]) {
        let group = weights.len() / scales.len().max(1);
        let groups = weights.chunks_exact(group).zip(importance.chunks_exact(group));
        for ((weights, importance), (scale, zero)) in groups.zip(scales.iter_mut().zip(zeros)) {
            (*scale, *zero) = self.least_clipping(weights, importance);
        }
    }

    fn reach(&self, weights: &[f32], _importance: &[f32], scales: &mut [f32], zeros: &mut [f32]) {
        let group = weights.len() / scales.len().max(1);
        for (weights, (scale, zero)) in weights.chunks_exact(group).zip(scales.iter_mut().zip(zeros)) {
            let (low, high) = range(weights);
            (*scale, *zero) = (self.reach)(low, high);
        }
    }

    fn round(&self, weight: f32, scale: f32, zero: f32) -> (u8, f32) {
        let (code, _) = self.element.code(weight, scale, zero);
        (code, self.element.value(code, scale, zero))
    }

    fn values(&self, codes: &[u8], scale: f32, zero: f32, values: &mut [f32]) {
        expand(self.element, codes, codes.len(), &[scale], &[zero], values);
    }
}

/// How one weight becomes a code, and what the code stands for.
pub(crate) trait Element: Copy + Send + Sync {
    /// The code of `weight`, and whether it lay outside the range by more than half a step.
    fn code(self, weight: f32, scale: f32, zero: f32) -> (u8, bool);

    /// What a code stands for.
    fn value(self, code: u8, scale: f32, zero: f32) -> f32;
}

/// An integer in two's complement: `code * scale`. The arithmetic before rounding is `R`'s.
#[derive(Clone, Copy)]
pub(crate) struct Symmetric<R> {
    /// The largest code; the smallest is one further from zero.
    high: f32,
    rounding: PhantomData<R>,
}

/// An integer with an integer zero point: `(code - zero) * scale`.
#[derive(Clone, Copy)]
pub(crate) struct Asymmetric<R> {
    high: f32,
    rounding: PhantomData<R>,
}

/// The largest integer of so many bits.
fn high(bits: u8) -> f32 {
    f32::from((1u8 << (bits - 1)) - 1)
}

impl<R> Symmetric<R> {
    pub(crate) fn new(bits: u8) -> Self {
        Self { high: high(bits), rounding: PhantomData }
    }
}

impl<R> Asymmetric<R> {
    pub(crate) fn new(bits: u8) -> Self {
        Self { high: high(bits), rounding: PhantomData }
    }
}

/// `x` as an integer of -high - 1 to high.
#[inline(always)]
fn integer(x: f32, high: f32) -> (u8, bool) {
    let outside = x > high + 0.5 || x < -high - 1.5;
    (nearest_byte(clamp(x, -high - 1.0, high)), outside)
}

/// The integer of a code in two's complement.
#[inline(always)]
fn signed(code: u8) -> f32 {
    f32::from(code as i8)
}

impl<R: Rounding> Element for Symmetric<R> {
    #[inline(always)]
    fn code(self, weight: f32, scale: f32, _zero: f32) -> (u8, bool) {
        integer(R::quotient(weight, scale), self.high)
    }

    #[inline(always)]
    fn value(self, code: u8, scale: f32, _zero: f32) -> f32 {
        signed(code) * scale
    }
}

impl<R: Rounding> Element for Asymmetric<R> {
    #[inline(always)]
    fn code(self, weight: f32, scale: f32, zero: f32) -> (u8, bool) {
        integer(R::round(R::quotient(weight, scale) + zero), self.high)
    }

    #[inline(always)]
    fn value(self, code: u8, scale: f32, zero: f32) -> f32 {
        (signed(code) - zero) * scale
    }
}

/// FP8 E4M3: `code * scale`. The sum with `zero` makes a negative zero positive, or with -0.0 leaves it.
#[derive(Clone, Copy)]
pub(crate) struct E4m3<R>(pub(crate) PhantomData<R>);

impl<R: Rounding> Element for E4m3<R> {
    #[inline(always)]
    fn code(self, weight: f32, scale: f32, zero: f32) -> (u8, bool) {
        let x = R::quotient(weight, scale) + zero;
        // The largest numbers are 32 apart.
        let outside = x.abs() > E4M3_MAX + 16.0;
        (e4m3(clamp(x, -E4M3_MAX, E4M3_MAX)), outside)
    }

    #[inline(always)]
    fn value(self, code: u8, scale: f32, _zero: f32) -> f32 {
        from_e4m3(code) * scale
    }
}

/// FP4 E2M1: `code * scale`, with `zero` as for [`E4m3`].
#[derive(Clone, Copy)]
pub(crate) struct E2m1<R>(pub(crate) PhantomData<R>);

impl<R: Rounding> Element for E2m1<R> {
    #[inline(always)]
    fn code(self, weight: f32, scale: f32, zero: f32) -> (u8, bool) {
        let x = R::quotient(weight, scale) + zero;
        // The largest numbers are 2 apart.
        let outside = x.abs() > E2M1_MAX + 1.0;
        (e2m1(clamp(x, -E2M1_MAX, E2M1_MAX)), outside)
    }

    #[inline(always)]
    fn value(self, code: u8, scale: f32, _zero: f32) -> f32 {
        from_e2m1(code) * scale
    }
}
