//! `roofline predict model`: prefill and decode of a whole model, its memory, and what would help.

mod table;

use roofline_core::{
    Dim, Model, Plan, Precision, Role,
    advice::{self, Step},
    device::Room,
    format::Sizes,
    machine::Basis,
    model::{Lowering, Shortfall, Workload},
    plan::Assignment,
    predict::{Bound, Figures, KernelFigures, Prediction, Ratios, Tier, Weaker, forecast},
    request::{Request, timeline},
    units::{Bytes, Seconds},
};
use serde::Serialize;

use super::{
    predict::Unavailable,
    setting::{self, Case, Varies, cases},
    source,
};
use crate::{
    cli::{LoweringArgs, ModelArgs, Phase},
    failure::Failure,
};

/// Every pass that was asked for.
#[derive(Serialize)]
pub(crate) struct ModelPrediction {
    model: String,
    model_name: String,
    parameters: f64,
    active_parameters: f64,
    /// The longest context it was made for.
    max_context: Option<u64>,
    /// How its checkpoint stores the weights, where that is quantized.
    ships_in: Option<String>,
    device: String,
    sizes: Sizes,
    estimates: Vec<Row>,
    unavailable: Vec<Unavailable>,
    #[serde(skip)]
    several: bool,
}

#[derive(Serialize)]
struct Row {
    device: String,
    device_name: String,
    precision: String,
    plan: Plan,
    /// Those of the layers; rules and recipes may have others.
    formats: Precision,
    phase: &'static str,
    batch: u64,
    context: u64,
    tensor_parallel: u64,
    #[serde(flatten)]
    figures: Figures,
    /// Kernels that stand on less than the others.
    weaker: Vec<Weaker>,
    tokens_per_s: f64,
    /// Stored bits of a weight, all of them counted, and of a cached element, scales counted.
    bits_per_weight: f64,
    bits_per_kv: f64,
    weight_bytes: Bytes,
    kv_bytes: Bytes,
    activation_bytes: Bytes,
    memory_bytes: Bytes,
    /// What the system and a margin take of the device's memory; none where nobody said how much there is.
    room: Option<Room>,
    fits: Option<bool>,
    /// What is missing, and what would make it fit.
    shortfall: Option<Shortfall>,
    longest_context: Option<u64>,
    largest_batch: Option<u64>,
    launch_time_us: f64,
    memory_time_us: f64,
    compute_time_us: f64,
    network_time_us: f64,
    overlapped_time_us: f64,
    /// Over the first plan, at the same phase, device and count of devices.
    #[serde(flatten)]
    ratios: Ratios,
    /// The context at which reading the cache takes as long as reading the weights.
    kv_crossover_context: Option<u64>,
    ffn_share_of_flops: f64,
    request: Option<RequestRow>,
    advice: Vec<Step>,
    operators: Vec<KernelFigures>,
    #[serde(skip)]
    total: Prediction,
}

/// A whole request.
#[derive(Serialize)]
struct RequestRow {
    tier: Tier,
    basis: Basis,
    prompt: u64,
    generate: u64,
    /// Of one prompt of the batch: nobody waits for the others'.
    ttft_us: f64,
    ideal_ttft_us: f64,
    expected_ttft_us: f64,
    time_per_output_token_us: Option<f64>,
    total_us: f64,
    ideal_total_us: f64,
    expected_total_us: f64,
    generated_tokens_per_s: f64,
}

/// One combination to look at.
struct Pass<'a> {
    model: &'a Model,
    case: &'a Case,
    plan: &'a Plan,
    lowering: Lowering,
    phase: Phase,
}

