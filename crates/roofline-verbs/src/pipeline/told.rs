//! What each step found. All of it is kept in the state, so that a run that goes on tells the same.

use std::path::PathBuf;

use roofline_core::measurement::Phase;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::lost::{Evaluation, Quality};
use crate::measure::{MeasuredPass, PassClock};

/// Everything that steps found so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "PipelineFound")]
pub struct Found {
    pub recommendation: Option<Recommended>,
    pub predicted: Forecasts,
    pub quantized: Option<Quantized>,
    /// The original.
    pub before: Option<Side>,
    /// What was written.
    pub after: Option<Side>,
    /// What the text said of both.
    pub evaluation: Option<Evaluation>,
    /// This machine: its key and its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_on: Option<(String, String)>,
    /// What the caches of its last level hold together, where the system says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor_cache_bytes: Option<u64>,
}

/// The plan, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PipelineRecommendation")]
pub struct Recommended {
    /// The plan, as every verb takes it.
    pub precision: String,
    /// How codes are chosen.
    pub method: String,
    pub reason: String,
    /// How many times as fast as 16 bit on the device that it is for, by theory.
    pub predicted_speedup: Option<f64>,
    /// What the model takes there: weights, cache and tensors in flight.
    pub predicted_memory_bytes: Option<u64>,
    /// The rise of the perplexity that has to be reckoned with, as a share; none where it is unknown.
    pub loss: Option<f64>,
    /// The same in words, with who says so.
    pub quality: Option<String>,
    pub tier: Option<String>,
    pub basis: Option<String>,
    /// Whether whoever asked named the plan.
    pub given: bool,
    /// Whether it is the original itself: no narrower plan is worth its loss.
    pub keeps_original: bool,
    /// The best of the others.
    pub alternatives: Vec<Alternative>,
    pub warnings: Vec<String>,
}

/// A plan that was not chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PipelineAlternative")]
pub struct Alternative {
    pub precision: String,
    pub predicted_speedup: Option<f64>,
    pub predicted_memory_bytes: u64,
    pub quality: String,
    pub why_not: String,
}

/// What theory says: of the device that the plan is for, before anything ran, and of the passes that ran here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "PipelineForecasts")]
pub struct Forecasts {
    pub on: Option<PredictedPlace>,
    /// With the weights as they are stored and the prompt as it was cut: what measurements are held against.
    pub here: Option<PredictedPlace>,
}

/// What theory says of one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PipelinePrediction")]
pub struct PredictedPlace {
    pub device: String,
    pub device_name: String,
    pub tier: String,
    /// What the expected times stand on.
    pub basis: String,
    pub before: Expected,
    /// None where the device cannot run the plan.
    pub after: Option<Expected>,
    /// How many times as fast in the phase that was asked for.
    pub speedup: Option<f64>,
}

/// What theory says of one model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PipelineExpected")]
pub struct Expected {
    pub precision: String,
    pub ttft_us: f64,
    pub tpot_us: Option<f64>,
    pub memory_bytes: u64,
    /// Whether it fits; none where nobody said how much memory there is.
    pub fits: Option<bool>,
}

/// The checkpoint that was written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PipelineQuantized")]
pub struct Quantized {
    pub checkpoint: PathBuf,
    pub plan: String,
    pub layout: String,
    pub method: String,
    pub bytes_before: u64,
    pub bytes_after: u64,
    /// Stored bits per quantized weight, scales and all.
    pub bits_per_weight: f64,
    /// `||W - Q(W)|| / ||W||`, root mean square over the products of the layers.
    pub relative_error: f64,
    pub weights: Vec<WeightLoss>,
    pub notes: Vec<String>,
}

/// What became of a weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PipelineWeight")]
pub struct WeightLoss {
    pub name: String,
    pub role: String,
    pub layer: Option<u64>,
    pub scheme: String,
    /// Signal to noise in decibel; none without noise.
    pub snr_db: Option<f64>,
}

/// One of the two models, measured here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PipelineSide")]
pub struct Side {
    pub checkpoint: PathBuf,
    #[serde(flatten)]
    pub speed: Speed,
    /// None before a text was evaluated.
    #[serde(flatten)]
    pub quality: Option<Quality>,
}

/// How fast it ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PipelineSpeed")]
pub struct Speed {
    /// How most of the weights are stored, the numbers between kernels, and those of the cache.
    pub format: String,
    pub values: String,
    pub kv: String,
    /// Whose clock the times are by; none in states that are older than the question.
    #[serde(default)]
    pub clock: Option<PassClock>,
    pub threads: usize,
    pub prompt: u64,
    pub generated: usize,
    pub load_s: f64,
    pub ttft_us: f64,
    pub tpot_us: Option<f64>,
    pub tpot_p95_us: Option<f64>,
    pub tokens_per_s: Option<f64>,
    pub prefill_tokens_per_s: f64,
    /// Mean power of a GPU while tokens were generated, and tokens over the energy; none where it was not watched.
    #[serde(default)]
    pub decode_power_w: Option<f64>,
    #[serde(default)]
    pub decode_tokens_per_joule: Option<f64>,
    pub peak_memory_bytes: Option<u64>,
    pub weights_bytes: u64,
    pub cache_bytes: u64,
    /// What theory says of this pass on this machine; none where other threads ran than it speaks of.
    pub tier: String,
    pub basis: Option<String>,
    pub predicted_ttft_us: Option<f64>,
    pub ideal_ttft_us: Option<f64>,
    /// `|predicted - measured| / predicted`.
    pub ttft_error_pct: Option<f64>,
    pub predicted_tpot_us: Option<f64>,
    pub ideal_tpot_us: Option<f64>,
    pub tpot_error_pct: Option<f64>,
    pub predicted_memory_bytes: Option<u64>,
    /// Where the time went.
    pub sites: Vec<MeasuredSite>,
}

