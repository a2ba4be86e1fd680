//! How many parameters a model has, and how many of them a token uses.

use super::{AttentionLayer, FeedForward, Model};
use crate::Dim;

/// `n` rows of `k` weights, and a bias.
fn linear(n: u128, k: u128, bias: bool) -> u128 {
    n * k + if bias { n } else { 0 }
}

impl Model {
    /// All parameters.
    pub fn parameters(&self) -> u128 {
        self.count(FeedForward::parameters)
    }

    /// Those that one token uses: of a mixture of experts, the active ones.
    pub fn active_parameters(&self) -> u128 {
        self.count(FeedForward::active_parameters)
    }

    fn count(&self, feed_forward: impl Fn(&FeedForward, Dim) -> u128) -> u128 {
        let hidden = self.hidden.wide();
        let norm = hidden * if self.norms.bias { 2 } else { 1 };
        let layers = self.layers.iter().map(|layer| {
            let norms = u128::from(self.norms.per_layer) * norm;
            let body = layer.attention.parameters(self.hidden) + feed_forward(&layer.feed_forward, self.hidden);
            u128::from(layer.count) * (norms + body)
        });
        let embedding = self.vocabulary.wide() * hidden;
        let head = if self.tied { 0 } else { linear(self.vocabulary.wide(), hidden, self.head_bias) };
        let positions = self.positions.map_or(0, |positions| positions.wide() * hidden);
        embedding + positions + head + norm + layers.sum::<u128>()
    }
}

impl AttentionLayer {
    pub(super) fn parameters(&self, hidden: Dim) -> u128 {
        let hidden = hidden.wide();
        match *self {
            Self::Grouped { heads, kv_heads, head_dim, input_bias, output_bias, query_key_norm, sinks, .. } => {
                let (query, key) = (heads.wide() * head_dim.wide(), kv_heads.wide() * head_dim.wide());
                let norms = if query_key_norm { 2 * head_dim.wide() } else { 0 };
                let sinks = if sinks { heads.wide() } else { 0 };
                linear(query, hidden, input_bias)
                    + 2 * linear(key, hidden, input_bias)
                    + linear(hidden, query, output_bias)
                    + norms
                    + sinks
            }
            Self::Latent { heads, query_rank, rank, plain_dim, rotary_dim, value_dim } => {
                let queries = heads.wide() * (plain_dim.wide() + rotary_dim.wide());
                let query = match query_rank {
                    Some(rank) => rank.wide() * hidden + rank.wide() + queries * rank.wide(),
                    None => queries * hidden,
                };
                let compress = hidden * (rank.wide() + rotary_dim.wide()) + rank.wide();
                let expand = rank.wide() * heads.wide() * (plain_dim.wide() + value_dim.wide());
                query + compress + expand + heads.wide() * value_dim.wide() * hidden
            }
        }
    }
}

impl FeedForward {
    fn expert(hidden: u128, inner: u128, gated: bool, bias: bool) -> u128 {
        let up = linear(inner, hidden, bias) * if gated { 2 } else { 1 };
        up + linear(hidden, inner, bias)
    }

    pub(super) fn parameters(&self, hidden: Dim) -> u128 {
        self.with_experts(hidden, |experts, _| experts)
    }

    fn active_parameters(&self, hidden: Dim) -> u128 {
        self.with_experts(hidden, |_, active| active)
    }

    fn with_experts(&self, hidden: Dim, counted: impl Fn(u128, u128) -> u128) -> u128 {
        let hidden = hidden.wide();
        match *self {
            Self::Dense { inner, gated, bias } => Self::expert(hidden, inner.wide(), gated, bias),
            Self::Experts { experts, active, inner, shared, gated, bias, router_bias } => {
                let router = linear(experts.wide(), hidden, router_bias);
                let shared = shared.map_or(0, |shared| Self::expert(hidden, shared.wide(), gated, bias));
                router
                    + shared
                    + counted(experts.wide(), active.wide()) * Self::expert(hidden, inner.wide(), gated, bias)
            }
        }
    }
}
