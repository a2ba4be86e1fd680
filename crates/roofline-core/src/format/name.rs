//! Names of formats: `ELEMENT[-SPAN][-ZERO]`, and the fixed block formats.
//!
//! `int4-g128`, `int8-channel`, `fp8-e4m3-tensor`, `fp8-e4m3-b128`, `int4-g64-zp`; `mxfp4`, `nvfp4`, `nf4-dq`, `q4_k`. Case does not matter
//! and `_` reads as `-`, so `FP8_E4M3`, `MXFP6_E3M2` and `Q4-K` work too.

use std::{fmt, str::FromStr};

use super::{CATALOGUE, Element, Format, GgufBlock, Scaling, Span, Zero};
use crate::Error;

/// Elements, which take a scale's span behind their name.
const ELEMENTS: &[(&str, Element)] = &[
    ("fp64", Element::Fp64),
    ("fp32", Element::Fp32),
    ("tf32", Element::Tf32),
    ("fp16", Element::Fp16),
    ("bf16", Element::Bf16),
    ("fp8-e4m3", Element::Fp8E4M3),
    ("fp8-e5m2", Element::Fp8E5M2),
    ("fp6-e3m2", Element::Fp6E3M2),
    ("fp6-e2m3", Element::Fp6E2M3),
    ("int32", Element::Int32),
    ("int8", Element::Int8),
    ("int6", Element::Int6),
    ("int4", Element::Int4),
    ("int3", Element::Int3),
    ("int2", Element::Int2),
];

const fn of(element: Element, scaling: Scaling) -> Format {
    Format { element, scaling }
}

/// Formats of fixed blocks.
const BLOCKS: &[(&str, Format)] = &[
    ("mxfp8-e4m3", of(Element::Fp8E4M3, Scaling::Micro)),
    ("mxfp8-e5m2", of(Element::Fp8E5M2, Scaling::Micro)),
    ("mxfp6-e3m2", of(Element::Fp6E3M2, Scaling::Micro)),
    ("mxfp6-e2m3", of(Element::Fp6E2M3, Scaling::Micro)),
    ("mxfp4", of(Element::Fp4E2M1, Scaling::Micro)),
    ("mxint8", of(Element::FixedInt8, Scaling::Micro)),
    ("nvfp4", of(Element::Fp4E2M1, Scaling::TwoLevel)),
    ("nf4", of(Element::Nf4, Scaling::Absmax)),
    ("nf4-dq", of(Element::Nf4, Scaling::AbsmaxDouble)),
    ("bnb-fp4", of(Element::BnbFp4, Scaling::Absmax)),
    ("bnb-fp4-dq", of(Element::BnbFp4, Scaling::AbsmaxDouble)),
];

/// ggml's block types, spelled as ggml does.
const GGUF: &[(&str, GgufBlock)] = &[
    ("q8_0", GgufBlock::Q8_0),
    ("q6_k", GgufBlock::Q6K),
    ("q5_1", GgufBlock::Q5_1),
    ("q5_0", GgufBlock::Q5_0),
    ("q5_k", GgufBlock::Q5K),
    ("q4_1", GgufBlock::Q4_1),
    ("q4_0", GgufBlock::Q4_0),
    ("q4_k", GgufBlock::Q4K),
    ("iq4_nl", GgufBlock::Iq4Nl),
    ("iq4_xs", GgufBlock::Iq4Xs),
    ("iq3_s", GgufBlock::Iq3S),
    ("q3_k", GgufBlock::Q3K),
    ("iq3_xxs", GgufBlock::Iq3Xxs),
    ("q2_k", GgufBlock::Q2K),
    ("iq2_s", GgufBlock::Iq2S),
    ("iq2_xs", GgufBlock::Iq2Xs),
    ("iq2_xxs", GgufBlock::Iq2Xxs),
    ("iq1_m", GgufBlock::Iq1M),
    ("iq1_s", GgufBlock::Iq1S),
];

