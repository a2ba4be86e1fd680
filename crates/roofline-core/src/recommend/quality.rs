//! What a plan costs in quality: measured where an evaluation of these weights found it, else published where somebody
//! measured the model, else estimated from the formats, else unknown.

mod measured;
mod published;

pub use measured::Measured;
pub use published::{Cached, Published, published};

use std::{
    collections::HashMap,
    sync::{Mutex, OnceLock, PoisonError},
};

use schemars::JsonSchema;
use serde::Serialize;

use self::measured::{Cache, Found};
use super::runtime::bare;
use crate::{
    Device, Format, Graph, Model, Plan, Precision, Role,
    format::{Distribution, Element},
    model::{AttentionLayer, Stored as Shipped},
    plan::{Assignment, Kernel, Stored},
    quality::{Coefficient, PerplexityChange},
};

/// By how much the perplexity rises, and who says so.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[schemars(rename = "PlanQuality")]
pub enum Quality {
    /// 16 bit throughout: nothing is lost.
    Exact,
    /// As the model's makers released it: nothing is lost.
    Released,
    /// Measured here, of these very weights.
    Measured {
        /// Share by which the perplexity rises.
        change: f64,
        /// The least of it, with 95 % confidence.
        low: f64,
        /// The most of it, with 95 % confidence.
        high: f64,
        /// From the original's probabilities to the model's, in nats per token.
        kl_divergence: Option<f64>,
        /// The share of tokens of which both think the same one likeliest.
        top1_agreement: Option<f64>,
        /// Tokens that were scored.
        tokens: u64,
        /// What text they are of.
        text: String,
        /// The algorithm that chose the codes, where that is known.
        method: Option<String>,
        /// When, as `2026-01-31`.
        date: String,
        /// The narrow cache that is counted in, where it was not measured apart.
        cache: Option<Format>,
    },
    /// Measured and published for this model.
    Published {
        /// Share by which the perplexity rises.
        change: f64,
        /// The algorithm that chose the codes.
        method: String,
        /// Where it stands.
        source: String,
    },
    /// Measured and published for other models: the worst of them.
    Elsewhere {
        /// Share by which the perplexity rises.
        change: f64,
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
            // Nobody gains by rounding: what looks like it is chance.
            Self::Measured { high, .. } => Some(high.max(0.0)),
            Self::Published { change, .. } | Self::Elsewhere { change, .. } => Some(*change),
            Self::Estimated(change) => Some(change.high),
            Self::Unknown => None,
        }
    }
}

/// What a plan loses by its weights and activations, and by its cache.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "PlanLosses")]
pub struct Losses {
    /// What weights and activations cost.
    pub quality: Quality,
    /// What the cache costs; none where it has 16 bit, and where what was measured of the weights counts it in.
    pub cache_quality: Option<Quality>,
    /// The largest rise of the perplexity that has to be reckoned with, by both; none where it is unknown.
    #[serde(rename = "loss")]
    pub worst: Option<f64>,
}

impl Losses {
    fn new(quality: Quality, cache_quality: Option<Quality>) -> Self {
        let cache = cache_quality.as_ref().map_or(Some(0.0), Quality::worst);
        let worst = quality.worst().zip(cache).map(|(weights, cache)| weights + cache);
        Self { quality, cache_quality, worst }
    }
}

/// What is known of a model: what was measured of its weights, and what errors cost it.
pub(super) struct Known<'a> {
    model: &'a Model,
    measured: &'a [Measured],
    coefficient: Coefficient,
}

impl<'a> Known<'a> {
    /// What is known of a model; `graph` is any pass of it, and `device` one that multiplies what was measured.
    pub(super) fn of(model: &'a Model, measured: &'a [Measured], device: &Device, graph: &Graph) -> Self {
        // A cost that is not beyond its noise tells nothing.
        let sure = |found: &&Measured| found.cache.is_none() && found.low > 0.0;
        let cost = |found: &Measured| {
            let plan: Plan = found.plan.as_ref()?.parse().ok()?;
            // The plan that it was made by, if the file holds just what that says.
            let own = plan.signature(&model.anatomy).filter(|own| *own == found.signature);
            let assignment = own.and_then(|_| plan.on(device, Some(&model.anatomy)).ok())?;
            Some((mean_error(&assignment, graph), (found.after / found.before).ln()))
        };
        let costs = measured.iter().filter(sure).filter_map(cost);
        Self { model, measured, coefficient: Coefficient::of_known(costs).unwrap_or(Coefficient::ANY) }
    }
}

/// What a plan loses on a model of which that is known, if its codes are chosen by `algorithm`; `graph` is any pass of it.
pub(super) fn losses(
    known: &Known<'_>,
    (plan, algorithm): (&Plan, &str),
    assignment: &Assignment,
    graph: &Graph,
) -> Losses {
    let Known { model, measured, coefficient } = *known;
    let kv = assignment.kv();
    let narrow = (kv.nominal_bits() < 16).then_some(kv);
    let guessed = weights((model, coefficient), plan, assignment, graph);
    let found = Found::of(measured, model, plan, algorithm, narrow);
    // What loses nothing by what it is needs no proof.
    let sure = matches!(guessed, Quality::Exact | Quality::Released);
    let quality = found.weights().filter(|_| !sure).unwrap_or(guessed);
    let Some(kv) = narrow else { return Losses::new(quality, None) };
    match found.cache(sure) {
        Some(Cache::Apart(cache)) => Losses::new(quality, Some(cache)),
        Some(Cache::Together(both)) => Losses::new(both, None),
        None => Losses::new(quality, Some(cached(model, kv))),
    }
}

