//! The units that multiply. A format says how numbers are stored; only the pair of weight and activation formats says
//! which unit multiplies them (see [`crate::precision`]).

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, Format};

macro_rules! maths {
    ($($(#[$doc:meta])* $variant:ident = $key:literal, $label:literal;)*) => {
        /// A multiplying unit of a device, with its accumulator.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        pub enum Math {
            $($(#[$doc])* #[serde(rename = $key)] $variant,)*
        }

        impl Math {
            /// Every unit, in the order tables show them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name used in device files, flags and machine output.
            pub const fn key(self) -> &'static str {
                match self { $(Self::$variant => $key,)* }
            }

            /// The name used in sentences.
            pub const fn label(self) -> &'static str {
                match self { $(Self::$variant => $label,)* }
            }
        }
    };
}

maths! {
    /// FP64 on the vector units.
    Fp64 = "fp64", "FP64";
    /// FP64 on matrix units.
    Fp64Tensor = "fp64_tensor", "FP64 tensor";
    /// FP32 on the vector units.
    Fp32 = "fp32", "FP32";
    /// FP32 on matrix units (AMD CDNA).
    Fp32Matrix = "fp32_matrix", "FP32 matrix";
    /// TF32: FP32 operands rounded to 10 mantissa bits.
    Tf32 = "tf32", "TF32";
    /// FP16 with FP32 accumulation; the matrix unit where there is one.
    Fp16 = "fp16", "FP16";
    /// FP16 with FP16 accumulation (GeForce runs it at twice the rate).
    Fp16Acc16 = "fp16_fp16acc", "FP16 with FP16 accumulation";
    /// BF16 with FP32 accumulation.
    Bf16 = "bf16", "BF16";
    /// FP8 with FP32 accumulation.
    Fp8 = "fp8", "FP8";
    /// FP8 with FP16 accumulation (GeForce).
    Fp8Acc16 = "fp8_fp16acc", "FP8 with FP16 accumulation";
    /// FP6 block formats at a rate of their own (CDNA4).
    Fp6 = "fp6", "FP6";
    /// MXFP4 and NVFP4, block-scaled.
    Fp4 = "fp4", "FP4";
    /// INT16 with INT32 accumulation: how processors multiply narrow integer weights with 16-bit activations, in fixed point.
    Int16 = "int16", "INT16";
    /// INT8 with INT32 accumulation.
    Int8 = "int8", "INT8";
    /// INT8 dot products on the vector units.
    Int8Dp4a = "int8_dp4a", "INT8 DP4A";
    /// INT4 with INT32 accumulation (Turing to Ada; gone from Hopper on).
    Int4 = "int4", "INT4";
}

impl Math {
    /// What this unit accumulates in.
    pub const fn accumulator(self) -> Format {
        match self {
            Self::Fp64 | Self::Fp64Tensor => Format::FP64,
            Self::Int16 | Self::Int8 | Self::Int8Dp4a | Self::Int4 => Format::INT32,
            Self::Fp16Acc16 | Self::Fp8Acc16 => Format::FP16,
            _ => Format::FP32,
        }
    }
}

impl fmt::Display for Math {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.label())
    }
}

impl FromStr for Math {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let name = text.trim().to_ascii_lowercase().replace('-', "_");
        let key = match name.as_str() {
            "fp8_e4m3" | "fp8_e5m2" | "mxfp8" => "fp8",
            "mxfp6" => "fp6",
            "nvfp4" | "mxfp4" => "fp4",
            other => other,
        };
        Self::ALL.iter().copied().find(|math| math.key() == key).ok_or_else(|| {
            let known = Self::ALL.iter().map(|math| math.key());
            let list = known.clone().collect::<Vec<_>>().join(", ");
            Error::unknown("math unit", text, known, format!("units: {list}"))
        })
    }
}
