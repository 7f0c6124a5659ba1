//! Questions to the routes of `/v1`, inside this process: rights, filters and bounds are theirs, whichever way was asked.

use crate::http::error::ApiError;
use crate::http::peer::Peer;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, Request, StatusCode};
use axum::response::Response;
use gwire::api::{ErrorBody, MAX_BODY_BYTES, SCHEMA};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The most that is read of an answer that is taken as a whole.
const MAX_ANSWER_BYTES: usize = 256 << 20;

/// The routes of `/v1`, asked by one user.
pub(crate) struct Inside {
    pub(crate) routes: Router,
    pub(crate) peer: Peer,
}

/// What `/v1` answered in place of what was asked for.
#[derive(Clone, Debug)]
pub(crate) struct InsideError {
    pub(crate) status: StatusCode,
    pub(crate) said: ErrorBody,
}

impl Inside {
    /// The answer's body, which comes piece by piece.
    ///
    /// # Errors
    /// As `/v1` refused it.
    pub(crate) async fn open(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<Body, InsideError> {
        let request = Request::builder().method(method).uri(path);
        let mut request = request
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(body))
            .map_err(|error| ApiError::invalid(format!("{path}: {error}")))?;
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
        Err(InsideError {
            status: head.status,
            said,
        })
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, InsideError> {
        read(self.open(Method::GET, path, Vec::new()).await?).await
    }

    /// The rows under `key` of an answer.
    pub(crate) async fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        key: &str,
    ) -> Result<Vec<T>, InsideError> {
        let mut answer: Value = self.get(path).await?;
        serde_json::from_value(answer[key].take()).map_err(|error| odd(&error))
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, InsideError> {
        let body = serde_json::to_vec(body).map_err(|error| odd(&error))?;
        read(self.open(Method::POST, path, body).await?).await
    }
}

impl From<ApiError> for InsideError {
    fn from(error: ApiError) -> Self {
        Self {
            status: error.status,
            said: ErrorBody {
                schema: SCHEMA,
                error: error.text,
                ..ErrorBody::default()
            },
        }
    }
}

async fn read<T: DeserializeOwned>(body: Body) -> Result<T, InsideError> {
    let text = to_bytes(body, MAX_ANSWER_BYTES)
        .await
        .map_err(|error| odd(&error))?;
    serde_json::from_slice(&text).map_err(|error| odd(&error))
}

fn odd(error: &dyn std::error::Error) -> InsideError {
    let text = format!("an answer of /v1 cannot be read: {error}; this is a bug");
    ApiError::unavailable(text).into()
}
