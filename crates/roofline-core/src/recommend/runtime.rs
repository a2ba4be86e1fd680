//! Who loads what: a file for each runtime, with its source.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

use crate::{
    Device, Format, Plan,
    device::{Kind, Origin},
};

/// The name of 16 bit in the files: BF16 or FP16, whichever a device multiplies faster.
pub(super) const SIXTEEN: &str = "16bit";

/// A program that runs models.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "a list of what it can do, as it stands in a file")]
pub(super) struct Runtime {
    pub(super) name: String,
    #[cfg_attr(not(test), expect(dead_code, reason = "for whoever reads the file"))]
    source: String,
    /// Whether it computes on processors and GPUs of every maker.
    #[serde(default)]
    anywhere: bool,
    /// Whether it serves many sequences at a time.
    pub(super) serves: bool,
    /// Whether several devices share each layer.
    #[serde(default)]
    pub(super) tensor_parallel: bool,
    /// Whether it loads llama.cpp's recipes.
    #[serde(default)]
    pub(super) mixes: bool,
    /// Whether attention and feed-forward part may differ.
    #[serde(default)]
    pub(super) mixed: bool,
    /// How it is told to leave weights in the host's memory; none where it cannot.
    #[serde(default)]
    pub(super) offload: Option<OffloadBy>,
    precisions: BTreeMap<String, Support>,
    #[serde(default, rename = "recipe")]
    pub(super) recipes: Vec<Recipe>,
    #[serde(default, rename = "cache")]
    caches: Vec<Stored>,
}

/// What an option for weights in the host's memory counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum OffloadBy {
    /// Layers that stay on the device (`-ngl`).
    Layers,
    /// Gigabytes that do not (`--cpu-offload-gb`).
    Gigabytes,
}

/// A plan of several parts with a name of its own.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Recipe {
    pub(super) plan: String,
    pub(super) known_as: String,
    /// Whether it is for models with experts.
    #[serde(default)]
    pub(super) experts: bool,
}

/// A narrow format that a cache may have, and where.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: Format,
    nvidia: Option<f64>,
    #[serde(default)]
    amd: bool,
}

/// Where a runtime has a kernel.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Support {
    /// The least compute capability.
    nvidia: Option<f64>,
    /// The first one that no longer has it.
    below: Option<f64>,
    #[serde(default)]
    amd: bool,
    /// What the runtime calls it.
    known_as: String,
}

static FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/runtimes.rs"));

/// Every runtime. A file that cannot be read is a defect of the build, and a test looks at each.
pub(super) fn runtimes() -> &'static [Runtime] {
    static ALL: LazyLock<Vec<Runtime>> =
        LazyLock::new(|| FILES.iter().flat_map(|(_, text)| toml::from_str(text)).collect());
    &ALL
}

/// Whether a chip is one of the user's own, so that no list of runtimes speaks of it.
pub(super) fn is_own(device: &Device) -> bool {
    let described = matches!(device.origin, Origin::User | Origin::Flags);
    device.kind == Kind::Custom || described && device.compute_capability.is_none()
}

impl Runtime {
    fn runs(&self, nvidia: Option<f64>, below: Option<f64>, amd: bool, device: &Device) -> bool {
        if is_own(device) {
            return false;
        }
        let capability = device.compute_capability.as_deref().and_then(|text| text.parse::<f64>().ok());
        match capability {
            _ if self.anywhere => !matches!(device.kind, Kind::Npu | Kind::Tpu),
            Some(capability) => {
                nvidia.is_some_and(|least| (least..below.unwrap_or(f64::INFINITY)).contains(&capability))
            }
            None => amd && device.vendor == "AMD" && device.kind == Kind::Gpu,
        }
    }

    /// Whether it runs on a device at all.
    pub(super) fn runs_on(&self, device: &Device) -> bool {
        self.loads(SIXTEEN, device)
    }

    /// Whether it loads a precision on a device.
    pub(super) fn loads(&self, precision: &str, device: &Device) -> bool {
        let support = self.precisions.get(precision);
        support.is_some_and(|support| self.runs(support.nvidia, support.below, support.amd, device))
    }

    /// Whether its cache has this format; 16 bit it always has.
    pub(super) fn caches(&self, format: Format, device: &Device) -> bool {
        let has = |stored: &Stored| stored.format == format && self.runs(stored.nvidia, None, stored.amd, device);
        format.nominal_bits() >= 16 || self.caches.iter().any(has)
    }

