//! What windows add up to.

use std::path::PathBuf;

use roofline_core::units::Bytes;
use roofline_engine::evaluation::{
    BINS, ChunkScore, Differing, Estimate, PositionScore, Spread, WindowScore, keep_worst, ratio,
};
use schemars::JsonSchema;
use serde::Serialize;

/// One model on one text.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct Evaluated {
    pub model: String,
    /// Where its weights are; none where they were made for the evaluation and removed.
    pub checkpoint: Option<PathBuf>,
    /// The plan and the method that it was quantized by here, and how it was written.
    pub plan: Option<String>,
    pub method: Option<String>,
    pub layout: Option<String>,
    /// Whether a checkpoint of the plan can be written: else weights went through its codes and back to 16 bit.
    pub stored: Option<bool>,
    /// How most of the weights are stored.
    pub format: String,
    /// The numbers between kernels, and those of the cache.
    pub values: String,
    pub kv: String,
    pub threads: usize,
    pub weights_bytes: Bytes,
    /// The exponential of `nll`, with its 95 % interval.
    pub perplexity: f64,
    pub perplexity_low: Option<f64>,
    pub perplexity_high: Option<f64>,
    /// What llama.cpp's `perplexity` says with this window, and its own +/-; none where the stride is not half a window.
    pub llama_cpp_perplexity: Option<f64>,
    pub llama_cpp_uncertainty: Option<f64>,
    /// The mean negative log-likelihood, in nats, over so many tokens.
    pub nll: f64,
    pub tokens: usize,
    /// The perplexity over the original's.
    pub ratio: Option<f64>,
    pub ratio_low: Option<f64>,
    pub ratio_high: Option<f64>,
    /// How far predictions are from the original's: nats per token, their mean, what 1 % go above, and the largest.
    pub kl_divergence: Option<f64>,
    pub kl_divergence_low: Option<f64>,
    pub kl_divergence_high: Option<f64>,
    pub kl_divergence_p99: Option<f64>,
    pub kl_divergence_max: Option<f64>,
    /// The share of tokens for which both think the same most probable.
    pub top1_agreement: Option<f64>,
    pub top1_agreement_low: Option<f64>,
    pub top1_agreement_high: Option<f64>,
    /// What each layer hands on, beside what the original's does.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerError>,
    /// Each matrix beside the original's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<WeightError>,
    /// How well it predicts by position in a window.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub positions: Vec<PositionError>,
    /// The tokens that are predicted most differently.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub worst: Vec<TokenError>,
    pub seconds: f64,
}

/// A layer's output.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct LayerError {
    pub layer: usize,
    /// Signal to noise; none without noise.
    pub snr_db: Option<f64>,
}

/// A weight's numbers.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct WeightError {
    pub name: String,
    pub role: &'static str,
    pub layer: Option<u64>,
    /// How it is stored.
    pub format: String,
    pub bits_per_weight: f64,
    /// `||W - Q(W)|| / ||W||`.
    pub relative_error: f64,
    /// Signal to noise; none without noise.
    pub snr_db: Option<f64>,
}

/// A part of the positions.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct PositionError {
    /// The first position, and the first behind the last.
    pub from: usize,
    pub to: usize,
    pub tokens: usize,
    pub nll: f64,
    pub kl_divergence: Option<f64>,
}

/// A token that is predicted differently.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TokenError {
    /// Which token of the text.
    pub position: usize,
    /// The text before it, and its own.
    pub before: String,
    pub token: String,
    pub kl_divergence: f64,
    /// The probability that the model gave it, and that the original gave it.
    pub probability: f64,
    pub original_probability: f64,
    /// What each thought most probable.
    pub top: String,
    pub original_top: String,
}

/// Sums over windows. Of each window only what intervals need is kept, so that a text may be long.
#[derive(Default)]
pub(super) struct Totals {
    windows: Vec<Window>,
    chunk: Option<ChunkScore>,
    original_chunk: Option<ChunkScore>,
    positions: Vec<PositionScore>,
    spread: Spread,
    pub(super) worst: Vec<Differing>,
    layers: Vec<(f64, f64)>,
}

struct Window {
    tokens: usize,
    nll: f64,
    against: Option<Against>,
}

struct Against {
    nll: f64,
    kl: f64,
    agree: usize,
}

impl Totals {
    /// Windows that are done.
    pub(super) fn count(&self) -> usize {
        self.windows.len()
    }

    /// One more window.
    pub(super) fn add(&mut self, score: WindowScore) {
        merge(&mut self.chunk, score.chunk);
        self.positions.resize(BINS, PositionScore::default());
        for (sum, one) in self.positions.iter_mut().zip(&score.positions) {
            sum.tokens += one.tokens;
            sum.nll += one.nll;
            sum.kl += one.kl;
        }
        let against = score.against.map(|against| {
            merge(&mut self.original_chunk, against.chunk);
            self.spread.merge(&against.spread);
            self.worst.extend(against.worst);
            keep_worst(&mut self.worst);
            self.layers.resize(against.layers.len(), (0.0, 0.0));
            for (sum, one) in self.layers.iter_mut().zip(&against.layers) {
                *sum = (sum.0 + one.0, sum.1 + one.1);
            }
            Against { nll: against.nll, kl: against.kl, agree: against.agree }
        });
        self.windows.push(Window { tokens: score.tokens, nll: score.nll, against });
    }

    fn mean(&self, of: impl Fn(&Window) -> Option<f64>) -> Option<Estimate> {
        let sums: Option<Vec<(f64, usize)>> =
            self.windows.iter().map(|window| Some((of(window)?, window.tokens))).collect();
        sums.map(|sums| ratio(&sums))
    }

