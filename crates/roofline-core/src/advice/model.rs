//! What would make a whole model faster, each gain computed by the same prediction.

use serde::Serialize;

use crate::{
    Device, Format, Model, Plan, Precision, Result,
    format::Sizes,
    model::{Lowering, Workload},
    precision::advisable,
    predict::{Bound, Estimate, predict},
};

use super::WORTHWHILE;

/// One thing to try.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// `quantize`, `kv_format`, `batch`, `speculate` or `fuse`.
    pub what: &'static str,
    /// The sentence.
    pub text: String,
    /// How many times as many tokens per second, at best.
    pub gain: f64,
}

/// Tokens a draft proposes per step, in the example of speculative decoding.
const DRAFT: u64 = 4;
/// How much larger the batch of the example is.
const BATCH: u64 = 8;

/// A pass of a model to be advised on.
#[derive(Clone, Copy)]
pub struct Pass<'a> {
    /// The model.
    pub model: &'a Model,
    /// What it does.
    pub workload: Workload,
    /// How it is lowered.
    pub lowering: Lowering,
    /// The formats.
    pub plan: &'a Plan,
    /// How sizes count.
    pub sizes: Sizes,
    /// On what.
    pub device: &'a Device,
}

impl Pass<'_> {
    /// The estimate of this pass.
    pub fn estimate(&self) -> Result<Estimate> {
        Ok(predict(&self.model.graph(self.workload, self.lowering)?, self.plan, self.sizes, self.device)?.total)
    }

    /// What helps, the largest gain first.
    pub fn advice(&self) -> Result<Vec<Step>> {
        let base = self.estimate()?;
        let mut steps = Vec::new();
        self.quantize(&base, &mut steps);
        self.kv_format(&base, &mut steps)?;
        self.fuse(&base, &mut steps)?;
        if self.workload.new.get() == 1 && base.bound() == Bound::Memory {
            self.batch(&base, &mut steps)?;
            self.speculate(&base, &mut steps)?;
        }
        steps.retain(|step| step.gain >= WORTHWHILE);
        steps.sort_by(|a, b| b.gain.total_cmp(&a.gain));
        Ok(steps)
    }

    /// The fastest named precision of at least 4 bits; one that changes more must be faster by a margin.
    fn quantize(&self, base: &Estimate, steps: &mut Vec<Step>) {
        let mut best: Option<(&str, f64)> = None;
        for named in advisable() {
            let Ok(plan) = Plan::model(&named.precision(), self.device) else { continue };
            let layers = Precision { kv: self.plan.layers.kv, ..plan.layers };
            let plan = Plan { layers, ..plan };
            let Ok(other) = Pass { plan: &plan, ..*self }.estimate() else { continue };
            let gain = base.time() / other.time();
            if gain >= WORTHWHILE * best.map_or(1.0, |(_, gain)| gain) {
                best = Some((named.name, gain));
            }
        }
        if let Some((name, gain)) = best {
            steps.push(Step { what: "quantize", text: format!("{name} would ideally be {gain:.2}x as fast"), gain });
        }
    }

    fn kv_format(&self, base: &Estimate, steps: &mut Vec<Step>) -> Result<()> {
        if self.plan.layers.kv.nominal_bits() > 8 {
            let layers = Precision { kv: Format::FP8, ..self.plan.layers };
            let plan = Plan { layers, ..*self.plan };
            let gain = base.time() / Pass { plan: &plan, ..*self }.estimate()?.time();
            steps.push(Step {
                what: "kv_format",
                text: format!("an FP8 cache would ideally be {gain:.2}x as fast"),
                gain,
            });
        }
        Ok(())
    }

    fn fuse(&self, base: &Estimate, steps: &mut Vec<Step>) -> Result<()> {
        if !self.lowering.fused {
            let lowering = Lowering { fused: true, ..self.lowering };
            let gain = base.time() / Pass { lowering, ..*self }.estimate()?.time();
            let text = format!("fused kernels, attention first, would ideally be {gain:.2}x as fast");
            steps.push(Step { what: "fuse", text, gain });
        }
        Ok(())
    }

    /// Tokens per second of a larger batch: the weights are read once for all of it.
    fn batch(&self, base: &Estimate, steps: &mut Vec<Step>) -> Result<()> {
        let Self { model, workload, lowering, plan, sizes, device } = *self;
        let Workload { sequences, context, .. } = workload;
        // No more than the memory holds, where it is known.
        let largest = match device.memory.usable() {
            Some(_) => model.largest_batch(workload, lowering, plan, sizes, device)?.unwrap_or(0),
            None => u64::MAX,
        };
        let batch = sequences.get().saturating_mul(BATCH).min(largest);
        let Ok(workload) = Workload::decode(batch, context.get()) else { return Ok(()) };
        let time = Pass { workload, ..*self }.estimate()?.time();
        let gain = base.time() * (batch as f64 / sequences.float()) / time;
        let text = format!("a batch of {batch} would give {gain:.2}x the tokens/s");
        steps.push(Step { what: "batch", text, gain });
        Ok(())
    }

    /// Verifying a draft reads the weights once for several tokens; the gain is if all are accepted and the draft is free.
    fn speculate(&self, base: &Estimate, steps: &mut Vec<Step>) -> Result<()> {
        let Workload { sequences, context, .. } = self.workload;
        let end = context.get().saturating_add(DRAFT);
        let Ok(workload) = Workload::chunk(sequences.get(), DRAFT + 1, end) else { return Ok(()) };
        let time = Pass { workload, ..*self }.estimate()?.time();
        let gain = base.time() * (DRAFT + 1) as f64 / time;
        let text = format!("speculative decoding with {DRAFT} draft tokens would give at most {gain:.2}x the tokens/s");
        steps.push(Step { what: "speculate", text, gain });
        Ok(())
    }
}
