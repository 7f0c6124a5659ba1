//! Nodes: joining, reports and their bounds, drains, strikes, fencing, adoption after a restore.

pub(crate) mod admin;
pub(crate) mod adoption;
pub(crate) mod bounds;
pub(crate) mod breaker;
pub(crate) mod drain;
pub(crate) mod features;
pub(crate) mod fencing;
pub(crate) mod identity;
pub(crate) mod inventory;
pub(crate) mod join;
pub(crate) mod maintenance;
pub(crate) mod pause;
pub(crate) mod registration;
pub(crate) mod report;
pub(crate) mod strikes;
