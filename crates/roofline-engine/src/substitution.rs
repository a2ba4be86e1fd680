//! What other numbers in the place of some weights do to a model's predictions.
//!
//! Many sets of numbers are tried on one model, so whatever they have in common is done once: the model is in memory, its own
//! predictions are kept, and so is what samples hand to the first layer that differs. A try reads the weights that it changes,
//! and runs from their layer on.

use std::ops::Range;

use roofline_core::{
    Format, Model, Program,
    model::{Lowering, Workload},
    program::Weight,
};
use roofline_quant::{Checkpoint, observed::Replaced};

use crate::{
    Error, Result,
    engine::{Engine, Settings},
    evaluation::row::{Reference, divergences, references},
    matrix::{Loading, Tensors},
    processor::{ProcessorSession, Stretch},
    turns::in_turns,
    weights::Weights,
};

/// A model whose weights are replaced, time after time.
pub struct Substitution<'a> {
    engine: Engine<'a>,
    program: Program,
    tensors: Tensors<'a>,
    samples: Vec<Vec<u32>>,
    /// The model's own predictions, for each sample one of every token.
    own: Vec<Vec<Reference>>,
    /// The layer that `streams` enter: what each sample hands to it while nothing is replaced.
    reached: usize,
    streams: Vec<Vec<f32>>,
}

impl<'a> Substitution<'a> {
    /// Loads a model, and lets it predict samples. Numbers between kernels are FP32, so that what is found is of the weights; of
    /// `settings`, threads, instructions and who may stop it count.
    pub fn new(checkpoint: &'a Checkpoint, samples: Vec<Vec<u32>>, settings: &Settings) -> Result<Self> {
        let longest = samples.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let own = Settings { chunk: Some(longest), all_logits: true, ..Settings::with(Format::FP32) };
        let settings = Settings { threads: settings.threads, isa: settings.isa, stop: settings.stop.clone(), ..own };
        let stop = settings.stop.clone();
        let engine = Engine::load(checkpoint, settings, &mut |_, _| stop())?;
        let vocabulary = engine.model.vocabulary.get() as usize;
        if let Some(id) = samples.iter().flatten().find(|id| **id as usize >= vocabulary) {
            return Err(Error::Token { id: *id, vocabulary });
        }
        let program = engine.model.program(Workload::decode(1, 1)?, Lowering::default())?;
        let tensors = Tensors::new(checkpoint, engine.settings.round_inputs)?;
        let streams = vec![Vec::new(); samples.len()];
        let mut made = Self { engine, program, tensors, samples, own: Vec::new(), reached: 0, streams };
        made.streams = made.run(true, 0..0, &|_, _| Ok(()))?.into_iter().map(|(stream, ())| stream).collect();
        let predicted =
            made.run(false, 0..made.layers() + 1, &|at, logits| references(logits, made.samples[at].len()))?;
        made.own = predicted.into_iter().map(|(_, own)| own).collect();
        Ok(made)
    }

    /// Bytes of memory that it will hold, at most, beside the numbers that are tried - the weights, predictions, and what samples
    /// hand on - and those that a try takes beyond that for as long as it lasts: the logits of a sample that each thread runs.
    pub fn needs(checkpoint: &Checkpoint, model: &Model, samples: &[Vec<u32>], threads: usize) -> (u64, u64) {
        let tokens: u64 = samples.iter().map(|sample| sample.len() as u64).sum();
        let longest = samples.iter().map(|sample| sample.len() as u64).max().unwrap_or(0);
        let (hidden, vocabulary) = (model.hidden.get(), model.vocabulary.get());
        let held = checkpoint.bytes() + 4 * tokens * vocabulary + 8 * tokens * hidden;
        (held, 4 * threads.min(samples.len()) as u64 * longest * vocabulary)
    }

    /// Tokens of all samples.
    pub fn tokens(&self) -> usize {
        self.samples.iter().map(Vec::len).sum()
    }

    fn layers(&self) -> usize {
        self.engine.model.anatomy.order.len()
    }

    /// How far predictions are from the model's own, in nats for each token, with other numbers in the place of some weights. It is
    /// fast where layers are tried one after the other, the first first.
    pub fn divergence(&mut self, replaced: &Replaced) -> Result<f64> {
        if replaced.is_empty() {
            return Ok(0.0);
        }
        let tensors = self.tensors.with(replaced)?;
        let over = Weights::replaced(&self.engine.model, &self.program, &tensors, &self.loading()?, replaced)?;
        // What is in no layer is before the first, but for a head of its own.
        let entered = over.keys().map(|(layer, weights)| match layer {
            Some(layer) => Some(*layer),
            None if *weights == [Weight::Head] => Some(self.layers()),
            None => None,
        });
        let from = entered.min().ok_or_else(|| Error::missing("what is replaced"))?;
        if let Some(from) = from.filter(|from| *from > self.reached) {
            let passed = self.run(false, self.reached..from, &|_, _| Ok(()))?;
            self.streams = passed.into_iter().map(|(stream, ())| stream).collect();
            self.reached = from;
        }
        self.engine.weights.lay_over(over);
        let end = self.layers() + 1;
        let kept = from.filter(|from| *from >= self.reached);
        let ran = self.run(kept.is_none(), kept.unwrap_or(0)..end, &|at, logits| {
            Ok(divergences(&self.own[at], logits)?.iter().sum::<f64>())
        });
        self.engine.weights.lay_over(std::collections::HashMap::new());
        let sum: f64 = ran?.iter().map(|(_, sum)| sum).sum();
        Ok(sum / self.tokens().max(1) as f64)
    }

    fn loading(&self) -> Result<Loading> {
        Loading::new(&self.engine.settings)
    }

    /// Runs every sample through some layers, from its tokens on at the `start`, else from what is kept. One behind the last layer
    /// stands for the logits, of which `judge` is told; without them they are empty. Returns what leaves the last layer and what
    /// `judge` says, sample after sample.
    fn run<J: Send>(
        &self,
        start: bool,
        layers: Range<usize>,
        judge: &(dyn Fn(usize, &[f32]) -> Result<J> + Sync),
    ) -> Result<Vec<(Vec<f32>, J)>> {
        let end = layers.end > self.layers();
        let stretch = &Stretch { start, layers: layers.start..layers.end.min(self.layers()), end };
        let longest = self.samples.iter().map(Vec::len).max().unwrap_or(1);
        let runner = || {
            let mut session = ProcessorSession::alone(&self.engine, longest)?;
            Ok(move |(at, (tokens, stream)): (usize, (&Vec<u32>, &Vec<f32>))| {
                let mut stream = stream.clone();
                session.run_stretch(stretch, tokens, &mut stream, false)?;
                let logits = if end { session.logits(tokens.len()) } else { Vec::new() };
                Ok((stream, judge(at, &logits)?))
            })
        };
        let samples = self.samples.iter().zip(&self.streams).enumerate().collect();
        let mut all = Vec::with_capacity(self.samples.len());
        in_turns(samples, self.engine.settings.threads, runner, &mut |_, one| {
            all.push(one);
            Ok(())
        })?;
        Ok(all)
    }
}
