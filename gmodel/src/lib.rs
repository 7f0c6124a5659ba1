//! The vocabulary of gpupool: ids, requests, states, reasons, resources, times, configuration.
//!
//! Pure data and parsers: no I/O, no clock, no hash order. Every other crate speaks in these words.

pub mod array_spec;
pub mod binding;
pub mod blob_id;
pub mod checkpoint;
pub mod config;
pub mod constraint;
pub mod dependency;
pub mod directive;
pub mod duration;
pub mod exit_code;
pub mod expected;
pub mod gpu_check;
pub mod gpu_health;
pub mod gpu_link;
pub mod gpu_order;
pub mod gpu_request;
pub mod gpu_set;
pub mod gpu_use;
pub mod hostlist;
pub mod idle;
pub mod ids;
pub mod job;
pub mod launch_order;
pub mod licence;
pub mod mig;
pub mod node;
pub mod option_table;
mod own_keys;
pub mod pattern;
pub mod policy;
pub mod rare;
pub mod reason;
pub mod run;
pub mod shared;
pub mod signal;
pub mod size;
pub mod suggest;
pub mod supervise;
pub mod time;
pub mod time_zone;
pub mod topology;

pub use blob_id::BlobId;
pub use checkpoint::CheckpointSpec;
pub use dependency::Dependency;
pub use exit_code::ExitCode;
pub use gpu_set::{GpuGrant, GpuPart, GpuSet, GpuSlot};
pub use ids::{Fence, JobId, NodeId, NodeLife, RunId, Seq};
pub use job::{CommonSpec, JobSpec, JobState, Request, UserRef};
pub use policy::Policy;
pub use reason::{Reason, ReasonCode};
pub use run::RunClass;
pub use shared::Shared;
pub use time::{Instant, Timestamp};
pub use time_zone::TimeZone;
