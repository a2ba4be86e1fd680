//! Passes of models over devices, plans and shares of the work: what a sweep goes through and a picture shows.

use std::sync::Arc;

use roofline_core::{
    Graph, Machine, Model, Plan,
    model::{Footprint, Lowering, Workload},
    plan::Assignment,
    predict::{Figures, Forecast, KernelFigures, Prediction, Prepared, Ratios, Tier, forecast},
    units::Bytes,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    Context, Result,
    machine::{Varies, cases},
    predict::{Unavailable, lowerings, tokens, workload},
    request::{Lower, ModelName, Phase, Setting},
};

/// One pass of a model; the fields are those of a prediction.
#[derive(Serialize, JsonSchema)]
pub struct ModelPoint {
    pub model: String,
    pub device: String,
    pub precision: String,
    pub plan: Plan,
    pub tensor_parallel: u64,
    /// Factors on the device's memory bandwidth and on its peaks.
    pub scale_bandwidth: f64,
    pub scale_compute: f64,
    pub phase: Phase,
    pub batch: u64,
    pub context: u64,
    #[serde(flatten)]
    pub figures: Figures,
    /// Over the first plan at the same place; none where the device lacks that one.
    #[serde(flatten)]
    pub ratios: Ratios,
    pub tokens_per_s: f64,
    pub weight_bytes: Bytes,
    pub kv_bytes: Bytes,
    pub memory_bytes: Bytes,
    pub fits: Option<bool>,
    /// Its kernels, where a picture shows them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub operators: Vec<KernelFigures>,
}

/// A model on a machine by formats that are known. A prediction, a point of a sweep and a row of a batch are all told by it,
/// so that none can differ from another.
#[derive(Clone, Copy)]
pub(crate) struct Setup<'a> {
    pub(crate) model: &'a Model,
    pub(crate) machine: &'a Machine,
    pub(crate) assignment: &'a Assignment,
    pub(crate) lowering: Lowering,
    pub(crate) phase: Phase,
    pub(crate) tier: Tier,
}

/// What every pass is asked beside how long it takes: how much memory, how many tokens, and whether there is as much.
pub(crate) struct Told {
    pub(crate) footprint: Footprint,
    pub(crate) tokens_per_s: f64,
    pub(crate) fits: Option<bool>,
}

impl<'a> Setup<'a> {
    /// Of the graph of a workload.
    pub(crate) fn told(&self, graph: &Graph, workload: Workload) -> roofline_core::Result<(Forecast, Told)> {
        let Self { model, machine, assignment, lowering, .. } = *self;
        let forecast = forecast(graph, assignment, machine)?;
        let footprint = model.footprint_of(graph, workload, lowering.ranks, assignment, machine.sizes);
        let told = self.concluded(&forecast.total, footprint, workload);
        Ok((forecast, told))
    }

    /// What follows from the times and the memory of a pass.
    pub(crate) fn concluded(&self, total: &Prediction, footprint: Footprint, workload: Workload) -> Told {
        let Self { machine, phase, tier, .. } = *self;
        let tokens = tokens(phase, workload.sequences.get(), workload.context.get());
        Told {
            tokens_per_s: tokens / total.time(tier).value(),
            fits: machine.device.room().map(|room| footprint.total() <= room.for_models()),
            footprint,
        }
    }

    /// Its kernels, for many workloads.
    pub(crate) fn prepared(&self, workload: Workload) -> roofline_core::Result<Prepared<'a>> {
        let Self { model, machine, assignment, lowering, .. } = *self;
        Prepared::new(model, machine, assignment, lowering, workload)
    }
}

/// What is gone through, but for batches and contexts.
pub(crate) struct Field<'a> {
    pub(crate) models: &'a [ModelName],
    pub(crate) phases: &'a [Phase],
    /// Factors on bandwidth and on compute.
    pub(crate) scales: &'a [(f64, f64)],
    pub(crate) lowering: &'a Lower,
    pub(crate) setting: &'a Setting,
}

/// Everything of a point but its batch and context.
pub(crate) struct Line {
    pub(crate) model: Arc<Model>,
    pub(crate) machine: Arc<Machine>,
    /// The device, before it was scaled.
    pub(crate) device: String,
    pub(crate) plan: Plan,
    pub(crate) lowering: Lowering,
    pub(crate) tier: Tier,
    phase: Phase,
    scale: (f64, f64),
    assignment: Assignment,
    /// Where the line of the first plan at the same place is.
    baseline: Option<usize>,
}

