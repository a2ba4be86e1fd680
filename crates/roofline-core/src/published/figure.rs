//! A published figure as the passes it was measured on.

use super::{
    Effects, Phase, Reach, Regime, Speed, TERMS,
    effects::Place,
    kernel::{Kernel, Shared},
    speed::plan_of,
};
use crate::{
    Device, Dim, Error, Machine, Model, Plan, Registry, Result,
    machine::Basis,
    model::{Lowering, Workload},
    plan::{self, Assignment},
    predict::Estimate,
};

/// What was measured, and how long it took.
#[derive(Clone, Debug)]
pub struct Figure {
    pub(super) place: Place,
    pub(super) regime: Regime,
    /// What was timed.
    pub phase: Phase,
    /// Seconds of all of it.
    pub seconds: f64,
    /// The least it can take.
    pub floor: f64,
    passes: Vec<Pass>,
}

#[derive(Clone, Debug)]
struct Pass {
    count: f64,
    layers: u64,
    sequences: f64,
    kernels: Vec<(Cost, f64)>,
}

/// What a kernel costs: as somebody timed it under the runtime, or by terms, and never less than its floor.
#[derive(Clone, Copy, Debug)]
enum Cost {
    Timed(f64),
    Reached(Kernel, f64),
}

impl Figure {
    /// Of a published speed; an error where the registry knows no such device or model, or nobody knows the format.
    pub fn of(speed: &Speed) -> Result<Self> {
        let positive = [speed.devices, speed.batch, speed.context].iter().all(|count| (1..1 << 40).contains(count));
        if !positive || !speed.tokens_per_s.is_finite() || speed.tokens_per_s <= 0.0 {
            return Err(Error::Shape(format!(
                "{} tokens/s of {} x {}",
                speed.tokens_per_s, speed.batch, speed.context
            )));
        }
        let device = Registry::builtin().find(&speed.device)?.into_owned();
        let (model, stack) = (Model::find(&speed.model)?, speed.stack()?);
        let plan = plan_of(&speed.quant, stack, model.anatomy.order.len())?;
        let release = Some(speed.runtime.trim().to_ascii_lowercase());
        let place = Place { release, ..Place::of(&device, stack, None) };
        let machine = Machine::new(device, stack);
        let plan = assigned(&plan, &machine.device, &model)?;
        let lowering = Lowering { ranks: Dim::new("devices", speed.devices)?, ..Lowering::default() };
        let (batch, context) = (speed.batch, speed.context);
        let generated = speed.generated.unwrap_or(1).max(1);
        let (workloads, tokens) = match speed.phase {
            Phase::Decode => (vec![(1.0, Workload::decode(batch, context)?)], batch),
            Phase::Prefill => (vec![(1.0, Workload::prefill(batch, context)?)], batch * context),
            Phase::Request => {
                let half = Workload::decode(batch, context + generated / 2)?;
                let prompt = (1.0, Workload::prefill(batch, context)?);
                (vec![prompt, (generated as f64 - 1.0, half)], batch * generated)
            }
        };
        let (mut passes, mut floor, mut regime) = (Vec::new(), 0.0, Regime::Token);
        for (count, workload) in workloads {
            let graph = model.graph(workload, lowering)?;
            let prompt = workload.new.get() > 1;
            regime = regime.max(Shared::of(&graph, &plan).regime(batch as f64, prompt));
            let mut kernels = Vec::with_capacity(graph.nodes.len());
            let mut failed = None;
            plan.kernels(&graph, |plan::Kernel { node, precision }| match Cost::of(&machine, &node.op, precision) {
                Ok((cost, least)) => {
                    floor += count * least * node.count as f64;
                    kernels.push((cost, node.count as f64));
                }
                Err(error) => failed = Some(error),
            });
            if let Some(error) = failed {
                return Err(error);
            }
            let (layers, sequences) = (model.anatomy.order.len() as u64, batch as f64);
            passes.push(Pass { count, layers, sequences, kernels });
        }
        Ok(Self { place, regime, phase: speed.phase, seconds: tokens as f64 / speed.tokens_per_s, floor, passes })
    }

    /// The time by terms.
    pub(super) fn time(&self, terms: &[f64; TERMS]) -> f64 {
        let reach = Reach::new(terms, [0.0; Regime::ALL.len()], true);
        self.by(&reach)
    }

    fn by(&self, reach: &Reach) -> f64 {
        let kernel = |(cost, count): &(Cost, f64)| {
            count
                * match cost {
                    Cost::Timed(seconds) => *seconds,
                    Cost::Reached(kernel, least) => reach.body(kernel).max(*least),
                }
        };
        let pass = |pass: &Pass| {
            let beside = reach.beside(pass.layers, pass.sequences).value();
            pass.count * (beside + pass.kernels.iter().map(kernel).sum::<f64>())
        };
        self.passes.iter().map(pass).sum()
    }

    /// The time by factors, and within which factor four of five figures are of it.
    pub fn expected(&self, effects: &Effects) -> (f64, f64) {
        let reach = effects.at(&self.place);
        (self.by(&reach), reach.factor(self.regime))
    }

    /// What a forecast of it stands on: kernels that somebody timed, speeds of the runtime on such devices, or neither.
    pub fn basis(&self, effects: &Effects) -> Basis {
        let timed = |pass: &Pass| pass.kernels.iter().any(|(cost, _)| matches!(cost, Cost::Timed(_)));
        match (self.passes.iter().all(timed), effects.at(&self.place).is_known()) {
            (true, _) => Basis::Transferred,
            (_, true) => Basis::Published,
            _ => Basis::Prior,
        }
    }

    /// Why a figure can be above what the device's limits allow.
    pub fn above_floor(&self) -> &'static str {
        match self.regime {
            Regime::Experts => "tokens chose fewer experts, or other ones, than were counted",
            _ if self.phase == Phase::Request => {
                "the batch or the format of its cache was assumed, or several requests shared what was counted for each"
            }
            _ if self.phase == Phase::Prefill => {
                "its kernels add up in 16 bits, or in a format other than the one named"
            }
            _ => "the device ran faster than its data sheet says, or the model was not the one named",
        }
    }

    /// The device's key.
    pub fn device(&self) -> &str {
        &self.place.device
    }

    /// The runtime.
    pub fn stack(&self) -> crate::machine::Stack {
        self.place.stack
    }

    /// The kind of pass.
    pub fn regime(&self) -> Regime {
        self.regime
    }
}

impl Cost {
    fn of(machine: &Machine, op: &crate::Op, precision: &crate::Precision) -> Result<(Self, f64)> {
        let precision = &machine.multiplied(precision);
        let ideal = Estimate::of(op, precision, machine.sizes, &machine.device)?;
        let least = ideal.time().seconds().value();
        if let Some(causes) = machine.timed(op, precision) {
            return Ok((Self::Timed(causes.time.value().max(least)), least));
        }
        let likely = Estimate::likely(op, precision, machine.sizes, &machine.device)?;
        let kernel = Kernel::of(op, precision, machine.sizes, &machine.device, &likely);
        Ok((Self::Reached(kernel, least), least))
    }
}

/// A plan on a device; one that names a unit the device lacks, on the one it has.
fn assigned(plan: &Plan, device: &Device, model: &Model) -> Result<Assignment> {
    plan.on(device, Some(&model.anatomy))
}
