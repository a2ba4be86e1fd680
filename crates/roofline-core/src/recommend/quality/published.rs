//! Perplexities that somebody measured and published.

use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Quality;
use crate::{Format, Model, Plan, recommend::runtime::bare};

/// A file of them, or all files together.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tables {
    #[serde(default)]
    measured: Vec<Published>,
    #[serde(default)]
    cached: Vec<Cached>,
}

/// A published pair of perplexities.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "PublishedPerplexity")]
pub struct Published {
    /// The model, by its key.
    pub model: String,
    /// What was stored how.
    pub plan: String,
    /// The algorithm that chose the codes.
    pub method: String,
    /// What was measured.
    pub metric: String,
    /// The perplexity at 16 bit.
    pub before: f64,
    /// The perplexity of the quantized model.
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

/// A published pair of perplexities with a narrow cache.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "PublishedCachePerplexity")]
pub struct Cached {
    /// The model, by its key.
    pub model: String,
    /// What the weights were stored in.
    pub plan: String,
    /// The format of the cache.
    pub cache: Format,
    /// What was measured.
    pub metric: String,
    /// The perplexity with a cache of 16 bit.
    pub before: f64,
    /// The perplexity with the narrow cache.
    pub after: f64,
    /// Who says so.
    pub source: String,
}

impl Cached {
    /// The share by which it rose.
    pub fn change(&self) -> f64 {
        self.after / self.before - 1.0
    }
}

static FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/quality.rs"));

static TABLES: LazyLock<Tables> = LazyLock::new(|| {
    let mut all = Tables::default();
    for table in FILES.iter().flat_map(|(_, text)| toml::from_str::<Tables>(text)) {
        all.measured.extend(table.measured);
        all.cached.extend(table.cached);
    }
    all
});

/// What was measured with narrow caches.
pub(super) fn caches() -> &'static [Cached] {
    &TABLES.cached
}

/// What is published for a model in a plan, by every algorithm.
pub fn published(model: &Model, plan: &Plan) -> Vec<&'static Published> {
    let text = bare(plan);
    TABLES.measured.iter().filter(|row| row.model == model.key && row.plan == text).collect()
}

/// What is published for a model in one plan, by the method that needs no data.
pub(super) fn without_data(model: &Model, plan: &str) -> Option<Quality> {
    let known = |row: &&Published| row.model == model.key && row.plan == plan && row.method == "rtn";
    TABLES.measured.iter().find(known).map(|row| Quality::Published {
        change: row.change(),
        method: row.method.clone(),
        source: row.source.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_read_and_every_row_speaks_of_a_model_and_a_plan() {
        for (name, text) in FILES {
            assert!(toml::from_str::<Tables>(text).is_ok(), "{name}");
        }
        // Recipes of llama.cpp that no plan has yet may stand in the table; nothing else may.
        let recipes = ["q5_1", "q4_1", "q3_k_l", "q3_k_m", "q3_k_s", "q2_k"];
        for row in &TABLES.measured {
            assert!(Model::find(&row.model).is_ok(), "{}", row.model);
            match row.plan.parse::<Plan>() {
                Ok(plan) => assert_eq!(plan.to_string(), row.plan),
                Err(error) => assert!(recipes.contains(&row.plan.as_str()), "{error}"),
            }
            assert!(row.after > row.before && !row.source.is_empty(), "{row:?}");
        }
        for row in &TABLES.cached {
            assert!(Model::find(&row.model).is_ok() && row.plan.parse::<Plan>().is_ok(), "{row:?}");
            assert!(row.cache.nominal_bits() < 16 && row.after > row.before && !row.source.is_empty(), "{row:?}");
        }
    }

    #[test]
    fn wider_recipes_of_one_table_lose_less() {
        let change = |model: &str, plan: &str| {
            TABLES.measured.iter().find(|row| row.model == model && row.plan == plan).unwrap().change()
        };
        let order = ["q6_k", "q5_k_m", "q5_k_s", "q4_k_m", "q4_k_s", "q4_0", "q3_k_m", "q3_k_s", "q2_k"];
        for model in ["llama-3-8b", "llama-2-70b"] {
            assert!(order.iter().map(|plan| change(model, plan)).is_sorted(), "{model}");
        }
    }
}
