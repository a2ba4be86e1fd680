//! The small floating-point numbers themselves: E4M3 (8 bits) and E2M1 (4 bits), as the OCP specifications have them.
//!
//! Both are encoded the same way. From the smallest normal number on, FP32's own bits are rounded to fewer mantissa
//! bits, ties to even, and the exponent is biased anew. Below it the numbers are equally spaced, and adding a power of
//! two whose neighbours are as far apart leaves the code in the low bits.

/// The largest finite E4M3.
pub(crate) const E4M3_MAX: f32 = 448.0;
/// The largest E2M1.
pub(crate) const E2M1_MAX: f32 = 6.0;

/// The nearest E4M3 code of `x`, ties to even; `x` is at most 448 in magnitude. Negative numbers that round to zero
/// keep their sign.
#[inline(always)]
pub(crate) fn e4m3(x: f32) -> u8 {
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let normal = ((magnitude + 0x0007_ffff + ((magnitude >> 20) & 1)) >> 20).wrapping_sub((127 - 7) << 3);
    // From 2^14 on FP32 numbers are 2^-9 apart.
    let subnormal = (f32::from_bits(magnitude) + 16_384.0).to_bits() - 0x4680_0000;
    let code = if magnitude < 0x3c80_0000 { subnormal } else { normal };
    (code | (bits >> 24) & 0x80) as u8
}

/// What an E4M3 code stands for. The two codes that are not numbers are never written, but may be read.
#[inline(always)]
pub(crate) fn from_e4m3(code: u8) -> f32 {
    let code = u32::from(code);
    let magnitude = code & 0x7f;
    let normal = f32::from_bits((magnitude << 20) + ((127 - 7) << 23));
    let subnormal = magnitude as i32 as f32 * 0.001_953_125;
    let value = if magnitude < 8 { subnormal } else { normal };
    let value = if magnitude == 0x7f { f32::NAN } else { value };
    f32::from_bits(value.to_bits() | (code & 0x80) << 24)
}

/// The nearest E2M1 code of `x`, ties to even; `x` is at most 6 in magnitude. Negative numbers that round to zero keep
/// their sign.
#[inline(always)]
pub(crate) fn e2m1(x: f32) -> u8 {
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let normal = ((magnitude + 0x001f_ffff + ((magnitude >> 22) & 1)) >> 22).wrapping_sub((127 - 1) << 1);
    // From 2^22 on FP32 numbers are 1/2 apart.
    let subnormal = (f32::from_bits(magnitude) + 4_194_304.0).to_bits() - 0x4a80_0000;
    let code = if magnitude < 0x3f80_0000 { subnormal } else { normal };
    (code | (bits >> 28) & 8) as u8
}

/// What an E2M1 code stands for.
#[inline(always)]
pub(crate) fn from_e2m1(code: u8) -> f32 {
    let code = u32::from(code);
    let magnitude = code & 7;
    let normal = f32::from_bits((magnitude << 22) + ((127 - 1) << 23));
    let subnormal = magnitude as i32 as f32 * 0.5;
    let value = if magnitude < 2 { subnormal } else { normal };
    f32::from_bits(value.to_bits() | (code & 8) << 28)
}

#[cfg(test)]
mod tests {
    use super::*;

    const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

    /// Section 5.1 of the OCP 8-bit specification: bias 7, subnormal below exponent 1.
    fn e4m3_by_definition(code: u8) -> f32 {
        let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
        let magnitude = if exponent == 0 { mantissa / 512.0 } else { (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7) };
        if code & 0x80 == 0 { magnitude } else { -magnitude }
    }

    #[test]
    fn every_code_stands_for_what_the_specification_says() {
        for code in 0..=u8::MAX {
            if code & 0x7f == 0x7f {
                assert!(from_e4m3(code).is_nan());
            } else {
                assert_eq!(from_e4m3(code).to_bits(), e4m3_by_definition(code).to_bits());
                assert_eq!(e4m3(from_e4m3(code)), code);
            }
        }
        for code in 0..16u8 {
            let magnitude = E2M1[usize::from(code & 7)];
            let value = if code & 8 == 0 { magnitude } else { -magnitude };
            assert_eq!(from_e2m1(code).to_bits(), value.to_bits());
            assert_eq!(e2m1(value), code);
        }
    }

    /// The code of `count` ascending magnitudes nearest to `x`, ties to the even one.
    fn nearest(x: f32, count: u8, value: impl Fn(u8) -> f32) -> u8 {
        let distance = |code: u8| (f64::from(value(code)) - f64::from(x.abs())).abs();
        (0..count).min_by(|a, b| distance(*a).total_cmp(&distance(*b)).then((a % 2).cmp(&(b % 2)))).unwrap()
    }

    #[test]
    fn every_bf16_becomes_the_nearest() {
        for code in 0..=u16::MAX {
            let x = f32::from_bits(u32::from(code) << 16);
            if x.is_nan() {
                continue;
            }
            let sign = u8::from(x.is_sign_negative());
            let clamped = x.clamp(-E4M3_MAX, E4M3_MAX);
            assert_eq!(e4m3(clamped), nearest(clamped, 127, e4m3_by_definition) | sign << 7, "{x:e}");
            let clamped = x.clamp(-E2M1_MAX, E2M1_MAX);
            assert_eq!(e2m1(clamped), nearest(clamped, 8, |code| E2M1[usize::from(code)]) | sign << 3, "{x:e}");
        }
    }

    #[test]
    fn ties_go_to_the_even_code() {
        let ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
        assert_eq!(ties.map(e2m1), [0, 2, 2, 4, 4, 6, 6]);
        let above = ties.map(|tie| e2m1(f32::from_bits(f32::to_bits(tie) + 1)));
        assert_eq!(above, [1, 2, 3, 4, 5, 6, 7]);
    }
}
