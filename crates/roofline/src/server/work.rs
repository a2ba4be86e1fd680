//! The routes of jobs.

use std::{collections::VecDeque, convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Extension,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::stream;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::watch;

use super::{
    answers,
    catalogue::json,
    extract::{Fields, Key},
    jobs::{Job, Record},
    products::verb,
    refusal::Refusal,
    state::{Shared, State as Server},
};
use crate::commands::question::{Question, Verb};

/// A job with what it has.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "JobDetail")]
pub(super) struct Detail {
    #[serde(flatten)]
    record: Record,
    /// Jobs that go first, where it waits.
    ahead: Option<usize>,
    /// Finished kernels, as `roofline measure --json` shows them.
    points: Vec<Map<String, Value>>,
    /// The answer, once it is done.
    result: Option<Map<String, Value>>,
}

/// All jobs, the latest first.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "JobList")]
pub(super) struct List {
    jobs: Vec<Record>,
}

/// `POST /api/jobs`, with the command as `verb` beside its fields.
pub(super) async fn create(State(state): State<Shared>, Fields(mut body): Fields) -> Result<Response, Refusal> {
    let named = match body.remove("verb") {
        Some(Value::String(name)) => measuring(&name),
        _ => None,
    };
    let verb = named.ok_or_else(|| Refusal::body("`verb` is missing or unknown", "one of measure, compare, sweep"))?;
    let job = submit(&state, verb, body).await?;
    accepted(&job)
}

fn measuring(name: &str) -> Option<&'static Verb> {
    ["measure", "compare", "sweep"].contains(&name).then(|| Verb::named(name)).flatten()
}

/// `POST /api/measure` and `/api/compare`.
pub(super) async fn create_as(
    State(state): State<Shared>,
    Extension(verb): Extension<&'static Verb>,
    Fields(body): Fields,
) -> Result<Response, Refusal> {
    let job = submit(&state, verb, body).await?;
    accepted(&job)
}

/// Queues what a body asks of `verb`.
pub(super) async fn submit(state: &Shared, verb: &'static Verb, body: Map<String, Value>) -> Result<Arc<Job>, Refusal> {
    allowed(state)?;
    let mut question = answers::admitted(verb, &body)?;
    if question.run().is_none() {
        let hint = "say `\"measure\": true`; POST /api/sweep answers what is only predicted";
        return Err(Refusal::body("this sweep measures nothing", hint));
    }
    let shared = state.clone();
    state.aside(move || shared.jobs.create(verb.name, body, checked(question)?)).await
}

fn checked(question: Question) -> Result<Question, Refusal> {
    question.measurable()?;
    Ok(question)
}

/// Running kernels is for those whom the owner of this machine lets.
pub(super) fn allowed(state: &Server) -> Result<(), Refusal> {
    if state.allow_measure {
        return Ok(());
    }
    let hint = "start the server with `roofline serve --allow-measure`";
    Err(Refusal::new(StatusCode::FORBIDDEN, "measuring is off", hint))
}

