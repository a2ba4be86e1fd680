//! How rows of a cache, or of what a kernel writes, are stored.

use roofline_core::{Format, format::Element};

use super::named::named;

named! {
    /// 16-bit numbers, or 8-bit ones with a scale per row.
    pub(super) enum RowFormat {
        /// As the numbers beside them.
        Sixteen = "SIXTEEN",
        E4m3 = "E4M3",
        E5m2 = "E5M2",
        Int8 = "INT8",
    }
}

impl RowFormat {
    /// `format` beside 16-bit numbers in `sixteen`; none where no kernel has it.
    pub(super) fn of(format: Format, sixteen: Format) -> Option<Self> {
        match format {
            format if format == sixteen => Some(Self::Sixteen),
            Format::FP8 => Some(Self::E4m3),
            Format::INT8 => Some(Self::Int8),
            format if format.element() == Element::Fp8E5M2 && "fp8-e5m2".parse() == Ok(format) => Some(Self::E5m2),
            _ => None,
        }
    }
}
