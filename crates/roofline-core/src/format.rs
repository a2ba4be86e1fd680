//! How numbers are stored: the element, the block that shares a scale, the scale's own type.
//!
//! "4 bits" is never the whole story: [`Format::bytes`] is the exact size of a tensor with its scales and zero points,
//! and equals the length of the buffer that [`Format::encode`] packs.

mod bits;
mod catalogue;
mod codec;
mod dynamic;
mod element;
pub mod gguf;
mod layout;
mod loss;
mod minifloat;
mod name;
pub mod number;
mod scale;
mod sizes;
mod spans;
mod squares;

pub use catalogue::{CATALOGUE, Entry};
pub use codec::Encoded;
pub use dynamic::dynamic_values;
pub use element::{BNB_FP4, BNB_FP4_ASCENDING, Element, NF4};
pub use gguf::GgufBlock;
pub use layout::Layout;
pub use loss::Distribution;
pub use minifloat::Overflow;
pub use sizes::Sizes;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Dim, text::textual, units::Bytes};

/// A storage format: an element and how its scale is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Format {
    element: Element,
    scaling: Scaling,
}

/// What is stored beside the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Scaling {
    /// Nothing: the code is the value.
    None,
    /// A scale per span of a row, and perhaps a zero point: `value = (code - zero) * scale`.
    Linear(Span, Zero),
    /// OCP Microscaling: a power of two (E8M0) per 32 elements of a row.
    Micro,
    /// NVFP4: an E4M3 scale per 16 elements of a row, and one FP32 scale per tensor.
    TwoLevel,
    /// bitsandbytes: the largest magnitude of 64 consecutive elements of the flattened tensor, FP32.
    Absmax,
    /// The same, with those maxima themselves quantized to 8 bits in blocks of 256.
    AbsmaxDouble,
    /// A block type of ggml: scales and codes are interleaved, and a row is whole blocks.
    Gguf(GgufBlock),
}

/// Which elements share a linear scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Span {
    /// This many consecutive elements of a row; 16-bit scale.
    Group(u32),
    /// A whole row - an output channel of a weight, a token of an activation; 16-bit scale.
    Channel,
    /// A square of this many rows and columns, as DeepSeek ships; 16-bit scale.
    Tile(u32),
    /// The whole tensor; 32-bit scale.
    Tensor,
}

/// Zero point of an asymmetric linear format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Zero {
    /// Symmetric.
    None,
    /// An integer of the element's own width, packed (AWQ, GPTQ, compressed-tensors).
    Integer,
    /// A 16-bit float (torchao, HQQ).
    Float16,
}

/// Block scales that tensor units apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BlockScaling {
    /// OCP Microscaling: powers of two per 32.
    Mx,
    /// E4M3 per 16.
    Nvfp4,
}

/// A number that scales are stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleNumber {
    /// bfloat16.
    Bf16,
    /// A power of two: its exponent plus 127, in 8 bits.
    E8M0,
    /// 8 bits, largest 448.
    E4M3,
    /// IEEE single precision.
    Fp32,
}

/// Elements per scale in the formats where that is fixed.
const MICRO_BLOCK: u64 = 32;
const NVFP4_BLOCK: u64 = 16;
const ABSMAX_BLOCK: u64 = 64;
/// How many maxima share a second-level scale in double quantization.
const DOUBLE_BLOCK: u64 = 256;

/// A row-major matrix: `rows` of `columns` elements. Scales run along rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    rows: u128,
    columns: Dim,
}

impl Shape {
    /// `rows` is at most a product of three dimensions, so that the element count fits a `u128`.
    pub(crate) fn new(rows: u128, columns: Dim) -> Self {
        Self { rows, columns }
    }

    /// A matrix.
    pub fn matrix(rows: Dim, columns: Dim) -> Self {
        Self::new(rows.wide(), columns)
    }

    /// Number of elements.
    pub fn elements(self) -> u128 {
        self.rows * self.columns.wide()
    }
}

impl Format {
    /// The scales of small blocks that the multiplying unit itself must apply, if the format has such.
    pub(crate) const fn block_scaling(self) -> Option<BlockScaling> {
        match self.scaling {
            Scaling::Micro => Some(BlockScaling::Mx),
            Scaling::TwoLevel => Some(BlockScaling::Nvfp4),
            _ => None,
        }
    }

