//! A `libnvidia-ml.so.1` with simulated GPUs: the C functions of NVML, answered from a JSON state file that may change at any
//! moment, so that the real NVML path of gpupool runs, and fails, on machines without a GPU. It never touches a device.
//! Source: NVIDIA's NVML API reference and `nvml.h` (through `nvml-wrapper-sys`); which functions exist is listed in README.md.

mod abi;
mod board;
mod check;
mod clients;
mod cuda;
mod fault;
mod host_seed;
mod kernel_log;
mod library;
mod mig;
mod reading;
mod reset;
mod state;
mod state_dir;
mod state_watch;

pub use board::{PROFILES, Profile, board, host, profile};
pub use check::check;
pub use clients::keep_out;
pub use fault::{Fault, apply_fault, find_gpu};
pub use kernel_log::{KERNEL_LOG_FILE, log_xid};
pub use mig::{MigProfile, cut, mig_minors, mig_profiles};
pub use reset::{reboot, reset};
pub use state::{
    ComputeInstance, ComputeMode, Counters, Driver, DriverState, Ecc, Event, EventKind, Fabric,
    FabricState, Faults, Gpu, GpuInstance, MAX_EVENTS, Process, ProcessKind, Readings,
    RetiredPages, RowRemap, State, Thresholds, Traffic,
};
pub use state_dir::{MIG_MINORS_FILE, STATE_FILE, StateError};

/// The environment variable that names the state file, or the directory that holds [`STATE_FILE`]. Without it the library
/// reads [`STATE_FILE`] in the directory it was itself loaded from.
pub const STATE_VARIABLE: &str = "NVML_SIM_STATE";
