//! Kernels that touch each element a few times: never more than a few operations per byte.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Dim, Format, Precision, Work,
    format::{Shape, Sizes},
    units::{Bytes, Flops},
};

/// A kernel over `tokens` times `vectors` rows of `width` features.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Elementwise {
    /// What it does.
    pub kind: ElementwiseKind,
    /// Tokens in flight, or rows that experts see.
    pub tokens: u128,
    /// Vectors per token: heads, or one.
    pub vectors: Dim,
    /// Features per vector.
    pub width: Dim,
}

/// What an element-wise kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ElementwiseKind {
    /// RMSNorm or LayerNorm: square, sum, scale, multiply, round (5).
    Norm,
    /// Rotation of queries and keys: 6 operations per feature (two multiplies and an add, for two outputs of each pair).
    Rope,
    /// Adding a layer's output to the residual stream.
    Residual,
    /// Writing keys and values to the cache, in its format.
    KvWrite,
    /// Looking up the tokens' rows of the embedding, not the table.
    Embedding,
    /// The activation function times the other half (SwiGLU): sigmoid, multiply, multiply (3).
    GatedActivation,
    /// The activation function alone (2).
    Activation,
}

impl ElementwiseKind {
    /// What such a kernel is called in a graph.
    pub const fn site(self) -> &'static str {
        match self {
            Self::Norm => "norm",
            Self::Rope => "rope",
            Self::Residual => "residual",
            Self::KvWrite => "kv_write",
            Self::Embedding => "embedding",
            Self::GatedActivation => "silu_mul",
            Self::Activation => "activation",
        }
    }
}

impl Elementwise {
    /// Reads what the kernel before wrote and writes what the next one reads.
    pub(super) fn work(self, precision: &Precision, sizes: Sizes) -> Work {
        use ElementwiseKind as K;
        let shape = Shape::new(self.tokens * self.vectors.wide(), self.width);
        let bytes = |format: Format| format.bytes(shape, sizes);
        let Precision { weights, activations, kv, output, query, .. } = *precision;
        let (operations, read, write): (f64, Bytes, Bytes) = match self.kind {
            K::Norm => (5.0, bytes(query), bytes(activations)),
            K::Rope => (6.0, bytes(query), bytes(query)),
            K::Residual => (1.0, bytes(query) * 2.0, bytes(query)),
            K::KvWrite => (0.0, bytes(query), bytes(kv)),
            // A row of the table as it is stored.
            K::Embedding => (0.0, bytes(weights), bytes(query)),
            K::GatedActivation => (3.0, bytes(output) * 2.0, bytes(activations)),
            K::Activation => (2.0, bytes(output), bytes(activations)),
        };
        Work { flops: Flops::new(operations * shape.elements() as f64), read, write }
    }
}