/// Every line of a field. A plan that a device lacks is said and left out; where nothing is left, its error is the answer.
pub(crate) fn lines(context: &Context, field: &Field<'_>) -> Result<Vec<Line>> {
    let models = field.models.iter().map(|name| context.model(name).map(Arc::new)).collect::<Result<Vec<_>>>()?;
    let lowerings = lowerings(field.lowering);
    let phased = |lowering: &Lowering| {
        let lowering = *lowering;
        field.phases.iter().map(move |phase| (lowering, *phase))
    };
    let (mut lines, mut first_error) = (Vec::<Line>::new(), None);
    for case in cases(context, field.setting, Varies::Product(None))? {
        for scale in field.scales {
            let machine = Arc::new(case.machine.scaled(scale.0, scale.1)?);
            let here = lines.len();
            for (at, plan) in case.plans.iter().enumerate() {
                for model in &models {
                    let assignment = match plan.on(&machine.device, Some(&model.anatomy)) {
                        Ok(assignment) => assignment,
                        Err(error) => {
                            context.warn(Unavailable::new(&case.machine.device, plan, &error).sentence());
                            first_error.get_or_insert(error);
                            continue;
                        }
                    };
                    for (lowering, phase) in lowerings.iter().flat_map(phased) {
                        let beside = |other: &Line| {
                            Arc::ptr_eq(&other.model, model)
                                && (&other.plan, other.lowering, other.phase) == (&case.plans[0], lowering, phase)
                        };
                        let first = || lines[here..].iter().position(beside).map(|first| here + first);
                        let baseline = if at == 0 { Some(lines.len()) } else { first() };
                        lines.push(Line {
                            model: Arc::clone(model),
                            machine: Arc::clone(&machine),
                            device: case.machine.device.label(),
                            plan: plan.clone(),
                            lowering,
                            tier: case.tier,
                            phase,
                            scale: *scale,
                            assignment: assignment.clone(),
                            baseline,
                        });
                    }
                }
            }
        }
    }
    match first_error {
        Some(error) if lines.is_empty() => Err(error.into()),
        _ => Ok(lines),
    }
}

impl Line {
    /// Both times of its kernels at a batch and a context.
    pub(crate) fn forecast(&self, batch: u64, context: u64) -> roofline_core::Result<Forecast> {
        let graph = self.model.graph(workload(self.phase, batch, context)?, self.lowering)?;
        forecast(&graph, &self.assignment, &self.machine)
    }

    /// The same as a point, beside the line that it is compared with; `lines` are all of its field.
    pub(crate) fn point(
        &self,
        lines: &[Self],
        batch: u64,
        context: u64,
    ) -> roofline_core::Result<(ModelPoint, Forecast)> {
        let Self { model, machine, assignment, lowering, tier, phase, .. } = self;
        let workload = workload(*phase, batch, context)?;
        let graph = model.graph(workload, *lowering)?;
        let setup = Setup { model, machine, assignment, lowering: *lowering, phase: *phase, tier: *tier };
        let (told, Told { footprint, tokens_per_s, fits }) = setup.told(&graph, workload)?;
        let baseline = match self.baseline.map(|at| &lines[at]) {
            Some(first) if first.plan == self.plan => Some(told.total),
            Some(first) => forecast(&graph, &first.assignment, &first.machine).ok().map(|first| first.total),
            None => None,
        };
        let point = ModelPoint {
            model: model.key.clone(),
            device: self.device.clone(),
            precision: self.plan.label(),
            plan: self.plan.clone(),
            tensor_parallel: self.lowering.ranks.get(),
            scale_bandwidth: self.scale.0,
            scale_compute: self.scale.1,
            phase: *phase,
            batch,
            context,
            figures: Figures::of_forecast(&told, *tier, machine),
            ratios: Ratios::of(&told.total, baseline.as_ref(), *tier),
            tokens_per_s,
            weight_bytes: footprint.weights,
            kv_bytes: footprint.kv,
            memory_bytes: footprint.total(),
            fits,
            operators: Vec::new(),
        };
        Ok((point, told))
    }
}
