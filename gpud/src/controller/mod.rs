//! Everything between this node and the controller: the certificate, the connection, the reports on it, and requests of local users.

pub mod forward;
pub mod identity;
pub mod link;
pub mod report;
