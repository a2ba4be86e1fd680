//! Stored floating-point numbers as FP32, and what cannot be a weight.

use roofline_core::format::number::from_fp16;
use roofline_isa::widest;

use crate::Dtype;

/// Whether rows of this type can be read as numbers.
pub(crate) fn is_number(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Bf16 | Dtype::F16 | Dtype::F32 | Dtype::F64)
}

/// Reads little-endian numbers of `dtype`; exact but for FP64, which is rounded.
pub(crate) fn read(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        Dtype::Bf16 => from_bf16(bytes, out),
        Dtype::F16 => from_f16(bytes, out),
        Dtype::F64 => {
            for (value, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *value = f64::from_le_bytes(*bytes) as f32;
            }
        }
        _ => {
            for (value, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
    }
}

widest! {
    fn from_bf16(bytes: &[u8], out: &mut [f32]) {
        for (value, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
            *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
        }
    }
}

widest! {
    fn from_f16(bytes: &[u8], out: &mut [f32]) {
        for (value, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
            *value = from_fp16(u16::from_le_bytes(*bytes));
        }
    }
}

/// The first of these stored numbers that is infinite or none, if one is; types that are no numbers have none.
pub(crate) fn first_not_finite(dtype: Dtype, bytes: &[u8]) -> Option<(usize, &'static str)> {
    let (size, infinity, highest) = match dtype {
        Dtype::Bf16 => (2, 0x7f80, highest_half(bytes)),
        Dtype::F16 => (2, 0x7c00, highest_half(bytes)),
        Dtype::F32 => (4, 0x7f80_0000, highest_single(bytes)),
        Dtype::F64 => (8, 0x7ff0_0000_0000_0000, highest_double(bytes)),
        _ => return None,
    };
    if highest < infinity {
        return None;
    }
    let magnitude = |bytes: &[u8]| {
        let mut wide = [0; 8];
        wide[..size].copy_from_slice(bytes);
        u64::from_le_bytes(wide) & (u64::MAX >> (65 - 8 * size as u32))
    };
    let at = bytes.chunks_exact(size).position(|number| magnitude(number) >= infinity)?;
    let endless = magnitude(&bytes[at * size..(at + 1) * size]) == infinity;
    Some((at, if endless { "infinite" } else { "NaN" }))
}

/// The magnitudes of stored numbers order as their bits do without the sign: the highest of these.
macro_rules! highest {
    ($name:ident, $bits:ty) => {
        widest! {
            fn $name(bytes: &[u8]) -> u64 {
                let (numbers, _) = bytes.as_chunks::<{ size_of::<$bits>() }>();
                let mut lanes = [0 as $bits; 32];
                let (chunks, rest) = numbers.as_chunks::<32>();
                for chunk in chunks {
                    for (lane, bytes) in lanes.iter_mut().zip(chunk) {
                        *lane = (*lane).max(<$bits>::from_le_bytes(*bytes) & (<$bits>::MAX >> 1));
                    }
                }
                let rest = rest.iter().map(|bytes| <$bits>::from_le_bytes(*bytes) & (<$bits>::MAX >> 1));
                u64::from(lanes.into_iter().chain(rest).max().unwrap_or(0))
            }
        }
    };
}

highest!(highest_half, u16);
highest!(highest_single, u32);
highest!(highest_double, u64);

widest! {
    /// The largest magnitude; its bits are those of an infinity or above where a number is not finite.
    pub(crate) fn peak(values: &[f32]) -> f32 {
        // Magnitudes order as their bits do, and integers have a maximum that vectorises.
        let (chunks, rest) = values.as_chunks::<32>();
        let mut lanes = [0u32; 32];
        for chunk in chunks {
            for (lane, value) in lanes.iter_mut().zip(chunk) {
                *lane = (*lane).max(value.to_bits() & 0x7fff_ffff);
            }
        }
        let rest = rest.iter().map(|value| value.to_bits() & 0x7fff_ffff);
        f32::from_bits(lanes.into_iter().chain(rest).max().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use roofline_core::format::Element;

    use super::*;

    #[test]
    fn every_half_is_read_exactly() {
        for code in 0..=u16::MAX {
            let expected = Element::Fp16.decode(u64::from(code));
            let value = from_fp16(code);
            assert!(value.to_bits() == expected.to_bits() || (value.is_nan() && expected.is_nan()), "{code:#x}");
        }
    }

    #[test]
    fn every_bfloat_is_read_exactly() {
        let codes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let mut values = vec![0.0; 1 << 16];
        read(Dtype::Bf16, &codes, &mut values);
        for (code, value) in values.iter().enumerate() {
            assert_eq!(value.to_bits(), (code as u32) << 16);
        }
    }

    #[test]
    fn what_is_not_finite_is_found_wherever_it_is() {
        let bf16 = |value: f32| ((value.to_bits() >> 16) as u16).to_le_bytes().to_vec();
        let f16 = |code: u16| code.to_le_bytes().to_vec();
        let all: [(Dtype, [Vec<u8>; 3]); 4] = [
            (Dtype::Bf16, [bf16(-1e30), bf16(f32::NEG_INFINITY), bf16(f32::NAN)]),
            (Dtype::F16, [f16(0xfbff), f16(0xfc00), f16(0x7e00)]),
            (Dtype::F32, [f32::MIN, f32::INFINITY, f32::NAN].map(|value| value.to_le_bytes().to_vec())),
            (Dtype::F64, [f64::MIN, f64::NEG_INFINITY, f64::NAN].map(|value| value.to_le_bytes().to_vec())),
        ];
        for (dtype, [largest, infinite, none]) in all {
            for at in [0, 31, 32, 99] {
                let mut bytes = largest.repeat(100);
                assert_eq!(first_not_finite(dtype, &bytes), None, "{dtype}");
                for (number, word) in [(&infinite, "infinite"), (&none, "NaN")] {
                    bytes[at * largest.len()..(at + 1) * largest.len()].copy_from_slice(number);
                    assert_eq!(first_not_finite(dtype, &bytes), Some((at, word)), "{dtype}");
                }
            }
        }
        assert_eq!(first_not_finite(Dtype::U8, &[255; 64]), None);
        assert_eq!(first_not_finite(Dtype::F32, &[]), None);
    }

    #[test]
    fn the_peak_is_the_largest_magnitude_wherever_it_is() {
        for at in 0..100 {
            let mut values = vec![0.5f32; 100];
            values[at] = -2.0;
            assert_eq!(peak(&values), 2.0);
            values[at] = f32::NEG_INFINITY;
            assert!(!peak(&values).is_finite());
            values[at] = f32::NAN;
            assert!(!peak(&values).is_finite());
        }
        assert_eq!(peak(&[]), 0.0);
    }
}
