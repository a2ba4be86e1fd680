//! ggml's block types: what the tensors of a GGUF file are made of.
//!
//! A row is a run of blocks, each with its own scales between the codes of its weights. The bytes are those that ggml's
//! reference quantizers write, to the last bit, so a tensor packed here is a tensor of a file that llama.cpp wrote. They
//! differ where ggml's could not be used: a scale that f16 cannot hold saturates instead of becoming infinite, and blocks
//! of magnitudes below about 1e-37, whose inverse scale overflows, get codes that are defined (their scale is zero, so
//! they decode to the same).
//!
//! A [`Codec`] is nothing but loops over slices, inlined into whoever calls it: a caller that is compiled for wider vectors
//! makes vector code of them, and no second copy of the arithmetic is needed for that.
//!
//! Source: `ggml-common.h` (layouts) and `ggml-quants.c` (`quantize_row_*_ref`, `dequantize_row_*`) of llama.cpp.

#![expect(clippy::inline_always, reason = "a caller compiled for wider vectors needs the whole loop")]

mod centred;
mod codes;
pub mod half;
mod importance;
mod iq1;
mod iq2;
mod iq2_grid;
mod iq3;
mod iq3_grid;
mod iq4;
mod lanes;
mod point_search;
mod points;
mod q2k;
mod q3k;
mod q45k;
mod q6k;
mod search;
mod simple;
mod steps;

pub use codes::Codes;
pub use iq1::{Iq1M, Iq1S};
pub use iq2::{Iq2S, Iq2Xs, Iq2Xxs};
pub use iq3::{Iq3S, Iq3Xxs};
pub use iq4::{Iq4Nl, Iq4Xs, UNEVEN};
pub use q2k::Q2K;
pub use q3k::Q3K;
pub use q6k::Q6K;
pub use q45k::{Q4K, Q5K};
pub use simple::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, peak_bits};

use super::Element;

/// How weights become blocks, and what blocks stand for.
pub trait Codec {
    /// Weights of a block.
    const ELEMENTS: usize;
    /// Bytes of a block.
    const BYTES: usize;

    /// Codes finite `values`, a whole number of blocks, into as many blocks of `out`.
    fn encode(values: &[f32], out: &mut [u8]);

    /// As [`Codec::encode`] for a row of a matrix, with what an error in each of its input channels counts: finite numbers, none below
    /// zero. The same where a type does not ask, as ggml's `Q8_0` does not.
    #[inline(always)]
    fn encode_weighted(row: &[f32], _importance: &[f32], out: &mut [u8]) {
        Self::encode(row, out);
    }

    /// What the blocks of `bytes` stand for.
    fn decode(bytes: &[u8], out: &mut [f32]);
}

/// A block type of ggml whose blocks stand alone: no scale of the tensor beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GgufBlock {
    /// 32 codes of 8 bits, an f16 scale.
    Q8_0,
    /// 256 codes of 6 bits, an 8-bit scale per 16 and an f16 one for all.
    Q6K,
    /// 32 codes of 5 bits, an f16 scale and an f16 minimum.
    Q5_1,
    /// 32 codes of 5 bits, an f16 scale.
    Q5_0,
    /// 256 codes of 5 bits, a 6-bit scale and minimum per 32 and an f16 scale of each.
    Q5K,
    /// 32 codes of 4 bits, an f16 scale and an f16 minimum.
    Q4_1,
    /// 32 codes of 4 bits, an f16 scale.
    Q4_0,
    /// 256 codes of 4 bits, a 6-bit scale and minimum per 32 and an f16 scale of each.
    Q4K,
    /// 32 codes of 4 bits for uneven values, an f16 scale.
    Iq4Nl,
    /// 256 codes of 4 bits for uneven values, a 6-bit scale per 32 and an f16 one for all.
    Iq4Xs,
    /// 256 weights of 3 bits as 64 points of 512 with signs, a 4-bit scale per 32 and an f16 one for all.
    Iq3S,
    /// 256 codes of 3 bits, a 6-bit scale per 16 and an f16 one for all.
    Q3K,
    /// 256 weights of 3 bits as 64 points of 256, signs of 7 bits to 8, a 4-bit scale per 32 and an f16 one for all.
    Iq3Xxs,
    /// 256 codes of 2 bits, a 4-bit scale and minimum per 16 and an f16 scale of each.
    Q2K,
    /// 256 weights of 2 bits as 32 points of 1024 with signs, a 4-bit scale per 16 and an f16 one for all.
    Iq2S,
    /// 256 weights of 2 bits as 32 points of 512, signs of 7 bits to 8, a 4-bit scale per 16 and an f16 one for all.
    Iq2Xs,
    /// 256 weights of 2 bits as 32 points of 256, signs of 7 bits to 8, a 4-bit scale per 32 and an f16 one for all.
    Iq2Xxs,
    /// 256 weights of three levels as 32 points of 2048, a move to 8, a 3-bit scale per 16 and an f16 one for all.
    Iq1M,
    /// 256 weights of three levels as 32 points of 2048, a move and a 3-bit scale per 32 and an f16 one for all.
    Iq1S,
}

