//! How many letters went since the controller started: written by `mail`, read by `/metrics`.

use std::sync::atomic::AtomicU64;

/// Counts since the controller started, for `/metrics`.
#[derive(Debug, Default)]
pub struct MailCounts {
    pub sent: AtomicU64,
    /// Letters that the server will never take, and those over `per_user_hour`.
    pub dropped: AtomicU64,
    /// Tries that found no usable server.
    pub failed_tries: AtomicU64,
}
