//! The least squared error of several scales.

use roofline_isa::widest;

use crate::coding::grid::Element;

/// Sums run in as many lanes whatever the width of vectors, so that they come out the same.
pub(crate) const LANES: usize = 16;

/// Groups whose largest magnitude or scale is below this - 2^-100 - are left to rounding: a reciprocal may be infinite.
pub(crate) const NEGLIGIBLE: f32 = 7.888_609e-31;

/// `sum(importance * (w - value)^2)`, with an importance of one where there is none.
#[inline(always)]
fn squared_error(element: impl Element, values: &[f32], importance: &[f32], scale: f32, zero: f32) -> f32 {
    let error = |weight: f32| {
        let (code, _) = element.code(weight, scale, zero);
        weight - element.value(code, scale, zero)
    };
    let mut sums = [0.0; LANES];
    let (values, rest) = values.as_chunks::<LANES>();
    if importance.is_empty() {
        for values in values {
            for (sum, value) in sums.iter_mut().zip(values) {
                let error = error(*value);
                *sum += error * error;
            }
        }
        for (sum, value) in sums.iter_mut().zip(rest) {
            let error = error(*value);
            *sum += error * error;
        }
    } else {
        let (importance, last) = importance.as_chunks::<LANES>();
        for (values, importance) in values.iter().zip(importance) {
            for ((sum, value), importance) in sums.iter_mut().zip(values).zip(importance) {
                let error = error(*value);
                *sum += importance * (error * error);
            }
        }
        for ((sum, value), importance) in sums.iter_mut().zip(rest).zip(last) {
            let error = error(*value);
            *sum += importance * (error * error);
        }
    }
    total(&sums)
}

/// The sum of all lanes, by halves.
#[inline(always)]
pub(crate) fn total(sums: &[f32; LANES]) -> f32 {
    let mut sums = *sums;
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
        width /= 2;
    }
    sums[0]
}

widest! {
    /// Which of these scales and zero points has the least squared error over `values`; the first of equals.
    /// `importance` is empty or as long as `values`.
    pub(crate) fn least_error<E: Element>(
        element: E, values: &[f32], importance: &[f32], scales: &[f32], zeros: &[f32]
    ) -> usize {
        let (mut best, mut least) = (0, f32::INFINITY);
        for (at, (scale, zero)) in scales.iter().zip(zeros).enumerate() {
            let error = squared_error(element, values, importance, *scale, *zero);
            if error < least {
                (best, least) = (at, error);
            }
        }
        best
    }
}

/// The part of a row's importance that belongs to group `at`; empty where there is none.
pub(crate) fn importance_of(importance: Option<&[f32]>, at: usize, group: usize) -> &[f32] {
    importance.map_or(&[], |all| &all[at * group..][..group])
}
