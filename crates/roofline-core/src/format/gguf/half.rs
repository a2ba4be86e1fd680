//! Sixteen-bit floats, without a branch, so that loops over them become vector code.

/// The nearest f16, ties to even. What is too large becomes the largest finite number, 65504, never infinity: an
/// infinite scale would turn a whole block into infinities and NaNs.
#[inline(always)]
pub fn to_f16(x: f32) -> u16 {
    const LARGEST: u32 = 65504f32.to_bits();
    const SMALLEST_NORMAL: u32 = 0x3880_0000;
    let sign = (x.to_bits() >> 16) & 0x8000;
    let magnitude = (x.to_bits() & 0x7fff_ffff).min(LARGEST);
    // Exponents are rebiased by 15 - 127; half a unit less one, plus the last bit kept, rounds ties to even.
    let normal = magnitude.wrapping_add(0xc800_0fff).wrapping_add((magnitude >> 13) & 1) >> 13;
    // A unit of the last place of 0.5 is 2^-24, that of f16's subnormals: the addition rounds.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    (sign | if magnitude < SMALLEST_NORMAL { subnormal } else { normal }) as u16
}

/// The value of an f16.
#[inline(always)]
pub fn from_f16(half: u16) -> f32 {
    let exponent = u32::from(half & 0x7c00);
    let sign = u32::from(half & 0x8000) << 16;
    let normal = (u32::from(half & 0x7fff) << 13) + (112 << 23) + if exponent == 0x7c00 { 112 << 23 } else { 0 };
    let subnormal = (f32::from(half & 0x3ff) * (1.0 / 16_777_216.0)).to_bits();
    f32::from_bits(sign | if exponent == 0 { subnormal } else { normal })
}

/// The nearest bf16, ties to even; the largest finite one where that would be infinite.
#[inline(always)]
pub fn to_bf16(x: f32) -> u16 {
    let sign = x.to_bits() & 0x8000_0000;
    let magnitude = (x.to_bits() & 0x7fff_ffff).min(0x7f7f_0000);
    ((sign | (magnitude + 0x7fff + ((magnitude >> 16) & 1))) >> 16) as u16
}

/// The value of a bf16.
#[inline(always)]
pub fn from_bf16(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// The two bytes of a stored f16 as a value.
#[inline(always)]
pub fn read(bytes: &[u8]) -> f32 {
    from_f16(u16::from_le_bytes([bytes[0], bytes[1]]))
}

/// Stores `scale` as an f16.
#[inline(always)]
pub fn write(scale: f32, bytes: &mut [u8]) {
    bytes[..2].copy_from_slice(&to_f16(scale).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_survives() {
        for half in 0..=u16::MAX {
            let value = from_f16(half);
            if value.is_finite() {
                assert_eq!(to_f16(value), half, "{half:04x}");
            }
        }
        assert_eq!(from_f16(0x7c00), f32::INFINITY);
        assert!(from_f16(0x7e01).is_nan());
        assert_eq!(from_f16(0x3555).to_bits(), 0x3eaa_a000);
    }

    #[test]
    fn between_two_f16_the_nearer_is_taken_and_the_even_on_ties() {
        for half in 0..0x7bff_u16 {
            let (low, high) = (from_f16(half), from_f16(half + 1));
            let middle = low + (high - low) / 2.0; // exact: one bit more than f16 has
            assert_eq!(to_f16(middle), half + (half & 1), "{half:04x}");
            assert_eq!(to_f16(f32::from_bits(middle.to_bits() - 1)), half);
            assert_eq!(to_f16(-f32::from_bits(middle.to_bits() + 1)), (half + 1) | 0x8000);
        }
    }

    #[test]
    fn what_is_too_large_saturates() {
        assert_eq!(to_f16(65519.996), 0x7bff);
        assert_eq!(to_f16(65520.0), 0x7bff);
        assert_eq!(to_f16(-1e30), 0xfbff);
        assert_eq!(to_bf16(f32::MAX), 0x7f7f);
        assert_eq!(to_bf16(-f32::MAX), 0xff7f);
    }

    #[test]
    fn bf16_rounds_ties_to_even() {
        assert_eq!(to_bf16(f32::from_bits(0x3f80_8000)), 0x3f80);
        assert_eq!(to_bf16(f32::from_bits(0x3f81_8000)), 0x3f82);
        assert_eq!(to_bf16(f32::from_bits(0x3f80_8001)), 0x3f81);
        assert_eq!(to_bf16(-0.0), 0x8000);
        assert_eq!(from_bf16(0x4049), 3.140_625);
    }
}
