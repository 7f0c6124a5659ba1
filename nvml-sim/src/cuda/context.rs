//! What a process holds on simulated GPUs: contexts, memory, kernels, pinned memory, and each GPU's own clock, which moves by what
//! its work would take on the board and not by what it takes here. Owns how a fault of the state shows to a CUDA program.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use super::machine::{self, GpuDefects, Memory};
use super::ptx::Kernel;
use super::visible::{VisibleGpu, gpu_now, visible};
use super::{
    CudaCode, DEVICE_UNAVAILABLE, ECC_UNCORRECTABLE, INVALID_CONTEXT, INVALID_DEVICE,
    INVALID_VALUE, NOT_INITIALIZED, OUT_OF_MEMORY, UNKNOWN,
};
use crate::library;
use crate::state::{ComputeMode, Gpu};

/// How often a call that hangs looks at the state again.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Handles are small numbers above this.
const FIRST_HANDLE: usize = 0x4355_0000;
/// Where the memory of the first GPU begins, and how far apart the GPUs' are.
const FIRST_ADDRESS: u64 = 0x7f00_0000_0000;
const ADDRESSES: u64 = 1 << 40;
/// Allocations begin at multiples of this.
const ALIGNMENT: u64 = 512;
/// What a kernel takes at least.
const LAUNCH_NS: f64 = 2000.0;
/// Of what a link or a memory could carry, as much as copies get.
const EFFICIENCY: f64 = 0.85;

/// All that this process holds.
#[derive(Debug, Default)]
pub struct CudaProcess {
    /// By ordinal; empty before `cuInit`.
    pub gpus: Vec<VisibleGpu>,
    /// By ordinal.
    contexts: BTreeMap<usize, ContextGpu>,
    /// Kernels by handle, and the GPU each was compiled for.
    pub kernels: BTreeMap<usize, (usize, Kernel)>,
    pub modules: BTreeMap<usize, (usize, Vec<Kernel>)>,
    /// Moments of a GPU's clock.
    pub events: BTreeMap<usize, f64>,
    pub pinned: BTreeMap<usize, Box<[u64]>>,
    next_handle: usize,
}

/// A GPU in use.
#[derive(Debug, Default)]
pub struct ContextGpu {
    pub uuid: String,
    /// Of its memory.
    eighths: u32,
    users: u32,
    /// What ended it: every later call is answered with it.
    failed: Option<CudaCode>,
    /// What its MPS server lets each client have.
    most_bytes: Option<u64>,
    /// Uncorrected errors when it was opened.
    errors: u64,
    pub memory: Memory,
    next_address: u64,
    pub clock_ns: f64,
    pub peers: Vec<usize>,
}

static PROCESS: Mutex<Option<CudaProcess>> = Mutex::new(None);

