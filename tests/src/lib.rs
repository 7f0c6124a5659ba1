//! Tests of the whole workspace: real daemons, command lines, compatibility, and the tidiness of the tree.

pub mod followed_output;
pub mod gpu_faults;
pub mod gpu_run;
pub mod hostile;
pub mod image;
pub mod namespace;
pub mod person;
pub mod pool;
pub mod registry;
pub mod source_tree;
pub mod sshd;
