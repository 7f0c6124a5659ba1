//! What libpmix asks of its host, from a thread of its own: turned into events.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use super::library::{
    ERR_NOT_FOUND, ERR_NOT_SUPPORTED, ERROR, Info, ModexCallback, Module, OPERATION_SUCCEEDED,
    OpCallback, Proc, RANK_WILDCARD, SUCCESS, Status,
};
use super::{PmixEvent, PmixReply};

/// Of this process, which serves one step.
pub struct Host {
    pub name: String,
    pub size: u32,
    pub take: Box<dyn Fn(PmixEvent) + Send + Sync>,
}

pub static HOST: OnceLock<Host> = OnceLock::new();

pub static MODULE: Module = Module {
    client_connected: Some(client_connected),
    client_finalized: Some(client_finalized),
    abort: Some(abort),
    fence: Some(fence),
    direct_modex: Some(direct_modex),
    not_offered_names: [std::ptr::null(); 3],
    spawn: Some(spawn),
    not_offered: [std::ptr::null(); 55],
};

impl PmixReply {
    /// The library copies nothing: it says when it has read the bytes.
    pub fn send(self, status: Status, data: Vec<u8>) {
        let Some(callback) = self.callback else {
            return;
        };
        let data = Box::new(data);
        let (bytes, count) = (data.as_ptr().cast::<c_char>(), data.len());
        let owner = Box::into_raw(data).cast::<c_void>();
        // SAFETY: the library's own function and word, used once; the bytes live until `release` gets their owner.
        unsafe { callback(status, bytes, count, self.word, Some(release), owner) };
    }

    pub fn answer(self, data: Vec<u8>) {
        self.send(SUCCESS, data);
    }

    pub fn refuse(self) {
        self.send(ERR_NOT_FOUND, Vec::new());
    }
}

unsafe extern "C" fn release(owner: *mut c_void) {
    // SAFETY: it came from Box::into_raw in `send`, and the library gives it back once.
    drop(unsafe { Box::from_raw(owner.cast::<Vec<u8>>()) });
}

/// The rank, if the process is of this step.
///
/// # Safety
/// Null, or a process of the library's.
unsafe fn rank_of(host: &Host, process: *const Proc) -> Option<u32> {
    // SAFETY: as the caller says; a name ends by a NUL.
    let process = unsafe { process.as_ref() }?;
    let name: Vec<u8> = process.name.iter().map(|letter| *letter as u8).collect();
    let name = CStr::from_bytes_until_nul(&name).ok()?;
    (name.to_bytes() == host.name.as_bytes()).then_some(process.rank)
}

/// # Safety
/// As `rank_of`.
unsafe fn tell(process: *const Proc, event: impl FnOnce(u32) -> PmixEvent) -> Status {
    let Some(host) = HOST.get() else { return ERROR };
    // SAFETY: as the caller says.
    match unsafe { rank_of(host, process) } {
        Some(rank) => {
            (host.take)(event(rank));
            OPERATION_SUCCEEDED
        }
        None => ERR_NOT_FOUND,
    }
}

unsafe extern "C" fn client_connected(
    process: *const Proc,
    _object: *mut c_void,
    _callback: OpCallback,
    _word: *mut c_void,
) -> Status {
    // SAFETY: the library's process lives as long as the call.
    unsafe { tell(process, |rank| PmixEvent::Connected { rank }) }
}

unsafe extern "C" fn client_finalized(
    process: *const Proc,
    _object: *mut c_void,
    _callback: OpCallback,
    _word: *mut c_void,
) -> Status {
    // SAFETY: as above.
    unsafe { tell(process, |rank| PmixEvent::Finalized { rank }) }
}

unsafe extern "C" fn abort(
    process: *const Proc,
    _object: *mut c_void,
    code: c_int,
    message: *const c_char,
    _processes: *mut Proc,
    _count: usize,
    _callback: OpCallback,
    _word: *mut c_void,
) -> Status {
    let message = match message.is_null() {
        true => String::new(),
        // SAFETY: a C string of the library's.
        false => unsafe { CStr::from_ptr(message) }
            .to_string_lossy()
            .into_owned(),
    };
    // SAFETY: as above.
    unsafe {
        tell(process, |rank| PmixEvent::Aborted {
            rank,
            code,
            message,
        })
    }
}

unsafe extern "C" fn fence(
    processes: *const Proc,
    count: usize,
    _infos: *const Info,
    _info_count: usize,
    data: *mut c_char,
    length: usize,
    callback: ModexCallback,
    word: *mut c_void,
) -> Status {
    let Some(host) = HOST.get() else { return ERROR };
    // SAFETY: an array of the library's for the time of the call; the ranks are read one by one.
    let ranks = (0..count).map(|at| unsafe { rank_of(host, processes.add(at)) });
    let ranks: Option<Vec<u32>> = ranks.collect();
    let is_all =
        |ranks: &Vec<u32>| ranks.contains(&RANK_WILDCARD) || ranks.len() == host.size as usize;
    if !ranks.as_ref().is_some_and(is_all) {
        let rank = ranks.and_then(|ranks| ranks.first().copied()).unwrap_or(0);
        (host.take)(PmixEvent::Unsupported {
            rank,
            what: "a fence of some ranks of the step",
        });
        return ERR_NOT_SUPPORTED;
    }
    let bytes = match data.is_null() {
        true => Vec::new(),
        // SAFETY: malloc'ed by the library for its host, which frees it.
        false => unsafe {
            let bytes = std::slice::from_raw_parts(data.cast::<u8>(), length).to_vec();
            libc::free(data.cast());
            bytes
        },
    };
    let reply = PmixReply { callback, word };
    (host.take)(PmixEvent::Fence { data: bytes, reply });
    SUCCESS
}

unsafe extern "C" fn direct_modex(
    process: *const Proc,
    _infos: *const Info,
    _count: usize,
    callback: ModexCallback,
    word: *mut c_void,
) -> Status {
    let reply = PmixReply { callback, word };
    // SAFETY: as above.
    match unsafe { tell(process, |rank| PmixEvent::Wanted { rank, reply }) } {
        OPERATION_SUCCEEDED => SUCCESS,
        refused => refused,
    }
}

unsafe extern "C" fn spawn(
    process: *const Proc,
    _infos: *const Info,
    _info_count: usize,
    _programs: *const c_void,
    _program_count: usize,
    _callback: *const c_void,
    _word: *mut c_void,
) -> Status {
    // SAFETY: as above.
    unsafe { tell(process, |rank| PmixEvent::Spawn { rank }) };
    ERR_NOT_SUPPORTED
}
