//! The C functions of NVML. Here: what all functions share (no panic leaves, no null pointer is written through) and the functions about
//! the library and the driver. A function that is missing is simply not exported, as in an older driver.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nvml_wrapper_sys::bindings::{
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
    nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN, nvmlReturn_enum_NVML_SUCCESS as SUCCESS,
};

use crate::library::{self, Code};

/// Declares C functions with bodies of type `Result<(), Code>`.
macro_rules! nvml_functions {
    ($(fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block)*) => { $(
        // SAFETY: the names are NVML's and this library stands in for NVML; nothing else in a process defines one.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $kind),*) -> $crate::library::Code {
            $crate::abi::answer(move || {
                $crate::library::admit(stringify!($name))?;
                $body
            })
        }
    )* };
}

mod device;
mod events;
mod field;
mod gpm;
mod health;
mod links;
mod mig;
mod readings;
mod topology;
mod usage;

/// An out pointer of a C caller, or a pointer to an array of them.
#[repr(transparent)]
pub struct OutPointer<T>(*mut T);

/// A C string of a caller.
#[repr(transparent)]
pub struct Text(*const c_char);

/// An `nvmlDevice_t` or `nvmlEventSet_t`: a number in a pointer's clothes, never followed.
pub type Handle = usize;

impl<T: Copy> OutPointer<T> {
    /// Stores `value`; a null pointer is the caller's error.
    pub fn put(&self, value: T) -> Result<(), Code> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: by NVML's contract an out pointer that is not null points to room for one T.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// What the caller left there.
    pub fn get(&self) -> Result<T, Code> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: used for counts and versioned structures only, which by NVML's contract the caller has set.
        Ok(unsafe { self.0.read() })
    }

    /// The `count` elements the caller filled in.
    pub fn get_all(&self, count: usize) -> Result<Vec<T>, Code> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: by NVML's contract an array that goes both ways holds the `count` elements the caller told.
        Ok(unsafe { std::slice::from_raw_parts(self.0, count) }.to_vec())
    }

    /// The version in the first field of a versioned structure, before its size is known.
    pub fn version(&self) -> Result<c_uint, Code> {
        OutPointer::<c_uint>(self.0.cast()).get()
    }

    /// The same pointer as one to the structure that the version named.
    pub fn cast<U: Copy>(&self) -> OutPointer<U> {
        OutPointer(self.0.cast())
    }

    /// True where the caller wants only the count, not the array.
    pub fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Stores all of `values` in an array with room for `capacity`.
    pub fn put_all(&self, capacity: usize, values: &[T]) -> Result<(), Code> {
        if values.len() > capacity {
            return Err(INSUFFICIENT_SIZE);
        }
        if values.is_empty() {
            return Ok(());
        }
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: by NVML's contract the array has room for the `capacity` elements the caller told, and values are no more.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), self.0, values.len()) };
        Ok(())
    }
}

/// The version that NVML's structures carry in their first field: `NVML_STRUCT_VERSION`.
pub const fn struct_version<T>(number: u32) -> c_uint {
    size_of::<T>() as c_uint | (number << 24)
}

impl OutPointer<c_char> {
    /// Stores a NUL-terminated string in a buffer of `length` bytes.
    pub fn put_text(&self, length: c_uint, text: &str) -> Result<(), Code> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        let bytes: Vec<c_char> = text
            .bytes()
            .filter(|&byte| byte != 0)
            .chain([0])
            .map(|byte| byte as c_char)
            .collect();
        self.put_all(length as usize, &bytes)
    }
}

impl Text {
    /// The string, where it is one.
    pub fn read(&self) -> Result<String, Code> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: by NVML's contract a string argument that is not null is NUL-terminated and stays put during the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str()
            .map(str::to_owned)
            .map_err(|_| INVALID_ARGUMENT)
    }
}

/// Runs the body of a C function; a panic becomes `NVML_ERROR_UNKNOWN`.
pub fn answer(body: impl FnOnce() -> Result<(), Code>) -> Code {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => UNKNOWN,
    }
}

/// `text` in a fixed array of a C structure, cut to fit.
pub fn fixed_text<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (place, byte) in array.iter_mut().take(N.saturating_sub(1)).zip(text.bytes()) {
        *place = byte as c_char;
    }
    array
}

nvml_functions! {
    fn nvmlInit() { library::initialise() }

    fn nvmlInit_v2() { library::initialise() }

    fn nvmlInitWithFlags(_flags: c_uint) { library::initialise() }

    fn nvmlShutdown() { library::shut_down() }

    fn nvmlSystemGetDriverVersion(version: OutPointer<c_char>, length: c_uint) {
        version.put_text(length, &library::state()?.driver.version)
    }

    fn nvmlSystemGetNVMLVersion(version: OutPointer<c_char>, length: c_uint) {
        version.put_text(length, &library::state()?.driver.nvml_version)
    }

    fn nvmlSystemGetCudaDriverVersion(version: OutPointer<c_int>) { version.put(library::state()?.driver.cuda_version) }

    fn nvmlSystemGetCudaDriverVersion_v2(version: OutPointer<c_int>) { version.put(library::state()?.driver.cuda_version) }

    fn nvmlSystemGetProcessName(pid: c_uint, name: OutPointer<c_char>, length: c_uint) {
        library::state()?;
        let path = fs::read_link(format!("/proc/{pid}/exe")).map_err(|_| NOT_FOUND)?;
        name.put_text(length, &path.to_string_lossy())
    }
}

/// Calls answered so far: no function of NVML, for measuring what a sweep costs.
// SAFETY: as for the functions above; the name is nvml-sim's own.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlSimCalls() -> u64 {
    library::calls()
}

// SAFETY: as for the functions above.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: Code) -> *const c_char {
    let text: &'static CStr = match code {
        SUCCESS => c"The operation was successful",
        1 => c"Uninitialized",
        INVALID_ARGUMENT => c"Invalid Argument",
        NOT_SUPPORTED => c"Not Supported",
        NOT_FOUND => c"Not Found",
        INSUFFICIENT_SIZE => c"Insufficient Size",
        4 => c"Insufficient Permissions",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        13 => c"Function Not Found",
        15 => c"GPU is lost",
        19 => c"In use by another client",
        21 => c"No data",
        23 => c"Insufficient Resources",
        25 => c"Argument version mismatch",
        18 => c"RM has detected an NVML/RM version mismatch.",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_does_not_leave_the_library() {
        assert_eq!(answer(|| panic!("a fault of our own")), UNKNOWN);
        assert_eq!(answer(|| Err(NOT_FOUND)), NOT_FOUND);
        assert_eq!(answer(|| Ok(())), SUCCESS);
    }

    #[test]
    fn fixed_text_is_cut_and_always_ends_in_nul() {
        assert_eq!(
            fixed_text::<4>("abcdef"),
            [b'a', b'b', b'c', 0].map(|byte| byte as c_char)
        );
        assert_eq!(
            fixed_text::<3>("a"),
            [b'a', 0, 0].map(|byte| byte as c_char)
        );
    }
}
