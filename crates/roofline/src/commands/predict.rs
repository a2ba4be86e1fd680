//! `roofline predict`: the ideal roofline of one operator.

mod table;

use roofline_core::{
    Device, Dim, Error, Graph, Plan, Precision,
    advice::{Advice, advise},
    calibration::Expected,
    format::Sizes,
    graph::Ffn,
    op::{Attention, Cache, Class, Linear},
    precision::PrecisionSpec,
    predict::{Bound, Estimate, Forecast, Reason, Speedup, predict as forecast},
    units::{Bytes, Flops, Seconds},
};
use serde::Serialize;

use super::{
    setting::{Varies, job},
    tier::{self, Outlook, outlook},
};
use crate::{
    cli::{AttentionArgs, FfnArgs, OperatorSubject, Setting},
    failure::Failure,
};

/// Every estimate that was asked for, and those that could not be made.
#[derive(Serialize)]
pub(crate) struct Prediction {
    /// What was computed, in words.
    subject: String,
    operator: Operator,
    sizes: Sizes,
    estimates: Vec<Row>,
    unavailable: Vec<Unavailable>,
    /// Whether more than one device was asked for.
    #[serde(skip)]
    several: bool,
}

/// What was computed, in numbers.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(super) enum Operator {
    Gemv(Linear),
    Gemm(Linear),
    Attention {
        #[serde(flatten)]
        shape: Attention,
        fused: bool,
    },
    Ffn {
        #[serde(flatten)]
        shape: Ffn,
        fused: bool,
    },
}

#[derive(Serialize)]
struct Row {
    device: String,
    device_name: String,
    precision: String,
    formats: Precision,
    tier: &'static str,
    stack: Option<String>,
    predicted_time_us: f64,
    ideal_time_us: f64,
    /// Nine of ten measurements should lie between these; none in the ideal tier.
    lo_us: Option<f64>,
    hi_us: Option<f64>,
    launch_time_us: Option<f64>,
    bottleneck: String,
    balanced: bool,
    flops: Flops,
    bytes: Bytes,
    read_bytes: Bytes,
    write_bytes: Bytes,
    ai: f64,
    critical_ai: f64,
    ridge_distance: f64,
    predicted_tflops: f64,
    predicted_gb_s: f64,
    memory_time_us: f64,
    compute_time_us: f64,
    overlapped_time_us: f64,
    /// Over the first precision that was asked for; none where the device lacks that one.
    speedup: Option<f64>,
    speedup_reason: Option<Reason>,
    advice: Advice,
    operators: Vec<OperatorRow>,
    #[serde(skip)]
    total: Estimate,
    #[serde(skip)]
    expected: Option<Expected>,
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
}

/// A combination that has no estimate.
#[derive(Serialize)]
pub(super) struct Unavailable {
    device: String,
    precision: String,
    error: String,
    hint: Option<String>,
}

impl Unavailable {
    pub(super) fn new(device: &Device, spec: &PrecisionSpec, error: &Error) -> Self {
        let (device, precision) = (device.label(), spec.name().to_owned());
        Self { device, precision, error: error.to_string(), hint: error.hint() }
    }

    /// What is missing, and what to do about it.
    pub(super) fn sentence(&self) -> String {
        let hint = self.hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
        format!("{} on {}: {}{hint}", self.precision, self.device, self.error)
    }
}

