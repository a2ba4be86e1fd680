//! Measurements that were made elsewhere: read, completed and compared.

use std::sync::LazyLock;

use axum::{
    extract::{DefaultBodyLimit, State},
    response::Response,
};
use roofline_core::{
    Device, Graph, Math,
    device::Peaks,
    format::Sizes,
    machine::Stack,
    predict::Tier,
    units::{ByteRate, FlopRate, Seconds},
};
use roofline_verbs::{Context, Error, compare, machine};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    super::{answers::json, extract::Fields, refusal::Refusal, state::Shared},
    points::{RooflinePoint, named},
};

/// Bytes of a body with measurements in it.
const BODY: usize = 8 << 20;
/// Measurements of one request.
const POINTS: usize = 20_000;
/// Errors that are listed; the others are counted.
const ERRORS: usize = 100;

pub(in crate::server) fn limit() -> DefaultBodyLimit {
    DefaultBodyLimit::max(BODY)
}

/// Points in full, or as little of them as is known.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::server) struct FlexibleImportRequest {
    #[serde(default)]
    points: Option<Vec<Value>>,
    #[serde(default)]
    simplified: Option<Vec<Value>>,
}

/// A shape, a precision and how long it took.
#[derive(Deserialize, JsonSchema)]
pub(in crate::server) struct SimplifiedBenchmarkPoint {
    /// `NxK` of a matrix-vector product, or `MxNxK`.
    shape: String,
    precision: String,
    time_us: f64,
    #[serde(default)]
    tflops: Option<f64>,
    #[serde(default)]
    ai: Option<f64>,
    #[serde(default)]
    bandwidth_gb_s: Option<f64>,
    #[serde(default)]
    label: Option<String>,
}

/// What was understood.
#[derive(Serialize, JsonSchema)]
pub(in crate::server) struct ImportBenchmarkResponse {
    accepted: usize,
    rejected: usize,
    points: Vec<RooflinePoint>,
    /// `Point i: ...`, the first hundred.
    errors: Vec<String>,
}

/// `POST /api/import-benchmarks`.
pub(in crate::server) async fn import(State(state): State<Shared>, Fields(body): Fields) -> Result<Response, Refusal> {
    state.aside(move || imported(body)).await
}

fn imported(body: Map<String, Value>) -> Result<Response, Refusal> {
    let request: FlexibleImportRequest = serde_json::from_value(Value::Object(body))
        .map_err(|error| Refusal::body(error.to_string(), "a list `points`, or a list `simplified`"))?;
    let (full, simplified) = (request.points.unwrap_or_default(), request.simplified.unwrap_or_default());
    bounded(full.len() + simplified.len())?;
    let read = full.into_iter().map(complete).chain(simplified.into_iter().map(completed));
    let (mut points, mut errors, mut rejected) = (Vec::new(), Vec::new(), 0);
    for (at, point) in read.enumerate() {
        match point {
            Ok(point) => points.push(point),
            Err(reason) => {
                rejected += 1;
                if errors.len() < ERRORS {
                    errors.push(format!("Point {at}: {reason}"));
                }
            }
        }
    }
    json(&ImportBenchmarkResponse { accepted: points.len(), rejected, points, errors })
}

fn bounded(count: usize) -> Result<(), Refusal> {
    if count <= POINTS {
        return Ok(());
    }
    Err(Refusal::body(format!("{count} measurements are sent"), format!("{POINTS} at most")))
}

fn positive(name: &str, value: f64) -> Result<f64, String> {
    if (1e-12..=1e15).contains(&value) { Ok(value) } else { Err(format!("{name} must be positive")) }
}

fn complete(value: Value) -> Result<RooflinePoint, String> {
    let mut point: RooflinePoint = serde_json::from_value(value).map_err(|error| error.to_string())?;
    for (name, value) in [("ai", point.ai), ("tflops", point.tflops), ("time_us", point.time_us)] {
        positive(name, value)?;
    }
    "measured".clone_into(&mut point.source);
    Ok(point)
}

