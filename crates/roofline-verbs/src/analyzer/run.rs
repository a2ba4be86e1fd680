//! A prompt and its answer, beside the time they took.

use roofline_core::{
    Dim, Work,
    measurement::Phase,
    request::Request as Served,
    units::{Bytes, Flops, Seconds},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    counted::NOTE,
    place::{Found, Place, one},
    roof::{Standing, tera},
};
use crate::{Context, Error, Note, Result};

/// A run.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct Run {
    /// Tokens of each prompt
    pub prompt_len: Dim,
    /// Tokens that were generated for each
    pub gen_tokens: Dim,
    /// Seconds from start to end
    pub measured_time: Option<f64>,
    /// Requests side by side
    #[serde(default = "one")]
    pub batch_size: Dim,
    #[serde(flatten)]
    pub place: Place,
}

/// The run under its roof.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AnalyzerRunAnswer")]
pub struct RunAnswer {
    pub model: String,
    pub model_name: String,
    pub device: String,
    pub device_name: String,
    pub precision: String,
    pub prompt_len: u64,
    pub gen_tokens: u64,
    pub batch_size: u64,
    pub prefill_flops: Flops,
    pub decode_flops: Flops,
    pub total_flops: Flops,
    pub memory_bytes: Bytes,
    #[serde(flatten)]
    pub standing: Standing,
    /// The least time for every pass, one after the other.
    pub roof_time_s: f64,
    pub measured_time_s: Option<f64>,
    pub measured_tflops: Option<f64>,
    pub measured_gb_s: Option<f64>,
    pub tokens_per_sec: Option<f64>,
    /// Operations per second over the peak.
    pub mfu: Option<f64>,
    /// Bytes per second over the bandwidth.
    pub mbu: Option<f64>,
    /// The least time over the measured one: 1 is the roof.
    pub efficiency: Option<f64>,
    pub notes: Vec<Note>,
}

/// The passes of a run, summed.
#[derive(Clone, Copy)]
pub(super) struct Passes {
    pub(super) prefill: Flops,
    pub(super) decode: Flops,
    pub(super) work: Work,
    pub(super) roof: Seconds,
}

pub(super) const FIRST_TOKEN: &str =
    "the first token comes with the prompt, so a run has one decode pass less than tokens";

impl Found {
    /// Every pass at its own context.
    pub(super) fn passes(&self, batch: u64, prompt: u64, generate: u64) -> Result<Passes> {
        Served { batch, prompt, generate }.check()?;
        let first = self.counted(Phase::Prefill, batch, prompt)?;
        let mut passes = Passes {
            prefill: first.flops.total,
            decode: Flops::ZERO,
            work: first.work(),
            roof: self.roof_time(&first)?,
        };
        for step in 1..generate {
            let next = self.counted(Phase::Decode, batch, prompt.saturating_add(step))?;
            passes.decode += next.flops.total;
            passes.work = passes.work + next.work();
            passes.roof += self.roof_time(&next)?;
        }
        Ok(passes)
    }
}

/// A time that something can take.
pub(super) fn seconds(value: f64) -> Result<Seconds> {
    if value.is_finite() && value > 0.0 {
        return Ok(Seconds::new(value));
    }
    Err(Error::request(format!("a run cannot take {value} seconds"), "give the time from start to end, such as 12.4"))
}

impl Run {
    pub(super) fn answer(&self, context: &Context) -> Result<RunAnswer> {
        let found = self.place.find(context)?;
        let (batch, prompt, generate) = (self.batch_size.get(), self.prompt_len.get(), self.gen_tokens.get());
        let passes = found.passes(batch, prompt, generate)?;
        let time = self.measured_time.map(seconds).transpose()?;
        let (device, work) = (found.device(), passes.work);
        let bandwidth = device.memory.bandwidth;
        let peak = found.ridge()? * bandwidth;
        let over = |part: Seconds| time.map(|time| part / time);
        let efficiency = over(passes.roof);
        if efficiency.is_some_and(|efficiency| efficiency > 1.0) {
            context.warn(
                "the run is faster than its roof: the precision, the token counts or the device named here cannot be \
                 what ran",
            );
        }
        context.note(FIRST_TOKEN);
        context.note(NOTE);
        Ok(RunAnswer {
            prompt_len: prompt,
            gen_tokens: generate,
            batch_size: batch,
            prefill_flops: passes.prefill,
            decode_flops: passes.decode,
            total_flops: work.flops,
            memory_bytes: work.bytes(),
            standing: Standing::of(device, found.math, work.intensity())?,
            roof_time_s: passes.roof.value(),
            measured_time_s: time.map(Seconds::value),
            measured_tflops: time.map(|time| tera(work.flops / time)),
            measured_gb_s: time.map(|time| (work.bytes() / time).value() / 1e9),
            tokens_per_sec: time.map(|time| (batch * generate) as f64 / time.value()),
            mfu: over(work.flops / peak),
            mbu: over(work.bytes() / bandwidth),
            efficiency,
            device: device.label(),
            device_name: device.name.clone(),
            model: found.model.key.clone(),
            model_name: found.model.name.clone(),
            precision: found.precision.clone(),
            notes: context.notes(),
        })
    }
}
