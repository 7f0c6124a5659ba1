//! Tokens of users: `GET` and `POST /v1/user-tokens`, `POST /v1/user-tokens/{id}/revoke`.

use gmodel::{Instant, Scope, TokenId};
use serde::{Deserialize, Serialize};

/// The token that is wanted. What is left out is not limited, but for `jobs`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UserTokenRequest {
    /// The user it is for; absent: the asker. For another user only operators may ask.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    pub scopes: Vec<Scope>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accounts: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<String>,
    /// Seconds until it expires; required.
    pub ttl_secs: u64,
    /// GPU-seconds that its jobs may use in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_secs: Option<u64>,
    /// Jobs in the queue and running; absent: 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jobs: Option<u32>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UserTokenReply {
    pub schema: u32,
    pub id: TokenId,
    pub user: String,
    /// The text that its holder keeps. It is told this once.
    pub token: String,
    pub expires: Instant,
    /// `https://HOST:PORT` for `controller` of gpupool.toml.
    pub controller: String,
}

/// Whether a token may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenState {
    #[default]
    Live,
    Expired,
    Revoked,
}

/// A token without what proves it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UserTokenRow {
    pub id: TokenId,
    pub user: String,
    pub state: TokenState,
    pub scopes: Vec<Scope>,
    /// Empty: all.
    pub accounts: Vec<String>,
    /// Empty: all.
    pub partitions: Vec<String>,
    pub expires: Instant,
    /// The cap; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_secs: Option<u64>,
    /// Charged by runs that are over.
    pub gpu_secs_used: u64,
    /// What jobs in the queue and running may still use by their limits.
    pub gpu_secs_promised: u64,
    /// The cap of jobs in the queue and running.
    pub jobs: u32,
    pub jobs_now: u64,
    pub note: String,
    pub made: Instant,
    pub made_by: String,
    /// The day, UTC, in which it was last used; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_on: Option<Instant>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<Instant>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revoked_by: String,
}
