//! ggml block types: the numbers inside a GGUF file.
//!
//! A row of weights is a run of blocks; a block has a fixed number of weights and a fixed number of bytes. Bytes are
//! those that ggml's own reference quantizers write, to the last bit: a file made here and one made by llama.cpp from
//! the same weights hold the same tensors. The arithmetic of the integer types is that of `roofline_core::format::gguf`,
//! which also says where the bytes differ and why; [`Type::limit`] has the magnitudes at which that begins.

#![expect(clippy::inline_always, reason = "what `widest!` calls is compiled for any CPU unless it is inlined")]

mod codes;
mod coding;
mod fp4;
mod others;
mod simple;

pub use coding::GgmlCoding;
pub use fp4::divisor;

use roofline_core::{
    Format,
    format::gguf::{
        Codec, GgufBlock, Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Iq4Nl, Iq4Xs, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0,
        Q5_1, Q5K, Q6K, Q8_0,
    },
};

macro_rules! types {
    ($($name:ident $id:literal $text:literal $block:tt $bytes:tt,)*) => {
        /// How a tensor of a GGUF file is stored.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "the names are ggml's")]
        pub enum Type { $($name,)* }

        impl Type {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The number in the file.
            pub fn id(self) -> u32 {
                match self { $(Self::$name => $id,)* }
            }

            /// What llama.cpp calls it.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// How many weights a block has.
            pub fn block(self) -> usize {
                match self { $(Self::$name => $block,)* }
            }

            /// How many bytes a block takes.
            pub fn block_bytes(self) -> usize {
                match self { $(Self::$name => $bytes,)* }
            }
        }
    };
}

types! {
    F32 0 "F32" 1 4,
    F16 1 "F16" 1 2,
    Q4_0 2 "Q4_0" { Q4_0::ELEMENTS } { Q4_0::BYTES },
    Q4_1 3 "Q4_1" { Q4_1::ELEMENTS } { Q4_1::BYTES },
    Q5_0 6 "Q5_0" { Q5_0::ELEMENTS } { Q5_0::BYTES },
    Q5_1 7 "Q5_1" { Q5_1::ELEMENTS } { Q5_1::BYTES },
    Q8_0 8 "Q8_0" { Q8_0::ELEMENTS } { Q8_0::BYTES },
    Q8_1 9 "Q8_1" 32 36,
    Q2K 10 "Q2_K" { Q2K::ELEMENTS } { Q2K::BYTES },
    Q3K 11 "Q3_K" { Q3K::ELEMENTS } { Q3K::BYTES },
    Q4K 12 "Q4_K" { Q4K::ELEMENTS } { Q4K::BYTES },
    Q5K 13 "Q5_K" { Q5K::ELEMENTS } { Q5K::BYTES },
    Q6K 14 "Q6_K" { Q6K::ELEMENTS } { Q6K::BYTES },
    Q8K 15 "Q8_K" 256 292,
    Iq2Xxs 16 "IQ2_XXS" { Iq2Xxs::ELEMENTS } { Iq2Xxs::BYTES },
    Iq2Xs 17 "IQ2_XS" { Iq2Xs::ELEMENTS } { Iq2Xs::BYTES },
    Iq3Xxs 18 "IQ3_XXS" { Iq3Xxs::ELEMENTS } { Iq3Xxs::BYTES },
    Iq1S 19 "IQ1_S" { Iq1S::ELEMENTS } { Iq1S::BYTES },
    Iq4Nl 20 "IQ4_NL" 32 18,
    Iq3S 21 "IQ3_S" { Iq3S::ELEMENTS } { Iq3S::BYTES },
    Iq2S 22 "IQ2_S" { Iq2S::ELEMENTS } { Iq2S::BYTES },
    Iq4Xs 23 "IQ4_XS" 256 136,
    I8 24 "I8" 1 1,
    I16 25 "I16" 1 2,
    I32 26 "I32" 1 4,
    I64 27 "I64" 1 8,
    F64 28 "F64" 1 8,
    Iq1M 29 "IQ1_M" { Iq1M::ELEMENTS } { Iq1M::BYTES },
    Bf16 30 "BF16" 1 2,
    Tq1_0 34 "TQ1_0" 256 54,
    Tq2_0 35 "TQ2_0" 256 66,
    Mxfp4 39 "MXFP4" 32 17,
    Nvfp4 40 "NVFP4" 64 36,
    Q1_0 41 "Q1_0" 128 18,
    Q2_0 42 "Q2_0" 64 18,
}

