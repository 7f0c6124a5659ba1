//! One run on this node, from its order to its last trace: made ready, supervised, ended, cleaned up.

pub mod clean;
pub mod cpu_binding;
pub mod end;
pub mod failure;
pub mod fence_audit;
pub mod image_pull;
pub mod live_use;
pub mod login;
pub mod output;
pub mod output_keeper;
pub mod prepare;
pub mod stand_by;
pub mod standstill;
pub mod step_link;
pub mod stream;
pub mod supervisor;
