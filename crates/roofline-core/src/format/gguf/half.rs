//! Sixteen-bit floats, without a branch, so that loops over them become vector code.

use crate::format::number;
pub use crate::format::number::{from_bf16, from_fp16 as from_f16};

/// The nearest f16, ties to even. What is too large becomes the largest finite number, 65504, never infinity: an
/// infinite scale would turn a whole block into infinities and NaNs.
#[inline(always)]
pub fn to_f16(x: f32) -> u16 {
    number::to_fp16(x.clamp(-65_504.0, 65_504.0))
}

/// The nearest bf16, ties to even; the largest finite one where that would be infinite.
#[inline(always)]
pub fn to_bf16(x: f32) -> u16 {
    let largest = f32::from_bits(0x7f7f_0000);
    number::to_bf16(x.clamp(-largest, largest))
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