    /// IEEE double precision.
    pub const FP64: Self = Self::plain(Element::Fp64);
    /// IEEE single precision.
    pub const FP32: Self = Self::plain(Element::Fp32);
    /// FP32 storage whose values carry 10 mantissa bits.
    pub const TF32: Self = Self::plain(Element::Tf32);
    /// IEEE half precision.
    pub const FP16: Self = Self::plain(Element::Fp16);
    /// bfloat16.
    pub const BF16: Self = Self::plain(Element::Bf16);
    /// 32-bit integers.
    pub const INT32: Self = Self::plain(Element::Int32);
    /// FP8 E4M3 with a 16-bit scale per row.
    pub const FP8: Self = Self::per_channel(Element::Fp8E4M3);
    /// FP8 with more range and less precision, a scale per channel.
    pub const FP8_E5M2: Self = Self::per_channel(Element::Fp8E5M2);
    /// INT8 with a 16-bit scale per row.
    pub const INT8: Self = Self::per_channel(Element::Int8);
    /// INT4 in groups of 128 with a 16-bit scale, symmetric.
    pub const INT4_G128: Self = Self::grouped(Element::Int4, 128);
    /// INT3 in groups of 64.
    pub const INT3_G64: Self = Self::grouped(Element::Int3, 64);
    /// INT2 in groups of 64.
    pub const INT2_G64: Self = Self::grouped(Element::Int2, 64);
    /// OCP MXFP8 with E4M3 elements.
    pub const MXFP8: Self = Self { element: Element::Fp8E4M3, scaling: Scaling::Micro };
    /// OCP MXFP6 with E3M2 elements.
    pub const MXFP6: Self = Self { element: Element::Fp6E3M2, scaling: Scaling::Micro };
    /// OCP MXFP4.
    pub const MXFP4: Self = Self { element: Element::Fp4E2M1, scaling: Scaling::Micro };
    /// NVIDIA's FP4 with two levels of scales.
    pub const NVFP4: Self = Self { element: Element::Fp4E2M1, scaling: Scaling::TwoLevel };
    /// NF4 with FP32 maxima per 64 elements.
    pub const NF4: Self = Self { element: Element::Nf4, scaling: Scaling::Absmax };
    /// NF4 whose maxima are quantized once more.
    pub const NF4_DOUBLE: Self = Self { element: Element::Nf4, scaling: Scaling::AbsmaxDouble };
    /// bitsandbytes' FP4 with FP32 maxima per 64 elements.
    pub const BNB_FP4: Self = Self { element: Element::BnbFp4, scaling: Scaling::Absmax };
    /// bitsandbytes' FP4 whose maxima are quantized once more.
    pub const BNB_FP4_DOUBLE: Self = Self { element: Element::BnbFp4, scaling: Scaling::AbsmaxDouble };
    /// INT6 in groups of 64.
    pub const INT6_G64: Self = Self::grouped(Element::Int6, 64);
    /// ggml's 8-bit blocks of 32.
    pub const Q8_0: Self = Self::blocks(GgufBlock::Q8_0);
    /// ggml's 6-bit blocks of 256.
    pub const Q6_K: Self = Self::blocks(GgufBlock::Q6K);
    /// ggml's 5-bit blocks of 32, with minima.
    pub const Q5_1: Self = Self::blocks(GgufBlock::Q5_1);
    /// ggml's 5-bit blocks of 32.
    pub const Q5_0: Self = Self::blocks(GgufBlock::Q5_0);
    /// ggml's 5-bit blocks of 256, with minima.
    pub const Q5_K: Self = Self::blocks(GgufBlock::Q5K);
    /// ggml's 4-bit blocks of 32, with minima.
    pub const Q4_1: Self = Self::blocks(GgufBlock::Q4_1);
    /// ggml's 4-bit blocks of 32.
    pub const Q4_0: Self = Self::blocks(GgufBlock::Q4_0);
    /// ggml's 4-bit blocks of 256, with minima.
    pub const Q4_K: Self = Self::blocks(GgufBlock::Q4K);
    /// ggml's 3-bit blocks of 256.
    pub const Q3_K: Self = Self::blocks(GgufBlock::Q3K);
    /// ggml's `IQ4_NL`.
    pub const IQ4_NL: Self = Self::blocks(GgufBlock::Iq4Nl);
    /// ggml's `IQ4_XS`.
    pub const IQ4_XS: Self = Self::blocks(GgufBlock::Iq4Xs);
    /// ggml's `IQ3_S`.
    pub const IQ3_S: Self = Self::blocks(GgufBlock::Iq3S);
    /// ggml's `IQ3_XXS`.
    pub const IQ3_XXS: Self = Self::blocks(GgufBlock::Iq3Xxs);
    /// ggml's 2-bit blocks of 256, with minima.
    pub const Q2_K: Self = Self::blocks(GgufBlock::Q2K);
    /// ggml's `IQ2_S`.
    pub const IQ2_S: Self = Self::blocks(GgufBlock::Iq2S);
    /// ggml's `IQ2_XS`.
    pub const IQ2_XS: Self = Self::blocks(GgufBlock::Iq2Xs);
    /// ggml's `IQ2_XXS`.
    pub const IQ2_XXS: Self = Self::blocks(GgufBlock::Iq2Xxs);
    /// ggml's `IQ1_M`.
    pub const IQ1_M: Self = Self::blocks(GgufBlock::Iq1M);
    /// ggml's `IQ1_S`.
    pub const IQ1_S: Self = Self::blocks(GgufBlock::Iq1S);

