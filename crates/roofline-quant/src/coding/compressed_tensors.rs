//! Weights as compressed-tensors stores them, the format of vLLM's llm-compressor.
//!
//! With [`Method::Rtn`] every byte is what llm-compressor 0.14 with compressed-tensors 0.19 writes for a model of the
//! same type: the tests hold vectors made by those libraries.

use std::fmt;

use super::{
    Coding,
    float8::{self, Float8Blocks, Float8Rows, Float8Whole},
    integer::Integers,
    micro::{Eight, Four, Microscaled},
    nvfp4::{self, Nvfp4},
};
use crate::{
    Dtype, Error, Method, Result,
    rounding::{Bf16, F16, F32, Rounding, in_type},
};

/// How the weights of a layer are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Packed integers: `pack-quantized`.
    Int {
        /// 4 or 8.
        bits: u8,
        /// Weights that share a scale; a row's where there is none.
        group: Option<u32>,
        /// Whether there are zero points.
        zero: bool,
    },
    /// Four bits in a byte each, with a scale per group: `int-quantized`, which the library has for integers that meet integers.
    Int4Bytes {
        /// Weights that share a scale.
        group: u32,
    },
    /// Bytes with a scale per row: `int-quantized`.
    Int8Channel,
    /// E4M3 with a scale per row: `float-quantized`.
    Fp8Channel,
    /// E4M3 with one scale: `float-quantized`.
    Fp8Tensor,
    /// E4M3 with a scale per block of 128 x 128: `float-quantized`.
    Fp8Block,
    /// `nvfp4-pack-quantized`.
    Nvfp4,
    /// `mxfp4-pack-quantized`.
    Mxfp4,
    /// `mxfp8-quantized`.
    Mxfp8,
}

impl Scheme {
    /// The methods it can be quantized by.
    pub fn methods(self) -> &'static [Method] {
        match self {
            Self::Int { zero: true, .. } => &[Method::Rtn, Method::Mse, Method::Hqq],
            Self::Nvfp4 => &[Method::Rtn, Method::Mse, Method::FourOverSix],
            // Whatever power of two is taken, E4M3 has room for the weights below; and no search goes over a whole matrix.
            Self::Mxfp8 | Self::Fp8Tensor => &[Method::Rtn],
            _ => &[Method::Rtn, Method::Mse],
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int { bits, group, zero } => {
                write!(f, "INT{bits}")?;
                match group {
                    None => f.write_str(" per channel")?,
                    Some(group) => write!(f, " in groups of {group}")?,
                }
                f.write_str(if *zero { " with zero points" } else { "" })
            }
            Self::Int4Bytes { group } => write!(f, "INT4 in groups of {group}, a byte each"),
            Self::Int8Channel => f.write_str("INT8 per channel"),
            Self::Fp8Channel => f.write_str("FP8 per channel"),
            Self::Fp8Tensor => f.write_str("FP8 per tensor"),
            Self::Fp8Block => f.write_str("FP8 in blocks of 128 x 128"),
            Self::Nvfp4 => f.write_str("NVFP4"),
            Self::Mxfp4 => f.write_str("MXFP4"),
            Self::Mxfp8 => f.write_str("MXFP8"),
        }
    }
}

/// The coding of `scheme` for a model whose weights are of `dtype`, which is also the type of most scales.
pub fn coding(scheme: Scheme, dtype: Dtype, method: Method) -> Result<Box<dyn Coding>> {
    method.among(scheme.methods(), &scheme.to_string())?;
    in_type!(dtype, of(scheme, method))?
}

fn of<R: Rounding>(scheme: Scheme, method: Method) -> Result<Box<dyn Coding>> {
    Ok(match scheme {
        Scheme::Int { bits: 4 | 8, group: Some(0), .. } => {
            return Err(Error::unsupported("no weights share a scale in groups of 0", "take groups of 32, 64 or 128"));
        }
        Scheme::Int { bits: bits @ (4 | 8), group, zero } => Box::new(Integers::<R>::packed(bits, group, zero, method)),
        Scheme::Int { bits, .. } => {
            return Err(Error::unsupported(
                format!("integers of {bits} bits are packed differently by different loaders"),
                "take 4 or 8 bits",
            ));
        }
        Scheme::Int4Bytes { group } => Box::new(Integers::<R>::bytes(4, Some(group), method)),
        Scheme::Int8Channel => Box::new(Integers::<R>::bytes(8, None, method)),
        Scheme::Fp8Channel => Box::new(Float8Rows::<R>::new(method)),
        Scheme::Fp8Tensor => Box::new(Float8Whole::<R>::new()),
        Scheme::Fp8Block => Box::new(Float8Blocks::<R>::new(method)),
        Scheme::Nvfp4 => Box::new(Nvfp4::<R>::new(method)),
        Scheme::Mxfp4 => Box::new(Microscaled::<Four, R>::new(method)),
        Scheme::Mxfp8 => Box::new(Microscaled::<Eight, R>::new(method)),
    })
}

