//! Webhooks of the site: `GET /v1/webhooks`, `POST /v1/webhooks/{name}/resume`.

use gmodel::Instant;
use serde::{Deserialize, Serialize};

/// How a webhook stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WebhookRow {
    pub name: String,
    /// Without its path, which may be a secret.
    pub host: String,
    /// `delivering`, `retrying` or `parked`.
    pub state: String,
    /// All events up to here were delivered, or are not for it.
    pub after: String,
    /// Since the controller started.
    pub delivered: u64,
    pub failed_tries: u64,
    /// Of the delivery that is due: since when it fails, and how.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failing_since: Option<Instant>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WebhookResume {
    /// What waited is left out: it goes on with what comes.
    pub skip: bool,
}
