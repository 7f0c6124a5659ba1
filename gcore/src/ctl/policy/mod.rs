//! Accounts, users, QOS and reservations as operators edit them, and the faults that such an edit may bring.

pub(crate) mod commit;
pub(crate) mod edit;
pub(crate) mod faults;
pub(crate) mod merge;
