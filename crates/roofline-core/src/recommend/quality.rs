//! What a plan costs in quality: published where somebody measured it, else estimated from the formats, else unknown.

use std::{
    collections::HashMap,
    sync::{LazyLock, OnceLock},
};

use serde::{Deserialize, Serialize};

use super::Candidate;
use crate::{
    Format, Graph, Model, Precision,
    format::{Distribution, Element},
    graph::{Node, Place},
    model::Stored,
    quality::PerplexityChange,
};

/// By how much the perplexity rises, and who says so.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Quality {
    /// 16 bit throughout: nothing is lost.
    Exact,
    /// As the model's makers released it: nothing is lost.
    Released,
    /// Measured and published for this model.
    Published {
        /// Share by which the perplexity rises.
        change: f64,
        /// The algorithm that chose the codes.
        method: String,
        /// Where it stands.
        source: String,
    },
    /// From the formats' errors on Gaussian numbers.
    Estimated(PerplexityChange),
    /// Beyond what can be estimated.
    Unknown,
}

impl Quality {
    /// The worst that has to be reckoned with; none where nothing is known.
    pub fn worst(&self) -> Option<f64> {
        match self {
            Self::Exact | Self::Released => Some(0.0),
            Self::Published { change, .. } => Some(*change),
            Self::Estimated(change) => Some(change.high),
            Self::Unknown => None,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    measured: Vec<Published>,
}

/// A published pair of perplexities.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The model, by its key.
    pub model: String,
    /// The precision throughout.
    pub precision: String,
    /// The algorithm that chose the codes.
    pub method: String,
    /// What was measured.
    pub metric: String,
    /// At 16 bit.
    pub before: f64,
    /// Quantized.
    pub after: f64,
    /// Who says so.
    pub source: String,
}

impl Published {
    /// The share by which it rose.
    pub fn change(&self) -> f64 {
        self.after / self.before - 1.0
    }
}

fn table() -> &'static [Published] {
    static FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/quality.rs"));
    static TABLE: LazyLock<Vec<Published>> = LazyLock::new(|| {
        FILES.iter().flat_map(|(_, text)| toml::from_str::<File>(text)).flat_map(|file| file.measured).collect()
    });
    &TABLE
}

/// What is published for a model in the precision of a plan, by every algorithm.
pub fn published(model: &Model, candidate: &Candidate) -> Vec<&'static Published> {
    let known = |row: &&Published| row.model == model.key && candidate.key == Some(row.precision.as_str());
    table().iter().filter(known).collect()
}

/// What is published for a model in one precision throughout, by the method that needs no data.
fn without_data(model: &Model, precision: &str) -> Option<Quality> {
    let known = |row: &&Published| row.model == model.key && row.precision == precision && row.method == "rtn";
    table().iter().find(known).map(|row| Quality::Published {
        change: row.change(),
        method: row.method.clone(),
        source: row.source.clone(),
    })
}

/// How many weights lie where, relative to those of all layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shares {
    feed_forward: f64,
    head: f64,
}

impl Shares {
    pub(super) fn of(graph: &Graph) -> Self {
        let weights = |place: Place| -> f64 {
            let nodes = graph.nodes.iter().filter(|node| node.place == place);
            let of = |node: &Node| {
                let weights = node.op.weights()?;
                Some(weights.count as f64 * weights.n.float() * weights.k.float() * node.count as f64)
            };
            nodes.filter_map(of).sum()
        };
        let inner = weights(Place::FeedForward);
        let layers = (inner + weights(Place::Layer)).max(1.0);
        Self { feed_forward: inner / layers, head: weights(Place::Head) / layers }
    }
}

/// The quality of a plan.
pub(super) fn quality(model: &Model, candidate: &Candidate, shares: Shares) -> Quality {
    if let Some(found) = candidate.key.and_then(|name| without_data(model, name)) {
        return found;
    }
    let plan = &candidate.plan;
    let (layers, inner) = (&plan.layers, plan.feed_forward.as_ref().unwrap_or(&plan.layers));
    let parts = [
        (Place::Layer, &candidate.attention, layers, 1.0 - shares.feed_forward),
        (Place::FeedForward, &candidate.feed_forward, inner, shares.feed_forward),
    ];
    let (mut mean, mut known) = (plan.head.map_or(0.0, |head| squared_error(head.weights)) * shares.head, 0.0);
    let mut as_released = false;
    for (place, name, precision, share) in parts {
        if released(model, place, precision) {
            as_released = true;
            continue;
        }
        mean += share * error(precision);
        // What was published of the whole model in this precision holds for its share of a mixture.
        if let Some(Quality::Published { change, .. }) = without_data(model, name) {
            known += share * change;
        }
    }
    if mean.is_infinite() {
        return Quality::Unknown;
    }
    if mean > 0.0 {
        let raised = |change: PerplexityChange| PerplexityChange { high: change.high.max(known), ..change };
        return PerplexityChange::of(mean).map(raised).map_or(Quality::Unknown, Quality::Estimated);
    }
    match plan.layers.kv.nominal_bits() < 16 {
        true => Quality::Unknown,
        false if as_released => Quality::Released,
        false => Quality::Exact,
    }
}

