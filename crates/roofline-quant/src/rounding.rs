//! The number type a model's own arithmetic is rounded to.
//!
//! PyTorch computes an operation on 16-bit tensors in FP32 and rounds the result, so a library that quantizes in the
//! model's type rounds after every step. To give the same bytes, so do we. Everything here is plain arithmetic without
//! branches or calls, so that loops over it become vector code.

use crate::{Dtype, Error};

/// 1.5 * 2^23: adding it to a number below 2^22 leaves the nearest integer, ties to even, in the low bits.
const MAGIC: f32 = 12_582_912.0;

/// The nearest integer of a number below 2^22 in magnitude, ties to even. (`f32::round_ties_even` is a call on CPUs
/// without SSE4.1.)
#[inline(always)]
pub(crate) fn nearest(x: f32) -> f32 {
    (x + MAGIC) - MAGIC
}

/// The low byte of the nearest integer, ties to even, in two's complement; for numbers below 2^22 in magnitude.
#[inline(always)]
pub(crate) fn nearest_byte(x: f32) -> u8 {
    (x + MAGIC).to_bits() as u8
}

/// `x` within `low..=high`, in a form that becomes two instructions.
#[inline(always)]
pub(crate) fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

/// What an E8M0 byte stands for: 2^(byte - 127), and no number for 255.
#[inline(always)]
pub(crate) fn power_of_two(byte: u8) -> f32 {
    match byte {
        // Below the normal numbers: half of 2^-126.
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(byte) << 23),
    }
}

/// A type that results are rounded to.
pub(crate) trait Rounding: Copy + Send + Sync + 'static {
    /// Its name in files.
    const DTYPE: Dtype;
    /// The distance from one to the next number: `torch.finfo(dtype).eps`.
    const EPSILON: f32;
    /// The smallest normal number: `torch.finfo(dtype).tiny`.
    const TINY: f32;

    /// The nearest number of this type, ties to even; infinity beyond the largest.
    fn round(x: f32) -> f32;

    /// A weight in units of its scale, as this type divides.
    #[inline(always)]
    fn quotient(weight: f32, scale: f32) -> f32 {
        Self::round(weight / scale)
    }

    /// The exponent of `x >= 0` as FP32 biases it, one more from a mantissa of 1.75 on, as found in the bits of this
    /// type: zero where the type has no exponent for it.
    #[inline(always)]
    fn exponent(x: f32) -> i32 {
        ((x.to_bits() + 0x0020_0000) >> 23) as i32
    }

    /// Writes a number of this type as its [`Dtype`] is stored.
    fn write(x: f32, out: &mut [u8]);

    /// Reads a stored number.
    fn read(bytes: &[u8]) -> f32;
}

/// bfloat16.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bf16;
/// IEEE half precision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct F16;
/// IEEE single precision: nothing is rounded further.
#[derive(Clone, Copy, Debug)]
pub(crate) struct F32;
/// Single precision that multiplies by the reciprocal instead of dividing: several times faster, and where a method
/// searches for its scale no library's bytes are to be met.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reciprocal;

/// That weights of this type are not quantized.
pub(crate) fn unsuited(dtype: Dtype) -> Error {
    Error::unsupported(format!("weights of {dtype} cannot be quantized"), "start from a checkpoint in BF16, F16 or F32")
}

/// `of::<R>(...)` for the type `R` that a model's weights are of, or [`unsuited`].
macro_rules! in_type {
    ($dtype:expr, $of:ident($($argument:expr),*)) => {
        match $dtype {
            $crate::Dtype::Bf16 => Ok($of::<$crate::rounding::Bf16>($($argument),*)),
            $crate::Dtype::F16 => Ok($of::<$crate::rounding::F16>($($argument),*)),
            $crate::Dtype::F32 => Ok($of::<$crate::rounding::F32>($($argument),*)),
            other => Err($crate::rounding::unsuited(other)),
        }
    };
}
pub(crate) use in_type;

impl Rounding for Bf16 {
    const DTYPE: Dtype = Dtype::Bf16;
    const EPSILON: f32 = 0.007_812_5;
    const TINY: f32 = f32::MIN_POSITIVE;

    #[inline(always)]
    fn round(x: f32) -> f32 {
        let bits = x.to_bits();
        f32::from_bits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
    }

    fn write(x: f32, out: &mut [u8]) {
        out.copy_from_slice(&((x.to_bits() >> 16) as u16).to_le_bytes());
    }

    fn read(bytes: &[u8]) -> f32 {
        f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16)
    }
}

/// 2^-14, the smallest normal FP16.
const F16_TINY: f32 = 6.103_515_6e-5;

impl Rounding for F16 {
    const DTYPE: Dtype = Dtype::F16;
    const EPSILON: f32 = 0.000_976_562_5;
    const TINY: f32 = F16_TINY;

    #[inline(always)]
    fn round(x: f32) -> f32 {
        let bits = x.to_bits();
        let sign = bits & 0x8000_0000;
        let magnitude = f32::from_bits(bits ^ sign);
        let normal = ((bits ^ sign) + 0x0fff + ((bits >> 13) & 1)) & !0x1fff;
        // Between 0.5 and 1, FP32 numbers are 2^-24 apart, as FP16's subnormal numbers are.
        let subnormal = ((magnitude + 0.5) - 0.5).to_bits();
        let rounded = if magnitude < F16_TINY { subnormal } else { normal };
        // 65520 is half way to 2^16.
        f32::from_bits(sign | if magnitude >= 65520.0 { 0x7f80_0000 } else { rounded })
    }

