//! How scales and zero points are chosen: when nothing but the weights is known, or by what a text brings to them.

#[cfg(test)]
mod figures;
pub(crate) mod half_quadratic;
pub(crate) mod search;

use std::{fmt, str::FromStr};

use crate::{Error, Result};

/// A way to choose scales and zero points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Method {
    /// Round to nearest: the scale maps the largest magnitude to the largest code. The bytes are the library's own.
    #[default]
    Rtn,
    /// Of several scales, the one with the least squared error.
    Mse,
    /// NVFP4 only: a block's largest magnitude becomes 6 or 4, whichever has the least squared error ("Four Over Six",
    /// arXiv 2512.02010).
    FourOverSix,
    /// Integers with zero points only: half-quadratic quantization moves the zero point so that few weights have large
    /// errors (Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models", 2023).
    Hqq,
    /// By data, integers only: what rounding loses in one input channel is made up for in those after it (Frantar et al.,
    /// arXiv 2210.17323).
    Gptq,
    /// By data, integers only: channels with large inputs get finer steps, by factors that the norm before takes back (Lin et
    /// al., arXiv 2306.00978).
    Awq,
    /// By data: large inputs become smaller and their weights larger, so that both can be rounded (Xiao et al.,
    /// arXiv 2211.10438).
    SmoothQuant,
}

impl Method {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Rtn, Self::Mse, Self::FourOverSix, Self::Hqq, Self::Gptq, Self::Awq, Self::SmoothQuant];

    /// Whether it goes by what a text brings to the products of a model.
    pub fn needs_data(self) -> bool {
        matches!(self, Self::Gptq | Self::Awq | Self::SmoothQuant)
    }

    /// How it rounds what no data speak of.
    pub(crate) fn without_data(self) -> Self {
        if self.needs_data() { Self::Rtn } else { self }
    }

    /// The name in plans and commands.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rtn => "rtn",
            Self::Mse => "mse",
            Self::FourOverSix => "four-over-six",
            Self::Hqq => "hqq",
            Self::Gptq => "gptq",
            Self::Awq => "awq",
            Self::SmoothQuant => "smoothquant",
        }
    }

    /// An error unless it is one of `known`, the methods that `what` has.
    pub(crate) fn among(self, known: &[Self], what: &str) -> Result<()> {
        if known.contains(&self) {
            return Ok(());
        }
        let names: Vec<_> = known.iter().map(|method| method.name()).collect();
        Err(Error::unsupported(
            format!("{what} cannot be quantized by the method `{self}`"),
            format!("its methods: {}", names.join(", ")),
        ))
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Method {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|method| method.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name);
            roofline_core::Error::unknown("method", text, names, format!("methods: {}", names.join(", "))).into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_back() {
        for method in Method::ALL {
            assert_eq!(method.to_string().parse::<Method>().unwrap(), method);
        }
        let error = "four-over-sixx".parse::<Method>().unwrap_err();
        assert_eq!(error.kind(), "unknown");
        assert!(error.to_string().contains("four-over-sixx"), "{error}");
    }

    #[test]
    fn a_method_that_does_not_apply_names_those_that_do() {
        let error = Method::Hqq.among(&[Method::Rtn, Method::Mse], "FP8").unwrap_err();
        assert_eq!(error.to_string(), "FP8 cannot be quantized by the method `hqq`");
        assert_eq!(error.hint().unwrap(), "its methods: rtn, mse");
    }
}
