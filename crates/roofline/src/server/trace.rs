//! `POST /api/trace`: a profiler's file as the body, what `roofline compare --trace` says of it as the answer.

use std::{io::Cursor, time::Duration};

use axum::{
    extract::{DefaultBodyLimit, Request, State},
    http::StatusCode,
    response::Response,
};
use roofline_verbs::{
    compare::{Upload, uploaded},
    request::from_elsewhere,
};
use serde_json::{Map, Value};

use super::{
    answers::json,
    extract::{Params, received},
    refusal::Refusal,
    state::Shared,
};

/// Bytes of a trace as it is sent, compressed or not.
const BODY: usize = 64 << 20;
/// Longest time for it to arrive.
const ARRIVING: Duration = Duration::from_mins(2);
/// Longest time for it to arrive and to be read.
pub(super) const PATIENCE: Duration = Duration::from_mins(3);
/// Traces that are held at once; the others wait before they are sent.
pub(super) const AT_ONCE: usize = 2;

/// What a trace may be sent as. No form of another site is sent as one of these without asking first.
pub(super) const KINDS: [&str; 4] = ["application/json", "application/gzip", "text/csv", "application/octet-stream"];

pub(super) fn limit() -> DefaultBodyLimit {
    DefaultBodyLimit::max(BODY)
}

pub(super) async fn compare(
    State(state): State<Shared>,
    params: Params,
    request: Request,
) -> Result<Response, Refusal> {
    let fields: Map<String, Value> = params.pairs().into_iter().map(|(name, value)| (name, value.into())).collect();
    let upload: Upload = from_elsewhere(Value::Object(fields))?;
    let held = state.uploads.acquire().await.map_err(|_| Refusal::broken(&"the server stops"))?;
    let (kind, bytes) = received(request, &(), ARRIVING).await?;
    if !KINDS.contains(&kind.as_str()) {
        let hint = format!("send it as it is, with one of these as its `Content-Type`: {}", KINDS.join(", "));
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, format!("the body is `{kind}`"), hint));
    }
    let context = state.context();
    let answer = state.aside(move || json(&uploaded(&context, &upload, Cursor::new(bytes))?)).await;
    drop(held);
    answer
}
