//! Plans worth looking at: those the device multiplies and some runtime loads.

use serde::Serialize;

use super::{Limits, Need};
use crate::{Device, Error, Format, Math, Plan, Precision, Result, device::Kind, precision::PrecisionSpec};

/// A plan and how people name it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// `w4a16`, or `fp8 attention, nvfp4 feed-forward, fp8 cache`.
    pub name: String,
    /// The precision of attention, or of all.
    pub attention: String,
    /// That of the feed-forward part.
    pub feed_forward: String,
    /// The format of the cache.
    pub kv: Format,
    /// Runtimes that load it on this device.
    pub runtimes: Vec<&'static str>,
    /// The plan itself.
    pub plan: Plan,
}

/// Precisions that are tried, wide to narrow. The first, 16 bit, is what the others are compared with.
const TRIED: [&str; 12] =
    ["sixteen", "fp8", "int8", "mxfp8", "w8a16", "fp8a16", "w4a16", "nvfp4a16", "mxfp4a16", "nf4", "nvfp4", "mxfp4"];

/// Who loads a precision on an NVIDIA GPU, from which compute capability on. From vLLM's `get_min_capability`; bitsandbytes
/// runs from Turing on, llama.cpp anywhere.
const RUNTIMES: &[(&str, &[(&str, f64)])] = &[
    ("sixteen", &[("vLLM", 7.0), ("llama.cpp", 0.0), ("transformers", 0.0)]),
    ("fp8", &[("vLLM", 8.9), ("transformers", 8.9)]),
    ("int8", &[("vLLM", 7.5)]),
    ("mxfp8", &[("vLLM", 10.0)]),
    ("w8a16", &[("vLLM", 7.5), ("llama.cpp", 0.0), ("transformers (torchao)", 0.0)]),
    ("fp8a16", &[("vLLM", 7.5), ("transformers (torchao)", 0.0)]),
    ("w4a16", &[("vLLM", 7.5), ("llama.cpp", 0.0)]),
    ("nvfp4a16", &[("vLLM", 7.5), ("llama.cpp", 0.0)]),
    ("mxfp4a16", &[("vLLM", 8.0), ("llama.cpp", 0.0)]),
    ("nf4", &[("transformers (bitsandbytes)", 7.5)]),
    ("nvfp4", &[("vLLM", 10.0)]),
    ("mxfp4", &[("vLLM", 10.0)]),
];

/// The runtimes that load `name` on `device`. llama.cpp runs on everything else that computes.
fn runtimes(name: &str, device: &Device) -> Vec<&'static str> {
    let capability = device.compute_capability.as_deref().and_then(|text| text.parse::<f64>().ok());
    let listed = RUNTIMES.iter().find(|(known, _)| *known == name).map_or(&[][..], |(_, runtimes)| runtimes);
    let loads = |(runtime, least): &&(&str, f64)| match capability {
        Some(capability) => capability >= *least,
        None => *runtime == "llama.cpp" || device.kind != Kind::Cpu && device.vendor == "AMD" && *runtime == "vLLM",
    };
    listed.iter().filter(loads).map(|(runtime, _)| *runtime).collect()
}

