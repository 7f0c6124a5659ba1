//! Accounts, users, QOS, reservations and licences over the API, a file for each noun; [`edit`] is what edits have in common.

pub(crate) mod account;
pub(crate) mod borrow;
pub(crate) mod check;
pub(crate) mod edit;
pub(crate) mod history;
pub(crate) mod licence;
pub(crate) mod partition;
pub(crate) mod qos;
pub(crate) mod record;
pub(crate) mod reservation;
pub(crate) mod row;
pub(crate) mod share;
pub(crate) mod text;
