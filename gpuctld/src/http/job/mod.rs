//! Jobs over the API: the queue and its rows, one job in full, submission, and what is done to jobs by name.

pub(crate) mod allocation;
pub(crate) mod alternatives;
pub(crate) mod cancel;
pub(crate) mod column;
pub(crate) mod control;
pub(crate) mod demand;
pub(crate) mod dry_run;
pub(crate) mod filter;
mod home;
pub(crate) mod list;
pub(crate) mod log;
pub(crate) mod name;
pub(crate) mod priority;
pub(crate) mod rank;
pub(crate) mod resources;
pub(crate) mod row;
pub(crate) mod show;
pub(crate) mod submit;
pub(crate) mod submit_hook;
