//! Attention over a KV cache, fused or not.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Dim, Error, Precision, Result, Work,
    format::{Shape, Sizes},
    units::{Bytes, Flops},
};

/// `batch` sequences of `queries` new tokens over `context` cached ones (the new ones included).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Attention {
    /// Sequences.
    pub batch: Dim,
    /// Query heads.
    pub heads: Dim,
    /// Key and value heads: fewer than query heads in grouped-query attention.
    pub kv_heads: Dim,
    /// Features per query and key head.
    pub head_dim: Dim,
    /// Features per value head.
    pub value_dim: Dim,
    /// New tokens per sequence: 1 in decode, the prompt in prefill.
    pub queries: Dim,
    /// Keys per sequence, the new ones included.
    pub context: Dim,
    /// Whether a token sees only itself and what came before.
    pub causal: bool,
    /// How many keys a causal token sees at most, itself included.
    pub window: Option<Dim>,
    /// What the keys and values are read from.
    pub cache: Cache,
}

/// Where keys and values come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "KeyValueSource")]
pub enum Cache {
    /// A cache with both, in its own format.
    Separate,
    /// A cache of compressed vectors that serve as keys and as values, and are read once (latent attention, absorbed).
    Latent,
    /// Keys and values that the layer has just expanded, in the queries' format (latent attention in prefill).
    Expanded,
}

impl Attention {
    /// Refuses head counts that do not divide and a causal mask without room for the queries.
    pub fn checked(self) -> Result<Self> {
        if !self.heads.get().is_multiple_of(self.kv_heads.get()) {
            return Err(Error::Shape(format!(
                "{} query heads cannot share {} KV heads evenly",
                self.heads, self.kv_heads
            )));
        }
        if self.causal && self.queries > self.context {
            return Err(Error::Shape(format!(
                "{} queries do not fit a causal context of {}: the context counts the new tokens too",
                self.queries, self.context
            )));
        }
        Ok(self)
    }

    /// Query-key pairs per head and sequence.
    fn pairs(&self) -> f64 {
        let (queries, context) = (self.queries.float(), self.context.float());
        if self.causal {
            causal_pairs(queries, context, self.window.map_or(context, Dim::float))
        } else {
            queries * context
        }
    }

    /// Keys per sequence that any query sees.
    pub(crate) fn keys(&self) -> u128 {
        let context = self.context.wide();
        self.window
            .filter(|_| self.causal)
            .map_or(context, |window| context.min(window.wide() + self.queries.wide() - 1))
    }

    /// Pairs over all heads and sequences.
    fn all_pairs(&self) -> f64 {
        self.batch.float() * self.heads.float() * self.pairs()
    }

    /// One of the two products: a multiply-add per pair and feature.
    fn product(&self, features: Dim) -> Flops {
        Flops::new(2.0 * self.all_pairs() * features.float())
    }

    /// Queries or outputs: one vector per query head.
    fn query_bytes(&self, features: Dim, precision: &Precision, sizes: Sizes) -> Bytes {
        let rows = self.batch.wide() * self.heads.wide() * self.queries.wide();
        precision.query.bytes(Shape::new(rows, features), sizes)
    }

    /// Keys or values: one vector per KV head and cached token, with their scales.
    fn cache_bytes(&self, features: Dim, precision: &Precision, sizes: Sizes) -> Bytes {
        let format = if self.cache == Cache::Expanded { precision.query } else { precision.kv };
        let rows = self.batch.wide() * self.kv_heads.wide() * self.keys();
        format.bytes(Shape::new(rows, features), sizes)
    }

    /// The cached bytes that the scores and the values read; expanded keys and values are not cached.
    pub(super) fn cache_read(&self, precision: &Precision, sizes: Sizes) -> (Bytes, Bytes) {
        match self.cache {
            Cache::Expanded => (Bytes::ZERO, Bytes::ZERO),
            Cache::Latent => (self.cache_bytes(self.head_dim, precision, sizes), Bytes::ZERO),
            Cache::Separate => {
                let bytes = |features| self.cache_bytes(features, precision, sizes);
                (bytes(self.head_dim), bytes(self.value_dim))
            }
        }
    }

