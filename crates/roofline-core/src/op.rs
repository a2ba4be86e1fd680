//! Operators: what is computed, and the work that takes on any machine.
//!
//! Each operator is one kernel that reads its inputs from memory once and writes its output once. Formulas and their
//! derivations are in `docs/method.md`.

mod attention;
mod linear;

pub use attention::Attention;
pub use linear::{ActivatedLinear, Activation, Linear};

use crate::{Math, Precision, Work, format::Sizes};

/// One kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// `y[m,n] = x[m,k] * W[n,k]^T`; a matrix-vector product when `m` is 1.
    Linear(Linear),
    /// The same with the activation function in its epilogue, gated or not: `act(x * G^T) * (x * U^T)`, `act(x * U^T)`.
    ActivatedLinear(ActivatedLinear),
    /// `softmax(Q * K^T) * V` in one kernel: scores never reach memory (FlashAttention, arXiv 2205.14135).
    Attention(Attention),
    /// `Q * K^T`, with the scores written out.
    Scores(Attention),
    /// The softmax of written scores.
    Softmax(Attention),
    /// Written probabilities times `V`.
    Values(Attention),
    /// The activation function of a feed-forward layer on its own.
    Activation(Activation),
}

impl Op {
    /// Operations and traffic at a precision.
    pub fn work(&self, precision: &Precision, sizes: Sizes) -> Work {
        match self {
            Self::Linear(linear) => linear.work(precision, sizes),
            Self::ActivatedLinear(linear) => linear.work(precision, sizes),
            Self::Attention(attention) => attention.fused_work(precision, sizes),
            Self::Scores(attention) => attention.scores_work(precision, sizes),
            Self::Softmax(attention) => attention.softmax_work(precision),
            Self::Values(attention) => attention.values_work(precision, sizes),
            Self::Activation(activation) => activation.work(precision, sizes),
        }
    }

    /// The unit that does the work.
    pub fn math(&self, precision: &Precision) -> Math {
        match self {
            Self::Linear(_) | Self::ActivatedLinear(_) => precision.math,
            Self::Attention(_) | Self::Scores(_) | Self::Values(_) => precision.attention,
            Self::Softmax(_) | Self::Activation(_) => Math::Fp32,
        }
    }
}
