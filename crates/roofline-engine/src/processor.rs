//! Sequences on a processor: each pass follows the steps of a program.

mod attention;
mod inputs;
mod layers;
mod observed;
mod products;
mod room;
mod small;

use std::{
    collections::HashMap,
    ops::Range,
    time::{Duration, Instant},
};

use roofline_core::{
    Dim, Format, Op, Role,
    model::{AttentionLayer, Lowering, Workload},
    op::{self, ElementwiseKind, ExpertSide},
    program::{Step, Weight},
};
use roofline_run::cpu::{
    Binding, Pool,
    kernels::{
        attention::Attention,
        elementwise::{Elementwise, Rotations},
    },
};

pub(crate) use self::{
    attention::{Grouped, grouped},
    observed::{Input, Stretch},
};
use self::{layers::Kept, observed::SeenInputs, room::Room};
use crate::{
    Error, Result,
    cache::LayerCache,
    engine::Engine,
    matrix::Matrix,
    products::Products,
    routing::Visit,
    session::{Ran, Wanted},
    weights::Held,
};

/// Sequences in flight.
pub(crate) struct ProcessorSession<'e, 'a> {
    engine: &'e Engine<'a>,
    pool: Pool,
    /// A core for each thread, as long as the session lasts.
    binding: Binding,
    small: Elementwise,
    products: Products,
    attentions: HashMap<(usize, usize, bool), Attention>,
    caches: Vec<LayerCache>,
    lengths: Vec<usize>,
    context: usize,
    /// Tokens of a pass, at most.
    most: usize,
    rotations: Vec<Rotations>,
    room: Room,
    visits: Vec<Visit>,
    slots: Vec<usize>,
    ran: Vec<Ran>,
    kept: Kept,
    seen: SeenInputs,
}

/// A pass over some sequences.
#[derive(Clone)]
struct Pass {
    sequences: Range<usize>,
    /// New tokens of each.
    new: usize,
    tokens: Vec<usize>,
    positions: Vec<usize>,
    all: bool,
}

impl Pass {
    fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Rows that have logits.
    fn heads(&self) -> usize {
        if self.all { self.rows() } else { self.sequences.len() }
    }
}

impl<'e, 'a> ProcessorSession<'e, 'a> {
    /// Room for `sequences` of up to `context` tokens each.
    pub(crate) fn new(engine: &'e Engine<'a>, sequences: usize, context: usize) -> Result<Self> {
        Self::on(Pool::new(engine.settings.threads), engine, sequences, context)
    }

    /// Room for a sequence of up to `context` tokens that the calling thread runs alone.
    pub(crate) fn alone(engine: &'e Engine<'a>, context: usize) -> Result<Self> {
        Self::on(Pool::new(1), engine, 1, context)
    }

    fn on(mut pool: Pool, engine: &'e Engine<'a>, sequences: usize, context: usize) -> Result<Self> {
        let (model, settings) = (&engine.model, &engine.settings);
        let most = engine.chunk.max(sequences);
        let each = most.div_ceil(sequences.max(1)).max(1);
        let mut caches = Vec::new();
        for layer in engine.shapes() {
            let Grouped { kv_heads, width, window, .. } = grouped(&layer.attention)?;
            caches.push(LayerCache::new(settings.kv, (sequences, kv_heads, width), window, context, each)?);
        }
        let ropes = [Some(&model.arithmetic.rope), model.arithmetic.window_rope.as_ref()];
        let turned = model.layers.iter().find_map(|layer| match layer.attention {
            AttentionLayer::Grouped { rotary_dim, .. } => Some(rotary_dim.get() as usize),
            AttentionLayer::Latent { .. } => None,
        });
        let mut rotations = Vec::new();
        for rope in ropes.into_iter().flatten() {
            let (frequencies, factor) = rope.frequencies(turned.unwrap_or(2), context).ok_or_else(|| {
                Error::unsupported(&model.name, format!("its rotary positions are stretched by {:?}", rope.scaling))
            })?;
            rotations.push(Rotations::with_frequencies(&frequencies, factor as f32, 0));
        }
        let numbers = engine.numbers();
        let binding = Binding::new(&mut pool);
        let threads = pool.threads();
        Ok(Self {
            engine,
            small: Elementwise::on(settings.isa),
            products: Products::new(settings.isa, threads, numbers, most),
            pool,
            binding,
            attentions: HashMap::new(),
            caches,
            lengths: vec![0; sequences],
            context,
            most,
            rotations,
            room: Room::new(engine, most, sequences)?,
            visits: Vec::new(),
            slots: Vec::new(),
            ran: Vec::new(),
            kept: Kept::default(),
            seen: SeenInputs::default(),
        })
    }

