//! Products, and the functions behind them.

use roofline_core::{
    Op,
    model::arithmetic,
    op::ElementwiseKind,
    program::{Step, Value, Weight},
};
use roofline_run::cuda::model::{Activated, Function, Linear, Memory, Sum, Unnormed};

use super::{
    GpuMatrix,
    pass::{Norming, Steps},
};
use crate::{Error, Result};

impl Steps<'_, '_> {
    /// What is left of the norm of a product's inputs.
    fn unnormed(&mut self, input: Value) -> Option<Unnormed> {
        let left = input == Value::Normed && self.waiting.norm == Norming::Behind;
        if left {
            self.waiting.norm = Norming::Itself;
        }
        let epsilon = self.session.model.arithmetic.norm_epsilon as f32;
        left.then(|| Unnormed { squares: self.session.room.squares.address(), epsilon })
    }

    /// Where the first of `steps` adds its outputs to the stream itself: a product of few rows with nothing but a sum and a
    /// norm between it and the one product that reads that norm.
    pub(super) fn sum(&self, steps: &[(Option<usize>, &Step)]) -> Option<Sum> {
        let (session, shape) = (&*self.session, self.pass.shape);
        let fuses = |own: &GpuMatrix| session.products.fuses(&own.matrix, shape.rows());
        let is = |step: &Step, wanted: ElementwiseKind| matches!(step.op, Op::Elementwise(op) if op.kind == wanted);
        let [(layer, step), (next_layer, next), rest @ ..] = steps else { return None };
        let Ok([one]) = session.held.products(*layer, step.weights) else { return None };
        let plain = matches!(step.op, Op::Linear(_)) && one.bias.is_none() && one.factors.is_none() && fuses(one);
        let between: Vec<_> = step.after.iter().map(|own| (layer, own)).collect();
        let between: Vec<_> = between.into_iter().chain(next.before.iter().map(|own| (next_layer, own))).collect();
        let [(_, residual), (norm_layer, norm)] = &between[..] else { return None };
        let added = is(residual, ElementwiseKind::Residual) && residual.reads.contains(&step.writes);
        if !plain || !added || !is(norm, ElementwiseKind::Norm) || session.model.norms.bias {
            return None;
        }
        // Of a chunk's tokens only the last has logits.
        let last = norm.weights == [Weight::FinalNorm] && !shape.all && shape.new > 1;
        let reads = |step: &Step| step.reads.contains(&Value::Normed);
        let norms = |step: &Step| step.before.iter().chain(&step.after).any(|own| is(own, ElementwiseKind::Norm));
        let others = rest.iter().take_while(|(_, step)| !step.before.iter().any(|own| is(own, ElementwiseKind::Norm)));
        let mut alone = true;
        for (_, step) in others {
            alone &= !reads(step);
            if norms(step) {
                break;
            }
        }
        let readers = session.held.products(*next_layer, next.weights).ok()?;
        let product = matches!(next.op, Op::Linear(_) | Op::ActivatedLinear(_)) && reads(next);
        if last || !alone || !product || !readers.iter().all(fuses) {
            return None;
        }
        let (weight, bias) = session.held.vectors(**norm_layer, norm.weights).ok()?.first()?;
        let [from, to] = [self.stream, 1 - self.stream].map(|at| session.room.streams[at].address());
        let squares = session.room.squares.address();
        bias.is_none().then(|| Sum { from, to, norm: weight.address(), squares })
    }

