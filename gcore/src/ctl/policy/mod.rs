//! Accounts, users, QOS, reservations and partitions as operators edit them, and the faults that such an edit may bring.

pub(crate) mod commit;
pub(crate) mod edit;
pub(crate) mod faults;
pub(crate) mod merge;
pub(crate) mod partition;
