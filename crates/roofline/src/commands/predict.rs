//! `roofline predict`: the ideal roofline of one operator.

use roofline_core::{
    Dim, Graph, Precision,
    advice::{Advice, advise},
    format::Sizes,
    graph::Ffn,
    op::{Attention, Linear},
    precision::PrecisionSpec,
    predict::{Estimate, Forecast, Reason, Speedup, predict as forecast},
    units::{Bytes, Flops},
};
use serde::Serialize;

use super::setting::{Job, accumulator, job};
use crate::{
    cli::{AttentionArgs, FfnArgs, Setting, Subject},
    failure::Failure,
    report::{Align, Cell, Report, Section, Table, style},
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
}

/// What was computed, in numbers.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Operator {
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
    stack: Option<&'static str>,
    predicted_time_us: f64,
    ideal_time_us: f64,
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
    speedup: f64,
    speedup_reason: Option<Reason>,
    advice: Advice,
    operators: Vec<OperatorRow>,
    #[serde(skip)]
    total: Estimate,
}

#[derive(Serialize)]
struct OperatorRow {
    site: &'static str,
    predicted_time_us: f64,
    share: f64,
    bottleneck: String,
    math: &'static str,
    flops: Flops,
    bytes: Bytes,
    ai: f64,
    critical_ai: f64,
    #[serde(skip)]
    estimate: Estimate,
}

#[derive(Serialize)]
struct Unavailable {
    device: String,
    precision: String,
    error: String,
    hint: Option<String>,
}

pub(crate) fn predict(subject: &Subject) -> Result<Prediction, Failure> {
    let (operator, words, setting) = operator(subject)?;
    let graph = operator.graph();
    let job = job(setting, matches!(subject, Subject::Attention(_)))?;
    let (mut estimates, mut unavailable) = (Vec::new(), Vec::new());
    let mut first_error = None;
    for (device, specs) in &job.cases {
        let mut baseline: Option<Estimate> = None;
        for spec in specs {
            let precision = spec.on(device).map(|precision| with_accumulator(precision, &job));
            let result = precision.and_then(|precision| {
                let result = forecast(&graph, &precision, job.sizes, device)?;
                let advice = advise(&graph, &result, &precision, job.sizes, device)?;
                Ok((precision, result, advice))
            });
            match result {
                Ok((precision, result, advice)) => {
                    let speedup = baseline.map(|baseline| Speedup::of(&result.total, &baseline));
                    baseline.get_or_insert(result.total);
                    estimates.push(row(device, spec, precision, &result, advice, speedup));
                }
                Err(error) => {
                    let (device, precision) = (device.label(), spec.name().to_owned());
                    unavailable.push(Unavailable { device, precision, error: error.to_string(), hint: error.hint() });
                    first_error.get_or_insert(error);
                }
            }
        }
    }
    match first_error {
        Some(error) if estimates.is_empty() => Err(error.into()),
        _ => Ok(Prediction { subject: words, operator, sizes: job.sizes, estimates, unavailable }),
    }
}

fn with_accumulator(precision: Precision, job: &Job) -> Precision {
    if job.accumulator { Precision { output: accumulator(precision.math), ..precision } } else { precision }
}

/// What the command line describes, in numbers and in words.
fn operator(subject: &Subject) -> Result<(Operator, String, &Setting), Failure> {
    Ok(match subject {
        Subject::Gemv(args) => {
            let words = format!("GEMV {} x {}", args.n, args.k);
            (Operator::Gemv(Linear::new(1, args.n, args.k)?), words, &args.setting)
        }
        Subject::Gemm(args) => {
            let words = format!("GEMM {} x {} x {} (m, n, k)", args.m, args.n, args.k);
            (Operator::Gemm(Linear::new(args.m, args.n, args.k)?), words, &args.setting)
        }
        Subject::Attention(args) => {
            let (shape, words) = attention(args)?;
            (Operator::Attention { shape, fused: !args.unfused }, words, &args.setting)
        }
        Subject::Ffn(args) => {
            let (shape, words) = ffn(args)?;
            (Operator::Ffn { shape, fused: !args.unfused }, words, &args.setting)
        }
    })
}

impl Operator {
    /// As kernels.
    fn graph(&self) -> Graph {
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
        queries: Dim::new("queries", args.queries)?,
        context: Dim::new("context", args.context)?,
        causal: !args.no_causal,
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
    device: &roofline_core::Device,
    spec: &PrecisionSpec,
    formats: Precision,
    forecast: &Forecast,
    advice: Advice,
    speedup: Option<Speedup>,
) -> Row {
    let total = forecast.total;
    let operator = |(node, estimate): &(roofline_core::graph::Node, Estimate)| OperatorRow {
        site: node.site,
        predicted_time_us: estimate.time().micros(),
        share: estimate.time() / total.time(),
        bottleneck: estimate.bound().to_string(),
        math: estimate.math.key(),
        flops: estimate.work.flops,
        bytes: estimate.work.bytes(),
        ai: estimate.intensity().value(),
        critical_ai: estimate.critical.value(),
        estimate: *estimate,
    };
    Row {
        device: device.label(),
        device_name: device.name.clone(),
        precision: spec.name().to_owned(),
        formats,
        tier: "ideal",
        stack: None,
        predicted_time_us: total.time().micros(),
        ideal_time_us: total.time().micros(),
        bottleneck: total.bound().to_string(),
        balanced: total.balanced(),
        flops: total.work.flops,
        bytes: total.work.bytes(),
        read_bytes: total.work.read,
        write_bytes: total.work.write,
        ai: total.intensity().value(),
        critical_ai: total.critical.value(),
        ridge_distance: total.ridge_distance(),
        predicted_tflops: total.rate().value() / 1e12,
        predicted_gb_s: total.bandwidth().value() / 1e9,
        memory_time_us: total.memory.micros(),
        compute_time_us: total.compute.micros(),
        speedup: speedup.map_or(1.0, |speedup| speedup.factor),
        speedup_reason: speedup.map(|speedup| speedup.reason),
        advice,
        operators: forecast.nodes.iter().map(operator).collect(),
        total,
    }
}

impl Report for Prediction {
    const ROWS: &'static str = "estimates";

