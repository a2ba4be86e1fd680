//! Why a request got no answer: a status, what is wrong, and what to do about it.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use roofline_core::Error;
use schemars::JsonSchema;
use serde::Serialize;

use crate::failure::Failure;

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

    pub(super) fn detail(&self) -> &str {
        &self.detail
    }
}

/// A path means nothing to somebody who is not on this machine; what is there for them is a list.
const LISTS: &str =
    "GET /api/devices and /api/models list them; `bandwidth` and `peak` describe a device that is in no list";

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        let detail = failure.message();
        let (status, hint) = match &failure {
            Failure::Input(Error::Unknown { what: "device" | "model", .. }) => {
                (StatusCode::NOT_FOUND, Some(LISTS.to_owned()))
            }
            Failure::Input(error) => (StatusCode::BAD_REQUEST, error.hint()),
            Failure::Usage { hint, .. } => (StatusCode::BAD_REQUEST, hint.clone()),
            Failure::Check { .. } => (StatusCode::INTERNAL_SERVER_ERROR, None),
            Failure::Cancelled => (StatusCode::CONFLICT, None),
            Failure::Run(error) => (StatusCode::SERVICE_UNAVAILABLE, error.hint()),
            Failure::Quant(error) => (StatusCode::BAD_REQUEST, error.hint()),
            // Where files are is nobody's business who asks over HTTP.
            Failure::File { error, .. } | Failure::Output(error) => {
                let detail = format!("a file of the server could not be read or written: {error}");
                return Self { status: StatusCode::INTERNAL_SERVER_ERROR, detail, hint: None };
            }
        };
        Self { status, detail, hint }
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
