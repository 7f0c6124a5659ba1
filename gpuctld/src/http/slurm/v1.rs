//! Questions to the routes of `/v1`, inside this process: rights, filters and bounds are theirs, whichever API is asked.

use super::error::SlurmError;
use crate::http::error::ApiError;
use crate::http::peer::Peer;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, Request};
use axum::response::Response;
use gwire::api::{ErrorBody, MAX_BODY_BYTES};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The most that is read of an answer that is taken as a whole.
const MAX_ANSWER_BYTES: usize = 256 << 20;

/// The routes of `/v1`, asked by one user.
pub(super) struct V1 {
    pub(super) routes: Router,
    pub(super) peer: Peer,
}

impl V1 {
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
        let request = Request::builder().method(method).uri(path);
        let mut request = request
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(body))
            .map_err(|error| SlurmError::unreadable(format!("{path}: {error}")))?;
        request.extensions_mut().insert(self.peer.clone());
        let answered = TowerToHyperService::new(self.routes.clone())
            .call(request)
            .await;
        let Ok(answer): Result<Response, _> = answered;
        let (head, body) = answer.into_parts();
        if head.status.is_success() {
            return Ok(body);
        }
        let text = to_bytes(body, MAX_BODY_BYTES).await.unwrap_or_default();
        let said = serde_json::from_slice::<ErrorBody>(&text).unwrap_or_else(|_| ErrorBody {
            error: String::from_utf8_lossy(&text).into_owned(),
            ..ErrorBody::default()
        });
        Err(SlurmError::from_v1(head.status, said))
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, SlurmError> {
        read(self.open(Method::GET, path, Vec::new()).await?).await
    }

    /// The rows under `key` of an answer.
    pub(super) async fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        key: &str,
    ) -> Result<Vec<T>, SlurmError> {
        let mut answer: Value = self.get(path).await?;
        serde_json::from_value(answer[key].take()).map_err(|error| odd(&error))
    }

    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, SlurmError> {
        let body = serde_json::to_vec(body).map_err(|error| odd(&error))?;
        read(self.open(Method::POST, path, body).await?).await
    }
}

async fn read<T: DeserializeOwned>(body: Body) -> Result<T, SlurmError> {
    let text = to_bytes(body, MAX_ANSWER_BYTES)
        .await
        .map_err(|error| odd(&error))?;
    serde_json::from_slice(&text).map_err(|error| odd(&error))
}

fn odd(error: &dyn std::error::Error) -> SlurmError {
    let text = format!("an answer of /v1 cannot be read: {error}; this is a bug");
    SlurmError::from(ApiError::unavailable(text))
}