/// Calls `$body` with `$codec` standing for the codec of `$block`.
macro_rules! with_codec {
    ($block:expr, $codec:ident => $body:expr) => {
        match $block {
            GgufBlock::Q8_0 => {
                type $codec = Q8_0;
                $body
            }
            GgufBlock::Q6K => {
                type $codec = Q6K;
                $body
            }
            GgufBlock::Q5_1 => {
                type $codec = Q5_1;
                $body
            }
            GgufBlock::Q5_0 => {
                type $codec = Q5_0;
                $body
            }
            GgufBlock::Q5K => {
                type $codec = Q5K;
                $body
            }
            GgufBlock::Q4_1 => {
                type $codec = Q4_1;
                $body
            }
            GgufBlock::Q4_0 => {
                type $codec = Q4_0;
                $body
            }
            GgufBlock::Q4K => {
                type $codec = Q4K;
                $body
            }
            GgufBlock::Iq4Nl => {
                type $codec = Iq4Nl;
                $body
            }
            GgufBlock::Iq4Xs => {
                type $codec = Iq4Xs;
                $body
            }
            GgufBlock::Iq3S => {
                type $codec = Iq3S;
                $body
            }
            GgufBlock::Q3K => {
                type $codec = Q3K;
                $body
            }
            GgufBlock::Iq3Xxs => {
                type $codec = Iq3Xxs;
                $body
            }
            GgufBlock::Q2K => {
                type $codec = Q2K;
                $body
            }
            GgufBlock::Iq2S => {
                type $codec = Iq2S;
                $body
            }
            GgufBlock::Iq2Xs => {
                type $codec = Iq2Xs;
                $body
            }
            GgufBlock::Iq2Xxs => {
                type $codec = Iq2Xxs;
                $body
            }
            GgufBlock::Iq1M => {
                type $codec = Iq1M;
                $body
            }
            GgufBlock::Iq1S => {
                type $codec = Iq1S;
                $body
            }
        }
    };
}

impl GgufBlock {
    /// All of them, wide to narrow.
    pub const ALL: [Self; 19] = [
        Self::Q8_0,
        Self::Q6K,
        Self::Q5_1,
        Self::Q5_0,
        Self::Q5K,
        Self::Q4_1,
        Self::Q4_0,
        Self::Q4K,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Iq3S,
        Self::Q3K,
        Self::Iq3Xxs,
        Self::Q2K,
        Self::Iq2S,
        Self::Iq2Xs,
        Self::Iq2Xxs,
        Self::Iq1M,
        Self::Iq1S,
    ];

    /// Weights of a block.
    pub const fn elements(self) -> usize {
        with_codec!(self, C => C::ELEMENTS)
    }

    /// Bytes of a block.
    pub const fn bytes(self) -> usize {
        with_codec!(self, C => C::BYTES)
    }

