//! `roofline predict model`: prefill and decode of a whole model, its memory, and what would help.

pub(super) mod fit;
mod table;

use std::collections::BTreeMap;

use roofline_core::{
    Device, Dim, Model, Plan,
    advice::{Pass, Step},
    calibration::{Calibration, Expected},
    format::{Shape, Sizes},
    model::{Footprint, Lowering, Workload},
    op::Class,
    precision::PrecisionSpec,
    predict::{Bound, Estimate, Forecast, predict},
    request::{Request, timeline},
    units::{Bytes, Flops, Seconds},
};
use serde::Serialize;

use super::{
    predict::Unavailable,
    setting::{Varies, job},
    source,
    tier::{self, Outlook, outlook},
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
    phase: &'static str,
    batch: u64,
    context: u64,
    tensor_parallel: u64,
    tier: &'static str,
    stack: Option<String>,
    predicted_time_us: f64,
    ideal_time_us: f64,
    /// Nine of ten measurements should lie between these; none in the ideal tier.
    lo_us: Option<f64>,
    hi_us: Option<f64>,
    tokens_per_s: f64,
    predicted_tflops: f64,
    /// Stored bits of a layer's weight and of a cached element, scales counted.
    bits_per_weight: f64,
    bits_per_kv: f64,
    weight_bytes: Bytes,
    kv_bytes: Bytes,
    activation_bytes: Bytes,
    memory_bytes: Bytes,
    fits: Option<bool>,
    /// What is missing, and what would make it fit.
    shortfall: Option<fit::Shortfall>,
    longest_context: Option<u64>,
    largest_batch: Option<u64>,
    bottleneck: String,
    flops: Flops,
    bytes: Bytes,
    ai: f64,
    critical_ai: f64,
    memory_time_us: f64,
    compute_time_us: f64,
    network_time_us: f64,
    overlapped_time_us: f64,
    /// Over the first precision, at the same phase, device and count of devices.
    speedup: Option<f64>,
    /// The context at which reading the cache takes as long as reading the weights.
    kv_crossover_context: Option<u64>,
    ffn_share_of_flops: f64,
    request: Option<RequestRow>,
    advice: Vec<Step>,
    operators: Vec<OperatorRow>,
    #[serde(skip)]
    total: Estimate,
    #[serde(skip)]
    expected: Option<Expected>,
}

/// A whole request, by the ideal tier.
#[derive(Serialize)]
struct RequestRow {
    tier: &'static str,
    prompt: u64,
    generate: u64,
    ttft_us: f64,
    time_per_output_token_us: Option<f64>,
    total_us: f64,
    generated_tokens_per_s: f64,
}

#[derive(Serialize)]
struct OperatorRow {
    site: &'static str,
    class: Class,
    count: u64,
    predicted_time_us: f64,
    ideal_time_us: f64,
    lo_us: Option<f64>,
    hi_us: Option<f64>,
    share: f64,
    bottleneck: String,
    math: &'static str,
    flops: Flops,
    bytes: Bytes,
    ai: f64,
    critical_ai: f64,
    predicted_tflops: f64,
    ideal_tflops: f64,
    #[serde(skip)]
    bound: Bound,
    #[serde(skip)]
    estimate: Estimate,
    #[serde(skip)]
    expected: Option<Expected>,
}

/// One combination to look at.
struct Case<'a> {
    model: &'a Model,
    device: &'a Device,
    spec: &'a PrecisionSpec,
    lowering: Lowering,
    phase: Phase,
    sizes: Sizes,
    calibration: Option<&'a Calibration>,
}

