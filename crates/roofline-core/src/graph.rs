//! What runs, as data: a list of kernels, equal ones counted together. Fusion is another list for the same computation.

use serde::Serialize;

use crate::{
    Dim, Op, Result,
    op::{ActivatedLinear, Attention, Elementwise, ElementwiseKind, Linear},
};

/// Kernels, those of one layer shape once with a count.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// The kernels.
    pub nodes: Vec<Node>,
}

/// One kernel and its place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Node {
    /// Where it belongs: `q_proj`, `attention`, `silu_mul`, ...
    pub site: &'static str,
    /// What it computes.
    pub op: Op,
    /// How often it runs: layers of one shape are one node.
    pub count: u64,
    /// Which of a plan's precisions it has.
    pub place: Place,
}

/// Parts of a model that a plan may store in different ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Attention and its products, and every operator that stands alone.
    Layer,
    /// The feed-forward part of a layer, experts included.
    FeedForward,
    /// The LM head, and the table of embeddings that it may be tied to.
    Head,
    /// What stays wide in a quantized model: lookups, norms and routers.
    Wide,
}

/// A feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Ffn {
    /// Tokens in flight: sequences times new tokens.
    pub tokens: Dim,
    /// Model width.
    pub hidden: Dim,
    /// Inner width.
    pub inner: Dim,
    /// Three matrices with a gate (SwiGLU), or two.
    pub gated: bool,
}

impl Graph {
    /// `y[n] = W[n,k] * x[k]`.
    pub fn gemv(n: u64, k: u64) -> Result<Self> {
        Self::gemm(1, n, k)
    }

    /// `y[m,n] = x[m,k] * W[n,k]^T`.
    pub fn gemm(m: u64, n: u64, k: u64) -> Result<Self> {
        Linear::new(m, n, k).map(Self::linear)
    }

    /// One linear layer; with a single row it is a matrix-vector product.
    pub fn linear(linear: Linear) -> Self {
        let site = if linear.m == Dim::ONE { "gemv" } else { "gemm" };
        Self::of([(site, Op::Linear(linear))])
    }

    /// Attention in one kernel, or with scores written to memory in three.
    pub fn attention(attention: Attention, fused: bool) -> Self {
        if fused {
            return Self::of([("attention", Op::Attention(attention))]);
        }
        Self::of([
            ("qk_score", Op::Scores(attention)),
            ("softmax", Op::Softmax(attention)),
            ("sv_prod", Op::Values(attention)),
        ])
    }

    /// One element-wise kernel.
    pub fn elementwise(elementwise: Elementwise) -> Self {
        Self::of([(elementwise.kind.site(), Op::Elementwise(elementwise))])
    }

    /// A feed-forward layer; fused, the activation runs inside the kernel before it and its inputs never reach memory.
    pub fn ffn(ffn: Ffn, fused: bool) -> Self {
        let Ffn { tokens, hidden, inner, gated } = ffn;
        let up = Linear { m: tokens, n: inner, k: hidden };
        let down = ("down_proj", Op::Linear(Linear { m: tokens, n: hidden, k: inner }));
        let kind = if gated { ElementwiseKind::GatedActivation } else { ElementwiseKind::Activation };
        let activation = Op::Elementwise(Elementwise { kind, tokens: tokens.wide(), vectors: Dim::ONE, width: inner });
        match (gated, fused) {
            (_, true) => {
                let site = if gated { "gate_up_proj" } else { "up_proj" };
                Self::of([(site, Op::ActivatedLinear(ActivatedLinear { linear: up, gated })), down])
            }
            (true, false) => {
                Self::of([("gate_proj", Op::Linear(up)), ("up_proj", Op::Linear(up)), ("silu_mul", activation), down])
            }
            (false, false) => Self::of([("up_proj", Op::Linear(up)), ("activation", activation), down]),
        }
    }

    fn of<const N: usize>(nodes: [(&'static str, Op); N]) -> Self {
        Self { nodes: nodes.map(|(site, op)| Node { site, op, count: 1, place: Place::Layer }).to_vec() }
    }
}
