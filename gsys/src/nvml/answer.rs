//! The driver's answers: which errors mean that a question is not offered, that one GPU fails, or that the library must be opened anew.

use nvml_wrapper::error::{NvmlError as Answer, nvml_try};
use nvml_wrapper_sys::bindings::{
    nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH as VERSION_MISMATCH,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES as NO_RESOURCES, nvmlReturn_t,
};

use super::error::NvmlError;

/// `None` where the board, the driver or the library does not know the question.
pub fn if_offered<T>(answer: Result<T, Answer>) -> Result<Option<T>, Answer> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(
            Answer::NotSupported
            | Answer::InvalidArg
            | Answer::NotFound
            | Answer::FailedToLoadSymbol(_)
            | Answer::FunctionNotFound,
        ) => Ok(None),
        Err(Answer::NoPermission | Answer::UnexpectedVariant(_) | Answer::IncorrectBits(_)) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// A fact that a GPU can be used without: whatever the driver answers instead of it, the GPU is there. How it is its health says.
pub fn fact<T>(answer: Result<T, Answer>) -> Result<Option<T>, Answer> {
    match answer {
        Err(error) if !concerns_driver(&error) && !matches!(error, Answer::GpuLost) => Ok(None),
        other => other.map(Some),
    }
}

/// Errors that are not of one GPU: the library must be opened anew.
pub fn concerns_driver(error: &Answer) -> bool {
    matches!(
        error,
        Answer::Uninitialized | Answer::DriverNotLoaded | Answer::LibRmVersionMismatch
    )
}

pub fn whole_failure(doing: &'static str, error: Answer) -> NvmlError {
    if concerns_driver(&error) {
        NvmlError::Init(error.to_string())
    } else {
        NvmlError::Failed {
            doing,
            reason: error.to_string(),
        }
    }
}

/// An `nvmlReturn_t` as the wrapper's error, for functions that it does not wrap.
pub fn check(code: nvmlReturn_t) -> Result<(), Answer> {
    match code {
        // The wrapper has no word of its own for it.
        NO_RESOURCES => Err(Answer::InsufficientMemory),
        // A structure of a version that this driver does not know is a function that it does not know.
        VERSION_MISMATCH => Err(Answer::FunctionNotFound),
        code => nvml_try(code),
    }
}

/// The version that NVML's structures carry in their first field: `NVML_STRUCT_VERSION`.
pub const fn struct_version<T>(number: u32) -> u32 {
    size_of::<T>() as u32 | (number << 24)
}
