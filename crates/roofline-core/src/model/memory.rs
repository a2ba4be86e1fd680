//! What a model occupies: weights, cache and the tensors in flight, and what of it fits a device.

use schemars::JsonSchema;
use serde::Serialize;

use super::{AttentionLayer, Lowering, Model, Workload};
use crate::{
    Device, Dim, Format, Graph, Result, Role,
    format::{Shape, Sizes},
    plan::{Assignment, Kernel},
    units::Bytes,
};

/// Memory on each device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Footprint {
    /// All weights, used by a token or not.
    pub weights: Bytes,
    /// Keys and values of the whole context.
    pub kv: Bytes,
    /// The residual stream and the largest kernel's inputs and outputs.
    pub activations: Bytes,
}

impl Footprint {
    /// Everything.
    pub fn total(&self) -> Bytes {
        self.weights + self.kv + self.activations
    }
}

impl Model {
    /// Memory that a pass needs on each of the devices that share it.
    pub fn footprint(
        &self,
        workload: Workload,
        lowering: Lowering,
        plan: &Assignment,
        sizes: Sizes,
    ) -> Result<Footprint> {
        Ok(self.footprint_of(&self.graph(workload, lowering)?, workload, lowering.ranks, plan, sizes))
    }

    /// The same for a graph that is there already: that of `workload`, shared by `ranks` devices.
    pub fn footprint_of(
        &self,
        graph: &Graph,
        workload: Workload,
        ranks: Dim,
        plan: &Assignment,
        sizes: Sizes,
    ) -> Footprint {
        let weights = self.weights_of(graph, ranks, plan, sizes);
        let mut largest = Bytes::ZERO;
        plan.kernels(graph, |Kernel { node, precision }| {
            let moved = node.op.work(precision, sizes).bytes();
            largest = largest.max(node.op.in_flight(moved, precision, sizes));
        });
        self.occupied(weights, largest, workload, ranks, plan, sizes)
    }

    /// The same where the weights and the largest kernel's inputs and outputs are known.
    pub(crate) fn occupied(
        &self,
        weights: Bytes,
        largest: Bytes,
        workload: Workload,
        ranks: Dim,
        plan: &Assignment,
        sizes: Sizes,
    ) -> Footprint {
        let kv = self.kv_bytes(workload.sequences, workload.context, ranks, plan.kv(), sizes);
        let tokens = workload.sequences.wide() * workload.new.wide();
        let residual = plan.at(Role::Mix).query.bytes(Shape::new(tokens, self.hidden), sizes);
        Footprint { weights, kv, activations: residual + largest }
    }

    /// The bytes of all weights on each of `ranks` devices, whatever a pass is over.
    pub(crate) fn weights_of(&self, graph: &Graph, ranks: Dim, plan: &Assignment, sizes: Sizes) -> Bytes {
        let mut weights = Bytes::ZERO;
        let mut elements: u128 = 0;
        plan.kernels(graph, |Kernel { node, precision }| {
            let Some(matrix) = node.op.weights() else { return };
            let (shape, count) = (Shape::matrix(matrix.n, matrix.k), matrix.count * u128::from(node.count));
            weights += precision.weights.bytes(shape, sizes) * count as f64;
            elements += shape.elements() * count;
        });
        let ranks = ranks.wide();
        // A tied embedding is the LM head; an untied one is a table of its own. Biases and norms are the rest.
        let embedding = self.vocabulary.wide() * self.hidden.wide();
        let whole = if self.tied { self.parameters() } else { self.parameters() - embedding };
        let rest = whole.saturating_sub(elements * ranks) / ranks;
        let wide = f64::from(plan.at(Role::Vector).weights.nominal_bits()) / 8.0;
        weights += Bytes::new(rest as f64 * wide);
        if !self.tied {
            let table = Shape::matrix(self.vocabulary, self.hidden);
            weights += plan.at(Role::Embedding).weights.bytes(table, sizes) / ranks as f64;
        }
        weights
    }