    /// What one code is, before its scale.
    pub(super) const fn element(self) -> Element {
        match self {
            Self::Q8_0 => Element::Int8,
            Self::Q6K => Element::Int6,
            Self::Q5_1 | Self::Q5_0 | Self::Q5K => Element::Int5,
            Self::Q4_1 | Self::Q4_0 | Self::Q4K | Self::Iq4Nl | Self::Iq4Xs => Element::Int4,
            Self::Iq3S | Self::Q3K | Self::Iq3Xxs => Element::Int3,
            // Three levels take two bits where each weight has its own.
            Self::Q2K | Self::Iq2S | Self::Iq2Xs | Self::Iq2Xxs | Self::Iq1M | Self::Iq1S => Element::Int2,
        }
    }

    /// Whether its values are no whole steps apart.
    pub const fn is_uneven(self) -> bool {
        let wide = matches!(self, Self::Iq4Nl | Self::Iq4Xs | Self::Iq3S | Self::Iq3Xxs);
        wide || matches!(self, Self::Iq2S | Self::Iq2Xs | Self::Iq2Xxs | Self::Iq1M | Self::Iq1S)
    }

    /// Whether codes are counted from a minimum up: `x = scale * code - minimum`.
    pub(super) const fn has_minimum(self) -> bool {
        matches!(self, Self::Q5_1 | Self::Q5K | Self::Q4_1 | Self::Q4K | Self::Q2K)
    }

    /// The scales of a block, in words.
    pub(super) const fn scale(self) -> &'static str {
        match self {
            Self::Q8_0 | Self::Q5_0 | Self::Q4_0 | Self::Iq4Nl => "FP16 per block",
            Self::Iq4Xs => "6 bit per 32, FP16 per block",
            Self::Q5_1 | Self::Q4_1 => "FP16 scale and minimum per block",
            Self::Q6K => "8 bit per 16, FP16 per block",
            Self::Iq3S | Self::Iq3Xxs | Self::Iq2Xxs => "4 bit per 32, FP16 per block",
            Self::Iq2S | Self::Iq2Xs => "4 bit per 16, FP16 per block",
            Self::Iq1M => "3 bit per 16, FP16 per block",
            Self::Iq1S => "3 bit per 32, FP16 per block",
            Self::Q3K => "6 bit per 16, FP16 per block",
            Self::Q2K => "4-bit scale and minimum per 16, two FP16 per block",
            Self::Q5K | Self::Q4K => "6-bit scale and minimum per 32, two FP16 per block",
        }
    }

    /// Codes finite `values` as ggml would.
    ///
    /// # Panics
    ///
    /// When `values` are no whole number of blocks, or `out` has not the length of as many.
    pub fn encode(self, values: &[f32], out: &mut [u8]) {
        self.check(values.len(), out.len());
        with_codec!(self, C => C::encode(values, out));
    }

    /// What `bytes` stand for.
    ///
    /// # Panics
    ///
    /// As [`GgufBlock::encode`].
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) {
        self.check(out.len(), bytes.len());
        with_codec!(self, C => C::decode(bytes, out));
    }

    pub(super) fn encoded(self, values: &[f32]) -> Vec<u8> {
        let mut bytes = vec![0; values.len() / self.elements() * self.bytes()];
        self.encode(values, &mut bytes);
        bytes
    }

    pub(super) fn decoded(self, bytes: &[u8]) -> Vec<f32> {
        let mut values = vec![0.0; bytes.len() / self.bytes() * self.elements()];
        self.decode(bytes, &mut values);
        values
    }

    fn check(self, weights: usize, bytes: usize) {
        assert!(weights.is_multiple_of(self.elements()), "{weights} weights are no whole number of {self:?} blocks");
        assert_eq!(weights / self.elements() * self.bytes(), bytes, "bytes of {weights} weights in {self:?}");
    }
}

#[cfg(test)]
mod tests;
