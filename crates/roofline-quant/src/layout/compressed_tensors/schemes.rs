//! The schemes of compressed-tensors, by name.

use roofline_core::Format;

use super::{
    super::{Scheme, Target},
    Coded,
};

/// What products read beside the weights: quantized while the model runs. Where scales are known before, they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activations {
    /// As the model has them.
    Sixteen,
    /// INT8 with a scale per token.
    Int8Token,
    /// E4M3 with a scale per token.
    Fp8Token,
    /// E4M3 with one scale that is stored.
    Fp8Static,
    /// NVFP4: E2M1 with E4M3 scales per 16 inputs of a token, and one divisor that is stored.
    Nvfp4,
    /// E4M3 with a scale per 128 inputs of a token.
    Fp8Group,
    /// MXFP4: E2M1 with a power of two per 32 inputs of a token.
    Mxfp4,
    /// MXFP8: E4M3 with a power of two per 32 inputs of a token.
    Mxfp8,
}

const INT4: Format = Format::INT4_G128;

/// A scheme of weights alone.
const fn alone(
    name: &'static str,
    aliases: &'static [&'static str],
    summary: &'static str,
    weights: Format,
    stored: Coded,
) -> Scheme {
    let target = Target::Compressed(stored, Activations::Sixteen);
    Scheme { name, aliases, summary, weights, activations: None, target }
}

/// The same with activations that are rounded, too.
const fn with(activations: Format, read: Activations, scheme: Scheme) -> Scheme {
    let Target::Compressed(stored, _) = scheme.target else { return scheme };
    Scheme { activations: Some(activations), target: Target::Compressed(stored, read), ..scheme }
}

const fn int(bits: u8, group: Option<u32>, zero: bool) -> Coded {
    Coded::Int { bits, group, zero }
}

/// Every scheme this layout has.
pub(in crate::layout) const SCHEMES: &[Scheme] = &[
    alone(
        "w4a16",
        &["int4", "int4-g128", "w4a16-g128"],
        "INT4 in groups of 128, symmetric; 16-bit activations",
        INT4,
        int(4, Some(128), false),
    ),
    alone(
        "int4-g64",
        &["w4a16-g64"],
        "INT4 in groups of 64, symmetric; 16-bit activations",
        INT4.in_groups(64),
        int(4, Some(64), false),
    ),
    alone(
        "int4-g32",
        &["w4a16-g32"],
        "INT4 in groups of 32, symmetric; 16-bit activations",
        INT4.in_groups(32),
        int(4, Some(32), false),
    ),
    alone(
        "int4-g128-zp",
        &["w4a16-asym", "w4a16-asym-g128"],
        "INT4 in groups of 128 with zero points; 16-bit activations",
        INT4.with_zeros(),
        int(4, Some(128), true),
    ),
    alone(
        "int4-g64-zp",
        &["w4a16-asym-g64"],
        "INT4 in groups of 64 with zero points; 16-bit activations",
        INT4.in_groups(64).with_zeros(),
        int(4, Some(64), true),
    ),
    alone(
        "int4-g32-zp",
        &["w4a16-asym-g32"],
        "INT4 in groups of 32 with zero points; 16-bit activations",
        INT4.in_groups(32).with_zeros(),
        int(4, Some(32), true),
    ),
    alone(
        "int4-channel",
        &["w4a16-channel"],
        "INT4 with a scale per channel; 16-bit activations",
        INT4.in_rows(),
        int(4, None, false),
    ),
    alone(
        "w8a16",
        &["w8a16-channel"],
        "INT8 with a scale per channel; 16-bit activations",
        Format::INT8,
        int(8, None, false),
    ),
    alone(
        "int8-g128",
        &["w8a16-g128"],
        "INT8 in groups of 128, symmetric; 16-bit activations (llm-compressor's W8A16)",
        Format::INT8.in_groups(128),
        int(8, Some(128), false),
    ),
    with(
        Format::FP8,
        Activations::Fp8Token,
        alone(
            "w4a8",
            &["w4afp8"],
            "INT4 in groups of 128, symmetric; E4M3 activations with a scale per token (llm-compressor's W4AFP8)",
            INT4,
            int(4, Some(128), false),
        ),
    ),
    with(
        Format::INT8,
        Activations::Int8Token,
        alone(
            "w4a8-int8",
            &[],
            "INT4 in groups of 128, symmetric, a byte each; INT8 activations with a scale per token (llm-compressor's W4A8)",
            INT4,
            Coded::Int4Bytes { group: 128 },
        ),
    ),
    with(
        Format::INT8,
        Activations::Int8Token,
        alone(
            "int8",
            &["w8a8", "w8a8-int8"],
            "INT8 with a scale per channel; INT8 activations with a scale per token",
            Format::INT8,
            Coded::Int8Channel,
        ),
    ),
    with(
        Format::FP8,
        Activations::Fp8Token,
        alone(
            "fp8",
            &["fp8-dynamic"],
            "E4M3 with a scale per channel; E4M3 activations with a scale per token",
            Format::FP8,
            Coded::Fp8Channel,
        ),
    ),
    with(
        Format::FP8.in_tensors(),
        Activations::Fp8Static,
        alone(
            "fp8-static",
            &[],
            "E4M3 with one scale; E4M3 activations with one scale, from `⟨ranges⟩`",
            Format::FP8.in_tensors(),
            Coded::Fp8Tensor,
        ),
    ),
    with(
        Format::FP8.in_groups(128),
        Activations::Fp8Group,
        alone(
            "fp8-block",
            &[],
            "E4M3 with a scale per 128 x 128; E4M3 activations with a scale per 128 of a token",
            Format::FP8.in_squares(128),
            Coded::Fp8Block,
        ),
    ),
    alone(
        "nvfp4a16",
        &[],
        "E2M1 in blocks of 16 with E4M3 scales and one per tensor; 16-bit activations",
        Format::NVFP4,
        Coded::Nvfp4,
    ),
    with(
        Format::NVFP4,
        Activations::Nvfp4,
        alone(
            "nvfp4",
            &["w4a4"],
            "E2M1 in blocks of 16 with E4M3 scales and one per tensor; activations in the same, from `⟨ranges⟩`",
            Format::NVFP4,
            Coded::Nvfp4,
        ),
    ),
    alone("mxfp4a16", &[], "E2M1 in blocks of 32 with powers of two; 16-bit activations", Format::MXFP4, Coded::Mxfp4),
    with(
        Format::MXFP4,
        Activations::Mxfp4,
        alone(
            "mxfp4",
            &[],
            "E2M1 in blocks of 32 with powers of two; activations in the same",
            Format::MXFP4,
            Coded::Mxfp4,
        ),
    ),
    with(
        Format::MXFP8,
        Activations::Mxfp8,
        alone(
            "mxfp8",
            &[],
            "E4M3 in blocks of 32 with powers of two; activations in the same",
            Format::MXFP8,
            Coded::Mxfp8,
        ),
    ),
];