    /// Tokens that each sequence has so far.
    pub(crate) fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// Tokens that a sequence may have.
    pub(crate) fn context(&self) -> usize {
        self.context
    }

    /// Forgets all tokens.
    pub(crate) fn clear(&mut self) {
        self.lengths.fill(0);
        self.caches.iter_mut().for_each(LayerCache::clear);
    }

    /// As [`crate::Session::rewind`].
    pub(crate) fn rewind(&mut self, length: usize) -> bool {
        let holds = self.caches.iter().all(|cache| cache.holds(length));
        if holds {
            self.lengths.iter_mut().for_each(|own| *own = length.min(*own));
        }
        holds
    }

    /// Takes what ran since it was last taken.
    pub(crate) fn take_ran(&mut self) -> Vec<Ran> {
        std::mem::take(&mut self.ran)
    }

    /// Bytes of the cache.
    pub(crate) fn cache_bytes(&self) -> u64 {
        self.caches.iter().map(LayerCache::bytes).sum()
    }

    /// Feeds the same number of new tokens to each of some sequences, in chunks, and returns logits: a row of the vocabulary
    /// for each wanted token, in the order of sequences and tokens.
    pub(crate) fn feed(&mut self, sequences: Range<usize>, tokens: &[Vec<u32>], wanted: Wanted) -> Result<Vec<f32>> {
        let new = tokens.first().map_or(0, Vec::len);
        let vocabulary = self.engine.model.vocabulary.get() as usize;
        // Chunks of about one length: a short last one would use its kernels badly.
        let each = (self.most / sequences.len()).max(1);
        let each = new.div_ceil(new.div_ceil(each).max(1)).max(1);
        let all = wanted == Wanted::All;
        let mut logits = vec![0.0; if all { sequences.len() * new * vocabulary } else { 0 }];
        for start in (0..new).step_by(each) {
            let end = (start + each).min(new);
            let part: Vec<&[u32]> = tokens.iter().map(|own| &own[start..end]).collect();
            self.pass(sequences.clone(), &part, all)?;
            if all {
                let rows = self.room.logits.tensor((end - start) * sequences.len()).codes.as_chunks::<4>().0;
                for (own, rows) in logits.chunks_mut(new * vocabulary).zip(rows.chunks((end - start) * vocabulary)) {
                    for (to, bytes) in own[start * vocabulary..].iter_mut().zip(rows) {
                        *to = f32::from_le_bytes(*bytes);
                    }
                }
            } else if end == new && wanted == Wanted::Last {
                logits = self.room.logits.floats(sequences.len());
            }
        }
        Ok(logits)
    }

    /// One pass: the program of its workload, step by step.
    fn pass(&mut self, sequences: Range<usize>, tokens: &[&[u32]], all: bool) -> Result<()> {
        let new = tokens[0].len();
        let starts: Vec<usize> = sequences.clone().map(|one| self.lengths[one]).collect();
        let positions = starts.iter().flat_map(|start| *start..*start + new).collect();
        let tokens = tokens.iter().flat_map(|own| own.iter().map(|id| *id as usize)).collect();
        let longest = starts.iter().max().copied().unwrap_or(0) + new;
        let workload = Workload::chunk(sequences.len() as u64, new as u64, longest as u64)?;
        let lowering = Lowering { all_logits: all, ..Lowering::default() };
        let program = self.engine.model.program(workload, lowering)?;
        self.rotations.iter_mut().for_each(|rotations| rotations.grow(longest));
        let pass = Pass { sequences: sequences.clone(), new, tokens, positions, all };
        let mut steps = program.steps().peekable();
        while let Some((layer, step)) = steps.next() {
            (self.engine.settings.stop)()?;
            self.step(&pass, layer, step)?;
            if let Some(layer) = layer.filter(|own| steps.peek().is_none_or(|(next, _)| *next != Some(*own))) {
                self.keep_layer(&pass, layer);
            }
        }
        for sequence in sequences {
            self.lengths[sequence] += new;
        }
        Ok(())
    }