thread_local! {
    /// Ordinal of the context this thread is in.
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// What is held, from `cuInit` on.
pub fn with<T>(act: impl FnOnce(&mut CudaProcess) -> Result<T, CudaCode>) -> Result<T, CudaCode> {
    act(lock().as_mut().ok_or(NOT_INITIALIZED)?)
}

fn lock() -> MutexGuard<'static, Option<CudaProcess>> {
    PROCESS
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

pub fn initialise() -> Result<(), CudaCode> {
    let gpus = visible()?;
    lock()
        .get_or_insert_with(|| CudaProcess {
            next_handle: FIRST_HANDLE,
            ..CudaProcess::default()
        })
        .gpus = gpus;
    Ok(())
}

/// Opens a GPU's primary context, or counts one user more. May hang.
pub fn retain(ordinal: usize) -> Result<(), CudaCode> {
    let VisibleGpu { uuid, eighths } =
        with(|process| process.gpus.get(ordinal).cloned().ok_or(INVALID_DEVICE))?;
    answering(&uuid)?;
    let (wait, mode) = gpu_now(&uuid, |_, gpu| (gpu.faults.check_ms, gpu.compute_mode))?;
    let most_bytes = match mode {
        ComputeMode::Default => None,
        // Its one process is the MPS server, where there is one.
        ComputeMode::ExclusiveProcess => Some(share(&uuid).ok_or(DEVICE_UNAVAILABLE)?),
        ComputeMode::Prohibited => return Err(DEVICE_UNAVAILABLE),
    };
    thread::sleep(Duration::from_millis(wait));
    let errors = gpu_now(&uuid, |_, gpu| gpu.ecc.volatile_uncorrected)?;
    with(|process| {
        let first = FIRST_ADDRESS + ordinal as u64 * ADDRESSES;
        let held = process
            .contexts
            .entry(ordinal)
            .or_insert_with(|| ContextGpu {
                uuid,
                eighths,
                errors,
                most_bytes,
                next_address: first,
                ..ContextGpu::default()
            });
        held.users += 1;
        Ok(())
    })
}

/// The last user takes memory and kernels along.
pub fn release(ordinal: usize) -> Result<(), CudaCode> {
    with(|process| {
        let held = process.contexts.get_mut(&ordinal).ok_or(INVALID_CONTEXT)?;
        held.users -= 1;
        if held.users == 0 {
            process.contexts.remove(&ordinal);
            process.kernels.retain(|_, (owner, _)| *owner != ordinal);
            process.modules.retain(|_, (owner, _)| *owner != ordinal);
        }
        Ok(())
    })
}

pub fn enter(ordinal: Option<usize>) -> Result<(), CudaCode> {
    with(|process| match ordinal {
        Some(ordinal) if !process.contexts.contains_key(&ordinal) => Err(INVALID_CONTEXT),
        _ => Ok(()),
    })?;
    CURRENT.set(ordinal);
    Ok(())
}

/// Acts in this thread's context, while its GPU answers. May hang.
pub fn here<T>(
    act: impl FnOnce(&mut CudaProcess, usize) -> Result<T, CudaCode>,
) -> Result<T, CudaCode> {
    let ordinal = CURRENT.get().ok_or(INVALID_CONTEXT)?;
    let (uuid, failed, errors) = with(|process| {
        let held = process.held(ordinal)?;
        Ok((held.uuid.clone(), held.failed, held.errors))
    })?;
    if let Some(code) = failed {
        return Err(code);
    }
    let outcome = answering(&uuid).and_then(|()| {
        match gpu_now(&uuid, |_, gpu| gpu.ecc.volatile_uncorrected > errors)? {
            true => Err(ECC_UNCORRECTABLE),
            false => Ok(()),
        }
    });
    let unsound = gpu_now(&uuid, |_, gpu| GpuDefects {
        arithmetic: gpu.faults.check == "wrong",
        memory: gpu.faults.check == "fails",
    })?;
    with(|process| {
        let held = process.held(ordinal)?;
        if let Err(code) = outcome {
            held.failed = Some(code);
            return Err(code);
        }
        held.memory.unsound = unsound;
        act(process, ordinal)
    })
}

/// Bytes that a client of the GPU's MPS server may have, where this process can reach that.
fn share(uuid: &str) -> Option<u64> {
    let pipe = PathBuf::from(std::env::var_os("CUDA_MPS_PIPE_DIRECTORY")?);
    let known = std::fs::read(library::directory().join(format!("mps/{uuid}.json"))).ok()?;
    let known: serde_json::Value = serde_json::from_slice(&known).ok()?;
    let is_its =
        pipe.join("control").exists() && known["pipe"].as_str().map(Path::new) == Some(&*pipe);
    let limit = known["servers"][0]["memory"]["0"].as_str()?;
    limit
        .strip_suffix('M')?
        .parse::<u64>()
        .ok()
        .filter(|_| is_its)
        .map(|mib| mib << 20)
}

/// Waits as long as the GPU hangs; a process that crashes on it ends here.
fn answering(uuid: &str) -> Result<(), CudaCode> {
    loop {
        let (hangs, crashes, gone) = gpu_now(uuid, |_, gpu| {
            let faults = &gpu.faults;
            (
                faults.hang || faults.check == "hang",
                faults.check == "crash",
                faults.lost || faults.missing || faults.error_code != 0,
            )
        })?;
        match (hangs, crashes, gone) {
            (true, ..) => thread::sleep(LOOK_AGAIN),
            (_, true, _) => std::process::abort(),
            (.., true) => return Err(UNKNOWN),
            _ => return Ok(()),
        }
    }
}

impl CudaProcess {
    pub fn new_handle(&mut self) -> usize {
        self.next_handle += 1;
        self.next_handle
    }

    pub fn held(&mut self, ordinal: usize) -> Result<&mut ContextGpu, CudaCode> {
        self.contexts.get_mut(&ordinal).ok_or(INVALID_CONTEXT)
    }

    /// Free and total bytes of a GPU: what the state says, less what is taken here.
    pub fn memory_info(&mut self, ordinal: usize) -> Result<(u64, u64), CudaCode> {
        let held = self.held(ordinal)?;
        let taken: u64 = held
            .memory
            .pieces
            .values()
            .map(|piece| piece.len() as u64)
            .sum();
        let most = held.most_bytes.unwrap_or(u64::MAX).saturating_sub(taken);
        let eighths = u64::from(held.eighths);
        gpu_now(&held.uuid, |_, gpu| {
            if eighths < 8 {
                let total = gpu.memory_total_bytes / 8 * eighths;
                return (total.saturating_sub(taken), total);
            }
            let others: u64 = gpu
                .processes
                .iter()
                .filter(|process| process.pid != std::process::id())
                .map(|process| process.memory_bytes)
                .sum();
            let gone =
                gpu.memory_reserved_bytes + gpu.readings.memory_used_bytes.max(others) + taken;
            (
                gpu.memory_total_bytes.saturating_sub(gone).min(most),
                gpu.memory_total_bytes,
            )
        })
    }

    pub fn allocate(&mut self, ordinal: usize, bytes: usize) -> Result<u64, CudaCode> {
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let (free, _) = self.memory_info(ordinal)?;
        if bytes as u64 > free {
            return Err(OUT_OF_MEMORY);
        }
        let held = self.held(ordinal)?;
        let address = held.next_address;
        held.next_address += (bytes as u64).next_multiple_of(ALIGNMENT) + ALIGNMENT;
        // Zeros that are not written yet take no memory of the host.
        held.memory.pieces.insert(address, vec![0; bytes]);
        Ok(address)
    }

    /// The GPU with this address in its memory.
    pub fn owner_of(&self, address: u64) -> Result<usize, CudaCode> {
        let ordinal = address.checked_sub(FIRST_ADDRESS).ok_or(INVALID_VALUE)? / ADDRESSES;
        usize::try_from(ordinal)
            .ok()
            .filter(|ordinal| self.contexts.contains_key(ordinal))
            .ok_or(INVALID_VALUE)
    }

    /// Carries out a kernel, and remembers what ended it where it did not come to its end.
    pub fn launch(
        &mut self,
        ordinal: usize,
        kernel: usize,
        blocks: u32,
        threads: u32,
        parameters: &[u64],
    ) -> Result<(), CudaCode> {
        let (_, kernel) = self.kernels.get(&kernel).cloned().ok_or(INVALID_VALUE)?;
        let held = self.held(ordinal)?;
        held.clock_ns += LAUNCH_NS;
        machine::run(&kernel, &mut held.memory, blocks, threads, parameters)
            .inspect_err(|code| held.failed = Some(*code))
    }

    /// Moves a GPU's clock by what so many bytes take at so many GB/s.
    pub fn spend(
        &mut self,
        ordinal: usize,
        bytes: usize,
        rate: impl FnOnce(&Gpu) -> f64,
    ) -> Result<(), CudaCode> {
        let held = self.held(ordinal)?;
        let gb_s = gpu_now(&held.uuid, |_, gpu| {
            rate(gpu) * EFFICIENCY / if gpu.faults.check == "slow" { 2.0 } else { 1.0 }
        })?;
        held.clock_ns += bytes as f64 / gb_s.max(1e-3);
        Ok(())
    }
}

/// GB/s of a board's memory, of what it is made of.
pub fn memory_rate(gpu: &Gpu) -> f64 {
    match gpu.architecture {
        0..=6 => 900.0,
        7 => 1_555.0,
        8 => 300.0,
        9 => 3_350.0,
        _ => 8_000.0,
    }
}

/// GB/s of its PCIe link, one way.
pub fn pcie_rate(gpu: &Gpu) -> f64 {
    let lanes = gpu.faults.pcie_width.unwrap_or(gpu.pcie_width);
    let lane = match gpu.faults.pcie_gen.unwrap_or(gpu.pcie_gen) {
        0..=3 => 0.985,
        4 => 1.969,
        5 => 3.938,
        _ => 7.563,
    };
    f64::from(lanes) * lane
}

/// GB/s of the links between two GPUs, one way; `None`: they have none.
pub fn nvlink_rate(gpu: &Gpu, peer: &Gpu, peer_slot: usize) -> Option<f64> {
    let up = |gpu: &Gpu| {
        gpu.nvlink_count
            .saturating_sub(gpu.nvlinks_down.len() as u32)
    };
    let links = match gpu.nvlink_peer_slots.is_empty() {
        true if gpu.nvlink_island.is_some() && gpu.nvlink_island == peer.nvlink_island => {
            up(gpu).min(up(peer))
        }
        true => 0,
        false => gpu
            .nvlink_peer_slots
            .iter()
            .zip(0..)
            .filter(|(slot, link)| **slot as usize == peer_slot && !gpu.nvlinks_down.contains(link))
            .count() as u32,
    };
    let carried = if gpu.faults.nvlink_slow || peer.faults.nvlink_slow {
        0.5
    } else {
        1.0
    };
    (links > 0).then(|| carried * f64::from(links) * f64::from(gpu.nvlink_mbytes_per_s) / 1000.0)
}
