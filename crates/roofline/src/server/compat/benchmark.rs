//! `/api/benchmark/stream`: shapes times precisions, each measured and sent as it finishes.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response, sse::Event},
};
use futures_util::{StreamExt, stream};
use roofline_core::{Device, Op};
use roofline_verbs::{
    measure,
    request::BackendName,
    sweep::{self, Shape},
};
use serde_json::{Map, Value, json};

use super::{
    super::{
        extract::Params,
        jobs::{Job, News, Question, routes},
        refusal::Refusal,
        state::Shared,
    },
    points::named,
    products::{PRECISIONS, hardware},
};

/// What is measured where nothing was named: a decoded token, a prompt, a square.
const SHAPES: [Shape; 3] = sweep::QUICK;
const MOST: usize = 256;

pub(in crate::server) async fn run(
    State(state): State<Shared>,
    headers: HeaderMap,
    query: Params,
) -> Result<Response, Refusal> {
    // A browser's EventSource comes back when a stream ends; this tells it that there is no more.
    if headers.contains_key("last-event-id") {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    query.only(&["hardware_key", "shapes", "precisions", "saturate", "backend"])?;
    routes::allowed(&state)?;
    let device = hardware(&state.context(), &query)?;
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
        return Ok(routes::stream_of(stream::iter([Ok::<_, Infallible>(only)])));
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
        return Ok(routes::stream_of(stream::iter(lacking.into_iter().chain([Ok(end)]))));
    }
    let job = job(&state, &shapes, ours, backend, &device).await?;
    let number = AtomicUsize::new(0);
    let events = routes::follow(state.stopping.subscribe(), job, 0, move |_, news| {
        let precision = |ours: &str| theirs.get(ours).cloned().unwrap_or_else(|| ours.to_owned());
        let count = || number.fetch_add(1, Ordering::Relaxed) + 1;
        let said = match news {
            News::Point(kernel) => vec![json!({
                "shape": shape(&kernel.op),
                "precision": precision(&kernel.precision),
                "time_us": kernel.measured_time_us,
                "tflops": kernel.measured_tflops,
                "bandwidth_gb_s": kernel.measured_bandwidth_gb_s,
                "ai": kernel.ai,
                "progress": format!("{}/{total}", count()),
            })],
            News::Skipped(skipped) => {
                count();
                let (shape, precision) = (shape(&skipped.op), precision(&skipped.precision));
                vec![json!({ "error": skipped.reason, "shape": shape, "precision": precision })]
            }
            News::End(record) => {
                let failed = record.error.as_ref().map(|error| json!({ "error": error }));
                failed.into_iter().chain([json!({ "done": true, "total": total })]).collect()
            }
            News::Progress(_) => Vec::new(),
        };
        // A number for browsers to come back with, so that a second look is not taken for a second wish.
        said.into_iter().map(|value: Value| Event::default().id("0").data(value.to_string())).collect()
    });
    Ok(routes::stream_of(stream::iter(lacking).chain(events)))
}

/// Who runs the kernels, where somebody was named.
pub(in crate::server) fn backend(query: &Params) -> Result<Option<BackendName>, Refusal> {
    Ok(match query.get("backend") {
        None => None,
        Some("cpu") => Some(BackendName::Cpu),
        Some("cuda") => Some(BackendName::Cuda),
        Some("null") => Some(BackendName::Null),
        Some(_) => return Err(Refusal::body("`backend` is unknown", "one of cpu, cuda, null")),
    })
}

/// A sweep over shapes as a job, for those who give shapes and precisions.
pub(in crate::server) async fn job(
    state: &Shared,
    shapes: &[Shape],
    precisions: Vec<String>,
    backend: Option<BackendName>,
    device: &Device,
) -> Result<Arc<Job>, Refusal> {
    let shapes: Vec<String> = shapes.iter().map(ToString::to_string).collect();
    let mut body = Map::new();
    body.insert("shapes".to_owned(), shapes.into());
    body.insert("precision".to_owned(), precisions.into());
    body.insert("measure".to_owned(), true.into());
    body.extend(backend.map(|backend| ("backend".to_owned(), backend.name().into())));
    if backend == Some(BackendName::Null) {
        body.insert("on".to_owned(), device.label().into());
    }
    routes::submit(state, Question::read("sweep", body.clone())?, body).await
}

/// `M,N,K;M,N,K`; what is no such triple is left out.
fn shapes(text: Option<&str>) -> Vec<Shape> {
    let triple = |text: &str| text.replace(',', "x").replace(' ', "").parse().ok();
    let shapes: Vec<Shape> = text.unwrap_or_default().split(';').filter_map(triple).collect();
    if shapes.is_empty() { SHAPES.to_vec() } else { shapes }
}

/// The dimensions of a product that was measured.
fn shape(op: &Op) -> String {
    match op {
        Op::Linear(linear) => format!("{}x{}x{}", linear.m, linear.n, linear.k),
        _ => String::new(),
    }
}
