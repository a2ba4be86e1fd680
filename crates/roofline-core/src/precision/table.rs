//! The precisions that have a name.

use super::{PrecisionSpec, Slot};
use crate::Format;

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// The name.
    pub name: &'static str,
    /// Other names of the same.
    pub aliases: &'static [&'static str],
    /// What it is, in a sentence.
    pub summary: &'static str,
    /// What to use on a device that lacks its unit.
    pub instead: Option<&'static str>,
    weights: Slot,
    activations: Slot,
    wide: Slot,
}

const fn fixed(format: Format) -> Slot {
    Slot::Fixed(format)
}

/// The same format at every place.
const fn uniform(name: &'static str, summary: &'static str, instead: Option<&'static str>, format: Format) -> Named {
    let slot = fixed(format);
    Named { name, aliases: &[], summary, instead, weights: slot, activations: slot, wide: slot }
}

/// Weights and activations in the same narrow format, 16-bit output and KV.
const fn both(name: &'static str, summary: &'static str, instead: &'static str, format: Format) -> Named {
    let slot = fixed(format);
    let instead = Some(instead);
    Named { name, aliases: &[], summary, instead, weights: slot, activations: slot, wide: Slot::Sixteen }
}

/// Narrow weights, everything else 16 bit.
const fn weight_only(name: &'static str, summary: &'static str, weights: Format) -> Named {
    let (weights, activations, wide) = (fixed(weights), Slot::Sixteen, Slot::Sixteen);
    Named { name, aliases: &[], summary, instead: None, weights, activations, wide }
}

const fn also(named: Named, aliases: &'static [&'static str]) -> Named {
    Named { aliases, ..named }
}

/// Every named precision, wide to narrow.
pub const NAMED: &[Named] = &[
    uniform("fp64", "double precision", None, Format::FP64),
    uniform("fp32", "single precision", None, Format::FP32),
    uniform("tf32", "FP32 in memory, multiplied with 10 mantissa bits", Some("fp32"), Format::TF32),
    uniform("fp16", "half precision throughout", Some("bf16"), Format::FP16),
    uniform("bf16", "bfloat16 throughout", Some("fp16"), Format::BF16),
    both("fp8", "E4M3 weights per channel and activations per token", "w8a16 or fp8a16", Format::FP8),
    also(both("int8", "INT8 weights per channel and activations per token", "w8a16", Format::INT8), &["w8a8"]),
    both("mxfp8", "MXFP8 weights and activations", "fp8 or w8a16", Format::MXFP8),
    weight_only("w8a16", "INT8 weights per channel, 16-bit activations", Format::INT8),
    weight_only("fp8a16", "E4M3 weights per channel, 16-bit activations", Format::FP8),
    both("mxfp6", "MXFP6 (E3M2) weights and activations", "w8a16", Format::MXFP6),
    Named {
        name: "w4a8",
        aliases: &[],
        summary: "INT4 weights in groups of 128, E4M3 activations per token",
        instead: Some("w4a16"),
        weights: fixed(Format::INT4_G128),
        activations: fixed(Format::FP8),
        wide: Slot::Sixteen,
    },
    also(weight_only("w4a16", "INT4 weights in groups of 128, 16-bit activations", Format::INT4_G128), &["int4"]),
    weight_only("nf4", "NF4 weights in blocks of 64, 16-bit activations", Format::NF4),
    weight_only("nvfp4a16", "NVFP4 weights, 16-bit activations", Format::NVFP4),
    weight_only("mxfp4a16", "MXFP4 weights, 16-bit activations", Format::MXFP4),
    both("nvfp4", "NVFP4 weights and activations", "nvfp4a16", Format::NVFP4),
    both("mxfp4", "MXFP4 weights and activations", "mxfp4a16", Format::MXFP4),
    weight_only("int3", "INT3 weights in groups of 64, 16-bit activations", Format::INT3_G64),
    weight_only("int2", "INT2 weights in groups of 64, 16-bit activations", Format::INT2_G64),
];

/// Below 4 bits a quarter of the weights' norm is lost (`roofline formats`): never advice, whatever the speed.
const NARROWEST_BITS: u32 = 4;

/// The precisions worth advising, those that change least first: weights before activations, wide before narrow.
pub(crate) fn advisable() -> impl Iterator<Item = &'static Named> {
    let wide_enough = |named: &&Named| match named.weights {
        Slot::Fixed(format) => format.nominal_bits() >= NARROWEST_BITS,
        Slot::Sixteen => true,
    };
    let weight_only = NAMED.iter().filter(|named| named.is_weight_only());
    let others = NAMED.iter().filter(|named| !named.is_weight_only());
    weight_only.chain(others).filter(wide_enough)
}

impl Named {
    pub(super) fn answers_to(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }

    pub(super) fn spec(&self, asked: String) -> PrecisionSpec {
        let Self { weights, activations, wide, .. } = *self;
        PrecisionSpec { name: asked, weights, activations, kv: wide, wide, output: None }
    }

    /// Whether only the weights are narrow.
    pub fn is_weight_only(&self) -> bool {
        self.activations == Slot::Sixteen
    }

    /// The precision.
    pub fn precision(&self) -> PrecisionSpec {
        self.spec(self.name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_alternatives_exist() {
        let mut seen = std::collections::HashSet::new();
        for named in NAMED {
            for name in named.aliases.iter().chain([&named.name]) {
                assert!(seen.insert(*name), "{name} twice");
            }
            for instead in named.instead.iter().flat_map(|instead| instead.split(" or ")) {
                assert!(NAMED.iter().any(|other| other.name == instead), "{instead}");
            }
        }
    }
}