    const fn plain(element: Element) -> Self {
        Self { element, scaling: Scaling::None }
    }

    const fn per_channel(element: Element) -> Self {
        Self { element, scaling: Scaling::Linear(Span::Channel, Zero::None) }
    }

    const fn grouped(element: Element, group: u32) -> Self {
        Self { element, scaling: Scaling::Linear(Span::Group(group), Zero::None) }
    }

    const fn blocks(block: GgufBlock) -> Self {
        Self { element: block.element(), scaling: Scaling::Gguf(block) }
    }

    /// The block type of ggml that it is, if it is one.
    pub const fn gguf(self) -> Option<GgufBlock> {
        match self.scaling {
            Scaling::Gguf(block) => Some(block),
            _ => None,
        }
    }

    /// The stored number.
    pub const fn element(self) -> Element {
        self.element
    }

    /// Whether a scale is shared by a square of rows and columns.
    pub const fn shares_squares(self) -> bool {
        matches!(self.scaling, Scaling::Linear(Span::Tile(_), _))
    }

    /// How many elements share a scale; none where that depends on the tensor's shape or there is no scale. For ggml's
    /// blocks, whose scales are stored among the codes, the elements of a block.
    pub const fn block(self) -> Option<u64> {
        match self.scaling {
            Scaling::Linear(Span::Group(group), _) => Some(group as u64),
            Scaling::Micro => Some(MICRO_BLOCK),
            Scaling::TwoLevel => Some(NVFP4_BLOCK),
            Scaling::Absmax | Scaling::AbsmaxDouble => Some(ABSMAX_BLOCK),
            Scaling::Gguf(block) => Some(block.elements() as u64),
            Scaling::None | Scaling::Linear(Span::Channel | Span::Tile(_) | Span::Tensor, _) => None,
        }
    }

    /// What the scales of a row are stored as; none where a row has none of its own, where they lie among the codes, or where
    /// they come with zero points that are no integers. Blocks of NF4 are a row's own where a row is a whole number of them.
    pub const fn row_scales(self) -> Option<ScaleNumber> {
        match self.scaling {
            Scaling::Linear(Span::Group(_) | Span::Channel, Zero::None | Zero::Integer) => Some(ScaleNumber::Bf16),
            Scaling::Micro => Some(ScaleNumber::E8M0),
            Scaling::TwoLevel => Some(ScaleNumber::E4M3),
            Scaling::Absmax => Some(ScaleNumber::Fp32),
            _ => None,
        }
    }

