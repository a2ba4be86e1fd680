//! What the rows of a kernel count, so that the kernels of one workload become those of another without lowering it again.

use super::{AttentionLayer, Model, Workload};
use crate::{Dim, Op, Result};

/// What a kernel of a model has a row for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rows {
    /// Every new token.
    #[default]
    Tokens,
    /// Every sequence: logits of the last token.
    Sequences,
    /// Every token of the context: keys and values that are expanded.
    Keys,
}

impl Rows {
    /// How many there are.
    pub fn of(self, workload: Workload) -> Result<Dim> {
        let Workload { sequences, context, .. } = workload;
        match self {
            Self::Tokens => workload.tokens(),
            Self::Sequences => Ok(sequences),
            Self::Keys => Dim::new("batch x context", sequences.get() * context.get()),
        }
    }
}

impl Op {
    /// What it has for each of its `rows`; only element-wise kernels may have several.
    pub(crate) fn per_row(self, rows: Dim) -> Self {
        match self {
            Self::Elementwise(mut own) => {
                own.tokens /= rows.wide();
                Self::Elementwise(own)
            }
            other => other,
        }
    }

    /// A kernel that is known [per row](Self::per_row), over `rows` of a workload.
    pub(crate) fn over(self, rows: Dim, workload: Workload) -> Self {
        let mut op = self;
        match &mut op {
            Self::Linear(linear) => linear.m = rows,
            Self::ActivatedLinear(activated) => activated.linear.m = rows,
            Self::Experts(experts) => experts.tokens = rows,
            Self::AllReduce(reduce) => reduce.tokens = rows,
            Self::Elementwise(elementwise) => elementwise.tokens *= rows.wide(),
            Self::Attention(attention)
            | Self::Scores(attention)
            | Self::Softmax(attention)
            | Self::Values(attention) => {
                (attention.batch, attention.queries) = (workload.sequences, workload.new);
                attention.context = workload.context;
            }
        }
        op
    }
}

impl AttentionLayer {
    /// Whether a workload takes the other of two ways that a layer may have: a window that is shorter than the context, or
    /// an expansion that is absorbed.
    pub(super) fn branches(&self, workload: Workload) -> bool {
        match *self {
            Self::Grouped { window, .. } => window.is_some_and(|window| window < workload.context),
            Self::Latent { rank, plain_dim, rotary_dim, value_dim, .. } => {
                // Absorbing takes fewer operations than expanding: `new` tokens pay `long` instead of `short` features per
                // key, and save expanding the keys before them. Per head and sequence, a multiply-add each.
                let long = rank.float() + rotary_dim.float() + rank.float();
                let short = plain_dim.float() + rotary_dim.float() + value_dim.float();
                let expansion = (plain_dim.float() + value_dim.float()) * rank.float();
                let (new, context) = (workload.new.float(), workload.context.float());
                new * context * (long - short) <= (context - new) * expansion
            }
        }
    }
}

impl Model {
    /// Which ways a workload takes, a bit for each shape of layers: workloads of the same have the same kernels, over other
    /// rows.
    pub(crate) fn ways(&self, workload: Workload) -> u16 {
        let branches = self.layers.iter().map(|layer| layer.attention.branches(workload));
        branches.enumerate().fold(0, |ways, (shape, other)| ways | u16::from(other) << shape)
    }
}
