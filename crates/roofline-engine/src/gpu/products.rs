//! Products, and the functions behind them.

use roofline_core::{
    Op,
    model::arithmetic,
    program::{Step, Value},
};
use roofline_run::cuda::model::{Activated, Function, Memory, Products};

use super::{GpuMatrix, pass::Steps};
use crate::{Error, Result};

impl Steps<'_, '_> {
    /// A product, with the activation function behind it where the step has one.
    pub(super) fn linear(&mut self, layer: Option<usize>, step: &Step) -> Result<()> {
        let shape = self.pass.shape;
        let rows = if step.writes == Value::Logits { shape.heads() } else { shape.rows() };
        let input = match step.writes {
            Value::Attended => Value::Mixed,
            Value::Fed => Value::Inner,
            _ => Value::Normed,
        };
        let (x, y) = (self.place(input)?.address(), self.place(step.writes)?.address());
        let session = &mut *self.session;
        let held = session.held;
        let matrices = held.products(layer, step.weights)?;
        let wide = matches!(step.writes, Value::Logits | Value::Choice);
        if let Op::ActivatedLinear(linear) = step.op {
            let inner = linear.linear.n.get() as usize;
            return self.activated_linear(step, matrices, (rows, inner, linear.gated), (x, y));
        }
        match matrices {
            [one] => {
                let peers = held.peers(step.weights, 0);
                session.products.run(&one.matrix, &peers, rows, (x, y), (wide, false))?;
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
                    session.products.run(&own.matrix, &peers, rows, (x, apart), (false, false))?;
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
        (rows, inner, gated): (usize, usize, bool),
        (x, y): (u64, u64),
    ) -> Result<()> {
        let function = function(self.session.model)?;
        let session = &mut *self.session;
        let held = session.held;
        let wide = session.room.wide.address();
        let mut places = Vec::new();
        match matrices {
            [one] if gated && Products::gates(&one.matrix, rows) => {
                let peers = held.peers(step.weights, 0);
                return Ok(session.products.run(&one.matrix, &peers, rows, (x, y), (false, true))?);
            }
            several => {
                let mut to = wide;
                for (at, own) in several.iter().enumerate() {
                    let peers = held.peers(step.weights, at);
                    self.session.products.run(&own.matrix, &peers, rows, (x, to), (false, false))?;
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