/// What a narrow cache costs. Formats of eight bits cost models about the same, so that what was published of some stands for
/// the others; below that models differ by orders of magnitude. Models with sinks lose much by any narrow cache (gpt-oss-20b
/// in Q8_0: the same first choice for 75 % of the tokens, `llama-cpp-turboquant` issue 305), and nobody published what
/// compressed keys and values lose.
fn cached(model: &Model, kv: Format) -> Quality {
    let unlike = |attention: &AttentionLayer| match attention {
        AttentionLayer::Grouped { sinks, .. } => *sinks,
        AttentionLayer::Latent { .. } => true,
    };
    if model.layers.iter().any(|layer| unlike(&layer.attention)) {
        return Quality::Unknown;
    }
    let rows = || published::caches().iter().filter(|row| row.cache == kv);
    if let Some(own) = rows().find(|row| row.model == model.key) {
        return Quality::Published { change: own.change(), method: "rtn".to_owned(), source: own.source.clone() };
    }
    let worst = rows().max_by(|a, b| a.change().total_cmp(&b.change())).filter(|_| kv.nominal_bits() >= 8);
    worst.map_or(Quality::Unknown, |worst| Quality::Elsewhere { change: worst.change(), source: worst.source.clone() })
}

fn weights(
    (model, coefficient): (&Model, Coefficient),
    plan: &Plan,
    assignment: &Assignment,
    graph: &Graph,
) -> Quality {
    if let Some(found) = published::without_data(model, &bare(plan)) {
        return found;
    }
    let (mut layers, mut mean, mut known) = (0.0, 0.0, 0.0);
    let mut as_released = false;
    assignment.kernels(graph, |Kernel { node, precision }| {
        let Some(weights) = node.op.weights() else { return };
        let role = node.part.role();
        let elements = weights.count as f64 * weights.n.float() * weights.k.float() * node.count as f64;
        if role.is_layer_product() {
            layers += elements;
        }
        if released(model, role, precision) {
            as_released = true;
            return;
        }
        // Nothing times infinity is not a number.
        let own = error(precision);
        mean += if own > 0.0 { elements * own } else { 0.0 };
        // What was published of the whole model in this precision holds for its share of a mixture.
        let name = match plan.at(role, None, 0, None) {
            Stored::As(spec) => spec.canonical(),
            Stored::Mixed(_) | Stored::Wide => return,
        };
        if let Some(Quality::Published { change, .. }) = published::without_data(model, name) {
            known += elements * change;
        }
    });
    let (mean, known) = (mean / layers, known / layers);
    if mean > 0.0 {
        let raised = |change: PerplexityChange| PerplexityChange { high: change.high.max(known), ..change };
        return PerplexityChange::of_model(mean, coefficient).map(raised).map_or(Quality::Unknown, Quality::Estimated);
    }
    if as_released { Quality::Released } else { Quality::Exact }
}

/// The mean squared error of a plan's products, by their weights' shares of the layers.
fn mean_error(assignment: &Assignment, graph: &Graph) -> f64 {
    let (mut layers, mut sum) = (0.0, 0.0);
    assignment.kernels(graph, |Kernel { node, precision }| {
        let Some(weights) = node.op.weights() else { return };
        let elements = weights.count as f64 * weights.n.float() * weights.k.float() * node.count as f64;
        layers += if node.part.role().is_layer_product() { elements } else { 0.0 };
        sum += elements * error(precision);
    });
    sum / layers
}

