//! `POST /api/VERB`: a request in, one call, its answer out.

use axum::{
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use roofline_core::wording;
use roofline_verbs::{Context, Error, request::from_elsewhere};
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::{
    extent::Bounded,
    extract::Fields,
    refusal::Refusal,
    state::{Shared, State as Server},
};

/// The function between a request and an answer.
pub(super) type Verb<Q, A> = fn(&Context, &Q) -> Result<A, Error>;

/// A route that answers as `verb` does.
pub(super) async fn route<Q, A>(state: Shared, body: Map<String, Value>, verb: Verb<Q, A>) -> Result<Response, Refusal>
where
    Q: DeserializeOwned + JsonSchema + Bounded + Send + 'static,
    A: Serialize + 'static,
{
    answer(&state, read(body)?, verb).await
}

/// The request of a body, once what it asks for is bounded.
pub(super) fn read<Q: DeserializeOwned + JsonSchema + Bounded + 'static>(
    body: Map<String, Value>,
) -> Result<Q, Refusal> {
    let request: Q = from_elsewhere(Value::Object(body))?;
    request.extent().check()?;
    Ok(request)
}

/// The answer to a request that was let in: at once where it takes microseconds, else where it keeps nobody waiting.
pub(super) async fn answer<Q, A>(state: &Server, request: Q, verb: Verb<Q, A>) -> Result<Response, Refusal>
where
    Q: Bounded + Send + 'static,
    A: Serialize + 'static,
{
    let (quick, context) = (request.quick(), state.context());
    let work = move || json(&verb(&context, &request)?);
    if quick { work() } else { state.aside(work).await }
}

/// `POST` with the fields of a request.
pub(super) fn post<Q, A>(verb: Verb<Q, A>) -> axum::routing::MethodRouter<Shared>
where
    Q: DeserializeOwned + JsonSchema + Bounded + Send + 'static,
    A: Serialize + 'static,
{
    axum::routing::post(move |State(state): State<Shared>, Fields(body): Fields| route(state, body, verb))
}

/// A value in JSON, with the names of fields as a body has them.
pub(super) fn json(value: &impl Serialize) -> Result<Response, Refusal> {
    let text = serde_json::to_string(value).map_err(|error| Refusal::broken(&error))?;
    Ok(typed("application/json", wording::fields(&text).into_owned()))
}

pub(super) fn typed(kind: &'static str, body: String) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static(kind))], body).into_response()
}
