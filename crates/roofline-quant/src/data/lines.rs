//! Lines of numbers times factors, added up in registers.

use roofline_isa::widest;

/// Numbers that are added up at once.
pub(super) const STRIP: usize = 64;

widest! {
    /// `out += sum over t of factors[t] * rows[t * stride..]`, for up to a strip of numbers; fastest for a whole one.
    pub(super) fn add(out: &mut [f32], factors: &[f32], rows: &[f32], stride: usize) {
        if let Ok(whole) = <&mut [f32; STRIP]>::try_from(&mut *out) {
            let mut sums = *whole;
            for (factor, row) in factors.iter().zip(rows.chunks(stride)) {
                let Some(row) = row.first_chunk::<STRIP>() else { continue };
                for (sum, number) in sums.iter_mut().zip(row) {
                    *sum += factor * number;
                }
            }
            *whole = sums;
            return;
        }
        for (factor, row) in factors.iter().zip(rows.chunks(stride)) {
            for (sum, number) in out.iter_mut().zip(row) {
                *sum += factor * number;
            }
        }
    }
}
