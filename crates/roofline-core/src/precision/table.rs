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
    also(uniform("fp64", "double precision", None, Format::FP64), &["f64", "float64", "double"]),
    also(uniform("fp32", "single precision", None, Format::FP32), &["f32", "float32", "float"]),
    uniform("tf32", "FP32 in memory, multiplied with 10 mantissa bits", Some("fp32"), Format::TF32),
    also(uniform("fp16", "half precision throughout", Some("bf16"), Format::FP16), &["f16", "float16", "half"]),
    also(uniform("bf16", "bfloat16 throughout", Some("fp16"), Format::BF16), &["bfloat16"]),
    also(
        both("fp8", "E4M3 weights per channel and activations per token", "w8a16 or fp8a16", Format::FP8),
        &["fp8-e4m3", "e4m3", "fp8-dynamic", "w8a8-fp8"],
    ),
    also(
        both("fp8-e5m2", "E5M2 weights per channel and activations per token", "w8a16 or fp8a16", Format::FP8_E5M2),
        &["e5m2"],
    ),
    also(
        both("int8", "INT8 weights per channel and activations per token", "w8a16", Format::INT8),
        &["w8a8", "int8-w8a8", "w8a8-int8"],
    ),
    also(both("mxfp8", "MXFP8 weights and activations", "fp8 or w8a16", Format::MXFP8), &["mxfp8-e4m3"]),
    also(weight_only("w8a16", "INT8 weights per channel, 16-bit activations", Format::INT8), &["int8-weight-only"]),
    also(weight_only("fp8a16", "E4M3 weights per channel, 16-bit activations", Format::FP8), &["w8a16-fp8"]),
    also(both("mxfp6", "MXFP6 (E3M2) weights and activations", "w8a16", Format::MXFP6), &["mxfp6-e3m2"]),
    Named {
        name: "w4a8",
        aliases: &["w4afp8"],
        summary: "INT4 weights in groups of 128, E4M3 activations per token",
        instead: Some("w4a16"),
        weights: fixed(Format::INT4_G128),
        activations: fixed(Format::FP8),
        wide: Slot::Sixteen,
    },
    also(
        weight_only("w4a16", "INT4 weights in groups of 128, 16-bit activations", Format::INT4_G128),
        &["int4", "int4-g128"],
    ),
    weight_only("nf4", "NF4 weights in blocks of 64, 16-bit activations", Format::NF4),
    weight_only("nvfp4a16", "NVFP4 weights, 16-bit activations", Format::NVFP4),
    weight_only("mxfp4a16", "MXFP4 weights, 16-bit activations", Format::MXFP4),
    also(both("nvfp4", "NVFP4 weights and activations", "nvfp4a16", Format::NVFP4), &["w4a4"]),
    both("mxfp4", "MXFP4 weights and activations", "mxfp4a16", Format::MXFP4),
    also(weight_only("int3", "INT3 weights in groups of 64, 16-bit activations", Format::INT3_G64), &["w3a16"]),
    also(weight_only("int2", "INT2 weights in groups of 64, 16-bit activations", Format::INT2_G64), &["w2a16"]),
];

/// Presets of libraries that write checkpoints, and what they are in the names of formats: compressed-tensors', torchao's,
/// bitsandbytes' and MLX's.
/// What takes several formats to say keeps its own name.
pub(super) const PRESETS: &[(&str, &str)] = &[
    ("w4a16-g128", "w4a16"),
    ("w4a16-g64", "int4-g64"),
    ("w4a16-g32", "int4-g32"),
    ("w4a16-channel", "int4-channel"),
    ("w4a16-asym", "int4-g128-zp"),
    ("w4a16-asym-g128", "int4-g128-zp"),
    ("w4a16-asym-g64", "int4-g64-zp"),
    ("w4a16-asym-g32", "int4-g32-zp"),
    ("w8a16-channel", "w8a16"),
    ("w8a16-g128", "int8-g128"),
    ("fp8-block", "fp8-e4m3-b128/fp8-e4m3-g128"),
    ("fp8-static", "fp8-e4m3-tensor/fp8-e4m3-tensor"),
    ("w4a8-int8", "int4-g128/int8"),
    ("int8wo", "w8a16"),
    ("float8wo", "fp8a16"),
    ("float8-weight-only", "fp8a16"),
    ("int4wo", "int4-g128-zp16"),
    ("int4-weight-only", "int4-g128-zp16"),
    ("intx4", "w4a16"),
    ("intx4-g128", "w4a16"),
    ("intx4-g32", "int4-g32"),
    ("intx4-asym-g32", "int4-g32-zp"),
    ("bnb-nf4", "nf4"),
    ("bnb-nf4-dq", "nf4-dq"),
    ("llm-int8", "int8"),
    ("mxfp8a16", "mxfp8/bf16"),
    ("mlx-2bit", "int2-g64-zp16"),
    ("mlx-3bit", "int3-g64-zp16"),
    ("mlx-4bit", "int4-g64-zp16"),
    ("mlx-6bit", "int6-g64-zp16"),
    ("mlx-8bit", "int8-g64-zp16"),
];

