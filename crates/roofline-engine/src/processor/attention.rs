//! Queries over the cache.

use std::ops::Range;

use roofline_core::{
    Dim,
    model::AttentionLayer,
    op::{self, Cache},
    program::{Step, Weight},
};
use roofline_run::cpu::{
    Tensor,
    kernels::{
        attention::{Attention, Manner},
        elementwise::Heads,
    },
};

use super::{Pass, ProcessorSession};
use crate::{Error, Result, weights::Held};

/// The dimensions of a layer's attention.
#[derive(Clone, Copy)]
pub(crate) struct Grouped {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) width: usize,
    /// Features that are turned.
    pub(crate) rotary: usize,
    pub(crate) window: Option<usize>,
}

impl Grouped {
    pub(crate) fn pitch(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.width
    }

    pub(super) fn queries(&self) -> Heads {
        Heads::dense(self.heads, self.width).within(self.pitch(), 0)
    }

    pub(super) fn keys(&self) -> Heads {
        Heads::dense(self.kv_heads, self.width).within(self.pitch(), self.heads * self.width)
    }

    pub(super) fn values(&self) -> Heads {
        Heads::dense(self.kv_heads, self.width).within(self.pitch(), (self.heads + self.kv_heads) * self.width)
    }
}

pub(crate) fn grouped(layer: &AttentionLayer) -> Result<Grouped> {
    match *layer {
        AttentionLayer::Grouped { heads, kv_heads, head_dim, rotary_dim, window, .. } => Ok(Grouped {
            heads: heads.get() as usize,
            kv_heads: kv_heads.get() as usize,
            width: head_dim.get() as usize,
            rotary: rotary_dim.get() as usize,
            window: window.map(|window| window.get() as usize),
        }),
        AttentionLayer::Latent { .. } => {
            Err(Error::unsupported("latent attention (DeepSeek)", "there is no kernel over a compressed cache"))
        }
    }
}

impl ProcessorSession<'_, '_> {
    /// The cache of a layer, and what its attention is.
    pub(super) fn grouped(&self, layer: Option<usize>) -> Result<(usize, Grouped)> {
        let layer = layer.ok_or_else(|| Error::missing("a layer"))?;
        Ok((layer, grouped(&self.engine.shape(layer).attention)?))
    }

    pub(super) fn attention(&mut self, pass: &Pass, layer: Option<usize>, step: &Step) -> Result<()> {
        let (at, shape) = self.grouped(layer)?;
        let sinks = match step.weights {
            [Weight::Sinks] => match self.engine.weights.held(layer, step.weights)? {
                Held::Vectors(vectors) => Some(vectors[0].0.clone()),
                _ => return Err(Error::missing("sinks")),
            },
            _ => None,
        };
        let starts: Vec<usize> = pass.sequences.clone().map(|one| self.lengths[one]).collect();
        let even = starts.windows(2).all(|pair| pair[0] == pair[1]);
        let groups: Vec<Range<usize>> =
            if even { vec![pass.sequences.clone()] } else { pass.sequences.clone().map(|one| one..one + 1).collect() };
        for group in groups {
            let cache = &self.caches[at];
            let context = self.lengths[group.start] + pass.new - cache.first[group.start];
            // Layers of one shape share a plan, but each has sinks of its own.
            let shared = self.engine.model.anatomy.order[at];
            let own = if sinks.is_some() { 256 + at } else { usize::from(shared) };
            let key = (own, group.len(), pass.new == 1);
            if !self.attentions.contains_key(&key) {
                let planned = self.plan_attention(&shape, at, group.len(), pass.new == 1, sinks.clone())?;
                self.attentions.insert(key, planned);
            }
            let Some(attention) = self.attentions.get_mut(&key) else { continue };
            let cache = &self.caches[at];
            let rows_each = shape.kv_heads * cache.capacity;
            let (keys, values) =
                (cache.keys.tensor(group.clone(), rows_each), cache.values.tensor(group.clone(), rows_each));
            let first = (group.start - pass.sequences.start) * pass.new;
            let rows = first..first + group.len() * pass.new;
            let queries = self.room.query.part(rows.clone());
            let queries = Tensor::plain(queries.format, rows.len() * shape.heads, shape.width, queries.codes);
            let out = self.room.mixed.part_mut(rows);
            attention.run_at(&mut self.pool, context, queries, keys, values, out);
        }
        Ok(())
    }

    pub(super) fn plan_attention(
        &self,
        shape: &Grouped,
        layer: usize,
        batch: usize,
        one: bool,
        sinks: Option<Vec<f32>>,
    ) -> Result<Attention> {
        let dim = |size: usize| Dim::new("attention", size as u64);
        let capacity = self.caches[layer].capacity;
        let queries = if one { 1 } else { (self.most / self.lengths.len()).clamp(1, capacity) };
        // A batch of one may have the whole pass to itself.
        let queries = if one || batch == self.lengths.len() { queries } else { self.most.min(capacity) };
        let op = op::Attention {
            batch: dim(batch)?,
            heads: dim(shape.heads)?,
            kv_heads: dim(shape.kv_heads)?,
            head_dim: dim(shape.width)?,
            value_dim: dim(shape.width)?,
            queries: dim(queries)?,
            context: dim(capacity)?,
            causal: true,
            window: shape.window.map(dim).transpose()?,
            cache: Cache::Separate,
        };
        let arithmetic = &self.engine.model.arithmetic;
        let manner = Manner {
            scale: arithmetic.attention_scale.map(|scale| scale as f32),
            soft_cap: arithmetic.score_cap.map(|cap| cap as f32),
            sinks,
            capacity: Some(capacity),
        };
        let threads = self.pool.threads();
        let numbers = self.engine.numbers();
        Ok(Attention::plan_on(&op, &numbers, threads, self.engine.settings.isa)?.with(&manner)?)
    }
}
