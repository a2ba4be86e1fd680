//! Plans worth looking at: those the device multiplies and some runtime loads.

use serde::Serialize;

use super::{
    Goal, Limits, Need,
    runtime::{self, Runtime, runtimes},
};
use crate::{
    Device, Dim, Error, Format, Graph, Op, Plan, Precision, Result,
    format::Element,
    model::{Lowering, Workload},
    precision::PrecisionSpec,
};

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
        let names: Vec<&str> = runtime::names().collect();
        return Err(Error::Shape(format!("none of {} runs on {}", names.join(", "), device.name)));
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
        let served = runtime.serves || !matches!(need.goal, Goal::Throughput | Goal::Cost);
        names.is_empty() && served || names.iter().any(|name| name.eq_ignore_ascii_case(&runtime.name))
    };
    let offers = offers(device)?;
    let graph = need.model.graph(Workload::decode(1, 1)?, Lowering::default())?;
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
                    let candidate = candidate(offer, inner, *kv, *head, names);
                    if !candidate.runtimes.is_empty() && divides(&graph, &candidate) {
                        all.push(candidate);
                    }
                }
            }
        }
    }
    if all.is_empty() {
        let names =
            if need.limits.runtimes.is_empty() { "no runtime".to_owned() } else { need.limits.runtimes.join(", ") };
        let runs = |runtime: &&Runtime| runtime.loads("16 bit", device);
        let others: Vec<&str> = runtimes().iter().filter(runs).map(|runtime| runtime.name.as_str()).collect();
        return Err(Error::Shape(format!("{names} does not run on {}: {} does", device.name, others.join(", "))));
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
    let vllm = runtimes.contains(&"vLLM");
    let algorithm = match inner.plan.layers.weights {
        weights if weights.nominal_bits() >= 16 => "none",
        // The scale that leaves the least squared error; wider codes gain nothing by it, and files with several schemes and
        // llama.cpp's are rounded to nearest.
        weights if same && vllm && (weights.element() == Element::Int4 || weights == Format::NVFP4) => "mse",
        _ => "rtn",
    };
    let key = if same && kv.nominal_bits() >= 16 { published_as(offer.key, head.is_some()) } else { None };
    Candidate {
        name: text,
        attention: name.to_owned(),
        feed_forward: inner_name.to_owned(),
        kv,
        head,
        algorithm,
        runtimes,
        plan,
        key,
    }
}

/// Under which name results of a precision are published. llama.cpp measures files whose head and embeddings are quantized
/// too, which an 8-bit head comes nearest to.
fn published_as(key: &'static str, head: bool) -> Option<&'static str> {
    match (key, head) {
        ("int8-g32/16", true) => Some("q8_0"),
        ("int4-g32/16", true) => Some("q4_0"),
        (_, true) => None,
        (key, false) => Some(key),
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
        let weights = |precision: &Precision| precision.weights.nominal_bits() < 16;
        let narrow = weights(&self.plan.layers) || self.plan.feed_forward.as_ref().is_some_and(weights);
        let mixed = self.attention != self.feed_forward;
        let cached = self.kv.nominal_bits() < 16;
        [narrow, mixed, cached, self.head.is_some()].into_iter().filter(|choice| *choice).count()
    }

    /// Whether some weights are narrower than the activations they meet.
    pub fn weight_only(&self) -> bool {
        let narrow = |precision: &Precision| precision.weights.nominal_bits() < precision.activations.nominal_bits();
        narrow(&self.plan.layers) || self.plan.feed_forward.as_ref().is_some_and(narrow) || self.head.is_some()
    }

    /// Whether one of its parts has this name: a precision, its weights' format, or that of the cache or the head.
    pub(super) fn has(&self, name: &str) -> bool {
        let precision = |known: &str, weights: Format| {
            known == name
                || known.split('/').next() == Some(name)
                || weights.nominal_bits() < 16 && weights.to_string() == name
                || weights.element() == Element::Int4 && name == "int4"
        };
        let inner = self.plan.feed_forward.unwrap_or(self.plan.layers);
        precision(&self.attention, self.plan.layers.weights)
            || precision(&self.feed_forward, inner.weights)
            || self.kv.nominal_bits() < 16 && self.kv.to_string() == name
            || self.kv.element() == Element::Int4 && name == "int4"
            || self.head.is_some_and(|head| head.to_string() == name)
    }

    /// A part that none of the names stands for; 16 bit needs none.
    fn beyond(&self, names: &[String]) -> Option<String> {
        let allows = |weights: Format, known: &str| {
            let alone =
                Self { attention: known.to_owned(), feed_forward: known.to_owned(), head: None, ..self.clone() };
            let plain = Plan { feed_forward: None, layers: Precision { weights, ..self.plan.layers }, ..self.plan };
            let alone = Self { plan: plain, kv: self.plan.layers.query, ..alone };
            weights.nominal_bits() >= 16 || names.iter().any(|name| alone.has(name))
        };
        let inner = self.plan.feed_forward.unwrap_or(self.plan.layers);
        if !allows(self.plan.layers.weights, &self.attention) {
            return Some(self.attention.clone());
        }
        if !allows(inner.weights, &self.feed_forward) {
            return Some(self.feed_forward.clone());
        }
        let stored = [Some(self.kv).filter(|kv| kv.nominal_bits() < 16), self.head];
        stored.into_iter().flatten().map(|format| format.to_string()).find(|format| !names.contains(format))
    }

    /// Why names and units forbid it.
    pub(super) fn refusal(&self, limits: &Limits) -> Option<String> {
        if let Some(denied) = limits.deny.iter().find(|name| self.has(name)) {
            return Some(format!("has {denied}, which is denied"));
        }
        if let Some(missing) = self.beyond(&limits.allow).filter(|_| !limits.allow.is_empty()) {
            return Some(format!("has {missing}, which is not allowed"));
        }
        (limits.native_only && self.weight_only())
            .then(|| "has weights that no unit multiplies as they are stored".to_owned())
    }
}

/// Whether blocks divide what is stored: rows of weights, and heads of the cache. No runtime has kernels for the rest.
fn divides(graph: &Graph, candidate: &Candidate) -> bool {
    let whole = |format: Format, length: Dim| format.block().is_none_or(|block| length.get().is_multiple_of(block));
    graph.nodes.iter().all(|node| {
        let precision = candidate.plan.at(node.place);
        let weights = node.op.weights().is_none_or(|weights| whole(precision.weights, weights.k));
        let cache = match node.op {
            Op::Attention(attention) => {
                whole(candidate.kv, attention.head_dim) && whole(candidate.kv, attention.value_dim)
            }
            _ => true,
        };
        weights && cache
    })
}

/// Refuses names that no plan of the device has: a limit that does nothing is a slip.
pub(super) fn known(names: &[String], all: &[Candidate], device: &Device) -> Result<()> {
    let Some(unknown) = names.iter().find(|name| !all.iter().any(|candidate| candidate.has(name))) else {
        return Ok(());
    };
    let mut there: Vec<&str> = all.iter().map(|candidate| candidate.attention.as_str()).collect();
    there.dedup();
    there.sort_unstable();
    there.dedup();
    Err(Error::Shape(format!("no plan for {} has `{unknown}`: there are {}", device.name, there.join(", "))))
}
