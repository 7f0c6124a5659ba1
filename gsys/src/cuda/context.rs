//! One GPU in use by this process: its primary context, memory on it and pinned memory of the host, copies and their time. Belongs
//! to the thread that opened it. All work goes to one stream, in order. Never waits by spinning: jobs need the processor.

use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::ptr::null_mut;

use super::error::CudaError;
use super::library::{Address, Cuda, Device, Gpu, Handle};

/// `CU_EVENT_BLOCKING_SYNC`.
const BLOCKING: u32 = 1;
/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for every context of the process.
const PORTABLE: u32 = 1;
/// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`.
const PEER_ALREADY: u32 = 704;

/// A GPU's primary context. Contexts of several GPUs may live on one thread; each makes itself current before it acts.
#[derive(Debug)]
pub struct Context {
    pub(super) cuda: Cuda,
    device: Device,
    pub(super) handle: Handle,
    /// CUDA ties contexts to threads.
    _thread: PhantomData<*const ()>,
}

/// Memory on a GPU; freed when dropped.
#[derive(Debug)]
pub struct DeviceMemory<'a> {
    context: &'a Context,
    pub(super) address: Address,
    bytes: usize,
}

/// Memory of the host that the GPU reads and writes by itself; freed when dropped.
#[derive(Debug)]
pub struct PinnedMemory<'a> {
    context: &'a Context,
    start: *mut u8,
    bytes: usize,
    /// A copy was begun and not waited for.
    busy: Cell<bool>,
}

impl Context {
    pub fn open(cuda: &Cuda, gpu: &Gpu) -> Result<Context, CudaError> {
        let device = cuda.device(gpu.ordinal)?;
        let mut handle = null_mut();
        // SAFETY: the device is this library's and the pointer is to a live value.
        cuda.check(|| format!("opening a context on {}", gpu.uuid), unsafe {
            (cuda.functions.retain)(&mut handle, device)
        })?;
        let context = Context {
            cuda: *cuda,
            device,
            handle,
            _thread: PhantomData,
        };
        context.enter()?;
        Ok(context)
    }

    /// Compiles PTX for this GPU: the module.
    pub(super) fn compile(&self, ptx: &str) -> Result<Handle, CudaError> {
        self.enter()?;
        let text = format!("{ptx}\0");
        let mut module = null_mut();
        // SAFETY: the text is PTX, ends with a NUL and outlives the call.
        let code = unsafe { (self.cuda.functions.module_load)(&mut module, text.as_ptr().cast()) };
        self.cuda.check(|| "compiling the kernels".into(), code)?;
        Ok(module)
    }

