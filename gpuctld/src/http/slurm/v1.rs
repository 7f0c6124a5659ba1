//! Questions to the routes of `/v1`, with refusals as slurmrestd says them.

use super::error::SlurmError;
use crate::http::inside::{Inside, InsideError};
use crate::http::peer::Peer;
use axum::Router;
use axum::body::Body;
use axum::http::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The routes of `/v1`, asked by one user.
pub(super) struct V1 {
    inside: Inside,
    pub(super) peer: Peer,
}

impl V1 {
    pub(super) fn new(routes: Router, peer: Peer) -> Self {
        Self {
            inside: Inside {
                routes,
                peer: peer.clone(),
            },
            peer,
        }
    }

    /// The answer's body, which comes piece by piece.
    ///
    /// # Errors
    /// As `/v1` refused it.
    pub(super) async fn open(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<Body, SlurmError> {
        Ok(self.inside.open(method, path, body).await?)
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, SlurmError> {
        Ok(self.inside.get(path).await?)
    }

    /// The rows under `key` of an answer.
    pub(super) async fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        key: &str,
    ) -> Result<Vec<T>, SlurmError> {
        Ok(self.inside.list(path, key).await?)
    }

    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, SlurmError> {
        Ok(self.inside.post(path, body).await?)
    }
}

impl From<InsideError> for SlurmError {
    fn from(error: InsideError) -> Self {
        Self::from_v1(error.status, error.said)
    }
}