pub(crate) fn predict_model(args: &ModelArgs) -> Result<ModelPrediction, Failure> {
    let model = source::model(&args.model)?;
    Request { batch: args.batch, prompt: args.context, generate: args.generate.unwrap_or(1) }.check()?;
    let cases = cases(&args.setting, Varies::Model(&model))?;
    let phases = args.phase.map_or_else(|| vec![Phase::Prefill, Phase::Decode], |phase| vec![phase]);
    let (mut estimates, mut unavailable) = (Vec::new(), Vec::new());
    let mut first_error = None;
    for case in &cases {
        for lowering in lowerings(&args.lowering)? {
            for phase in &phases {
                let mut baseline: Option<Prediction> = None;
                for (at, plan) in case.plans.iter().enumerate() {
                    let pass = Pass { model: &model, case, plan, lowering, phase: *phase };
                    match pass.row(args) {
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
        sizes: setting::sizes(args.setting.sizes),
        estimates,
        unavailable,
        several: cases.len() > 1,
    })
}

/// One way to lower for each count of devices.
pub(super) fn lowerings(args: &LoweringArgs) -> Result<Vec<Lowering>, Failure> {
    let lowering = |ranks: &u64| {
        let ranks = Dim::new("tp", *ranks)?;
        Ok(Lowering { fused: !args.unfused, all_logits: args.all_logits, causal: !args.no_causal, ranks })
    };
    args.tp.iter().map(lowering).collect()
}

/// The pass of a phase.
pub(super) fn workload(phase: Phase, batch: u64, context: u64) -> roofline_core::Result<Workload> {
    match phase {
        Phase::Prefill => Workload::prefill(batch, context),
        Phase::Decode => Workload::decode(batch, context),
    }
}

/// Tokens that a pass of a phase processes.
pub(super) fn tokens(phase: Phase, batch: u64, context: u64) -> f64 {
    batch as f64 * if phase == Phase::Prefill { context as f64 } else { 1.0 }
}

pub(super) fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Prefill => "prefill",
        Phase::Decode => "decode",
    }
}

impl Row {
    /// The time of the tier that is shown.
    fn time(&self) -> Seconds {
        self.total.time(self.figures.tier)
    }

    fn bound(&self) -> Bound {
        self.total.bound(self.figures.tier)
    }
}

impl Pass<'_> {
    fn row(&self, args: &ModelArgs) -> roofline_core::Result<Row> {
        let Self { model, case, plan, lowering, phase } = *self;
        let Case { machine, tier, .. } = case;
        let (device, sizes, tier) = (&machine.device, machine.sizes, *tier);
        let assignment = plan.on(device, Some(&model.anatomy))?;
        let workload = workload(phase, args.batch, args.context)?;
        let graph = model.graph(workload, lowering)?;
        let forecast = forecast(&graph, &assignment, machine)?;
        let total = forecast.total;
        let Prediction { ideal, expected } = total;
        let footprint = model.footprint_of(&graph, workload, lowering.ranks, &assignment, sizes);
        let decode = Workload::decode(args.batch, args.context)?;
        let (ranks, kv) = (lowering.ranks, assignment.kv());
        let read = model.decode_read(decode.sequences, lowering, &assignment, sizes)?;
        let room = device.room();
        Ok(Row {
            device: device.label(),
            device_name: device.name.clone(),
            precision: plan.label(),
            plan: plan.clone(),
            formats: *assignment.at(Role::Output),
            phase: phase_name(phase),
            batch: args.batch,
            context: args.context,
            tensor_parallel: ranks.get(),
            figures: Figures::of_forecast(&forecast, tier, machine),
            weaker: forecast.weaker(),
            tokens_per_s: tokens(phase, args.batch, args.context) / total.time(tier).value(),
            bits_per_weight: model.bits_per_weight(footprint.weights, ranks),
            bits_per_kv: model.bits_per_kv(kv, sizes),
            weight_bytes: footprint.weights,
            kv_bytes: footprint.kv,
            activation_bytes: footprint.activations,
            memory_bytes: footprint.total(),
            room,
            fits: room.map(|room| footprint.total() <= room.for_models()),
            shortfall: model.shortfall(workload, lowering, &assignment, sizes, device)?,
            longest_context: model.longest_context(decode, lowering, &assignment, sizes, device)?,
            largest_batch: model.largest_batch(decode, lowering, &assignment, sizes, device)?,
            launch_time_us: expected.launch.micros(),
            memory_time_us: ideal.memory.micros(),
            compute_time_us: ideal.compute.micros(),
            network_time_us: ideal.network.micros(),
            overlapped_time_us: ideal.overlapped().micros(),
            ratios: Ratios::default(),
            kv_crossover_context: model.kv_crossover(decode.sequences, ranks, kv, sizes, read),
            ffn_share_of_flops: forecast.feed_forward_share(),
            // One timeline answers for both phases.
            request: if phase == Phase::Prefill || args.phase.is_some() {
                self.request(args, &assignment)?
            } else {
                None
            },
            advice: advice::Pass { model, workload, lowering, plan, machine, tier }.advice()?,
            operators: forecast.by_site(tier, machine),
            total,
        })
    }

    fn request(&self, args: &ModelArgs, plan: &Assignment) -> roofline_core::Result<Option<RequestRow>> {
        let Some(generate) = args.generate else { return Ok(None) };
        let Case { machine, tier, .. } = self.case;
        let request = Request { batch: args.batch, prompt: args.context, generate };
        let timeline = timeline(self.model, request, self.lowering, plan, machine)?;
        let (steps, total) = ((generate - 1) as f64, timeline.total());
        let micros = |prediction: &Prediction, tier| prediction.time(tier).micros();
        Ok(Some(RequestRow {
            tier: *tier,
            basis: timeline.basis,
            prompt: args.context,
            generate,
            ttft_us: micros(&timeline.first, *tier),
            ideal_ttft_us: micros(&timeline.first, Tier::Ideal),
            expected_ttft_us: micros(&timeline.first, Tier::Expected),
            time_per_output_token_us: timeline.decode.map(|decode| micros(&decode, *tier) / steps),
            total_us: micros(&total, *tier),
            ideal_total_us: micros(&total, Tier::Ideal),
            expected_total_us: micros(&total, Tier::Expected),
            generated_tokens_per_s: (args.batch * generate) as f64 / total.time(*tier).value(),
        }))
    }
}
