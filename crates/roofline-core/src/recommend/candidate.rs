//! Plans worth looking at: those the device multiplies and some runtime loads.

use serde::Serialize;

use super::{
    Limits, Need,
    runtime::{self, Runtime, runtimes},
};
use crate::{Device, Error, Format, Plan, Precision, Result, format::Element, precision::PrecisionSpec};

/// A plan and how people name it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// `w4a16`, or `fp8 attention, nvfp4 feed-forward, fp8-e4m3 cache`.
    pub name: String,
    /// The precision of attention, or of all.
    pub attention: String,
    /// That of the feed-forward part.
    pub feed_forward: String,
    /// The format of the cache.
    pub kv: Format,
    /// The format of the LM head and of the embeddings, where they are quantized.
    pub head: Option<Format>,
    /// How the codes are chosen: what `roofline quantize` does without data for the narrowest part.
    pub algorithm: &'static str,
    /// Runtimes that load it on this device.
    pub runtimes: Vec<&'static str>,
    /// The plan itself.
    pub plan: Plan,
    /// The name under which its one precision is published; none for a mixture.
    #[serde(skip)]
    pub(super) key: Option<&'static str>,
}

/// A precision that the device multiplies and some runtime loads.
pub(super) struct Offer {
    /// Its name among the runtimes.
    pub(super) key: &'static str,
    pub(super) spec: PrecisionSpec,
    plan: Plan,
}

impl Offer {
    fn bits(&self) -> u32 {
        self.plan.layers.weights.nominal_bits()
    }
}

/// The precisions of a device, 16 bit first, which the others are compared with, then the wider ones.
pub(super) fn offers(device: &Device) -> Result<Vec<Offer>> {
    let sixteen = device.sixteen_bit().to_string();
    let mut keys: Vec<&'static str> = runtime::precisions().collect();
    keys.sort_unstable();
    keys.dedup();
    let mut all = Vec::new();
    for key in keys {
        let name = if key == "16 bit" { sixteen.clone() } else { key.replace("/16", &format!("/{sixteen}")) };
        let spec: PrecisionSpec = name.parse()?;
        match Plan::model(&spec, device) {
            Ok(plan) if runtimes().iter().any(|runtime| runtime.loads(key, device)) => {
                all.push(Offer { key, spec, plan });
            }
            // Without 16-bit units there is nothing to compare with.
            Err(error) if key == "16 bit" => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    if all.is_empty() {
        return Err(Error::Shape(format!("no runtime is known for {}", device.name)));
    }
    all.sort_by_key(|offer| (offer.key != "16 bit", std::cmp::Reverse(offer.bits())));
    Ok(all)
}

/// Every plan for a need: one precision throughout, or a narrower one for the feed-forward part, each with every format of
/// the cache and of the LM head. The first is 16 bit throughout.
pub(super) fn candidates(need: &Need<'_>) -> Result<Vec<Candidate>> {
    let device = need.device;
    let asked = |runtime: &&'static Runtime| {
        let names = &need.limits.runtimes;
        names.is_empty() || names.iter().any(|name| name.eq_ignore_ascii_case(&runtime.name))
    };
    let offers = offers(device)?;
    let caches: Vec<Format> = std::iter::once(device.sixteen_bit()).chain(runtime::caches()).collect();
    let heads: Vec<Option<Format>> = std::iter::once(None).chain(runtime::heads().map(Some)).collect();
    let mut all = Vec::new();
    for offer in &offers {
        for inner in &offers {
            let same = offer.key == inner.key;
            if !same && inner.bits() >= offer.bits() {
                continue;
            }
            let both: Vec<&'static Runtime> = runtimes()
                .iter()
                .filter(asked)
                .filter(|runtime| runtime.loads(offer.key, device) && runtime.loads(inner.key, device))
                .collect();
            if both.is_empty() {
                continue;
            }
            for kv in &caches {
                for head in &heads {
                    let loads = |runtime: &&&Runtime| runtime.caches(*kv, device) && runtime.heads(*head, device);
                    let names: Vec<&'static str> =
                        both.iter().filter(loads).map(|runtime| runtime.name.as_str()).collect();
                    if !names.is_empty() {
                        all.push(candidate(offer, inner, *kv, *head, names));
                    }
                }
            }
        }
    }
    if all.is_empty() {
        return Err(Error::Shape(format!("no such runtime is known for {}", device.name)));
    }
    Ok(all)
}

fn candidate(offer: &Offer, inner: &Offer, kv: Format, head: Option<Format>, runtimes: Vec<&'static str>) -> Candidate {
    let same = offer.key == inner.key;
    let (name, inner_name) = (offer.spec.name(), inner.spec.name());
    let mut text = if same { name.to_owned() } else { format!("{name} attention, {inner_name} feed-forward") };
    if let Some(head) = head {
        text += &format!(", {head} head");
    }
    if kv.nominal_bits() < 16 {
        text += &format!(", {kv} cache");
    }
    let plan = if same { offer.plan } else { offer.plan.with_feed_forward(inner.plan.layers) };
    let plan = head.map_or(plan, |head| plan.with_head(head)).with_kv(kv);
    let published = same && kv.nominal_bits() >= 16 && head.is_none();
    let algorithm = match inner.plan.layers.weights {
        weights if weights.nominal_bits() >= 16 => "none",
        // The scale that leaves the least squared error; wider codes gain nothing by it.
        weights if head.is_none() && (weights.element() == Element::Int4 || weights == Format::NVFP4) => "mse",
        _ => "rtn",
    };
    Candidate {
        name: text,
        attention: name.to_owned(),
        feed_forward: inner_name.to_owned(),
        kv,
        head,
        algorithm,
        runtimes,
        plan,
        key: published.then_some(offer.key),
    }
}

impl Candidate {
    /// Whether it is 16 bit throughout.
    pub fn is_plain(&self) -> bool {
        let inner = self.plan.feed_forward.unwrap_or(self.plan.layers);
        let bits = [self.plan.layers.weights, inner.weights, self.kv].map(Format::nominal_bits);
        bits.iter().all(|bits| *bits >= 16) && self.head.is_none()
    }

    /// How many choices it takes: the fewer, the simpler to make and to serve.
    pub(super) fn parts(&self) -> usize {
        let mixed = self.attention != self.feed_forward;
        usize::from(mixed) + usize::from(self.kv.nominal_bits() < 16) + usize::from(self.head.is_some())
    }

    /// Whether some weights are narrower than the activations they meet.
    pub fn weight_only(&self) -> bool {
        let narrow = |precision: &Precision| precision.weights.nominal_bits() < precision.activations.nominal_bits();
        narrow(&self.plan.layers) || self.plan.feed_forward.as_ref().is_some_and(narrow) || self.head.is_some()
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
