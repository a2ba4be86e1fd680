//! Which layers a model has and how wide their matrices are: what a plan that tells layers apart has to know.

use super::{AttentionLayer, FeedForward, Layer};
use crate::{Dim, Role};

/// The layers of a model in order, and the columns of their matrices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anatomy {
    /// Of each layer, the first to the last, which group of equal ones it is in.
    pub order: Vec<u8>,
    /// Columns of each role's matrix, by group; none where its layers have no such matrix.
    pub columns: Vec<[Option<u64>; Role::ALL.len()]>,
    /// Width of the residual stream: columns of head and embedding.
    pub hidden: u64,
    /// Experts of a layer; none of a dense model.
    pub experts: u64,
    /// How many query heads share keys and values; one where none do.
    pub sharing: u64,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Whether it is a Falcon, which llama.cpp's recipes treat as no other model.
    pub falcon: bool,
}

impl Anatomy {
    pub(super) fn new(layers: &[Layer], order: Vec<u8>, hidden: Dim, tied: bool) -> Self {
        let of = |layer: &Layer| Role::ALL.map(|role| columns(role, hidden, &layer.attention, &layer.feed_forward));
        let experts = |layer: &Layer| match layer.feed_forward {
            FeedForward::Experts { experts, .. } => experts.get(),
            FeedForward::Dense { .. } => 0,
        };
        let sharing = |layer: &Layer| match layer.attention {
            AttentionLayer::Grouped { heads, kv_heads, .. } => heads.get() / kv_heads.get(),
            AttentionLayer::Latent { .. } => 1,
        };
        Self {
            order,
            columns: layers.iter().map(of).collect(),
            hidden: hidden.get(),
            experts: layers.iter().map(experts).max().unwrap_or(0),
            sharing: layers.iter().map(sharing).max().unwrap_or(1),
            tied,
            falcon: false,
        }
    }
}

fn columns(role: Role, hidden: Dim, attention: &AttentionLayer, feed_forward: &FeedForward) -> Option<u64> {
    let hidden = hidden.get();
    let (joined, values) = match *attention {
        AttentionLayer::Grouped { heads, head_dim, .. } => (heads.get() * head_dim.get(), hidden),
        AttentionLayer::Latent { heads, value_dim, rank, .. } => (heads.get() * value_dim.get(), rank.get()),
    };
    let (dense, experts) = match *feed_forward {
        FeedForward::Dense { inner, .. } => (Some(inner), None),
        FeedForward::Experts { shared, inner, .. } => (shared, Some(inner)),
    };
    match role {
        Role::Query | Role::Key => Some(hidden),
        Role::Value => Some(values),
        Role::Output => Some(joined),
        Role::Gate | Role::Up => dense.map(|_| hidden),
        Role::Down => dense.map(Dim::get),
        Role::ExpertGate | Role::ExpertUp | Role::Router => experts.map(|_| hidden),
        Role::ExpertDown => experts.map(Dim::get),
        _ => None,
    }
}
