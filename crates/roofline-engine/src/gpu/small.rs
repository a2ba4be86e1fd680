//! Element-wise steps: kept until the kernel that does them, or done.

use roofline_core::{
    Op,
    op::ElementwiseKind,
    program::{Step, Value, Weight},
};
use roofline_run::cuda::model::{Added, Memory, Norm, RopeWrite};

use super::{
    GpuHeld,
    pass::{Norming, Steps},
};
use crate::{
    Error, Result,
    processor::{Grouped, grouped},
};

impl Steps<'_, '_> {
    pub(super) fn small(&mut self, layer: Option<usize>, step: &Step) -> Result<()> {
        let Op::Elementwise(op) = step.op else {
            return Err(Error::unsupported(step.site, "only element-wise work runs inside of kernels"));
        };
        match op.kind {
            ElementwiseKind::Embedding => self.waiting.embedding = true,
            ElementwiseKind::Norm if step.weights == [Weight::QueryNorm, Weight::KeyNorm] => {
                self.waiting.heads = Some([self.vector(layer, step.weights, 0)?, self.vector(layer, step.weights, 1)?]);
            }
            ElementwiseKind::Norm if matches!(step.reads, [Value::Attended | Value::Fed]) => {
                self.waiting.post = Some(self.vector(layer, step.weights, 0)?);
            }
            ElementwiseKind::Norm if self.waiting.norm == Norming::Before => self.waiting.norm = Norming::Behind,
            ElementwiseKind::Norm => self.norm(layer, step)?,
            ElementwiseKind::Rope => self.waiting.turned = true,
            ElementwiseKind::KvWrite => self.turn(layer)?,
            ElementwiseKind::Residual if self.waiting.norm == Norming::Before => {}
            ElementwiseKind::Residual => {
                let value = if step.reads.contains(&Value::Attended) { Value::Attended } else { Value::Fed };
                // What experts add up to is FP32.
                let experts = layer.is_some_and(|layer| self.has_experts(layer));
                let place = self.place(value)?.address();
                self.waiting.added.push((place, value == Value::Fed && experts));
            }
            kind => return Err(Error::unsupported(step.site, format!("{kind:?} runs inside of no kernel"))),
        }
        Ok(())
    }

    fn has_experts(&self, layer: usize) -> bool {
        let model = self.session.model;
        let shape = &model.layers[usize::from(model.anatomy.order[layer])];
        matches!(shape.feed_forward, roofline_core::model::FeedForward::Experts { .. })
    }

    /// What waits to be added to the stream, without a norm behind it.
    pub(super) fn flush(&mut self) -> Result<()> {
        if self.waiting.embedding || !self.waiting.added.is_empty() {
            let norm = self.waiting_norm(self.pass.shape.rows())?;
            self.session.kernels.norm(&norm)?;
        }
        Ok(())
    }

    /// A norm of the stream, with everything that waits for it.
    fn waiting_norm(&mut self, rows: usize) -> Result<Norm> {
        let session = &*self.session;
        let embedding = if std::mem::take(&mut self.waiting.embedding) {
            let GpuHeld::Embedding { table, .. } = session.held.held(None, &[Weight::Embedding])? else {
                return Err(Error::missing("the embedding"));
            };
            let scale = session.model.arithmetic.embedding_scale as f32;
            Some((session.room.tokens(), table.address(), scale))
        } else {
            None
        };
        let added = std::mem::take(&mut self.waiting.added);
        let wide = added.first().is_some_and(|(_, wide)| *wide);
        if added.len() > 2 || added.iter().any(|(_, own)| *own != wide) {
            return Err(Error::unsupported(&session.model.name, "what its layers add up is of different numbers"));
        }
        let at = |at: usize| added.get(at).map(|(address, _)| *address);
        Ok(Norm {
            rows,
            width: session.model.hidden.get() as usize,
            stream: session.room.streams[self.stream].address(),
            embedding,
            added: Added { first: at(0), second: at(1), wide, post: self.waiting.post.take() },
            weight: None,
            bias: None,
            centred: session.model.norms.bias,
            epsilon: session.model.arithmetic.norm_epsilon as f32,
            last_of: None,
            out: session.room.normed.address(),
        })
    }

    fn norm(&mut self, layer: Option<usize>, step: &Step) -> Result<()> {
        let shape = self.pass.shape;
        // Of a chunk's tokens only the last has logits.
        let last = step.weights == [Weight::FinalNorm] && !shape.all && shape.new > 1;
        if last {
            self.flush()?;
        }
        let vectors = self.session.held.vectors(layer, step.weights)?;
        let (weight, bias) = vectors.first().ok_or_else(|| Error::missing(step.site))?;
        let (weight, bias) = (Some(weight.address()), bias.as_ref().map(Memory::address));
        let rows = if last { shape.sequences } else { shape.rows() };
        let norm = self.waiting_norm(rows)?;
        let norm = Norm { weight, bias, last_of: last.then_some(shape.new), ..norm };
        Ok(self.session.kernels.norm(&norm)?)
    }

    /// The cache of a layer, and what its attention is.
    pub(super) fn grouped(&self, layer: Option<usize>) -> Result<(usize, Grouped)> {
        let layer = layer.ok_or_else(|| Error::missing("a layer"))?;
        let model = self.session.model;
        let shape = &model.layers[usize::from(model.anatomy.order[layer])];
        Ok((layer, grouped(&shape.attention)?))
    }

    fn turn(&mut self, layer: Option<usize>) -> Result<()> {
        const PROJECTIONS: &[Weight] = &[Weight::Query, Weight::Key, Weight::Value];
        let (at, shape) = self.grouped(layer)?;
        let (norms, turned) = (self.waiting.heads.take(), std::mem::take(&mut self.waiting.turned));
        let session = &*self.session;
        let local = usize::from(shape.window.is_some()).min(session.tables.len() - 1);
        let pass = self.pass.shape;
        // Of one product, its bias is added here.
        let bias = match session.held.products(layer, PROJECTIONS)? {
            [one] => one.bias.as_ref().map(Memory::address),
            _ => None,
        };
        let cached = session.caches[at].cached();
        let table = if turned { session.tables[local].address() } else { 0 };
        let turn = RopeWrite {
            rows: pass.rows(),
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            width: shape.width,
            rotary: shape.rotary,
            projected: session.room.projected.address(),
            bias,
            norms,
            table,
            positions: session.room.positions(),
            queries: session.room.query.address(),
            cache: cached.places,
            format: cached.format,
            capacity: cached.capacity,
            first: pass.first,
            step: pass.new,
            epsilon: session.model.arithmetic.norm_epsilon as f32,
        };
        self.waiting.turn = Some(turn);
        Ok(())
    }
}
