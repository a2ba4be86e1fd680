//! One pass: a prompt, or one more token of each sequence.

use roofline_core::{
    Dim,
    measurement::Phase,
    model::Lowering,
    predict::forecast,
    units::{Bytes, Flops},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    counted::{Components, NOTE, Traffic, workload},
    place::{Found, Place, one},
    roof::{Standing, tera},
};
use crate::{Context, Note, Result};

/// A pass.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct Pass {
    /// prefill or decode
    pub phase: Phase,
    /// Tokens of the prompt, or in the cache
    pub seq_len: Dim,
    /// Sequences side by side
    #[serde(default = "one")]
    pub batch_size: Dim,
    #[serde(flatten)]
    pub place: Place,
}

/// What it takes, and where it stands under the roof.
#[derive(Serialize, JsonSchema)]
pub struct PassAnswer {
    pub model: String,
    pub model_name: String,
    pub device: String,
    pub device_name: String,
    pub precision: String,
    pub phase: Phase,
    pub seq_len: u64,
    pub batch_size: u64,
    pub flops: Flops,
    pub flops_by_component: Components,
    pub memory_bytes: Bytes,
    pub memory: Traffic,
    pub peak_tflops: f64,
    pub bandwidth_gb_s: f64,
    #[serde(flatten)]
    pub standing: Standing,
    /// What the roof allows for the pass as a whole.
    pub roof_time_ms: f64,
    pub kernels: KernelFigures,
    pub notes: Vec<Note>,
}

/// The same pass by its kernels: a causal prompt, the last token's logits, every tensor that moves, kernel after kernel.
#[derive(Clone, Copy, Serialize, JsonSchema)]
pub struct KernelFigures {
    pub flops: Flops,
    pub bytes: Bytes,
    pub operational_intensity: f64,
    pub ideal_time_ms: f64,
    pub expected_time_ms: f64,
}

impl Found {
    pub(super) fn kernels(&self, phase: Phase, batch: u64, tokens: u64) -> Result<KernelFigures> {
        let graph = self.model.graph(workload(phase, batch, tokens)?, Lowering::default())?;
        let total = forecast(&graph, &self.plan, &self.machine)?.total;
        let work = total.ideal.work;
        Ok(KernelFigures {
            flops: work.flops,
            bytes: work.bytes(),
            operational_intensity: work.intensity().value(),
            ideal_time_ms: total.ideal.time().seconds().value() * 1e3,
            expected_time_ms: total.expected.time.seconds().value() * 1e3,
        })
    }
}

impl Pass {
    pub(super) fn answer(&self, context: &Context) -> Result<PassAnswer> {
        let found = self.place.find(context)?;
        let (phase, batch, tokens) = (self.phase, self.batch_size.get(), self.seq_len.get());
        let counted = found.counted(phase, batch, tokens)?;
        let kernels = found.kernels(phase, batch, tokens)?;
        let device = found.device();
        let roof_time_ms = found.roof_time(&counted)?.value() * 1e3;
        context.note(NOTE);
        Ok(PassAnswer {
            phase,
            seq_len: tokens,
            batch_size: batch,
            flops: counted.flops.total,
            flops_by_component: counted.flops,
            memory_bytes: counted.memory.total,
            memory: counted.memory,
            peak_tflops: tera(found.ridge()? * device.memory.bandwidth),
            bandwidth_gb_s: device.memory.bandwidth.value() / 1e9,
            standing: Standing::of(device, found.math, counted.intensity())?,
            roof_time_ms,
            kernels,
            device: device.label(),
            device_name: device.name.clone(),
            model: found.model.key.clone(),
            model_name: found.model.name.clone(),
            precision: found.precision.clone(),
            notes: context.notes(),
        })
    }
}
