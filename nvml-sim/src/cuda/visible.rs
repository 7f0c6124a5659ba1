//! Which of the simulated GPUs a process sees: those that `CUDA_VISIBLE_DEVICES` leaves and whose device file it may open, where the
//! state directory has such files in `dev`. A driver leaves out the others without a word, and so does this.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use super::{Code, NO_DEVICE, SYSTEM_DRIVER_MISMATCH, UNKNOWN};
use crate::library;
use crate::state::{Gpu, State};

/// UUIDs in CUDA's order. None at all is an error, as with a driver.
pub fn visible() -> Result<Vec<String>, Code> {
    library::initialise().map_err(of_nvml)?;
    let state = library::state().map_err(of_nvml)?;
    let dev = library::directory().join("dev");
    let may_open = |gpu: &&Gpu| ["nvidiactl", "nvidia-uvm", &format!("nvidia{}", gpu.minor)].iter().all(|name| opens(&dev.join(name)));
    let there = |gpu: &&Gpu| !gpu.faults.missing && !gpu.faults.lost && !gpu.mig_enabled;
    let gpus: Vec<&Gpu> = state.gpus.iter().filter(there).filter(may_open).collect();
    let uuids = chosen(&gpus, std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref());
    if uuids.is_empty() { Err(NO_DEVICE) } else { Ok(uuids) }
}

/// The GPU as the state has it now.
pub fn gpu_now<T>(uuid: &str, look: impl FnOnce(&State, &Gpu) -> T) -> Result<T, Code> {
    let state = library::state().map_err(of_nvml)?;
    let gpu = state.gpus.iter().find(|gpu| gpu.uuid == uuid).ok_or(UNKNOWN)?;
    Ok(look(&state, gpu))
}

/// In the order the variable has them; the first that is not there ends the list.
fn chosen(gpus: &[&Gpu], variable: Option<&str>) -> Vec<String> {
    let Some(variable) = variable else { return gpus.iter().map(|gpu| gpu.uuid.clone()).collect() };
    let find = |word: &str| match word.parse::<usize>() {
        Ok(at) => gpus.get(at).map(|gpu| gpu.uuid.clone()),
        Err(_) => gpus.iter().find(|gpu| word.starts_with("GPU-") && gpu.uuid.starts_with(word)).map(|gpu| gpu.uuid.clone()),
    };
    variable.split(',').map(|word| find(word.trim())).take_while(Option::is_some).flatten().collect()
}

/// No driver is behind the files of a simulated GPU: whoever may open one is told so, the others that they may not.
fn opens(path: &Path) -> bool {
    match File::options().read(true).write(true).open(path) {
        Ok(_) => true,
        Err(e) => e.kind() != ErrorKind::PermissionDenied,
    }
}

/// What CUDA says where NVML says so.
fn of_nvml(code: library::Code) -> Code {
    use nvml_wrapper_sys::bindings::{nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED as NOT_LOADED, nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH as MISMATCH};
    match code {
        NOT_LOADED => NO_DEVICE,
        MISMATCH => SYSTEM_DRIVER_MISMATCH,
        _ => UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuda_visible_devices_is_read_as_cuda_reads_it() {
        let state = crate::host(&[("h100", 3)], "seed", 0).unwrap();
        let gpus: Vec<&Gpu> = state.gpus.iter().collect();
        let [a, b, c] = [0, 1, 2].map(|at| state.gpus[at].uuid.clone());
        assert_eq!(chosen(&gpus, None), [a.clone(), b.clone(), c.clone()]);
        assert_eq!(chosen(&gpus, Some(&format!("{c}, 0"))), [c, a.clone()]);
        assert_eq!(chosen(&gpus, Some("0,7,1")), [a]);
        assert_eq!(chosen(&gpus, Some(&b[..12])), [b]);
        assert!(chosen(&gpus, Some("")).is_empty());
    }
}