    /// Free and total bytes, as the driver counts them.
    pub fn memory_info(&self) -> Result<(u64, u64), CudaError> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both pointers are to live values.
        self.cuda
            .check(|| "asking how much memory is free".into(), unsafe {
                (self.cuda.functions.memory_info)(&mut free, &mut total)
            })?;
        Ok((free as u64, total as u64))
    }

    pub fn alloc(&self, bytes: usize) -> Result<DeviceMemory<'_>, CudaError> {
        self.enter()?;
        let mut address = 0;
        // SAFETY: the pointer is to a live value.
        let code = unsafe { (self.cuda.functions.alloc)(&mut address, bytes) };
        self.cuda.check(
            || format!("taking {} MiB of the GPU's memory", bytes.div_ceil(1 << 20)),
            code,
        )?;
        Ok(DeviceMemory {
            context: self,
            address,
            bytes,
        })
    }

    /// Zeroed.
    pub fn pin(&self, bytes: usize) -> Result<PinnedMemory<'_>, CudaError> {
        self.enter()?;
        let mut start: *mut c_void = null_mut();
        // SAFETY: the pointer is to a live value.
        let code = unsafe { (self.cuda.functions.host_alloc)(&mut start, bytes, PORTABLE) };
        self.cuda.check(
            || format!("pinning {} KiB of the host's memory", bytes >> 10),
            code,
        )?;
        let start: *mut u8 = start.cast();
        // SAFETY: CUDA allocated so many bytes for this value alone.
        unsafe { start.write_bytes(0, bytes) };
        Ok(PinnedMemory {
            context: self,
            start,
            bytes,
            busy: Cell::new(false),
        })
    }

    /// Waits until all that was begun is done. Errors of the work are told here.
    pub fn finish(&self) -> Result<(), CudaError> {
        self.time(|| Ok(())).map(|_| ())
    }

    /// How many milliseconds the work takes that `begin` begins, by the GPU's own clock; waits for it.
    pub fn time(&self, begin: impl FnOnce() -> Result<(), CudaError>) -> Result<f64, CudaError> {
        let (start, end) = (Event::new(self)?, Event::new(self)?);
        start.record()?;
        begin()?;
        end.record()?;
        end.wait()?;
        start.millis_to(&end)
    }

    /// Whether it can copy to the other without going through the host; opens the way where it can.
    pub fn reach(&self, peer: &Context) -> Result<bool, CudaError> {
        self.enter()?;
        let mut can = 0;
        // SAFETY: both devices are this library's and the pointer is to a live value.
        let code =
            unsafe { (self.cuda.functions.can_access_peer)(&mut can, self.device, peer.device) };
        self.cuda
            .check(|| "asking for a way to the peer".into(), code)?;
        if can == 0 {
            return Ok(false);
        }
        // SAFETY: the peer's context is live; the flags must be 0.
        let code = unsafe { (self.cuda.functions.enable_peer)(peer.handle, 0) };
        if code != PEER_ALREADY {
            self.cuda
                .check(|| "opening the way to the peer".into(), code)?;
        }
        Ok(true)
    }

    /// What belongs to this context is done in it.
    pub(super) fn enter(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained as long as self lives.
        self.cuda.check(|| "entering the context".into(), unsafe {
            (self.cuda.functions.set_current)(self.handle)
        })
    }

    pub(super) fn function(&self, module: Handle, name: &CStr) -> Result<Handle, CudaError> {
        let mut function = null_mut();
        // SAFETY: the module is this context's, the name ends with a NUL, and the pointer is to a live value.
        let code =
            unsafe { (self.cuda.functions.module_function)(&mut function, module, name.as_ptr()) };
        self.cuda.check(
            || format!("looking for the kernel {}", name.to_string_lossy()),
            code,
        )?;
        Ok(function)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `open`. An error leaves nothing to do: the end of the process releases it.
        unsafe { (self.cuda.functions.release)(self.device) };
    }
}

impl<'a> DeviceMemory<'a> {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The GPU's address, for messages.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Waits until it is there.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), CudaError> {
        self.assert_within(at, bytes.len());
        self.context.enter()?;
        // SAFETY: the source is live over the call, which waits, and the target lies within this memory.
        let code = unsafe {
            (self.context.cuda.functions.to_device)(
                self.address + at as u64,
                bytes.as_ptr().cast(),
                bytes.len(),
            )
        };
        self.context.cuda.check(
            || format!("copying {} KiB to the GPU", bytes.len() >> 10),
            code,
        )
    }

    pub fn read(&self, at: usize, count: usize) -> Result<Vec<u8>, CudaError> {
        self.assert_within(at, count);
        self.context.enter()?;
        let mut bytes = vec![0_u8; count];
        // SAFETY: the target is live over the call, which waits, and the source lies within this memory.
        let code = unsafe {
            (self.context.cuda.functions.to_host)(
                bytes.as_mut_ptr().cast(),
                self.address + at as u64,
                count,
            )
        };
        self.context
            .cuda
            .check(|| format!("copying {} KiB from the GPU", count >> 10), code)?;
        Ok(bytes)
    }

    /// Begins to copy its first bytes to another memory of the same GPU.
    pub fn begin_copy(&self, to: &DeviceMemory<'a>, bytes: usize) -> Result<(), CudaError> {
        self.assert_within(0, bytes);
        to.assert_within(0, bytes);
        self.context.enter()?;
        // SAFETY: both lie within live memory of this context; memory is freed by calls that wait for what was begun.
        let code = unsafe {
            (self.context.cuda.functions.within_async)(to.address, self.address, bytes, null_mut())
        };
        self.context
            .cuda
            .check(|| "copying within the GPU".into(), code)
    }

    /// Begins to copy its first bytes to memory of another GPU.
    pub fn begin_copy_to_peer(&self, to: &DeviceMemory<'_>, bytes: usize) -> Result<(), CudaError> {
        self.assert_within(0, bytes);
        to.assert_within(0, bytes);
        self.context.enter()?;
        let (here, there) = (self.context.handle, to.context.handle);
        // SAFETY: as above, each in its own live context.
        let code = unsafe {
            (self.context.cuda.functions.to_peer_async)(
                to.address,
                there,
                self.address,
                here,
                bytes,
                null_mut(),
            )
        };
        self.context
            .cuda
            .check(|| "copying to the peer".into(), code)
    }

    fn assert_within(&self, at: usize, count: usize) {
        assert!(
            at.checked_add(count).is_some_and(|end| end <= self.bytes),
            "{count} bytes at {at} of {}",
            self.bytes
        );
    }
}

