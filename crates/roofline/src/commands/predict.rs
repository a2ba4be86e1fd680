//! `roofline predict`: how long one operator must take, and is likely to take.

mod table;

use roofline_core::{
    Device, Dim, Error, Graph, Plan, Precision, Role,
    advice::{Advice, advise},
    format::Sizes,
    graph::Ffn,
    op::{Attention, Cache, Linear},
    predict::{Bound, Figures, KernelFigures, Prediction as Both, Ratios, Reason, Tier, Weaker, forecast},
    units::{Bytes, Seconds},
};
use serde::Serialize;

use super::setting::{self, Case, Varies, cases};
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
    plan: Plan,
    formats: Precision,
    #[serde(flatten)]
    figures: Figures,
    /// Kernels that stand on less than the others.
    weaker: Vec<Weaker>,
    launch_time_us: f64,
    balanced: bool,
    read_bytes: Bytes,
    write_bytes: Bytes,
    ridge_distance: f64,
    predicted_gb_s: f64,
    memory_time_us: f64,
    compute_time_us: f64,
    overlapped_time_us: f64,
    /// Over the first precision that was asked for; none where the device lacks that one.
    #[serde(flatten)]
    ratios: Ratios,
    speedup_reason: Option<Reason>,
    advice: Advice,
    operators: Vec<KernelFigures>,
    #[serde(skip)]
    total: Both,
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
    pub(super) fn new(device: &Device, plan: &Plan, error: &Error) -> Self {
        let (device, precision) = (device.label(), plan.label());
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
    let cases = cases(setting, varies(subject))?;
    let (mut estimates, mut unavailable) = (Vec::new(), Vec::new());
    let mut first_error = None;
    for case in &cases {
        let mut baseline: Option<Both> = None;
        for (at, plan) in case.plans.iter().enumerate() {
            match Row::new(&graph, plan, case) {
                Ok(row) => {
                    if at == 0 {
                        baseline = Some(row.total);
                    }
                    estimates.push(row.beside(baseline.as_ref(), at > 0));
                }
                Err(error) => {
                    unavailable.push(Unavailable::new(&case.machine.device, plan, &error));
                    first_error.get_or_insert(error);
                }
            }
        }
    }
    match first_error {
        Some(error) if estimates.is_empty() => Err(error.into()),
        _ => {
            let (sizes, several) = (setting::sizes(setting.sizes), cases.len() > 1);
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

impl Row {
    fn new(graph: &Graph, plan: &Plan, case: &Case) -> roofline_core::Result<Self> {
        let Case { machine, tier, .. } = case;
        let assignment = plan.on(&machine.device, None)?;
        let formats = *assignment.at(Role::Output);
        let forecast = forecast(graph, &assignment, machine)?;
        let advice = advise(graph, &forecast, &formats, machine, *tier)?;
        let total = forecast.total;
        let Both { ideal, expected } = total;
        Ok(Self {
            device: machine.device.label(),
            device_name: machine.device.name.clone(),
            precision: plan.label(),
            plan: plan.clone(),
            formats,
            figures: Figures::of_forecast(&forecast, *tier, machine),
            weaker: forecast.weaker(),
            launch_time_us: expected.launch.micros(),
            balanced: ideal.balanced(),
            read_bytes: ideal.work.read,
            write_bytes: ideal.work.write,
            ridge_distance: ideal.ridge_distance(),
            predicted_gb_s: (ideal.work.bytes() / total.time(*tier)).value() / 1e9,
            memory_time_us: ideal.memory.micros(),
            compute_time_us: ideal.compute.micros(),
            overlapped_time_us: ideal.overlapped().micros(),
            ratios: Ratios::default(),
            speedup_reason: None,
            advice,
            operators: forecast.by_site(*tier, machine),
            total,
        })
    }

    /// The same set beside the first precision. What explains the ideal's ratio does not explain one with launches and
    /// widening in it.
    fn beside(self, baseline: Option<&Both>, explained: bool) -> Self {
        let tier = self.figures.tier;
        let reason = baseline.map(|baseline| Reason::of(&self.total.ideal, &baseline.ideal));
        Self {
            ratios: Ratios::of(&self.total, baseline, tier),
            speedup_reason: reason.filter(|_| explained && tier == Tier::Ideal),
            ..self
        }
    }

    /// The time of the tier that is shown.
    fn time(&self) -> Seconds {
        self.total.time(self.figures.tier)
    }

    fn bound(&self) -> Bound {
        self.total.bound(self.figures.tier)
    }
}