pub(crate) fn predict(subject: &OperatorSubject) -> Result<Prediction, Failure> {
    let (operator, words, setting) = operator(subject)?;
    let graph = operator.graph();
    let job = job(setting, varies(subject))?;
    let (mut estimates, mut unavailable) = (Vec::new(), Vec::new());
    let mut first_error = None;
    for (device, specs) in &job.cases {
        let calibration = tier::calibration(setting, device)?;
        let mut baseline: Option<(Estimate, Seconds)> = None;
        for (at, spec) in specs.iter().enumerate() {
            let result = spec.on(device).and_then(|precision| {
                let result = forecast(&graph, &Plan::uniform(precision), job.sizes, device)?;
                let advice = advise(&graph, &result, &precision, job.sizes, device)?;
                Ok((precision, result, advice))
            });
            match result {
                Ok((precision, result, advice)) => {
                    let plan = Plan::uniform(precision);
                    let outlook = outlook(calibration.as_deref(), &graph, &plan, job.sizes, spec.name());
                    let mut row = row(device, spec, precision, &result, advice, outlook.as_ref());
                    if at == 0 {
                        baseline = Some((result.total, row.time()));
                    }
                    row.speedup = baseline.map(|(_, time)| time / row.time());
                    let reason = baseline.map(|(baseline, _)| Speedup::of(&result.total, &baseline).reason);
                    // What explains the ideal's ratio does not explain one with launches and widening in it.
                    row.speedup_reason = reason.filter(|_| at > 0 && row.expected.is_none());
                    estimates.push(row);
                }
                Err(error) => {
                    unavailable.push(Unavailable::new(device, spec, &error));
                    first_error.get_or_insert(error);
                }
            }
        }
    }
    match first_error {
        Some(error) if estimates.is_empty() => Err(error.into()),
        _ => {
            let sizes = job.sizes;
            let several = job.cases.len() > 1;
            Ok(Prediction { subject: words, operator, sizes, estimates, unavailable, several })
        }
    }
}

/// What the precisions of a subject may differ in.
pub(super) fn varies(subject: &OperatorSubject) -> Varies<'_> {
    Varies::Product(match subject {
        OperatorSubject::Gemv(args) => args.product.output.as_deref(),
        OperatorSubject::Gemm(args) => args.product.output.as_deref(),
        OperatorSubject::Ffn(args) => args.product.output.as_deref(),
        OperatorSubject::Attention(_) => return Varies::Cache,
    })
}

/// What the command line describes, in numbers and in words.
pub(super) fn operator(subject: &OperatorSubject) -> Result<(Operator, String, &Setting), Failure> {
    Ok(match subject {
        OperatorSubject::Gemv(args) => {
            let words = format!("GEMV {} x {}", args.n, args.k);
            (Operator::Gemv(Linear::new(1, args.n, args.k)?), words, &args.setting)
        }
        OperatorSubject::Gemm(args) => {
            let words = format!("GEMM {} x {} x {} (m, n, k)", args.m, args.n, args.k);
            let shape = Linear::new(args.m, args.n, args.k)?;
            let operator = if shape.m == Dim::ONE { Operator::Gemv(shape) } else { Operator::Gemm(shape) };
            (operator, words, &args.setting)
        }
        OperatorSubject::Attention(args) => {
            let (shape, words) = attention(args)?;
            (Operator::Attention { shape, fused: !args.unfused }, words, &args.setting)
        }
        OperatorSubject::Ffn(args) => {
            let (shape, words) = ffn(args)?;
            (Operator::Ffn { shape, fused: !args.unfused }, words, &args.setting)
        }
    })
}

impl Operator {
    /// As kernels.
    pub(super) fn graph(&self) -> Graph {
        match *self {
            Self::Gemv(shape) | Self::Gemm(shape) => Graph::linear(shape),
            Self::Attention { shape, fused } => Graph::attention(shape, fused),
            Self::Ffn { shape, fused } => Graph::ffn(shape, fused),
        }
    }
}

fn attention(args: &AttentionArgs) -> Result<(Attention, String), Failure> {
    let kv_heads = args.kv_heads.unwrap_or(args.heads);
    let attention = Attention {
        batch: Dim::new("batch", args.batch)?,
        heads: Dim::new("heads", args.heads)?,
        kv_heads: Dim::new("kv-heads", kv_heads)?,
        head_dim: Dim::new("head-dim", args.head_dim)?,
        value_dim: Dim::new("head-dim", args.head_dim)?,
        queries: Dim::new("queries", args.queries)?,
        context: Dim::new("context", args.context)?,
        causal: !args.no_causal,
        window: None,
        cache: Cache::Separate,
    };
    let mask = if args.no_causal { "full" } else { "causal" };
    let words = format!(
        "attention of {} x {} queries over {} keys, {} query and {kv_heads} KV heads of {}, {mask}{}",
        args.batch,
        args.queries,
        args.context,
        args.heads,
        args.head_dim,
        if args.unfused { ", unfused" } else { "" }
    );
    Ok((attention.checked()?, words))
}

