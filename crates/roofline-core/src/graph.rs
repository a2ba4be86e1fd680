//! What runs, as data: a list of kernels, equal ones counted together. Fusion is another list for the same computation.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    Dim, Op, Result,
    model::{Anatomy, Rows},
    op::{Attention, Elementwise, ElementwiseKind, ExpertSide, Experts, Linear},
    program::{self, CacheUse, Step, Value, Weight},
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
    /// What its rows count, in a model.
    pub rows: Rows,
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

    /// Sequences side by side, and whether each has several new tokens: what attention reads. None where there is none.
    pub(crate) fn sequences(&self) -> Option<(f64, bool)> {
        self.nodes.iter().find_map(|node| match node.op {
            Op::Attention(attention) | Op::Scores(attention) => {
                Some((attention.batch.float(), attention.queries.get() > 1))
            }
            _ => None,
        })
    }

    /// Attention in one kernel, or with scores written to memory in three.
    pub fn attention(attention: Attention, fused: bool) -> Self {
        Self::counted(attention_steps(attention), fused)
    }

    /// One side of the experts of a layer.
    pub fn experts(experts: Experts) -> Self {
        let (site, role) = match experts.side {
            ExpertSide::GatedUp => ("experts_gate_up", Role::ExpertGate),
            ExpertSide::Up => ("experts_up", Role::ExpertUp),
            ExpertSide::Down => ("experts_down", Role::ExpertDown),
        };
        Self::of([(site, Op::Experts(experts), role)])
    }

    /// One element-wise kernel.
    pub fn elementwise(elementwise: Elementwise) -> Self {
        Self::of([(elementwise.kind.site(), Op::Elementwise(elementwise), Role::Vector)])
    }

    /// A feed-forward layer; fused, the activation runs inside the kernel before it and its inputs never reach memory.
    pub fn ffn(ffn: Ffn, fused: bool) -> Self {
        Self::counted(feed_forward_steps(ffn, false), fused)
    }

    /// Steps as kernels of no layer.
    fn counted(steps: Vec<Step>, fused: bool) -> Self {
        let steps = if fused { program::fused(&steps) } else { steps };
        let mut nodes = Vec::with_capacity(steps.len());
        for step in &steps {
            let Step { site, op, part, rows, .. } = *step;
            nodes.push(Node { site, op, count: 1, part, rows, groups: 0 });
        }
        Self { nodes, anatomy: None }
    }

    fn of<const N: usize>(nodes: [(&'static str, Op, Role); N]) -> Self {
        let nodes = nodes.map(|(site, op, role)| Node::new(site, op, role)).to_vec();
        Self { nodes, anatomy: None }
    }
}

/// Attention as an eager framework runs it: scores, their softmax, and values mixed by it.
pub(crate) fn attention_steps(attention: Attention) -> Vec<Step> {
    let mix = Part::One(Role::Mix);
    vec![
        Step::new(("qk_score", Op::Scores(attention), mix), &[Value::Query], &[], Value::Scores)
            .with_cache(CacheUse::Read),
        Step::new(("softmax", Op::Softmax(attention), mix), &[Value::Scores], &[], Value::Probabilities),
        Step::new(("sv_prod", Op::Values(attention), mix), &[Value::Probabilities], &[], Value::Mixed)
            .with_cache(CacheUse::Read),
    ]
}

/// The sites of a feed-forward layer, their weights, and where it leaves its result.
type FfnNames = ([&'static str; 5], [&'static [Weight]; 3], Value);

const OWN: FfnNames = (
    ["gate_proj", "up_proj", "silu_mul", "activation", "down_proj"],
    [&[Weight::Gate], &[Weight::Up], &[Weight::Down]],
    Value::Fed,
);

/// Those of experts that every token meets.
const SHARED: FfnNames = (
    ["shared_gate_proj", "shared_up_proj", "shared_silu_mul", "shared_activation", "shared_down_proj"],
    [&[Weight::SharedGate], &[Weight::SharedUp], &[Weight::SharedDown]],
    Value::Shared,
);

/// A feed-forward layer, every operator a kernel of its own.
pub(crate) fn feed_forward_steps(ffn: Ffn, shared: bool) -> Vec<Step> {
    let Ffn { tokens, hidden, inner, gated } = ffn;
    let ([gate_site, up_site, join_site, act_site, down_site], [gate, up, down], fed) =
        if shared { SHARED } else { OWN };
    let wide = Op::Linear(Linear { m: tokens, n: inner, k: hidden });
    let back = Op::Linear(Linear { m: tokens, n: hidden, k: inner });
    let kind = if gated { ElementwiseKind::GatedActivation } else { ElementwiseKind::Activation };
    let activation = Op::Elementwise(Elementwise { kind, tokens: tokens.wide(), vectors: Dim::ONE, width: inner });
    let one = Part::One;
    let mut steps = Vec::with_capacity(4);
    if gated {
        steps.push(Step::new((gate_site, wide, one(Role::Gate)), &[Value::Normed], gate, Value::Gate));
    }
    steps.push(Step::new((up_site, wide, one(Role::Up)), &[Value::Normed], up, Value::Up));
    let join = if gated { (join_site, activation, one(Role::Down)) } else { (act_site, activation, one(Role::Down)) };
    let read: &[Value] = if gated { &[Value::Gate, Value::Up] } else { &[Value::Up] };
    steps.push(Step::new(join, read, &[], Value::Inner));
    steps.push(Step::new((down_site, back, one(Role::Down)), &[Value::Inner], down, fed));
    steps
}

impl Node {
    /// One kernel that runs once, in no layer.
    pub fn new(site: &'static str, op: Op, role: Role) -> Self {
        Self { site, op, count: 1, part: Part::One(role), rows: Rows::default(), groups: 0 }
    }
}
