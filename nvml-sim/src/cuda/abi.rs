//! The C functions of the CUDA driver, as many as gpupool's own checks call. As with NVML's: no panic leaves, no null pointer is
//! written through, and a function that is missing is simply not exported. Copies are done when they are begun.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::context::{self, CudaProcess, memory_rate, nvlink_rate, pcie_rate};
use super::visible::gpu_now;
use super::{
    CudaCode, INVALID_CONTEXT, INVALID_DEVICE, INVALID_PTX, INVALID_VALUE, NOT_FOUND,
    PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_UNSUPPORTED, UNKNOWN, described, ptx,
};
use crate::abi::{Handle, OutPointer, Text};
use crate::library;

/// Contexts are told as numbers above this.
const FIRST_CONTEXT: usize = 0x4343_0000;

/// Bytes of the caller, to be read or to be written.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Bytes(*mut u8);

impl Bytes {
    fn read(&self, count: usize) -> Result<&[u8], CudaCode> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: by CUDA's contract a source has the `count` bytes the caller told, for as long as the call takes.
        Ok(unsafe { std::slice::from_raw_parts(self.0, count) })
    }

    fn write(&self, bytes: &[u8]) -> Result<(), CudaCode> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: by CUDA's contract a target has room for the bytes the caller told, which are as many.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0, bytes.len()) };
        Ok(())
    }
}

/// Pointers to the values of a kernel's parameters.
#[repr(transparent)]
pub struct Parameters(*const *const u8);

impl Parameters {
    /// As many as the kernel has, each of its size.
    fn read(&self, sizes: &[usize]) -> Result<Vec<u64>, CudaCode> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        let mut values = Vec::new();
        for (at, size) in sizes.iter().enumerate() {
            let mut value = [0; 8];
            // SAFETY: by CUDA's contract the array has a pointer for each parameter of the kernel, to a value of its size.
            unsafe { std::ptr::copy_nonoverlapping(*self.0.add(at), value.as_mut_ptr(), *size) };
            values.push(u64::from_le_bytes(value));
        }
        Ok(values)
    }
}

/// Declares C functions with bodies of type `Result<(), CudaCode>`.
macro_rules! cuda_functions {
    ($(fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block)*) => { $(
        // SAFETY: the names are CUDA's and this library stands in for CUDA; nothing else in a process defines one.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $kind),*) -> CudaCode {
            answer(move || $body)
        }
    )* };
}

/// Runs the body of a C function; a panic becomes `CUDA_ERROR_UNKNOWN`.
fn answer(body: impl FnOnce() -> Result<(), CudaCode>) -> CudaCode {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code,
        Err(_) => UNKNOWN,
    }
}

/// A pointer of the caller that is null is an invalid value, as NVML calls it by another number.
fn put<T: Copy>(out: &OutPointer<T>, value: T) -> Result<(), CudaCode> {
    out.put(value).map_err(|_| INVALID_VALUE)
}

fn ordinal(device: c_int) -> Result<usize, CudaCode> {
    let ordinal = usize::try_from(device).map_err(|_| INVALID_DEVICE)?;
    context::with(|process| {
        (ordinal < process.gpus.len())
            .then_some(ordinal)
            .ok_or(INVALID_DEVICE)
    })
}

fn uuid_of(device: c_int) -> Result<String, CudaCode> {
    let ordinal = ordinal(device)?;
    context::with(|process| Ok(process.gpus[ordinal].uuid.clone()))
}

fn context_of(handle: Handle) -> Result<usize, CudaCode> {
    handle.checked_sub(FIRST_CONTEXT).ok_or(INVALID_CONTEXT)
}

/// 16 bytes of `GPU-...`.
fn uuid_bytes(uuid: &str) -> Result<[u8; 16], CudaCode> {
    let digits: String = uuid
        .trim_start_matches("GPU-")
        .chars()
        .filter(|c| *c != '-')
        .collect();
    let byte = |at: usize| {
        digits
            .get(2 * at..2 * at + 2)
            .and_then(|byte| u8::from_str_radix(byte, 16).ok())
    };
    let bytes: Option<Vec<u8>> = (0..16).map(byte).collect();
    bytes.and_then(|bytes| bytes.try_into().ok()).ok_or(UNKNOWN)
}

/// GB/s between two GPUs where they have NVLinks, else `None`.
fn between(from: &str, to: &str) -> Result<Option<f64>, CudaCode> {
    gpu_now(from, |state, gpu| {
        let slot = state.gpus.iter().position(|gpu| gpu.uuid == to)?;
        nvlink_rate(gpu, &state.gpus[slot], slot)
    })
}

fn copy_out(process: &mut CudaProcess, address: u64, count: usize) -> Result<Vec<u8>, CudaCode> {
    let owner = process.owner_of(address)?;
    process
        .held(owner)?
        .memory
        .bytes(address, count)
        .map(|bytes| bytes.to_vec())
        .map_err(|_| INVALID_VALUE)
}