pub(crate) fn predict_model(args: &ModelArgs) -> Result<ModelPrediction, Failure> {
    let model = source::model(&args.model)?;
    Request { batch: args.batch, prompt: args.context, generate: args.generate.unwrap_or(1) }.check()?;
    let job = job(&args.setting, Varies::Model(&model))?;
    let phases = args.phase.map_or_else(|| vec![Phase::Prefill, Phase::Decode], |phase| vec![phase]);
    let (mut estimates, mut unavailable) = (Vec::new(), Vec::new());
    let mut first_error = None;
    for (device, specs) in &job.cases {
        let calibration = tier::calibration(&args.setting, device)?;
        let calibration = calibration.as_deref();
        for lowering in lowerings(&args.lowering)? {
            for phase in &phases {
                let mut baseline: Option<Seconds> = None;
                for (at, spec) in specs.iter().enumerate() {
                    let (phase, sizes) = (*phase, job.sizes);
                    let case = Case { model: &model, device, spec, lowering, phase, sizes, calibration };
                    match case.row(args) {
                        Ok(mut row) => {
                            if at == 0 {
                                baseline = Some(row.time());
                            }
                            row.speedup = baseline.map(|baseline| baseline / row.time());
                            estimates.push(row);
                        }
                        Err(error) => {
                            unavailable.push(Unavailable::new(device, spec, &error));
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
    let devices: Vec<String> = job.cases.iter().map(|(device, _)| device.label()).collect();
    Ok(ModelPrediction {
        parameters: model.parameters() as f64,
        active_parameters: model.active_parameters() as f64,
        max_context: model.max_context.map(Dim::get),
        ships_in: model.stored.as_ref().map(|stored| stored.0.clone()),
        model: model.key,
        model_name: model.name,
        device: devices.join(","),
        sizes: job.sizes,
        estimates,
        unavailable,
        several: job.cases.len() > 1,
    })
}

/// One way to lower for each count of devices.
pub(super) fn lowerings(args: &LoweringArgs) -> Result<Vec<Lowering>, Failure> {
    let lowering = |ranks: &u64| {
        let ranks = Dim::new("tp", *ranks)?;
        Ok(Lowering { fused: !args.unfused, all_logits: args.all_logits, ranks })
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
        self.expected.map_or(self.total.time(), |expected| expected.time)
    }

    fn bound(&self) -> Bound {
        self.expected.map_or(self.total.bound(), |expected| expected.bound())
    }
}

impl Case<'_> {
    fn row(&self, args: &ModelArgs) -> roofline_core::Result<Row> {
        let Self { model, device, spec, lowering, phase, sizes, calibration } = *self;
        let plan = Plan::model(spec, device)?;
        let workload = workload(phase, args.batch, args.context)?;
        let graph = model.graph(workload, lowering)?;
        let forecast = predict(&graph, &plan, sizes, device)?;
        let total = forecast.total;
        let outlook = outlook(calibration, &graph, &plan, sizes, spec.name());
        let expected = outlook.as_ref().map(|outlook| outlook.total);
        let time = expected.map_or(total.time(), |expected| expected.time);
        let bound = expected.map_or(total.bound(), |expected| expected.bound());
        let footprint = model.footprint_of(&graph, workload, lowering.ranks, &plan, sizes);
        let tokens = tokens(phase, args.batch, args.context);
        let square = Shape::matrix(model.hidden, model.hidden);
        let decode = Workload::decode(args.batch, args.context)?;
        let read = decode_weights(model, args.batch, &plan, lowering, sizes, device)?;
        let fits = device.memory.usable().map(|capacity| footprint.total() <= capacity);
        let shortfall = fit::shortfall(model, workload, lowering, &plan, sizes, device)?;
        Ok(Row {
            device: device.label(),
            device_name: device.name.clone(),
            precision: spec.name().to_owned(),
            plan,
            phase: phase_name(phase),
            batch: args.batch,
            context: args.context,
            tensor_parallel: lowering.ranks.get(),
            tier: if expected.is_some() { "expected" } else { "ideal" },
            stack: outlook.as_ref().map(|outlook| outlook.stack.clone()),
            predicted_time_us: time.micros(),
            ideal_time_us: total.time().micros(),
            lo_us: expected.map(|expected| expected.low.micros()),
            hi_us: expected.map(|expected| expected.high.micros()),
            tokens_per_s: tokens / time.value(),
            predicted_tflops: (total.work.flops / time).value() / 1e12,
            bits_per_weight: plan.layers.weights.bits_per_element(square, sizes),
            bits_per_kv: plan.layers.kv.bits_per_element(square, sizes),
            weight_bytes: footprint.weights,
            kv_bytes: footprint.kv,
            activation_bytes: footprint.activations,
            memory_bytes: footprint.total(),
            fits,
            shortfall,
            longest_context: model.longest_context(decode, lowering, &plan, sizes, device)?,
            largest_batch: model.largest_batch(decode, lowering, &plan, sizes, device)?,
            bottleneck: bound.to_string(),
            flops: total.work.flops,
            bytes: total.work.bytes(),
            ai: total.intensity().value(),
            critical_ai: total.critical.value(),
            memory_time_us: total.memory.micros(),
            compute_time_us: total.compute.micros(),
            network_time_us: total.network.micros(),
            overlapped_time_us: total.overlapped().micros(),
            speedup: None,
            kv_crossover_context: model.kv_crossover(decode.sequences, lowering.ranks, &plan, sizes, read),
            ffn_share_of_flops: ffn_share(&forecast),
            // One timeline answers for both phases.
            request: if phase == Phase::Prefill || args.phase.is_some() { self.request(args, &plan)? } else { None },
            advice: Pass { model, workload, lowering, plan: &plan, sizes, device }.advice()?,
            operators: operators(&forecast, outlook.as_ref()),
            total,
            expected,
        })
    }

    fn request(&self, args: &ModelArgs, plan: &Plan) -> roofline_core::Result<Option<RequestRow>> {
        let Some(generate) = args.generate else { return Ok(None) };
        let request = Request { batch: args.batch, prompt: args.context, generate };
        let timeline = timeline(self.model, request, self.lowering, plan, self.sizes, self.device)?;
        let steps = (generate - 1) as f64;
        Ok(Some(RequestRow {
            tier: "ideal",
            prompt: args.context,
            generate,
            ttft_us: timeline.prefill.time().micros(),
            time_per_output_token_us: timeline.decode.map(|decode| decode.time().micros() / steps),
            total_us: timeline.total().micros(),
            generated_tokens_per_s: (args.batch * generate) as f64 / timeline.total().value(),
        }))
    }
}

/// Bytes that one decode step reads but for its cache: its weights, mostly.
fn decode_weights(
    model: &Model,
    batch: u64,
    plan: &Plan,
    lowering: Lowering,
    sizes: Sizes,
    device: &Device,
) -> roofline_core::Result<Bytes> {
    let workload = Workload::decode(batch, 1)?;
    Ok(predict(&model.graph(workload, lowering)?, plan, sizes, device)?.total.work.read)
}

/// The part of the layers' operations that feed-forward products do.
fn ffn_share(forecast: &Forecast) -> f64 {
    let ffn = |site: &str| ["gate", "up_proj", "down_proj", "experts"].iter().any(|part| site.contains(part));
    let layers = forecast.nodes.iter().filter(|(node, _)| node.site != "logit_proj");
    let (mut inside, mut all) = (0.0, 0.0);
    for (node, estimate) in layers {
        all += estimate.work.flops.value();
        inside += if ffn(node.site) { estimate.work.flops.value() } else { 0.0 };
    }
    inside / all
}

/// Kernels of one site, summed: sliding and global layers may differ in shape.
fn operators(forecast: &Forecast, outlook: Option<&Outlook>) -> Vec<OperatorRow> {
    let whole = outlook.map_or(forecast.total.time(), |outlook| outlook.total.time);
    let mut sites: BTreeMap<&'static str, usize> = BTreeMap::new();
    let mut rows: Vec<OperatorRow> = Vec::new();
    for (node_at, (node, estimate)) in forecast.nodes.iter().enumerate() {
        let at = *sites.entry(node.site).or_insert(rows.len());
        let merged = rows.get(at).map_or(*estimate, |row| row.estimate.then(*estimate));
        let kernel = outlook.map(|outlook| outlook.kernels[node_at]);
        let before = rows.get(at).and_then(|row| row.expected);
        let expected = kernel.map(|kernel| before.map_or(kernel, |before| before.then(kernel)));
        let time = expected.map_or(merged.time(), |expected| expected.time);
        let bound = expected.map_or(merged.bound(), |expected| expected.bound());
        let count = rows.get(at).map_or(0, |row| row.count) + node.count;
        let row = OperatorRow {
            site: node.site,
            class: node.op.class(),
            count,
            predicted_time_us: time.micros(),
            ideal_time_us: merged.time().micros(),
            lo_us: expected.map(|expected| expected.low.micros()),
            hi_us: expected.map(|expected| expected.high.micros()),
            share: time / whole,
            bottleneck: bound.to_string(),
            bound,
            math: merged.math.key(),
            flops: merged.work.flops,
            bytes: merged.work.bytes(),
            ai: merged.intensity().value(),
            critical_ai: merged.critical.value(),
            predicted_tflops: (merged.work.flops / time).value() / 1e12,
            ideal_tflops: merged.rate().value() / 1e12,
            estimate: merged,
            expected,
        };
        if at < rows.len() { rows[at] = row } else { rows.push(row) }
    }
    rows
}

/// What a footprint is short of a device's memory.
fn missing(footprint: Footprint, device: &Device) -> Option<Bytes> {
    device.memory.usable().filter(|capacity| footprint.total() > *capacity).map(|capacity| footprint.total() - capacity)
}
