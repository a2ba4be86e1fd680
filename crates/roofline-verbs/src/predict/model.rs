//! Prefill and decode of a whole model, its memory, and what would help.

use roofline_core::{
    Dim, Machine, Model, Plan, Precision, Role,
    advice::{self, Step},
    device::Room,
    format::Sizes,
    machine::Basis,
    model::{Lowering, Shortfall, Workload},
    plan::Assignment,
    predict::{Bound, Figures, KernelFigures, Prediction, Ratios, Tier, Weaker},
    request::{Request, timeline},
    units::{Bytes, Seconds},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::{ModelPass, Unavailable};
use crate::{
    Context, Note, Result,
    machine::{Case, Varies, cases},
    passes::{Setup, Told},
    request::{Lower, Phase},
};

/// Every pass that was asked for.
#[derive(Serialize, JsonSchema)]
pub struct ModelPrediction {
    pub model: String,
    pub model_name: String,
    pub parameters: f64,
    pub active_parameters: f64,
    /// The longest context it was made for.
    pub max_context: Option<u64>,
    /// How its checkpoint stores the weights, where that is quantized.
    pub ships_in: Option<String>,
    pub device: String,
    pub sizes: Sizes,
    pub estimates: Vec<PassEstimate>,
    pub unavailable: Vec<Unavailable>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
    #[serde(skip)]
    pub several: bool,
}

/// A pass on one device by one plan.
#[derive(Serialize, JsonSchema)]
pub struct PassEstimate {
    pub device: String,
    pub device_name: String,
    pub precision: String,
    pub plan: Plan,
    /// Those of the layers; rules and recipes may have others.
    pub formats: Precision,
    pub phase: Phase,
    pub batch: u64,
    pub context: u64,
    pub tensor_parallel: u64,
    #[serde(flatten)]
    pub figures: Figures,
    /// Kernels that stand on less than the others.
    pub weaker: Vec<Weaker>,
    pub tokens_per_s: f64,
    /// Stored bits of a weight, all of them counted, and of a cached element, scales counted.
    pub bits_per_weight: f64,
    pub bits_per_kv: f64,
    pub weight_bytes: Bytes,
    pub kv_bytes: Bytes,
    pub activation_bytes: Bytes,
    pub memory_bytes: Bytes,
    /// What the system and a margin take of the device's memory; none where nobody said how much there is.
    pub room: Option<Room>,
    pub fits: Option<bool>,
    /// What is missing, and what would make it fit.
    pub shortfall: Option<Shortfall>,
    pub longest_context: Option<u64>,
    pub largest_batch: Option<u64>,
    pub launch_time_us: f64,
    pub memory_time_us: f64,
    pub compute_time_us: f64,
    pub network_time_us: f64,
    pub overlapped_time_us: f64,
    /// What lies between two kernels; none where others than our own run, which a graph starts.
    pub gap: Option<PassGap>,
    /// Over the first plan, at the same phase, device and count of devices.
    #[serde(flatten)]
    pub ratios: Ratios,
    /// The context at which reading the cache takes as long as reading the weights.
    pub kv_crossover_context: Option<u64>,
    pub ffn_share_of_flops: f64,
    pub request: Option<RequestEstimate>,
    pub advice: Vec<Step>,
    pub operators: Vec<KernelFigures>,
    #[serde(skip)]
    pub total: Prediction,
}

/// What lies between two kernels of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct PassGap {
    /// Whether passes were measured to know it; if not, kernels are added up as they were measured one by one.
    pub measured: bool,
    /// In microseconds, below zero where the next kernel begins before the last has ended.
    pub kernel_us: f64,
}

impl PassGap {
    /// Of a machine.
    fn of(machine: &Machine) -> Option<Self> {
        let own = machine.calibration().filter(|own| own.has_gaps() && !machine.is_moved())?;
        let kernel_us = own.gap.as_ref().map_or(0.0, |gap| gap.kernel.micros());
        Some(Self { measured: own.gap.is_some(), kernel_us })
    }
}

