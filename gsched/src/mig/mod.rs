//! MIG: which empty GPUs are cut, and which are held back until they are.

pub mod cuts;
pub(crate) mod held_back;
pub(crate) mod hold;
