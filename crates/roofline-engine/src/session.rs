//! Sequences of tokens and their cache: each pass follows the steps of a program.

use std::{
    collections::HashMap,
    ops::Range,
    time::{Duration, Instant},
};

use roofline_core::{
    Dim, Format, Op, Precision, Role,
    model::{AttentionLayer, FeedForward, Lowering, Workload},
    op::{self, Cache, ElementwiseKind, ExpertSide},
    program::{Step, Value, Weight},
};
use roofline_run::cpu::{
    Binding, Pool, Tensor,
    kernels::{
        attention::{Attention, Manner},
        elementwise::{Elementwise, Heads, Pairs, Rotations, Target},
    },
};

use crate::{
    Error, Result,
    cache::LayerCache,
    engine::Engine,
    matrix::Matrix,
    products::Products,
    routing::{self, Visit},
    values::Slot,
    weights::Held,
};

/// Which tokens' logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Of the last token of each sequence.
    Last,
    /// Of every token.
    All,
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

/// Sequences in flight.
pub struct Session<'e, 'a> {
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
}

/// Values of a pass.
struct Room {
    stream: Slot,
    last: Slot,
    normed: Slot,
    projected: Slot,
    query: Slot,
    mixed: Slot,
    attended: Slot,
    scores: Slot,
    wide: Slot,
    inner: Slot,
    fed: Slot,
    gathered: Slot,
    visited: Slot,
    logits: Slot,
    apart: Slot,
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

/// The dimensions of a layer's attention.
#[derive(Clone, Copy)]
struct Grouped {
    heads: usize,
    kv_heads: usize,
    width: usize,
    window: Option<usize>,
}

impl Grouped {
    fn pitch(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.width
    }

    fn queries(&self) -> Heads {
        Heads::dense(self.heads, self.width).within(self.pitch(), 0)
    }

    fn keys(&self) -> Heads {
        Heads::dense(self.kv_heads, self.width).within(self.pitch(), self.heads * self.width)
    }

