//! A text on its way through a model, layer by layer: what methods that go by data observe.
//!
//! All samples reach a layer before any of them passes it, so that one layer's weights are in memory at a time, beside what
//! each sample hands on. Numbers between kernels are FP32: what is observed is then the model's own, without a narrower
//! type's rounding.

use std::path::Path;

use roofline_core::{
    Format, Model, Program,
    model::{FeedForward, Lowering, Workload},
    program::Weight,
};
use roofline_quant::{
    Checkpoint,
    observed::{Observed, Pass, Replaced, Seen},
};

use crate::{
    Error, Result,
    engine::{Engine, Loaded, Settings, runs},
    matrix::{Loading, Tensors},
    processor::{Input, ProcessorSession, Stretch},
    streams::{Stream, Streams},
    turns::in_turns,
    weights::Weights,
};

/// Samples on their way through a model.
pub struct Layerwise<'a> {
    model: Model,
    settings: Settings,
    program: Program,
    tensors: Tensors<'a>,
    samples: Vec<Vec<u32>>,
    /// What each sample hands to the layer that is next.
    streams: Streams,
    /// The layer that is next.
    next: usize,
    /// Whether samples have reached the first layer.
    started: bool,
}

impl<'a> Layerwise<'a> {
    /// Samples of tokens, of which nothing has run yet. Of `settings`, threads, instructions and who may stop it count.
    pub fn new(checkpoint: &'a Checkpoint, samples: Vec<Vec<u32>>, settings: &Settings) -> Result<Self> {
        let longest = samples.iter().map(Vec::len).max().unwrap_or(0);
        let own = Settings { chunk: Some(longest.max(1)), round_inputs: false, ..Settings::with(Format::FP32) };
        let settings = Settings { threads: settings.threads, isa: settings.isa, stop: settings.stop.clone(), ..own };
        let model = Model::from_config(&checkpoint.config.to_string(), &checkpoint.name())?;
        runs(&model)?;
        let vocabulary = model.vocabulary.get() as usize;
        if let Some(id) = samples.iter().flatten().find(|id| **id as usize >= vocabulary) {
            return Err(Error::Token { id: *id, vocabulary });
        }
        if let Some(most) = model.max_context.filter(|most| longest as u64 > most.get()) {
            let limit = format!("the {most} that {} was made for", model.name);
            return Err(Error::Context { asked: longest, limit });
        }
        let program = model.program(Workload::decode(1, 1)?, Lowering::default())?;
        let tensors = Tensors::new(checkpoint, false)?;
        let streams = Streams::new(samples.len());
        Ok(Self { model, settings, program, tensors, samples, streams, next: 0, started: false })
    }

    /// Keeps what samples hand on in a file in `folder` instead of in memory. Nothing may have run yet.
    pub fn offloaded(self, folder: &Path) -> Result<Self> {
        debug_assert!(!self.started);
        let hidden = self.model.hidden.get() as usize;
        let lengths = self.samples.iter().map(|sample| sample.len() * hidden).collect();
        Ok(Self { streams: Streams::offloaded(folder, lengths)?, ..self })
    }

    /// Bytes of what all samples hand from one layer to the next.
    pub fn handed_on(&self) -> u64 {
        let tokens: u64 = self.samples.iter().map(|sample| sample.len() as u64).sum();
        4 * tokens * self.model.hidden.get()
    }

    /// What a sample hands to the layer that is next: a row for each token, and nothing before the first has run.
    pub fn stream(&mut self, sample: usize) -> Result<Vec<f32>> {
        self.streams.each()[sample].read()
    }

    fn loading(&self) -> Result<Loading> {
        Loading::new(&self.settings)
    }

