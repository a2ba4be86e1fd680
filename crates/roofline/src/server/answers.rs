//! `POST /api/VERB`: a command's arguments in, its JSON out.

use std::path::Path;

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value};

use super::{limits, refusal::Refusal, request, state::State};
use crate::{
    commands::{
        question::{Extent, Question, Verb},
        this,
    },
    config,
    failure::Failure,
};

/// Answers `body` as `verb` would.
pub(super) async fn ask(state: &State, verb: &'static Verb, body: &Map<String, Value>) -> Result<Response, Refusal> {
    let mut question = admitted(verb, body)?;
    if question.run().is_some() {
        return Err(Refusal::new(StatusCode::FORBIDDEN, "measuring is off", "start the server with `--allow-measure`"));
    }
    let kind = if matches!(question, Question::Plot(_)) { "image/svg+xml" } else { "application/json" };
    Ok(typed(kind, answer(state, question).await?))
}

/// The answer to a question that was let in.
pub(super) async fn answer(state: &State, question: Question) -> Result<String, Refusal> {
    if question.quick() {
        return Ok(question.answer()?);
    }
    state.aside(move || Ok(question.answer()?)).await
}

/// The question of a body, once everything it names may be looked up and what it asks for is bounded.
pub(super) fn admitted(verb: &Verb, body: &Map<String, Value>) -> Result<Question, Refusal> {
    let question = request::question(verb, body)?;
    let extent = question.extent()?;
    admit(&extent)?;
    Ok(question)
}

fn admit(extent: &Extent<'_>) -> Result<(), Refusal> {
    let Extent { devices, models, results, steps } = extent;
    if *results > limits::RESULTS {
        let hint = format!("{} at most over HTTP; `roofline` on the command line has no limit", limits::RESULTS);
        return Err(Refusal::body(format!("{results} results are asked for"), hint));
    }
    if steps.saturating_mul((*results).max(1) as u64) > limits::STEPS {
        let hint = format!("{} in all at most over HTTP", limits::STEPS);
        return Err(Refusal::body(format!("{steps} generated tokens for {results} results are asked for"), hint));
    }
    devices.iter().try_for_each(|name| device(name))?;
    models.iter().try_for_each(|name| model(name))
}

/// Over HTTP a device is one of the registry's; files of the server are none of the caller's.
pub(super) fn device(name: &str) -> Result<(), Refusal> {
    if name == "this" {
        return this_machine();
    }
    let registry = config::registry();
    match registry.find(name) {
        Ok(_) if !is_file(name) => Ok(()),
        Ok(_) => Err(path("device", name)),
        Err(error) => Err(unknown("device", name, error)),
    }
}

fn this_machine() -> Result<(), Refusal> {
    if this::is_known() {
        return Ok(());
    }
    let hint = "`roofline devices this` on the server measures it once, in half a minute";
    Err(Refusal::new(StatusCode::CONFLICT, "the server's own machine was not measured yet", hint))
}

pub(super) fn model(name: &str) -> Result<(), Refusal> {
    // `organisation/name` is a name as long as it is no path of the server's.
    if name.contains(['/', '\\']) && Path::new(name).exists() {
        return Err(path("model", name));
    }
    roofline_core::Model::find(name).map(|_| ()).map_err(|error| unknown("model", name, error))
}

/// The end of a name that commands take for a file's.
fn is_file(name: &str) -> bool {
    let plain = Path::new(name.split('@').next().unwrap_or(name));
    plain.extension().is_some_and(|end| end.eq_ignore_ascii_case("toml") || end.eq_ignore_ascii_case("json"))
}

fn unknown(what: &str, name: &str, error: roofline_core::Error) -> Refusal {
    if is_file(name) || name.contains(['/', '\\']) { path(what, name) } else { Failure::from(error).into() }
}

fn path(what: &str, name: &str) -> Refusal {
    let shown: String = name.chars().take(80).collect();
    let hint = format!("over HTTP a {what} is a key of GET /api/{what}s: no file of the server is read");
    Refusal::new(StatusCode::BAD_REQUEST, format!("`{shown}` is a path"), hint)
}

pub(super) fn typed(kind: &'static str, body: String) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static(kind))], body).into_response()
}