    #[inline(always)]
    fn exponent(x: f32) -> i32 {
        // The subnormal numbers have no exponent of their own; those from 0.75 * 2^-14 on round up to 2^-14.
        if x >= F16_TINY {
            ((x.to_bits() + 0x0020_0000) >> 23) as i32
        } else if x >= 0.75 * F16_TINY {
            127 - 14
        } else {
            0
        }
    }

    fn write(x: f32, out: &mut [u8]) {
        let bits = x.to_bits();
        let sign = (bits >> 16) & 0x8000;
        let magnitude = f32::from_bits(bits & 0x7fff_ffff);
        let code = if magnitude < F16_TINY {
            (magnitude * 16_777_216.0) as u32
        } else if magnitude == f32::INFINITY {
            0x7c00
        } else {
            (magnitude.to_bits() >> 13) - ((127 - 15) << 10)
        };
        out.copy_from_slice(&((sign | code) as u16).to_le_bytes());
    }

    fn read(bytes: &[u8]) -> f32 {
        let code = u32::from(u16::from_le_bytes([bytes[0], bytes[1]]));
        let magnitude = match (code >> 10) & 0x1f {
            0 => (code & 0x3ff) as f32 / 16_777_216.0,
            0x1f => f32::from_bits(0x7f80_0000 | (code & 0x3ff) << 13),
            _ => f32::from_bits(((code & 0x7fff) + ((127 - 15) << 10)) << 13),
        };
        f32::from_bits(magnitude.to_bits() | (code & 0x8000) << 16)
    }
}

impl Rounding for F32 {
    const DTYPE: Dtype = Dtype::F32;
    const EPSILON: f32 = f32::EPSILON;
    const TINY: f32 = f32::MIN_POSITIVE;

    #[inline(always)]
    fn round(x: f32) -> f32 {
        x
    }

    fn write(x: f32, out: &mut [u8]) {
        out.copy_from_slice(&x.to_le_bytes());
    }

    fn read(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

impl Rounding for Reciprocal {
    const DTYPE: Dtype = F32::DTYPE;
    const EPSILON: f32 = F32::EPSILON;
    const TINY: f32 = F32::TINY;

    #[inline(always)]
    fn round(x: f32) -> f32 {
        x
    }

    #[inline(always)]
    fn quotient(weight: f32, scale: f32) -> f32 {
        // The compiler takes the division out of loops over weights of one scale.
        weight * (1.0 / scale)
    }

    fn write(x: f32, out: &mut [u8]) {
        F32::write(x, out);
    }

    fn read(bytes: &[u8]) -> f32 {
        F32::read(bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every number of a 16-bit type survives being read, rounded and written.
    fn every_code<R: Rounding>() {
        for code in 0..=u16::MAX {
            let value = R::read(&code.to_le_bytes());
            if value.is_nan() {
                continue;
            }
            let mut out = [0; 2];
            R::write(R::round(value), &mut out);
            assert_eq!(u16::from_le_bytes(out), code);
        }
    }

    #[test]
    fn numbers_of_the_type_stay_as_they_are() {
        every_code::<Bf16>();
        every_code::<F16>();
    }

    /// The nearest of the two neighbours in the type, by distance in FP64.
    fn is_nearest<R: Rounding>(x: f32) {
        let rounded = R::round(x);
        if rounded.is_infinite() {
            return;
        }
        let mut out = [0; 2];
        R::write(rounded, &mut out);
        let code = u16::from_le_bytes(out);
        let distance = |code: u16| (f64::from(R::read(&code.to_le_bytes())) - f64::from(x)).abs();
        for other in [code.wrapping_sub(1), code.wrapping_add(1)] {
            if (other ^ code) & 0x8000 == 0 && R::read(&other.to_le_bytes()).is_finite() {
                let (here, there) = (distance(code), distance(other));
                assert!(here < there || here == there && code % 2 == 0, "{x:e} became {rounded:e}");
            }
        }
    }

    proptest! {
        #[test]
        fn rounds_to_the_nearest(bits in any::<u32>()) {
            let x = f32::from_bits(bits);
            prop_assume!(x.is_finite());
            is_nearest::<Bf16>(x);
            is_nearest::<F16>(x);
        }

        #[test]
        fn half_precision_rounds_near_its_ends(x in -1e-4f32..1e-4, y in 60000f32..70000.0) {
            is_nearest::<F16>(x);
            is_nearest::<F16>(y);
        }

        #[test]
        fn integers(x in -1e6f32..1e6) {
            prop_assert_eq!(nearest(x), x.round_ties_even());
            prop_assert_eq!(nearest_byte(x), x.round_ties_even() as i32 as u8);
        }
    }

    #[test]
    fn beyond_the_largest_is_infinite() {
        assert_eq!(F16::round(65519.0), 65504.0);
        assert_eq!(F16::round(65520.0), f32::INFINITY);
        assert_eq!(Bf16::round(f32::MAX), f32::INFINITY);
    }

    #[test]
    fn exponents() {
        // 1.75 is where the next power of two begins.
        assert_eq!(Bf16::exponent(1.742_187_5), 127);
        assert_eq!(F32::exponent(1.75), 128);
        assert_eq!(F16::exponent(F16_TINY), 127 - 14);
        assert_eq!(F16::exponent(F16_TINY * 0.75), 127 - 14);
        assert_eq!(F16::exponent(F16_TINY * 0.74), 0);
        assert_eq!(power_of_two(0), 0.5 * f32::MIN_POSITIVE);
        assert_eq!(power_of_two(127), 1.0);
        assert!(power_of_two(255).is_nan());
    }
}