/// Short names, and what they stand for. Also tried on the first word, so that `fp8-tensor` works.
const ALIASES: &[(&str, &str)] = &[
    ("float64", "fp64"),
    ("double", "fp64"),
    ("float32", "fp32"),
    ("float", "fp32"),
    ("float16", "fp16"),
    ("half", "fp16"),
    ("bfloat16", "bf16"),
    ("fp8", "fp8-e4m3"),
    ("e4m3", "fp8-e4m3"),
    ("e5m2", "fp8-e5m2"),
    ("fp6", "fp6-e3m2"),
    ("e3m2", "fp6-e3m2"),
    ("e2m3", "fp6-e2m3"),
    ("mxfp8", "mxfp8-e4m3"),
    ("mxfp6", "mxfp6-e3m2"),
    ("nvfp4-kv", "nvfp4"),
];

impl Format {
    /// The other short names of this format.
    pub fn aliases(self) -> Vec<&'static str> {
        let name = self.to_string();
        let short = ALIASES.iter().filter(|(_, target)| **target == name).map(|(alias, _)| *alias);
        let bare = ELEMENTS.iter().filter(|(_, element)| self == default_of(*element)).map(|(name, _)| *name);
        bare.filter(|bare| **bare != name).chain(short).collect()
    }
}

/// What a bare element name means: integers are useless without scales, FP8 and FP6 rarely used without.
fn default_of(element: Element) -> Format {
    match element {
        Element::Int6 => Format::INT6_G64,
        Element::Int4 => Format::INT4_G128,
        Element::Int3 => Format::INT3_G64,
        Element::Int2 => Format::INT2_G64,
        Element::Int8 | Element::Fp8E4M3 | Element::Fp8E5M2 | Element::Fp6E3M2 | Element::Fp6E2M3 => {
            Format::per_channel(element)
        }
        _ => Format::plain(element),
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let unknown = || {
            let known = CATALOGUE.iter().map(|entry| entry.name).chain(ALIASES.iter().map(|(alias, _)| *alias));
            let hint = "`⟨roofline formats⟩` lists them; groups are written `int4-g128`, zero points `int4-g128-zp`";
            Error::unknown("format", text, known, hint)
        };
        if text.len() > 32 {
            return Err(unknown());
        }
        let name = text.trim().to_ascii_lowercase().replace('_', "-");
        if ["fp4", "e2m1", "fp4-e2m1"].contains(&name.as_str()) {
            let hint = "FP4 is never stored without block scales: `mxfp4`, `nvfp4` or `bnb-fp4`".to_owned();
            return Err(Error::Unknown { what: "format", name: text.to_owned(), nearest: None, hint });
        }
        if let Some((_, block)) = GGUF.iter().find(|(block, _)| block.replace('_', "-") == name) {
            return Ok(Self::blocks(*block));
        }
        let name = expand(&name);
        if let Some((_, format)) = BLOCKS.iter().find(|(block, _)| *block == name) {
            return Ok(*format);
        }
        let (element, rest) = ELEMENTS
            .iter()
            .find_map(|(known, element)| {
                let rest = name.strip_prefix(known)?;
                (rest.is_empty() || rest.starts_with('-')).then_some((*element, rest))
            })
            .ok_or_else(unknown)?;
        if rest.is_empty() {
            return Ok(default_of(element));
        }
        suffixed(element, rest).ok_or_else(unknown)
    }
}

/// `name` with its longest alias replaced.
fn expand(name: &str) -> String {
    for (alias, target) in ALIASES {
        if name == *alias {
            return (*target).to_owned();
        }
        // `fp8-tensor`, but not `fp8-e4m3` and not `nf4-...`.
        if let Some(rest) = name.strip_prefix(alias)
            && rest.starts_with('-')
            && !rest.starts_with("-e")
            && !BLOCKS.iter().any(|(block, _)| block == target)
        {
            return format!("{target}{rest}");
        }
    }
    name.to_owned()
}

