//! Forecasts over the API: when a job starts, what blocks it, what would start it.

pub(crate) mod plan;
pub(crate) mod why;