    /// The model's own figures and, where there is an original, how far it is from it.
    pub(super) fn own(&self, window: usize, into: Evaluated) -> Evaluated {
        let told = self.mean(|one| Some(one.nll)).unwrap_or_default();
        let against = |of: fn(&Against) -> f64| self.mean(move |one| one.against.as_ref().map(of));
        let change = self.mean(|one| one.against.as_ref().map(|against| one.nll - against.nll));
        let (kl, agreement) = (against(|one| one.kl), against(|one| one.agree as f64));
        let exp = |value: Option<f64>| value.map(f64::exp);
        let share = |value: Option<f64>| value.map(|value| value.clamp(0.0, 1.0));
        let layers = self.layers.iter().enumerate();
        Evaluated {
            ratio: exp(change.map(|one| one.value)),
            ratio_low: exp(change.and_then(|one| one.low())),
            ratio_high: exp(change.and_then(|one| one.high())),
            kl_divergence: kl.map(|one| one.value),
            kl_divergence_low: kl.and_then(|one| one.low()).map(|low| low.max(0.0)),
            kl_divergence_high: kl.and_then(|one| one.high()),
            kl_divergence_p99: kl.and_then(|_| self.spread.quantile(0.99)),
            kl_divergence_max: kl.map(|_| self.spread.largest()),
            top1_agreement: agreement.map(|one| one.value),
            top1_agreement_low: share(agreement.and_then(|one| one.low())),
            top1_agreement_high: share(agreement.and_then(|one| one.high())),
            layers: layers.map(|(layer, sums)| LayerError { layer, snr_db: snr(*sums) }).collect(),
            positions: self.positions(window, kl.is_some()),
            ..self.perplexity(told, self.chunk, into)
        }
    }

    /// The original's figures.
    pub(super) fn original(&self, into: Evaluated) -> Evaluated {
        let told = self.mean(|one| one.against.as_ref().map(|against| against.nll)).unwrap_or_default();
        self.perplexity(told, self.original_chunk, into)
    }

    fn perplexity(&self, told: Estimate, chunk: Option<ChunkScore>, into: Evaluated) -> Evaluated {
        let (llama_cpp_perplexity, llama_cpp_uncertainty) = chunk.map(as_llama_cpp).unzip();
        Evaluated {
            perplexity: told.value.exp(),
            perplexity_low: told.low().map(f64::exp),
            perplexity_high: told.high().map(f64::exp),
            llama_cpp_perplexity,
            llama_cpp_uncertainty: llama_cpp_uncertainty.flatten(),
            nll: told.value,
            tokens: self.windows.iter().map(|window| window.tokens).sum(),
            ..into
        }
    }

    fn positions(&self, window: usize, pair: bool) -> Vec<PositionError> {
        let edge = |bin: usize| (bin * window).div_ceil(BINS);
        let bins = self.positions.iter().enumerate().filter(|(_, sum)| sum.tokens > 0);
        let told = bins.map(|(bin, sum)| PositionError {
            from: edge(bin),
            to: edge(bin + 1),
            tokens: sum.tokens,
            nll: sum.nll / sum.tokens as f64,
            kl_divergence: pair.then(|| sum.kl / sum.tokens as f64),
        });
        told.collect()
    }
}

fn merge(sum: &mut Option<ChunkScore>, one: Option<ChunkScore>) {
    if let Some(one) = one {
        let sum = sum.get_or_insert_default();
        sum.tokens += one.tokens;
        sum.nll += one.nll;
        sum.squares += one.squares;
    }
}

/// The perplexity of chunks and its standard error, by llama.cpp's formula: tokens are taken to be independent.
fn as_llama_cpp(sums: ChunkScore) -> (f64, Option<f64>) {
    let count = sums.tokens as f64;
    let mean = sums.nll / count;
    let variance = sums.squares / count - mean * mean;
    let uncertainty = (sums.tokens > 1 && variance > 0.0).then(|| mean.exp() * (variance / (count - 1.0)).sqrt());
    (mean.exp(), uncertainty)
}

/// Signal to noise in decibel, of the power of both.
fn snr((power, noise): (f64, f64)) -> Option<f64> {
    (power > 0.0 && noise > 0.0).then(|| 10.0 * (power / noise).log10())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two windows of two tokens: 1 + 3 and 2 + 2 nats. The mean is 2, and windows agree on it: the interval is a point.
    /// llama.cpp's formula has tokens 3 and 2: mean 2.5, variance 0.25, standard error exp(2.5) * sqrt(0.25 / 1).
    #[test]
    fn sums_of_two_windows() {
        let window = |index, nll, chunk: Option<(f64, f64)>| WindowScore {
            index,
            tokens: 2,
            nll,
            chunk: chunk.map(|(nll, squares)| ChunkScore { tokens: 2, nll, squares }),
            ..WindowScore::default()
        };
        let mut totals = Totals::default();
        totals.add(window(0, 4.0, Some((5.0, 13.0))));
        totals.add(window(1, 4.0, None));
        let told = totals.own(16, Evaluated::default());
        assert!((told.perplexity - 2f64.exp()).abs() < 1e-12 && told.tokens == 4);
        assert_eq!((told.perplexity_low, told.perplexity_high), (Some(told.perplexity), Some(told.perplexity)));
        assert!((told.llama_cpp_perplexity.unwrap() - 2.5f64.exp()).abs() < 1e-12);
        assert!((told.llama_cpp_uncertainty.unwrap() - 2.5f64.exp() * 0.5).abs() < 1e-12);
        assert_eq!((told.ratio, told.kl_divergence, told.top1_agreement), (None, None, None));
    }

    #[test]
    fn decibels() {
        assert!((snr((25.0, 1.25)).unwrap() - 13.0103).abs() < 1e-4);
        assert_eq!(snr((1.0, 0.0)), None);
    }
}
