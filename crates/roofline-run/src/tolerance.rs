//! How near a kernel's result must be to the exact one, and which part of it is looked at.

use roofline_core::Format;

/// How far a result in `output`, computed through numbers of `through`, may be from the exact one: a few times what
/// rounding each product and the result costs in the root mean square (`2^-mantissa / sqrt(12)` each).
pub(crate) fn limit(output: Format, through: Format) -> f64 {
    let step = |format: Format| match format {
        Format::BF16 => 2f64.powi(-8),
        Format::FP16 => 2f64.powi(-11),
        _ => 2f64.powi(-18),
    };
    1.5 * step(output).max(step(through))
}

/// The numbers in `bytes` of a plain format.
pub(crate) fn decoded(bytes: &[u8], format: Format) -> Vec<f64> {
    let wide = |value: f32| f64::from(value);
    match format {
        Format::BF16 => bytes
            .as_chunks::<2>()
            .0
            .iter()
            .map(|bytes| wide(f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16)))
            .collect(),
        Format::FP16 => {
            let element = format.element();
            bytes
                .as_chunks::<2>()
                .0
                .iter()
                .map(|bytes| wide(element.decode(u64::from(u16::from_le_bytes(*bytes)))))
                .collect()
        }
        _ => bytes.as_chunks::<4>().0.iter().map(|bytes| wide(f32::from_le_bytes(*bytes))).collect(),
    }
}

/// Rows of a large result that are compared.
const CHECKED: usize = 6;

/// A few of `count` rows, the first and the last among them.
pub(crate) fn sample(count: usize) -> Vec<usize> {
    let last = count - 1;
    let mut rows: Vec<usize> = (0..CHECKED).map(|at| last * at / (CHECKED - 1)).collect();
    rows.dedup();
    rows
}
