//! Values of a pass, and the cache, on the GPU; and how much they are, before any of it is taken.

use std::cell::Cell;

use roofline_core::{Format, Model, model::FeedForward, units::Bytes};
use roofline_run::cuda::{
    Gpu, THIN_ROWS,
    model::{Cached, Memory},
};

use crate::{
    Result, Settings,
    engine::Engine,
    processor::{Grouped, grouped},
};

/// Values of a pass, in memory of some kind.
pub(super) struct Room<M = Memory> {
    /// FP32, twice: what adds to it in a product reads one and writes the other.
    pub(super) streams: [M; 2],
    /// FP32: sums of squares of every 16 numbers of the stream, of few rows.
    pub(super) squares: M,
    pub(super) normed: M,
    pub(super) projected: M,
    pub(super) query: M,
    pub(super) mixed: M,
    pub(super) attended: M,
    pub(super) wide: M,
    pub(super) inner: M,
    pub(super) fed: M,
    /// FP32: scores of experts, and how much a token takes of each.
    pub(super) scores: M,
    pub(super) weights: M,
    /// Integers: which experts, tokens of rows that are sorted by them, where each visit went, whose each row is, and which is
    /// the first of each expert.
    pub(super) choice: M,
    pub(super) order: M,
    pub(super) place: M,
    pub(super) owner: M,
    pub(super) firsts: M,
    pub(super) gathered: M,
    pub(super) visited: M,
    /// FP32.
    pub(super) logits: M,
    /// Products that are put side by side.
    pub(super) apart: M,
    /// Integers: tokens, their positions, and how long each sequence was before.
    pub(super) inputs: M,
    pub(super) most: usize,
}

