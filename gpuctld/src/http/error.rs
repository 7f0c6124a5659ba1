//! Errors as the API says them: an [`ErrorBody`] with the status that belongs to its code.
//!
//! Owns the mapping of the core's refusals and the store's failures; the texts come from where they arise.

use crate::store::ReadError;
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use gcore::ctl::{Refusal, RefusalCode};
use gmodel::RefusalKind;
use gwire::api::{ErrorBody, SCHEMA};

/// A request that is not carried out, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ApiError {
    pub status: StatusCode,
    pub code: &'static str,
    pub text: String,
    pub about: RefusalKind,
    /// The name of what it is about, or empty.
    pub subject: String,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, text: impl Into<String>) -> Self {
        Self {
            status,
            code,
            text: text.into(),
            about: RefusalKind::Other,
            subject: String::new(),
        }
    }
    /// The same, of this kind and of the thing with this name.
    pub fn about(self, about: RefusalKind, subject: impl Into<String>) -> Self {
        Self {
            about,
            subject: subject.into(),
            ..self
        }
    }
    pub fn not_found(text: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", text)
    }
    pub fn denied(text: impl Into<String>) -> Self {
        Self {
            about: RefusalKind::Access,
            ..Self::new(StatusCode::FORBIDDEN, "denied", text)
        }
    }
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid", text)
    }
    pub fn conflict(text: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", text)
    }
    pub fn limit(text: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "limit", text)
    }
    pub fn gone(text: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "gone", text)
    }
    pub fn unavailable(text: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", text)
    }
    pub fn wrong_method(text: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid", text)
    }
    pub fn too_large(text: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "limit", text)
    }
}

/// The code of a refusal, as the API spells it.
pub(crate) fn refusal_code(code: RefusalCode) -> &'static str {
    match code {
        RefusalCode::NotFound => "not_found",
        RefusalCode::Denied => "denied",
        RefusalCode::Invalid => "invalid",
        RefusalCode::Conflict => "conflict",
        RefusalCode::Limit => "limit",
        RefusalCode::Unavailable | RefusalCode::Unknown => "unavailable",
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let Refusal {
            code,
            text,
            about,
            subject,
        } = refusal;
        let error = match code {
            RefusalCode::NotFound => Self::not_found(text),
            RefusalCode::Denied => Self::denied(text),
            RefusalCode::Invalid => Self::invalid(text),
            RefusalCode::Conflict => Self::conflict(text),
            RefusalCode::Limit => Self::limit(text),
            RefusalCode::Unavailable | RefusalCode::Unknown => Self::unavailable(text),
        };
        error.about(about, subject)
    }
}

impl From<ReadError> for ApiError {
    fn from(error: ReadError) -> Self {
        if let Some(text) = error.question() {
            return Self::invalid(text);
        }
        let text = with_sources(&error);
        tracing::error!(error = text, "the database did not answer");
        Self::unavailable(format!("the accounting database did not answer: {text}"))
    }
}

impl From<JsonRejection> for ApiError {
    fn from(rejection: JsonRejection) -> Self {
        match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                let text = "the request is too large. A script may have 4 MiB, its environment and its arguments 1 MiB each";
                Self::too_large(text)
            }
            _ => Self::invalid(format!(
                "the request's body cannot be read: {}",
                rejection.body_text()
            )),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = ErrorBody {
            schema: SCHEMA,
            code: self.code.to_owned(),
            error: self.text,
            about: self.about,
            subject: self.subject,
        };
        (self.status, Json(body)).into_response()
    }
}

/// An error and what caused it, in one line.
pub(crate) fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
