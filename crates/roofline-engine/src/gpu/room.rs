//! Values of a pass, and the cache, on the GPU.

use roofline_core::{Format, model::FeedForward};
use roofline_run::cuda::{
    Gpu, THIN_ROWS,
    model::{Cached, Memory},
};

use crate::{
    Result,
    engine::Engine,
    processor::{Grouped, grouped},
};

/// Values of a pass.
pub(super) struct Room {
    /// FP32, twice: what adds to it in a product reads one and writes the other.
    pub(super) streams: [Memory; 2],
    /// FP32: sums of squares of every 16 numbers of the stream, of few rows.
    pub(super) squares: Memory,
    pub(super) normed: Memory,
    pub(super) projected: Memory,
    pub(super) query: Memory,
    pub(super) mixed: Memory,
    pub(super) attended: Memory,
    pub(super) wide: Memory,
    pub(super) inner: Memory,
    pub(super) fed: Memory,
    /// FP32: scores of experts, and how much a token takes of each.
    pub(super) scores: Memory,
    pub(super) weights: Memory,
    /// Integers: which experts, tokens of rows that are sorted by them, where each visit went, whose each row is, and which is
    /// the first of each expert.
    pub(super) choice: Memory,
    pub(super) order: Memory,
    pub(super) place: Memory,
    pub(super) owner: Memory,
    pub(super) firsts: Memory,
    pub(super) gathered: Memory,
    pub(super) visited: Memory,
    /// FP32.
    pub(super) logits: Memory,
    /// Products that are put side by side.
    pub(super) apart: Memory,
    /// Integers: tokens, their positions, and how long each sequence was before.
    pub(super) inputs: Memory,
    pub(super) most: usize,
}

impl Room {
    pub(super) fn new(engine: &Engine<'_>, gpu: &Gpu, rows: usize, sequences: usize) -> Result<Self> {
        let model = &engine.model;
        let hidden = model.hidden.get() as usize;
        let (mut pitch, mut query, mut wide, mut inner, mut active, mut experts) = (0, 0, 0, 0, 0, 1);
        for layer in &model.layers {
            let shape = grouped(&layer.attention)?;
            pitch = pitch.max(shape.pitch());
            query = query.max(shape.heads * shape.width);
            let (width, gated, visits) = match layer.feed_forward {
                FeedForward::Dense { inner, gated, .. } => (inner.get() as usize, gated, 1),
                FeedForward::Experts { inner, gated, active: visits, experts: count, .. } => {
                    active = active.max(visits.get() as usize);
                    experts = experts.max(count.get() as usize);
                    (inner.get() as usize, gated, visits.get() as usize)
                }
            };
            inner = inner.max(width * visits);
            wide = wide.max(width * visits * if gated { 2 } else { 1 });
        }
        let all = if engine.settings.all_logits { rows } else { sequences };
        let memory = |bytes: usize| Memory::new(gpu, bytes);
        Ok(Self {
            streams: [memory(rows * hidden * 4)?, memory(rows.min(THIN_ROWS) * hidden * 4)?],
            squares: memory(rows.min(THIN_ROWS) * hidden.div_ceil(16) * 4)?,
            normed: memory(rows * hidden * 2)?,
            projected: memory(rows * pitch * 2)?,
            query: memory(rows * query * 2)?,
            mixed: memory(rows * query * 2)?,
            attended: memory(rows * hidden * 2)?,
            wide: memory(rows * wide * 2)?,
            inner: memory(rows * inner * 2)?,
            fed: memory(rows * hidden * if active > 0 { 4 } else { 2 })?,
            scores: memory(rows * experts * 4)?,
            weights: memory(rows * active * 4)?,
            choice: memory(rows * active * 4)?,
            order: memory(rows * active * 4)?,
            place: memory(rows * active * 4)?,
            owner: memory(rows * active * 4)?,
            firsts: memory((experts + 1) * 4)?,
            gathered: memory(rows * active * hidden * 2)?,
            visited: memory(rows * active * hidden * 2)?,
            logits: memory(all * model.vocabulary.get() as usize * 4)?,
            apart: memory(rows * pitch * 2)?,
            inputs: memory((2 * rows + sequences) * 4)?,
            most: rows,
        })
    }

    /// Where tokens, positions, and lengths before are.
    pub(super) fn tokens(&self) -> u64 {
        self.inputs.address()
    }

    pub(super) fn positions(&self) -> u64 {
        self.inputs.at(4 * self.most)
    }

    /// From the first of the sequences of a pass on.
    pub(super) fn starts(&self) -> u64 {
        self.inputs.at(8 * self.most)
    }
}

/// The cache of a layer.
pub(super) struct LayerCache {
    keys: Memory,
    values: Memory,
    key_scales: Memory,
    value_scales: Memory,
    format: Format,
    capacity: usize,
}

impl LayerCache {
    pub(super) fn new(gpu: &Gpu, format: Format, sequences: usize, shape: &Grouped, context: usize) -> Result<Self> {
        // Kernels copy whole groups of keys.
        let capacity = context.next_multiple_of(64);
        let rows = sequences * shape.kv_heads * capacity;
        let narrow = format.nominal_bits() == 8;
        let bytes = rows * shape.width * if narrow { 1 } else { 2 };
        // What is copied beside the keys that are there must be numbers.
        let (memory, scales) = (|| Memory::zeroed(gpu, bytes), if narrow { rows * 2 } else { 0 });
        Ok(Self {
            keys: memory()?,
            values: memory()?,
            key_scales: Memory::zeroed(gpu, scales)?,
            value_scales: Memory::zeroed(gpu, scales)?,
            format,
            capacity,
        })
    }

    pub(super) fn cached(&self) -> Cached {
        let places = [&self.keys, &self.values, &self.key_scales, &self.value_scales].map(Memory::address);
        Cached { places, format: self.format, capacity: self.capacity }
    }

    pub(super) fn bytes(&self) -> u64 {
        [&self.keys, &self.values, &self.key_scales, &self.value_scales].iter().map(|own| own.bytes() as u64).sum()
    }
}