/// A device that has every unit: what is measured elsewhere is not asked where.
static ANY: LazyLock<Option<Device>> = LazyLock::new(|| {
    let peaks = Peaks::distinct(Math::ALL.iter().map(|math| (*math, FlopRate::new(1e12)))).ok()?;
    Device::custom("any", ByteRate::new(1e12), peaks, None).ok()
});

fn completed(value: Value) -> Result<RooflinePoint, String> {
    let point: SimplifiedBenchmarkPoint = serde_json::from_value(value).map_err(|error| error.to_string())?;
    let time = Seconds::from_micros(positive("time_us", point.time_us)?);
    let sides: Vec<u64> = point.shape.split(['x', 'X']).map_while(|side| side.trim().parse().ok()).collect();
    let (m, n, k) = match sides[..] {
        [n, k] if point.shape.matches(['x', 'X']).count() == 1 => (1, n, k),
        [m, n, k] if point.shape.matches(['x', 'X']).count() == 2 => (m, n, k),
        _ => return Err(format!("shape `{}` is not NxK or MxNxK", point.shape.chars().take(80).collect::<String>())),
    };
    let spec = named(&point.precision).map_err(|refusal| refusal.detail().to_owned())?;
    let any = ANY.as_ref().ok_or("no device")?;
    let formats = spec.layers(any).map_err(|error| error.to_string())?;
    let graph = Graph::gemm(m, n, k).map_err(|error| error.to_string())?;
    let work = graph.nodes[0].op.work(&formats, Sizes::Exact);
    Ok(RooflinePoint {
        ai: point.ai.map_or(Ok(work.intensity().value()), |ai| positive("ai", ai))?,
        tflops: point.tflops.map_or(Ok((work.flops / time).value() / 1e12), |rate| positive("tflops", rate))?,
        time_us: point.time_us,
        label: point.label.unwrap_or_else(|| format!("{m}x{n}x{k} [{}]", point.precision)),
        source: "measured".to_owned(),
        precision: point.precision,
        shape: point.shape,
        bottleneck: None,
        bandwidth_gb_s: Some(point.bandwidth_gb_s.unwrap_or((work.bytes() / time).value() / 1e9)),
        ..RooflinePoint::default()
    })
}

/// Measurements of a device, to be held against its roof.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::server) struct ValidateRequest {
    #[serde(default)]
    hardware_key: Option<String>,
    /// Which time is judged: the floor, or the one to expect.
    #[serde(default)]
    tier: Option<Tier>,
    /// Each with `kernel_type`, `shape`, `precision` and `measured_time_us`.
    benchmarks: Vec<Value>,
}

/// `POST /api/validate`: what `roofline compare --measured` answers, with its rows as `results`.
pub(in crate::server) async fn validate(
    State(state): State<Shared>,
    Fields(body): Fields,
) -> Result<Response, Refusal> {
    let context = state.context();
    state.aside(move || validated(&context, body)).await
}

fn validated(context: &Context, body: Map<String, Value>) -> Result<Response, Refusal> {
    let request: ValidateRequest = serde_json::from_value(Value::Object(body))
        .map_err(|error| Refusal::body(error.to_string(), "fields: hardware_key, tier, benchmarks"))?;
    bounded(request.benchmarks.len())?;
    let device = context.device(request.hardware_key.as_deref().unwrap_or("b10"))?;
    let machine = machine::machine(context, device, Stack::Roofline);
    let text = Value::Array(request.benchmarks).to_string();
    let tier = request.tier.unwrap_or(Tier::Expected);
    json(&compare::judged(&text, &machine, tier).map_err(refused)?)
}

fn refused(error: Error) -> Refusal {
    match error {
        Error::Request { message, hint } => Refusal::body(message, hint),
        error => error.into(),
    }
}
