//! What the GPU of this machine says of itself.

use std::{convert::Infallible, sync::OnceLock, time::Duration};

use axum::{
    extract::State,
    http::StatusCode,
    response::{
        IntoResponse, Response,
        sse::{Event, Sse},
    },
};
use futures_util::stream;
use roofline_run::telemetry::{Gpu, Status};
use serde_json::Value;

use super::{catalogue::json, refusal::Refusal, state::Shared};

/// From one look to the next.
const INTERVAL: Duration = Duration::from_millis(500);

/// `GET /api/nvml/status`.
pub(super) async fn look(State(state): State<Shared>) -> Result<Response, Refusal> {
    json(&state.aside(status).await?)
}

/// `GET /api/nvml/stream`: a look every half second, as server-sent events.
pub(super) async fn watch(State(state): State<Shared>) -> Result<Response, Refusal> {
    state.aside(status).await?;
    let stopping = state.stopping.subscribe();
    let looks = stream::unfold((state, stopping, true), |(state, mut stopping, first)| async move {
        if !first {
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                _ = stopping.wait_for(|stop| *stop) => return None,
            }
        }
        let event = match state.aside(status).await {
            Ok(status) => Event::default().data(status.to_string()),
            Err(refusal) => Event::default().event("error").data(refusal.detail()),
        };
        Some((Ok::<_, Infallible>(event), (state, stopping, false)))
    });
    Ok(Sse::new(looks).into_response())
}

/// Everything that could be read, with the compute capability as two numbers.
pub(super) fn status() -> Result<Value, Refusal> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    let Some(gpu) = GPU.get_or_init(|| Gpu::open(0).ok()) else {
        let hint = "NVML comes with the NVIDIA driver; /api/health tells what this machine has";
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "NVML not available", hint));
    };
    let read = Status::read(gpu);
    let capability: Vec<u32> =
        read.compute_capability.iter().flat_map(|text| text.split('.')).filter_map(|part| part.parse().ok()).collect();
    let mut value = serde_json::to_value(&read).unwrap_or_default();
    value["compute_capability"] = capability.into();
    Ok(value)
}