/// The kernels of one site in one pass, together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PipelineSite")]
pub struct MeasuredSite {
    pub phase: Phase,
    pub site: String,
    pub measured_time_us: f64,
    pub predicted_time_us: Option<f64>,
}

impl From<MeasuredPass> for Speed {
    fn from(pass: MeasuredPass) -> Self {
        let whole = |bytes: roofline_core::units::Bytes| bytes.value() as u64;
        let site = |one: crate::measure::MeasuredOperator| MeasuredSite {
            phase: one.phase,
            site: one.site.to_owned(),
            measured_time_us: one.measured_time_us,
            predicted_time_us: one.predicted_time_us,
        };
        Self {
            format: pass.precision,
            values: pass.values,
            kv: pass.kv,
            clock: Some(pass.clock),
            threads: pass.threads,
            prompt: pass.prompt,
            generated: pass.generated,
            load_s: pass.load_s,
            ttft_us: pass.ttft_us,
            tpot_us: pass.tpot_us,
            tpot_p95_us: pass.tpot_p95_us,
            tokens_per_s: pass.tokens_per_s,
            prefill_tokens_per_s: pass.prefill_tokens_per_s,
            decode_power_w: pass.decode_power_w,
            decode_tokens_per_joule: pass.decode_tokens_per_joule,
            peak_memory_bytes: pass.peak_memory_bytes.map(whole),
            weights_bytes: whole(pass.weights_bytes),
            cache_bytes: whole(pass.cache_bytes),
            tier: pass.tier.to_string(),
            basis: pass.basis.map(|basis| basis.name().to_owned()),
            predicted_ttft_us: pass.predicted_ttft_us,
            ideal_ttft_us: pass.ideal_ttft_us,
            ttft_error_pct: pass.ttft_error_pct,
            predicted_tpot_us: pass.predicted_tpot_us,
            ideal_tpot_us: pass.ideal_tpot_us,
            tpot_error_pct: pass.tpot_error_pct,
            predicted_memory_bytes: pass.predicted_memory_bytes.map(whole),
            sites: pass.operators.into_iter().map(site).collect(),
        }
    }
}

impl Speed {
    /// The time of a phase, and what theory says of it.
    pub(super) fn time(&self, phase: Phase) -> (Option<f64>, Option<f64>) {
        match phase {
            Phase::Prefill => (Some(self.ttft_us), self.predicted_ttft_us),
            Phase::Decode => (self.tpot_us, self.predicted_tpot_us),
        }
    }

    /// What theory says of it; none where it says nothing.
    pub(super) fn expected(&self) -> Option<Expected> {
        Some(Expected {
            precision: self.format.clone(),
            ttft_us: self.predicted_ttft_us?,
            tpot_us: self.predicted_tpot_us,
            memory_bytes: self.predicted_memory_bytes?,
            fits: None,
        })
    }
}

/// A step, and how it went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PipelineStep")]
pub struct Step {
    pub name: StepName,
    pub state: StepState,
    /// How long it took, or would take; none where nobody knows.
    pub seconds: Option<f64>,
    /// What it did, or would do.
    pub words: String,
}

/// The steps, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "PipelineStepName")]
pub enum StepName {
    Inspect,
    Recommend,
    Quantize,
    MeasureBefore,
    MeasureAfter,
    Evaluate,
    Compare,
}

impl StepName {
    /// What people call it.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Inspect => "inspect",
            Self::Recommend => "recommend",
            Self::Quantize => "quantize",
            Self::MeasureBefore => "measure before",
            Self::MeasureAfter => "measure after",
            Self::Evaluate => "evaluate",
            Self::Compare => "compare",
        }
    }
}

/// How a step went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "PipelineStepState")]
pub enum StepState {
    Done,
    /// An earlier run did it.
    Reused,
    Failed,
    /// It was not come to.
    Planned,
    /// There is nothing to do.
    Skipped,
}

impl StepState {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Reused => "reused",
            Self::Failed => "failed",
            Self::Planned => "planned",
            Self::Skipped => "skipped",
        }
    }
}

/// Why it did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PipelineError")]
pub struct Failed {
    pub step: StepName,
    pub kind: String,
    pub message: String,
    pub hint: Option<String>,
    /// What to type to go on.
    pub go_on: String,
    /// Whether whoever asked can ask otherwise; else something outside was in the way.
    #[serde(skip)]
    pub is_input: bool,
    /// Whether somebody ended it.
    #[serde(skip)]
    pub is_cancelled: bool,
}
