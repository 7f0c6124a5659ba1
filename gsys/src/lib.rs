//! Linux and GPUs, for the node daemon and the per-job supervisor: cgroups (v1, v2, hybrid), the GPU device
//! fence, starting a process as a user, and NVML. The only `unsafe` of the daemons is here. It decides nothing:
//! which GPUs a run owns, which limits it has and when it dies is told by the caller.

pub mod access;
pub mod caps;
pub mod cgroup;
pub mod clock;
pub mod cpu;
pub mod cuda;
pub mod descriptor;
pub mod device_fence;
pub mod device_node;
pub mod durable_file;
pub mod launch;
pub mod mount;
pub mod nvml;
pub mod pam;
pub mod peer;
pub mod pmix;
pub mod process;
pub mod removal;
pub mod small_file;
pub mod user;
