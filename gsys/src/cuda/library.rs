//! The functions of libcuda that are used, found by name in a library opened at run time, and the GPUs it lets this process use.
//! Owns the types of the functions; the library stays loaded, since the driver leaves threads and exit handlers behind.
//!
//! Source: `cuda.h` and the CUDA driver API reference; each name is the one that the library of CUDA 11.0 (driver 450) or newer exports.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null;

use super::error::{CudaError, INITIALISING};

pub(super) type Code = c_uint;
pub(super) type Device = c_int;
/// `CUcontext`, `CUmodule`, `CUfunction`, `CUevent`, `CUstream`: opaque.
pub(super) type Handle = *mut c_void;
/// `CUdeviceptr`: no address of this process.
pub(super) type Address = u64;

pub(super) const SUCCESS: Code = 0;

/// Declares the functions once: their types, the structure that holds them, and how they are found.
macro_rules! functions {
    ($($name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        #[derive(Clone, Copy, Debug)]
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> Code,)*
        }

        impl Functions {
            /// # Safety
            /// `find` gives addresses of libcuda's functions of these names, or null.
            unsafe fn find(find: impl Fn(&CStr) -> *mut c_void, path: &str) -> Result<Functions, CudaError> {
                $(
                    let $name = find(const { match CStr::from_bytes_with_nul(concat!($symbol, "\0").as_bytes()) { Ok(name) => name, Err(_) => panic!() } });
                    if $name.is_null() {
                        return Err(CudaError::LibraryTooOld { path: path.to_owned(), function: $symbol });
                    }
                )*
                // SAFETY: by this function's contract each address is the function of that name, whose type cuda.h declares so.
                Ok(unsafe { Functions { $($name: std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> Code>($name),)* } })
            }
        }
    };
}

functions! {
    init = "cuInit" (c_uint);
    driver_version = "cuDriverGetVersion" (*mut c_int);
    error_name = "cuGetErrorName" (Code, *mut *const c_char);
    error_text = "cuGetErrorString" (Code, *mut *const c_char);
    device_count = "cuDeviceGetCount" (*mut c_int);
    device_get = "cuDeviceGet" (*mut Device, c_int);
    device_name = "cuDeviceGetName" (*mut c_char, c_int, Device);
    device_uuid = "cuDeviceGetUuid" (*mut [u8; 16], Device);
    can_access_peer = "cuDeviceCanAccessPeer" (*mut c_int, Device, Device);
    retain = "cuDevicePrimaryCtxRetain" (*mut Handle, Device);
    release = "cuDevicePrimaryCtxRelease_v2" (Device);
    set_current = "cuCtxSetCurrent" (Handle);
    enable_peer = "cuCtxEnablePeerAccess" (Handle, c_uint);
    module_load = "cuModuleLoadData" (*mut Handle, *const c_void);
    module_function = "cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    memory_info = "cuMemGetInfo_v2" (*mut usize, *mut usize);
    alloc = "cuMemAlloc_v2" (*mut Address, usize);
    free = "cuMemFree_v2" (Address);
    host_alloc = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    host_free = "cuMemFreeHost" (*mut c_void);
    to_device = "cuMemcpyHtoD_v2" (Address, *const c_void, usize);
    to_host = "cuMemcpyDtoH_v2" (*mut c_void, Address, usize);
    to_device_async = "cuMemcpyHtoDAsync_v2" (Address, *const c_void, usize, Handle);
    to_host_async = "cuMemcpyDtoHAsync_v2" (*mut c_void, Address, usize, Handle);
    within_async = "cuMemcpyDtoDAsync_v2" (Address, Address, usize, Handle);
    to_peer_async = "cuMemcpyPeerAsync" (Address, Handle, Address, Handle, usize, Handle);
    launch = "cuLaunchKernel" (Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void);
    event_create = "cuEventCreate" (*mut Handle, c_uint);
    event_record = "cuEventRecord" (Handle, Handle);
    event_wait = "cuEventSynchronize" (Handle);
    event_elapsed = "cuEventElapsedTime" (*mut f32, Handle, Handle);
    event_destroy = "cuEventDestroy_v2" (Handle);
}

/// An open and initialised libcuda.
#[derive(Clone, Copy, Debug)]
pub struct Cuda {
    pub(super) functions: Functions,
}

/// A GPU that CUDA lets this process use: one that `CUDA_VISIBLE_DEVICES` leaves and the device fence lets it open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// CUDA's own number, from 0.
    pub ordinal: i32,
    /// As NVML writes it: `GPU-...`. Of a MIG instance it is that of its GPU.
    pub uuid: String,
    pub name: String,
}

