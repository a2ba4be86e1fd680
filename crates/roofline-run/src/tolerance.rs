//! How near a kernel's result must be to the exact one, and which part of it is looked at.

use roofline_core::Format;

/// How far a result in `output`, computed through numbers of `through`, may be from the exact one: a few times what
/// rounding each product and the result costs in the root mean square (`2^-mantissa / sqrt(12)` each).
pub(crate) fn limit(output: Format, through: Format) -> f64 {
    let step = |format: Format| match format {
        Format::BF16 => 2f64.powi(-8),
        Format::FP16 => 2f64.powi(-11),
        Format::FP64 => 2f64.powi(-42),
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
        Format::FP64 => bytes.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect(),
        _ => bytes.as_chunks::<4>().0.iter().map(|bytes| wide(f32::from_le_bytes(*bytes))).collect(),
    }
}

/// Rows of a large result that are compared.
const CHECKED: usize = 6;

/// A few of `count` rows, the first and the last among them.
pub(crate) fn sample(count: usize) -> Vec<usize> {
    spread(count, CHECKED)
}

/// At most `most` of `count` rows, but no fewer than two where there are that many: the first, the last, and others as far
/// apart.
pub(crate) fn spread(count: usize, most: usize) -> Vec<usize> {
    let (last, places) = (count - 1, most.clamp(2, count.max(2)));
    let mut rows: Vec<usize> = (0..places).map(|at| last * at / (places - 1)).collect();
    rows.dedup();
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_spread_from_the_first_to_the_last() {
        assert_eq!(sample(1), [0]);
        assert_eq!(sample(3), [0, 1, 2]);
        assert_eq!(sample(101), [0, 20, 40, 60, 80, 100]);
        assert_eq!(spread(4, 100), [0, 1, 2, 3]);
        assert_eq!(spread(100, 0), [0, 99]);
    }
}