    /// The cache of `sequences` with `context` tokens each, on each of `ranks` devices. A sliding-window layer keeps its
    /// window, a latent one a compressed vector per token.
    pub fn kv_bytes(&self, sequences: Dim, context: Dim, ranks: Dim, kv: Format, sizes: Sizes) -> Bytes {
        let layer = |attention: &AttentionLayer| match *attention {
            AttentionLayer::Grouped { kv_heads, head_dim, window, .. } => {
                let tokens = window.map_or(context, |window| window.min(context));
                let heads = kv_heads.wide().div_ceil(ranks.wide());
                let rows = sequences.wide() * heads * tokens.wide();
                kv.bytes(Shape::new(rows, head_dim), sizes) * 2.0
            }
            AttentionLayer::Latent { rank, rotary_dim, .. } => {
                let width = Dim::new("kv rank", rank.get() + rotary_dim.get()).unwrap_or(rank);
                kv.bytes(Shape::new(sequences.wide() * context.wide(), width), sizes)
            }
        };
        self.layers.iter().map(|group| layer(&group.attention) * group.count as f64).sum()
    }

    /// The context at which reading the cache takes as many bytes as reading the weights; none where windows keep the
    /// cache below that for ever.
    pub fn kv_crossover(&self, sequences: Dim, ranks: Dim, kv: Format, sizes: Sizes, weights: Bytes) -> Option<u64> {
        let enough = |context: u64| {
            let context = Dim::new("context", context).ok()?;
            (self.kv_bytes(sequences, context, ranks, kv, sizes) >= weights).then_some(())
        };
        enough(Dim::MAX)?;
        Some(first(1, Dim::MAX, |context| enough(context).is_some()))
    }

    /// Bytes that one step reads but for its cache: its weights, mostly.
    pub fn decode_read(&self, sequences: Dim, lowering: Lowering, plan: &Assignment, sizes: Sizes) -> Result<Bytes> {
        let graph = self.graph(Workload::decode(sequences.get(), 1)?, lowering)?;
        let mut read = Bytes::ZERO;
        plan.kernels(&graph, |Kernel { node, precision }| {
            read += node.op.work(precision, sizes).read * node.count as f64;
        });
        Ok(read)
    }

    /// Stored bits of a cached element, scales counted.
    pub fn bits_per_kv(&self, kv: Format, sizes: Sizes) -> f64 {
        let (one, cached) = (Dim::ONE, self.kv_bytes(Dim::ONE, Dim::ONE, Dim::ONE, kv, sizes));
        let elements = self.kv_bytes(one, one, one, Format::BF16, Sizes::Exact).value() / 2.0;
        8.0 * cached.value() / elements
    }

    /// Stored bits of a weight, scales counted, over all that a footprint of `weights` holds.
    pub fn bits_per_weight(&self, weights: Bytes, ranks: Dim) -> f64 {
        8.0 * weights.value() * ranks.float() / self.parameters() as f64
    }

    /// The longest context that fits, of those the other numbers of `workload` leave and the model was made for; none if not
    /// even one token does.
    pub fn longest_context(
        &self,
        workload: Workload,
        lowering: Lowering,
        plan: &Assignment,
        sizes: Sizes,
        device: &Device,
    ) -> Result<Option<u64>> {
        let longest = largest(device, |context| {
            let new = workload.new.get().min(context);
            self.footprint(Workload::chunk(workload.sequences.get(), new, context)?, lowering, plan, sizes)
        })?;
        // Where windows bound the cache, any number would fit.
        Ok(longest.map(|longest| self.max_context.map_or(longest, |most| longest.min(most.get()))))
    }

    /// The largest batch that fits.
    pub fn largest_batch(
        &self,
        workload: Workload,
        lowering: Lowering,
        plan: &Assignment,
        sizes: Sizes,
        device: &Device,
    ) -> Result<Option<u64>> {
        largest(device, |batch| {
            self.footprint(Workload::chunk(batch, workload.new.get(), workload.context.get())?, lowering, plan, sizes)
        })
    }
}

/// The largest size whose footprint the device holds.
fn largest(device: &Device, footprint: impl Fn(u64) -> Result<Footprint>) -> Result<Option<u64>> {
    let Some(capacity) = device.room().map(|room| room.for_models()) else { return Ok(None) };
    // What overflows a dimension does not fit either.
    let fits = |size: u64| footprint(size).is_ok_and(|footprint| footprint.total() <= capacity);
    if !fits(1) {
        footprint(1)?;
        return Ok(None);
    }
    Ok(Some(first(1, Dim::MAX + 1, |size| !fits(size)) - 1))
}

/// The smallest number in `low..=high` for which `holds`, which must hold for `high` and never stop holding.
fn first(mut low: u64, mut high: u64, holds: impl Fn(u64) -> bool) -> u64 {
    while low < high {
        let middle = u64::midpoint(low, high);
        if holds(middle) { high = middle } else { low = middle + 1 }
    }
    low
}