impl Drop for DeviceMemory<'_> {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: allocated once in `alloc`; cuMemFree waits for work that uses it. An error leaves nothing to do.
            unsafe { (self.context.cuda.functions.free)(self.address) };
        }
    }
}

impl PinnedMemory<'_> {
    /// Begins to copy all of it to the GPU.
    pub fn begin_write(&self, to: &DeviceMemory<'_>) -> Result<(), CudaError> {
        to.assert_within(0, self.bytes);
        self.context.enter()?;
        self.busy.set(true);
        // SAFETY: both lie within live memory; this one is freed only after the work was waited for, see `drop`.
        let code = unsafe {
            (self.context.cuda.functions.to_device_async)(
                to.address,
                self.start.cast(),
                self.bytes,
                null_mut(),
            )
        };
        self.context
            .cuda
            .check(|| "copying to the GPU".into(), code)
    }

    /// Begins to copy from the GPU as much as this has room for.
    pub fn begin_read(&self, from: &DeviceMemory<'_>) -> Result<(), CudaError> {
        from.assert_within(0, self.bytes);
        self.context.enter()?;
        self.busy.set(true);
        // SAFETY: as above; nothing reads these bytes in this process.
        let code = unsafe {
            (self.context.cuda.functions.to_host_async)(
                self.start.cast(),
                from.address,
                self.bytes,
                null_mut(),
            )
        };
        self.context
            .cuda
            .check(|| "copying from the GPU".into(), code)
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for PinnedMemory<'_> {
    fn drop(&mut self) {
        // What a copy that was not waited for may still touch is better kept than given back.
        if self.context.enter().is_ok() && (!self.busy.get() || self.context.finish().is_ok()) {
            // SAFETY: allocated once in `pin`, and nothing uses it any more.
            unsafe { (self.context.cuda.functions.host_free)(self.start.cast()) };
        }
    }
}

/// A moment in the GPU's work.
struct Event<'a> {
    context: &'a Context,
    handle: Handle,
}

impl<'a> Event<'a> {
    fn new(context: &'a Context) -> Result<Event<'a>, CudaError> {
        context.enter()?;
        let mut handle = null_mut();
        // SAFETY: the pointer is to a live value.
        context.cuda.check(|| "making an event".into(), unsafe {
            (context.cuda.functions.event_create)(&mut handle, BLOCKING)
        })?;
        Ok(Event { context, handle })
    }

    fn record(&self) -> Result<(), CudaError> {
        self.context.enter()?;
        // SAFETY: the event is live; a null stream is the default one.
        self.context
            .cuda
            .check(|| "recording an event".into(), unsafe {
                (self.context.cuda.functions.event_record)(self.handle, null_mut())
            })
    }

    fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the event is live.
        self.context
            .cuda
            .check(|| "waiting for the GPU".into(), unsafe {
                (self.context.cuda.functions.event_wait)(self.handle)
            })
    }

    fn millis_to(&self, end: &Event<'_>) -> Result<f64, CudaError> {
        let mut millis = 0.0;
        // SAFETY: both events are live and were waited for; the pointer is to a live value.
        let code = unsafe {
            (self.context.cuda.functions.event_elapsed)(&mut millis, self.handle, end.handle)
        };
        self.context
            .cuda
            .check(|| "reading the GPU's clock".into(), code)?;
        Ok(millis.into())
    }
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        // SAFETY: created once in `new`. An error leaves nothing to do.
        unsafe { (self.context.cuda.functions.event_destroy)(self.handle) };
    }
}
