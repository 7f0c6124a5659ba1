//! Steps over the API: started, signalled, ended, listed; their streams.

pub(crate) mod kept_output;
pub(crate) mod list;
pub(crate) mod live_use;
pub(crate) mod output;
pub(crate) mod signal;
pub(crate) mod start;
pub(crate) mod stream;
pub(crate) mod stream_exchange;
