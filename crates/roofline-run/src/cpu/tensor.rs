//! A stored tensor as kernels read it: borrowed bytes in the layout of `roofline_core::format::Encoded`.

use roofline_core::{Format, format::Encoded};

/// Rows of stored numbers: element codes, scales per block or row, and what there is once per tensor.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    /// How numbers are stored.
    pub format: Format,
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub columns: usize,
    /// Elements, bit-packed.
    pub codes: &'a [u8],
    /// Scales, in the order of their blocks.
    pub scales: &'a [u8],
    /// Zero points, in the order of their blocks.
    pub zeros: &'a [u8],
    /// What there is once per tensor.
    pub tensor: &'a [u8],
}

impl<'a> Tensor<'a> {
    /// Rows of numbers that need no scales, such as activations in FP32, BF16 or FP16.
    pub fn plain(format: Format, rows: usize, columns: usize, codes: &'a [u8]) -> Self {
        Self { format, rows, columns, codes, scales: &[], zeros: &[], tensor: &[] }
    }
}

impl<'a> From<&'a Encoded> for Tensor<'a> {
    fn from(encoded: &'a Encoded) -> Self {
        Self {
            format: encoded.format(),
            rows: encoded.rows(),
            columns: encoded.columns(),
            codes: &encoded.codes,
            scales: &encoded.scales,
            zeros: &encoded.zeros,
            tensor: &encoded.tensor,
        }
    }
}
