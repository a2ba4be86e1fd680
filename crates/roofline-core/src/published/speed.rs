//! A published figure as its source spells it, and what the words in it mean.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

use crate::{Error, Plan, Result, machine::Stack};

/// What was timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// One more token.
    Decode,
    /// A prompt.
    Prefill,
    /// A prompt and the tokens after it.
    Request,
}

impl Phase {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::Prefill => "prefill",
            Self::Request => "request",
        }
    }
}

/// Tokens per second that somebody measured and published.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Speed {
    /// Where it stands.
    pub source: String,
    /// The device, as the registry knows it.
    pub device: String,
    /// How many share the work.
    pub devices: u64,
    /// The runtime as the source calls it, with its release.
    pub runtime: String,
    /// The runtime in one word.
    pub runtime_family: String,
    /// The model, as the registry knows it.
    pub model: String,
    /// The format as the source calls it.
    pub quant: String,
    /// Sequences side by side.
    pub batch: u64,
    /// Tokens in the cache, or of the prompt.
    pub context: u64,
    /// What was timed.
    pub phase: Phase,
    /// Tokens that a request generates.
    pub generated: Option<u64>,
    /// All sequences together.
    pub tokens_per_s: f64,
    /// What one should know of it.
    #[serde(default)]
    pub note: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Aliases {
    /// Names of runtimes.
    stacks: BTreeMap<String, Stack>,
    /// Names of formats.
    formats: BTreeMap<String, String>,
    /// What a name means in one runtime alone.
    of: BTreeMap<String, BTreeMap<String, String>>,
}

static ALIASES: LazyLock<Aliases> = LazyLock::new(|| {
    let none = || Aliases { stacks: BTreeMap::new(), formats: BTreeMap::new(), of: BTreeMap::new() };
    toml::from_str(include_str!("../../data/published/aliases.toml")).unwrap_or_else(|_| none())
});

impl Speed {
    /// The runtime that the source means: by its full name, where that is known to be another than its family says.
    pub(super) fn stack(&self) -> Result<Stack> {
        match ALIASES.stacks.get(&self.runtime.trim().to_ascii_lowercase()) {
            Some(stack) => Ok(*stack),
            None => stack_of(&self.runtime_family),
        }
    }
}

/// The runtime that a source means.
pub fn stack_of(name: &str) -> Result<Stack> {
    let name = name.trim().to_ascii_lowercase();
    // `vllm (2023)` and `llama.cpp 2023` are releases of what stands before.
    let first = name.split([' ', '(']).next().unwrap_or_default().trim();
    let known = |name: &str| ALIASES.stacks.get(name).copied().or_else(|| name.parse().ok());
    known(&name).or_else(|| known(first)).map_or_else(|| name.parse(), Ok)
}

/// The plan that a source means by the name of a format, in a model of `layers`.
pub fn plan_of(name: &str, stack: Stack, layers: usize) -> Result<Plan> {
    let text = name.trim().to_ascii_lowercase();
    let plain = text.split('(').next().unwrap_or_default().trim();
    let own = ALIASES.of.get(stack.name());
    for spelled in [text.as_str(), plain] {
        let alias = own.and_then(|own| own.get(spelled)).or_else(|| ALIASES.formats.get(spelled));
        if let Some(alias) = alias {
            return alias.parse();
        }
        if let Some(bits) = spelled.strip_prefix("exl2") {
            return by_bits(name, bits, layers);
        }
    }
    plain.replace('-', "_").parse().or_else(|_| plain.parse())
}

/// Formats of a tensor that has so many bits on average: EXL2 mixes them within a matrix, which a plan does by layers.
const MIXED: &[(f64, &str)] =
    &[(2.25, "int2-g64"), (3.125, "int3-g128"), (4.125, "int4-g128"), (6.125, "int6-g128"), (8.125, "int8-g128")];

fn by_bits(name: &str, bits: &str, layers: usize) -> Result<Plan> {
    let unknown = || Error::Shape(format!("`{name}` does not say how many bits it has"));
    let bits: f64 = bits.trim().split(' ').next().unwrap_or_default().parse().map_err(|_| unknown())?;
    let above = MIXED.iter().position(|(known, _)| *known >= bits).unwrap_or(MIXED.len() - 1).max(1);
    let ((less, narrow), (more, wide)) = (MIXED[above - 1], MIXED[above]);
    let share = ((more - bits) / (more - less)).clamp(0.0, 1.0);
    match (share * layers as f64).round() as usize {
        0 => wide.parse(),
        last if last >= layers => narrow.parse(),
        last => format!("{wide},layers.0-{}={narrow}", last - 1).parse(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_sources_are_known() {
        assert_eq!(stack_of("gpt-fast/torchao").unwrap(), Stack::Torch);
        assert_eq!(stack_of("vllm (2023)").unwrap(), Stack::Vllm);
        assert_eq!(stack_of("llama.cpp 2023").unwrap(), Stack::LlamaCpp);
        assert_eq!(stack_of("lmdeploy 0.2").unwrap(), Stack::LmDeploy);
        assert!(stack_of("magic").is_err());
        let plan = |name: &str, stack| plan_of(name, stack, 32).map(|plan| plan.to_string());
        assert_eq!(plan("Q4_K_M", Stack::LlamaCpp).unwrap(), "q4_k_m");
        assert_eq!(plan("Q4_K_M (R1 671b)", Stack::LlamaCpp).unwrap(), "q4_k_m");
        assert_eq!(plan("FP8", Stack::TrtLlm).unwrap(), "fp8,kv=fp8-e4m3");
        assert_eq!(plan("FP8", Stack::Vllm).unwrap(), "fp8");
        // 2.5 bits are between 2.25 and 3.125: 71 % of the layers have the narrower ones.
        assert_eq!(plan("EXL2 2.5", Stack::ExLlamaV2).unwrap(), "int3-g128,layers.0-22=int2");
        assert!(plan("EXL2 many", Stack::ExLlamaV2).is_err() && plan("secret", Stack::Mlx).is_err());
        for (name, plan) in &ALIASES.formats {
            assert!(plan.parse::<Plan>().is_ok(), "{name}: {plan}");
            assert_eq!(*name, name.to_ascii_lowercase());
        }
    }
}