/// What is stored for numbers that data were seen to bring up to `peak`: the inputs of a product, or keys or values in the
/// cache. As the library computes it from a smallest and a largest in the model's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// A scale of E4M3, in the model's type.
    Fp8,
    /// NVFP4's divisor, in FP32.
    Nvfp4,
}

impl Seen {
    /// The type and the bytes, for a model of `dtype`.
    pub(crate) fn stored(self, peak: f32, dtype: Dtype) -> (Dtype, Vec<u8>) {
        fn of<R: Rounding>(seen: Seen, peak: f32) -> (Dtype, Vec<u8>) {
            let peak = R::round(peak);
            let mut bytes = vec![0; R::DTYPE.bytes()];
            match seen {
                Seen::Fp8 => R::write(float8::scale::<R>(peak), &mut bytes),
                Seen::Nvfp4 => return (Dtype::F32, nvfp4::divisor::<R>(peak).to_le_bytes().to_vec()),
            }
            (R::DTYPE, bytes)
        }
        match dtype {
            Dtype::F16 => of::<F16>(self, peak),
            Dtype::F32 => of::<F32>(self, peak),
            _ => of::<Bf16>(self, peak),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coding::{Matrix, golden::Golden};

    /// The scheme of a vector's name.
    fn scheme(name: &str) -> Scheme {
        let group = name.split('-').find_map(|word| word.strip_prefix('g')).map(|group| group.parse().unwrap());
        let int = |bits| Scheme::Int { bits, group, zero: name.ends_with("-zp") };
        match name.split('-').next().unwrap() {
            "int4" => int(4),
            "int8" => int(8),
            "w8a8" => Scheme::Int8Channel,
            "fp8" => Scheme::Fp8Channel,
            "fp8block" => Scheme::Fp8Block,
            "nvfp4" => Scheme::Nvfp4,
            "mxfp4" => Scheme::Mxfp4,
            "mxfp8" => Scheme::Mxfp8,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn bytes_are_those_of_the_library() {
        let compared = Golden::read().compare("", |name, dtype, _| coding(scheme(name), dtype, Method::Rtn).unwrap());
        // 10 in full, and 10 schemes in three types each.
        assert_eq!(compared, 40);
    }

    #[test]
    fn shapes_that_do_not_suit_say_why() {
        let parts = |scheme, columns| {
            coding(scheme, Dtype::Bf16, Method::Rtn)
                .unwrap()
                .parts(Matrix { rows: 3, columns })
                .map(|parts| parts.len())
        };
        let grouped = Scheme::Int { bits: 4, group: Some(128), zero: false };
        assert_eq!(parts(grouped, 200).unwrap_err(), "has 200 columns, which is no multiple of the group of 128");
        assert_eq!(parts(Scheme::Nvfp4, 24).unwrap_err(), "has 24 columns, which is no multiple of the group of 16");
        assert_eq!(parts(Scheme::Mxfp4, 48).unwrap_err(), "has 48 columns, which is no multiple of the group of 32");
        assert_eq!(parts(Scheme::Fp8Channel, 0).unwrap_err(), "has no columns");
        // A row of its own scale may have any length.
        assert_eq!(parts(Scheme::Int { bits: 4, group: None, zero: true }, 7), Ok(4));
    }

    #[test]
    fn packed_tensors_have_whole_words() {
        let coding = coding(Scheme::Int { bits: 4, group: None, zero: true }, Dtype::F16, Method::Rtn).unwrap();
        let parts = coding.parts(Matrix { rows: 9, columns: 13 }).unwrap();
        let shapes: Vec<_> = parts.iter().map(|part| (part.name, part.dtype, part.shape.clone())).collect();
        assert_eq!(
            shapes,
            [
                ("weight_packed", Dtype::I32, vec![9, 2]),
                ("weight_scale", Dtype::F16, vec![9, 1]),
                ("weight_zero_point", Dtype::I32, vec![2, 1]),
                ("weight_shape", Dtype::I64, vec![2]),
            ]
        );
        assert_eq!(coding.unit(), 8);
    }

    #[test]
    fn what_is_not_written_says_so() {
        let refused = |scheme, dtype, method| coding(scheme, dtype, method).err().unwrap();
        let three = Scheme::Int { bits: 3, group: Some(128), zero: false };
        assert_eq!(refused(three, Dtype::Bf16, Method::Rtn).kind(), "unsupported");
        assert_eq!(refused(Scheme::Nvfp4, Dtype::F64, Method::Rtn).kind(), "unsupported");
        let error = refused(Scheme::Int { bits: 4, group: None, zero: false }, Dtype::Bf16, Method::FourOverSix);
        assert_eq!(error.hint().unwrap(), "its methods: rtn, mse");
    }
}