/// The types that are formats of `roofline_core`.
const FORMATS: [(Type, Format); 24] = [
    (Type::F32, Format::FP32),
    (Type::F16, Format::FP16),
    (Type::Bf16, Format::BF16),
    (Type::Q8_0, Format::Q8_0),
    (Type::Q6K, Format::Q6_K),
    (Type::Q5_1, Format::Q5_1),
    (Type::Q5_0, Format::Q5_0),
    (Type::Q5K, Format::Q5_K),
    (Type::Q4_1, Format::Q4_1),
    (Type::Q4_0, Format::Q4_0),
    (Type::Q4K, Format::Q4_K),
    (Type::Iq4Nl, Format::IQ4_NL),
    (Type::Iq4Xs, Format::IQ4_XS),
    (Type::Iq3S, Format::IQ3_S),
    (Type::Q3K, Format::Q3_K),
    (Type::Iq3Xxs, Format::IQ3_XXS),
    (Type::Q2K, Format::Q2_K),
    (Type::Iq2S, Format::IQ2_S),
    (Type::Iq2Xs, Format::IQ2_XS),
    (Type::Iq2Xxs, Format::IQ2_XXS),
    (Type::Iq1M, Format::IQ1_M),
    (Type::Iq1S, Format::IQ1_S),
    (Type::Mxfp4, Format::MXFP4),
    (Type::Nvfp4, Format::NVFP4),
];

impl Type {
    /// The type that stores a format; nothing for a format that is none of ggml's.
    pub fn of(format: Format) -> Option<Self> {
        FORMATS.iter().find(|(_, known)| *known == format).map(|(ty, _)| *ty)
    }

    /// The format that it stores; nothing for what is only known by name.
    pub fn format(self) -> Option<Format> {
        FORMATS.iter().find(|(known, _)| *known == self).map(|(_, format)| *format)
    }

    /// The format in which kernels read it, in its own blocks or with [codes and scales apart](apart).
    pub(crate) fn in_kernels(self) -> Option<Format> {
        self.format().filter(|format| !format.gguf().is_some_and(GgufBlock::is_uneven))
    }

    /// Whether llama.cpp refuses it without an importance matrix, but for embedding and output, of which data say nothing.
    pub fn asks_for_importance(self) -> bool {
        self.depends_on_importance() || matches!(self, Self::Iq3Xxs | Self::Iq2S | Self::Iq1M)
    }

    /// Whether ggml has no way to it without an importance matrix.
    pub fn depends_on_importance(self) -> bool {
        matches!(self, Self::Iq2Xs | Self::Iq2Xxs | Self::Iq1S)
    }

    /// The type of that number; nothing for one that is not known.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.iter().find(|known| known.id() == id).copied()
    }

    /// The type of that name, in any case.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|known| known.name().eq_ignore_ascii_case(name)).copied()
    }

    /// The bytes of that many weights; nothing where they are no whole number of blocks, or too many to count.
    pub fn bytes(self, weights: u64) -> Option<u64> {
        let block = self.block() as u64;
        if weights.is_multiple_of(block) { (weights / block).checked_mul(self.block_bytes() as u64) } else { None }
    }

    /// Whether [`encode`] writes it.
    pub fn is_written(self) -> bool {
        self.limit().is_some()
    }

    /// The largest magnitude that [`encode`] stores without clipping, because the block's scale still fits its f16; the
    /// finest of the bounds where several scales have one. Nothing for types that are not written.
    pub fn limit(self) -> Option<f32> {
        const F16: f32 = 65504.0;
        match self {
            Self::F32 | Self::Mxfp4 => Some(f32::MAX),
            Self::Nvfp4 => Some(fp4::LARGEST),
            Self::Bf16 => Some(f32::from_bits(0x7f7f_7fff)),
            Self::F16 | Self::Q5_1 | Self::Q4_1 => Some(F16),
            Self::Q4_0 => Some(8.0 * F16),
            Self::Q5_0 => Some(16.0 * F16),
            Self::Q8_0 => Some(127.0 * F16),
            // The minimum of a sub-block is 63 steps of `dmin`, the range above it 63 * 15 of `d`.
            Self::Q4K | Self::Q5K => Some(63.0 * F16),
            Self::Q6K => Some(127.0 * 31.0 * F16),
            // The minimum of a sub-block is 15 steps of `dmin`, the range above it 15 * 3 of `d`.
            Self::Q2K => Some(15.0 * F16),
            Self::Q3K => Some(31.0 * 3.0 * F16),
            // The scale is the largest weight over about 127, at least over 120.
            Self::Iq4Nl => Some(113.0 * F16),
            Self::Iq4Xs => Some(31.0 * 113.0 * F16),
            // A 31st of the scale of 32 weights, a little more than that, and the largest level.
            Self::Iq3S | Self::Iq3Xxs => Some(30.0 * 15.0 * F16),
            // The largest weights may have the second level of three.
            Self::Iq2S | Self::Iq2Xs | Self::Iq2Xxs => Some(30.0 * 3.0 * F16),
            // A 15th of the scale, an eighth more than that, and a level that may be an eighth below one.
            Self::Iq1M | Self::Iq1S => Some(11.0 * F16),
            _ => None,
        }
    }
}

