//! NVIDIA's CUDA driver API, loaded at run time: the GPUs a process may use, memory on them, and the kernels of gpupool's own
//! checks. For a program of its own, never for a daemon: a call may not return, and only the end of the process ends it. Decides
//! nothing about a GPU. Source: NVIDIA's CUDA driver API reference; no toolkit is needed, neither to build nor to run.

mod context;
mod error;
mod kernels;
mod library;

pub use context::{Context, DeviceMemory, PinnedMemory};
pub use error::CudaError;
pub use kernels::{CheckKernels, Pattern, SweepReport};
pub use library::{Cuda, Gpu};

/// The name under which the driver installs the library.
pub const DEFAULT_LIBRARY: &str = "libcuda.so.1";

/// The kernels' text, which the driver compiles for the board it meets.
pub const CHECK_PTX: &str = include_str!("cuda/checks.ptx");