    /// What is stored beside the elements, in words.
    pub fn scale(self) -> &'static str {
        match self.scaling {
            Scaling::None => "none",
            Scaling::Linear(Span::Group(_), Zero::None) => "16 bit per group",
            Scaling::Linear(Span::Group(_), Zero::Integer) => "16 bit and an integer zero per group",
            Scaling::Linear(Span::Group(_), Zero::Float16) => "16 bit and a 16-bit zero per group",
            Scaling::Linear(Span::Channel, Zero::None) => "16 bit per row",
            Scaling::Linear(Span::Channel, Zero::Integer) => "16 bit and an integer zero per row",
            Scaling::Linear(Span::Channel, Zero::Float16) => "16 bit and a 16-bit zero per row",
            Scaling::Linear(Span::Tile(_), _) => "16 bit per square",
            Scaling::Linear(Span::Tensor, Zero::None) => "FP32 per tensor",
            Scaling::Linear(Span::Tensor, Zero::Integer) => "FP32 and an integer zero per tensor",
            Scaling::Linear(Span::Tensor, Zero::Float16) => "FP32 and a 16-bit zero per tensor",
            Scaling::Micro => "E8M0 per block",
            Scaling::TwoLevel => "E4M3 per block, FP32 per tensor",
            Scaling::Absmax => "FP32 maximum per block",
            Scaling::AbsmaxDouble => "8-bit maximum per block, FP32 per 256 blocks",
            Scaling::Gguf(block) => block.scale(),
        }
    }

    /// Every distinct value a code can stand for before its scale, ascending, for elements of at most 8 bits. Above a
    /// zero point or a minimum codes are unsigned.
    pub fn codebook(self) -> Option<Vec<f32>> {
        let unsigned = match self.scaling {
            Scaling::Linear(_, zero) => zero != Zero::None,
            Scaling::Gguf(block) => block.has_minimum(),
            _ => false,
        };
        if unsigned { Some((0..1u16 << self.element.bits()).map(f32::from).collect()) } else { self.element.codebook() }
    }

    /// The largest value it can hold with the largest scale; none where the scale is a 16- or 32-bit float, whose range is
    /// beyond any weight.
    pub fn range(self) -> Option<f64> {
        match self.scaling {
            Scaling::Micro => Some(self.element.max() * minifloat::exp2(127)),
            // Relative to the tensor scale.
            Scaling::TwoLevel => Some(self.element.max() * minifloat::Minifloat::E4M3.max()),
            _ => None,
        }
    }

    /// Bits of one element, without scales.
    pub const fn nominal_bits(self) -> u32 {
        self.element.bits()
    }

    /// The size of a tensor in memory.
    ///
    /// Exact: rows of elements packed bit by bit and padded to whole bytes, plus every scale, zero point and tensor
    /// scale. Formats over the flattened tensor (NF4) pad once at the end, ggml's block types pad rows to whole blocks.
    /// Nominal: element bits only.
    pub fn bytes(self, shape: Shape, sizes: Sizes) -> Bytes {
        let bits = u64::from(self.element.bits());
        if sizes == Sizes::Nominal {
            return Bytes::new(shape.elements() as f64 * bits as f64 / 8.0);
        }
        Bytes::new(float(Layout::new(self, shape).bytes()))
    }

    /// Average stored bits per element of a tensor of that shape.
    pub fn bits_per_element(self, shape: Shape, sizes: Sizes) -> f64 {
        self.bytes(shape, sizes).value() * 8.0 / shape.elements() as f64
    }
}

/// The nearest number. Counts seldom need more than 64 bits, which a processor converts itself.
fn float(count: u128) -> f64 {
    u64::try_from(count).map_or_else(|_| count as f64, |count| count as f64)
}

impl From<GgufBlock> for Format {
    fn from(block: GgufBlock) -> Self {
        Self::blocks(block)
    }
}