/// Whether the model's makers released that part in this precision, so that nothing is lost: the experts of gpt-oss in
/// MXFP4, all products of DeepSeek-V3 in FP8.
fn released(model: &Model, role: Role, precision: &Precision) -> bool {
    let wide = precision.activations.nominal_bits() >= 16;
    match model.stored.as_ref().and_then(Shipped::precision) {
        Some("mxfp4a16") => role.is_expert() && precision.weights == Format::MXFP4 && wide,
        Some("fp8") => role.is_layer_product() && precision.weights == Format::FP8,
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
    static KNOWN: OnceLock<Mutex<HashMap<Format, f64>>> = OnceLock::new();
    if matches!(format.element(), Element::Fp64 | Element::Fp32 | Element::Tf32 | Element::Fp16 | Element::Bf16) {
        return 0.0;
    }
    let known = KNOWN.get_or_init(Default::default);
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
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
    use crate::{
        Registry,
        model::{Lowering, Workload},
    };

    fn of(model: &str, plan: &str) -> Losses {
        let b200 = Registry::builtin().find("b200").unwrap().into_owned();
        let (model, plan) = (Model::find(model).unwrap(), plan.parse::<Plan>().unwrap());
        let graph = model.graph(Workload::decode(1, 1).unwrap(), Lowering::default()).unwrap();
        let assignment = plan.on(&b200, Some(&model.anatomy)).unwrap();
        losses(&Known::of(&model, &[], &b200, &graph), (&plan, "rtn"), &assignment, &graph)
    }

    #[test]
    fn published_before_estimated_before_unknown() {
        let of = |model, plan| of(model, plan).quality;
        assert_eq!(of("llama-2-7b", "bf16"), Quality::Exact);
        let int8 = of("llama-3-8b", "w8a16");
        assert!(matches!(int8, Quality::Published { change, .. } if (change - 0.0008).abs() < 1e-4), "{int8:?}");
        // llama.cpp's table: 6.4071 after 6.2316.
        let mix = of("llama-3-8b", "q4_k_m");
        assert!(matches!(mix, Quality::Published { change, .. } if (change - 0.0282).abs() < 1e-4), "{mix:?}");
        // Qwen has no row: INT4-g128 has t = 0.111, so 2.9 % to 14.5 %.
        let Quality::Estimated(change) = of("qwen2.5-7b", "w4a16") else { panic!() };
        assert!((change.low - 0.0287).abs() < 0.0015 && (change.high - 0.145).abs() < 0.007, "{change:?}");
        assert_eq!(of("qwen2.5-7b", "int2"), Quality::Unknown);
        assert_eq!(of("qwen2.5-7b", "int8"), Quality::Unknown);
        assert!(matches!(of("llama-3-8b", "int8"), Quality::Published { .. }));
    }

    #[test]
    fn what_was_released_loses_nothing() {
        assert_eq!(of("gpt-oss-20b", "bf16,experts=mxfp4a16").quality, Quality::Released);
        assert!(matches!(of("gpt-oss-20b", "mxfp4a16").quality, Quality::Estimated(_)));
        assert!(matches!(of("gpt-oss-20b", "bf16,experts=mxfp4").quality, Quality::Estimated(_)));
        assert_eq!(of("deepseek-v3", "fp8").quality, Quality::Released);
        assert!(matches!(of("deepseek-v3", "w4a16").quality, Quality::Estimated(_)));
    }

    #[test]
    fn a_mixture_loses_no_less_than_its_published_part() {
        // MXFP8 costs Llama 3.1 8B 3.7 % where Gaussian numbers would make it 1.6; 0.807 of the layers' weights are in the
        // feed-forward part (3 * 4096 * 14336 of that and 4096 * (2 * 4096 + 2 * 1024)).
        let Quality::Estimated(change) = of("llama-3.1-8b", "bf16,ffn=mxfp8").quality else { panic!() };
        let share = 3.0 * 14336.0 / (3.0 * 14336.0 + 2.0 * 4096.0 + 2.0 * 1024.0);
        assert!((change.high - share * 0.037).abs() < 1e-3, "{change:?}");
    }

    #[test]
    fn roles_count_by_their_shares() {
        // Experts are most of a mixture, so that attention costs little beside them.
        let high = |plan| of("mixtral-8x7b", plan).quality.worst().unwrap();
        assert!(high("bf16,experts=w4a16") > 0.9 * high("w4a16"));
        assert!(high("w4a16,experts=bf16") < 0.05 * high("w4a16"));
        // A head counts beside the layers.
        assert!(high("w4a16,head=q8_0") > high("w4a16"));
    }

    #[test]
    fn caches_cost_what_was_published() {
        let cache = |model, plan| of(model, plan).cache_quality;
        assert_eq!(cache("llama-3-8b", "bf16"), None);
        // llama.cpp: 6.234369 after 6.232196; AMD: 7.2752 after 7.2169, weights and activations counted too.
        let q8_0 = cache("llama-3-8b", "q4_k_m,kv=q8_0").unwrap().worst().unwrap();
        assert!((q8_0 - 0.00035).abs() < 1e-5, "{q8_0}");
        let fp8 = cache("llama-3.1-8b", "fp8,kv=fp8-e4m3").unwrap().worst().unwrap();
        assert!((fp8 - 0.0081).abs() < 1e-4, "{fp8}");
        assert!(
            matches!(cache("qwen2.5-7b", "fp8,kv=fp8-e4m3"), Some(Quality::Elsewhere { change, .. }) if change > 0.02)
        );
        // Four bits ruin one model and cost another two percent: nothing is said of a third.
        assert!(cache("qwen3-0.6b", "bf16,kv=q4_0").unwrap().worst().unwrap() > 2.0);
        assert_eq!(cache("llama-3-8b", "bf16,kv=q4_0"), Some(Quality::Unknown));
        assert_eq!(cache("gpt-oss-20b", "bf16,kv=q8_0"), Some(Quality::Unknown));
        assert_eq!(cache("llama-3-8b", "bf16,kv=fp8-e5m2"), Some(Quality::Unknown));
        assert_eq!(of("llama-3-8b", "bf16,kv=fp8-e5m2").worst, None);
    }
}
