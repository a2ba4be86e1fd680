//! Formats made of others: the same elements, with scales for other spans or with zero points.

use super::{Format, Scaling, Span, Zero};

impl Format {
    /// The same elements with a 16-bit scale per `group` of a row; what has no linear scales stays as it is.
    #[must_use]
    pub const fn in_groups(self, group: u32) -> Self {
        self.spanned(Span::Group(group))
    }

    /// The same with a scale per row.
    #[must_use]
    pub const fn in_rows(self) -> Self {
        self.spanned(Span::Channel)
    }

    /// The same with a scale per square of that many rows and columns.
    #[must_use]
    pub const fn in_squares(self, side: u32) -> Self {
        self.spanned(Span::Tile(side))
    }

    /// The same with one scale for a tensor.
    #[must_use]
    pub const fn in_tensors(self) -> Self {
        self.spanned(Span::Tensor)
    }

    /// The same with an integer zero point beside each scale.
    #[must_use]
    pub const fn with_zeros(self) -> Self {
        self.zeroed(Zero::Integer)
    }

    /// The same with a 16-bit zero point beside each scale.
    #[must_use]
    pub const fn with_wide_zeros(self) -> Self {
        self.zeroed(Zero::Float16)
    }

    const fn spanned(self, span: Span) -> Self {
        match self.scaling {
            Scaling::Linear(_, zero) => Self { scaling: Scaling::Linear(span, zero), ..self },
            _ => self,
        }
    }

    const fn zeroed(self, zero: Zero) -> Self {
        match self.scaling {
            Scaling::Linear(span, _) => Self { scaling: Scaling::Linear(span, zero), ..self },
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_made_of_others() {
        for (format, name) in [
            (Format::INT8.in_groups(128), "int8-g128"),
            (Format::INT4_G128.in_rows(), "int4-channel"),
            (Format::FP8.in_squares(128), "fp8-e4m3-b128"),
            (Format::INT4_G128.in_groups(32).with_zeros(), "int4-g32-zp"),
            (Format::INT4_G128.with_wide_zeros(), "int4-g128-zp16"),
            (Format::MXFP4.in_groups(64), "mxfp4"),
        ] {
            assert_eq!((format.to_string().as_str(), Ok(format)), (name, name.parse()));
        }
    }
}
