//! What products of a layer are given, kept for whoever observes a text on its way through a model; and one part of a
//! model that runs alone.

use std::ops::Range;

use roofline_core::{
    Format,
    model::{Lowering, Workload},
    program::Weight,
};
use roofline_run::cpu::Tensor;

use super::{Pass, ProcessorSession};
use crate::{Error, Result, routing::Visit};

/// What a product was given.
pub(crate) struct Input {
    /// The weights of its step.
    pub(crate) weights: &'static [Weight],
    pub(crate) expert: Option<usize>,
    /// Which tokens of the pass.
    pub(crate) tokens: Vec<usize>,
    pub(crate) columns: usize,
    pub(crate) values: Vec<f32>,
}

/// What is kept of inputs; nothing where nobody observes.
#[derive(Default)]
pub(super) struct SeenInputs(Option<Vec<Input>>);

impl SeenInputs {
    /// Keeps what a product of all tokens is given.
    pub(super) fn dense(&mut self, weights: &'static [Weight], x: Tensor<'_>) -> Result<()> {
        let Some(all) = &mut self.0 else { return Ok(()) };
        all.push(Input {
            weights,
            expert: None,
            tokens: (0..x.rows).collect(),
            columns: x.columns,
            values: numbers(x)?,
        });
        Ok(())
    }

    /// Keeps what an expert is given: the rows of its visits.
    pub(super) fn expert(&mut self, weights: &'static [Weight], visits: &[Visit], x: Tensor<'_>) -> Result<()> {
        let (Some(all), Some(first)) = (&mut self.0, visits.first()) else { return Ok(()) };
        let tokens = visits.iter().map(|visit| visit.token).collect();
        all.push(Input { weights, expert: Some(first.expert), tokens, columns: x.columns, values: numbers(x)? });
        Ok(())
    }
}

/// Rows as numbers. Who observes has FP32 between kernels.
fn numbers(x: Tensor<'_>) -> Result<Vec<f32>> {
    if x.format != Format::FP32 {
        return Err(Error::unsupported(format!("inputs in {}", x.format), "they are observed in fp32"));
    }
    Ok(x.codes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

/// A part of a model that runs alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// Whether tokens become the stream first.
    pub(crate) start: bool,
    /// Which layers it passes.
    pub(crate) layers: Range<usize>,
    /// Whether the stream becomes logits in the end, of every token.
    pub(crate) end: bool,
}

impl ProcessorSession<'_, '_> {
    /// Runs a part of the model over a sequence from its first token on. `stream` holds what enters it, and then what leaves its
    /// last layer. Returns what products were given, where that is `wanted`.
    pub(crate) fn run_stretch(
        &mut self,
        stretch: &Stretch,
        tokens: &[u32],
        stream: &mut Vec<f32>,
        wanted: bool,
    ) -> Result<Vec<Input>> {
        self.clear();
        let length = tokens.len();
        let workload = Workload::chunk(1, length as u64, length as u64)?;
        let lowering = Lowering { all_logits: stretch.end, ..Lowering::default() };
        let program = self.engine.model.program(workload, lowering)?;
        self.rotations.iter_mut().for_each(|rotations| rotations.grow(length));
        let tokens = tokens.iter().map(|id| *id as usize).collect();
        let pass = Pass { sequences: 0..1, new: length, tokens, positions: (0..length).collect(), all: stretch.end };
        let into = self.room.stream.bytes_mut(length).as_chunks_mut::<4>().0;
        for (bytes, number) in into.iter_mut().zip(stream.iter()) {
            *bytes = number.to_le_bytes();
        }
        self.seen = SeenInputs(wanted.then(Vec::new));
        for step in program.start.iter().filter(|_| stretch.start) {
            self.step(&pass, None, step)?;
        }
        let of_layers = |layer: Option<usize>| layer.is_some_and(|layer| stretch.layers.contains(&layer));
        for (layer, step) in program.steps().filter(|(layer, _)| of_layers(*layer)) {
            (self.engine.settings.stop)()?;
            self.step(&pass, layer, step)?;
        }
        *stream = self.room.stream.floats(length);
        for step in program.end.iter().filter(|_| stretch.end) {
            self.step(&pass, None, step)?;
        }
        self.ran.clear();
        Ok(std::mem::take(&mut self.seen).0.unwrap_or_default())
    }

    /// The logits of a sequence that has run to the end, a row for each of its tokens.
    pub(crate) fn logits(&self, length: usize) -> Vec<f32> {
        self.room.logits.floats(length)
    }
}
