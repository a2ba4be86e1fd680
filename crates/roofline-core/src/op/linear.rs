//! Linear layers and the activation function between them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Dim, Precision, Result, Work,
    format::{Shape, Sizes},
    units::Flops,
};

/// `y[m,n] = x[m,k] * W[n,k]^T`: `m` tokens, `n` output features, `k` input features.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Linear {
    /// Rows of the input: tokens in flight.
    pub m: Dim,
    /// Output features: rows of the stored weight, which is where per-channel scales belong.
    pub n: Dim,
    /// Input features: what groups run along.
    pub k: Dim,
}

impl Linear {
    /// Checks the three dimensions.
    pub fn new(m: u64, n: u64, k: u64) -> Result<Self> {
        Ok(Self { m: Dim::new("m", m)?, n: Dim::new("n", n)?, k: Dim::new("k", k)? })
    }

    /// `2mnk` operations; `x` and `W` read once, `y` written once.
    pub(super) fn work(self, precision: &Precision, sizes: Sizes) -> Work {
        let Self { m, n, k } = self;
        Work {
            flops: Flops::new(2.0 * m.float() * n.float() * k.float()),
            read: precision.activations.bytes(Shape::matrix(m, k), sizes)
                + precision.weights.bytes(Shape::matrix(n, k), sizes),
            write: precision.output.bytes(Shape::matrix(m, n), sizes),
        }
    }
}

/// A linear layer that applies the activation function before it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ActivatedLinear {
    /// The product.
    pub linear: Linear,
    /// Whether there are two of them, one gating the other.
    pub gated: bool,
}

impl ActivatedLinear {
    /// One or two products of one input, which is read once; what is written is what the next layer reads.
    pub(super) fn work(self, precision: &Precision, sizes: Sizes) -> Work {
        let Linear { m, n, k } = self.linear;
        let matrices = if self.gated { 2.0 } else { 1.0 };
        Work {
            flops: Flops::new(matrices * 2.0 * m.float() * n.float() * k.float()),
            read: precision.activations.bytes(Shape::matrix(m, k), sizes)
                + precision.weights.bytes(Shape::matrix(n, k), sizes) * matrices,
            write: precision.activations.bytes(Shape::matrix(m, n), sizes),
        }
    }
}