    fn values(&self) -> Heads {
        Heads::dense(self.kv_heads, self.width).within(self.pitch(), (self.heads + self.kv_heads) * self.width)
    }
}

impl<'e, 'a> Session<'e, 'a> {
    /// Room for `sequences` of up to `context` tokens each.
    pub(crate) fn new(engine: &'e Engine<'a>, sequences: usize, context: usize) -> Result<Self> {
        let (model, settings) = (&engine.model, &engine.settings);
        if let Some(most) = model.max_context.filter(|most| context as u64 > most.get()) {
            let limit = format!("the {most} that {} was made for", model.name);
            return Err(Error::Context { asked: context, limit });
        }
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
        let mut pool = Pool::new(settings.threads);
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
        })
    }

    /// Tokens that each sequence has so far.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// Forgets all tokens.
    pub fn clear(&mut self) {
        self.lengths.fill(0);
        self.caches.iter_mut().for_each(LayerCache::clear);
    }

    /// Takes what ran since it was last taken.
    pub fn take_ran(&mut self) -> Vec<Ran> {
        std::mem::take(&mut self.ran)
    }

    /// Bytes of the cache.
    pub fn cache_bytes(&self) -> u64 {
        self.caches.iter().map(LayerCache::bytes).sum()
    }

    /// Feeds the same number of new tokens to each of some sequences, in chunks, and returns logits: a row of the vocabulary
    /// for each wanted token, in the order of sequences and tokens.
    pub fn feed(&mut self, sequences: Range<usize>, tokens: &[Vec<u32>], wanted: Wanted) -> Result<Vec<f32>> {
        let new = tokens.first().map_or(0, Vec::len);
        let longest = sequences.clone().map(|one| self.lengths[one]).max().unwrap_or(0);
        if longest + new > self.context {
            let limit = format!("the cache's {}", self.context);
            return Err(Error::Context { asked: longest + new, limit });
        }
        if new == 0 || tokens.len() != sequences.len() || tokens.iter().any(|own| own.len() != new) {
            return Err(Error::unsupported("a pass", "it has no tokens, or sequences have different numbers of them"));
        }
        let vocabulary = self.engine.model.vocabulary.get() as usize;
        if let Some(id) = tokens.iter().flatten().find(|id| **id as usize >= vocabulary) {
            return Err(Error::Token { id: *id, vocabulary });
        }
        // Chunks of about one length: a short last one would use its kernels badly.
        let each = (self.most / sequences.len()).max(1);
        let each = new.div_ceil(new.div_ceil(each).max(1)).max(1);
        let mut logits = Vec::new();
        let mut parts: Vec<Vec<f32>> = vec![Vec::new(); sequences.len()];
        for start in (0..new).step_by(each) {
            let end = (start + each).min(new);
            let part: Vec<&[u32]> = tokens.iter().map(|own| &own[start..end]).collect();
            let last = end == new;
            let all = wanted == Wanted::All;
            self.pass(sequences.clone(), &part, all)?;
            if all {
                let rows = self.room.logits.floats((end - start) * sequences.len());
                for (own, rows) in parts.iter_mut().zip(rows.chunks(vocabulary * (end - start))) {
                    own.extend_from_slice(rows);
                }
            } else if last {
                logits = self.room.logits.floats(sequences.len());
            }
        }
        if wanted == Wanted::All {
            logits = parts.concat();
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
        for (layer, step) in program.steps() {
            (self.engine.settings.stop)()?;
            self.step(&pass, layer, step)?;
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

    /// A product, with the activation function behind it where the step has one.
    fn linear(&mut self, pass: &Pass, layer: Option<usize>, step: &Step) -> Result<Vec<Part>> {
        let Held::Products(matrices) = self.engine.weights.held(layer, step.weights)? else {
            return Err(Error::missing(step.site));
        };
        let Self { products, pool, room, small, .. } = self;
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
        let x = input.tensor(rows);
        let mut parts: Vec<Part> = matrices.iter().map(Part::of).collect();
        let width: usize = matrices.iter().map(|matrix| matrix.rows).sum();
        let gated = matches!(step.op, Op::ActivatedLinear(linear) if linear.gated);
        if width != expected || width != output.width {
            return Err(Error::shape(step.site, &[width], &format!("{expected} outputs")));
        }
        match &matrices[..] {
            [matrix] => {
                let format = output.format;
                products.run(pool, matrix, x, output.bytes_mut(rows), format)?;
            }
            // Gate and way up one behind the other.
            several if gated => {
                let bytes = output.format.nominal_bits() as usize / 8;
                let mut rest = output.part_mut(0..rows);
                for (matrix, part) in several.iter().zip(&mut parts) {
                    let start = Instant::now();
                    let (own, after) = rest.split_at_mut(rows * matrix.rows * bytes);
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
    fn experts(&mut self, pass: &Pass, layer: Option<usize>, step: &Step, op: &op::Experts) -> Result<Vec<Part>> {
        let Held::Experts { experts, turns } = self.engine.weights.held(layer, step.weights)? else {
            return Err(Error::missing(step.site));
        };
        let Self { products, pool, room, small, visits, .. } = self;
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
            let x = input.part(own.clone());
            let format = output.format;
            match &matrices[..] {
                [matrix] => products.run(pool, matrix, x, output.part_mut(own), format)?,
                several => {
                    let mut offset = 0;
                    for (matrix, part) in several.iter().zip(&mut parts) {
                        let start = Instant::now();
                        let bytes = group.len() * matrix.rows * format.nominal_bits() as usize / 8;
                        let place = &mut room.apart.bytes_mut(group.len())[..bytes];
                        products.run(pool, matrix, x, place, format)?;
                        let heads = Heads::dense(1, matrix.rows);
                        let from = Tensor::plain(format, group.len(), matrix.rows, place);
                        let to = heads.within(output.width, offset);
                        let target = Target::plain(format, output.part_mut(own.clone()));
                        small.copy_heads(pool, (from, heads), (target, to))?;
                        offset += matrix.rows;
                        part.time += start.elapsed();
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

    /// The cache of a layer, and what its attention is.
    fn grouped(&self, layer: Option<usize>) -> Result<(usize, Grouped)> {
        let layer = layer.ok_or_else(|| Error::missing("a layer"))?;
        Ok((layer, grouped(&self.engine.shape(layer).attention)?))
    }

    fn attention(&mut self, pass: &Pass, layer: Option<usize>, step: &Step) -> Result<()> {
        let (at, shape) = self.grouped(layer)?;
        let sinks = match step.weights {
            [Weight::Sinks] => match self.engine.weights.held(layer, step.weights)? {
                Held::Vectors(vectors) => Some(vectors[0].0.clone()),
                _ => return Err(Error::missing("sinks")),
            },
            _ => None,
        };
        let starts: Vec<usize> = pass.sequences.clone().map(|one| self.lengths[one]).collect();
        let even = starts.windows(2).all(|pair| pair[0] == pair[1]);
        let groups: Vec<Range<usize>> =
            if even { vec![pass.sequences.clone()] } else { pass.sequences.clone().map(|one| one..one + 1).collect() };
        for group in groups {
            let cache = &self.caches[at];
            let context = self.lengths[group.start] + pass.new - cache.first[group.start];
            // Layers of one shape share a plan, but each has sinks of its own.
            let shared = self.engine.model.anatomy.order[at];
            let own = if sinks.is_some() { 256 + at } else { usize::from(shared) };
            let key = (own, group.len(), pass.new == 1);
            if !self.attentions.contains_key(&key) {
                let planned = self.plan_attention(&shape, at, group.len(), pass.new == 1, sinks.clone())?;
                self.attentions.insert(key, planned);
            }
            let Some(attention) = self.attentions.get_mut(&key) else { continue };
            let cache = &self.caches[at];
            let rows_each = shape.kv_heads * cache.capacity;
            let (keys, values) =
                (cache.keys.tensor(group.clone(), rows_each), cache.values.tensor(group.clone(), rows_each));
            let first = (group.start - pass.sequences.start) * pass.new;
            let rows = first..first + group.len() * pass.new;
            let queries = self.room.query.part(rows.clone());
            let queries = Tensor::plain(queries.format, rows.len() * shape.heads, shape.width, queries.codes);
            let out = self.room.mixed.part_mut(rows);
            attention.run_at(&mut self.pool, context, queries, keys, values, out);
        }
        Ok(())
    }

    fn plan_attention(
        &self,
        shape: &Grouped,
        layer: usize,
        batch: usize,
        one: bool,
        sinks: Option<Vec<f32>>,
    ) -> Result<Attention> {
        let dim = |size: usize| Dim::new("attention", size as u64);
        let capacity = self.caches[layer].capacity;
        let queries = if one { 1 } else { (self.most / self.lengths.len()).clamp(1, capacity) };
        // A batch of one may have the whole pass to itself.
        let queries = if one || batch == self.lengths.len() { queries } else { self.most.min(capacity) };
        let op = op::Attention {
            batch: dim(batch)?,
            heads: dim(shape.heads)?,
            kv_heads: dim(shape.kv_heads)?,
            head_dim: dim(shape.width)?,
            value_dim: dim(shape.width)?,
            queries: dim(queries)?,
            context: dim(capacity)?,
            causal: true,
            window: shape.window.map(dim).transpose()?,
            cache: Cache::Separate,
        };
        let arithmetic = &self.engine.model.arithmetic;
        let manner = Manner {
            scale: arithmetic.attention_scale.map(|scale| scale as f32),
            soft_cap: arithmetic.score_cap.map(|cap| cap as f32),
            sinks,
            capacity: Some(capacity),
        };
        let threads = self.pool.threads();
        let numbers = self.engine.numbers();
        Ok(Attention::plan_on(&op, &numbers, threads, self.engine.settings.isa)?.with(&manner)?)
    }

    /// Element-wise work: a kernel's own, or what is fused into it.
    fn small_step(&mut self, pass: &Pass, layer: Option<usize>, step: &Step) -> Result<()> {
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

    fn embedding(&mut self, pass: &Pass, step: &Step) -> Result<()> {
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

    fn norm(&mut self, pass: &Pass, layer: Option<usize>, step: &Step) -> Result<()> {
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
    fn write(&mut self, pass: &Pass, layer: Option<usize>) -> Result<()> {
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

impl Drop for Session<'_, '_> {
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

fn check_length(site: &str, weight: &[f32], length: usize) -> Result<()> {
    if weight.len() == length {
        return Ok(());
    }
    Err(Error::shape(site, &[weight.len()], &format!("{length} numbers")))
}

fn grouped(layer: &AttentionLayer) -> Result<Grouped> {
    match *layer {
        AttentionLayer::Grouped { heads, kv_heads, head_dim, window, .. } => Ok(Grouped {
            heads: heads.get() as usize,
            kv_heads: kv_heads.get() as usize,
            width: head_dim.get() as usize,
            window: window.map(|window| window.get() as usize),
        }),
        AttentionLayer::Latent { .. } => {
            Err(Error::unsupported("latent attention (DeepSeek)", "there is no kernel over a compressed cache"))
        }
    }
}

impl Room {
    fn new(engine: &Engine<'_>, rows: usize, sequences: usize) -> Result<Self> {
        let (model, values) = (&engine.model, engine.settings.values);
        let hidden = model.hidden.get() as usize;
        let (mut pitch, mut query, mut wide, mut inner, mut visits, mut experts) = (0, 0, 0, 0, 0, 1);
        for layer in &model.layers {
            let shape = grouped(&layer.attention)?;
            pitch = pitch.max(shape.pitch());
            query = query.max(shape.heads * shape.width);
            let (width, gated) = match layer.feed_forward {
                FeedForward::Dense { inner, gated, .. } => (inner.get() as usize, gated),
                FeedForward::Experts { inner, gated, active, experts: count, .. } => {
                    visits = visits.max(active.get() as usize);
                    experts = experts.max(count.get() as usize);
                    (inner.get() as usize, gated)
                }
            };
            inner = inner.max(width);
            wide = wide.max(if gated { 2 * width } else { width });
        }
        // Experts see a token several times, but their rows are shorter than a dense block's.
        let many = rows * visits.max(1);
        let all = if engine.settings.all_logits { rows } else { sequences };
        Ok(Self {
            stream: Slot::new(Format::FP32, rows, hidden)?,
            last: Slot::new(Format::FP32, sequences, hidden)?,
            normed: Slot::new(values, rows, hidden)?,
            projected: Slot::new(values, rows, pitch)?,
            query: Slot::new(values, rows, query)?,
            mixed: Slot::new(values, rows, query)?,
            attended: Slot::new(values, rows, hidden)?,
            scores: Slot::new(Format::FP32, rows, experts)?,
            wide: Slot::new(values, many, wide)?,
            inner: Slot::new(values, many, inner)?,
            fed: Slot::new(if visits > 0 { Format::FP32 } else { values }, rows, hidden)?,
            gathered: Slot::new(values, if visits > 0 { many } else { 0 }, hidden)?,
            visited: Slot::new(values, if visits > 0 { many } else { 0 }, hidden)?,
            logits: Slot::new(Format::FP32, all, model.vocabulary.get() as usize)?,
            apart: Slot::new(values, rows, if visits > 0 { pitch.max(wide) } else { pitch })?,
        })
    }
}
