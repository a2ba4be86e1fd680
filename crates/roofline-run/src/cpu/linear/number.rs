//! Wide numbers: what activations and outputs are stored in, and what FP32 becomes in them.

use roofline_core::Format;

/// A format whose code is its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wide {
    Fp32,
    Fp16,
    Bf16,
}

impl Wide {
    pub(super) fn of(format: Format) -> Option<Self> {
        match format {
            Format::FP32 => Some(Self::Fp32),
            Format::FP16 => Some(Self::Fp16),
            Format::BF16 => Some(Self::Bf16),
            _ => None,
        }
    }

    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::Fp32 => 4,
            Self::Fp16 | Self::Bf16 => 2,
        }
    }

    /// The values of `bytes`.
    #[inline(always)]
    pub(super) fn decode(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Self::Fp32 => {
                for (out, code) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *out = f32::from_le_bytes(*code);
                }
            }
            Self::Fp16 => {
                for (out, code) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *out = from_fp16(u16::from_le_bytes(*code));
                }
            }
            Self::Bf16 => {
                for (out, code) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *out = from_bf16(u16::from_le_bytes(*code));
                }
            }
        }
    }

    /// The nearest codes of `values`, ties to even.
    #[inline(always)]
    pub(super) fn encode(self, values: &[f32], out: &mut [u8]) {
        match self {
            Self::Fp32 => {
                for (value, out) in values.iter().zip(out.as_chunks_mut::<4>().0) {
                    *out = value.to_le_bytes();
                }
            }
            Self::Fp16 => {
                for (value, out) in values.iter().zip(out.as_chunks_mut::<2>().0) {
                    *out = to_fp16(*value).to_le_bytes();
                }
            }
            Self::Bf16 => {
                for (value, out) in values.iter().zip(out.as_chunks_mut::<2>().0) {
                    *out = to_bf16(*value).to_le_bytes();
                }
            }
        }
    }
}

#[inline(always)]
pub(super) fn from_bf16(code: u16) -> f32 {
    f32::from_bits(u32::from(code) << 16)
}

/// Adding just under half of the last place that stays, plus that place's own bit, carries exactly when rounding to
/// nearest even goes up. A NaN keeps its quiet bit instead.
#[inline(always)]
pub(super) fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let kept = if value.is_nan() { bits | 0x0040_0000 } else { rounded };
    (kept >> 16) as u16
}

/// The fields moved to their FP32 places give the value times 2^-112 (the difference of the biases), subnormals included.
#[inline(always)]
pub(super) fn from_fp16(code: u16) -> f32 {
    let magnitude = u32::from(code & 0x7fff);
    let finite = f32::from_bits(magnitude << 13) * f32::from_bits((112 + 127) << 23);
    let bits = if magnitude >= 0x7c00 { magnitude << 13 | 0x7f80_0000 } else { finite.to_bits() };
    f32::from_bits(bits | u32::from(code & 0x8000) << 16)
}

/// Ties to even. Below 2^-14 the addition of 0.5, whose last place is the step of FP16 subnormals, does the rounding.
#[inline(always)]
pub(super) fn to_fp16(value: f32) -> u16 {
    const HALF: u32 = 126 << 23;
    let sign = (value.to_bits() >> 16 & 0x8000) as u16;
    let magnitude = value.to_bits() & 0x7fff_ffff;
    let subnormal = (f32::from_bits(magnitude) + f32::from_bits(HALF)).to_bits().wrapping_sub(HALF);
    let normal = magnitude.wrapping_add(0xfff + (magnitude >> 13 & 1)).wrapping_sub(112 << 23) >> 13;
    let special = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let code = if magnitude >= 0x4780_0000 {
        special
    } else if magnitude < 113 << 23 {
        subnormal
    } else {
        normal
    };
    code as u16 | sign
}

#[cfg(test)]
mod tests {
    use roofline_core::format::{Element, Overflow};

    use super::*;

    #[test]
    fn conversions_agree_with_the_codec() {
        let mut bits = 1u32;
        for _ in 0..20_000 {
            bits = bits.wrapping_mul(0x9e37_79b1).wrapping_add(0x7f4a_7c15);
            let value = f32::from_bits(bits);
            if value.is_finite() {
                let fp16 = Element::Fp16.encode(value, Overflow::Special);
                assert_eq!(u64::from(to_fp16(value)), fp16, "{value:e}");
                assert_eq!(u64::from(to_bf16(value)), Element::Bf16.encode(value, Overflow::Special), "{value:e}");
                assert_eq!(from_fp16(fp16 as u16).to_bits(), Element::Fp16.decode(fp16).to_bits());
            }
        }
        assert!(from_fp16(to_fp16(f32::NAN)).is_nan() && from_bf16(to_bf16(f32::NAN)).is_nan());
        for edge in [65_504.0, 65_519.0, 65_520.0, 65_536.0, f32::INFINITY, 6.1e-5, 5.9e-8, 2.9e-8, -0.0] {
            assert_eq!(u64::from(to_fp16(edge)), Element::Fp16.encode(edge, Overflow::Special), "{edge:e}");
        }
    }
}