textual!(Format, "How numbers are stored: an element, and how its scale is shared.", ["bf16", "int4-g128", "q4_k"]);

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(name: &str, rows: u64, columns: u64) -> f64 {
        let shape = Shape::matrix(Dim::new("rows", rows).unwrap(), Dim::new("columns", columns).unwrap());
        name.parse::<Format>().unwrap().bits_per_element(shape, Sizes::Exact)
    }

    #[test]
    fn stored_bits_per_weight() {
        // elements + scale bits / block; the shape is 4096 x 4096 unless the format depends on it.
        assert_eq!(bits("bf16", 4096, 4096), 16.0);
        assert_eq!(bits("tf32", 4096, 4096), 32.0);
        assert_eq!(bits("int8", 4096, 4096), 8.0 + 16.0 / 4096.0);
        assert_eq!(bits("fp8", 4096, 4096), 8.0 + 16.0 / 4096.0);
        assert_eq!(bits("int4-g128", 4096, 4096), 4.125);
        assert_eq!(bits("int4-g128-zp", 4096, 4096), 4.125 + 4.0 / 128.0);
        assert_eq!(bits("int4-g128-zp16", 4096, 4096), 4.25);
        assert_eq!(bits("int4-g32", 4096, 4096), 4.5);
        assert_eq!(bits("int3-g64", 4096, 4096), 3.25);
        assert_eq!(bits("int2-g64", 4096, 4096), 2.25);
        assert_eq!(bits("mxfp8", 4096, 4096), 8.25);
        assert_eq!(bits("mxfp6", 4096, 4096), 6.25);
        assert_eq!(bits("mxfp4", 4096, 4096), 4.25);
        assert_eq!(bits("nvfp4", 4096, 4096), 4.5 + 32.0 / (4096.0 * 4096.0));
        assert_eq!(bits("nf4", 4096, 4096), 4.5);
        // 4 + 8/64 + 32/(64*256), and one offset per tensor.
        let double = 4.0 + 0.125 + 32.0 / 16_384.0 + 32.0 / (4096.0 * 4096.0);
        assert_eq!(bits("nf4-dq", 4096, 4096), double);
        // 32 x 32 squares of 128 x 128; with one more row and column, 33 x 33.
        assert_eq!(bits("fp8-b128", 4096, 4096), 8.0 + 16.0 / 16_384.0);
        assert_eq!(bits("fp8-b128", 4097, 4097), 8.0 + 16.0 * 1089.0 / (4097.0 * 4097.0));
        // An f16 per 32.
        assert_eq!(bits("q8_0", 4096, 4096), 8.5);
        assert_eq!(bits("q5_0", 4096, 4096), 5.5);
        assert_eq!(bits("q4_0", 4096, 4096), 4.5);
        // 2 * 6 bits per 32 and two f16 per 256; 8 bits per 16 and one f16 per 256.
        assert_eq!(bits("q4_k", 4096, 4096), 4.5);
        assert_eq!(bits("q5_k", 4096, 4096), 5.5);
        assert_eq!(bits("q6_k", 4096, 4096), 6.5625);
        // Two f16 per 32; 6 bits per 16 and one f16 per 256; 2 * 4 bits per 16 and two f16 per 256.
        assert_eq!(bits("q5_1", 4096, 4096), 6.0);
        assert_eq!(bits("q4_1", 4096, 4096), 5.0);
        assert_eq!(bits("q3_k", 4096, 4096), 3.4375);
        assert_eq!(bits("q2_k", 4096, 4096), 2.625);
        // Points of eight and their signs take 10 + 8, 9 + 7 and 8 + 7 bits; 4 bits per 16 or per 32 and one f16 per 256.
        assert_eq!(bits("iq2_s", 4096, 4096), 18.0 / 8.0 + 4.0 / 16.0 + 16.0 / 256.0);
        assert_eq!(bits("iq2_xs", 4096, 4096), 16.0 / 8.0 + 4.0 / 16.0 + 16.0 / 256.0);
        assert_eq!(bits("iq2_xxs", 4096, 4096), 15.0 / 8.0 + 4.0 / 32.0 + 16.0 / 256.0);
        // Points of eight take 11 bits; a move and 3 bits of scale to 32, or a move to 8 and 3 bits of scale to 16.
        assert_eq!(bits("iq1_m", 4096, 4096), 12.0 / 8.0 + 3.0 / 16.0 + 16.0 / 256.0);
        assert_eq!(bits("iq1_s", 4096, 4096), 11.0 / 8.0 + 4.0 / 32.0 + 16.0 / 256.0);
    }

    #[test]
    fn ragged_rows_are_padded() {
        // 3 elements of 4 bits are 2 bytes a row; one group of 128 needs one 2-byte scale.
        assert_eq!(bits("int4-g128", 1, 3), 8.0 * 4.0 / 3.0);
        // NF4 pads once: 5 elements are 3 bytes and one 4-byte maximum.
        assert_eq!(bits("nf4", 5, 1), 8.0 * 7.0 / 5.0);
        // Two blocks of 144 bytes hold a row of 257.
        assert_eq!(bits("q4_k", 3, 257), 8.0 * 288.0 / 257.0);
    }
}
