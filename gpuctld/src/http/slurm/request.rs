//! What a handler of Slurm's routes is given, and what it answers.

use super::error::SlurmError;
use super::question::Query;
use super::v1::V1;
use axum::body::Body;
use gslurm_json::document::{Meta, number_value};
use serde_json::Value;
use std::sync::Arc;

/// What a handler is given.
pub(super) struct RestRequest {
    pub(super) v1: V1,
    pub(super) cluster: Arc<str>,
    pub(super) version: String,
    pub(super) command: Vec<String>,
    pub(super) body: Vec<u8>,
}

/// What an answer has beside `meta`, errors and warnings: keys with their values.
pub(super) type Parts = Vec<(&'static str, Value)>;

/// A document, or a listing that comes piece by piece.
pub(super) enum Answer {
    Parts(Parts),
    Listing(Body),
}

impl RestRequest {
    /// All of a document but its records, once the query is read.
    pub(super) fn tail(&self, times: &[&str], query: &Query) -> Value {
        let meta = Meta {
            cluster: &self.cluster,
            data_parser: &self.version,
            command: self.command.clone(),
            source: "",
            user: self.v1.peer.user.clone(),
            group: self.v1.peer.gid.to_string(),
        };
        let mut tail = meta.tail(times, crate::core_thread::now());
        tail["warnings"] = query.warnings();
        tail
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// It is none.
    pub(super) fn json(&self) -> Result<Value, SlurmError> {
        serde_json::from_slice(&self.body).map_err(|error| {
            SlurmError::unreadable(format!("the body is no JSON: {error}")).of("body")
        })
    }
}

/// Now, for `last_update`.
pub(super) fn now() -> Value {
    let secs = crate::core_thread::now().secs();
    number_value(u64::try_from(secs).ok())
}
