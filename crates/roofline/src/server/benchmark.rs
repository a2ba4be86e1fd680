//! `/api/benchmark/stream`: shapes times precisions, each measured and sent as it finishes.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::atomic::{AtomicUsize, Ordering},
};

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response, sse::Event},
};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::{
    extract::Params,
    points::named,
    products::{PRECISIONS, hardware},
    refusal::Refusal,
    state::Shared,
    work,
};
use crate::commands::measure;

/// What is measured where nothing was named: a decoded token, a prompt, a square.
const SHAPES: [(u64, u64, u64); 3] = [(1, 4096, 4096), (2048, 4096, 4096), (4096, 4096, 4096)];
const MOST: usize = 256;

pub(super) async fn run(State(state): State<Shared>, headers: HeaderMap, query: Params) -> Result<Response, Refusal> {
    // A browser's EventSource comes back when a stream ends; this tells it that there is no more.
    if headers.contains_key("last-event-id") {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    query.only(&["hardware_key", "shapes", "precisions", "saturate", "backend"])?;
    work::allowed(&state)?;
    let device = hardware(&query)?;
    let backend = backend(&query)?;
    let names: Vec<String> = match query.get("precisions").filter(|list| !list.trim().is_empty()) {
        Some(list) => list.split(',').map(|name| name.trim().to_owned()).collect(),
        None => PRECISIONS[..4].iter().map(|name| (*name).to_owned()).collect(),
    };
    let shapes = if query.flag("saturate")? { measure::saturating_shapes() } else { shapes(query.get("shapes")) };
    if shapes.len().saturating_mul(names.len()) > MOST {
        return Err(Refusal::body("too many kernels are asked for", format!("{MOST} at most")));
    }
    if backend.is_none() && !roofline_run::cuda::present() {
        let only = Event::default().data(json!({ "error": "CUDA not available" }).to_string());
        return Ok(work::stream_of(stream::iter([Ok::<_, Infallible>(only)])));
    }
    let (mut theirs, mut lacking) = (HashMap::new(), Vec::new());
    let (count, mut ours) = (names.len(), Vec::new());
    for name in names {
        let spec = named(&name)?;
        match spec.layers(&device) {
            Ok(_) => {
                ours.push(spec.label());
                theirs.insert(spec.label(), name);
            }
            Err(error) => lacking.push(json!({ "error": error.to_string(), "precision": name })),
        }
    }
    let total = shapes.len() * count;
    let lacking = lacking.into_iter().map(|error| Ok::<_, Infallible>(Event::default().data(error.to_string())));
    let lacking: Vec<_> = lacking.collect();
    if ours.is_empty() {
        let end = Event::default().data(json!({ "done": true, "total": total }).to_string());
        return Ok(work::stream_of(stream::iter(lacking.into_iter().chain([Ok(end)]))));
    }
    let job = work::sweep(&state, &shapes, ours, backend.as_deref(), &device.label()).await?;
    let number = AtomicUsize::new(0);
    let events = work::follow(state.stopping.subscribe(), job, 0, move |_, kind, data| {
        let value: Value = serde_json::from_str(data).unwrap_or_default();
        let precision = || value["precision"].as_str().map(|name| theirs.get(name).map_or(name, String::as_str));
        let count = || number.fetch_add(1, Ordering::Relaxed) + 1;
        let said = match kind {
            "point" => vec![json!({
                "shape": shape(&value),
                "precision": precision(),
                "time_us": value["measured_time_us"],
                "tflops": value["measured_tflops"],
                "bandwidth_gb_s": value["measured_bandwidth_gb_s"],
                "ai": value["ai"],
                "progress": format!("{}/{total}", count()),
            })],
            "skipped" => {
                count();
                vec![json!({ "error": value["reason"], "shape": shape(&value), "precision": precision() })]
            }
            "end" => {
                let failed = value["error"].as_str().map(|error| json!({ "error": error }));
                failed.into_iter().chain([json!({ "done": true, "total": total })]).collect()
            }
            _ => Vec::new(),
        };
        // A number for browsers to come back with, so that a second look is not taken for a second wish.
        said.into_iter().map(|value| Event::default().id("0").data(value.to_string())).collect()
    });
    Ok(work::stream_of(stream::iter(lacking).chain(events)))
}

/// Who runs the kernels, where somebody was named.
pub(super) fn backend(query: &Params) -> Result<Option<String>, Refusal> {
    match query.get("backend") {
        None => Ok(None),
        Some(name @ ("cpu" | "cuda" | "null")) => Ok(Some(name.to_owned())),
        Some(_) => Err(Refusal::body("`backend` is unknown", "one of cpu, cuda, null")),
    }
}

/// `M,N,K;M,N,K`; what is no such triple is left out.
fn shapes(text: Option<&str>) -> Vec<(u64, u64, u64)> {
    let triple = |text: &str| {
        let sides: Vec<u64> = text.split(',').map(|side| side.trim().parse().ok()).collect::<Option<_>>()?;
        match sides[..] {
            [m, n, k] if m > 0 && n > 0 && k > 0 => Some((m, n, k)),
            _ => None,
        }
    };
    let shapes: Vec<_> = text.unwrap_or_default().split(';').filter_map(triple).collect();
    if shapes.is_empty() { SHAPES.to_vec() } else { shapes }
}

/// The dimensions of a product that was measured.
fn shape(value: &Value) -> String {
    let linear = value["op"].as_object().and_then(|op| op.values().next()).unwrap_or(&Value::Null);
    let side = |name: &str| linear[name].as_u64().or_else(|| value["op"][name].as_u64()).unwrap_or(0);
    format!("{}x{}x{}", side("m"), side("n"), side("k"))
}