    /// What it calls a plan's layers; none where it has no word for them.
    pub(super) fn calls(&self, plan: &Plan, sixteen: Format) -> Option<String> {
        let recipe = |recipe: &&Recipe| recipe.plan.parse::<Plan>().is_ok_and(|known| known.to_string() == bare(plan));
        if let Some(recipe) = self.recipes.iter().find(recipe) {
            return Some(recipe.known_as.clone());
        }
        if let Some(mix) = plan.mix().filter(|_| self.mixes && plan.rules().is_empty()) {
            return Some(mix.name().to_uppercase());
        }
        let name = |name: &str| if name == sixteen.to_string() { SIXTEEN.to_owned() } else { name.to_owned() };
        let known = |text: &str| self.precisions.get(&name(text)).map(|support| support.known_as.clone());
        let base = known(plan.precision()?.canonical())?;
        let others: Option<Vec<String>> = plan.rules().iter().map(|rule| known(rule.precision.canonical())).collect();
        Some(std::iter::once(base).chain(others?).collect::<Vec<_>>().join(" + "))
    }

    /// The first compute capability that no longer has a kernel for a precision.
    pub(super) fn ended(&self, precision: &str) -> Option<f64> {
        self.precisions.get(precision)?.below
    }
}

/// The text of a plan but for its cache.
pub(super) fn bare(plan: &Plan) -> String {
    let text = plan.to_string();
    match plan.kv() {
        Some(kv) => text.strip_suffix(&format!(",kv={kv}")).unwrap_or(&text).to_owned(),
        None => text,
    }
}

/// What the runtimes are called.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    runtimes().iter().map(|runtime| runtime.name.as_str())
}

/// Every name of a precision that some runtime has.
pub(super) fn precisions() -> impl Iterator<Item = &'static str> {
    runtimes().iter().flat_map(|runtime| runtime.precisions.keys().map(String::as_str))
}

/// Every narrow format of a cache that some runtime has.
pub(super) fn caches() -> impl Iterator<Item = Format> {
    runtimes().iter().flat_map(|runtime| runtime.caches.iter().map(|stored| stored.format))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Registry, precision::PrecisionSpec};

    #[test]
    fn every_file_is_read_has_a_source_and_names_precisions() {
        assert_eq!(runtimes().len(), FILES.len());
        for runtime in runtimes() {
            assert!(!runtime.source.is_empty() && runtime.precisions.contains_key(SIXTEEN), "{}", runtime.name);
            assert!(runtime.recipes.iter().all(|recipe| recipe.plan.parse::<Plan>().is_ok()));
        }
        for name in precisions().filter(|name| *name != SIXTEEN) {
            let spec: PrecisionSpec = name.parse().unwrap();
            assert_eq!(spec.canonical(), name);
        }
    }

    #[test]
    fn hardware_decides() {
        let loads = |runtime: &str, precision: &str, device: &str| {
            let device = Registry::builtin().find(device).unwrap().into_owned();
            runtimes().iter().find(|known| known.name == runtime).unwrap().loads(precision, &device)
        };
        // Ampere has no FP8 units, and Marlin widens FP8 for it; FP4 products came with Blackwell.
        assert!(!loads("vLLM", "fp8", "a100_sxm_80gb") && loads("vLLM", "fp8a16", "a100_sxm_80gb"));
        assert!(!loads("vLLM", "nvfp4", "h200") && loads("vLLM", "nvfp4", "b200"));
        // Its kernels for INT4 weights with FP8 activations and for MX products are written for one generation.
        assert!(loads("vLLM", "w4a8", "h200") && !loads("vLLM", "w4a8", "b200") && !loads("vLLM", "mxfp4", "rtx_5090"));
        assert!(loads("vLLM", "fp8", "mi300x") && !loads("vLLM", "nvfp4a16", "mi300x"));
        assert!(loads("vLLM", "int8", "h200") && !loads("vLLM", "int8", "rtx_5090"));
        assert!(!loads("llama.cpp", SIXTEEN, "tpu_v5e") && !loads("llama.cpp", SIXTEEN, "gaudi3"));
        assert!(loads("llama.cpp", SIXTEEN, "apple_m2") && !loads("vLLM", "w4a16", "apple_m2"));
        assert!(!loads("llama.cpp", "w4a16", "h200"));
    }

    #[test]
    fn runtimes_have_their_own_names() {
        let calls = |runtime: &str, plan: &str| {
            let runtime = runtimes().iter().find(|known| known.name == runtime).unwrap();
            runtime.calls(&plan.parse().unwrap(), Format::BF16)
        };
        assert_eq!(calls("llama.cpp", "q4_k_m,kv=q8_0").as_deref(), Some("Q4_K_M"));
        assert_eq!(calls("llama.cpp", "q8_0,experts=mxfp4a16").as_deref(), Some("MXFP4_MOE"));
        assert_eq!(calls("vLLM", "fp8,kv=fp8-e4m3").as_deref(), Some("FP8_DYNAMIC"));
        assert_eq!(calls("vLLM", "fp8,ffn=w4a16").as_deref(), Some("FP8_DYNAMIC + W4A16"));
        assert_eq!(calls("vLLM", "bf16").as_deref(), Some("bfloat16"));
        assert_eq!(calls("vLLM", "nf4"), None);
    }
}