/// A whole request.
#[derive(Serialize, JsonSchema)]
pub struct RequestEstimate {
    pub tier: Tier,
    pub basis: Basis,
    pub prompt: u64,
    pub generate: u64,
    /// Of one prompt of the batch: nobody waits for the others'.
    pub ttft_us: f64,
    pub ideal_ttft_us: f64,
    pub expected_ttft_us: f64,
    pub time_per_output_token_us: Option<f64>,
    pub total_us: f64,
    pub ideal_total_us: f64,
    pub expected_total_us: f64,
    pub generated_tokens_per_s: f64,
}

/// One combination to look at.
struct Pass<'a> {
    model: &'a Model,
    case: &'a Case,
    plan: &'a Plan,
    lowering: Lowering,
    phase: Phase,
}

pub(super) fn predict(context: &Context, asked: &ModelPass) -> Result<ModelPrediction> {
    let model = context.model(&asked.model)?;
    let (batch, prompt) = (asked.batch.get(), asked.context.get());
    Request { batch, prompt, generate: asked.generate.map_or(1, Dim::get) }.check()?;
    let cases = cases(context, &asked.setting, Varies::Model(&model))?;
    let phases = asked.phase.map_or_else(|| vec![Phase::Prefill, Phase::Decode], |phase| vec![phase]);
    let (mut estimates, mut unavailable) = (Vec::new(), Vec::new());
    let mut first_error = None;
    for case in &cases {
        for lowering in lowerings(&asked.lowering) {
            for phase in &phases {
                let mut baseline: Option<Prediction> = None;
                for (at, plan) in case.plans.iter().enumerate() {
                    let pass = Pass { model: &model, case, plan, lowering, phase: *phase };
                    match pass.estimate(asked) {
                        Ok(mut row) => {
                            if at == 0 {
                                baseline = Some(row.total);
                            }
                            row.ratios = Ratios::of(&row.total, baseline.as_ref(), case.tier);
                            estimates.push(row);
                        }
                        Err(error) => {
                            unavailable.push(Unavailable::new(&case.machine.device, plan, &error));
                            first_error.get_or_insert(error);
                        }
                    }
                }
            }
        }
    }
    if let Some(error) = first_error.filter(|_| estimates.is_empty()) {
        return Err(error.into());
    }
    let devices: Vec<String> = cases.iter().map(|case| case.machine.device.label()).collect();
    Ok(ModelPrediction {
        parameters: model.parameters() as f64,
        active_parameters: model.active_parameters() as f64,
        max_context: model.max_context.map(Dim::get),
        ships_in: model.stored.as_ref().map(|stored| stored.0.clone()),
        model: model.key,
        model_name: model.name,
        device: devices.join(","),
        sizes: asked.setting.sizes,
        estimates,
        unavailable,
        notes: context.notes(),
        several: cases.len() > 1,
    })
}

/// One way to lower for each count of devices.
pub(crate) fn lowerings(asked: &Lower) -> Vec<Lowering> {
    let Lower { tp, unfused, all_logits, no_causal } = asked;
    let lowering =
        |ranks: &Dim| Lowering { fused: !unfused, all_logits: *all_logits, causal: !no_causal, ranks: *ranks };
    tp.iter().map(lowering).collect()
}

/// The pass of a phase.
pub(crate) fn workload(phase: Phase, batch: u64, context: u64) -> roofline_core::Result<Workload> {
    match phase {
        Phase::Prefill => Workload::prefill(batch, context),
        Phase::Decode => Workload::decode(batch, context),
    }
}

/// Tokens that a pass of a phase processes.
pub(crate) fn tokens(phase: Phase, batch: u64, context: u64) -> f64 {
    batch as f64 * if phase == Phase::Prefill { context as f64 } else { 1.0 }
}

impl PassEstimate {
    /// The time of the tier that is shown.
    pub fn time(&self) -> Seconds {
        self.total.time(self.figures.tier)
    }

    /// What it waits for.
    pub fn bound(&self) -> Bound {
        self.total.bound(self.figures.tier)
    }
}

