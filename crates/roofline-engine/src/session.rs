//! Sequences of tokens and their cache, wherever the model runs.

use std::{ops::Range, time::Duration};

use roofline_core::{Op, Precision, Role, units::Seconds};

use crate::{Error, Result, engine::Engine, gpu::GpuSession, processor::ProcessorSession};

/// Which tokens' logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Of the last token of each sequence.
    Last,
    /// Of every token.
    All,
    /// Of none: whoever times a pass has no use for them.
    Nothing,
}

/// A step that ran.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ran {
    /// Where it belongs.
    pub site: &'static str,
    /// Which layer it was in.
    pub layer: Option<usize>,
    /// What it computed.
    pub op: Op,
    /// What its weights are for.
    pub role: Role,
    /// The formats it computed with.
    pub precision: Precision,
    /// How long that took, with what was fused into it.
    pub time: Duration,
}

/// What a layer put out: the stream behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerOutput {
    /// Which layer.
    pub layer: usize,
    /// Numbers of a token.
    pub width: usize,
    /// A row for each token that was kept, in the order in which they were fed: pass by pass, and in a pass sequence by
    /// sequence.
    pub values: Vec<f32>,
}

/// Sequences in flight.
pub struct Session<'e, 'a> {
    place: Place<'e, 'a>,
    vocabulary: usize,
}

enum Place<'e, 'a> {
    Processor(Box<ProcessorSession<'e, 'a>>),
    Gpu(Box<GpuSession<'e>>),
}

impl<'e, 'a> Session<'e, 'a> {
    pub(crate) fn new(engine: &'e Engine<'a>, sequences: usize, context: usize) -> Result<Self> {
        let model = &engine.model;
        if let Some(most) = model.max_context.filter(|most| context as u64 > most.get()) {
            let limit = format!("the {most} that {} was made for", model.name);
            return Err(Error::Context { asked: context, limit });
        }
        let place = match engine.gpu() {
            Some(gpu) => Place::Gpu(Box::new(GpuSession::new(engine, gpu, sequences, context)?)),
            None => Place::Processor(Box::new(ProcessorSession::new(engine, sequences, context)?)),
        };
        Ok(Self { place, vocabulary: model.vocabulary.get() as usize })
    }

    /// Tokens that each sequence has so far.
    pub fn lengths(&self) -> &[usize] {
        match &self.place {
            Place::Processor(own) => own.lengths(),
            Place::Gpu(own) => own.lengths(),
        }
    }

    /// Forgets all tokens.
    pub fn clear(&mut self) {
        match &mut self.place {
            Place::Processor(own) => own.clear(),
            Place::Gpu(own) => own.clear(),
        }
    }

    /// Forgets what came after the first `length` tokens of each sequence. False, and nothing is forgotten, where a sliding
    /// window has lost what a token after these would see.
    pub fn rewind(&mut self, length: usize) -> bool {
        match &mut self.place {
            Place::Processor(own) => own.rewind(length),
            Place::Gpu(own) => own.rewind(length),
        }
    }

    /// Takes what ran since it was last taken.
    pub fn take_ran(&mut self) -> Vec<Ran> {
        match &mut self.place {
            Place::Processor(own) => own.take_ran(),
            Place::Gpu(own) => own.take_ran(),
        }
    }

    /// How long the device itself was busy with what was fed last, by its own clock; none where only the caller's clock runs.
    pub fn device_time(&self) -> Option<Seconds> {
        match &self.place {
            Place::Processor(_) => None,
            Place::Gpu(own) => own.device_time(),
        }
    }

    /// Whether the time of each step is taken from now on. A processor's always is; a GPU replays a recorded pass as a whole
    /// unless it is asked, because a clock between kernels keeps them apart.
    pub fn time_steps(&mut self, on: bool) {
        match &mut self.place {
            Place::Processor(_) => {}
            Place::Gpu(own) => own.time_steps(on),
        }
    }

    /// Bytes of the cache.
    pub fn cache_bytes(&self) -> u64 {
        match &self.place {
            Place::Processor(own) => own.cache_bytes(),
            Place::Gpu(own) => own.cache_bytes(),
        }
    }

    /// From now on keeps what each layer puts out, of every `every`-th token of a sequence (its first, and those at
    /// multiples of `every`); 0 keeps nothing, as a session does where nobody asks. What was kept before is let go.
    pub fn keep_layers(&mut self, every: usize) {
        match &mut self.place {
            Place::Processor(own) => own.keep_layers(every),
            Place::Gpu(own) => own.keep_layers(every),
        }
    }

    /// Takes what was kept since it was last taken, the first layer first; empty where nothing was.
    pub fn take_layers(&mut self) -> Vec<LayerOutput> {
        match &mut self.place {
            Place::Processor(own) => own.take_layers(),
            Place::Gpu(own) => own.take_layers(),
        }
    }

    /// Feeds the same number of new tokens to each of some sequences, in chunks, and returns logits: a row of the vocabulary
    /// for each wanted token, in the order of sequences and tokens.
    pub fn feed(&mut self, sequences: Range<usize>, tokens: &[Vec<u32>], wanted: Wanted) -> Result<Vec<f32>> {
        let new = tokens.first().map_or(0, Vec::len);
        let context = match &self.place {
            Place::Processor(own) => own.context(),
            Place::Gpu(own) => own.context(),
        };
        let longest = self.lengths()[sequences.clone()].iter().max().copied().unwrap_or(0);
        if longest + new > context {
            let limit = format!("the cache's {context}");
            return Err(Error::Context { asked: longest + new, limit });
        }
        if new == 0 || tokens.len() != sequences.len() || tokens.iter().any(|own| own.len() != new) {
            return Err(Error::unsupported("a pass", "it has no tokens, or sequences have different numbers of them"));
        }
        let vocabulary = self.vocabulary;
        if let Some(id) = tokens.iter().flatten().find(|id| **id as usize >= vocabulary) {
            return Err(Error::Token { id: *id, vocabulary });
        }
        match &mut self.place {
            Place::Processor(own) => own.feed(sequences, tokens, wanted),
            Place::Gpu(own) => own.feed(sequences, tokens, wanted),
        }
    }
}
