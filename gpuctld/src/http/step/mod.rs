//! Steps over the API: started, ended, listed.

pub(crate) mod list;
pub(crate) mod live_use;
pub(crate) mod start;
