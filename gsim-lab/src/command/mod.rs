//! The commands of `gsim-lab`, one for each experiment.

pub mod forecast;
pub mod frag;
pub mod plots;
pub mod reclaim;
pub mod slices;
