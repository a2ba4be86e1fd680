//! What would make a whole model faster, each gain computed by the same prediction.

use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    Format, Machine, Model, Plan, Result,
    machine::Basis,
    model::{Lowering, Workload},
    precision::advisable,
    predict::{Bound, Prediction, Tier, predict},
};

use super::WORTHWHILE;

/// One thing to try.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "ModelAdvice")]
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
    /// On what.
    pub machine: &'a Machine,
    /// By which times gains are told.
    pub tier: Tier,
}

impl Pass<'_> {
    /// The prediction of this pass.
    pub fn prediction(&self) -> Result<Prediction> {
        Ok(predict(&self.model.graph(self.workload, self.lowering)?, self.plan, self.machine)?.total)
    }

    /// What its expected time stands on.
    fn basis(&self) -> Result<Basis> {
        Ok(predict(&self.model.graph(self.workload, self.lowering)?, self.plan, self.machine)?.basis)
    }

    /// How many times as fast as `base` another pass is.
    fn gain(&self, base: &Prediction) -> Result<f64> {
        Ok(self.prediction()?.speedup(base, self.tier))
    }

    /// The word that goes with a gain: the floor's is the best there can be.
    fn would(&self) -> &'static str {
        match self.tier {
            Tier::Ideal => "would ideally be",
            Tier::Expected => "would be",
        }
    }

    /// What helps, the largest gain first.
    pub fn advice(&self) -> Result<Vec<Step>> {
        let base = self.prediction()?;
        let mut steps = Vec::new();
        self.quantize(&base, &mut steps);
        self.kv_format(&base, &mut steps)?;
        self.fuse(&base, &mut steps)?;
        if self.workload.new.get() == 1 && base.bound(self.tier) == Bound::Memory {
            self.batch(&base, &mut steps)?;
            self.speculate(&base, &mut steps)?;
        }
        steps.retain(|step| step.gain >= WORTHWHILE);
        steps.sort_by(|a, b| b.gain.total_cmp(&a.gain));
        Ok(steps)
    }

    /// The fastest named precision of at least 4 bits; one that changes more must be faster by a margin.
    fn quantize(&self, base: &Prediction, steps: &mut Vec<Step>) {
        let mut best: Option<(&str, f64)> = None;
        let kv = self.kv();
        let own = (self.tier == Tier::Expected).then(|| self.basis().ok()).flatten();
        for named in advisable() {
            let plan = Plan::of(named.precision());
            let plan = kv.map_or_else(|| plan.clone(), |kv| plan.clone().with_kv(kv));
            let other = Pass { plan: &plan, ..*self };
            // What is less sure is no advice: what was not measured looks as good as what it is told by.
            if own.is_some_and(|own| other.basis().is_ok_and(|basis| basis > own)) {
                continue;
            }
            let Ok(gain) = other.gain(base) else { continue };
            if gain >= WORTHWHILE * best.map_or(1.0, |(_, gain)| gain) {
                best = Some((named.name, gain));
            }
        }
        if let Some((name, gain)) = best {
            let text = format!("{name} {} {gain:.2}x as fast", self.would());
            steps.push(Step { what: "quantize", text, gain });
        }
    }

    /// The format of the cache; none where the plan has no meaning on the device.
    fn kv(&self) -> Option<Format> {
        self.plan.on(&self.machine.device, Some(&self.model.anatomy)).ok().map(|assignment| assignment.kv())
    }

    fn kv_format(&self, base: &Prediction, steps: &mut Vec<Step>) -> Result<()> {
        if self.kv().is_some_and(|kv| kv.nominal_bits() > 8) {
            let plan = self.plan.clone().with_kv(Format::FP8);
            let gain = Pass { plan: &plan, ..*self }.gain(base)?;
            let text = format!("an FP8 cache {} {gain:.2}x as fast", self.would());
            steps.push(Step { what: "kv_format", text, gain });
        }
        Ok(())
    }

    fn fuse(&self, base: &Prediction, steps: &mut Vec<Step>) -> Result<()> {
        if !self.lowering.fused {
            let lowering = Lowering { fused: true, ..self.lowering };
            let gain = Pass { lowering, ..*self }.gain(base)?;
            let text = format!("fused kernels, attention first, {} {gain:.2}x as fast", self.would());
            steps.push(Step { what: "fuse", text, gain });
        }
        Ok(())
    }

    /// Tokens per second of a larger batch: the weights are read once for all of it.
    fn batch(&self, base: &Prediction, steps: &mut Vec<Step>) -> Result<()> {
        let Self { model, workload, lowering, plan, machine, .. } = *self;
        let Workload { sequences, context, .. } = workload;
        let (device, sizes) = (&machine.device, machine.sizes);
        let plan = plan.on(device, Some(&model.anatomy))?;
        // No more than the memory holds, where it is known.
        let largest = match device.room() {
            Some(_) => model.largest_batch(workload, lowering, &plan, sizes, device)?.unwrap_or(0),
            None => u64::MAX,
        };
        let batch = sequences.get().saturating_mul(BATCH).min(largest);
        let Ok(workload) = Workload::decode(batch, context.get()) else { return Ok(()) };
        let gain = Pass { workload, ..*self }.gain(base)? * batch as f64 / sequences.float();
        let text = format!("a batch of {batch} would give {gain:.2}x the tokens/s");
        steps.push(Step { what: "batch", text, gain });
        Ok(())
    }

    /// Verifying a draft reads the weights once for several tokens; the gain is if all are accepted and the draft is free.
    fn speculate(&self, base: &Prediction, steps: &mut Vec<Step>) -> Result<()> {
        let Workload { sequences, context, .. } = self.workload;
        let end = context.get().saturating_add(DRAFT);
        let Ok(workload) = Workload::chunk(sequences.get(), DRAFT + 1, end) else { return Ok(()) };
        let gain = Pass { workload, ..*self }.gain(base)? * (DRAFT + 1) as f64;
        let text = format!("speculative decoding with {DRAFT} draft tokens would give at most {gain:.2}x the tokens/s");
        steps.push(Step { what: "speculate", text, gain });
        Ok(())
    }
}
