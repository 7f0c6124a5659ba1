//! A PAM session around a job: limits, keyrings and mounts that the site's session modules set up for any login. libpam is
//! opened at run time, so that a node without it works too. Only session and account; no password is asked for.
//! Source: pam(3), pam_start(3), pam_open_session(3).

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStringExt;
use std::ptr;

/// An open session of the calling process: modules set rlimits and namespaces of the caller, which its children inherit.
/// So the supervisor opens it before it starts the job. Modules may block (LDAP, mkhomedir).
#[derive(Debug)]
pub struct Session {
    library: Library,
    handle: PamHandle,
}

/// The opaque pam_handle_t; it belongs to one process and is used by one thread at a time.
#[derive(Debug)]
struct PamHandle(*mut c_void);

// SAFETY: libpam ties a handle to no thread, and Session gives out no shared access to it.
unsafe impl Send for PamHandle {}

impl Session {
    /// Opens a session of `user` for the service named in /etc/pam.d. `Ok(None)` when this machine has no libpam. An error
    /// means that the site's policy or a module said no.
    pub fn open(service: &str, user: &str) -> Result<Option<Session>, PamError> {
        let Some(library) = Library::load() else {
            return Ok(None);
        };
        let conversation = Conversation {
            answer: refuse_to_talk,
            data: ptr::null_mut(),
        };
        let (c_service, c_user) = (c_name(service)?, c_name(user)?);
        let mut handle = ptr::null_mut();
        // SAFETY: the strings and the conversation outlive the call, which copies them.
        let code = unsafe {
            (library.start)(
                c_service.as_ptr(),
                c_user.as_ptr(),
                &conversation,
                &mut handle,
            )
        };
        if code != SUCCESS || handle.is_null() {
            return Err(PamError::new(
                "starting a transaction",
                user,
                library.words(handle, code),
            ));
        }
        let session = Session {
            library,
            handle: PamHandle(handle),
        };
        session.establish(user).map(|()| Some(session))
    }

    fn establish(&self, user: &str) -> Result<(), PamError> {
        // SAFETY: the handle is live until pam_end.
        let code =
            unsafe { (self.library.set_item)(self.handle.0, ITEM_TTY, c"gpupool".as_ptr().cast()) };
        let steps: [(&'static str, PamCall, c_int); 3] = [
            ("asking about the account", self.library.acct_mgmt, SILENT),
            (
                "establishing the credentials",
                self.library.setcred,
                SILENT | ESTABLISH_CRED,
            ),
            ("opening the session", self.library.open_session, SILENT),
        ];
        let mut failed = (code != SUCCESS).then_some(("naming the terminal", code));
        for (doing, call, flags) in steps {
            if failed.is_none() {
                // SAFETY: as above.
                let code = unsafe { call(self.handle.0, flags) };
                failed = (code != SUCCESS).then_some((doing, code));
            }
        }
        let Some((doing, code)) = failed else {
            return Ok(());
        };
        let error = PamError::new(doing, user, self.library.words(self.handle.0, code));
        // SAFETY: as above; the handle is not used after it, since Session is dropped without `close`.
        unsafe { (self.library.end)(self.handle.0, code) };
        Err(error)
    }

    /// Variables that session modules have set (pam_env, pam_systemd), to be added to the job's environment.
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        // SAFETY: the list and its strings are malloc'ed for the caller, and the list ends with a null.
        unsafe {
            let list = (self.library.getenvlist)(self.handle.0);
            if list.is_null() {
                return Vec::new();
            }
            let mut variables = Vec::new();
            let mut at = list;
            while !(*at).is_null() {
                let text = CStr::from_ptr(*at).to_bytes();
                if let Some(equals) = text.iter().position(|b| *b == b'=') {
                    let part = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
                    variables.push((part(&text[..equals]), part(&text[equals + 1..])));
                }
                libc::free((*at).cast());
                at = at.add(1);
            }
            libc::free(list.cast());
            variables
        }
    }

    /// Closes the session, after the job's last process. Errors of closing are told, and the session is gone all the same.
    pub fn close(self, user: &str) -> Result<(), PamError> {
        let handle = self.handle.0;
        // SAFETY: the handle is live; it is ended here, once, because self is consumed.
        unsafe {
            let closed = (self.library.close_session)(handle, SILENT);
            let deleted = (self.library.setcred)(handle, SILENT | DELETE_CRED);
            let code = if closed == SUCCESS { deleted } else { closed };
            let words = self.library.words(handle, code);
            (self.library.end)(handle, code);
            if code == SUCCESS {
                Ok(())
            } else {
                Err(PamError::new("closing the session", user, words))
            }
        }
    }
}