/// Below 4 bits a quarter of the weights' norm is lost (`roofline formats`): never advice, whatever the speed.
const NARROWEST_BITS: u32 = 4;

/// The precisions worth advising, those that change least first: weights before activations, wide before narrow.
pub fn advisable() -> impl Iterator<Item = &'static Named> {
    let wide_enough = |named: &&Named| match named.weights {
        Slot::Fixed(format) => format.nominal_bits() >= NARROWEST_BITS,
        Slot::Sixteen => true,
    };
    // E5M2 has the bytes and the unit of E4M3, and a bit of precision less.
    let weight_only = NAMED.iter().filter(|named| named.is_weight_only());
    let others = NAMED.iter().filter(|named| !named.is_weight_only() && named.name != "fp8-e5m2");
    weight_only.chain(others).filter(wide_enough)
}

impl Named {
    pub(super) fn answers_to(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }

    /// The name of narrow weights with 16-bit activations, where there is one.
    pub(super) fn of_weights(format: Format) -> Option<&'static str> {
        let own = |named: &&Self| named.is_weight_only() && named.weights == Slot::Fixed(format);
        NAMED.iter().find(own).map(|named| named.name)
    }

    /// Whether only the weights are narrow.
    pub fn is_weight_only(&self) -> bool {
        self.activations == Slot::Sixteen
    }

    /// The precision.
    pub fn precision(&self) -> PrecisionSpec {
        let Self { weights, activations, wide, .. } = *self;
        let name = self.name.to_owned();
        PrecisionSpec { name, weights, activations, kv: wide, wide, output: None, unit: None, ggml: false }
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
            let weight_only = named.precision().formats().weights.filter(|_| named.is_weight_only());
            assert_eq!(weight_only.and_then(Named::of_weights), weight_only.map(|_| named.name));
            for instead in named.instead.iter().flat_map(|instead| instead.split(" or ")) {
                assert!(NAMED.iter().any(|other| other.name == instead), "{instead}");
            }
        }
    }

    /// Bytes per channel are the weights of two precisions: as a format of weights they are not the one with INT8 activations.
    #[test]
    fn a_format_alone_has_a_name_that_is_read_as_the_same() {
        for (written, name) in
            [("int8-channel", "w8a16"), ("fp8-channel", "fp8a16"), ("int4-g64", "int4-g64"), ("q4_k", "q4_k")]
        {
            let spec: PrecisionSpec = written.parse().unwrap();
            assert_eq!(spec.canonical(), name);
            assert_eq!(name.parse::<PrecisionSpec>().unwrap().formats(), spec.formats(), "{written}");
        }
    }

    #[test]
    fn presets_stand_for_precisions() {
        for (preset, meant) in PRESETS {
            assert!(NAMED.iter().all(|named| !named.answers_to(preset)), "{preset}");
            let (one, other): (PrecisionSpec, PrecisionSpec) = (preset.parse().unwrap(), meant.parse().unwrap());
            assert_eq!(one.formats(), other.formats(), "{preset}");
            // What it is printed as is read as the same again.
            assert_eq!(one.canonical().parse::<PrecisionSpec>().unwrap().formats(), one.formats(), "{preset}");
        }
    }
}
