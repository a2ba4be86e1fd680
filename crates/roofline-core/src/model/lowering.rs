//! From a model and a workload to the steps of a pass. Prefill, decode and chunks are the same function with other numbers.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::{AttentionLayer, FeedForward, Model, Rows};
use crate::{
    Dim, Error, Graph, Op, Result,
    graph::{Ffn, attention_steps, feed_forward_steps},
    op::{AllReduce, Attention, Cache, Elementwise, ElementwiseKind, ExpertSide, Experts, Linear},
    program::{CacheUse, Program, Step, Value, Weight},
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
    pub fn tokens(self) -> Result<Dim> {
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
        Ok(self.program(workload, lowering)?.graph())
    }

    /// The steps of one pass, on each of the devices that share it.
    pub fn program(&self, workload: Workload, lowering: Lowering) -> Result<Program> {
        let lower = Lower { model: self, workload, lowering, tokens: workload.tokens()?, steps: Vec::new() };
        let layer = |layer: &super::Layer| Lower { steps: Vec::with_capacity(24), ..lower.clone() }.layer(layer);
        let program = Program {
            workload,
            start: lower.clone().embedding(),
            layers: self.layers.iter().map(layer).collect::<Result<_>>()?,
            end: lower.clone().head()?,
            anatomy: Arc::clone(&self.anatomy),
        };
        Ok(if lowering.fused { program.fused() } else { program })
    }
}

/// Attention of sliding-window layers.
const WINDOW: &[(&str, &str)] =
    &[("qk_score", "window_qk_score"), ("softmax", "window_softmax"), ("sv_prod", "window_sv_prod")];

/// A part of a model that is being lowered.
#[derive(Clone)]
struct Lower<'a> {
    model: &'a Model,
    workload: Workload,
    lowering: Lowering,
    tokens: Dim,
    steps: Vec<Step>,
}

/// The values and weights of a step.
type Operands = (&'static [Value], &'static [Weight], Value);

