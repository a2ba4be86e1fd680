//! Who loads what: a file for each runtime, with its source.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

use crate::{Device, Format, device::Kind};

/// A program that runs models.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Runtime {
    pub(super) name: String,
    #[cfg_attr(not(test), expect(dead_code, reason = "for whoever reads the file"))]
    source: String,
    /// Whether it computes on processors and GPUs of every maker.
    #[serde(default)]
    anywhere: bool,
    /// Whether it serves many sequences at a time.
    pub(super) serves: bool,
    precisions: BTreeMap<String, Support>,
    #[serde(default, rename = "cache")]
    caches: Vec<Stored>,
    #[serde(default, rename = "head")]
    heads: Vec<Stored>,
}

/// A narrow format that a cache or a head may have, and where.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: Format,
    nvidia: Option<f64>,
    #[serde(default)]
    amd: bool,
}

impl Stored {
    fn support(&self) -> Support {
        Support { nvidia: self.nvidia, below: None, amd: self.amd }
    }
}

/// Where a runtime has a kernel.
#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Support {
    /// The least compute capability.
    nvidia: Option<f64>,
    /// The first one that no longer has it.
    below: Option<f64>,
    #[serde(default)]
    amd: bool,
}

static FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/runtimes.rs"));

/// Every runtime. A file that cannot be read is a defect of the build, and a test looks at each.
pub(super) fn runtimes() -> &'static [Runtime] {
    static ALL: LazyLock<Vec<Runtime>> =
        LazyLock::new(|| FILES.iter().flat_map(|(_, text)| toml::from_str(text)).collect());
    &ALL
}

impl Runtime {
    fn runs(&self, support: Support, device: &Device) -> bool {
        let capability = device.compute_capability.as_deref().and_then(|text| text.parse::<f64>().ok());
        match capability {
            _ if self.anywhere => !matches!(device.kind, Kind::Npu | Kind::Tpu),
            Some(capability) => {
                let most = support.below.unwrap_or(f64::INFINITY);
                support.nvidia.is_some_and(|least| (least..most).contains(&capability))
            }
            None => support.amd && device.vendor == "AMD" && device.kind == Kind::Gpu,
        }
    }

    /// Whether it loads a precision on a device.
    pub(super) fn loads(&self, precision: &str, device: &Device) -> bool {
        self.precisions.get(precision).is_some_and(|support| self.runs(*support, device))
    }

    fn stores(&self, formats: &[Stored], format: Format, device: &Device) -> bool {
        formats.iter().any(|stored| stored.format == format && self.runs(stored.support(), device))
    }

    /// Whether its cache has this format; 16 bit it always has.
    pub(super) fn caches(&self, format: Format, device: &Device) -> bool {
        format.nominal_bits() >= 16 || self.stores(&self.caches, format, device)
    }

    /// Whether its LM head has this format; 16 bit it always has.
    pub(super) fn heads(&self, format: Option<Format>, device: &Device) -> bool {
        format.is_none_or(|format| self.stores(&self.heads, format, device))
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

/// Every narrow format of an LM head that some runtime has.
pub(super) fn heads() -> impl Iterator<Item = Format> {
    runtimes().iter().flat_map(|runtime| runtime.heads.iter().map(|stored| stored.format))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Registry, precision::PrecisionSpec};

    #[test]
    fn every_file_is_read_has_a_source_and_names_precisions() {
        assert_eq!(runtimes().len(), FILES.len());
        for runtime in runtimes() {
            assert!(!runtime.source.is_empty() && runtime.precisions.contains_key("16 bit"), "{}", runtime.name);
        }
        for name in precisions().filter(|name| *name != "16 bit") {
            let spec = name.replace("/16", "/bf16");
            assert!(spec.parse::<PrecisionSpec>().is_ok(), "{name}");
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
        assert!(!loads("llama.cpp", "16 bit", "tpu_v5e") && !loads("llama.cpp", "16 bit", "gaudi3"));
        assert!(loads("llama.cpp", "int4-g32/16", "apple_m2") && !loads("vLLM", "w4a16", "apple_m2"));
        assert!(!loads("llama.cpp", "w4a16", "h200"));
    }
}
