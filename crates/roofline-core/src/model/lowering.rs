//! From a model and a workload to kernels. Prefill, decode and chunks are the same function with other numbers.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::{AttentionLayer, FeedForward, Model};
use crate::{
    Dim, Error, Graph, Op, Result,
    graph::{Ffn, Node},
    op::{AllReduce, Attention, Cache, Elementwise, ElementwiseKind, ExpertSide, Experts, Linear},
    role::{Part, Role},
};

/// One forward pass: `sequences` of `new` tokens each, over `context` keys (the new ones included).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Workload {
    /// Sequences in the batch.
    pub sequences: Dim,
    /// New tokens per sequence.
    pub new: Dim,
    /// Keys per sequence.
    pub context: Dim,
}

impl Workload {
    /// The whole prompt at once.
    pub fn prefill(sequences: u64, prompt: u64) -> Result<Self> {
        Self::chunk(sequences, prompt, prompt)
    }

    /// One token per sequence.
    pub fn decode(sequences: u64, context: u64) -> Result<Self> {
        Self::chunk(sequences, 1, context)
    }

    /// The last `new` tokens of a context.
    pub fn chunk(sequences: u64, new: u64, context: u64) -> Result<Self> {
        let (sequences, new) = (Dim::new("batch", sequences)?, Dim::new("tokens", new)?);
        let context = Dim::new("context", context)?;
        if new > context {
            return Err(Error::Shape(format!("{new} new tokens do not fit a context of {context}")));
        }
        let workload = Self { sequences, new, context };
        workload.tokens()?;
        Ok(workload)
    }

    /// Tokens in flight.
    fn tokens(self) -> Result<Dim> {
        Dim::new("batch x tokens", self.sequences.get() * self.new.get())
    }
}

/// How a model is turned into kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Lowering {
    /// Element-wise work runs inside its neighbours, attention in one kernel, projections of one input together. Not
    /// fused, every operator is a kernel of its own, as an eager framework runs it.
    pub fused: bool,
    /// Logits for every token, not only the last of each sequence.
    pub all_logits: bool,
    /// Whether a token sees only those before it, as in every model that generates; an encoder's sees all.
    pub causal: bool,
    /// Devices that share each layer (tensor parallel).
    pub ranks: Dim,
}

impl Default for Lowering {
    fn default() -> Self {
        Self { fused: true, all_logits: false, causal: true, ranks: Dim::ONE }
    }
}

impl Model {
    /// The kernels of one pass, on each of the devices that share it.
    pub fn graph(&self, workload: Workload, lowering: Lowering) -> Result<Graph> {
        let mut lower = Lower {
            model: self,
            workload,
            lowering,
            tokens: workload.tokens()?,
            nodes: Vec::with_capacity(24),
            groups: 0,
        };
        lower.embedding();
        for (at, layer) in self.layers.iter().enumerate() {
            lower.groups = 1 << at;
            lower.norms(layer.count);
            lower.attention(&layer.attention, layer.count)?;
            lower.feed_forward(&layer.feed_forward, layer.count);
        }
        lower.groups = 0;
        lower.head();
        Ok(Graph { nodes: lower.nodes, anatomy: Some(Arc::clone(&self.anatomy)) })
    }
}

/// Attention of sliding-window layers.
const WINDOW: &[(&str, &str)] = &[
    ("attention", "window_attention"),
    ("qk_score", "window_qk_score"),
    ("softmax", "window_softmax"),
    ("sv_prod", "window_sv_prod"),
];

/// Experts that every token meets.
const SHARED: &[(&str, &str)] = &[
    ("gate_up_proj", "shared_gate_up_proj"),
    ("gate_proj", "shared_gate_proj"),
    ("up_proj", "shared_up_proj"),
    ("silu_mul", "shared_silu_mul"),
    ("activation", "shared_activation"),
    ("down_proj", "shared_down_proj"),
];

struct Lower<'a> {
    model: &'a Model,
    workload: Workload,
    lowering: Lowering,
    tokens: Dim,
    nodes: Vec<Node>,
    /// The group of layers that is being lowered, as a bit; none outside of them.
    groups: u16,
}

