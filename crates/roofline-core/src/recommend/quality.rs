//! What a plan costs in quality: published where somebody measured it, else estimated from the formats, else unknown.

use std::{collections::HashMap, sync::OnceLock};

use serde::{Deserialize, Serialize};

use crate::{
    Format, Model, Plan,
    format::{Distribution, Element},
    quality::PerplexityChange,
};

/// By how much the perplexity rises, and who says so.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Quality {
    /// 16 bit throughout: nothing is lost.
    Exact,
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
            Self::Exact => Some(0.0),
            Self::Published { change, .. } => Some(*change),
            Self::Estimated(change) => Some(change.high),
            Self::Unknown => None,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    measured: Vec<Measured>,
}

/// A published pair of perplexities.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Measured {
    model: String,
    precision: String,
    method: String,
    #[expect(dead_code, reason = "for whoever reads the file")]
    metric: String,
    before: f64,
    after: f64,
    source: String,
}

fn table() -> &'static [Measured] {
    static TABLE: OnceLock<Vec<Measured>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let text = include_str!("../../data/quality/llama.toml");
        toml::from_str::<File>(text).map(|file| file.measured).unwrap_or_default()
    })
}

/// What is published for a model in one precision throughout, by the method that needs no data.
fn published(model: &Model, precision: &str) -> Option<Quality> {
    let known = |row: &&Measured| row.model == model.key && row.precision == precision && row.method == "rtn";
    table().iter().find(known).map(|row| Quality::Published {
        change: row.after / row.before - 1.0,
        method: row.method.clone(),
        source: row.source.clone(),
    })
}

/// The quality of a plan whose layers have one precision, or two. `name` is that of the one.
pub(super) fn quality(model: &Model, plan: &Plan, name: Option<&str>, feed_forward_share: f64) -> Quality {
    if let Some(found) = name.and_then(|name| published(model, name)) {
        return found;
    }
    let feed_forward = plan.feed_forward.unwrap_or(plan.layers);
    // Activations have outliers, which integers with one scale per token cannot follow: no Gaussian tells what that costs.
    if [plan.layers, feed_forward].iter().any(|precision| precision.activations.element() == Element::Int8) {
        return Quality::Unknown;
    }
    let squared = |weights: Format, activations: Format| squared_error(weights) + squared_error(activations);
    let attention = squared(plan.layers.weights, plan.layers.activations);
    let inner = squared(feed_forward.weights, feed_forward.activations);
    let mean = attention * (1.0 - feed_forward_share) + inner * feed_forward_share;
    let exact = if plan.layers.kv.nominal_bits() < 16 { Quality::Unknown } else { Quality::Exact };
    if mean == 0.0 { exact } else { PerplexityChange::of(mean).map_or(Quality::Unknown, Quality::Estimated) }
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
    use crate::{Registry, precision::PrecisionSpec};

    fn of(model: &str, precision: &str) -> Quality {
        let h200 = Registry::builtin().find("b200").unwrap().into_owned();
        let plan = Plan::model(&precision.parse::<PrecisionSpec>().unwrap(), &h200).unwrap();
        quality(&Model::find(model).unwrap(), &plan, Some(precision), 0.7)
    }

    #[test]
    fn the_table_is_whole_and_its_models_are_known() {
        assert_eq!(table().len(), 13);
        for row in table() {
            assert!(Model::find(&row.model).is_ok(), "{}", row.model);
            assert!(row.precision.parse::<PrecisionSpec>().is_ok() && row.after > row.before, "{row:?}");
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
}