    /// A model of which the weights of one layer are there, or the embedding: what is behind the last layer is never reached.
    fn part(&self, layer: Option<usize>, replaced: &Replaced) -> Result<Engine<'a>> {
        let tensors = self.tensors.with(replaced)?;
        let mut loaded = Loaded::Processor(Weights::default());
        let wanted = |own: Option<usize>, weights: &[Weight]| own == layer && weights != [Weight::Head];
        let mut take = |key, held| loaded.take(&self.model, key, held);
        let told = &mut |_, _| (self.settings.stop)();
        Weights::read(&self.model, &self.program, &tensors, &self.loading()?, &wanted, told, &mut take)?;
        Engine::of(self.model.clone(), self.settings.clone(), loaded)
    }

    /// Runs a part over all samples; `each` hears of what products were given.
    fn run_part(
        &mut self,
        layer: Option<usize>,
        replaced: &Replaced,
        moves_on: bool,
        each: &mut dyn FnMut(Input) -> Result<()>,
    ) -> Result<()> {
        let engine = self.part(layer, replaced)?;
        let (runners, longest, wanted) = (self.runners(), self.longest(), layer.is_some());
        let stretch = Stretch { start: !wanted, layers: layer.map_or(0..0, |layer| layer..layer + 1), end: false };
        let (engine, stretch) = (&engine, &stretch);
        let runner = || {
            let mut session = ProcessorSession::alone(engine, longest)?;
            Ok(move |(tokens, mut stream): (&Vec<u32>, Stream<'_>)| {
                let mut rows = stream.read()?;
                let inputs = session.run_stretch(stretch, tokens, &mut rows, wanted)?;
                if moves_on {
                    stream.write(rows)?;
                }
                Ok(inputs)
            })
        };
        let samples = self.samples.iter().zip(self.streams.each()).collect();
        in_turns(samples, runners, runner, &mut |_, inputs: Vec<Input>| inputs.into_iter().try_for_each(&mut *each))
    }

    /// Threads that run samples.
    fn runners(&self) -> usize {
        self.settings.threads.min(self.samples.len()).max(1)
    }

    /// Tokens of the longest sample.
    fn longest(&self) -> usize {
        self.samples.iter().map(Vec::len).max().unwrap_or(0).max(1)
    }

    /// The same as [`Observed::run`], with this crate's errors.
    fn observe(&mut self, pass: Pass<'_>, each: &mut dyn FnMut(Seen<'_>) -> roofline_quant::Result<()>) -> Result<()> {
        if pass.layer != self.next {
            let reason = format!("samples have reached layer {}, and not layer {}", self.next, pass.layer);
            return Err(Error::unsupported(&self.model.name, reason));
        }
        if !self.started {
            self.run_part(None, &Replaced::new(), true, &mut |_| Ok(()))?;
            self.started = true;
        }
        let names = Weights::modules(&self.model, &self.program, &self.tensors, &self.loading()?, pass.layer)?;
        self.run_part(Some(pass.layer), pass.replaced, pass.moves_on, &mut |input| {
            let lists = names.get(input.weights).ok_or_else(|| Error::missing(&format!("{:?}", input.weights)))?;
            let modules = lists.get(input.expert.unwrap_or(0)).ok_or_else(|| Error::missing("an expert"))?;
            let Input { expert, tokens, columns, values, .. } = &input;
            Ok(each(Seen { modules, expert: *expert, tokens, columns: *columns, values })?)
        })?;
        if pass.moves_on {
            self.next += 1;
        }
        Ok(())
    }
}

impl Observed for Layerwise<'_> {
    fn layers(&self) -> usize {
        self.model.anatomy.order.len()
    }

    fn samples(&self) -> Vec<usize> {
        self.samples.iter().map(Vec::len).collect()
    }

    /// What samples hand on where that stays in memory, the weights of a layer, or the embedding before the first, as numbers, and
    /// what a sample takes within a layer, twice for each thread: one is looked at while the next runs.
    fn memory(&self) -> u64 {
        let hidden = self.model.hidden.get();
        let (longest, runners) = (self.longest() as u64, self.runners() as u64);
        let widest = self.model.layers.iter().map(|layer| match layer.feed_forward {
            FeedForward::Dense { inner, .. } => 4 * inner.get(),
            FeedForward::Experts { inner, active, .. } => (4 * inner.get() + 2 * hidden) * active.get(),
        });
        let within = 4 * longest * (12 * hidden + widest.max().unwrap_or(0));
        let layers = self.model.anatomy.order.len().max(1) as u128;
        let streams = if self.streams.in_memory() { self.handed_on() } else { 0 };
        let layer = (self.model.parameters() / layers) as u64;
        let weights = 4 * layer.max(self.model.vocabulary.get() * hidden);
        streams + weights + 2 * runners * within
    }

    fn run(
        &mut self,
        pass: Pass<'_>,
        each: &mut dyn FnMut(Seen<'_>) -> roofline_quant::Result<()>,
    ) -> roofline_quant::Result<()> {
        self.observe(pass, each).map_err(|error| match error {
            Error::Checkpoint(error) => error,
            Error::Stopped => roofline_quant::Error::Cancelled,
            Error::Memory { .. } => roofline_quant::Error::Memory { reason: error.to_string(), hint: error.hint() },
            other => roofline_quant::Error::Model { reason: other.to_string(), hint: other.hint() },
        })
    }
}