    /// A product, with the activation function behind it where the step has one.
    pub(super) fn linear(&mut self, layer: Option<usize>, step: &Step, sum: Option<Sum>) -> Result<()> {
        let shape = self.pass.shape;
        let rows = if step.writes == Value::Logits { shape.heads() } else { shape.rows() };
        let input = match step.writes {
            Value::Attended => Value::Mixed,
            Value::Fed => Value::Inner,
            _ => Value::Normed,
        };
        let (x, y) = (self.place(input)?.address(), self.place(step.writes)?.address());
        let unnormed = self.unnormed(input);
        let session = &mut *self.session;
        let held = session.held;
        let matrices = held.products(layer, step.weights)?;
        let wide = matches!(step.writes, Value::Logits | Value::Choice);
        let linear = Linear { m: rows, x, y, wide, gated: false, unnormed, sum: None };
        if let Op::ActivatedLinear(op) = step.op {
            let inner = op.linear.n.get() as usize;
            return self.activated_linear(step, matrices, (inner, op.gated), &linear);
        }
        match matrices {
            [one] => {
                let peers = held.peers(step.weights, 0);
                if let Some(sum) = sum {
                    let linear = Linear { y: session.room.normed.address(), sum: Some(sum), ..linear };
                    session.products.run(&one.matrix, &peers, &linear)?;
                    (self.stream, self.waiting.norm) = (1 - self.stream, Norming::Before);
                    return Ok(());
                }
                session.products.run(&one.matrix, &peers, &linear)?;
                // A bias of queries, keys and values is added where they are turned.
                let bias = if step.writes == Value::Query { None } else { one.bias.as_ref() };
                self.affine(one, bias.map(Memory::address), y, rows, (wide, step.writes == Value::Logits))
            }
            // Queries, keys and values side by side.
            several => {
                let pitch: usize = several.iter().map(|own| own.matrix.n).sum();
                let mut offset = 0;
                for (at, own) in several.iter().enumerate() {
                    let session = &mut *self.session;
                    let apart = session.room.apart.address();
                    let peers = held.peers(step.weights, at);
                    session.products.run(&own.matrix, &peers, &Linear { y: apart, wide: false, ..linear })?;
                    self.affine(own, own.bias.as_ref().map(Memory::address), apart, rows, (false, false))?;
                    self.session.kernels.place(apart, y + 2 * offset as u64, rows, own.matrix.n, pitch)?;
                    offset += own.matrix.n;
                }
                Ok(())
            }
        }
    }

    /// Factors and biases of outputs, and the bend of logits, where there are such.
    fn affine(
        &self,
        own: &GpuMatrix,
        bias: Option<u64>,
        y: u64,
        rows: usize,
        (wide, logits): (bool, bool),
    ) -> Result<()> {
        let factors = own.factors.as_ref().map(Memory::address);
        let cap = self.session.model.arithmetic.logit_cap.filter(|_| logits).map(|cap| cap as f32);
        if factors.is_none() && bias.is_none() && cap.is_none() {
            return Ok(());
        }
        Ok(self.session.kernels.affine(y, (rows, own.matrix.n), wide, (factors, bias, cap))?)
    }

    /// Products with an activation function: within, or behind them.
    fn activated_linear(
        &mut self,
        step: &Step,
        matrices: &[GpuMatrix],
        (inner, gated): (usize, bool),
        linear: &Linear,
    ) -> Result<()> {
        let (rows, y) = (linear.m, linear.y);
        let function = function(self.session.model)?;
        let session = &mut *self.session;
        let held = session.held;
        let wide = session.room.wide.address();
        let mut places = Vec::new();
        match matrices {
            [one] if gated && session.products.gates(&one.matrix, rows) => {
                let peers = held.peers(step.weights, 0);
                return Ok(session.products.run(&one.matrix, &peers, &Linear { gated: true, ..*linear })?);
            }
            several => {
                let mut to = wide;
                for (at, own) in several.iter().enumerate() {
                    let peers = held.peers(step.weights, at);
                    self.session.products.run(&own.matrix, &peers, &Linear { y: to, ..*linear })?;
                    self.affine(own, None, to, rows, (false, false))?;
                    places.push(to);
                    to += (2 * rows * own.matrix.n) as u64;
                }
            }
        }
        let bias = |at: usize| matrices.get(at).and_then(|own| own.bias.as_ref()).map(Memory::address);
        // One matrix has both side by side, two have one behind the other.
        let (gate, up, biases, pitch) = match (gated, &places[..]) {
            (true, [both]) => {
                let second = bias(0).map(|bias| bias + 4 * inner as u64);
                (*both, Some(both + 2 * inner as u64), [bias(0), second], 2 * inner)
            }
            (true, [gate, up]) => (*gate, Some(*up), [bias(0), bias(1)], inner),
            (false, [one]) => (*one, None, [bias(0), None], inner),
            _ => return Err(Error::missing(step.site)),
        };
        let of =
            Activated { rows, width: inner, gate, up, biases, bias_pitch: 0, choice: None, pitch, stride: 1, out: y };
        Ok(self.session.kernels.activated(function, &of)?)
    }
}

pub(super) fn function(model: &roofline_core::Model) -> Result<Function> {
    Ok(match &model.arithmetic.activation {
        arithmetic::Activation::Silu => Function::Silu,
        arithmetic::Activation::GeluTanh => Function::GeluTanh,
        arithmetic::Activation::Gelu => Function::Gelu,
        arithmetic::Activation::ClampedSwish { limit } => Function::ClampedSwish(*limit as f32),
        arithmetic::Activation::Unknown(name) => {
            return Err(Error::unsupported(&model.name, format!("its activation function is `{name}`")));
        }
    })
}
