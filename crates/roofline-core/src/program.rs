//! A forward pass as ordered steps: what runs, on which values, with which weights, and where the result goes.
//!
//! ```text
//! Model ──lower──▶ Program ──fuse──▶ Program ──count──▶ Graph, which predict reads
//!                                       └─────run─────▶ an engine, which follows the steps
//! ```
//!
//! There is no second description of a model: what is counted is what runs. Layers of one shape have the same steps, so
//! they are kept once, with the order in which shapes follow each other.

mod fusion;
mod value;
mod weight;

pub use value::{CacheUse, Value};
pub use weight::Weight;

use std::sync::Arc;

use crate::{
    Graph, Op,
    graph::Node,
    model::{Anatomy, Rows, Workload},
    role::Part,
};

/// One forward pass of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// What it is a pass over.
    pub workload: Workload,
    /// From tokens to the residual stream.
    pub start: Vec<Step>,
    /// The steps of one layer, for each shape that layers have.
    pub layers: Vec<Vec<Step>>,
    /// From the residual stream to logits.
    pub end: Vec<Step>,
    /// Which shape each layer has, and what plans have to know.
    pub anatomy: Arc<Anatomy>,
}

/// One kernel, and everything it needs to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Where it belongs: `q_proj`, `attention`, `silu_mul`, ...
    pub site: &'static str,
    /// What it computes.
    pub op: Op,
    /// What its weights are for.
    pub part: Part,
    /// What its rows count.
    pub rows: Rows,
    /// The values it reads.
    pub reads: &'static [Value],
    /// The weights it reads.
    pub weights: &'static [Weight],
    /// What it does with the layer's keys and values.
    pub cache: Option<CacheUse>,
    /// Where its result goes.
    pub writes: Value,
    /// What a fused kernel does before that, on its way in: steps whose traffic never reaches memory.
    pub before: Vec<Step>,
    /// The same on its way out.
    pub after: Vec<Step>,
}

impl Step {
    /// The values and weights of a step, without what is fused into it.
    pub(crate) fn new(
        (site, op, part): (&'static str, Op, Part),
        reads: &'static [Value],
        weights: &'static [Weight],
        writes: Value,
    ) -> Self {
        let (rows, cache, before, after) = (Rows::default(), None, Vec::new(), Vec::new());
        Self { site, op, part, rows, reads, weights, cache, writes, before, after }
    }

    /// The same with keys and values.
    pub(crate) fn with_cache(self, cache: CacheUse) -> Self {
        Self { cache: Some(cache), ..self }
    }
}

impl Program {
    /// Every step in the order they run in, with its layer.
    pub fn steps(&self) -> impl Iterator<Item = (Option<usize>, &Step)> {
        let order = self.anatomy.order.iter().enumerate();
        let layers = order
            .flat_map(|(layer, shape)| self.layers[usize::from(*shape)].iter().map(move |step| (Some(layer), step)));
        let (start, end) = (self.start.iter().map(|step| (None, step)), self.end.iter().map(|step| (None, step)));
        start.chain(layers).chain(end)
    }

    /// The same pass with element-wise work inside its neighbours, attention in one kernel, and products of one input
    /// together.
    #[must_use]
    pub fn fused(self) -> Self {
        let layers = self.layers.iter().map(|steps| fusion::fused(steps)).collect();
        Self { start: fusion::fused(&self.start), layers, end: fusion::fused(&self.end), ..self }
    }

    /// Its kernels, equal ones counted together.
    pub fn graph(&self) -> Graph {
        let mut nodes = Vec::with_capacity(24);
        count(&mut nodes, &self.start, 1, 0);
        for (shape, steps) in self.layers.iter().enumerate() {
            let layers = self.anatomy.order.iter().filter(|own| usize::from(**own) == shape).count();
            count(&mut nodes, steps, layers as u64, 1 << shape);
        }
        count(&mut nodes, &self.end, 1, 0);
        Graph { nodes, anatomy: Some(Arc::clone(&self.anatomy)) }
    }
}

/// Adds the kernels of `steps`, each `times` times, or counts them with equal ones.
pub(crate) fn count(nodes: &mut Vec<Node>, steps: &[Step], times: u64, groups: u16) {
    for step in steps {
        let Step { site, op, part, rows, .. } = *step;
        match nodes.iter_mut().find(|node| node.site == site && node.op == op && node.part == part) {
            Some(node) => {
                node.count += times;
                node.groups |= groups;
            }
            None => nodes.push(Node { site, op, count: times, part, rows, groups }),
        }
    }
}

pub(crate) use fusion::fused;

#[cfg(test)]
mod tests;
