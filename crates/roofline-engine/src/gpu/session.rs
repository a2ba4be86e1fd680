//! Sequences on a GPU.

use std::{
    collections::HashMap,
    ops::Range,
    time::{Duration, Instant},
};

use roofline_core::{
    model::{AttentionLayer, Lowering, Workload},
    units::Seconds,
};
use roofline_run::cuda::model::{Attentions, Clock, Kernels, Memory, Open, Products, Recording};

use super::{
    GpuModel,
    pass::{Pass, Shape, Steps},
    room::{LayerCache, Room, most_rows, share},
};
use crate::{
    Error, Result,
    engine::Engine,
    processor::grouped,
    session::{LayerOutput, Ran, Wanted},
};

/// Runs of a pass that say how fast a way of its products is.
const RUNS: usize = 6;
/// How long a pass runs before that. A prompt leaves a GPU at the clock that its power allows: a step of few bits was 8 % slower for
/// the next 0.05 s.
const STEADY: Duration = Duration::from_millis(100);

/// Sequences in flight on a GPU.
pub(crate) struct GpuSession<'e> {
    pub(super) model: &'e roofline_core::Model,
    pub(super) settings: &'e crate::Settings,
    pub(super) held: &'e GpuModel,
    pub(super) kernels: Kernels<'e>,
    pub(super) products: Products<'e>,
    pub(super) attentions: Attentions<'e>,
    pub(super) room: Room,
    pub(super) caches: Vec<LayerCache>,
    /// Cosines and sines by position, of all layers and of those with windows.
    pub(super) tables: Vec<Memory>,
    pub(super) lengths: Vec<usize>,
    context: usize,
    /// Tokens of a pass, at most.
    most: usize,
    /// Passes that came before: none for one that was not recorded yet.
    recorded: HashMap<Shape, Option<Recording>>,
    clock: Clock,
    taken: Option<Seconds>,
    pub(super) timed: bool,
    pub(super) ran: Vec<Ran>,
    pub(super) every: usize,
    pub(super) kept: Vec<LayerOutput>,
    /// Numbers that are not in the program: those of precisions.
    pub(super) numbers: roofline_core::Precision,
}

impl<'e> GpuSession<'e> {
    /// Room for `sequences` of up to `context` tokens each.
    pub(crate) fn new(engine: &'e Engine<'_>, held: &'e GpuModel, sequences: usize, context: usize) -> Result<Self> {
        let (model, settings, gpu) = (&engine.model, &engine.settings, held.gpu());
        let kernels = Kernels::new(gpu, settings.values)
            .ok_or_else(|| Error::unsupported("a GPU", format!("it has no kernels between {}", settings.values)))?;
        let most = most_rows(engine.chunk, sequences, context);
        let caches = engine
            .shapes()
            .map(|layer| LayerCache::new(gpu, settings.kv, sequences, &grouped(&layer.attention)?, context))
            .collect::<Result<_>>()?;
        Ok(Self {
            model,
            settings,
            held,
            kernels,
            products: Products::new(kernels, held.widest())?,
            attentions: Attentions::new(kernels)?,
            room: Room::new(engine, gpu, most, sequences)?,
            caches,
            tables: tables(model, gpu, context)?,
            lengths: vec![0; sequences],
            context,
            most,
            recorded: HashMap::new(),
            clock: Clock::new(gpu)?,
            taken: None,
            timed: false,
            ran: Vec::new(),
            every: 0,
            kept: Vec::new(),
            numbers: engine.numbers(),
        })
    }

    pub(crate) fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    pub(crate) fn context(&self) -> usize {
        self.context
    }

    pub(crate) fn clear(&mut self) {
        self.lengths.fill(0);
    }

    /// As [`crate::Session::rewind`]: caches keep the whole context, also where a window sees less of it.
    pub(crate) fn rewind(&mut self, length: usize) -> bool {
        self.lengths.iter_mut().for_each(|own| *own = length.min(*own));
        true
    }

    pub(crate) fn take_ran(&mut self) -> Vec<Ran> {
        std::mem::take(&mut self.ran)
    }

