//! Half-quadratic quantization: the zero point that leaves few large errors.
//!
//! It minimises `sum |w - value|^p` with p = 0.7, which forgives an outlier's error, by turns: the errors `e` are shrunk
//! to `sign(e) * max(|e| - |e|^(p-1) / beta, 0)`, and the zero point becomes the mean of what is then left,
//! `w - shrunk - q * s`. Beta grows by a hundredth each turn, and it ends when the mean error grows.
//! (Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models", 2023.)

use roofline_isa::widest;

use super::search::{LANES, total};
use crate::rounding::{clamp, nearest};

const POWER: f32 = 0.7;
const BETA: f32 = 10.0;
const GROWTH: f32 = 1.01;
const TURNS: usize = 20;

/// `x^power` for a positive normal `x`, to about 1e-5 of itself: `2^(power * log2 x)` by polynomials. The same on every
/// machine, which a library's is not.
#[inline(always)]
fn pow(x: f32, power: f32) -> f32 {
    let bits = x.to_bits();
    let exponent = (bits >> 23) as i32 - 127;
    // log2(1 + t) = 2 / ln 2 * artanh(t / (2 + t)), and t / (2 + t) is at most 1/3.
    let t = f32::from_bits((bits & 0x007f_ffff) | 0x3f80_0000);
    let u = (t - 1.0) / (t + 1.0);
    let u2 = u * u;
    let log = u * (2.885_39 + u2 * (0.961_796_7 + u2 * (0.577_078 + u2 * (0.412_198_6 + u2 * 0.320_598_9))));
    let y = clamp(power * (exponent as f32 + log), -126.0, 127.0);
    let whole = nearest(y);
    let r = y - whole;
    let fraction = 1.0
        + r * (std::f32::consts::LN_2
            + r * (0.240_226_5 + r * (0.055_504_11 + r * (0.009_618_129 + r * 0.001_333_356))));
    fraction * f32::from_bits(((whole as i32 + 127) as u32) << 23)
}

widest! {
    /// `sum |w - value|^0.7`.
    pub(crate) fn objective(values: &[f32], decoded: &[f32]) -> f32 {
        let mut sums = [0.0; LANES];
        for (values, decoded) in values.chunks(LANES).zip(decoded.chunks(LANES)) {
            for ((sum, value), decoded) in sums.iter_mut().zip(values).zip(decoded) {
                let error = (value - decoded).abs();
                *sum += if error > 0.0 { pow(error, POWER) } else { 0.0 };
            }
        }
        total(&sums)
    }
}

widest! {
    /// The best zero point `z` found for `value = code * scale + z`, with codes of -high - 1 to high, from a first one.
    pub(crate) fn refine_zero(values: &[f32], scale: f32, first: f32, high: f32) -> f32 {
        let (mut zero, mut best, mut least, mut beta) = (first, first, f32::INFINITY, BETA);
        let reciprocal = 1.0 / scale;
        for _ in 0..TURNS {
            let (mut errors, mut left) = ([0.0; LANES], [0.0; LANES]);
            for values in values.chunks(LANES) {
                for ((sum, left), value) in errors.iter_mut().zip(&mut left).zip(values) {
                    let code = nearest(clamp((value - zero) * reciprocal, -high - 1.0, high));
                    let unshifted = code * scale;
                    let error = value - (unshifted + zero);
                    let size = error.abs();
                    *sum += size;
                    let shrunk = size - pow(if size > 1e-30 { size } else { 1e-30 }, POWER - 1.0) / beta;
                    let shrunk = if shrunk > 0.0 { shrunk } else { 0.0 };
                    *left += value - shrunk.copysign(error) - unshifted;
                }
            }
            let error = total(&errors);
            if error >= least {
                break;
            }
            (best, least) = (zero, error);
            zero = total(&left) / values.len() as f32;
            beta *= GROWTH;
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_near_those_of_the_library() {
        for bits in (0x0080_0000..0x7f00_0000u32).step_by(9973) {
            let x = f32::from_bits(bits);
            for power in [POWER, POWER - 1.0] {
                let (found, wanted) = (f64::from(pow(x, power)), f64::from(x).powf(f64::from(power)));
                assert!((found / wanted - 1.0).abs() < 3e-5, "{x:e}: {found:e} {wanted:e}");
            }
        }
    }
}