/// Whether the model's makers released that part in this precision, so that nothing is lost: the experts of gpt-oss in
/// MXFP4, all products of DeepSeek-V3 in FP8.
fn released(model: &Model, place: Place, precision: &Precision) -> bool {
    match model.stored.as_ref().and_then(Stored::precision) {
        Some("mxfp4a16") => place == Place::FeedForward && precision.weights == Format::MXFP4,
        Some("fp8") => precision.weights.element() == Element::Fp8E4M3,
        _ => false,
    }
}

/// The squared error of a product on Gaussian numbers, that of weights and activations; infinite where it tells nothing:
/// activations have outliers, which integers with one scale per token cannot follow.
pub(super) fn error(precision: &Precision) -> f64 {
    if precision.activations.element() == Element::Int8 {
        return f64::INFINITY;
    }
    squared_error(precision.weights) + squared_error(precision.activations)
}

/// `t^2` of a format on Gaussian numbers; 16 bit and more count as exact, since models are trained in them.
fn squared_error(format: Format) -> f64 {
    static KNOWN: OnceLock<std::sync::Mutex<HashMap<Format, f64>>> = OnceLock::new();
    if matches!(format.element(), Element::Fp64 | Element::Fp32 | Element::Tf32 | Element::Fp16 | Element::Bf16) {
        return 0.0;
    }
    let known = KNOWN.get_or_init(Default::default);
    let mut known = known.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    *known.entry(format).or_insert_with(|| {
        static SAMPLE: OnceLock<Vec<f32>> = OnceLock::new();
        let sample = SAMPLE.get_or_init(|| Distribution::Gaussian.sample());
        // Four rows of 4096 know the error to a percent.
        format.relative_error(&sample[..4 * 4096]).powi(2)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Plan, Registry, precision::PrecisionSpec};

    fn of(model: &str, precision: &str) -> Quality {
        mixed(model, precision, precision)
    }

    fn mixed(model: &str, attention: &str, feed_forward: &str) -> Quality {
        let b200 = Registry::builtin().find("b200").unwrap().into_owned();
        let plan = |name: &str| Plan::model(&name.parse::<PrecisionSpec>().unwrap(), &b200).unwrap();
        let same = attention == feed_forward;
        let candidate = Candidate {
            name: String::new(),
            attention: attention.to_owned(),
            feed_forward: feed_forward.to_owned(),
            kv: Format::BF16,
            head: None,
            algorithm: "rtn",
            runtimes: Vec::new(),
            plan: if same { plan(attention) } else { plan(attention).with_feed_forward(plan(feed_forward).layers) },
            key: same.then(|| attention.to_owned().leak() as &str),
        };
        quality(&Model::find(model).unwrap(), &candidate, Shares { feed_forward: 0.7, head: 0.1 })
    }

    #[test]
    fn the_table_is_whole_and_its_models_are_known() {
        assert_eq!(table().len(), 15);
        for row in table() {
            assert!(Model::find(&row.model).is_ok(), "{}", row.model);
            let spec = row.precision.replace("/16", "/bf16");
            let known = spec.parse::<PrecisionSpec>().is_ok() || ["q4_0", "q8_0"].contains(&spec.as_str());
            assert!(known && row.after > row.before, "{row:?}");
        }
    }

    #[test]
    fn published_before_estimated_before_unknown() {
        assert_eq!(of("llama-2-7b", "bf16"), Quality::Exact);
        let int8 = of("llama-3-8b", "w8a16");
        assert!(matches!(int8, Quality::Published { change, .. } if (change - 0.0008).abs() < 1e-4), "{int8:?}");
        // Qwen has no row: INT4-g128 has t = 0.111, so 5.6 % to 14.5 %.
        let Quality::Estimated(change) = of("qwen2.5-7b", "w4a16") else { panic!() };
        assert!((change.low - 0.056).abs() < 0.003 && (change.high - 0.145).abs() < 0.007, "{change:?}");
        assert_eq!(of("qwen2.5-7b", "int2"), Quality::Unknown);
        assert_eq!(of("qwen2.5-7b", "int8"), Quality::Unknown);
        assert!(matches!(of("llama-3-8b", "int8"), Quality::Published { .. }));
    }

    #[test]
    fn what_was_released_loses_nothing() {
        assert_eq!(mixed("gpt-oss-20b", "bf16", "mxfp4a16"), Quality::Released);
        assert!(matches!(mixed("gpt-oss-20b", "mxfp4a16", "mxfp4a16"), Quality::Estimated(_)));
        assert_eq!(of("deepseek-v3", "fp8"), Quality::Released);
        assert!(matches!(of("deepseek-v3", "w4a16"), Quality::Estimated(_)));
    }

    #[test]
    fn a_mixture_loses_no_less_than_its_published_part() {
        // MXFP8 costs Llama 3.1 8B 3.7 % where Gaussian numbers would make it 1.6; seven tenths of that are 2.6.
        let Quality::Estimated(change) = mixed("llama-3.1-8b", "bf16", "mxfp8") else { panic!() };
        assert!((change.high - 0.7 * 0.037).abs() < 1e-3, "{change:?}");
    }
}
