//! Which format for one product, in short: the fastest, or on a small device the smallest.

use roofline_core::{
    Dim, Plan,
    predict::Tier,
    recommend::{RankedPrecision, RecommendationResult},
    units::Bytes,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::torchao::mapped;
use crate::{
    Context, Error, Note, Result,
    recommend::{self, Answer, Product},
    request::Phase,
};

/// A product on a device.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct Quantization {
    /// A device of the registry
    pub hardware: String,
    /// Rows of the input; 1 in decode and 2048 in prefill when left out
    pub m: Option<Dim>,
    /// Outputs
    #[serde(default = "side")]
    pub n: Dim,
    /// Inputs
    #[serde(default = "side")]
    pub k: Dim,
    /// One token, or a prompt of 2048
    pub phase: Option<Phase>,
    /// Memory of the device; with 8 GB or less the smallest format wins
    pub memory_limit_gb: Option<f64>,
    /// Which times are compared: the roofline's, or those to expect
    pub tier: Option<Tier>,
}

/// What to take, and why.
#[derive(Serialize, JsonSchema)]
pub struct QuantizationAnswer {
    #[serde(flatten)]
    pub recommendation: RecommendationResult,
    /// What `predict`, `quantize` and `evaluate` take.
    pub plan: Plan,
    /// What torchao has for it: "INT4", "INT8" or nothing.
    pub torchao: Option<&'static str>,
    pub device: String,
    pub device_name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

fn side() -> Dim {
    Dim::new("side", 4096).unwrap_or(Dim::ONE)
}

/// Rows of a prompt nobody described.
const PROMPT: u64 = 2048;
/// Devices of so little memory hold larger models rather than run faster.
const SMALL_GB: f64 = 8.0;
/// The largest rise of the perplexity that a choice may risk.
const LOSS: f64 = 0.15;

impl Quantization {
    pub(super) fn answer(&self, context: &Context) -> Result<QuantizationAnswer> {
        let usual = if self.phase == Some(Phase::Prefill) { PROMPT } else { 1 };
        let m = self.m.map_or_else(|| Dim::new("m", usual), Ok)?;
        let memory_limit = match self.memory_limit_gb {
            Some(limit) if !(limit.is_finite() && limit > 0.0) => {
                return Err(Error::request(format!("{limit} GB are no memory"), "give more than nothing"));
            }
            limit => limit.map(|limit| Bytes::new(limit * 1e9)),
        };
        let place = recommend::Place {
            on: Some(self.hardware.clone()),
            tier: Some(self.tier.unwrap_or(Tier::Ideal)),
            memory_limit,
            ..recommend::Place::default()
        };
        let request = recommend::Request::Gemm(Product { m, n: self.n, k: self.k, place });
        let Answer::Product(advice) = recommend::recommend(context, &request)? else {
            return Err(Error::request("a product has no advice", ""));
        };
        let (device, device_name, advice) = (advice.device, advice.device_name, advice.advice);
        let smallest = advice.ranked.iter().filter(|row| may(row)).min_by(|a, b| size(a).total_cmp(&size(b)));
        let small = self.memory_limit_gb.is_some_and(|limit| limit <= SMALL_GB);
        let (recommendation, plan) = match smallest.filter(|row| small && row.plan != advice.plan) {
            Some(row) => (smallest_of(row, &advice.recommendation), row.plan.clone()),
            None => (advice.recommendation, advice.plan),
        };
        let torchao = mapped(&recommendation.precision).0;
        Ok(QuantizationAnswer { recommendation, plan, torchao, device, device_name, notes: context.notes() })
    }
}

fn size(row: &RankedPrecision) -> f64 {
    row.weights.value()
}

/// Whether a precision may be chosen for its size alone.
fn may(row: &RankedPrecision) -> bool {
    let bits = mapped(&row.precision).1;
    row.loss().is_some_and(|loss| loss <= LOSS) && bits.is_some_and(|bits| bits >= 4)
}

/// The smallest instead of the fastest.
fn smallest_of(row: &RankedPrecision, fastest: &RecommendationResult) -> RecommendationResult {
    let (speedup, saved) = (row.ratios.speedup.unwrap_or(1.0), row.memory_savings_pct);
    let reason = format!(
        "{SMALL_GB} GB or less: {} is the smallest, its weights {saved:.0} % smaller and {speedup:.1}x as fast; {} would be \
         {:.1}x as fast",
        row.precision, fastest.precision, fastest.predicted_speedup
    );
    RecommendationResult {
        precision: row.precision.clone(),
        method: row.method,
        reason,
        predicted_speedup: speedup,
        memory_bound: fastest.memory_bound,
        memory_savings_pct: saved,
    }
}