impl<M> Room<M> {
    /// For passes of up to so many rows, of which all have logits or the last of each sequence has; every piece is taken by
    /// `memory`.
    fn with(
        model: &Model,
        all_logits: bool,
        (rows, sequences): (usize, usize),
        memory: impl Fn(usize) -> Result<M>,
    ) -> Result<Self> {
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
        let all = if all_logits { rows } else { sequences };
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
}

impl Room {
    pub(super) fn new(engine: &Engine<'_>, gpu: &Gpu, rows: usize, sequences: usize) -> Result<Self> {
        let memory = |bytes: usize| Ok(Memory::new(gpu, bytes)?);
        Self::with(&engine.model, engine.settings.all_logits, (rows, sequences), memory)
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

/// Most rows of a pass where it takes up to `chunk` at once: no sequence has more tokens than its context, and each has one.
pub(super) fn most_rows(chunk: usize, sequences: usize, context: usize) -> usize {
    chunk.min(sequences.saturating_mul(context)).max(sequences)
}

/// Tokens of each of some sequences that a pass of up to `most` rows takes: chunks of about one length.
pub(super) fn share(most: usize, sequences: usize, new: usize) -> usize {
    let each = (most / sequences).max(1);
    new.div_ceil(new.div_ceil(each).max(1)).max(1)
}

/// Bytes of a session beside the model's weights and its caches: what [`Room`] takes. What has no kernel is refused elsewhere.
pub(crate) fn pass_bytes(model: &Model, settings: &Settings, sequences: usize, context: usize) -> Bytes {
    let rows = most_rows(settings.chunk_on_gpu(), sequences, context);
    let sum = Cell::new(0.0);
    let count = |bytes: usize| {
        sum.set(sum.get() + bytes as f64);
        Ok(())
    };
    let counted = Room::with(model, settings.all_logits, (rows, sequences), count);
    Bytes::new(if counted.is_ok() { sum.get() } else { 0.0 })
}

/// Bytes of the caches of all layers. What has no kernel is refused elsewhere.
pub(crate) fn cache_bytes(model: &Model, format: Format, sequences: usize, context: usize) -> Bytes {
    let layer = |shape: &u8| {
        let shape = grouped(&model.layers[usize::from(*shape)].attention).ok()?;
        let sides = Sides::of(format, sequences, &shape, context);
        Some(2.0 * (sides.bytes as f64 + sides.scales as f64))
    };
    Bytes::new(model.anatomy.order.iter().filter_map(layer).sum())
}

/// How much the keys of a layer are, and as much its values.
struct Sides {
    /// Rows of each head.
    capacity: usize,
    bytes: usize,
    scales: usize,
}

impl Sides {
    /// Those of the whole context, also where a window sees less of it; too many are as many as there may be.
    fn of(format: Format, sequences: usize, shape: &Grouped, context: usize) -> Self {
        // Kernels copy whole groups of keys.
        let capacity = context.next_multiple_of(64);
        let rows = sequences.saturating_mul(shape.kv_heads).saturating_mul(capacity);
        let narrow = format.nominal_bits() == 8;
        let bytes = rows.saturating_mul(shape.width * if narrow { 1 } else { 2 });
        Self { capacity, bytes, scales: if narrow { rows.saturating_mul(2) } else { 0 } }
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
        let Sides { capacity, bytes, scales } = Sides::of(format, sequences, shape, context);
        // What is copied beside the keys that are there must be numbers.
        let memory = || Memory::zeroed(gpu, bytes);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn model(window: Option<usize>) -> Model {
        let config = serde_json::json!({"architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 64,
            "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 20, "vocab_size": 131, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
            "max_position_embeddings": 65536, "sliding_window": window});
        Model::from_config(&config.to_string(), "mistral").unwrap()
    }

    /// A short context needs no room for many rows, is cut into the same chunks, and no pass has more rows than there are.
    #[test]
    fn rows_are_no_more_than_there_may_be() {
        assert_eq!([most_rows(8192, 1, 100), most_rows(8192, 2, 5000), most_rows(4, 9, 100)], [100, 8192, 9]);
        for (chunk, sequences, context) in
            [1, 6, 16, 8192].into_iter().flat_map(|chunk| [1, 3, 9].map(|own| (chunk, own, 24)))
        {
            let (most, whole) = (most_rows(chunk, sequences, context), chunk.max(sequences));
            for (some, new) in (1..=sequences).flat_map(|some| (1..=context).map(move |new| (some, new))) {
                assert_eq!(share(most, some, new), share(whole, some, new), "{chunk} {some} {new}");
                assert!(some * share(most, some, new) <= most, "{chunk} {some} {new}");
            }
        }
    }

    /// Three layers of two heads with 20 features, for which 64 keys are the least; a window has its whole context.
    #[test]
    fn caches_are_counted_as_they_are_taken() {
        for window in [None, Some(8)] {
            let bytes = |format, context| cache_bytes(&model(window), format, 2, context).value();
            let (keys, sides) = (2.0 * 2.0 * 64.0, 2.0 * 3.0);
            assert_eq!(bytes(Format::BF16, 16), sides * keys * 40.0);
            assert_eq!(bytes(Format::BF16, 65), sides * 2.0 * keys * 40.0);
            // A byte each, and a scale of two for each row.
            assert_eq!(bytes(Format::INT8, 16), sides * keys * 22.0);
        }
        assert!(cache_bytes(&model(None), Format::BF16, usize::MAX, 1 << 20).value() > 1e19);
    }

    #[test]
    fn values_of_a_pass_are_counted_by_its_rows() {
        let settings = Settings::with(Format::BF16);
        let bytes = |chunk, all_logits, context| {
            pass_bytes(&model(None), &Settings { chunk, all_logits, ..settings.clone() }, 2, context).value()
        };
        assert_eq!(bytes(None, false, 16), bytes(Some(32), false, 16));
        assert!(
            bytes(None, false, 16) < bytes(None, false, 17) && bytes(Some(32), false, 16) > bytes(Some(8), false, 16)
        );
        // Every row has logits, and not the last of each sequence.
        assert_eq!(bytes(None, true, 16) - bytes(None, false, 16), 30.0 * 131.0 * 4.0);
    }
}