pub(super) fn accepted(job: &Job) -> Result<Response, Refusal> {
    let mut response = json(&job.record())?;
    *response.status_mut() = StatusCode::ACCEPTED;
    if let Ok(place) = HeaderValue::from_str(&format!("/api/jobs/{}", job.id)) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

/// `GET /api/jobs`.
pub(super) async fn list(State(state): State<Shared>) -> Result<Response, Refusal> {
    json(&List { jobs: state.jobs.list().iter().map(|job| job.record()).collect() })
}

/// `GET /api/jobs/{id}`.
pub(super) async fn show(State(state): State<Shared>, Key(id): Key) -> Result<Response, Refusal> {
    let shared = state.clone();
    let detail = state
        .aside(move || {
            let job = shared.jobs.find(&id)?;
            let objects = |value: Value| if let Value::Object(fields) = value { Some(fields) } else { None };
            Ok(Detail {
                ahead: shared.jobs.ahead(&job),
                points: job.points().into_iter().filter_map(objects).collect(),
                result: job.result().and_then(objects),
                record: job.record(),
            })
        })
        .await?;
    json(&detail)
}

/// `POST /api/jobs/{id}/cancel`.
pub(super) async fn cancel(State(state): State<Shared>, Key(id): Key) -> Result<Response, Refusal> {
    let shared = state.clone();
    let job = state.aside(move || shared.jobs.cancel(&id)).await?;
    json(&job.record())
}

/// `DELETE /api/jobs/{id}`.
pub(super) async fn remove(State(state): State<Shared>, Key(id): Key) -> Result<Response, Refusal> {
    let shared = state.clone();
    let job = state.aside(move || shared.jobs.remove(&id)).await?;
    json(&job.record())
}

/// `GET /api/jobs/{id}/events`: what happened and what happens, until it ends.
pub(super) async fn events(State(state): State<Shared>, Key(id): Key, headers: HeaderMap) -> Result<Response, Refusal> {
    let job = state.jobs.find(&id)?;
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let start = job.place(last.map_or(0, |last| last.saturating_add(1)));
    let events = follow(state.stopping.subscribe(), job, start, |number, kind, data| {
        vec![Event::default().id(number.to_string()).event(kind).data(data)]
    });
    Ok(stream_of(events))
}

/// A stream that is kept alive while nothing happens.
pub(super) fn stream_of(events: impl stream::Stream<Item = Result<Event, Infallible>> + Send + 'static) -> Response {
    Sse::new(events).keep_alive(KeepAlive::new().interval(Duration::from_secs(10))).into_response()
}

/// The events of a job from number `start` on, as `shown` shows them.
pub(super) fn follow(
    stopping: watch::Receiver<bool>,
    job: Arc<Job>,
    start: usize,
    shown: impl Fn(usize, &'static str, &str) -> Vec<Event> + Send + 'static,
) -> impl stream::Stream<Item = Result<Event, Infallible>> + Send + 'static {
    struct Place<S> {
        job: Arc<Job>,
        next: usize,
        ready: VecDeque<Event>,
        changes: watch::Receiver<usize>,
        stopping: watch::Receiver<bool>,
        shown: S,
    }
    let (changes, ready) = (job.changes(), VecDeque::new());
    let place = Place { job, next: start, ready, changes, stopping, shown };
    stream::unfold(place, |mut place| async move {
        loop {
            if let Some(event) = place.ready.pop_front() {
                return Some((Ok(event), place));
            }
            // Whatever happens from here on wakes us again.
            place.changes.mark_unchanged();
            let (news, ended) = place.job.news(place.next);
            for one in &news {
                place.ready.extend((place.shown)(place.next, one.kind, &one.data));
                place.next += 1;
            }
            if !place.ready.is_empty() {
                continue;
            }
            if ended && news.is_empty() {
                return None;
            }
            if !news.is_empty() {
                continue;
            }
            tokio::select! {
                _ = place.changes.changed() => {}
                _ = place.stopping.wait_for(|stop| *stop) => return None,
            }
        }
    })
}

/// Waits until a job has ended.
pub(super) async fn wait(job: &Job) {
    let mut changes = job.changes();
    while !job.ended() {
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// A sweep over shapes as a job, for those who give shapes and precisions.
pub(super) async fn sweep(
    state: &Shared,
    shapes: &[(u64, u64, u64)],
    precisions: Vec<String>,
    backend: Option<&str>,
    device: &str,
) -> Result<Arc<Job>, Refusal> {
    let shapes: Vec<Value> = shapes.iter().map(|(m, n, k)| format!("{m}x{n}x{k}").into()).collect();
    let mut body = Map::new();
    body.insert("shapes".to_owned(), shapes.into());
    body.insert("precision".to_owned(), precisions.into());
    body.insert("measure".to_owned(), true.into());
    if let Some(backend) = backend {
        body.insert("backend".to_owned(), backend.into());
    }
    if backend == Some("null") {
        body.insert("on".to_owned(), device.into());
    }
    submit(state, verb("sweep")?, body).await
}