fn copy_in(process: &mut CudaProcess, address: u64, bytes: &[u8]) -> Result<(), CudaCode> {
    let owner = process.owner_of(address)?;
    process
        .held(owner)?
        .memory
        .bytes(address, bytes.len())
        .map_err(|_| INVALID_VALUE)?
        .copy_from_slice(bytes);
    Ok(())
}

fn to_device(target: u64, source: Bytes, count: usize) -> Result<(), CudaCode> {
    context::here(|process, ordinal| {
        copy_in(process, target, source.read(count)?)?;
        process.spend(ordinal, count, pcie_rate)
    })
}

fn to_host(target: Bytes, source: u64, count: usize) -> Result<(), CudaCode> {
    context::here(|process, ordinal| {
        target.write(&copy_out(process, source, count)?)?;
        process.spend(ordinal, count, pcie_rate)
    })
}

cuda_functions! {
    fn cuInit(flags: c_uint) {
        if flags == 0 { context::initialise() } else { Err(INVALID_VALUE) }
    }

    fn cuDriverGetVersion(version: OutPointer<c_int>) {
        put(&version, library::state().map_err(|_| UNKNOWN)?.driver.cuda_version)
    }

    fn cuGetErrorName(code: CudaCode, name: OutPointer<*const c_char>) {
        put(&name, described(code).ok_or(INVALID_VALUE)?.0.as_ptr().cast())
    }

    fn cuGetErrorString(code: CudaCode, words: OutPointer<*const c_char>) {
        put(&words, described(code).ok_or(INVALID_VALUE)?.1.as_ptr().cast())
    }

    fn cuDeviceGetCount(count: OutPointer<c_int>) {
        put(&count, context::with(|process| Ok(process.gpus.len()))? as c_int)
    }

    fn cuDeviceGet(device: OutPointer<c_int>, number: c_int) {
        put(&device, ordinal(number)? as c_int)
    }

    fn cuDeviceGetName(name: OutPointer<c_char>, length: c_int, device: c_int) {
        let told = gpu_now(&uuid_of(device)?, |_, gpu| gpu.name.clone())?;
        name.put_text(length.max(0) as c_uint, &told).map_err(|_| INVALID_VALUE)
    }

    fn cuDeviceGetUuid(uuid: OutPointer<[u8; 16]>, device: c_int) {
        put(&uuid, uuid_bytes(&uuid_of(device)?)?)
    }

    fn cuDeviceCanAccessPeer(can: OutPointer<c_int>, device: c_int, peer: c_int) {
        put(&can, between(&uuid_of(device)?, &uuid_of(peer)?)?.is_some().into())
    }

    fn cuDevicePrimaryCtxRetain(handle: OutPointer<Handle>, device: c_int) {
        let ordinal = ordinal(device)?;
        context::retain(ordinal)?;
        put(&handle, FIRST_CONTEXT + ordinal)
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        context::release(ordinal(device)?)
    }

    fn cuCtxSetCurrent(handle: Handle) {
        context::enter(if handle == 0 { None } else { Some(context_of(handle)?) })
    }

    fn cuCtxEnablePeerAccess(peer: Handle, flags: c_uint) {
        let peer = context_of(peer)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        context::here(|process, ordinal| {
            let there = process.held(peer)?.uuid.clone();
            let held = process.held(ordinal)?;
            if held.peers.contains(&peer) {
                return Err(PEER_ACCESS_ALREADY_ENABLED);
            }
            between(&held.uuid, &there)?.ok_or(PEER_ACCESS_UNSUPPORTED)?;
            held.peers.push(peer);
            Ok(())
        })
    }

    fn cuModuleLoadData(module: OutPointer<Handle>, image: Text) {
        let text = image.read().map_err(|_| INVALID_PTX)?;
        let kernels = ptx::read(&text).map_err(|error| {
            eprintln!("nvml-sim: PTX: {error}");
            INVALID_PTX
        })?;
        let handle = context::here(|process, ordinal| {
            let handle = process.new_handle();
            process.modules.insert(handle, (ordinal, kernels));
            Ok(handle)
        })?;
        put(&module, handle)
    }

    fn cuModuleGetFunction(function: OutPointer<Handle>, module: Handle, name: Text) {
        let name = name.read().map_err(|_| INVALID_VALUE)?;
        let handle = context::here(|process, ordinal| {
            let (_, kernels) = process.modules.get(&module).ok_or(INVALID_VALUE)?;
            let kernel = kernels.iter().find(|kernel| kernel.name == name).cloned().ok_or(NOT_FOUND)?;
            let handle = process.new_handle();
            process.kernels.insert(handle, (ordinal, kernel));
            Ok(handle)
        })?;
        put(&function, handle)
    }

    fn cuMemGetInfo_v2(free: OutPointer<usize>, total: OutPointer<usize>) {
        let (is_free, is_total) = context::here(CudaProcess::memory_info)?;
        put(&free, is_free as usize)?;
        put(&total, is_total as usize)
    }

    fn cuMemAlloc_v2(address: OutPointer<u64>, bytes: usize) {
        put(&address, context::here(|process, ordinal| process.allocate(ordinal, bytes))?)
    }

    fn cuMemFree_v2(address: u64) {
        context::here(|process, _| {
            let owner = process.owner_of(address)?;
            process.held(owner)?.memory.pieces.remove(&address).map(drop).ok_or(INVALID_VALUE)
        })
    }

    fn cuMemHostAlloc(start: OutPointer<*mut c_void>, bytes: usize, _flags: c_uint) {
        let address = context::here(|process, _| {
            let mut room = vec![0_u64; bytes.div_ceil(8).max(1)].into_boxed_slice();
            let address = room.as_mut_ptr() as usize;
            process.pinned.insert(address, room);
            Ok(address)
        })?;
        put(&start, address as *mut c_void)
    }

    fn cuMemFreeHost(start: *mut c_void) {
        context::here(|process, _| process.pinned.remove(&(start as usize)).map(drop).ok_or(INVALID_VALUE))
    }

    fn cuMemcpyHtoD_v2(target: u64, source: Bytes, count: usize) { to_device(target, source, count) }

    fn cuMemcpyHtoDAsync_v2(target: u64, source: Bytes, count: usize, _stream: Handle) { to_device(target, source, count) }

    fn cuMemcpyDtoH_v2(target: Bytes, source: u64, count: usize) { to_host(target, source, count) }

    fn cuMemcpyDtoHAsync_v2(target: Bytes, source: u64, count: usize, _stream: Handle) { to_host(target, source, count) }

    fn cuMemcpyDtoDAsync_v2(target: u64, source: u64, count: usize, _stream: Handle) {
        context::here(|process, ordinal| {
            let bytes = copy_out(process, source, count)?;
            copy_in(process, target, &bytes)?;
            process.spend(ordinal, 2 * count, memory_rate)
        })
    }

    fn cuMemcpyPeerAsync(target: u64, to: Handle, source: u64, from: Handle, count: usize, _stream: Handle) {
        let (to, from) = (context_of(to)?, context_of(from)?);
        context::here(|process, ordinal| {
            let bytes = copy_out(process, source, count)?;
            copy_in(process, target, &bytes)?;
            let (here, there) = (process.held(from)?.uuid.clone(), process.held(to)?.uuid.clone());
            let rate = between(&here, &there)?;
            process.spend(ordinal, count, |gpu| rate.unwrap_or(pcie_rate(gpu)))
        })
    }

    fn cuLaunchKernel(function: Handle, blocks: c_uint, blocks_y: c_uint, blocks_z: c_uint, threads: c_uint, threads_y: c_uint, threads_z: c_uint,
        shared: c_uint, _stream: Handle, parameters: Parameters, extra: *const c_void) {
        // No other shape is simulated.
        if (blocks_y, blocks_z, threads_y, threads_z, shared) != (1, 1, 1, 1, 0) || blocks == 0 || !(1..=1024).contains(&threads) || !extra.is_null() {
            return Err(INVALID_VALUE);
        }
        context::here(|process, ordinal| {
            let sizes = process.kernels.get(&function).filter(|(owner, _)| *owner == ordinal).map(|(_, kernel)| kernel.parameters.clone());
            let values = parameters.read(&sizes.ok_or(INVALID_VALUE)?)?;
            process.launch(ordinal, function, blocks, threads, &values)
        })
    }

    fn cuEventCreate(event: OutPointer<Handle>, _flags: c_uint) {
        let handle = context::here(|process, _| {
            let handle = process.new_handle();
            process.events.insert(handle, 0.0);
            Ok(handle)
        })?;
        put(&event, handle)
    }

    fn cuEventRecord(event: Handle, _stream: Handle) {
        context::here(|process, ordinal| {
            let now = process.held(ordinal)?.clock_ns;
            *process.events.get_mut(&event).ok_or(INVALID_VALUE)? = now;
            Ok(())
        })
    }

    fn cuEventSynchronize(event: Handle) {
        context::here(|process, _| process.events.get(&event).map(|_| ()).ok_or(INVALID_VALUE))
    }

    fn cuEventElapsedTime(millis: OutPointer<f32>, start: Handle, end: Handle) {
        let ns = context::with(|process| {
            let at = |event| process.events.get(&event).copied().ok_or(INVALID_VALUE);
            Ok(at(end)? - at(start)?)
        })?;
        put(&millis, (ns / 1e6) as f32)
    }

    fn cuEventDestroy_v2(event: Handle) {
        context::with(|process| process.events.remove(&event).map(drop).ok_or(INVALID_VALUE))
    }
}
