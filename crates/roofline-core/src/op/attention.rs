//! Attention over a KV cache, fused or not.

use serde::Serialize;

use crate::{
    Dim, Error, Precision, Result, Work,
    format::{Shape, Sizes},
    units::{Bytes, Flops},
};

/// `batch` sequences of `queries` new tokens over `context` cached ones (the new ones included).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Attention {
    /// Sequences.
    pub batch: Dim,
    /// Query heads.
    pub heads: Dim,
    /// Key and value heads: fewer than query heads in grouped-query attention.
    pub kv_heads: Dim,
    /// Features per head.
    pub head_dim: Dim,
    /// New tokens per sequence: 1 in decode, the prompt in prefill.
    pub queries: Dim,
    /// Keys per sequence, the new ones included.
    pub context: Dim,
    /// Whether a token sees only itself and what came before.
    pub causal: bool,
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

    /// Query-key pairs per head and sequence. Causal: query `i` of `q` sees `context - q + i + 1` keys, which sums to
    /// `q * context - q(q-1)/2`.
    fn pairs(&self) -> f64 {
        let (queries, context) = (self.queries.float(), self.context.float());
        let masked = if self.causal { queries * (queries - 1.0) / 2.0 } else { 0.0 };
        queries * context - masked
    }

    /// Pairs over all heads and sequences.
    fn all_pairs(&self) -> f64 {
        self.batch.float() * self.heads.float() * self.pairs()
    }

    /// One of the two products: a multiply-add per pair and feature.
    fn product(&self) -> Flops {
        Flops::new(2.0 * self.all_pairs() * self.head_dim.float())
    }

    /// Queries, or outputs: one vector per query head.
    fn queries_bytes(&self, precision: &Precision, sizes: Sizes) -> Bytes {
        let rows = self.batch.wide() * self.heads.wide() * self.queries.wide();
        precision.query.bytes(Shape::new(rows, self.head_dim), sizes)
    }

    /// Keys, or values: one vector per KV head and cached token, with their scales.
    fn cache_bytes(&self, precision: &Precision, sizes: Sizes) -> Bytes {
        let rows = self.batch.wide() * self.kv_heads.wide() * self.context.wide();
        precision.kv.bytes(Shape::new(rows, self.head_dim), sizes)
    }

    /// The score matrix, without what the mask removes.
    fn scores_bytes(&self, precision: &Precision) -> Bytes {
        Bytes::new(self.all_pairs() * f64::from(precision.query.nominal_bits()) / 8.0)
    }

    /// Queries and the cache in, outputs out; the softmax runs on other units in the shadow of the products.
    pub(super) fn fused_work(self, precision: &Precision, sizes: Sizes) -> Work {
        Work {
            flops: self.product() * 2.0,
            read: self.queries_bytes(precision, sizes) + self.cache_bytes(precision, sizes) * 2.0,
            write: self.queries_bytes(precision, sizes),
        }
    }

    pub(super) fn scores_work(self, precision: &Precision, sizes: Sizes) -> Work {
        Work {
            flops: self.product(),
            read: self.queries_bytes(precision, sizes) + self.cache_bytes(precision, sizes),
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
            flops: self.product(),
            read: self.scores_bytes(precision) + self.cache_bytes(precision, sizes),
            write: self.queries_bytes(precision, sizes),
        }
    }
}
