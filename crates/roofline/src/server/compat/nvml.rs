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
use schemars::JsonSchema;
use serde::Serialize;

use super::super::{answers::json, refusal::Refusal, state::Shared};

/// From one look to the next.
const INTERVAL: Duration = Duration::from_millis(500);

/// `GET /api/nvml/status`.
pub(in crate::server) async fn look(State(state): State<Shared>) -> Result<Response, Refusal> {
    json(&state.aside(look_once).await?)
}

/// `GET /api/nvml/stream`: a look every half second, as server-sent events.
pub(in crate::server) async fn watch(State(state): State<Shared>) -> Result<Response, Refusal> {
    state.aside(look_once).await?;
    let stopping = state.stopping.subscribe();
    let looks = stream::unfold((state, stopping, true), |(state, mut stopping, first)| async move {
        if !first {
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                _ = stopping.wait_for(|stop| *stop) => return None,
            }
        }
        let event = match state.aside(look_once).await {
            Ok(status) => Event::default().data(serde_json::to_string(&status).unwrap_or_default()),
            Err(refusal) => Event::default().event("error").data(refusal.detail()),
        };
        Some((Ok::<_, Infallible>(event), (state, stopping, false)))
    });
    Ok(Sse::new(looks).into_response())
}

/// Everything that could be read, with the compute capability as two numbers.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "NvmlStatus")]
pub(in crate::server) struct Look {
    #[serde(flatten)]
    status: Status,
    compute_capability: Vec<u32>,
}

pub(in crate::server) fn look_once() -> Result<Look, Refusal> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    let Some(gpu) = GPU.get_or_init(|| Gpu::open(0).ok()) else {
        let hint = "NVML comes with the NVIDIA driver; /api/health tells what this machine has";
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "NVML not available", hint));
    };
    let mut status = Status::read(gpu);
    let text = status.compute_capability.take().unwrap_or_default();
    let compute_capability = text.split('.').filter_map(|part| part.parse().ok()).collect();
    Ok(Look { status, compute_capability })
}