    /// Keys and values that are read, each once.
    pub(crate) fn cached_elements(&self) -> f64 {
        let vectors = (self.batch.wide() * self.kv_heads.wide() * self.keys()) as f64;
        let values = if self.cache == Cache::Latent { 0.0 } else { self.value_dim.float() };
        vectors * (self.head_dim.float() + values)
    }

    /// The score matrix, without what the mask removes.
    fn scores_bytes(&self, precision: &Precision) -> Bytes {
        Bytes::new(self.all_pairs() * f64::from(precision.query.nominal_bits()) / 8.0)
    }

    /// Queries and the cache in, outputs out; the softmax runs on other units in the shadow of the products.
    pub(super) fn fused_work(self, precision: &Precision, sizes: Sizes) -> Work {
        let values = match self.cache {
            Cache::Latent => Bytes::ZERO,
            _ => self.cache_bytes(self.value_dim, precision, sizes),
        };
        Work {
            flops: self.product(self.head_dim) + self.product(self.value_dim),
            read: self.query_bytes(self.head_dim, precision, sizes)
                + self.cache_bytes(self.head_dim, precision, sizes)
                + values,
            write: self.query_bytes(self.value_dim, precision, sizes),
        }
    }

    pub(super) fn scores_work(self, precision: &Precision, sizes: Sizes) -> Work {
        Work {
            flops: self.product(self.head_dim),
            read: self.query_bytes(self.head_dim, precision, sizes) + self.cache_bytes(self.head_dim, precision, sizes),
            write: self.scores_bytes(precision),
        }
    }

    /// Maximum, subtraction, exponential, sum, division: 5 operations per score.
    pub(super) fn softmax_work(self, precision: &Precision) -> Work {
        Work {
            flops: Flops::new(5.0 * self.all_pairs()),
            read: self.scores_bytes(precision),
            write: self.scores_bytes(precision),
        }
    }

    pub(super) fn values_work(self, precision: &Precision, sizes: Sizes) -> Work {
        Work {
            flops: self.product(self.value_dim),
            read: self.scores_bytes(precision) + self.cache_bytes(self.value_dim, precision, sizes),
            write: self.query_bytes(self.value_dim, precision, sizes),
        }
    }
}

/// Query-key pairs of a causal mask: query `i` of `q` sees `c = context - q + i + 1` keys, which sums to
/// `q * context - q(q-1)/2`; with a window it sees `min(c, window)`.
pub(crate) fn causal_pairs(queries: f64, context: f64, window: f64) -> f64 {
    let triangle = queries * context - queries * (queries - 1.0) / 2.0;
    // Beyond the window: the c that exceed it, each by c - window.
    let first = context - queries + 1.0;
    let (low, high) = (first.max(window + 1.0) - window, context - window);
    let outside = if high >= low && high > 0.0 { (low + high) * (high - low + 1.0) / 2.0 } else { 0.0 };
    triangle - outside
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The closed form against counting.
    #[test]
    fn pairs_are_what_counting_gives() {
        let dim = |value| Dim::new("test", value).unwrap();
        for context in 1..=12u64 {
            for queries in 1..=context {
                for window in 1..=14u64 {
                    let one = Dim::ONE;
                    let (queries_dim, context_dim, window_dim) = (dim(queries), dim(context), Some(dim(window)));
                    let attention = Attention {
                        batch: one,
                        heads: one,
                        kv_heads: one,
                        head_dim: one,
                        value_dim: one,
                        queries: queries_dim,
                        context: context_dim,
                        causal: true,
                        window: window_dim,
                        cache: Cache::Separate,
                    };
                    let seen = (0..queries).map(|i| (context - queries + i + 1).min(window));
                    assert_eq!(attention.pairs(), seen.sum::<u64>() as f64, "{context} {queries} {window}");
                    assert_eq!(attention.keys(), u128::from(context.min(window + queries - 1)));
                }
            }
        }
    }
}
