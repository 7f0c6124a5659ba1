//! A `libnvidia-ml.so.1` with simulated GPUs: the C functions of NVML, answered from a JSON state file that may change at any
//! moment, so that the real NVML path of gpupool runs, and fails, on machines without a GPU. It never touches a device.
//! Source: NVIDIA's NVML API reference and `nvml.h` (through `nvml-wrapper-sys`); which functions exist is listed in README.md.

mod abi;
mod board;
mod fault;
mod library;
mod state;

pub use board::{PROFILES, Profile, board, host, profile};
pub use fault::{Fault, apply_fault, find_gpu};
pub use state::{
    ComputeMode, Driver, DriverState, Ecc, Event, EventKind, Faults, Gpu, MAX_EVENTS, Process,
    ProcessKind, Readings, RowRemap, STATE_FILE, State, StateError,
};

/// The environment variable that names the state file, or the directory that holds [`STATE_FILE`]. Without it the library
/// reads [`STATE_FILE`] in the directory it was itself loaded from.
pub const STATE_VARIABLE: &str = "NVML_SIM_STATE";
