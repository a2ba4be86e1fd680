//! Element-wise steps: those that are kernels, and those that run inside of one.

use roofline_core::{
    Op,
    op::ElementwiseKind,
    program::{Step, Value, Weight},
};
use roofline_run::cpu::kernels::elementwise::{Heads, Target};

use super::{Pass, ProcessorSession};
use crate::{Error, Result, weights::Held};

pub(super) fn check_length(site: &str, weight: &[f32], length: usize) -> Result<()> {
    if weight.len() == length {
        return Ok(());
    }
    Err(Error::shape(site, &[weight.len()], &format!("{length} numbers")))
}

impl ProcessorSession<'_, '_> {
    /// Element-wise work: a kernel's own, or what is fused into it.
    pub(super) fn small_step(&mut self, pass: &Pass, layer: Option<usize>, step: &Step) -> Result<()> {
        let Op::Elementwise(op) = step.op else {
            return Err(Error::unsupported(step.site, "only element-wise work runs inside of kernels"));
        };
        match op.kind {
            ElementwiseKind::Embedding => self.embedding(pass, step),
            ElementwiseKind::Norm => self.norm(pass, layer, step),
            ElementwiseKind::Rope => {
                let (_, shape) = self.grouped(layer)?;
                let local = usize::from(shape.window.is_some()).min(self.rotations.len() - 1);
                let Self { small, pool, room, rotations, .. } = self;
                let rows = pass.rows();
                let rotations = &rotations[local];
                let projected = room.projected.tensor(rows);
                let dense = Heads::dense(shape.heads, shape.width);
                let out = (room.query.target(rows), dense);
                small.rope_heads(pool, (projected, shape.queries()), rotations, &pass.positions, out)?;
                let keys = room.projected.target(rows);
                Ok(small.rope_in_place(pool, keys, shape.keys(), rotations, &pass.positions)?)
            }
            ElementwiseKind::KvWrite => self.write(pass, layer),
            ElementwiseKind::Residual => {
                let Self { small, pool, room, .. } = self;
                let rows = pass.rows();
                let added = if step.reads.contains(&Value::Attended) { &room.attended } else { &room.fed };
                Ok(small.residual_in_place(pool, room.stream.target(rows), added.tensor(rows))?)
            }
            kind => Err(Error::unsupported(step.site, format!("{kind:?} runs inside of no kernel"))),
        }
    }

    pub(super) fn embedding(&mut self, pass: &Pass, step: &Step) -> Result<()> {
        let Held::Products(tables) = self.engine.weights.held(None, step.weights)? else {
            return Err(Error::missing("the embedding"));
        };
        let Self { small, pool, room, .. } = self;
        let (rows, table) = (pass.rows(), &tables[0]);
        let vocabulary = self.engine.model.vocabulary.get() as usize;
        if table.columns != room.stream.width || table.rows < vocabulary {
            let expected = format!("{vocabulary} rows of {}", room.stream.width);
            return Err(Error::shape("the embedding", &[table.rows, table.columns], &expected));
        }
        if let Some(tensor) = table.tensor().filter(|_| table.factors.is_none()) {
            small.embedding(pool, tensor, &pass.tokens, room.stream.target(rows))?;
        } else {
            let mut row = vec![0.0; table.columns];
            let out = room.stream.bytes_mut(rows).chunks_exact_mut(4 * table.columns);
            for (token, out) in pass.tokens.iter().zip(out) {
                table.row(*token, &mut row)?;
                for (to, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(&row) {
                    *to = value.to_le_bytes();
                }
            }
        }
        let scale = self.engine.model.arithmetic.embedding_scale;
        if scale != 1.0 {
            small.scale(pool, room.stream.target(rows), scale as f32)?;
        }
        Ok(())
    }

    pub(super) fn norm(&mut self, pass: &Pass, layer: Option<usize>, step: &Step) -> Result<()> {
        let Held::Vectors(vectors) = self.engine.weights.held(layer, step.weights)? else {
            return Err(Error::missing(step.site));
        };
        let epsilon = self.engine.model.arithmetic.norm_epsilon as f32;
        let (weight, bias) = (&vectors[0].0[..], vectors[0].1.as_deref());
        if step.weights == [Weight::QueryNorm, Weight::KeyNorm] {
            let (_, shape) = self.grouped(layer)?;
            let Self { small, pool, room, .. } = self;
            let rows = pass.rows();
            for (heads, (weight, _)) in [shape.queries(), shape.keys()].into_iter().zip(vectors) {
                check_length(step.site, weight, heads.width)?;
                small.norm_in_place(pool, room.projected.target(rows), heads, weight, epsilon)?;
            }
            return Ok(());
        }
        let Self { small, pool, room, .. } = self;
        check_length(step.site, weight, room.stream.width)?;
        let in_place = match step.reads {
            [Value::Attended] => Some(&mut room.attended),
            [Value::Fed] => Some(&mut room.fed),
            _ => None,
        };
        if let Some(slot) = in_place {
            let heads = Heads::dense(1, slot.width);
            return Ok(small.norm_in_place(pool, slot.target(pass.rows()), heads, weight, epsilon)?);
        }
        // Of a chunk's tokens only the last has logits.
        let last = step.weights == [Weight::FinalNorm] && !pass.all && pass.new > 1;
        if last {
            let row = room.stream.row();
            for sequence in 0..pass.sequences.len() {
                let from = ((sequence + 1) * pass.new - 1) * row;
                let own = room.stream.tensor(pass.rows()).codes[from..from + row].to_vec();
                room.last.part_mut(sequence..sequence + 1).copy_from_slice(&own);
            }
        }
        let (x, rows) = if last { (&room.last, pass.sequences.len()) } else { (&room.stream, pass.rows()) };
        let out = room.normed.target(rows);
        if self.engine.model.norms.bias {
            small.layer_norm(pool, x.tensor(rows), (weight, bias), epsilon, out)?;
        } else {
            small.norm(pool, x.tensor(rows), weight, epsilon, out)?;
        }
        Ok(())
    }

    /// New keys and values go to the cache.
    pub(super) fn write(&mut self, pass: &Pass, layer: Option<usize>) -> Result<()> {
        let (at, shape) = self.grouped(layer)?;
        let Self { small, pool, room, caches, slots, lengths, .. } = self;
        let cache = &mut caches[at];
        slots.clear();
        for sequence in pass.sequences.clone() {
            cache.advance(sequence, lengths[sequence], pass.new);
            cache.slots(sequence, lengths[sequence], pass.new, slots);
        }
        let x = room.projected.tensor(pass.rows());
        for (side, heads) in [(&mut cache.keys, shape.keys()), (&mut cache.values, shape.values())] {
            let target = Target { format: side.format, codes: &mut side.codes, scales: &mut side.scales };
            small.kv_write_heads(pool, (x, heads), slots, target)?;
        }
        Ok(())
    }
}