    fn sections(&self) -> Vec<Section> {
        let sizes = if self.sizes == Sizes::Nominal { ", element bits only" } else { "" };
        let mut sections = vec![Section::Heading(format!("{}{sizes}: ideal roofline", self.subject))];
        sections.push(Section::Table(self.estimates_table()));
        if self.estimates.iter().any(|row| row.operators.len() > 1) {
            sections.push(Section::Table(self.operators_table()));
        }
        sections.extend(self.advice());
        for missing in &self.unavailable {
            let hint = missing.hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
            sections.push(Section::Paragraph(format!(
                "{} on {}: {}{hint}",
                missing.precision, missing.device, missing.error
            )));
        }
        sections
    }
}

impl Prediction {
    /// A line per device and bound: that of the first precision it holds for. JSON has all.
    fn advice(&self) -> Vec<Section> {
        let mut said = Vec::new();
        let mut sections = Vec::new();
        for row in &self.estimates {
            let case = (&row.device, row.total.bound());
            if !said.contains(&case) {
                said.push(case);
                let device = if self.one_device() { String::new() } else { format!("{} ", row.device) };
                sections.push(Section::Paragraph(format!("{device}{}: {}", row.precision, row.advice.text)));
            }
        }
        sections
    }

    fn one_device(&self) -> bool {
        self.estimates.windows(2).all(|pair| pair[0].device == pair[1].device)
    }

    fn estimates_table(&self) -> Table {
        let mut table = Table::default()
            .column("device", Align::Left, 0)
            .column("precision", Align::Left, 0)
            .column("time", Align::Right, 0)
            .column("bound", Align::Left, 0)
            .column("FLOP/B", Align::Right, 3)
            .column("ridge", Align::Right, 5)
            .column("to ridge", Align::Right, 6)
            .column("TFLOP/s", Align::Right, 2)
            .column("GB/s", Align::Right, 4)
            .column("bytes", Align::Right, 7)
            .column("unit", Align::Left, 8)
            .column("speed-up", Align::Right, 1)
            .column("from", Align::Left, 9);
        let one_device = self.one_device();
        for row in &self.estimates {
            let bound = if row.balanced { "balanced" } else { &row.bottleneck };
            let device = if one_device { String::new() } else { row.device.clone() };
            let reason = row.speedup_reason.map_or("", |reason| match reason {
                Reason::Bytes => "byte ratio",
                Reason::Peak => "peak ratio",
                Reason::Crossover => "crossing the ridge",
            });
            table.row([
                device.into(),
                row.precision.as_str().into(),
                row.total.time().to_string().into(),
                Cell::styled(bound, style::of_bound(row.total.bound())),
                number(row.ai).into(),
                number(row.critical_ai).into(),
                distance(row.ridge_distance).into(),
                number(row.predicted_tflops).into(),
                number(row.predicted_gb_s).into(),
                row.bytes.to_string().into(),
                row.total.math.label().into(),
                format!("{:.2}x", row.speedup).into(),
                reason.into(),
            ]);
        }
        table.without_empty_columns()
    }

    fn operators_table(&self) -> Table {
        let mut table = Table::default()
            .column("device", Align::Left, 0)
            .column("precision", Align::Left, 0)
            .column("kernel", Align::Left, 0)
            .column("time", Align::Right, 0)
            .column("share", Align::Right, 1)
            .column("bound", Align::Left, 0)
            .column("FLOP/B", Align::Right, 2)
            .column("bytes", Align::Right, 3)
            .column("unit", Align::Left, 4);
        let one_device = self.one_device();
        for row in &self.estimates {
            for operator in &row.operators {
                table.row([
                    if one_device { String::new() } else { row.device.clone() }.into(),
                    row.precision.as_str().into(),
                    operator.site.into(),
                    operator.estimate.time().to_string().into(),
                    format!("{:.0} %", 100.0 * operator.share).into(),
                    Cell::styled(operator.bottleneck.as_str(), style::of_bound(operator.estimate.bound())),
                    number(operator.ai).into(),
                    operator.bytes.to_string().into(),
                    operator.estimate.math.label().into(),
                ]);
            }
        }
        table.without_empty_columns()
    }
}

/// Three significant digits at least, no more decimals than say something.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn distance(ratio: f64) -> String {
    if ratio >= 1.0 { format!("{}x below", number(ratio)) } else { format!("{}x above", number(1.0 / ratio)) }
}
