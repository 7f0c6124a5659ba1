//! The simulated GPUs that a process sees: those that `CUDA_VISIBLE_DEVICES` leaves, with a device file that the process may open, where
//! the state directory has such files in `dev`. Other GPUs are left out silently, as by a driver.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use super::{CudaCode, NO_DEVICE, SYSTEM_DRIVER_MISMATCH, UNKNOWN};
use crate::library;
use crate::state::{Gpu, State};

/// What CUDA takes for a GPU: one, or a MIG slice of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisibleGpu {
    /// The GPU's.
    pub uuid: String,
    /// Eighths of its memory.
    pub eighths: u32,
}

/// In CUDA's order. None at all is an error, as with a driver.
pub fn visible() -> Result<Vec<VisibleGpu>, CudaCode> {
    library::initialise().map_err(of_nvml)?;
    let state = library::state().map_err(of_nvml)?;
    let dev = library::directory().join("dev");
    let has_files = dev.join("nvidiactl").exists();
    let may_open = |gpu: &&Gpu| {
        !has_files
            || ["nvidiactl", "nvidia-uvm", &format!("nvidia{}", gpu.minor)]
                .iter()
                .all(|name| dev.join(name).exists() && opens(&dev.join(name)))
    };
    let there = |gpu: &&Gpu| !gpu.faults.missing && !gpu.faults.lost;
    let mut gpus: Vec<&Gpu> = state.gpus.iter().filter(there).filter(may_open).collect();
    in_cudas_order(
        &mut gpus,
        std::env::var("CUDA_DEVICE_ORDER").ok().as_deref(),
    );
    let seen = chosen(&gpus, std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref());
    if seen.is_empty() {
        Err(NO_DEVICE)
    } else {
        Ok(seen)
    }
}

/// The GPU as the state has it now.
pub fn gpu_now<T>(uuid: &str, look: impl FnOnce(&State, &Gpu) -> T) -> Result<T, CudaCode> {
    let state = library::state().map_err(of_nvml)?;
    let gpu = state
        .gpus
        .iter()
        .find(|gpu| gpu.uuid == uuid)
        .ok_or(UNKNOWN)?;
    Ok(look(&state, gpu))
}

/// By PCI address where that is asked for; else the fastest first.
fn in_cudas_order(gpus: &mut [&Gpu], asked: Option<&str>) {
    gpus.sort_by(|a, b| a.pci_bus_id.cmp(&b.pci_bus_id));
    if asked != Some("PCI_BUS_ID") {
        gpus.sort_by_key(|gpu| std::cmp::Reverse(gpu.multiprocessors));
    }
}

/// In the order the variable has them; the first that is not there ends the list. A slice is seen only where it is named, and then
/// alone.
fn chosen(gpus: &[&Gpu], variable: Option<&str>) -> Vec<VisibleGpu> {
    let whole: Vec<VisibleGpu> = gpus
        .iter()
        .filter(|gpu| !gpu.mig_enabled)
        .map(|gpu| VisibleGpu {
            uuid: gpu.uuid.clone(),
            eighths: 8,
        })
        .collect();
    let Some(variable) = variable else {
        return whole;
    };
    let words = variable.split(',').map(str::trim);
    if let Some(slice) = words.clone().next().filter(|word| word.starts_with("MIG-")) {
        let found = gpus.iter().find_map(|gpu| {
            library::part_of(gpu, slice).map(|part| VisibleGpu {
                uuid: gpu.uuid.clone(),
                eighths: part.instance.size,
            })
        });
        return found.into_iter().collect();
    }
    let find = |word: &str| match word.parse::<usize>() {
        Ok(at) => whole.get(at).cloned(),
        Err(_) => whole
            .iter()
            .find(|gpu| word.starts_with("GPU-") && gpu.uuid.starts_with(word))
            .cloned(),
    };
    words
        .map(find)
        .take_while(Option::is_some)
        .flatten()
        .collect()
}

/// No driver is behind the files of a simulated GPU: opening one fails as missing, or as forbidden.
fn opens(path: &Path) -> bool {
    match File::options().read(true).write(true).open(path) {
        Ok(_) => true,
        Err(e) => e.kind() != ErrorKind::PermissionDenied,
    }
}

/// What CUDA says where NVML says so.
fn of_nvml(code: library::Code) -> CudaCode {
    use nvml_wrapper_sys::bindings::{
        nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED as NOT_LOADED,
        nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH as MISMATCH,
    };
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
        let mut state = crate::host(&[("h100", 3)], "seed", 0).unwrap();
        crate::apply_fault(&mut state, 2, "mig 1g.10gb,3g.40gb".parse().unwrap()).unwrap();
        let gpus: Vec<&Gpu> = state.gpus.iter().collect();
        let [a, b] = [0, 1].map(|at| VisibleGpu {
            uuid: state.gpus[at].uuid.clone(),
            eighths: 8,
        });
        assert_eq!(chosen(&gpus, None), [a.clone(), b.clone()]);
        assert_eq!(
            chosen(&gpus, Some(&format!("{}, 0", b.uuid))),
            [b.clone(), a.clone()]
        );
        assert_eq!(chosen(&gpus, Some("0,7,1")), [a]);
        assert_eq!(chosen(&gpus, Some(&b.uuid[..12])), [b]);
        assert!(
            chosen(&gpus, Some("")).is_empty()
                && chosen(&gpus, Some(&state.gpus[2].uuid)).is_empty()
        );
        let slice = state.gpus[2]
            .mig_instances
            .iter()
            .find(|instance| instance.size == 4)
            .unwrap();
        let seen = chosen(&gpus, Some(&format!("{},0", slice.compute[0].uuid)));
        assert_eq!(
            seen,
            [VisibleGpu {
                uuid: state.gpus[2].uuid.clone(),
                eighths: 4
            }]
        );
    }

    #[test]
    fn cuda_counts_by_address_only_where_it_is_asked_to() {
        let state = crate::host(&[("l4", 1), ("h100", 1), ("l4", 1)], "seed", 0).unwrap();
        let order = |asked: Option<&str>| {
            let mut gpus: Vec<&Gpu> = state.gpus.iter().collect();
            in_cudas_order(&mut gpus, asked);
            gpus
        };
        assert!(order(Some("PCI_BUS_ID")).is_sorted_by_key(|gpu| &gpu.pci_bus_id));
        let fastest_first = order(None);
        assert_eq!(fastest_first[0].profile, "h100");
        assert!(fastest_first[1..].is_sorted_by_key(|gpu| &gpu.pci_bus_id));
    }
}
