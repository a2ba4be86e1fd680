//! Passes of models over devices, plans and shares of the work: what a sweep goes through and a picture shows.

use std::sync::Arc;

use roofline_core::{
    Machine, Model, Plan,
    model::Lowering,
    plan::Assignment,
    predict::{Figures, Forecast, KernelFigures, Ratios, Tier, forecast},
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
        let Self { model, machine, tier, phase, .. } = self;
        let workload = workload(*phase, batch, context)?;
        let graph = model.graph(workload, self.lowering)?;
        let told = forecast(&graph, &self.assignment, machine)?;
        let baseline = match self.baseline.map(|at| &lines[at]) {
            Some(first) if first.plan == self.plan => Some(told.total),
            Some(first) => forecast(&graph, &first.assignment, &first.machine).ok().map(|first| first.total),
            None => None,
        };
        let footprint = model.footprint_of(&graph, workload, self.lowering.ranks, &self.assignment, machine.sizes);
        let room = machine.device.room();
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
            tokens_per_s: tokens(*phase, batch, context) / told.total.time(*tier).value(),
            weight_bytes: footprint.weights,
            kv_bytes: footprint.kv,
            memory_bytes: footprint.total(),
            fits: room.map(|room| footprint.total() <= room.for_models()),
            operators: Vec::new(),
        };
        Ok((point, told))
    }
}
