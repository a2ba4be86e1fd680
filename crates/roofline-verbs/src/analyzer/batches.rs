//! How batches scale by theory.

use roofline_core::{
    Dim,
    measurement::Phase,
    units::{Bytes, Flops},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{counted::NOTE, place::Place, roof::Standing, table::few};
use crate::{Context, Note, Result};

/// The batches to look at.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct Batches {
    /// Sequences side by side
    #[serde(default = "sizes")]
    pub batch_sizes: Vec<Dim>,
    /// prefill or decode
    #[serde(default = "decode")]
    pub phase: Phase,
    /// Tokens of each prompt, or in each cache
    #[serde(default = "length")]
    pub seq_len: Dim,
    #[serde(flatten)]
    pub place: Place,
}

fn sizes() -> Vec<Dim> {
    [1, 2, 4, 8, 16, 32, 64].into_iter().filter_map(|size| Dim::new("batch", size).ok()).collect()
}

fn decode() -> Phase {
    Phase::Decode
}

fn length() -> Dim {
    Dim::new("tokens", 512).unwrap_or(Dim::ONE)
}

/// The batches.
#[derive(Serialize, JsonSchema)]
pub struct BatchesAnswer {
    pub model: String,
    pub model_name: String,
    pub device: String,
    pub device_name: String,
    pub precision: String,
    pub phase: Phase,
    pub seq_len: u64,
    pub rows: Vec<Batched>,
    pub notes: Vec<Note>,
}

/// One batch.
#[derive(Clone, Copy, Serialize, JsonSchema)]
pub struct Batched {
    pub batch_size: u64,
    pub flops: Flops,
    pub memory_bytes: Bytes,
    #[serde(flatten)]
    pub standing: Standing,
    pub roof_time_ms: f64,
    pub tokens_per_sec: f64,
    /// Tokens per second over those of the first batch.
    pub scaling: f64,
    /// Of what as many times the sequences would ideally give, in percent.
    pub efficiency: f64,
}

impl Batches {
    pub(super) fn answer(&self, context: &Context) -> Result<BatchesAnswer> {
        few(&self.batch_sizes)?;
        let found = self.place.find(context)?;
        let mut rows: Vec<Batched> = Vec::new();
        for batch in self.batch_sizes.iter().map(|size| size.get()) {
            let counted = found.counted(self.phase, batch, self.seq_len.get())?;
            let time = found.roof_time(&counted)?;
            let each = if self.phase == Phase::Prefill { self.seq_len.get() } else { 1 };
            let rate = (batch * each) as f64 / time.value();
            let (scaling, efficiency) =
                scaling((batch, rate), rows.first().map(|row| (row.batch_size, row.tokens_per_sec)));
            rows.push(Batched {
                batch_size: batch,
                flops: counted.flops.total,
                memory_bytes: counted.memory.total,
                standing: Standing::of(found.device(), found.math, counted.intensity())?,
                roof_time_ms: time.value() * 1e3,
                tokens_per_sec: rate,
                scaling,
                efficiency,
            });
        }
        context.note(NOTE);
        Ok(BatchesAnswer {
            phase: self.phase,
            seq_len: self.seq_len.get(),
            rows,
            device: found.device().label(),
            device_name: found.device().name.clone(),
            model: found.model.key.clone(),
            model_name: found.model.name.clone(),
            precision: found.precision.clone(),
            notes: context.notes(),
        })
    }
}

/// How many times the rate of the first batch, and how much of the ideal that is, in percent.
pub(super) fn scaling((batch, rate): (u64, f64), first: Option<(u64, f64)>) -> (f64, f64) {
    let (first_batch, first_rate) = first.unwrap_or((batch, rate));
    let scaling = rate / first_rate;
    (scaling, 100.0 * scaling * first_batch as f64 / batch as f64)
}
