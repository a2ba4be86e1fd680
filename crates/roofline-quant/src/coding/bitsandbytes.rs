//! Weights as bitsandbytes stores them: NF4 and FP4 in blocks of 64, and LLM.int8().
//!
//! Codes and maxima are bitsandbytes 0.50's own, as it computes them on a CPU without its compiled library: with that
//! library, a table of limited resolution finds the codes of quantized maxima, and misses the nearest of 256 now and then.
//! The mean of the maxima is the exact one, where PyTorch's sum in FP32 depends on how many threads add.

mod blocks;
mod int8;

use std::fmt;

use roofline_core::format::{BNB_FP4, NF4};

use super::Coding;
use crate::{Dtype, Method, Result, rounding::unsuited};
pub(crate) use blocks::{Blocks, State};
pub(crate) use int8::Int8;

/// How the weights of a layer are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// `Linear4bit`: four bits with the largest magnitude of each block.
    Four {
        /// What the codes stand for.
        quantiles: Quantiles,
        /// Whether the magnitudes are quantized, too.
        double: bool,
    },
    /// `Linear8bitLt`: bytes with the largest magnitude of each row.
    Int8,
}

/// What the sixteen codes stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quantiles {
    /// Those of a normal distribution.
    Nf4,
    /// Floating-point numbers of a sign, two bits of exponent and one of mantissa.
    Fp4,
}

impl Quantiles {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Nf4, Self::Fp4];

    /// Its name in the library.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nf4 => "nf4",
            Self::Fp4 => "fp4",
        }
    }

    /// The values of the codes.
    fn values(self) -> [f32; 16] {
        match self {
            Self::Nf4 => NF4,
            Self::Fp4 => BNB_FP4,
        }
    }

    /// The tensor that says how the others are to be read.
    pub(crate) fn state(self) -> &'static str {
        match self {
            Self::Nf4 => "weight.quant_state.bitsandbytes__nf4",
            Self::Fp4 => "weight.quant_state.bitsandbytes__fp4",
        }
    }
}

impl Scheme {
    /// The methods it can be quantized by.
    pub fn methods(self) -> &'static [Method] {
        &[Method::Rtn]
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Four { quantiles, double } => {
                f.write_str(if *quantiles == Quantiles::Nf4 { "NF4" } else { "FP4 of bitsandbytes" })?;
                f.write_str(if *double { " in blocks of 64, twice quantized" } else { " in blocks of 64" })
            }
            Self::Int8 => f.write_str("LLM.int8()"),
        }
    }
}

/// The coding of `scheme` for matrices of that many columns, in a model whose weights are of `dtype`.
pub fn coding(scheme: Scheme, columns: usize, dtype: Dtype, method: Method) -> Result<Box<dyn Coding>> {
    method.among(scheme.methods(), &scheme.to_string())?;
    if !matches!(dtype, Dtype::Bf16 | Dtype::F16 | Dtype::F32) {
        return Err(unsuited(dtype));
    }
    Ok(match scheme {
        Scheme::Four { quantiles, double } => Box::new(Blocks::new(quantiles, double, columns, dtype)),
        Scheme::Int8 => Box::new(Int8 { told: true }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coding::golden::Golden;

    fn scheme(name: &str) -> Scheme {
        let double = name.ends_with("-dq");
        match name.split('-').nth(1).unwrap() {
            "nf4" => Scheme::Four { quantiles: Quantiles::Nf4, double },
            "fp4" => Scheme::Four { quantiles: Quantiles::Fp4, double },
            "int8" => Scheme::Int8,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn bytes_are_those_of_the_library() {
        let compared = Golden::boxes()
            .compare("bitsandbytes", |name, dtype, columns| coding(scheme(name), columns, dtype, Method::Rtn).unwrap());
        // Three in full, and five in three types and three shapes each.
        assert_eq!(compared, 3 + 45);
    }
}
