//! How long one operator must take, and is likely to take.

use roofline_core::{
    Dim, Graph, Plan, Precision, Role,
    advice::{Advice, advise},
    format::Sizes,
    graph::Ffn,
    op::{Attention, Cache, Linear},
    predict::{Bound, Figures, KernelFigures, Prediction as Both, Ratios, Reason, Tier, Weaker, forecast},
    units::{Bytes, Seconds},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Attention as AttentionRequest, Ffn as FfnRequest, Operator, Unavailable};
use crate::{
    Context, Note, Result,
    machine::{Case, Varies, cases},
};

/// Every estimate that was asked for, and those that could not be made.
#[derive(Serialize, JsonSchema)]
pub struct OperatorPrediction {
    /// What was computed, in words.
    pub subject: String,
    pub operator: OperatorShape,
    pub sizes: Sizes,
    pub estimates: Vec<OperatorEstimate>,
    pub unavailable: Vec<Unavailable>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
    /// Whether more than one device was asked for.
    #[serde(skip)]
    pub several: bool,
}

/// What was computed, in numbers.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum OperatorShape {
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

/// An operator on one device by one plan.
#[derive(Serialize, JsonSchema)]
pub struct OperatorEstimate {
    pub device: String,
    pub device_name: String,
    pub precision: String,
    pub plan: Plan,
    pub formats: Precision,
    #[serde(flatten)]
    pub figures: Figures,
    /// Kernels that stand on less than the others.
    pub weaker: Vec<Weaker>,
    pub launch_time_us: f64,
    pub balanced: bool,
    pub read_bytes: Bytes,
    pub write_bytes: Bytes,
    pub ridge_distance: f64,
    pub predicted_gb_s: f64,
    pub memory_time_us: f64,
    pub compute_time_us: f64,
    pub overlapped_time_us: f64,
    /// Over the first precision that was asked for; none where the device lacks that one.
    #[serde(flatten)]
    pub ratios: Ratios,
    pub speedup_reason: Option<Reason>,
    pub advice: Advice,
    pub operators: Vec<KernelFigures>,
    #[serde(skip)]
    pub total: Both,
}

pub(super) fn predict(context: &Context, asked: Operator<'_>) -> Result<OperatorPrediction> {
    let (operator, subject) = shape(asked)?;
    let graph = operator.graph();
    let cases = cases(context, asked.setting(), varies(asked))?;
    let (mut estimates, mut unavailable) = (Vec::new(), Vec::new());
    let mut first_error = None;
    for case in &cases {
        let mut baseline: Option<Both> = None;
        for (at, plan) in case.plans.iter().enumerate() {
            match OperatorEstimate::new(&graph, plan, case) {
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
            let (sizes, several, notes) = (asked.setting().sizes, cases.len() > 1, context.notes());
            Ok(OperatorPrediction { subject, operator, sizes, estimates, unavailable, notes, several })
        }
    }
}

/// What the precisions of a subject may differ in.
pub(crate) fn varies(asked: Operator<'_>) -> Varies<'_> {
    Varies::Product(match asked {
        Operator::Gemv(asked) => asked.product.output.as_deref(),
        Operator::Gemm(asked) => asked.product.output.as_deref(),
        Operator::Ffn(asked) => asked.product.output.as_deref(),
        Operator::Attention(_) => return Varies::Cache,
    })
}

/// What is asked about, in numbers and in words.
pub(crate) fn shape(asked: Operator<'_>) -> Result<(OperatorShape, String)> {
    Ok(match asked {
        Operator::Gemv(asked) => {
            let words = format!("GEMV {} x {}", asked.n, asked.k);
            (OperatorShape::Gemv(Linear { m: Dim::ONE, n: asked.n, k: asked.k }), words)
        }
        Operator::Gemm(asked) => {
            let words = format!("GEMM {} x {} x {} (m, n, k)", asked.m, asked.n, asked.k);
            let shape = Linear { m: asked.m, n: asked.n, k: asked.k };
            (if shape.m == Dim::ONE { OperatorShape::Gemv(shape) } else { OperatorShape::Gemm(shape) }, words)
        }
        Operator::Attention(asked) => {
            let (shape, words) = attention(asked)?;
            (OperatorShape::Attention { shape, fused: !asked.unfused }, words)
        }
        Operator::Ffn(asked) => {
            let (shape, words) = ffn(asked);
            (OperatorShape::Ffn { shape, fused: !asked.unfused }, words)
        }
    })
}

impl OperatorShape {
    /// As kernels.
    pub(crate) fn graph(&self) -> Graph {
        match *self {
            Self::Gemv(shape) | Self::Gemm(shape) => Graph::linear(shape),
            Self::Attention { shape, fused } => Graph::attention(shape, fused),
            Self::Ffn { shape, fused } => Graph::ffn(shape, fused),
        }
    }
}

fn attention(asked: &AttentionRequest) -> Result<(Attention, String)> {
    let AttentionRequest { batch, heads, head_dim, queries, context, .. } = *asked;
    let kv_heads = asked.kv_heads.unwrap_or(heads);
    let attention = Attention {
        batch,
        heads,
        kv_heads,
        head_dim,
        value_dim: head_dim,
        queries,
        context,
        causal: !asked.no_causal,
        window: None,
        cache: Cache::Separate,
    };
    let mask = if asked.no_causal { "full" } else { "causal" };
    let fusion = if asked.unfused { ", unfused" } else { "" };
    let words = format!(
        "attention of {batch} x {queries} queries over {context} keys, {heads} query and {kv_heads} KV heads of {head_dim}, \
         {mask}{fusion}"
    );
    Ok((attention.checked()?, words))
}

fn ffn(asked: &FfnRequest) -> (Ffn, String) {
    let FfnRequest { tokens, hidden, ffn: inner, .. } = *asked;
    let words = format!(
        "{} FFN {hidden} -> {inner} -> {hidden}, {tokens} token{}{}",
        if asked.no_gate { "plain" } else { "gated" },
        if tokens == Dim::ONE { "" } else { "s" },
        if asked.unfused { ", unfused" } else { "" }
    );
    (Ffn { tokens, hidden, inner, gated: !asked.no_gate }, words)
}

impl OperatorEstimate {
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
    pub fn time(&self) -> Seconds {
        self.total.time(self.figures.tier)
    }

    /// What it waits for.
    pub fn bound(&self) -> Bound {
        self.total.bound(self.figures.tier)
    }
}
