//! The routes of jobs.

use std::{collections::VecDeque, convert::Infallible, sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::stream;
use roofline_verbs::{compare, measure, measure::MeasuredKernel, sweep};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::watch;

use super::{
    super::{
        answers::json,
        extract::{Fields, Key},
        refusal::Refusal,
        state::{Shared, State as Server},
    },
    Job, News, Question, Record,
};

/// A job with what it has.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "JobDetail")]
pub(in crate::server) struct Detail {
    #[serde(flatten)]
    record: Record,
    /// Jobs that go first, where it waits.
    ahead: Option<usize>,
    /// Finished kernels, as `roofline measure --json` shows them.
    points: Vec<MeasuredKernel>,
    /// The answer, once it is done.
    #[schemars(with = "Option<JobResult>")]
    result: Option<Value>,
}

/// What a job answers.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "the shape of what is kept on disk")]
enum JobResult {
    Measure(Box<measure::Answer>),
    Compare(Box<compare::Answer>),
    Sweep(Box<sweep::Answer>),
}

/// All jobs, the latest first.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "JobList")]
pub(in crate::server) struct List {
    jobs: Vec<Record>,
}

/// `POST /api/jobs`, with the verb beside its fields.
pub(in crate::server) async fn create(
    State(state): State<Shared>,
    Fields(mut body): Fields,
) -> Result<Response, Refusal> {
    let verb = body.remove("verb");
    queue(&state, verb.as_ref().and_then(Value::as_str).unwrap_or_default(), body).await
}

/// `POST /api/measure`.
pub(in crate::server) async fn measure(State(state): State<Shared>, Fields(body): Fields) -> Result<Response, Refusal> {
    queue(&state, "measure", body).await
}

/// `POST /api/compare`.
pub(in crate::server) async fn compare(State(state): State<Shared>, Fields(body): Fields) -> Result<Response, Refusal> {
    queue(&state, "compare", body).await
}

async fn queue(state: &Shared, verb: &str, body: Map<String, Value>) -> Result<Response, Refusal> {
    allowed(state)?;
    let question = Question::read(verb, body.clone())?;
    accepted(&*submit(state, question, body).await?)
}

/// Queues a question; `body` is what was sent, for whoever looks at the job.
pub(in crate::server) async fn submit(
    state: &Shared,
    question: Question,
    body: Map<String, Value>,
) -> Result<Arc<Job>, Refusal> {
    let shared = state.clone();
    state
        .aside(move || {
            question.check(&shared.context())?;
            shared.jobs.create(question.verb(), body, question)
        })
        .await
}

/// Running kernels is for those whom the owner of this machine lets.
pub(in crate::server) fn allowed(state: &Server) -> Result<(), Refusal> {
    if state.allow_measure {
        return Ok(());
    }
    let hint = "start the server with `roofline serve --allow-measure`";
    Err(Refusal::new(StatusCode::FORBIDDEN, "measuring is off", hint))
}

pub(in crate::server) fn accepted(job: &Job) -> Result<Response, Refusal> {
    let mut response = json(&job.record())?;
    *response.status_mut() = StatusCode::ACCEPTED;
    if let Ok(place) = HeaderValue::from_str(&format!("/api/jobs/{}", job.id)) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

/// `GET /api/jobs`.
pub(in crate::server) async fn list(State(state): State<Shared>) -> Result<Response, Refusal> {
    json(&List { jobs: state.jobs.list().iter().map(|job| job.record()).collect() })
}

/// `GET /api/jobs/{id}`.
pub(in crate::server) async fn show(State(state): State<Shared>, Key(id): Key) -> Result<Response, Refusal> {
    let shared = state.clone();
    let detail = state
        .aside(move || {
            let job = shared.jobs.find(&id)?;
            Ok(Detail {
                ahead: shared.jobs.ahead(&job),
                points: job.points(),
                result: job.result(),
                record: job.record(),
            })
        })
        .await?;
    json(&detail)
}

/// `POST /api/jobs/{id}/cancel`.
pub(in crate::server) async fn cancel(State(state): State<Shared>, Key(id): Key) -> Result<Response, Refusal> {
    let shared = state.clone();
    let job = state.aside(move || shared.jobs.cancel(&id)).await?;
    json(&job.record())
}

/// `DELETE /api/jobs/{id}`.
pub(in crate::server) async fn remove(State(state): State<Shared>, Key(id): Key) -> Result<Response, Refusal> {
    let shared = state.clone();
    let job = state.aside(move || shared.jobs.remove(&id)).await?;
    json(&job.record())
}

/// `GET /api/jobs/{id}/events`: what happened and what happens, until it ends.
pub(in crate::server) async fn events(
    State(state): State<Shared>,
    Key(id): Key,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let job = state.jobs.find(&id)?;
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let start = job.place(last.map_or(0, |last| last.saturating_add(1)));
    let events = follow(state.stopping.subscribe(), job, start, |number, news| {
        vec![Event::default().id(number.to_string()).event(news.kind()).data(news.data())]
    });
    Ok(stream_of(events))
}

/// A stream that is kept alive while nothing happens.
pub(in crate::server) fn stream_of(
    events: impl stream::Stream<Item = Result<Event, Infallible>> + Send + 'static,
) -> Response {
    Sse::new(events).keep_alive(KeepAlive::new().interval(Duration::from_secs(10))).into_response()
}

/// The events of a job from number `start` on, as `shown` shows them.
pub(in crate::server) fn follow(
    stopping: watch::Receiver<bool>,
    job: Arc<Job>,
    start: usize,
    shown: impl Fn(usize, &News) -> Vec<Event> + Send + 'static,
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
                place.ready.extend((place.shown)(place.next, one));
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
pub(in crate::server) async fn wait(job: &Job) {
    let mut changes = job.changes();
    while !job.ended() {
        if changes.changed().await.is_err() {
            return;
        }
    }
}