fn ffn(args: &FfnArgs) -> Result<(Ffn, String), Failure> {
    let ffn = Ffn {
        tokens: Dim::new("tokens", args.tokens)?,
        hidden: Dim::new("hidden", args.hidden)?,
        inner: Dim::new("ffn", args.ffn)?,
        gated: !args.no_gate,
    };
    let words = format!(
        "{} FFN {} -> {} -> {}, {} token{}{}",
        if args.no_gate { "plain" } else { "gated" },
        args.hidden,
        args.ffn,
        args.hidden,
        args.tokens,
        if args.tokens == 1 { "" } else { "s" },
        if args.unfused { ", unfused" } else { "" }
    );
    Ok((ffn, words))
}

fn row(
    device: &Device,
    spec: &PrecisionSpec,
    formats: Precision,
    forecast: &Forecast,
    advice: Advice,
    outlook: Option<&Outlook>,
) -> Row {
    let total = forecast.total;
    let expected = outlook.map(|outlook| outlook.total);
    let time = expected.map_or(total.time(), |expected| expected.time);
    let bound = expected.map_or(total.bound(), |expected| expected.bound());
    let operator = |(at, (node, estimate)): (usize, &(roofline_core::graph::Node, Estimate))| {
        let expected = outlook.map(|outlook| outlook.kernels[at]);
        let kernel_time = expected.map_or(estimate.time(), |expected| expected.time);
        let bound = expected.map_or(estimate.bound(), |expected| expected.bound());
        OperatorRow {
            site: node.site,
            class: node.op.class(),
            count: node.count,
            predicted_time_us: kernel_time.micros(),
            ideal_time_us: estimate.time().micros(),
            lo_us: expected.map(|expected| expected.low.micros()),
            hi_us: expected.map(|expected| expected.high.micros()),
            share: kernel_time / time,
            bottleneck: bound.to_string(),
            bound,
            math: estimate.math.key(),
            flops: estimate.work.flops,
            bytes: estimate.work.bytes(),
            ai: estimate.intensity().value(),
            critical_ai: estimate.critical.value(),
            predicted_tflops: (estimate.work.flops / kernel_time).value() / 1e12,
            ideal_tflops: estimate.rate().value() / 1e12,
            estimate: *estimate,
        }
    };
    Row {
        device: device.label(),
        device_name: device.name.clone(),
        precision: spec.name().to_owned(),
        formats,
        tier: if expected.is_some() { "expected" } else { "ideal" },
        stack: outlook.map(|outlook| outlook.stack.clone()),
        predicted_time_us: time.micros(),
        ideal_time_us: total.time().micros(),
        lo_us: expected.map(|expected| expected.low.micros()),
        hi_us: expected.map(|expected| expected.high.micros()),
        launch_time_us: expected.map(|expected| expected.launch.micros()),
        bottleneck: bound.to_string(),
        balanced: total.balanced(),
        flops: total.work.flops,
        bytes: total.work.bytes(),
        read_bytes: total.work.read,
        write_bytes: total.work.write,
        ai: total.intensity().value(),
        critical_ai: total.critical.value(),
        ridge_distance: total.ridge_distance(),
        predicted_tflops: (total.work.flops / time).value() / 1e12,
        predicted_gb_s: (total.work.bytes() / time).value() / 1e9,
        memory_time_us: total.memory.micros(),
        compute_time_us: total.compute.micros(),
        overlapped_time_us: total.overlapped().micros(),
        speedup: None,
        speedup_reason: None,
        advice,
        operators: forecast.nodes.iter().enumerate().map(operator).collect(),
        total,
        expected,
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
