//! What `nvidia-smi --gpu-reset` and a reboot do to simulated GPUs: which faults end with them and which do not.
//! Source: the recovery actions of NVIDIA's Xid document, and what the driver keeps over a reset (aggregate counters, rows).

use crate::mig;
use crate::state::{Ecc, FabricState, Gpu, Process, Readings, State};

/// Resets one GPU. A GPU in use is not reset, and one that is gone from the bus cannot be.
pub fn reset(state: &mut State, slot: usize) -> Result<(), String> {
    let Some(gpu) = state.gpus.get_mut(slot) else {
        return Err(format!(
            "no GPU gpu{slot}: this host has {}",
            state.gpus.len()
        ));
    };
    if !gpu.processes.is_empty() {
        let pids: Vec<String> = gpu
            .processes
            .iter()
            .map(|process| process.pid.to_string())
            .collect();
        return Err(format!(
            "gpu{slot} is in use by process {}; a GPU is reset when nothing runs on it",
            pids.join(", ")
        ));
    }
    if gpu.faults.reset_fails || gpu.faults.missing || gpu.faults.hang {
        return Err(format!("gpu{slot} does not come back from the reset"));
    }
    begin_anew(gpu);
    Ok(())
}

/// Boots the host: every process is gone, every GPU is found again unless its fault says that it is not.
pub fn reboot(state: &mut State) {
    state.hang = false;
    state.driver.state = Default::default();
    for gpu in &mut state.gpus {
        gpu.processes.clear();
        gpu.faults.hang = false;
        begin_anew(gpu);
    }
}

fn begin_anew(gpu: &mut Gpu) {
    gpu.faults.lost = false;
    gpu.faults.error_code = 0;
    gpu.recovery_action = 0;
    gpu.ecc = Ecc {
        volatile_corrected: 0,
        volatile_uncorrected: 0,
        sram_uncorrected: 0,
        ..gpu.ecc.clone()
    };
    gpu.row_remap.pending = false;
    gpu.retired_pages.pending = false;
    mig::activate_pending_mode(gpu);
    if gpu.fabric.state != FabricState::NotSupported {
        // The GPU registers with the fabric manager anew.
        gpu.fabric.state = FabricState::Completed;
        gpu.fabric.status = 0;
    }
    gpu.nvlink_errors = 0;
    gpu.processes = Vec::<Process>::new();
    idle(&mut gpu.readings);
}

fn idle(readings: &mut Readings) {
    readings.gpu_percent = 0;
    readings.memory_percent = 0;
    readings.memory_used_bytes = 0;
    readings.sm_clock_mhz = 345;
    readings.throttle_reasons =
        u64::from(nvml_wrapper_sys::bindings::nvmlClocksThrottleReasonGpuIdle);
    readings.traffic = Default::default();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::board;
    use crate::fault::{Fault, apply_fault};

    fn sick(faults: &[&str]) -> State {
        let mut state = board("h100", 2, "n", 0).unwrap();
        for fault in faults {
            apply_fault(&mut state, 0, fault.parse::<Fault>().unwrap()).unwrap();
        }
        state
    }

    #[test]
    fn a_reset_ends_what_waited_for_it_and_keeps_what_is_for_good() {
        let mut state = sick(&[
            "lost",
            "ecc 2",
            "remap-pending",
            "remap-failed",
            "nvlink-down 3",
        ]);
        reset(&mut state, 0).unwrap();
        let gpu = &state.gpus[0];
        assert!(!gpu.faults.lost && !gpu.row_remap.pending);
        assert_eq!(
            (gpu.ecc.volatile_uncorrected, gpu.ecc.aggregate_uncorrected),
            (0, 2)
        );
        assert!(gpu.row_remap.failed, "no spare row grows back");
        assert_eq!(gpu.nvlinks_down, [3], "nor does a cable");
    }

    #[test]
    fn a_gpu_in_use_or_gone_is_not_reset_but_a_reboot_clears_processes() {
        let mut state = sick(&["process 77 1024"]);
        assert!(reset(&mut state, 0).unwrap_err().contains("process 77"));
        reboot(&mut state);
        assert!(state.gpus[0].processes.is_empty());
        assert!(reset(&mut sick(&["missing"]), 0).is_err());
        assert!(reset(&mut sick(&["reset-fails"]), 0).is_err());
        assert!(reset(&mut state, 9).is_err());
    }
}
