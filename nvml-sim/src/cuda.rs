//! The other library of the same file: a `libcuda.so.1` with the GPUs of the state, which really executes the PTX it is given. A fault
//! of a GPU shows in the results of kernels, in its memory, and in the time of copies.
//! Source: `cuda.h` and NVIDIA's CUDA driver API reference; which functions exist is listed in README.md.

mod abi;
mod context;
mod machine;
mod ptx;
mod visible;

/// A `CUresult`; as an error never 0.
pub type CudaCode = u32;

/// The errors that are given, with their names and CUDA's words for them.
macro_rules! errors {
    ($($name:ident = $code:literal $words:literal;)*) => {
        $(pub const $name: CudaCode = $code;)*

        /// Name and words, each NUL-terminated.
        fn described(code: CudaCode) -> Option<(&'static str, &'static str)> {
            match code {
                0 => Some(("CUDA_SUCCESS\0", "no error\0")),
                $($code => Some((concat!("CUDA_ERROR_", stringify!($name), "\0"), concat!($words, "\0"))),)*
                _ => None,
            }
        }
    };
}

errors! {
    INVALID_VALUE = 1 "invalid argument";
    OUT_OF_MEMORY = 2 "out of memory";
    NOT_INITIALIZED = 3 "initialization error";
    DEVICE_UNAVAILABLE = 46 "CUDA-capable device(s) is/are busy or unavailable";
    NO_DEVICE = 100 "no CUDA-capable device is detected";
    INVALID_DEVICE = 101 "invalid device ordinal";
    INVALID_CONTEXT = 201 "invalid device context";
    ECC_UNCORRECTABLE = 214 "uncorrectable ECC error encountered";
    INVALID_PTX = 218 "a PTX JIT compilation failed";
    NOT_FOUND = 500 "named symbol not found";
    ILLEGAL_ADDRESS = 700 "an illegal memory access was encountered";
    MISALIGNED_ADDRESS = 716 "misaligned address";
    PEER_ACCESS_ALREADY_ENABLED = 704 "peer access is already enabled";
    PEER_ACCESS_UNSUPPORTED = 217 "peer access is not supported between these two devices";
    SYSTEM_DRIVER_MISMATCH = 803 "system has unsupported display driver / cuda driver combination";
    UNKNOWN = 999 "unknown error";
}
