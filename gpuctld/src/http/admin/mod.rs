//! For administrators: diagnosis, the checker, reload, backup, metrics, probes.

pub(crate) mod daemon;
pub(crate) mod probe;
pub(crate) mod reload_dry_run;
pub(crate) mod webhook;