/// The precisions that `device` multiplies and some runtime loads, 16 bit first.
pub(super) fn precisions(device: &Device) -> Result<Vec<(&'static str, PrecisionSpec)>> {
    let sixteen = device.sixteen_bit().to_string();
    let mut all = Vec::new();
    for tried in TRIED {
        let spec: PrecisionSpec = if tried == "sixteen" { sixteen.parse()? } else { tried.parse()? };
        match spec.on(device) {
            Ok(_) if !runtimes(tried, device).is_empty() => all.push((tried, spec)),
            // Without 16-bit units there is nothing to compare with.
            Err(error) if tried == "sixteen" => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    if all.is_empty() {
        return Err(Error::Shape(format!("no runtime is known for {}", device.name)));
    }
    Ok(all)
}

/// Every plan for a need: one precision throughout, or a narrower one for the feed-forward part, each with every format of
/// the cache. The first is 16 bit throughout.
pub(super) fn candidates(need: &Need<'_>) -> Result<Vec<Candidate>> {
    let device = need.device;
    let precisions = precisions(device)?;
    let mut all = Vec::new();
    for (key, spec) in &precisions {
        let (name, plan) = (spec.name(), &Plan::model(spec, device)?);
        for (inner_key, inner_spec) in &precisions {
            let (inner_name, inner) = (inner_spec.name(), &Plan::model(inner_spec, device)?);
            let bits = |plan: &Plan| plan.layers.weights.nominal_bits();
            let same = key == inner_key;
            if !same && bits(inner) >= bits(plan) {
                continue;
            }
            let outer = runtimes(key, device);
            let both: Vec<&'static str> =
                runtimes(inner_key, device).into_iter().filter(|name| outer.contains(name)).collect();
            if both.is_empty() {
                continue;
            }
            let mixed = if same { *plan } else { plan.with_feed_forward(inner.layers) };
            for (kv, cached) in caches(device)? {
                let both: Vec<&'static str> =
                    both.iter().copied().filter(|name| cached.is_none_or(|only| only == *name)).collect();
                if both.is_empty() {
                    continue;
                }
                let cache = if kv.nominal_bits() < 16 { format!(", {kv} cache") } else { String::new() };
                let layers =
                    if same { name.to_owned() } else { format!("{name} attention, {inner_name} feed-forward") };
                all.push(Candidate {
                    name: layers + &cache,
                    attention: name.to_owned(),
                    feed_forward: inner_name.to_owned(),
                    kv,
                    runtimes: both,
                    plan: mixed.with_kv(kv),
                });
            }
        }
    }
    Ok(all)
}

/// Formats of the cache, and the one runtime that has them: 16 bit everywhere, FP8 in vLLM on GPUs with FP8 units, INT8 in
/// blocks of 32 (`q8_0`) in llama.cpp.
fn caches(device: &Device) -> Result<Vec<(Format, Option<&'static str>)>> {
    let mut all = vec![(device.sixteen_bit(), None), ("int8-g32".parse()?, Some("llama.cpp"))];
    if device.peaks.of(Math::Fp8).is_some() {
        all.push((Format::FP8, Some("vLLM")));
    }
    Ok(all)
}

impl Candidate {
    /// The name of its one precision, where it has one and a 16-bit cache.
    pub(super) fn single(&self) -> Option<&str> {
        (self.attention == self.feed_forward && self.kv.nominal_bits() >= 16).then_some(self.attention.as_str())
    }

    /// Whether it is 16 bit throughout.
    pub fn is_plain(&self) -> bool {
        let inner = self.plan.feed_forward.unwrap_or(self.plan.layers);
        let bits = [self.plan.layers.weights, inner.weights, self.kv].map(Format::nominal_bits);
        bits.iter().all(|bits| *bits >= 16)
    }

    /// Whether some weights are narrower than the activations they meet.
    pub fn weight_only(&self) -> bool {
        let narrow = |precision: &Precision| precision.weights.nominal_bits() < precision.activations.nominal_bits();
        narrow(&self.plan.layers) || self.plan.feed_forward.as_ref().is_some_and(narrow)
    }

    /// Why names and units forbid it.
    pub(super) fn refusal(&self, limits: &Limits) -> Option<String> {
        let names = [&self.attention, &self.feed_forward];
        if let Some(denied) = names.iter().find(|name| limits.deny.contains(name)) {
            return Some(format!("has {denied}, which is denied"));
        }
        let plain = |name: &&&String| self.is_plain() && ***name == self.attention;
        let missing = names.iter().find(|name| !limits.allow.contains(name) && !plain(name));
        if let Some(missing) = missing.filter(|_| !limits.allow.is_empty()) {
            return Some(format!("has {missing}, which is not allowed"));
        }
        (limits.native_only && self.weight_only())
            .then(|| "has weights that no unit multiplies as they are stored".to_owned())
    }
}
