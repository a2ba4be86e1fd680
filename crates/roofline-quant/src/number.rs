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
