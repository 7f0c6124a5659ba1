//! For administrators: diagnosis, the checker, reload, backup, metrics.

pub(crate) mod daemon;
pub(crate) mod reload_dry_run;
