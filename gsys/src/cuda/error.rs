//! Why CUDA did not do what it was asked, and whether that says something of the GPU.

/// Why CUDA did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    #[error("no CUDA driver here: {path} cannot be loaded ({reason})")]
    LibraryMissing { path: String, reason: String },
    #[error("{path} is too old: it has no {function}")]
    LibraryTooOld {
        path: String,
        function: &'static str,
    },
    /// `name` as the library says it, such as `CUDA_ERROR_ECC_UNCORRECTABLE`.
    #[error("{doing}: {name} ({code}){}", detail(words))]
    Call {
        doing: String,
        code: u32,
        name: String,
        words: String,
    },
}

fn detail(words: &str) -> String {
    if words.is_empty() {
        String::new()
    } else {
        format!(": {words}")
    }
}

/// Errors on a node with a sound GPU, `CUresult` of `cuda.h`: no memory, not initialised, no permission, a GPU that another process has
/// or that is missing, a driver that does not fit its kernel module or cannot compile the PTX, a fabric manager or MPS server that is
/// not ready.
const NOT_THE_GPUS: [u32; 28] = [
    1, 2, 3, 4, 34, 36, 46, 100, 101, 209, 216, 218, 221, 222, 223, 304, 500, 800, 801, 802, 803,
    804, 805, 806, 807, 808, 809, 810,
];
pub(crate) const OUT_OF_MEMORY: u32 = 2;
/// `CUDA_ERROR_UNKNOWN`. From `cuInit` it says that the driver is not whole, above all that /dev/nvidia-uvm is missing.
const UNKNOWN: u32 = 999;
pub(crate) const INITIALISING: &str = "initialising CUDA";

impl CudaError {
    /// Whether it says something of the GPU: an uncorrected error, a kernel that failed, an answer that means nothing else.
    pub fn blames_gpu(&self) -> bool {
        let is_init = |doing: &str, code: u32| code == UNKNOWN && doing == INITIALISING;
        matches!(self, CudaError::Call { code, doing, .. } if !NOT_THE_GPUS.contains(code) && !is_init(doing, *code))
    }

    pub fn is_out_of_memory(&self) -> bool {
        matches!(
            self,
            CudaError::Call {
                code: OUT_OF_MEMORY,
                ..
            }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::Cuda;

    fn call(code: u32) -> CudaError {
        CudaError::Call {
            doing: "waiting for a kernel".into(),
            code,
            name: "CUDA_ERROR_ECC_UNCORRECTABLE".into(),
            words: "uncorrectable ECC error encountered".into(),
        }
    }

    #[test]
    fn errors_carry_the_name_and_only_those_of_a_sick_gpu_blame_it() {
        assert_eq!(
            call(214).to_string(),
            "waiting for a kernel: CUDA_ERROR_ECC_UNCORRECTABLE (214): uncorrectable ECC error encountered"
        );
        assert!(call(214).blames_gpu() && call(719).blames_gpu() && call(999).blames_gpu());
        assert!(!call(2).blames_gpu() && call(2).is_out_of_memory());
        // A driver without nvidia-uvm is no sick GPU.
        let CudaError::Call {
            code, name, words, ..
        } = call(999)
        else {
            unreachable!()
        };
        assert!(
            !CudaError::Call {
                doing: INITIALISING.into(),
                code,
                name,
                words
            }
            .blames_gpu()
        );
        assert!(
            [46, 100, 221, 803]
                .iter()
                .all(|code| !call(*code).blames_gpu())
        );
    }

    #[test]
    fn a_library_that_is_not_there_is_a_clear_word() {
        let error = Cuda::load("/nowhere/libcuda.so.1".as_ref()).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("no CUDA driver here: /nowhere/libcuda.so.1 cannot be loaded ("),
            "{text}"
        );
        assert!(!error.blames_gpu());
        // One that is a library, and another.
        let error = Cuda::load("libc.so.6".as_ref()).unwrap_err();
        assert_eq!(error.to_string(), "libc.so.6 is too old: it has no cuInit");
    }
}