impl Lower<'_> {
    /// Adds a kernel, or counts it with an equal one.
    fn push(&mut self, site: &'static str, op: Op, count: u64, part: Part) {
        match self.nodes.iter_mut().find(|node| node.site == site && node.op == op && node.part == part) {
            Some(node) => {
                node.count += count;
                node.groups |= self.groups;
            }
            None => self.nodes.push(Node { site, op, count, part, groups: self.groups }),
        }
    }

    fn linear(&mut self, site: &'static str, n: Dim, k: Dim, count: u64, role: Role) {
        self.push(site, Op::Linear(Linear { m: self.tokens, n, k }), count, Part::One(role));
    }

    fn elementwise(&mut self, site: &'static str, kind: ElementwiseKind, vectors: Dim, width: Dim, count: u64) {
        let op = Elementwise { kind, tokens: self.tokens.wide(), vectors, width };
        let role = match kind {
            ElementwiseKind::Embedding => Role::Embedding,
            // What it writes is what the layer's products read.
            ElementwiseKind::Norm => Role::Query,
            ElementwiseKind::Rope | ElementwiseKind::KvWrite => Role::Mix,
            ElementwiseKind::GatedActivation | ElementwiseKind::Activation => Role::Down,
            ElementwiseKind::Residual => Role::Vector,
        };
        self.push(site, Op::Elementwise(op), count, Part::One(role));
    }

    /// This device's part of `whole`, rounded up; a dimension of one stays.
    fn share(&self, whole: Dim) -> Dim {
        Dim::new("share", whole.get().div_ceil(self.lowering.ranks.get())).unwrap_or(Dim::ONE)
    }

    fn shareable(&self, what: &str, count: Dim) -> Result<()> {
        let ranks = self.lowering.ranks;
        if count.get().is_multiple_of(ranks.get()) {
            return Ok(());
        }
        Err(Error::Shape(format!("{count} {what} cannot be shared evenly by {ranks} devices")))
    }

    fn product(what: &'static str, a: Dim, b: Dim) -> Result<Dim> {
        Dim::new(what, a.get() * b.get())
    }

    fn embedding(&mut self) {
        self.elementwise("embedding", ElementwiseKind::Embedding, Dim::ONE, self.model.hidden, 1);
    }

    /// Norms and residual additions, which a fused graph folds into their neighbours.
    fn norms(&mut self, layers: u64) {
        if !self.lowering.fused {
            let (one, hidden) = (Dim::ONE, self.model.hidden);
            let site = if self.model.norms.bias { "layernorm" } else { "rmsnorm" };
            self.elementwise(site, ElementwiseKind::Norm, one, hidden, layers * self.model.norms.per_layer);
            self.elementwise("residual", ElementwiseKind::Residual, one, hidden, 2 * layers);
        }
    }

    /// The sum over devices after a layer's second product.
    fn all_reduce(&mut self, count: u64) {
        if self.lowering.ranks > Dim::ONE {
            let reduce = AllReduce { tokens: self.tokens, width: self.model.hidden, ranks: self.lowering.ranks };
            // Sums after attention and after the feed-forward part are the same kernel.
            self.push("all_reduce", Op::AllReduce(reduce), count, Part::One(Role::Vector));
        }
    }

    fn attention(&mut self, layer: &AttentionLayer, count: u64) -> Result<()> {
        let hidden = self.model.hidden;
        let out = match *layer {
            AttentionLayer::Grouped { heads, kv_heads, head_dim, rotary_dim, window, query_key_norm, .. } => {
                self.shareable("attention heads", heads)?;
                // Fewer KV heads than devices: each keeps a copy of the one it needs.
                if kv_heads > self.lowering.ranks {
                    self.shareable("KV heads", kv_heads)?;
                }
                let (heads, kv_heads) = (self.share(heads), self.share(kv_heads));
                let query = Self::product("heads x head_dim", heads, head_dim)?;
                let key = Self::product("kv heads x head_dim", kv_heads, head_dim)?;
                if self.lowering.fused {
                    let n = Dim::new("qkv", query.get() + 2 * key.get())?;
                    let all = Linear { m: self.tokens, n, k: hidden };
                    self.push("qkv_proj", Op::Linear(all), count, Part::Qkv { query, key });
                } else {
                    self.linear("q_proj", query, hidden, count, Role::Query);
                    self.linear("k_proj", key, hidden, count, Role::Key);
                    self.linear("v_proj", key, hidden, count, Role::Value);
                    let rotated = Dim::new("heads", heads.get() + kv_heads.get())?;
                    if query_key_norm {
                        self.elementwise("qk_norm", ElementwiseKind::Norm, rotated, head_dim, count);
                    }
                    self.elementwise("rope", ElementwiseKind::Rope, rotated, rotary_dim, count);
                    let vectors = Dim::new("kv heads", 2 * kv_heads.get())?;
                    self.elementwise("kv_write", ElementwiseKind::KvWrite, vectors, head_dim, count);
                }
                let shape = (heads, kv_heads, head_dim, head_dim);
                self.mix(shape, window, Cache::Separate, count)?;
                query
            }
            AttentionLayer::Latent { heads, query_rank, rank, plain_dim, rotary_dim, value_dim } => {
                self.shareable("attention heads", heads)?;
                let heads = self.share(heads);
                let key_dim = Dim::new("qk head dim", plain_dim.get() + rotary_dim.get())?;
                let queries = Self::product("heads x qk head dim", heads, key_dim)?;
                match query_rank {
                    Some(rank) => {
                        self.linear("q_a_proj", rank, hidden, count, Role::Query);
                        self.linear("q_b_proj", queries, rank, count, Role::Query);
                    }
                    None => self.linear("q_proj", queries, hidden, count, Role::Query),
                }
                let latent = Dim::new("kv rank", rank.get() + rotary_dim.get())?;
                self.linear("kv_a_proj", latent, hidden, count, Role::Key);
                if !self.lowering.fused {
                    if let Some(rank) = query_rank {
                        self.elementwise("q_a_norm", ElementwiseKind::Norm, Dim::ONE, rank, count);
                    }
                    self.elementwise("kv_a_norm", ElementwiseKind::Norm, Dim::ONE, rank, count);
                    let rotated = Dim::new("heads", heads.get() + 1)?;
                    self.elementwise("rope", ElementwiseKind::Rope, rotated, rotary_dim, count);
                    self.elementwise("kv_write", ElementwiseKind::KvWrite, Dim::ONE, latent, count);
                }
                let expanded = Dim::new("kv_b", heads.get() * (plain_dim.get() + value_dim.get()))?;
                let (long, short) = (latent.get() + rank.get(), key_dim.get() + value_dim.get());
                if self.absorbs(long, short, expanded.get() * rank.get() / heads.get()) {
                    // The expansion is absorbed into queries and outputs, one product per head with the same weights and
                    // operations, and attention runs on the compressed vectors.
                    self.linear("kv_b_proj", expanded, rank, count, Role::Value);
                    self.mix((heads, Dim::ONE, latent, rank), None, Cache::Latent, count)?;
                } else {
                    // Keys and values of the whole context are expanded.
                    let keys = Self::product("batch x context", self.workload.sequences, self.workload.context)?;
                    let expand = Op::Linear(Linear { m: keys, n: expanded, k: rank });
                    self.push("kv_b_proj", expand, count, Part::One(Role::Value));
                    self.mix((heads, heads, key_dim, value_dim), None, Cache::Expanded, count)?;
                }
                Self::product("heads x v_head_dim", heads, value_dim)?
            }
        };
        self.linear("o_proj", hidden, out, count, Role::Output);
        self.all_reduce(count);
        Ok(())
    }

    /// Whether absorbing takes fewer operations than expanding: `new` tokens pay `long` instead of `short` features per key,
    /// and save expanding the keys before them. Per head and sequence, a multiply-add each.
    fn absorbs(&self, long: u64, short: u64, expansion: u64) -> bool {
        let (new, context) = (self.workload.new.float(), self.workload.context.float());
        let extra = new * context * (long as f64 - short as f64);
        extra <= (context - new) * expansion as f64
    }

    /// Scores, softmax and values.
    fn mix(&mut self, shape: (Dim, Dim, Dim, Dim), window: Option<Dim>, cache: Cache, count: u64) -> Result<()> {
        let (heads, kv_heads, head_dim, value_dim) = shape;
        let Workload { sequences: batch, new: queries, context } = self.workload;
        let window = window.filter(|window| *window < context);
        let causal = self.lowering.causal;
        let attention =
            Attention { batch, heads, kv_heads, head_dim, value_dim, queries, context, causal, window, cache }
                .checked()?;
        let names = if window.is_some() { WINDOW } else { &[] };
        self.append(&Graph::attention(attention, self.lowering.fused), names, count);
        Ok(())
    }

    /// Kernels of a part of a layer, under other names where it stands in another place.
    fn append(&mut self, part: &Graph, names: &[(&str, &'static str)], count: u64) {
        for node in &part.nodes {
            let other = names.iter().find(|(site, _)| *site == node.site).map(|(_, other)| *other);
            self.push(other.unwrap_or(node.site), node.op, count, node.part);
        }
    }

    fn feed_forward(&mut self, layer: &FeedForward, count: u64) {
        let (tokens, hidden) = (self.tokens, self.model.hidden);
        let dense = |lower: &Self, inner: Dim, gated: bool| {
            Graph::ffn(Ffn { tokens, hidden, inner: lower.share(inner), gated }, lower.lowering.fused)
        };
        match *layer {
            FeedForward::Dense { inner, gated, .. } => self.append(&dense(self, inner, gated), &[], count),
            FeedForward::Experts { experts, active, inner, shared, gated, .. } => {
                let router = Linear { m: tokens, n: experts, k: hidden };
                self.push("router", Op::Linear(router), count, Part::One(Role::Router));
                self.experts((experts, active, self.share(inner)), gated, count);
                if let Some(shared) = shared {
                    self.append(&dense(self, shared, gated), SHARED, count);
                }
            }
        }
        self.all_reduce(count);
    }

    fn experts(&mut self, (experts, active, inner): (Dim, Dim, Dim), gated: bool, count: u64) {
        let (tokens, hidden) = (self.tokens, self.model.hidden);
        let side = |side, n, k| Op::Experts(Experts { tokens, experts, active, n, k, side });
        match (self.lowering.fused, gated) {
            (true, true) => {
                self.push("experts_gate_up", side(ExpertSide::GatedUp, inner, hidden), count, Part::ExpertGateUp);
            }
            (_, gated) => {
                if gated {
                    self.push("experts_gate", side(ExpertSide::Up, inner, hidden), count, Part::One(Role::ExpertGate));
                }
                self.push("experts_up", side(ExpertSide::Up, inner, hidden), count, Part::One(Role::ExpertUp));
            }
        }
        if !self.lowering.fused {
            let kind = if gated { ElementwiseKind::GatedActivation } else { ElementwiseKind::Activation };
            let rows = tokens.wide() * active.wide();
            let op = Elementwise { kind, tokens: rows, vectors: Dim::ONE, width: inner };
            self.push("experts_activation", Op::Elementwise(op), count, Part::One(Role::ExpertDown));
        }
        self.push("experts_down", side(ExpertSide::Down, hidden, inner), count, Part::One(Role::ExpertDown));
    }

    /// The last norm and the logits.
    fn head(&mut self) {
        let hidden = self.model.hidden;
        let rows = if self.lowering.all_logits { self.tokens } else { self.workload.sequences };
        if !self.lowering.fused {
            let (kind, tokens) = (ElementwiseKind::Norm, rows.wide());
            let op = Elementwise { kind, tokens, vectors: Dim::ONE, width: hidden };
            self.push("final_norm", Op::Elementwise(op), 1, Part::One(Role::Vector));
        }
        let n = self.share(self.model.vocabulary);
        self.push("logit_proj", Op::Linear(Linear { m: rows, n, k: hidden }), 1, Part::One(Role::Head));
    }
}
