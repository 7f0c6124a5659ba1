//! Explanations: everything that blocks a job, and the smallest change of its request that would start it.

pub mod answer;
pub mod change;
pub mod explanation;
