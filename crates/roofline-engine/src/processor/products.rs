//! Steps with weights: products, the functions behind them, and experts.

use std::time::Instant;

use roofline_core::{
    Op,
    op::{self, ExpertSide},
    program::{Step, Value},
};
use roofline_run::cpu::{
    Tensor,
    kernels::elementwise::{Heads, Pairs, Target},
};

use super::{Part, Pass, ProcessorSession, inputs::given};
use crate::{Error, Result, routing, weights::Held};

impl ProcessorSession<'_, '_> {
    /// A product, with the activation function behind it where the step has one.
    pub(super) fn linear(&mut self, pass: &Pass, layer: Option<usize>, step: &Step) -> Result<Vec<Part>> {
        let Held::Products(matrices) = self.engine.weights.held(layer, step.weights)? else {
            return Err(Error::missing(step.site));
        };
        let Self { products, pool, room, small, seen, .. } = self;
        let rows = if step.writes == Value::Logits { pass.heads() } else { pass.rows() };
        // Layers of one model may be of different widths.
        let expected = match step.op {
            Op::ActivatedLinear(linear) => {
                let inner = linear.linear.n.get() as usize;
                room.inner.widen_to(inner);
                room.wide.widen_to(if linear.gated { 2 * inner } else { inner });
                room.wide.width
            }
            Op::Linear(linear) => linear.n.get() as usize,
            _ => 0,
        };
        let (input, output) = match step.writes {
            Value::Query => (&room.normed, &mut room.projected),
            Value::Attended => (&room.mixed, &mut room.attended),
            Value::Inner => (&room.normed, &mut room.wide),
            Value::Fed => (&room.inner, &mut room.fed),
            Value::Choice => (&room.normed, &mut room.scores),
            Value::Logits => (&room.normed, &mut room.logits),
            other => return Err(Error::unsupported(step.site, format!("nothing runs that writes {other:?}"))),
        };
        let (x, mut last) = (input.tensor(rows), None);
        seen.dense(step.weights, x)?;
        let mut parts: Vec<Part> = matrices.iter().map(Part::of).collect();
        let width: usize = matrices.iter().map(|matrix| matrix.rows).sum();
        let gated = matches!(step.op, Op::ActivatedLinear(linear) if linear.gated);
        if width != expected || width != output.width {
            return Err(Error::shape(step.site, &[width], &format!("{expected} outputs")));
        }
        match &matrices[..] {
            [matrix] => {
                let format = output.format;
                let x = given(pool, matrix, x, &mut room.rounded, &mut last)?;
                products.run(pool, matrix, x, output.bytes_mut(rows), format)?;
            }
            // Gate and way up one behind the other.
            several if gated => {
                let bytes = output.format.nominal_bits() as usize / 8;
                let mut rest = output.part_mut(0..rows);
                for (matrix, part) in several.iter().zip(&mut parts) {
                    let start = Instant::now();
                    let (own, after) = rest.split_at_mut(rows * matrix.rows * bytes);
                    let x = given(pool, matrix, x, &mut room.rounded, &mut last)?;
                    products.run(pool, matrix, x, own, room.apart.format)?;
                    rest = after;
                    part.time += start.elapsed();
                }
            }
            // Queries, keys and values side by side.
            several => {
                let mut offset = 0;
                for (matrix, part) in several.iter().zip(&mut parts) {
                    let start = Instant::now();
                    let bytes = rows * matrix.rows * room.apart.format.nominal_bits() as usize / 8;
                    let own = &mut room.apart.bytes_mut(rows)[..bytes];
                    let x = given(pool, matrix, x, &mut room.rounded, &mut last)?;
                    products.run(pool, matrix, x, own, output.format)?;
                    let heads = Heads::dense(1, matrix.rows);
                    let from = Tensor::plain(output.format, rows, matrix.rows, own);
                    let to = heads.within(output.width, offset);
                    small.copy_heads(pool, (from, heads), (output.target(rows), to))?;
                    offset += matrix.rows;
                    part.time += start.elapsed();
                }
            }
        }
        match step.op {
            Op::ActivatedLinear(linear) => {
                let function = self.engine.activation()?;
                let (out, wide) = (room.inner.target(rows), &room.wide);
                match (linear.gated, matrices.len()) {
                    (true, 1) => small.gated_pairs(pool, function, Pairs::SideBySide, wide.tensor(rows), out)?,
                    (true, _) => {
                        let half = rows * wide.row() / 2;
                        let both = wide.tensor(rows).codes;
                        let of = |codes| Tensor::plain(wide.format, rows, wide.width / 2, codes);
                        small.gated(pool, function, of(&both[..half]), of(&both[half..]), out)?;
                    }
                    (false, _) => small.activation(pool, function, wide.tensor(rows), out)?,
                }
            }
            _ if step.writes == Value::Logits => {
                if let Some(cap) = self.engine.model.arithmetic.logit_cap {
                    small.soft_cap(pool, room.logits.target(rows), cap as f32)?;
                }
            }
            _ if step.writes == Value::Choice => {
                let (experts, active) = self.engine.experts(layer)?;
                let routing = self.engine.model.arithmetic.routing;
                routing::visits(&room.scores.floats(rows), experts, active, routing, &mut self.visits);
            }
            _ => {}
        }
        Ok(parts)
    }