impl Lower<'_> {
    fn push(&mut self, site: &'static str, op: Op, part: Part, operands: Operands) {
        self.push_over(Rows::Tokens, site, op, part, operands);
    }

    fn push_over(&mut self, rows: Rows, site: &'static str, op: Op, part: Part, (reads, weights, writes): Operands) {
        self.steps.push(Step { rows, ..Step::new((site, op, part), reads, weights, writes) });
    }

    fn linear(&mut self, site: &'static str, n: Dim, k: Dim, role: Role, operands: Operands) {
        self.push(site, Op::Linear(Linear { m: self.tokens, n, k }), Part::One(role), operands);
    }

    fn elementwise(&mut self, site: &'static str, kind: ElementwiseKind, vectors: Dim, width: Dim, operands: Operands) {
        let op = Elementwise { kind, tokens: self.tokens.wide(), vectors, width };
        let role = match kind {
            ElementwiseKind::Embedding => Role::Embedding,
            // What it writes is what the layer's products read.
            ElementwiseKind::Norm => Role::Query,
            ElementwiseKind::Rope | ElementwiseKind::KvWrite => Role::Mix,
            ElementwiseKind::GatedActivation | ElementwiseKind::Activation => Role::Down,
            ElementwiseKind::Residual => Role::Vector,
        };
        self.push(site, Op::Elementwise(op), Part::One(role), operands);
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

    fn embedding(mut self) -> Vec<Step> {
        let operands: Operands = (&[Value::Tokens], &[Weight::Embedding], Value::Stream);
        self.elementwise("embedding", ElementwiseKind::Embedding, Dim::ONE, self.model.hidden, operands);
        self.steps
    }

    /// A layer. Where attention and feed-forward run side by side, one norm feeds both; where there are four norms, what a
    /// part adds to the stream has one, too.
    fn layer(mut self, layer: &super::Layer) -> Result<Vec<Step>> {
        const STREAM: &[Value] = &[Value::Stream];
        let norms = self.model.norms.per_layer;
        let fed: &[Value] = match layer.feed_forward {
            FeedForward::Experts { shared: Some(_), .. } => &[Value::Stream, Value::Fed, Value::Shared],
            _ => &[Value::Stream, Value::Fed],
        };
        self.norm((STREAM, &[Weight::InputNorm], Value::Normed));
        self.attention(&layer.attention)?;
        if norms == 4 {
            self.norm((&[Value::Attended], &[Weight::PostAttentionNorm], Value::Attended));
        }
        if norms > 1 {
            self.residual(&[Value::Stream, Value::Attended]);
            self.norm((STREAM, &[Weight::FeedForwardNorm], Value::Normed));
        }
        self.feed_forward(&layer.feed_forward);
        if norms == 4 {
            self.norm((&[Value::Fed], &[Weight::PostFeedForwardNorm], Value::Fed));
        }
        if norms == 1 {
            self.residual(&[Value::Stream, Value::Attended]);
        }
        self.residual(fed);
        Ok(self.steps)
    }

    fn norm(&mut self, operands: Operands) {
        let site = if self.model.norms.bias { "layernorm" } else { "rmsnorm" };
        self.elementwise(site, ElementwiseKind::Norm, Dim::ONE, self.model.hidden, operands);
    }

    fn residual(&mut self, reads: &'static [Value]) {
        let operands: Operands = (reads, &[], Value::Stream);
        self.elementwise("residual", ElementwiseKind::Residual, Dim::ONE, self.model.hidden, operands);
    }

    /// The sum over devices after a layer's second product.
    fn all_reduce(&mut self, operands: Operands) {
        if self.lowering.ranks > Dim::ONE {
            let reduce = AllReduce { tokens: self.tokens, width: self.model.hidden, ranks: self.lowering.ranks };
            // Sums after attention and after the feed-forward part are the same kernel.
            self.push("all_reduce", Op::AllReduce(reduce), Part::One(Role::Vector), operands);
        }
    }

    fn attention(&mut self, layer: &AttentionLayer) -> Result<()> {
        const NORMED: &[Value] = &[Value::Normed];
        const LATENT: &[Value] = &[Value::QueryLatent];
        let hidden = self.model.hidden;
        let out = match *layer {
            AttentionLayer::Grouped {
                heads, kv_heads, head_dim, rotary_dim, window, query_key_norm, sinks, ..
            } => {
                self.shareable("attention heads", heads)?;
                // Fewer KV heads than devices: each keeps a copy of the one it needs.
                if kv_heads > self.lowering.ranks {
                    self.shareable("KV heads", kv_heads)?;
                }
                let (heads, kv_heads) = (self.share(heads), self.share(kv_heads));
                let query = Self::product("heads x head_dim", heads, head_dim)?;
                let key = Self::product("kv heads x head_dim", kv_heads, head_dim)?;
                self.linear("q_proj", query, hidden, Role::Query, (NORMED, &[Weight::Query], Value::Query));
                self.linear("k_proj", key, hidden, Role::Key, (NORMED, &[Weight::Key], Value::Key));
                self.linear("v_proj", key, hidden, Role::Value, (NORMED, &[Weight::Value], Value::Value));
                let rotated = Dim::new("heads", heads.get() + kv_heads.get())?;
                let both: &[Value] = &[Value::Query, Value::Key];
                if query_key_norm {
                    let norms: &[Weight] = &[Weight::QueryNorm, Weight::KeyNorm];
                    self.elementwise("qk_norm", ElementwiseKind::Norm, rotated, head_dim, (both, norms, Value::Query));
                }
                // Positions that were learned are added to the embedding, and nothing is turned.
                if self.model.positions.is_none() {
                    self.elementwise("rope", ElementwiseKind::Rope, rotated, rotary_dim, (both, &[], Value::Query));
                }
                let vectors = Dim::new("kv heads", 2 * kv_heads.get())?;
                self.write_cache(&[Value::Key, Value::Value], vectors, head_dim);
                let window = window.filter(|_| layer.branches(self.workload));
                self.mix((heads, kv_heads, head_dim, head_dim), window, Cache::Separate, sinks)?;
                query
            }
            AttentionLayer::Latent { heads, query_rank, rank, plain_dim, rotary_dim, value_dim } => {
                self.shareable("attention heads", heads)?;
                let heads = self.share(heads);
                let key_dim = Dim::new("qk head dim", plain_dim.get() + rotary_dim.get())?;
                let queries = Self::product("heads x qk head dim", heads, key_dim)?;
                if let Some(rank) = query_rank {
                    let down: Operands = (NORMED, &[Weight::QueryDown], Value::QueryLatent);
                    self.linear("q_a_proj", rank, hidden, Role::Query, down);
                    let norm: Operands = (LATENT, &[Weight::QueryDownNorm], Value::QueryLatent);
                    self.elementwise("q_a_norm", ElementwiseKind::Norm, Dim::ONE, rank, norm);
                    let up: Operands = (LATENT, &[Weight::QueryUp], Value::Query);
                    self.linear("q_b_proj", queries, rank, Role::Query, up);
                } else {
                    let whole: Operands = (NORMED, &[Weight::QueryUp], Value::Query);
                    self.linear("q_proj", queries, hidden, Role::Query, whole);
                }
                let latent = Dim::new("kv rank", rank.get() + rotary_dim.get())?;
                self.linear("kv_a_proj", latent, hidden, Role::Key, (NORMED, &[Weight::KeyValueDown], Value::Key));
                let norm: Operands = (&[Value::Key], &[Weight::KeyValueDownNorm], Value::Key);
                self.elementwise("kv_a_norm", ElementwiseKind::Norm, Dim::ONE, rank, norm);
                let rotated = Dim::new("heads", heads.get() + 1)?;
                let both: &[Value] = &[Value::Query, Value::Key];
                self.elementwise("rope", ElementwiseKind::Rope, rotated, rotary_dim, (both, &[], Value::Query));
                self.write_cache(&[Value::Key], Dim::ONE, latent);
                let expanded = Dim::new("kv_b", heads.get() * (plain_dim.get() + value_dim.get()))?;
                let unfold: Operands = (&[Value::Key], &[Weight::KeyValueUp], Value::Value);
                if layer.branches(self.workload) {
                    // The expansion is absorbed into queries and outputs, one product per head with the same weights and
                    // operations, and attention runs on the compressed vectors.
                    self.linear("kv_b_proj", expanded, rank, Role::Value, unfold);
                    self.mix((heads, Dim::ONE, latent, rank), None, Cache::Latent, false)?;
                } else {
                    // Keys and values of the whole context are expanded.
                    let expand = Op::Linear(Linear { m: Rows::Keys.of(self.workload)?, n: expanded, k: rank });
                    self.push_over(Rows::Keys, "kv_b_proj", expand, Part::One(Role::Value), unfold);
                    self.mix((heads, heads, key_dim, value_dim), None, Cache::Expanded, false)?;
                }
                Self::product("heads x v_head_dim", heads, value_dim)?
            }
        };
        self.linear("o_proj", hidden, out, Role::Output, (&[Value::Mixed], &[Weight::Output], Value::Attended));
        self.all_reduce((&[Value::Attended], &[], Value::Attended));
        Ok(())
    }

    fn write_cache(&mut self, reads: &'static [Value], vectors: Dim, width: Dim) {
        self.elementwise("kv_write", ElementwiseKind::KvWrite, vectors, width, (reads, &[], Value::Key));
        let written = self.steps.pop().map(|step| step.with_cache(CacheUse::Write));
        self.steps.extend(written);
    }

    /// Scores, softmax and values.
    fn mix(&mut self, shape: (Dim, Dim, Dim, Dim), window: Option<Dim>, cache: Cache, sinks: bool) -> Result<()> {
        let (heads, kv_heads, head_dim, value_dim) = shape;
        let Workload { sequences: batch, new: queries, context } = self.workload;
        let causal = self.lowering.causal;
        let attention =
            Attention { batch, heads, kv_heads, head_dim, value_dim, queries, context, causal, window, cache }
                .checked()?;
        let names = if window.is_some() { WINDOW } else { &[] };
        for mut step in attention_steps(attention) {
            let other = names.iter().find(|(site, _)| *site == step.site).map(|(_, other)| *other);
            step.site = other.unwrap_or(step.site);
            if sinks && matches!(step.op, Op::Softmax(_)) {
                step.weights = &[Weight::Sinks];
            }
            self.steps.push(step);
        }
        Ok(())
    }

    fn feed_forward(&mut self, layer: &FeedForward) {
        let (tokens, hidden) = (self.tokens, self.model.hidden);
        match *layer {
            FeedForward::Dense { inner, gated, .. } => {
                let inner = self.share(inner);
                self.steps.extend(feed_forward_steps(Ffn { tokens, hidden, inner, gated }, false));
            }
            FeedForward::Experts { experts, active, inner, shared, gated, .. } => {
                let router = Linear { m: tokens, n: experts, k: hidden };
                let operands: Operands = (&[Value::Normed], &[Weight::Router], Value::Choice);
                self.push("router", Op::Linear(router), Part::One(Role::Router), operands);
                self.experts((experts, active, self.share(inner)), gated);
                if let Some(shared) = shared {
                    let inner = self.share(shared);
                    self.steps.extend(feed_forward_steps(Ffn { tokens, hidden, inner, gated }, true));
                }
            }
        }
        self.all_reduce((&[Value::Fed], &[], Value::Fed));
    }

    fn experts(&mut self, (experts, active, inner): (Dim, Dim, Dim), gated: bool) {
        const CHOSEN: &[Value] = &[Value::Normed, Value::Choice];
        let (tokens, hidden) = (self.tokens, self.model.hidden);
        let side = |side, n, k| Op::Experts(Experts { tokens, experts, active, n, k, side });
        let up = side(ExpertSide::Up, inner, hidden);
        if gated {
            let operands: Operands = (CHOSEN, &[Weight::ExpertGate], Value::Gate);
            self.push("experts_gate", up, Part::One(Role::ExpertGate), operands);
        }
        self.push("experts_up", up, Part::One(Role::ExpertUp), (CHOSEN, &[Weight::ExpertUp], Value::Up));
        let (kind, reads): (_, &[Value]) = if gated {
            (ElementwiseKind::GatedActivation, &[Value::Gate, Value::Up])
        } else {
            (ElementwiseKind::Activation, &[Value::Up])
        };
        let rows = tokens.wide() * active.wide();
        let op = Elementwise { kind, tokens: rows, vectors: Dim::ONE, width: inner };
        let operands: Operands = (reads, &[], Value::Inner);
        self.push("experts_activation", Op::Elementwise(op), Part::One(Role::ExpertDown), operands);
        let down: Operands = (&[Value::Inner, Value::Choice], &[Weight::ExpertDown], Value::Fed);
        self.push("experts_down", side(ExpertSide::Down, hidden, inner), Part::One(Role::ExpertDown), down);
    }

    /// The last norm and the logits.
    fn head(mut self) -> Result<Vec<Step>> {
        let hidden = self.model.hidden;
        let rows = if self.lowering.all_logits { Rows::Tokens } else { Rows::Sequences };
        let m = rows.of(self.workload)?;
        let op = Elementwise { kind: ElementwiseKind::Norm, tokens: m.wide(), vectors: Dim::ONE, width: hidden };
        let norm: Operands = (&[Value::Stream], &[Weight::FinalNorm], Value::Normed);
        self.push_over(rows, "final_norm", Op::Elementwise(op), Part::One(Role::Vector), norm);
        let n = self.share(self.model.vocabulary);
        let head: Operands = (&[Value::Normed], &[Weight::Head], Value::Logits);
        self.push_over(rows, "logit_proj", Op::Linear(Linear { m, n, k: hidden }), Part::One(Role::Head), head);
        Ok(self.steps)
    }
}
