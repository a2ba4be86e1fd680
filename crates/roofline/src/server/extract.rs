//! The body of a request as an object.

use std::time::Duration;

use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts, Path, Query, Request, rejection::BytesRejection},
    http::{StatusCode, header, request::Parts},
};
use serde_json::{Map, Value};

use super::refusal::Refusal;

/// Longest time for a body to arrive, whatever its answer takes.
const BODY: Duration = Duration::from_secs(30);

/// An object in JSON.
pub(super) struct Fields(pub(super) Map<String, Value>);

/// Any JSON value; nothing where there is no body.
pub(super) struct Json(pub(super) Option<Value>);

impl<S: Send + Sync> FromRequest<S> for Json {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let (kind, bytes) = received(request, state, BODY).await?;
        if bytes.is_empty() {
            return Ok(Self(None));
        }
        // A form of another site is never sent as JSON without asking first, so this also keeps those out.
        if kind != "application/json" {
            let detail = format!("the body is `{kind}`");
            let hint = "send JSON, with `Content-Type: application/json`";
            return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail, hint));
        }
        let value = serde_json::from_slice(&bytes).map_err(|error| {
            Refusal::new(StatusCode::BAD_REQUEST, format!("the body is no JSON: {error}"), "see /docs for examples")
        })?;
        Ok(Self(Some(value)))
    }
}

/// A body and what it says it is, once it has arrived.
pub(super) async fn received<S: Send + Sync>(
    request: Request,
    state: &S,
    longest: Duration,
) -> Result<(String, Bytes), Refusal> {
    let kind = request.headers().get(header::CONTENT_TYPE).map(|kind| kind.to_str().unwrap_or_default().to_owned());
    let kind = kind.as_deref().unwrap_or("of no type").split(';').next().unwrap_or_default().trim().to_lowercase();
    let bytes = tokio::time::timeout(longest, Bytes::from_request(request, state)).await.map_err(|_| too_slow())?;
    Ok((kind, bytes.map_err(|rejection| too_large(&rejection))?))
}

impl<S: Send + Sync> FromRequest<S> for Fields {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        match Json::from_request(request, state).await?.0 {
            Some(Value::Object(fields)) => Ok(Self(fields)),
            Some(_) => Err(Refusal::body("the body is no object", "send an object; see /docs for its fields")),
            None => Err(Refusal::body("there is no body", "send an object; see /docs for its fields")),
        }
    }
}

fn too_slow() -> Refusal {
    Refusal::new(StatusCode::REQUEST_TIMEOUT, "the body took too long", "send it at once")
}

fn too_large(rejection: &BytesRejection) -> Refusal {
    let status = rejection.status();
    if status == StatusCode::PAYLOAD_TOO_LARGE {
        return Refusal::new(
            status,
            "the body is too large",
            "1 MiB at most; 8 MiB for imported measurements, 64 MiB for a trace",
        );
    }
    Refusal::new(StatusCode::BAD_REQUEST, "the body could not be read", "send it whole")
}

/// The query of a request: names and values, a name perhaps more than once.
pub(super) struct Params(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Params {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let query = Query::<Vec<(String, String)>>::from_request_parts(parts, state).await;
        let wrong = |_| Refusal::new(StatusCode::BAD_REQUEST, "the query could not be read", "write ?name=value&...");
        Ok(Self(query.map_err(wrong)?.0))
    }
}

impl Params {
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rfind(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn pairs(self) -> Vec<(String, String)> {
        self.0
    }

    /// Refuses a name that means nothing here: it is a slip, and leaving it out would answer another question.
    pub(super) fn only(&self, known: &[&str]) -> Result<(), Refusal> {
        let stranger = self.0.iter().map(|(name, _)| name).find(|name| !known.contains(&name.as_str()));
        stranger.map_or(Ok(()), |name| {
            let shown: String = name.chars().take(80).collect();
            let error = roofline_core::Error::unknown("parameter", &shown, known.iter().copied(), "");
            Err(Refusal::body(error.to_string(), format!("parameters: {}", known.join(", "))))
        })
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool, Refusal> {
        match self.get(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(other) => Err(wrong(name, other, "true or false")),
        }
    }

    pub(super) fn whole(&self, name: &str) -> Result<Option<u64>, Refusal> {
        let parse = |text: &str| text.parse().map_err(|_| wrong(name, text, "a whole number"));
        self.get(name).map(parse).transpose()
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<f64>, Refusal> {
        let parse = |text: &str| {
            let value = text.parse::<f64>().ok().filter(|value| value.is_finite());
            value.ok_or_else(|| wrong(name, text, "a number"))
        };
        self.get(name).map(parse).transpose()
    }
}

fn wrong(name: &str, value: &str, expected: &str) -> Refusal {
    let shown: String = value.chars().take(80).collect();
    Refusal::body(format!("`{name}` is `{shown}`"), format!("it is {expected}"))
}

/// The last part of a path.
pub(super) struct Key(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Key {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let key = Path::<String>::from_request_parts(parts, state).await;
        let wrong = |_| Refusal::new(StatusCode::BAD_REQUEST, "the path could not be read", "write it in UTF-8");
        Ok(Self(key.map_err(wrong)?.0))
    }
}
