//! Operators: what is computed, and the work that takes on any machine.
//!
//! Each operator is one kernel that reads its inputs from memory once and writes its output once. Formulas and their
//! derivations are in `docs/method.md`.

mod attention;
mod elementwise;
mod experts;
mod linear;

pub(crate) use attention::causal_pairs;
pub use attention::{Attention, Cache};
pub use elementwise::{Elementwise, ElementwiseKind};
pub use experts::{ExpertSide, Experts};
pub use linear::{ActivatedLinear, Linear};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Dim, Error, Math, Precision, Result, Work,
    format::{Shape, Sizes},
    units::{Bytes, Flops},
};

/// One kernel.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// `y[m,n] = x[m,k] * W[n,k]^T`; a matrix-vector product when `m` is 1.
    Linear(Linear),
    /// The same with the activation function in its epilogue, gated or not: `act(x * G^T) * (x * U^T)`, `act(x * U^T)`.
    ActivatedLinear(ActivatedLinear),
    /// The same for each token's own choice of weights.
    Experts(Experts),
    /// `softmax(Q * K^T) * V` in one kernel: scores never reach memory (FlashAttention, arXiv 2205.14135).
    Attention(Attention),
    /// `Q * K^T`, with the scores written out.
    Scores(Attention),
    /// The softmax of written scores.
    Softmax(Attention),
    /// Written probabilities times `V`.
    Values(Attention),
    /// A few operations per element.
    Elementwise(Elementwise),
    /// Summing the partial outputs of several devices.
    AllReduce(AllReduce),
}

/// A sum over `ranks` devices that each hold `tokens` rows of `width`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AllReduce {
    /// Tokens in flight.
    pub tokens: Dim,
    /// Features.
    pub width: Dim,
    /// Devices.
    pub ranks: Dim,
}

impl AllReduce {
    /// The bytes each rank contributes.
    pub fn payload(&self, precision: &Precision, sizes: Sizes) -> Bytes {
        precision.query.bytes(Shape::matrix(self.tokens, self.width), sizes)
    }
}

/// The stored weights of a kernel: how many matrices there are, and how many a pass reads.
pub(crate) struct Weights {
    pub(crate) n: Dim,
    pub(crate) k: Dim,
    pub(crate) count: u128,
    pub(crate) read: f64,
}

/// What kind of work an operator is. Answers tell it of every kernel, and kernels that should reach a roof are known by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "OperatorClass")]
pub enum Class {
    /// Matrix products.
    Gemm,
    /// Attention and its parts.
    Attention,
    /// A few operations per element.
    Elementwise,
    /// Between devices.
    Network,
}

impl Op {
    /// Operations and traffic that are likely: the least there can be, but that tokens choose their experts evenly.
    pub fn likely_work(&self, precision: &Precision, sizes: Sizes) -> Work {
        match self {
            Self::Experts(experts) => experts.work(precision, sizes, experts.distinct()),
            _ => self.work(precision, sizes),
        }
    }

    /// The least operations and traffic at a precision.
    pub fn work(&self, precision: &Precision, sizes: Sizes) -> Work {
        match self {
            Self::Linear(linear) => linear.work(precision, sizes),
            Self::ActivatedLinear(linear) => linear.work(precision, sizes),
            Self::Experts(experts) => experts.work(precision, sizes, experts.fewest()),
            Self::Attention(attention) => attention.fused_work(precision, sizes),
            Self::Scores(attention) => attention.scores_work(precision, sizes),
            Self::Softmax(attention) => attention.softmax_work(precision),
            Self::Values(attention) => attention.values_work(precision, sizes),
            Self::Elementwise(elementwise) => elementwise.work(precision, sizes),
            Self::AllReduce(reduce) => {
                let payload = reduce.payload(precision, sizes);
                Work { flops: Flops::ZERO, read: payload, write: payload }
            }
        }
    }

    /// Inputs and outputs that live only for this kernel: what it moves, `moved` at least, but for weights and the cache.
    pub(crate) fn in_flight(&self, moved: Bytes, precision: &Precision, sizes: Sizes) -> Bytes {
        if self.weights().is_some() {
            return moved - self.weight_bytes(precision, sizes);
        }
        match self {
            Self::Attention(attention)
            | Self::Scores(attention)
            | Self::Softmax(attention)
            | Self::Values(attention) => {
                let cache = attention.cache_read(precision, sizes);
                match self {
                    Self::Attention(_) => moved - cache.0 - cache.1,
                    Self::Scores(_) => moved - cache.0,
                    Self::Values(_) => moved - cache.1,
                    _ => moved,
                }
            }
            _ => moved,
        }
    }

