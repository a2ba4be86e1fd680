//! What runs, as data: a list of kernels, equal ones counted together. Fusion is another list for the same computation.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    Dim, Op, Result,
    model::Anatomy,
    op::{ActivatedLinear, Attention, Elementwise, ElementwiseKind, Linear},
    role::{Part, Role},
};

/// Kernels, those of one layer shape once with a count.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// The kernels.
    pub nodes: Vec<Node>,
    /// The model they are of; none for operators that stand alone.
    pub anatomy: Option<Arc<Anatomy>>,
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
    /// What its weights are for.
    pub part: Part,
    /// The groups of the model's layers it stands in, a bit each; none where it is in no layer.
    pub groups: u16,
}

/// A feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
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
        Self::of([(site, Op::Linear(linear), Role::Output)])
    }

    /// Attention in one kernel, or with scores written to memory in three.
    pub fn attention(attention: Attention, fused: bool) -> Self {
        let mix = Role::Mix;
        if fused {
            return Self::of([("attention", Op::Attention(attention), mix)]);
        }
        Self::of([
            ("qk_score", Op::Scores(attention), mix),
            ("softmax", Op::Softmax(attention), mix),
            ("sv_prod", Op::Values(attention), mix),
        ])
    }

    /// One element-wise kernel.
    pub fn elementwise(elementwise: Elementwise) -> Self {
        Self::of([(elementwise.kind.site(), Op::Elementwise(elementwise), Role::Vector)])
    }

    /// A feed-forward layer; fused, the activation runs inside the kernel before it and its inputs never reach memory.
    pub fn ffn(ffn: Ffn, fused: bool) -> Self {
        let Ffn { tokens, hidden, inner, gated } = ffn;
        let up = Linear { m: tokens, n: inner, k: hidden };
        let down = ("down_proj", Op::Linear(Linear { m: tokens, n: hidden, k: inner }), Role::Down);
        let kind = if gated { ElementwiseKind::GatedActivation } else { ElementwiseKind::Activation };
        let activation = Op::Elementwise(Elementwise { kind, tokens: tokens.wide(), vectors: Dim::ONE, width: inner });
        match (gated, fused) {
            (_, true) => {
                let (site, part) =
                    if gated { ("gate_up_proj", Part::GateUp) } else { ("up_proj", Part::One(Role::Up)) };
                let op = Op::ActivatedLinear(ActivatedLinear { linear: up, gated });
                let first = Node { site, op, count: 1, part, groups: 0 };
                let nodes = vec![first, Node::new(down.0, down.1, down.2)];
                Self { nodes, anatomy: None }
            }
            (true, false) => Self::of([
                ("gate_proj", Op::Linear(up), Role::Gate),
                ("up_proj", Op::Linear(up), Role::Up),
                ("silu_mul", activation, Role::Down),
                down,
            ]),
            (false, false) => {
                Self::of([("up_proj", Op::Linear(up), Role::Up), ("activation", activation, Role::Down), down])
            }
        }
    }

    fn of<const N: usize>(nodes: [(&'static str, Op, Role); N]) -> Self {
        let nodes = nodes.map(|(site, op, role)| Node::new(site, op, role)).to_vec();
        Self { nodes, anatomy: None }
    }
}

impl Node {
    /// One kernel that runs once, in no layer.
    pub fn new(site: &'static str, op: Op, role: Role) -> Self {
        Self { site, op, count: 1, part: Part::One(role), groups: 0 }
    }
}
