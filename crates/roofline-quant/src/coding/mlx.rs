//! Weights as MLX stores them: words of packed codes, with scales and biases beside them.
//!
//! With [`Method::Rtn`] the bytes are those of `mx.quantize` of MLX 0.32 on a CPU; on a GPU it rounds FP4 numbers that
//! lie between two others to the even one, and on a CPU to the smaller.

mod affine;
mod float;

use std::fmt;

use super::Coding;
use crate::{
    Dtype, Error, Method, Result,
    rounding::{Rounding, in_type},
};
use affine::Affine;
use float::Floats;

/// How the weights of a layer are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// `affine`: unsigned integers with a scale and a bias per group.
    Affine {
        /// 2 to 8, without 7.
        bits: u8,
        /// Weights that share a scale.
        group: u32,
        /// Whether the bias is that of integers on both sides of zero.
        centred: bool,
    },
    /// `mxfp4`: E2M1 with a power of two per 32.
    Mxfp4,
    /// `mxfp8`: E4M3 with a power of two per 32.
    Mxfp8,
    /// `nvfp4`: E2M1 with an E4M3 scale per 16, and none for the whole.
    Nvfp4,
}

impl Scheme {
    /// The methods it can be quantized by.
    pub fn methods(self) -> &'static [Method] {
        match self {
            Self::Affine { centred: false, .. } => &[Method::Rtn, Method::Mse],
            _ => &[Method::Rtn],
        }
    }

    /// Weights that share a scale, the bits of each, and what the library calls it.
    pub fn terms(self) -> (u32, u8, &'static str) {
        match self {
            Self::Affine { bits, group, .. } => (group, bits, "affine"),
            Self::Mxfp4 => (32, 4, "mxfp4"),
            Self::Mxfp8 => (32, 8, "mxfp8"),
            Self::Nvfp4 => (16, 4, "nvfp4"),
        }
    }

    /// What the library calls by these terms.
    pub fn of_terms(group: u64, bits: u64, mode: &str) -> Option<Self> {
        let affine = |group, bits| Self::Affine { bits, group, centred: false };
        match (mode, group, bits) {
            ("affine", 32 | 64 | 128, 2..=6 | 8) => Some(affine(group as u32, bits as u8)),
            ("mxfp4", 32, 4) => Some(Self::Mxfp4),
            ("mxfp8", 32, 8) => Some(Self::Mxfp8),
            ("nvfp4", 16, 4) => Some(Self::Nvfp4),
            _ => None,
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Affine { bits, group, centred: false } => write!(f, "INT{bits} in groups of {group} with biases"),
            Self::Affine { bits, group, centred: true } => write!(f, "INT{bits} in groups of {group}"),
            Self::Mxfp4 => f.write_str("MXFP4"),
            Self::Mxfp8 => f.write_str("MXFP8"),
            Self::Nvfp4 => f.write_str("NVFP4 without a scale for the whole"),
        }
    }
}

/// The coding of `scheme` for a model whose weights are of `dtype`, which is also the type of scales and biases.
pub fn coding(scheme: Scheme, dtype: Dtype, method: Method) -> Result<Box<dyn Coding>> {
    method.among(scheme.methods(), &scheme.to_string())?;
    if let Scheme::Affine { bits, group, .. } = scheme
        && Scheme::of_terms(group.into(), bits.into(), "affine").is_none()
    {
        return Err(Error::unsupported(
            format!("MLX has no integers of {bits} bits in groups of {group}"),
            "take 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128",
        ));
    }
    in_type!(dtype, of(scheme, method))
}

fn of<R: Rounding>(scheme: Scheme, method: Method) -> Box<dyn Coding> {
    match scheme {
        Scheme::Affine { bits, group, centred } => Box::new(Affine::<R>::new(bits, group, centred, method)),
        Scheme::Mxfp4 => Box::new(Floats::<float::Four, R>::new()),
        Scheme::Mxfp8 => Box::new(Floats::<float::Eight, R>::new()),
        Scheme::Nvfp4 => Box::new(Floats::<float::Nvidia, R>::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coding::{
        Matrix,
        golden::{Golden, store},
    };

    fn scheme(name: &str) -> Scheme {
        let number = |start: &str| name.split('-').find_map(|word| word.strip_prefix(start)?.parse::<u64>().ok());
        match name.split('-').nth(1).unwrap() {
            "mxfp4" => Scheme::Mxfp4,
            "mxfp8" => Scheme::Mxfp8,
            "nvfp4" => Scheme::Nvfp4,
            _ => Scheme::of_terms(number("g").unwrap(), number("int").unwrap(), "affine").unwrap(),
        }
    }

    #[test]
    fn bytes_are_those_of_the_library() {
        let compared =
            Golden::boxes().compare("mlx", |name, dtype, _| coding(scheme(name), dtype, Method::Rtn).unwrap());
        // Three in full, and 18 widths and groups and three modes in three types each.
        assert_eq!(compared, 3 + 63);
    }

    /// The bias puts the integers of `n` bits at -2^(n-1) to 2^(n-1) - 1, so that zero is one of them.
    #[test]
    fn centred_integers_hold_zero() {
        for (bits, largest) in [(2, 1.0f32), (3, 3.0), (4, 7.0), (8, 127.0)] {
            let scheme = Scheme::Affine { bits, group: 32, centred: true };
            let coding = coding(scheme, Dtype::Bf16, Method::Rtn).unwrap();
            // The scale is the largest magnitude over half the steps.
            let values: Vec<f32> = (0..32u8).map(|at| if at == 0 { -(largest + 0.5) } else { 0.0 }).collect();
            let stored = store(&*coding, &values, 32, None);
            assert_eq!(stored.decoded[0], -(largest + 1.0), "{bits}");
            assert!(stored.decoded[1..].iter().all(|value| *value == 0.0), "{bits}");
        }
    }

    #[test]
    fn shapes_that_do_not_suit_say_why() {
        let coding = coding(Scheme::Affine { bits: 3, group: 64, centred: false }, Dtype::F16, Method::Rtn).unwrap();
        let parts = coding.parts(Matrix { rows: 5, columns: 128 }).unwrap();
        let shapes: Vec<_> = parts.iter().map(|part| (part.name, part.dtype, part.shape.clone())).collect();
        let sixteen = |name| (name, Dtype::F16, vec![5, 2]);
        assert_eq!(shapes, [("weight", Dtype::U32, vec![5, 12]), sixteen("scales"), sixteen("biases")]);
        let reason = coding.parts(Matrix { rows: 5, columns: 96 }).unwrap_err();
        assert_eq!(reason, "has 96 columns, which is no multiple of the group of 64");
    }
}
