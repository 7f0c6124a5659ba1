//! GPUs: orders, checks, repair, history, MIG cuts, shares, and IMEX channels.

pub(crate) mod check;
pub(crate) mod history;
pub(crate) mod imex;
pub(crate) mod mig;
pub(crate) mod missing;
pub(crate) mod order;
pub(crate) mod outlier;
pub(crate) mod repair;
pub(crate) mod share;