    fn step(&mut self, pass: &Pass, layer: Option<usize>, step: &Step) -> Result<()> {
        let start = Instant::now();
        for small in &step.before {
            self.small_step(pass, layer, small)?;
        }
        let parts = match step.op {
            Op::Linear(_) | Op::ActivatedLinear(_) => self.linear(pass, layer, step)?,
            Op::Experts(experts) => self.experts(pass, layer, step, &experts)?,
            Op::Attention(_) => {
                self.attention(pass, layer, step)?;
                Vec::new()
            }
            Op::Elementwise(_) => {
                self.small_step(pass, layer, step)?;
                match self.engine.weights.held(layer, step.weights) {
                    Ok(Held::Products(tables)) => tables.iter().map(Part::of).collect(),
                    _ => Vec::new(),
                }
            }
            op => return Err(Error::unsupported(op.words(step.site), "there is no kernel for it")),
        };
        for small in &step.after {
            self.small_step(pass, layer, small)?;
        }
        self.record(layer, step, &parts, start.elapsed());
        Ok(())
    }

    /// Notes what ran: one kernel, or one for each weight where they are stored in different ways, as predictions count
    /// them, and the function behind them.
    fn record(&mut self, layer: Option<usize>, step: &Step, parts: &[Part], time: Duration) {
        let engine = self.engine;
        let ran = |site, op, role, weights, time| Ran {
            site,
            layer,
            op,
            role,
            precision: engine.precision(role, weights),
            time,
        };
        let [_, _, ..] = parts else {
            let weights = parts.first().and_then(|part| part.weights);
            self.ran.push(ran(step.site, step.op, step.part.role(), weights, time));
            return;
        };
        let mut rest = time;
        for (part, weight) in parts.iter().zip(step.weights) {
            let n = Dim::new("outputs", part.rows as u64).unwrap_or(Dim::ONE);
            let op = match step.op {
                Op::Linear(linear) => Op::Linear(op::Linear { n, ..linear }),
                Op::ActivatedLinear(linear) => Op::Linear(op::Linear { n, ..linear.linear }),
                Op::Experts(experts) => Op::Experts(op::Experts { side: ExpertSide::Up, ..experts }),
                other => other,
            };
            self.ran.push(ran(apart(*weight), op, weight.role(), part.weights, part.time));
            rest = rest.saturating_sub(part.time);
        }
        let join = match step.op {
            Op::ActivatedLinear(linear) => Some(("silu_mul", Role::Down, linear.linear.m.get(), linear.linear.n)),
            Op::Experts(experts) => {
                let rows = experts.tokens.get() * experts.active.get();
                Some(("experts_activation", Role::ExpertDown, rows, experts.n))
            }
            _ => None,
        };
        if let Some((site, role, tokens, width)) = join {
            let kind = ElementwiseKind::GatedActivation;
            let op = op::Elementwise { kind, tokens: u128::from(tokens), vectors: Dim::ONE, width };
            self.ran.push(ran(site, Op::Elementwise(op), role, None, rest));
        } else if let Some(last) = self.ran.last_mut() {
            last.time += rest;
        }
    }
}

impl Drop for ProcessorSession<'_, '_> {
    fn drop(&mut self) {
        self.binding.release(&mut self.pool);
    }
}

/// A matrix of a step, and how long its own product took where there are several.
struct Part {
    rows: usize,
    weights: Option<Format>,
    time: Duration,
}

impl Part {
    fn of(matrix: &Matrix<'_>) -> Self {
        Self { rows: matrix.rows, weights: matrix.format(), time: Duration::ZERO }
    }
}

/// What the product of a weight is called where it runs apart from those it could be fused with.
fn apart(weight: Weight) -> &'static str {
    match weight {
        Weight::Query => "q_proj",
        Weight::Key => "k_proj",
        Weight::Value => "v_proj",
        Weight::Gate => "gate_proj",
        Weight::ExpertGate => "experts_gate",
        Weight::ExpertUp => "experts_up",
        _ => "up_proj",
    }
}