    pub(crate) fn device_time(&self) -> Option<Seconds> {
        self.taken
    }

    pub(crate) fn time_steps(&mut self, on: bool) {
        self.timed = on;
    }

    pub(crate) fn cache_bytes(&self) -> u64 {
        self.caches.iter().map(LayerCache::bytes).sum()
    }

    pub(crate) fn keep_layers(&mut self, every: usize) {
        (self.every, self.kept) = (every, Vec::new());
    }

    pub(crate) fn take_layers(&mut self) -> Vec<LayerOutput> {
        std::mem::take(&mut self.kept)
    }

    /// As [`crate::Session::feed`], with tokens that were looked at.
    pub(crate) fn feed(&mut self, sequences: Range<usize>, tokens: &[Vec<u32>], wanted: Wanted) -> Result<Vec<f32>> {
        let new = tokens.first().map_or(0, Vec::len);
        let vocabulary = self.model.vocabulary.get() as usize;
        let each = share(self.most, sequences.len(), new);
        let all = wanted == Wanted::All;
        let mut logits = vec![0.0; if all { sequences.len() * new * vocabulary } else { 0 }];
        let mut taken = Seconds::ZERO;
        for start in (0..new).step_by(each) {
            (self.settings.stop)()?;
            let end = (start + each).min(new);
            let part: Vec<&[u32]> = tokens.iter().map(|own| &own[start..end]).collect();
            self.pass(sequences.clone(), &part, all)?;
            if all {
                let rows = self.logits((end - start) * sequences.len())?;
                for (own, rows) in logits.chunks_mut(new * vocabulary).zip(rows.chunks((end - start) * vocabulary)) {
                    own[start * vocabulary..end * vocabulary].copy_from_slice(rows);
                }
            } else if end == new && wanted == Wanted::Last {
                logits = self.logits(sequences.len())?;
            }
            self.held.gpu().wait()?;
            taken += self.clock.elapsed()?;
        }
        self.taken = Some(taken);
        Ok(logits)
    }

