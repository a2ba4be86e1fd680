//! What the server knows: itself, devices, models, formats, precisions.

use std::sync::OnceLock;

use axum::{extract::State, response::Response};
use roofline_core::units::Bytes;
use roofline_run::telemetry::{self, Status};
use roofline_verbs::{devices, formats, models, precisions, request::BackendName};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::{
    answers::{self, json, read},
    extract::{Key, Params},
    refusal::Refusal,
    state::Shared,
};

/// The server and the machine it runs on.
#[derive(Serialize, JsonSchema)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Health {
    /// Always `ok`: whoever reads this was answered.
    status: &'static str,
    version: &'static str,
    /// The commit it was built from, where that is known.
    commit: Option<&'static str>,
    /// Who can run kernels here.
    backends: Vec<BackendName>,
    /// Whether there is a GPU that CUDA can use.
    cuda: bool,
    /// Whether the NVIDIA driver tells what the GPU does.
    nvml: bool,
    /// The name that the driver gives the GPU.
    gpu: Option<String>,
    /// Memory of the GPU in bytes.
    gpu_memory_bytes: Option<f64>,
    /// Its CUDA compute capability.
    compute_capability: Option<String>,
    /// Its multiprocessors.
    sm_count: Option<u32>,
    /// Whether it is a Blackwell or later.
    is_blackwell: Option<bool>,
    /// Whether it is a Hopper.
    is_hopper: Option<bool>,
    /// Whether its tensor cores multiply FP8.
    has_fp8: Option<bool>,
    /// Whether jobs may run kernels.
    allow_measure: bool,
    /// Whether callers have to know a token.
    token: bool,
}

pub(super) async fn health(State(state): State<Shared>) -> Result<Response, Refusal> {
    let gpu = state.aside(|| Ok(gpu())).await?;
    let unknown = Status::default();
    let status = gpu.status.as_ref().unwrap_or(&unknown);
    let health = Health {
        status: "ok",
        version: env!("CARGO_PKG_VERSION"),
        commit: roofline_run::environment::COMMIT,
        backends: [Some(BackendName::Cpu), gpu.cuda.then_some(BackendName::Cuda), Some(BackendName::Null)]
            .into_iter()
            .flatten()
            .collect(),
        cuda: gpu.cuda,
        nvml: gpu.status.is_some(),
        gpu: status.device_name.clone(),
        gpu_memory_bytes: status.mem_total.map(Bytes::value),
        compute_capability: status.compute_capability.clone(),
        sm_count: status.sm_count,
        is_blackwell: status.is_blackwell,
        is_hopper: status.is_hopper,
        has_fp8: status.has_fp8,
        allow_measure: state.allow_measure,
        token: state.guard.needs_token(),
    };
    json(&health)
}

struct Gpu {
    cuda: bool,
    /// What its driver said, where it tells.
    status: Option<Status>,
}

/// Looked for once: a GPU does not come and go.
fn gpu() -> &'static Gpu {
    static GPU: OnceLock<Gpu> = OnceLock::new();
    GPU.get_or_init(|| Gpu {
        cuda: roofline_run::cuda::present(),
        status: telemetry::Gpu::open(0).ok().map(|gpu| Status::read(&gpu)),
    })
}

/// What devices can be chosen by.
pub(super) const DEVICE_FILTERS: &[&str] = &["vendor", "kind", "arch", "has", "min_memory", "mine", "sort", "reverse"];

/// `GET /api/devices?vendor=...`: the fields of a request as a query.
pub(super) async fn devices(State(state): State<Shared>, query: Params) -> Result<Response, Refusal> {
    answers::route(state, fields(query, DEVICE_FILTERS)?, devices::devices).await
}

pub(super) async fn device(State(state): State<Shared>, Key(key): Key) -> Result<Response, Refusal> {
    answers::route(state, named(key), devices::devices).await
}

pub(super) async fn models(State(state): State<Shared>) -> Result<Response, Refusal> {
    answers::route(state, Map::new(), models::models).await
}

pub(super) async fn model(State(state): State<Shared>, Key(key): Key) -> Result<Response, Refusal> {
    answers::route(state, named(key), models::models).await
}

pub(super) async fn formats(State(state): State<Shared>) -> Result<Response, Refusal> {
    // Each format encodes and decodes a quarter of a million weights, and none of them changes.
    static ALL: OnceLock<formats::Answer> = OnceLock::new();
    let context = state.context();
    state
        .aside(move || {
            if let Some(known) = ALL.get() {
                return json(known);
            }
            let answer = formats::formats(&context, &read(Map::new())?)?;
            json(ALL.get_or_init(|| answer))
        })
        .await
}

pub(super) async fn format(State(state): State<Shared>, Key(key): Key) -> Result<Response, Refusal> {
    answers::route(state, named(key), formats::formats).await
}

pub(super) async fn precisions(State(state): State<Shared>, query: Params) -> Result<Response, Refusal> {
    answers::route(state, fields(query, &["on"])?, precisions::precisions).await
}

fn named(key: String) -> Map<String, Value> {
    Map::from_iter([("names".to_owned(), Value::Array(vec![Value::String(key)]))])
}

/// A query as a body: a name that comes more than once is a list, and words that read as a switch are one.
fn fields(query: Params, known: &[&str]) -> Result<Map<String, Value>, Refusal> {
    query.only(known)?;
    let value = |text: String| match text.as_str() {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        _ => Value::String(text),
    };
    let mut fields: Map<String, Value> = Map::new();
    for (name, text) in query.pairs() {
        match fields.get_mut(&name) {
            None => _ = fields.insert(name, value(text)),
            Some(Value::Array(list)) => list.push(value(text)),
            Some(first) => *first = Value::Array(vec![first.take(), value(text)]),
        }
    }
    Ok(fields)
}
