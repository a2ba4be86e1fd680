//! Lines of numbers times factors, added up in registers.

use std::ops::Mul;

use roofline_isa::widest;

/// Numbers that are added up at once.
pub(super) const STRIP: usize = 64;

/// Gives `take` every number of `out` with the products of its column, `factors[t] * rows[t * stride + column]`, one after the
/// other. Where there are `WIDTH` of them, they stay in registers meanwhile.
#[inline(always)]
pub(super) fn lines<T: Copy + Mul<Output = T>, const WIDTH: usize>(
    out: &mut [T],
    factors: &[T],
    rows: &[T],
    stride: usize,
    take: impl Fn(&mut T, T),
) {
    if let Ok(whole) = <&mut [T; WIDTH]>::try_from(&mut *out) {
        let mut sums = *whole;
        for (factor, row) in factors.iter().zip(rows.chunks(stride)) {
            let Some(row) = row.first_chunk::<WIDTH>() else { continue };
            for (sum, number) in sums.iter_mut().zip(row) {
                take(sum, *factor * *number);
            }
        }
        *whole = sums;
        return;
    }
    for (factor, row) in factors.iter().zip(rows.chunks(stride)) {
        for (sum, number) in out.iter_mut().zip(row) {
            take(sum, *factor * *number);
        }
    }
}

widest! {
    /// `out += sum over t of factors[t] * rows[t * stride..]`, for up to a strip of numbers; fastest for a whole one.
    pub(super) fn add(out: &mut [f32], factors: &[f32], rows: &[f32], stride: usize) {
        lines::<f32, STRIP>(out, factors, rows, stride, |sum, product| *sum += product);
    }
}