impl Cuda {
    /// Opens the library by its name or path, and initialises it.
    pub fn load(path: &Path) -> Result<Cuda, CudaError> {
        let shown = path.display().to_string();
        let missing = |reason: String| CudaError::LibraryMissing {
            path: shown.clone(),
            reason,
        };
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|e| missing(e.to_string()))?;
        // SAFETY: the name is NUL-terminated; constructors of the driver's library run, as in every CUDA program.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(missing(loaders_word()));
        }
        // SAFETY: dlsym takes a live library, which is never closed, and a NUL-terminated name.
        let find = |name: &CStr| unsafe { libc::dlsym(library, name.as_ptr()) };
        // SAFETY: what this library has under names of libcuda are libcuda's functions.
        let functions = unsafe { Functions::find(find, &shown) }?;
        let cuda = Cuda { functions };
        // SAFETY: cuInit takes flags, which must be 0.
        cuda.check(|| INITIALISING.into(), unsafe { (functions.init)(0) })?;
        Ok(cuda)
    }

    /// Major times 1000 plus minor times 10: the newest CUDA this driver knows.
    pub fn driver_version(&self) -> Result<i32, CudaError> {
        let mut version = 0;
        // SAFETY: the pointer is to a live value.
        self.check(|| "asking for the driver's version".into(), unsafe {
            (self.functions.driver_version)(&mut version)
        })?;
        Ok(version)
    }

    pub fn gpus(&self) -> Result<Vec<Gpu>, CudaError> {
        let mut count = 0;
        // SAFETY: the pointer is to a live value.
        self.check(|| "counting GPUs".into(), unsafe {
            (self.functions.device_count)(&mut count)
        })?;
        (0..count).map(|ordinal| self.gpu(ordinal)).collect()
    }

    fn gpu(&self, ordinal: i32) -> Result<Gpu, CudaError> {
        let device = self.device(ordinal)?;
        let (mut uuid, mut name) = ([0; 16], [0; 256]);
        // SAFETY: both pointers are to live values; a CUuuid is 16 bytes, and of the name no more than its room is written.
        unsafe {
            self.check(
                || format!("asking GPU {ordinal} for its UUID"),
                (self.functions.device_uuid)(&mut uuid, device),
            )?;
            self.check(
                || format!("asking GPU {ordinal} for its name"),
                (self.functions.device_name)(name.as_mut_ptr(), 255, device),
            )?;
        }
        // SAFETY: the array was zero and its last byte was not written, so it ends with a NUL.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }
            .to_string_lossy()
            .into_owned();
        Ok(Gpu {
            ordinal,
            uuid: uuid_text(&uuid),
            name,
        })
    }

    pub(super) fn device(&self, ordinal: i32) -> Result<Device, CudaError> {
        let mut device = 0;
        // SAFETY: the pointer is to a live value.
        self.check(|| format!("asking for GPU {ordinal}"), unsafe {
            (self.functions.device_get)(&mut device, ordinal)
        })?;
        Ok(device)
    }

    /// An error with its name, where a call did not succeed.
    pub(super) fn check(
        &self,
        doing: impl FnOnce() -> String,
        code: Code,
    ) -> Result<(), CudaError> {
        if code == SUCCESS {
            return Ok(());
        }
        let said = |ask: unsafe extern "C" fn(Code, *mut *const c_char) -> Code| {
            let mut text = null();
            // SAFETY: the pointer is to a live value; the answer is null or a static string of the library.
            unsafe {
                let known = ask(code, &mut text) == SUCCESS && !text.is_null();
                known.then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
            }
        };
        let name = said(self.functions.error_name)
            .unwrap_or_else(|| "an error CUDA has no name for".into());
        let words = said(self.functions.error_text).unwrap_or_default();
        Err(CudaError::Call {
            doing: doing(),
            code,
            name,
            words,
        })
    }
}

/// Why the loader did not open it.
fn loaders_word() -> String {
    // SAFETY: dlerror answers null or a string that stays until the next call of the loader on this thread.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            "the loader does not say why".into()
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}

/// `GPU-8d5ab1c4-...`, as NVML writes the same bytes.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = "GPU".to_owned();
    for (at, byte) in uuid.iter().enumerate() {
        if [0, 4, 6, 8, 10].contains(&at) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn uuids_are_written_as_nvml_writes_them() {
        let bytes = std::array::from_fn(|at| at as u8 * 17);
        assert_eq!(
            super::uuid_text(&bytes),
            "GPU-00112233-4455-6677-8899-aabbccddeeff"
        );
    }
}