/// PAM said no, in its own words.
#[derive(Debug, thiserror::Error)]
#[error("PAM: {doing} of {user:?}: {words}")]
pub struct PamError {
    doing: &'static str,
    user: String,
    words: String,
}

impl PamError {
    fn new(doing: &'static str, user: &str, words: String) -> PamError {
        PamError {
            doing,
            user: user.to_owned(),
            words,
        }
    }
}

const SUCCESS: c_int = 0;
const CONVERSATION_ERROR: c_int = 19;
const ITEM_TTY: c_int = 3;
const SILENT: c_int = 0x8000;
const ESTABLISH_CRED: c_int = 2;
const DELETE_CRED: c_int = 4;

type PamCall = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;

/// struct pam_conv.
#[repr(C)]
struct Conversation {
    answer: unsafe extern "C" fn(c_int, *mut *const c_void, *mut *mut c_void, *mut c_void) -> c_int,
    data: *mut c_void,
}

/// A job cannot answer: a module that wants a password fails.
unsafe extern "C" fn refuse_to_talk(
    _count: c_int,
    _messages: *mut *const c_void,
    _answers: *mut *mut c_void,
    _data: *mut c_void,
) -> c_int {
    CONVERSATION_ERROR
}

type StartCall = unsafe extern "C" fn(
    *const c_char,
    *const c_char,
    *const Conversation,
    *mut *mut c_void,
) -> c_int;
type SetItemCall = unsafe extern "C" fn(*mut c_void, c_int, *const c_void) -> c_int;
type EnvironmentCall = unsafe extern "C" fn(*mut c_void) -> *mut *mut c_char;
type WordsCall = unsafe extern "C" fn(*mut c_void, c_int) -> *const c_char;

/// The functions of libpam.so.0 in use. The library stays loaded: modules may have left threads or exit handlers.
#[derive(Clone, Copy, Debug)]
struct Library {
    start: StartCall,
    end: PamCall,
    set_item: SetItemCall,
    acct_mgmt: PamCall,
    setcred: PamCall,
    open_session: PamCall,
    close_session: PamCall,
    getenvlist: EnvironmentCall,
    strerror: WordsCall,
}

impl Library {
    fn load() -> Option<Library> {
        use std::mem::transmute;
        // SAFETY: static names; each symbol has the type that Linux-PAM declares for it since version 1.0.
        unsafe {
            let library = libc::dlopen(c"libpam.so.0".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL);
            if library.is_null() {
                return None;
            }
            let symbol = |name: &CStr| {
                let address = libc::dlsym(library, name.as_ptr());
                (!address.is_null()).then_some(address)
            };
            Some(Library {
                start: transmute::<*mut c_void, StartCall>(symbol(c"pam_start")?),
                end: transmute::<*mut c_void, PamCall>(symbol(c"pam_end")?),
                set_item: transmute::<*mut c_void, SetItemCall>(symbol(c"pam_set_item")?),
                acct_mgmt: transmute::<*mut c_void, PamCall>(symbol(c"pam_acct_mgmt")?),
                setcred: transmute::<*mut c_void, PamCall>(symbol(c"pam_setcred")?),
                open_session: transmute::<*mut c_void, PamCall>(symbol(c"pam_open_session")?),
                close_session: transmute::<*mut c_void, PamCall>(symbol(c"pam_close_session")?),
                getenvlist: transmute::<*mut c_void, EnvironmentCall>(symbol(c"pam_getenvlist")?),
                strerror: transmute::<*mut c_void, WordsCall>(symbol(c"pam_strerror")?),
            })
        }
    }

    fn words(&self, handle: *mut c_void, code: c_int) -> String {
        // SAFETY: pam_strerror takes any handle, null included, and returns a static string.
        unsafe {
            let text = (self.strerror)(handle, code);
            if text.is_null() {
                format!("error {code}")
            } else {
                CStr::from_ptr(text).to_string_lossy().into_owned()
            }
        }
    }
}

fn c_name(name: &str) -> Result<CString, PamError> {
    CString::new(name)
        .map_err(|_| PamError::new("naming the user or service", name, "a NUL byte".into()))
}