impl Pass<'_> {
    fn estimate(&self, asked: &ModelPass) -> roofline_core::Result<PassEstimate> {
        let (batch, context) = (asked.batch.get(), asked.context.get());
        let Self { model, case, plan, lowering, phase } = *self;
        let Case { machine, tier, .. } = case;
        let (device, sizes, tier) = (&machine.device, machine.sizes, *tier);
        let assignment = plan.on(device, Some(&model.anatomy))?;
        let workload = workload(phase, batch, context)?;
        let graph = model.graph(workload, lowering)?;
        let setup = Setup { model, machine, assignment: &assignment, lowering, phase, tier };
        let (forecast, Told { footprint, tokens_per_s, fits }) = setup.told(&graph, workload)?;
        let total = forecast.total;
        let Prediction { ideal, expected } = total;
        let decode = Workload::decode(batch, context)?;
        let (ranks, kv) = (lowering.ranks, assignment.kv());
        let read = model.decode_read(decode.sequences, lowering, &assignment, sizes)?;
        let room = device.room();
        Ok(PassEstimate {
            device: device.label(),
            device_name: device.name.clone(),
            precision: plan.label(),
            plan: plan.clone(),
            formats: *assignment.at(Role::Output),
            phase,
            batch,
            context,
            tensor_parallel: ranks.get(),
            figures: Figures::of_forecast(&forecast, tier, machine),
            weaker: forecast.weaker(),
            tokens_per_s,
            bits_per_weight: model.bits_per_weight(footprint.weights, ranks),
            bits_per_kv: model.bits_per_kv(kv, sizes),
            weight_bytes: footprint.weights,
            kv_bytes: footprint.kv,
            activation_bytes: footprint.activations,
            memory_bytes: footprint.total(),
            room,
            fits,
            shortfall: model.shortfall(workload, lowering, &assignment, sizes, device)?,
            longest_context: model.longest_context(decode, lowering, &assignment, sizes, device)?,
            largest_batch: model.largest_batch(decode, lowering, &assignment, sizes, device)?,
            gap: PassGap::of(machine),
            launch_time_us: expected.launch.micros(),
            memory_time_us: ideal.memory.micros(),
            compute_time_us: ideal.compute.micros(),
            network_time_us: ideal.network.micros(),
            overlapped_time_us: ideal.overlapped().micros(),
            ratios: Ratios::default(),
            kv_crossover_context: model.kv_crossover(decode.sequences, ranks, kv, sizes, read),
            ffn_share_of_flops: forecast.feed_forward_share(),
            // One timeline answers for both phases.
            request: if phase == Phase::Prefill || asked.phase.is_some() {
                self.request(asked, &assignment)?
            } else {
                None
            },
            advice: advice::Pass { model, workload, lowering, plan, machine, tier }.advice()?,
            operators: forecast.by_site(tier, machine),
            total,
        })
    }

    fn request(&self, asked: &ModelPass, plan: &Assignment) -> roofline_core::Result<Option<RequestEstimate>> {
        let Some(generate) = asked.generate.map(Dim::get) else { return Ok(None) };
        let (batch, prompt) = (asked.batch.get(), asked.context.get());
        let Case { machine, tier, .. } = self.case;
        let request = Request { batch, prompt, generate };
        let timeline = timeline(self.model, request, self.lowering, plan, machine)?;
        let (steps, total) = ((generate - 1) as f64, timeline.total());
        let micros = |prediction: &Prediction, tier| prediction.time(tier).micros();
        Ok(Some(RequestEstimate {
            tier: *tier,
            basis: timeline.basis,
            prompt,
            generate,
            ttft_us: micros(&timeline.first, *tier),
            ideal_ttft_us: micros(&timeline.first, Tier::Ideal),
            expected_ttft_us: micros(&timeline.first, Tier::Expected),
            time_per_output_token_us: timeline.decode.map(|decode| micros(&decode, *tier) / steps),
            total_us: micros(&total, *tier),
            ideal_total_us: micros(&total, Tier::Ideal),
            expected_total_us: micros(&total, Tier::Expected),
            generated_tokens_per_s: (batch * generate) as f64 / total.time(*tier).value(),
        }))
    }
}