    /// One side of the experts: each sees the rows of its tokens.
    pub(super) fn experts(
        &mut self,
        pass: &Pass,
        layer: Option<usize>,
        step: &Step,
        op: &op::Experts,
    ) -> Result<Vec<Part>> {
        let Held::Experts { experts, turns } = self.engine.weights.held(layer, step.weights)? else {
            return Err(Error::missing(step.site));
        };
        let Self { products, pool, room, small, visits, seen, .. } = self;
        let rows = visits.len();
        let down = op.side == ExpertSide::Down;
        if !down {
            room.inner.widen_to(op.n.get() as usize);
            room.wide.widen_to(2 * op.n.get() as usize);
        }
        if !down {
            let (row, normed) = (room.normed.row(), room.normed.tensor(pass.rows()).codes);
            for (visit, to) in visits.iter().zip(room.gathered.bytes_mut(rows).chunks_exact_mut(row)) {
                to.copy_from_slice(&normed[visit.token * row..(visit.token + 1) * row]);
            }
        }
        let (input, output) = if down { (&room.inner, &mut room.visited) } else { (&room.gathered, &mut room.wide) };
        let mut parts: Vec<Part> = experts.first().map(|own| own.iter().map(Part::of).collect()).unwrap_or_default();
        for group in visits.chunk_by(|one, other| one.expert == other.expert) {
            let start = visits.partition_point(|visit| visit.expert < group[0].expert);
            let own = start..start + group.len();
            let matrices = experts.get(group[0].expert).ok_or_else(|| Error::missing(step.site))?;
            let width: usize = matrices.iter().map(|matrix| matrix.rows).sum();
            if width != output.width {
                return Err(Error::shape(step.site, &[width], &format!("{} outputs", output.width)));
            }
            let (x, mut last) = (input.part(own.clone()), None);
            seen.expert(step.weights, group, x)?;
            let format = output.format;
            match &matrices[..] {
                [matrix] => {
                    let x = given(pool, matrix, x, &mut room.rounded, &mut last)?;
                    products.run(pool, matrix, x, output.part_mut(own), format)?;
                }
                several => {
                    let mut offset = 0;
                    for (at, matrix) in several.iter().enumerate() {
                        let start = Instant::now();
                        let bytes = group.len() * matrix.rows * format.nominal_bits() as usize / 8;
                        let place = &mut room.apart.bytes_mut(group.len())[..bytes];
                        let x = given(pool, matrix, x, &mut room.rounded, &mut last)?;
                        products.run(pool, matrix, x, place, format)?;
                        let heads = Heads::dense(1, matrix.rows);
                        let from = Tensor::plain(format, group.len(), matrix.rows, place);
                        let to = heads.within(output.width, offset);
                        let target = Target::plain(format, output.part_mut(own.clone()));
                        small.copy_heads(pool, (from, heads), (target, to))?;
                        offset += matrix.rows;
                        // The first expert may have in one matrix what this one has in two.
                        if let Some(part) = parts.get_mut(at) {
                            part.time += start.elapsed();
                        }
                    }
                }
            }
        }
        if down {
            let (weights, tokens): (Vec<f32>, Vec<usize>) =
                visits.iter().map(|visit| (visit.weight, visit.token)).unzip();
            room.fed.bytes_mut(pass.rows()).fill(0);
            let target = room.fed.target(pass.rows());
            small.add_scaled(pool, target, room.visited.tensor(rows), &weights, &tokens)?;
        } else {
            let function = self.engine.activation()?;
            let pairs = if *turns { Pairs::InTurns } else { Pairs::SideBySide };
            small.gated_pairs(pool, function, pairs, room.wide.tensor(rows), room.inner.target(rows))?;
        }
        Ok(parts)
    }
}
