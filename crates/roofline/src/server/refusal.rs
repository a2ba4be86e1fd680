//! Why a request got no answer: a status, what is wrong, and what to do about it.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use roofline_core::{Error as Core, wording};
use roofline_verbs::Error;
use schemars::JsonSchema;
use serde::Serialize;

/// A refused request.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    detail: String,
    hint: Option<String>,
}

/// What went wrong.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub(super) struct Body {
    /// What is wrong, in a sentence.
    detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), hint: Some(hint.into()) }
    }

    /// A body that is no valid request.
    pub(super) fn body(detail: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail, hint)
    }

    /// An answer that could not be made, through no fault of whoever asked.
    pub(super) fn broken(why: &dyn std::fmt::Display) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the answer could not be made: {why}"), "report this")
    }

    pub(super) fn detail(&self) -> &str {
        &self.detail
    }
}

/// A path means nothing to somebody who is not on this machine; what is there for them is a list.
const LISTS: &str =
    "GET /api/devices and /api/models list them; `bandwidth` and `peak` describe a device that is in no list";

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let (status, hint) = match &error {
            Error::Input(Core::Unknown { what: "device" | "model", .. }) => {
                (StatusCode::NOT_FOUND, Some(LISTS.to_owned()))
            }
            Error::Form { .. } => (StatusCode::UNPROCESSABLE_ENTITY, error.hint()),
            Error::Path { what, .. } => {
                let hint = format!("over HTTP a {what} is a key of GET /api/{what}s: no file of the server is read");
                (StatusCode::BAD_REQUEST, Some(hint))
            }
            Error::Unmeasured => {
                let hint = "`roofline devices this` on the server measures it once, in half a minute";
                let detail = "the server's own machine was not measured yet";
                return Self::new(StatusCode::CONFLICT, detail, hint);
            }
            Error::Cancelled => (StatusCode::CONFLICT, None),
            Error::Run(error) => (StatusCode::SERVICE_UNAVAILABLE, error.hint()),
            // Where files are is nobody's business who asks over HTTP.
            Error::File { error, .. } => {
                let detail = format!("a file of the server could not be read or written: {error}");
                return Self { status: StatusCode::INTERNAL_SERVER_ERROR, detail, hint: None };
            }
            error => (StatusCode::BAD_REQUEST, error.hint()),
        };
        let spelled = |text: &str| wording::fields(text).into_owned();
        Self { status, detail: spelled(&error.to_string()), hint: hint.as_deref().map(spelled) }
    }
}

impl From<Core> for Refusal {
    fn from(error: Core) -> Self {
        Error::from(error).into()
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(Body { detail: self.detail, hint: self.hint })).into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}
