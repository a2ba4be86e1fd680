//! Values of a pass, in memory.

use roofline_core::{Format, model::FeedForward};

use super::attention::grouped;
use crate::{Result, engine::Engine, values::Slot};

/// Values of a pass.
pub(super) struct Room {
    pub(super) stream: Slot,
    pub(super) last: Slot,
    pub(super) normed: Slot,
    pub(super) projected: Slot,
    pub(super) query: Slot,
    pub(super) mixed: Slot,
    pub(super) attended: Slot,
    pub(super) scores: Slot,
    pub(super) wide: Slot,
    pub(super) inner: Slot,
    pub(super) fed: Slot,
    pub(super) gathered: Slot,
    pub(super) visited: Slot,
    pub(super) logits: Slot,
    pub(super) apart: Slot,
    /// Inputs that were rounded for a product.
    pub(super) rounded: Slot,
}

impl Room {
    pub(super) fn new(engine: &Engine<'_>, rows: usize, sequences: usize) -> Result<Self> {
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
            rounded: Slot::new(values, if engine.rounds() { many } else { 0 }, hidden.max(query).max(inner))?,
            apart: Slot::new(values, rows, if visits > 0 { pitch.max(wide) } else { pitch })?,
        })
    }
}