    fn logits(&self, rows: usize) -> Result<Vec<f32>> {
        let mut bytes = vec![0; rows * self.model.vocabulary.get() as usize * 4];
        self.room.logits.read(self.held.gpu(), &mut bytes)?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    /// One pass: asked for kernel by kernel at first, then recorded, then replayed.
    fn pass(&mut self, sequences: Range<usize>, tokens: &[&[u32]], all: bool) -> Result<()> {
        let new = tokens[0].len();
        let starts: Vec<usize> = sequences.clone().map(|one| self.lengths[one]).collect();
        self.give(tokens, &starts, new)?;
        let shape = Shape { first: sequences.start, sequences: sequences.len(), new, all };
        let longest = starts.iter().max().copied().unwrap_or(0) + new;
        let whole = !self.timed && self.every == 0;
        let gpu = self.held.gpu();
        if !whole || !self.recorded.contains_key(&shape) {
            let program = self.program(shape, longest, all)?;
            let pass = Pass { shape, starts };
            self.clock.start(gpu)?;
            let walked = Steps::new(self, &pass).walk(&program);
            if walked.is_ok() {
                self.clock.stop(gpu)?;
            }
            // Both are asked, and also of a pass that failed on its way.
            if self.products.take_grew() | self.attentions.take_grew() {
                self.recorded.clear();
            }
            walked?;
            if whole {
                self.recorded.insert(shape, None);
            }
        } else {
            if self.recorded.get(&shape).is_some_and(Option::is_none) {
                let program = self.program(shape, longest, all)?;
                let recording = self.record(&Pass { shape, starts }, &program)?;
                self.recorded.insert(shape, Some(recording));
            }
            self.clock.start(gpu)?;
            if let Some(Some(recording)) = self.recorded.get(&shape) {
                recording.start()?;
            }
            self.clock.stop(gpu)?;
        }
        for sequence in sequences {
            self.lengths[sequence] += new;
        }
        Ok(())
    }

    /// Keeps a pass, with whichever way of each of its products makes the whole of it fastest. Running it again and again
    /// changes nothing: it writes what it has written before.
    fn record(&mut self, pass: &Pass, program: &roofline_core::Program) -> Result<Recording> {
        let gpu = self.held.gpu();
        let mut best = Recording::new(gpu, || Steps::new(self, pass).walk(program))?;
        let mut open: Vec<(Open, usize)> =
            self.products.open(pass.shape.rows()).into_iter().map(|product| (product, 0)).collect();
        let start = Instant::now();
        while !open.is_empty() && start.elapsed() < STEADY {
            self.fastest(&best)?;
        }
        // Twice, because the best way of one product depends on its neighbours'.
        for _ in 0..2 {
            for (product, taken) in &mut open {
                // Again, so that all ways of a product are timed at about the same clock.
                let mut least = self.fastest(&best)?;
                for way in 0..product.ways {
                    if way == *taken {
                        continue;
                    }
                    self.products.choose(*product, way);
                    let other = Recording::new(gpu, || Steps::new(self, pass).walk(program))?;
                    let took = self.fastest(&other)?;
                    if took < least {
                        (best, least, *taken) = (other, took, way);
                    }
                }
                self.products.choose(*product, *taken);
            }
        }
        Ok(best)
    }

    /// The least time of a few runs.
    fn fastest(&self, recording: &Recording) -> Result<Seconds> {
        let gpu = self.held.gpu();
        let mut least = f64::INFINITY;
        for _ in 0..RUNS {
            self.clock.start(gpu)?;
            recording.start()?;
            self.clock.stop(gpu)?;
            gpu.wait()?;
            least = least.min(self.clock.elapsed()?.value());
        }
        Ok(Seconds::new(least))
    }

    fn program(&self, shape: Shape, longest: usize, all: bool) -> Result<roofline_core::Program> {
        let workload = Workload::chunk(shape.sequences as u64, shape.new as u64, longest as u64)?;
        Ok(self.model.program(workload, Lowering { all_logits: all, ..Lowering::default() })?)
    }

    /// Sends what a pass reads.
    fn give(&mut self, tokens: &[&[u32]], starts: &[usize], new: usize) -> Result<()> {
        let integers = |numbers: &mut dyn Iterator<Item = usize>| -> Vec<u8> {
            numbers.flat_map(|number| (number as i32).to_le_bytes()).collect()
        };
        let most = self.room.most;
        let gpu = self.held.gpu();
        let ids = integers(&mut tokens.iter().flat_map(|own| own.iter().map(|id| *id as usize)));
        let positions = integers(&mut starts.iter().flat_map(|start| *start..start + new));
        let before = integers(&mut starts.iter().copied());
        self.room.inputs.write(gpu, 0, &ids)?;
        self.room.inputs.write(gpu, 4 * most, &positions)?;
        Ok(self.room.inputs.write(gpu, 8 * most, &before)?)
    }
}

/// Cosines and sines of every position.
fn tables(model: &roofline_core::Model, gpu: &roofline_run::cuda::Gpu, context: usize) -> Result<Vec<Memory>> {
    let ropes = [Some(&model.arithmetic.rope), model.arithmetic.window_rope.as_ref()];
    let turned = model.layers.iter().find_map(|layer| match layer.attention {
        AttentionLayer::Grouped { rotary_dim, .. } => Some(rotary_dim.get() as usize),
        AttentionLayer::Latent { .. } => None,
    });
    let mut tables = Vec::new();
    for rope in ropes.into_iter().flatten() {
        let (frequencies, factor) = rope.frequencies(turned.unwrap_or(2), context).ok_or_else(|| {
            Error::unsupported(&model.name, format!("its rotary positions are stretched by {:?}", rope.scaling))
        })?;
        let mut numbers = Vec::with_capacity(2 * frequencies.len() * context);
        for position in 0..context {
            let angles = frequencies.iter().map(|frequency| position as f64 * frequency);
            numbers.extend(angles.clone().map(|angle| (angle.cos() * factor) as f32));
            numbers.extend(angles.map(|angle| (angle.sin() * factor) as f32));
        }
        tables.push(Memory::of_floats(gpu, &numbers)?);
    }
    Ok(tables)
}