/// `-g128`, `-b128` (a square), `-channel` or `-tensor`, then perhaps `-zp` or `-zp16`; only elements that take scales.
fn suffixed(element: Element, suffix: &str) -> Option<Format> {
    let Scaling::Linear(default_span, _) = default_of(element).scaling else { return None };
    let mut span = None;
    let mut zero = Zero::None;
    for part in suffix.split('-').skip(1) {
        match part {
            "zp" if zero == Zero::None => zero = Zero::Integer,
            "zp16" if zero == Zero::None => zero = Zero::Float16,
            _ if span.is_some() || zero != Zero::None => return None,
            "channel" | "row" | "token" => span = Some(Span::Channel),
            "tensor" => span = Some(Span::Tensor),
            _ => {
                let (kind, digits): (fn(u32) -> Span, &str) = match part.strip_prefix('b') {
                    Some(digits) => (Span::Tile, digits),
                    None => (Span::Group, part.strip_prefix('g')?),
                };
                let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
                let group: u32 = digits.parse().ok().filter(|_| plain)?;
                span = Some(kind(Some(group).filter(|group| (8..=65_536).contains(group))?));
            }
        }
    }
    if zero != Zero::None && (!element.is_integer() || matches!(span, Some(Span::Tile(_)))) {
        return None;
    }
    Some(Format { element, scaling: Scaling::Linear(span.unwrap_or(default_span), zero) })
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((name, _)) = BLOCKS.iter().find(|(_, format)| format == self) {
            return f.pad(name);
        }
        if let Some((name, _)) = GGUF.iter().find(|(_, block)| self.scaling == Scaling::Gguf(*block)) {
            return f.pad(name);
        }
        let element = ELEMENTS.iter().find(|(_, element)| *element == self.element).map_or("", |(name, _)| name);
        let Scaling::Linear(span, zero) = self.scaling else { return f.pad(element) };
        let span = match span {
            Span::Group(group) => format!("-g{group}"),
            Span::Tile(side) => format!("-b{side}"),
            Span::Channel if *self == default_of(self.element) => String::new(),
            Span::Channel => "-channel".to_owned(),
            Span::Tensor => "-tensor".to_owned(),
        };
        let zero = match zero {
            Zero::None => "",
            Zero::Integer => "-zp",
            Zero::Float16 => "-zp16",
        };
        f.pad(&format!("{element}{span}{zero}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for name in CATALOGUE.iter().map(|entry| entry.name).chain([
            "int8-g128",
            "fp8-e4m3-tensor",
            "fp8-e4m3-b128",
            "int4-channel",
        ]) {
            assert_eq!(name.parse::<Format>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn spellings_of_other_tools() {
        let same = |a: &str, b: &str| assert_eq!(a.parse::<Format>().unwrap(), b.parse::<Format>().unwrap(), "{a}");
        same(" FP8_E4M3 ", "fp8-e4m3");
        same("FP8", "fp8-e4m3");
        same("fp8-tensor", "fp8-e4m3-tensor");
        same("MXFP6_E3M2", "mxfp6");
        same("NVFP4_KV", "nvfp4");
        same("INT4", "int4-g128");
        same("int8-channel", "int8");
        same("INT2", "int2-g64");
        same("bfloat16", "bf16");
        same("Q4_K", "q4_k");
        same("Q6-K", "q6_k");
        same(" q8-0", "q8_0");
    }

    #[test]
    fn refusals_suggest_the_nearest() {
        let why = |text: &str| text.parse::<Format>().unwrap_err().to_string();
        assert_eq!(why("int4-g12O"), "unknown format `int4-g12O`; did you mean `int4-g128`?");
        assert_eq!(why("nvfp5"), "unknown format `nvfp5`; did you mean `nvfp4`?");
        assert_eq!(why("q4_j"), "unknown format `q4_j`; did you mean `q4_k`?");
        for text in [
            "",
            "int4-g0",
            "int4-g4",
            "int4-g+128",
            "int4-g99999999999",
            "bf16-g128",
            "fp8-zp",
            "int8-b128-zp",
            "fp8-b4",
            "int4--",
            "mxfp4-g32",
            "q4_k-g32",
            "int5",
        ] {
            assert!(text.parse::<Format>().is_err(), "{text}");
        }
    }
}
