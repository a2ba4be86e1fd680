//! What a text said of both models: how well each predicts, how far apart they are, and where that comes from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::evaluate::{self, Evaluated};

/// How well one of them predicts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PipelineQuality")]
pub struct Quality {
    /// With its 95 % interval.
    pub perplexity: f64,
    pub perplexity_low: Option<f64>,
    pub perplexity_high: Option<f64>,
    /// What llama.cpp's `perplexity` says of it.
    pub llama_cpp_perplexity: Option<f64>,
    /// How far predictions are from the original's, in nats per token; none of the original itself.
    pub kl_divergence: Option<f64>,
    pub kl_divergence_low: Option<f64>,
    pub kl_divergence_high: Option<f64>,
    pub kl_divergence_p99: Option<f64>,
    /// The share of tokens for which both think the same most probable; none of the original itself.
    pub top1_agreement: Option<f64>,
    pub top1_agreement_low: Option<f64>,
    pub top1_agreement_high: Option<f64>,
}

/// The text, and what the new model lost on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PipelineEvaluation")]
pub struct Evaluation {
    pub text: String,
    /// Tokens that were predicted.
    pub tokens: usize,
    pub window: usize,
    pub stride: usize,
    pub windows: usize,
    /// The new perplexity over the old one, with its 95 % interval.
    pub ratio: Option<f64>,
    pub ratio_low: Option<f64>,
    pub ratio_high: Option<f64>,
    pub layers: Vec<LayerLoss>,
    pub positions: Vec<PositionLoss>,
    pub worst: Vec<TokenLoss>,
    pub seconds: f64,
}

/// What a layer hands on, beside what the original's does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PipelineLayer")]
pub struct LayerLoss {
    pub layer: usize,
    /// Signal to noise in decibel; none without noise.
    pub snr_db: Option<f64>,
}

/// A part of the positions of a window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PipelinePosition")]
pub struct PositionLoss {
    pub from: usize,
    pub to: usize,
    pub nll: f64,
    pub kl_divergence: Option<f64>,
}

/// A token that both predict differently.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PipelineToken")]
pub struct TokenLoss {
    /// The text before it, and its own.
    pub before: String,
    pub token: String,
    pub kl_divergence: f64,
    pub probability: f64,
    pub original_probability: f64,
    /// What each thought most probable.
    pub top: String,
    pub original_top: String,
}

impl From<&Evaluated> for Quality {
    fn from(told: &Evaluated) -> Self {
        Self {
            perplexity: told.perplexity,
            perplexity_low: told.perplexity_low,
            perplexity_high: told.perplexity_high,
            llama_cpp_perplexity: told.llama_cpp_perplexity,
            kl_divergence: told.kl_divergence,
            kl_divergence_low: told.kl_divergence_low,
            kl_divergence_high: told.kl_divergence_high,
            kl_divergence_p99: told.kl_divergence_p99,
            top1_agreement: told.top1_agreement,
            top1_agreement_low: told.top1_agreement_low,
            top1_agreement_high: told.top1_agreement_high,
        }
    }
}

impl From<evaluate::Answer> for Evaluation {
    fn from(told: evaluate::Answer) -> Self {
        let own = told.evaluated;
        let layer = |one: evaluate::LayerError| LayerLoss { layer: one.layer, snr_db: one.snr_db };
        let position = |one: evaluate::PositionError| PositionLoss {
            from: one.from,
            to: one.to,
            nll: one.nll,
            kl_divergence: one.kl_divergence,
        };
        let token = |one: evaluate::TokenError| TokenLoss {
            before: one.before,
            token: one.token,
            kl_divergence: one.kl_divergence,
            probability: one.probability,
            original_probability: one.original_probability,
            top: one.top,
            original_top: one.original_top,
        };
        Self {
            text: told.text.name,
            tokens: own.tokens,
            window: told.window,
            stride: told.stride,
            windows: told.windows,
            ratio: own.ratio,
            ratio_low: own.ratio_low,
            ratio_high: own.ratio_high,
            layers: own.layers.into_iter().map(layer).collect(),
            positions: own.positions.into_iter().map(position).collect(),
            worst: own.worst.into_iter().map(token).collect(),
            seconds: own.seconds,
        }
    }
}
