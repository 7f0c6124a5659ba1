//! The node's wall clock: its stamps are for display, the controller computes ages by its own clock.

use gmodel::Timestamp;
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since the epoch.
pub fn wall_clock() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(since.as_millis() as i64)
}
