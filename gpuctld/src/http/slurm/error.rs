//! Errors as slurmrestd says them: a number, Slurm's sentence for it, ours, and an HTTP status.
//!
//! Source: slurm_errno.h of Slurm 25.05, and the statuses that slurmrestd of 26.05 gives.

use crate::http::error::ApiError;
use axum::http::StatusCode;
use gcli::slurm_words::sentence;
use gmodel::RefusalKind;
use gwire::api::ErrorBody;
use serde_json::{Value, json};

/// A request that is not carried out, and why.
#[derive(Clone, Debug)]
pub(super) struct SlurmError {
    pub(super) status: StatusCode,
    pub(super) number: u32,
    /// Slurm's sentence.
    pub(super) error: String,
    pub(super) description: String,
    /// What of the request it is about.
    pub(super) source: String,
}

impl SlurmError {
    fn new(status: StatusCode, number: u32, error: &str, description: impl Into<String>) -> Self {
        Self {
            status,
            number,
            error: error.to_owned(),
            description: description.into(),
            source: "gpuctld".to_owned(),
        }
    }

    /// The same, about this part of the request.
    pub(super) fn of(self, source: impl Into<String>) -> Self {
        Self {
            source: source.into(),
            ..self
        }
    }

    pub(super) fn no_such_path(text: impl Into<String>) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            9006,
            "Unable to find requested URL",
            text,
        )
    }

    pub(super) fn wrong_method(text: impl Into<String>) -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            9007,
            "Requested HTTP query method is not supported at URL endpoint",
            text,
        )
    }

    pub(super) fn unauthorised(text: impl Into<String>) -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            9008,
            "Authentication failure",
            text,
        )
    }

    /// A query or a body that cannot be read.
    pub(super) fn unreadable(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, 9001, "Unable to parse query", text)
    }

    pub(super) fn too_large(text: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, 9205, "Data too large", text)
    }

    /// What Slurm does there and gpupool does otherwise, or not.
    pub(super) fn not_done(text: impl Into<String>) -> Self {
        Self::about(RefusalKind::NotSupported, text).with_status(StatusCode::NOT_IMPLEMENTED)
    }

    fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// A refusal of this kind.
    pub(super) fn about(about: RefusalKind, text: impl Into<String>) -> Self {
        let status = match about {
            RefusalKind::Job => StatusCode::NOT_FOUND,
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        let error = sentence(about).unwrap_or("Unspecified error");
        Self::new(status, number(about), error, text)
    }

    /// As `/v1` refused it.
    pub(super) fn from_v1(status: StatusCode, body: ErrorBody) -> Self {
        let own = Self::about(body.about, body.error);
        match status {
            _ if status.is_server_error() => own.with_status(status),
            StatusCode::PAYLOAD_TOO_LARGE => own.with_status(status),
            _ => own,
        }
    }

    pub(super) fn json(&self) -> Value {
        json!({"description": self.description, "error_number": self.number, "error": self.error, "source": self.source})
    }
}

impl From<ApiError> for SlurmError {
    fn from(error: ApiError) -> Self {
        let own = Self::about(error.about, error.text);
        match error.status.is_server_error() {
            true => own.with_status(error.status),
            false => own,
        }
    }
}

/// Slurm's number for a kind of refusal.
fn number(about: RefusalKind) -> u32 {
    use RefusalKind as K;
    match about {
        K::Partition => 2000,
        K::NoPartition => 2001,
        K::Access => 2002,
        K::PartitionAccess => 2003,
        K::TooManyNodes => 2005,
        K::NodeCount => 2006,
        K::NodeConfiguration => 2014,
        K::NodesBusy => 2016,
        K::Job => 2017,
        K::NodeName => 2018,
        K::JobOver => 2021,
        K::JobPending => 2024,
        K::TaskCount => 2025,
        K::NodeState => 2028,
        K::Feature => 2029,
        K::NotSupported => 2036,
        K::Dependency => 2038,
        K::Account => 2045,
        K::Licence => 2048,
        K::PolicyLimit | K::QueueFull => 2050,
        K::TimeLimit => 2051,
        K::ReservationAccess => 2052,
        K::Reservation => 2053,
        K::Time => 2054,
        K::ReservationBusy => 2055,
        K::ReservationOverlap => 2058,
        K::Qos => 2066,
        K::PartitionClosed => 2070,
        K::Gpus => 2072,
        K::JobRuns => 2073,
        K::PartitionInUse => 2075,
        K::Array => 2081,
        K::ReservationExists => 2082,
        K::TimeMin => 2124,
        // SLURM_ERROR
        K::Other => u32::MAX,
    }
}
