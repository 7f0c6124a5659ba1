//! libpam's handle of one login: its user, its variables, the system's log, and words to the user. All of C that is called.
//!
//! libpam is opened at run time: the program that calls the module has it loaded, and a build needs no headers of it.

use libc::{c_char, c_int, c_void};
use std::ffi::{CStr, CString};
use std::ptr;

const ITEM_USER: c_int = 2;
const ITEM_CONVERSATION: c_int = 5;
const ERROR_MESSAGE: c_int = 3;
const MOST_WORDS: usize = 64;

type GetItemCall = unsafe extern "C" fn(*const c_void, c_int, *mut *const c_void) -> c_int;
type PutVariableCall = unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int;
type LogCall = unsafe extern "C" fn(*const c_void, c_int, *const c_char, ...);

/// struct pam_message.
#[repr(C)]
struct Message {
    style: c_int,
    text: *const c_char,
}

/// struct pam_response.
#[repr(C)]
struct Response {
    text: *mut c_char,
    code: c_int,
}

/// struct pam_conv.
#[repr(C)]
struct Conversation {
    say: Option<
        unsafe extern "C" fn(c_int, *mut *const Message, *mut *mut Response, *mut c_void) -> c_int,
    >,
    data: *mut c_void,
}

/// How a line of the log is marked.
#[derive(Clone, Copy, Debug)]
pub enum Urgency {
    Notice,
    Error,
}

/// A login under way.
pub struct Handle {
    handle: *mut c_void,
    get_item: GetItemCall,
    put_variable: PutVariableCall,
    log: LogCall,
}

impl Handle {
    /// None without libpam.
    ///
    /// # Safety
    /// `handle` is libpam's, and lives longer than what is returned.
    pub unsafe fn of(handle: *mut c_void) -> Option<Handle> {
        use std::mem::transmute;
        // SAFETY: static names; each symbol has the type that Linux-PAM declares for it since version 1.0.
        unsafe {
            let library = libc::dlopen(c"libpam.so.0".as_ptr(), libc::RTLD_NOW);
            if library.is_null() || handle.is_null() {
                return None;
            }
            let symbol = |name: &CStr| {
                let address = libc::dlsym(library, name.as_ptr());
                (!address.is_null()).then_some(address)
            };
            Some(Handle {
                handle,
                get_item: transmute::<*mut c_void, GetItemCall>(symbol(c"pam_get_item")?),
                put_variable: transmute::<*mut c_void, PutVariableCall>(symbol(c"pam_putenv")?),
                log: transmute::<*mut c_void, LogCall>(symbol(c"pam_syslog")?),
            })
        }
    }

    fn item(&self, number: c_int) -> Option<*const c_void> {
        let mut item = ptr::null();
        // SAFETY: the handle is live; the item is libpam's and stays until it is set anew.
        let code = unsafe { (self.get_item)(self.handle, number, &mut item) };
        (code == 0 && !item.is_null()).then_some(item)
    }

    /// The name of the user that logs in.
    pub fn user(&self) -> Option<String> {
        let name = self.item(ITEM_USER)?;
        // SAFETY: this item is a string with an end.
        let name = unsafe { CStr::from_ptr(name.cast()) };
        Some(name.to_str().ok()?.to_owned())
    }

    /// `NAME=value` for the session. A line that C cannot hold is left out.
    pub fn put_variable(&self, line: &str) {
        if let (Ok(line), true) = (CString::new(line), line.contains('=')) {
            // SAFETY: the handle is live, and libpam copies the line.
            unsafe { (self.put_variable)(self.handle, line.as_ptr()) };
        }
    }

    /// A line in the system's log.
    pub fn log(&self, urgency: Urgency, text: &str) {
        let urgency = match urgency {
            Urgency::Notice => libc::LOG_NOTICE,
            Urgency::Error => libc::LOG_ERR,
        };
        if let Ok(text) = CString::new(text) {
            // SAFETY: the handle is live; the format takes one string, which outlives the call.
            unsafe { (self.log)(self.handle, urgency, c"%s".as_ptr(), text.as_ptr()) };
        }
    }

    /// A line to the user, by the program that calls.
    pub fn tell(&self, text: &str) {
        let (Some(item), Ok(text)) = (self.item(ITEM_CONVERSATION), CString::new(text)) else {
            return;
        };
        let message = Message {
            style: ERROR_MESSAGE,
            text: text.as_ptr(),
        };
        let mut messages = [ptr::from_ref(&message)];
        let mut response: *mut Response = ptr::null_mut();
        // SAFETY: this item is a pam_conv. Its function reads one message, and leaves one response of malloc or none.
        unsafe {
            let conversation = &*item.cast::<Conversation>();
            let Some(say) = conversation.say else {
                return;
            };
            say(1, messages.as_mut_ptr(), &mut response, conversation.data);
            if !response.is_null() {
                libc::free((*response).text.cast());
                libc::free(response.cast());
            }
        }
    }
}

/// The words behind the module's name in its PAM line. A word that is no UTF-8 is replaced by one that no option is.
///
/// # Safety
/// `words` are `count` strings.
pub unsafe fn words_of(count: c_int, words: *const *const c_char) -> Vec<String> {
    let count = usize::try_from(count).unwrap_or(0).min(MOST_WORDS);
    let word = |at: usize| {
        // SAFETY: the caller's promise; libpam gives no null word.
        let word = unsafe { CStr::from_ptr(*words.add(at)) };
        word.to_string_lossy().into_owned()
    };
    (0..count).map(word).collect()
}
