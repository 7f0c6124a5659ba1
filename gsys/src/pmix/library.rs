//! The C side of PMIx: its structures and the functions in use, from libpmix.so.2 as it is found at run time.
//! Source: pmix_common.h and pmix_server.h of PMIx 4.2; their layout is the same in 4.0 to 6.0.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

pub type Status = c_int;
pub const SUCCESS: Status = 0;
pub const ERROR: Status = -1;
pub const ERR_NOT_FOUND: Status = -46;
pub const ERR_NOT_SUPPORTED: Status = -47;
/// Of an upcall that is done when it returns.
pub const OPERATION_SUCCEEDED: Status = -157;
/// In place of a rank: all of a name space.
pub const RANK_WILDCARD: u32 = u32::MAX - 1;

/// Releases whose structures are these.
const KNOWN_MAJORS: std::ops::RangeInclusive<u32> = 4..=6;

pub const NAME_BYTES: usize = 256;
pub const KEY_BYTES: usize = 512;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Proc {
    pub name: [c_char; NAME_BYTES],
    pub rank: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Info {
    pub key: [c_char; KEY_BYTES],
    pub flags: u32,
    pub value: Value,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Value {
    pub kind: u16,
    pub data: ValueData,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union ValueData {
    pub flag: bool,
    pub string: *const c_char,
    pub uint16: u16,
    pub uint32: u32,
    pub array: *const DataArray,
    /// As long as the longest that C has there.
    pub room: [u64; 3],
}

#[repr(C)]
pub struct DataArray {
    pub kind: u16,
    pub size: usize,
    pub array: *const c_void,
}

pub type OpCallback = Option<unsafe extern "C" fn(Status, *mut c_void)>;
pub type ReleaseCallback = Option<unsafe extern "C" fn(*mut c_void)>;
pub type ModexCallback = Option<
    unsafe extern "C" fn(Status, *const c_char, usize, *mut c_void, ReleaseCallback, *mut c_void),
>;
type ResponseCallback = unsafe extern "C" fn(Status, *mut c_char, usize, *mut c_void);

/// pmix_server_module_t. What is null is refused by the library itself.
#[repr(C)]
pub struct Module {
    pub client_connected:
        Option<unsafe extern "C" fn(*const Proc, *mut c_void, OpCallback, *mut c_void) -> Status>,
    pub client_finalized:
        Option<unsafe extern "C" fn(*const Proc, *mut c_void, OpCallback, *mut c_void) -> Status>,
    pub abort: Option<
        unsafe extern "C" fn(
            *const Proc,
            *mut c_void,
            c_int,
            *const c_char,
            *mut Proc,
            usize,
            OpCallback,
            *mut c_void,
        ) -> Status,
    >,
    pub fence: Option<
        unsafe extern "C" fn(
            *const Proc,
            usize,
            *const Info,
            usize,
            *mut c_char,
            usize,
            ModexCallback,
            *mut c_void,
        ) -> Status,
    >,
    pub direct_modex: Option<
        unsafe extern "C" fn(*const Proc, *const Info, usize, ModexCallback, *mut c_void) -> Status,
    >,
    pub not_offered_names: [*const c_void; 3],
    pub spawn: Option<
        unsafe extern "C" fn(
            *const Proc,
            *const Info,
            usize,
            *const c_void,
            usize,
            *const c_void,
            *mut c_void,
        ) -> Status,
    >,
    /// More than any known release has.
    pub not_offered: [*const c_void; 55],
}

// SAFETY: nothing but addresses of functions and nulls, which are never written.
unsafe impl Sync for Module {}

type InitCall = unsafe extern "C" fn(*const Module, *const Info, usize) -> Status;
type FinalizeCall = unsafe extern "C" fn() -> Status;
type SpaceCall = unsafe extern "C" fn(
    *const c_char,
    c_int,
    *const Info,
    usize,
    OpCallback,
    *mut c_void,
) -> Status;
type ClientCall = unsafe extern "C" fn(
    *const Proc,
    c_uint,
    c_uint,
    *mut c_void,
    OpCallback,
    *mut c_void,
) -> Status;
type ForkCall = unsafe extern "C" fn(*const Proc, *mut *mut *mut c_char) -> Status;
type ModexCall = unsafe extern "C" fn(*const Proc, ResponseCallback, *mut c_void) -> Status;
type StatusWordsCall = unsafe extern "C" fn(Status) -> *const c_char;
type VersionCall = unsafe extern "C" fn() -> *const c_char;

/// The functions in use. The library stays loaded: its threads may be in it.
#[derive(Clone, Copy)]
pub struct PmixLibrary {
    pub init: InitCall,
    pub finalize: FinalizeCall,
    pub register_nspace: SpaceCall,
    pub register_client: ClientCall,
    pub setup_fork: ForkCall,
    pub dmodex_request: ModexCall,
    error_string: StatusWordsCall,
    version: VersionCall,
}

impl PmixLibrary {
    /// # Errors
    /// There is none here, or one of an unknown release.
    pub fn load() -> Result<Self, String> {
        let library = Self::open().ok_or_else(|| {
            "libpmix.so.2 is missing there. Its package is libpmix2 (Debian, Ubuntu) or pmix (others)".to_owned()
        })?;
        // SAFETY: a static string.
        let version = unsafe { CStr::from_ptr((library.version)()) }.to_string_lossy();
        // "OpenPMIx 4.2.2, repo rev: ..."
        let major = version
            .split(|letter: char| !letter.is_ascii_digit())
            .find_map(|word| word.parse::<u32>().ok());
        match major.is_some_and(|major| KNOWN_MAJORS.contains(&major)) {
            true => Ok(library),
            false => Err(format!(
                "its libpmix.so.2 is {version}, and releases {} to {} can be used",
                KNOWN_MAJORS.start(),
                KNOWN_MAJORS.end()
            )),
        }
    }

    fn open() -> Option<Self> {
        use std::mem::transmute;
        // SAFETY: static names; each symbol has the type that pmix_server.h declares for it, whose release is checked before use.
        unsafe {
            let library =
                libc::dlopen(c"libpmix.so.2".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL);
            if library.is_null() {
                return None;
            }
            let symbol = |name: &CStr| {
                let address = libc::dlsym(library, name.as_ptr());
                (!address.is_null()).then_some(address)
            };
            Some(Self {
                init: transmute::<*mut c_void, InitCall>(symbol(c"PMIx_server_init")?),
                finalize: transmute::<*mut c_void, FinalizeCall>(symbol(c"PMIx_server_finalize")?),
                register_nspace: transmute::<*mut c_void, SpaceCall>(symbol(
                    c"PMIx_server_register_nspace",
                )?),
                register_client: transmute::<*mut c_void, ClientCall>(symbol(
                    c"PMIx_server_register_client",
                )?),
                setup_fork: transmute::<*mut c_void, ForkCall>(symbol(c"PMIx_server_setup_fork")?),
                dmodex_request: transmute::<*mut c_void, ModexCall>(symbol(
                    c"PMIx_server_dmodex_request",
                )?),
                error_string: transmute::<*mut c_void, StatusWordsCall>(symbol(
                    c"PMIx_Error_string",
                )?),
                version: transmute::<*mut c_void, VersionCall>(symbol(c"PMIx_Get_version")?),
            })
        }
    }

    pub fn words(&self, status: Status) -> String {
        // SAFETY: any status has a static string.
        unsafe {
            let text = (self.error_string)(status);
            if text.is_null() {
                format!("error {status}")
            } else {
                CStr::from_ptr(text).to_string_lossy().into_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_that_the_headers_give_them() {
        assert_eq!(size_of::<Proc>(), 260);
        assert_eq!(size_of::<Value>(), 32);
        assert_eq!(
            (size_of::<Info>(), std::mem::offset_of!(Info, value)),
            (552, 520)
        );
        assert_eq!(size_of::<DataArray>(), 24);
        assert_eq!(std::mem::offset_of!(Module, spawn), 64);
        assert!(size_of::<Module>() >= 224);
    }
}