    /// Its stored weights; none where it has none.
    pub(crate) fn weights(&self) -> Option<Weights> {
        Some(match self {
            Self::Linear(linear) => Weights { n: linear.n, k: linear.k, count: 1, read: 1.0 },
            Self::ActivatedLinear(up) => {
                let count = if up.gated { 2 } else { 1 };
                Weights { n: up.linear.n, k: up.linear.k, count, read: count as f64 }
            }
            Self::Experts(experts) => {
                let sides = if experts.side == ExpertSide::GatedUp { 2 } else { 1 };
                let read = sides as f64 * experts.distinct();
                Weights { n: experts.n, k: experts.k, count: sides * experts.experts.wide(), read }
            }
            _ => return None,
        })
    }

    /// The bytes of the weights that one run reads: of experts, those that the tokens are likely to choose.
    pub fn weight_bytes(&self, precision: &Precision, sizes: Sizes) -> Bytes {
        self.weights().map_or(Bytes::ZERO, |matrix| {
            precision.weights.bytes(Shape::matrix(matrix.n, matrix.k), sizes) * matrix.read
        })
    }

    /// The unit that does the work.
    pub fn math(&self, precision: &Precision) -> Math {
        match self {
            Self::Linear(_) | Self::ActivatedLinear(_) | Self::Experts(_) => precision.math,
            Self::Attention(_) | Self::Scores(_) | Self::Values(_) => precision.attention,
            Self::Softmax(_) | Self::Elementwise(_) | Self::AllReduce(_) => Math::Fp32,
        }
    }

    /// Refuses dimensions that contradict each other, for an operator that comes from a file.
    pub fn checked(self) -> Result<Self> {
        match self {
            Self::Attention(attention)
            | Self::Scores(attention)
            | Self::Softmax(attention)
            | Self::Values(attention) => attention.checked().map(|_| self),
            // Rows are a product of at most two dimensions.
            Self::Elementwise(elementwise) if elementwise.tokens > u128::from(Dim::MAX).pow(2) => {
                Err(Error::Shape(format!("{} rows are more than two dimensions can have", elementwise.tokens)))
            }
            Self::Elementwise(elementwise) if elementwise.tokens == 0 => {
                Err(Error::Shape("an element-wise kernel over no rows".to_owned()))
            }
            _ => Ok(self),
        }
    }

    /// Kind and shape in words, for a kernel at `site`.
    pub fn words(&self, site: &str) -> String {
        match self {
            Self::Linear(linear) => format!("{site} {} x {} x {}", linear.m, linear.n, linear.k),
            Self::ActivatedLinear(activated) => {
                let linear = activated.linear;
                let matrices = if activated.gated { "2 x " } else { "" };
                format!("{site} {} x {matrices}{} x {}", linear.m, linear.n, linear.k)
            }
            Self::Experts(experts) => {
                format!(
                    "{site} {} x {} of {} x {} x {}",
                    experts.tokens, experts.active, experts.experts, experts.n, experts.k
                )
            }
            Self::Attention(attention)
            | Self::Scores(attention)
            | Self::Softmax(attention)
            | Self::Values(attention) => {
                let (batch, heads, kv_heads) = (attention.batch, attention.heads, attention.kv_heads);
                let (queries, context, width) = (attention.queries, attention.context, attention.head_dim);
                format!("{site} {batch} x {queries} over {context}, {heads}/{kv_heads} heads of {width}")
            }
            Self::Elementwise(elementwise) => {
                format!("{site} {} x {} x {}", elementwise.tokens, elementwise.vectors, elementwise.width)
            }
            Self::AllReduce(reduce) => format!("{site} {} x {} over {}", reduce.tokens, reduce.width, reduce.ranks),
        }
    }

    /// What kind of kernel it is.
    pub fn class(&self) -> Class {
        match self {
            Self::Linear(_) | Self::ActivatedLinear(_) | Self::Experts(_) => Class::Gemm,
            Self::Attention(_) | Self::Scores(_) | Self::Values(_) => Class::Attention,
            Self::Softmax(_) | Self::Elementwise(_) => Class::Elementwise,
            Self::AllReduce(_) => Class::Network,
        }
    }
}