impl std::fmt::Display for Type {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Calls `$body` with `$codec` standing for the codec of the block type `$ty`; `$else` for types that are no such blocks.
macro_rules! blocks {
    ($ty:expr, $codec:ident => $body:expr, $else:expr) => {
        blocks!(@each $ty, $codec => $body, $else, Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Iq4Nl Iq4Xs Iq3S Iq3Xxs Iq2S Iq2Xs Iq2Xxs
            Iq1M Iq1S Q2K Q3K Q4K Q5K Q6K)
    };
    (@each $ty:expr, $codec:ident => $body:expr, $else:expr, $($name:ident)*) => {
        match $ty {
            $(Type::$name => {
                type $codec = $name;
                $body
            })*
            _ => $else,
        }
    };
}

/// Codes `values`, finite numbers and a whole number of blocks, into as many bytes as [`Type::bytes`] says, as ggml
/// would. For [`Type::Nvfp4`] that is without a scale of the tensor; see [`encode_scaled`].
///
/// # Panics
///
/// When the type is not written, or the lengths do not suit.
pub fn encode(ty: Type, values: &[f32], out: &mut [u8]) {
    assert_eq!(ty.bytes(values.len() as u64), Some(out.len() as u64), "{ty} of {} weights", values.len());
    match ty {
        Type::F32 => simple::encode_f32(values, out),
        Type::F16 => simple::encode_f16(values, out),
        Type::Bf16 => simple::encode_bf16(values, out),
        Type::Mxfp4 => fp4::encode_mxfp4(values, out),
        Type::Nvfp4 => fp4::encode_nvfp4(values, out),
        _ => blocks!(ty, C => simple::encode::<C>(values, out), panic!("{ty} is read, not written")),
    }
}

/// As [`encode`] for the rows of a matrix, with what an error in each input channel counts, as ggml has it with an importance matrix:
/// finite numbers, none below zero, as many as a row has weights. Types that do not ask are the same.
///
/// # Panics
///
/// As [`encode`].
pub fn encode_weighted(ty: Type, values: &[f32], importance: &[f32], out: &mut [u8]) {
    assert_eq!(ty.bytes(values.len() as u64), Some(out.len() as u64), "{ty} of {} weights", values.len());
    let row = ty.bytes(importance.len() as u64).map_or(1, |bytes| bytes as usize);
    for (values, out) in values.chunks_exact(importance.len()).zip(out.chunks_exact_mut(row)) {
        blocks!(ty, C => simple::encode_weighted::<C>(values, importance, out), encode(ty, values, out));
    }
}

/// As [`encode`] for [`Type::Nvfp4`], with the [`divisor`] of the tensor: the codes that compressed-tensors gives.
///
/// # Panics
///
/// When the lengths do not suit.
pub fn encode_scaled(values: &[f32], divisor: f32, out: &mut [u8]) {
    assert_eq!(Type::Nvfp4.bytes(values.len() as u64), Some(out.len() as u64), "{} weights", values.len());
    fp4::encode_scaled(values, divisor, out);
}

/// What `bytes` stand for; `false`, and nothing decoded, for types that are only known by name. `scale` is that of the
/// tensor, for [`Type::Nvfp4`] the content of its `.scale`; one elsewhere.
///
/// # Panics
///
/// When the lengths do not suit.
#[must_use]
pub fn decode(ty: Type, bytes: &[u8], scale: f32, out: &mut [f32]) -> bool {
    assert_eq!(ty.bytes(out.len() as u64), Some(bytes.len() as u64), "{ty} of {} weights", out.len());
    match ty {
        Type::F32 => simple::decode_f32(bytes, out),
        Type::F16 => simple::decode_f16(bytes, out),
        Type::Bf16 => simple::decode_bf16(bytes, out),
        Type::Mxfp4 => fp4::decode_mxfp4(bytes, out),
        Type::Nvfp4 => fp4::decode_nvfp4(bytes, scale, out),
        _ => blocks!(ty, C => simple::decode::<C>(bytes, out), return others::decode(ty, bytes, out)),
    }
    true
}

/// Blocks of [`Type::Mxfp4`] or [`Type::Nvfp4`] with their codes, two to a byte in the order of the weights, and their
/// scales each in a place of its own. They take as many bytes.
pub(crate) fn apart(ty: Type, bytes: &[u8], codes: &mut [u8], scales: &mut [u8]) {
    match ty {
        Type::Mxfp4 => fp4::mxfp4_apart(bytes, codes, scales),
        _ => fp4::nvfp4_apart(bytes, codes, scales),
    }
}

#[cfg(test)]
mod tests;
