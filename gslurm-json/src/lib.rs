//! Records as programs for Slurm read them: all keys of Slurm's data_parser v0.0.43 (25.05), made of rows of the REST API.
//!
//! Owns the keys, the values and the document around them. The commands under Slurm's names print them, the controller's REST routes answer
//! them. A key of which gpupool knows nothing has the value that Slurm gives what is not set.

pub mod accounting;
pub mod association;
pub mod controller;
pub mod datum;
pub mod document;
pub mod job;
pub mod node;
pub mod partition;
pub mod reservation;
pub mod run;
#[cfg(test)]
mod shape_tests;
pub mod step;
pub mod tres;
pub mod value;
