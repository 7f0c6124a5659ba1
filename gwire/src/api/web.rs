//! Links to the controller's pages: `POST /v1/web-links` and `/v1/web-sessions/end`.

use gmodel::Instant;
use serde::{Deserialize, Serialize};

/// A link that nobody took is good for so long, seconds.
pub const WEB_LINK_SECS: u32 = 300;

/// A link that logs one browser in, once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WebLinkReply {
    pub schema: u32,
    pub user: String,
    /// It is told this once.
    pub link: String,
    /// When it is good no more; the session that it begins lasts `session_secs`.
    pub expires: Instant,
    pub session_secs: u64,
}

/// The asker's sessions are over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WebLogoutReply {
    pub schema: u32,
    /// How many there were.
    pub ended: u32,
}
