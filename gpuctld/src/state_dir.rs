//! Names of what several parts of the controller look for in the state directory.

/// The folder of the authority; without it every node joins again.
pub const PKI_DIR: &str = "pki";
