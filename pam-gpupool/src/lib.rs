//! `pam_gpupool.so`: lets users log in to a node only where they have a job, and has their session moved into that job.
//!
//! Asks gpud by its local socket and decides nothing else. Root is none of its business. Without an answer no other user comes in.
//! Source: pam(3), pam_sm_acct_mgmt(3), pam_sm_open_session(3); pam_slurm_adopt for what administrators expect.

mod handle;
mod options;
mod question;
mod sentence;

use gmodel::node_login::{LoginAnswer, LoginQuestion};
use handle::{Handle, Urgency};
use libc::{c_char, c_int, c_void};
use nix::unistd::User;
use options::Options;

const PAM_SUCCESS: c_int = 0;
const PAM_SERVICE_ERR: c_int = 3;
const PAM_PERM_DENIED: c_int = 6;
const PAM_AUTHINFO_UNAVAIL: c_int = 9;
const PAM_USER_UNKNOWN: c_int = 10;
const PAM_SESSION_ERR: c_int = 14;
const PAM_IGNORE: c_int = 25;
const PAM_SILENT: c_int = 0x8000;

/// May this user log in?
///
/// # Safety
/// Called by libpam, with a live handle and `count` words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pam_sm_acct_mgmt(
    handle: *mut c_void,
    flags: c_int,
    count: c_int,
    words: *const *const c_char,
) -> c_int {
    // SAFETY: libpam's own handle and words, for the time of this call.
    unsafe { serve(handle, flags, count, words, false) }
}

/// Has the calling process moved into the user's job.
///
/// # Safety
/// As [`pam_sm_acct_mgmt`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pam_sm_open_session(
    handle: *mut c_void,
    flags: c_int,
    count: c_int,
    words: *const *const c_char,
) -> c_int {
    // SAFETY: as above.
    unsafe { serve(handle, flags, count, words, true) }
}

/// A session leaves its job by ending.
#[unsafe(no_mangle)]
pub extern "C" fn pam_sm_close_session(
    _handle: *mut c_void,
    _flags: c_int,
    _count: c_int,
    _words: *const *const c_char,
) -> c_int {
    PAM_SUCCESS
}

/// # Safety
/// As [`pam_sm_acct_mgmt`].
unsafe fn serve(
    handle: *mut c_void,
    flags: c_int,
    count: c_int,
    words: *const *const c_char,
    enter: bool,
) -> c_int {
    // SAFETY: the caller's promise.
    let (handle, words) = unsafe { (Handle::of(handle), handle::words_of(count, words)) };
    let Some(handle) = handle else {
        return PAM_SERVICE_ERR;
    };
    let options = match Options::read(&words) {
        Ok(options) => options,
        Err(text) if is_root(&handle) => {
            handle.log(Urgency::Error, &text);
            return PAM_IGNORE;
        }
        Err(text) => {
            handle.log(Urgency::Error, &text);
            return PAM_SERVICE_ERR;
        }
    };
    let options = Options {
        quiet: options.quiet || flags & PAM_SILENT != 0,
        ..options
    };
    decide(&handle, &options, enter)
}

fn user_of(handle: &Handle) -> Option<User> {
    User::from_name(&handle.user()?).ok().flatten()
}

fn is_root(handle: &Handle) -> bool {
    user_of(handle).is_some_and(|user| user.uid.is_root())
}

fn decide(handle: &Handle, options: &Options, enter: bool) -> c_int {
    let Some(user) = user_of(handle) else {
        return PAM_USER_UNKNOWN;
    };
    if user.uid.is_root() {
        return PAM_IGNORE;
    }
    let question = LoginQuestion {
        uid: user.uid.as_raw(),
        enter,
        refuse_several: options.refuse_several,
    };
    let refused = if enter {
        PAM_SESSION_ERR
    } else {
        PAM_PERM_DENIED
    };
    let answer = match question::ask(&options.socket, &question) {
        Ok(answer) => answer,
        Err(text) => {
            handle.log(Urgency::Error, &text);
            tell(handle, options, &sentence::of_silence());
            return PAM_AUTHINFO_UNAVAIL;
        }
    };
    match &answer {
        LoginAnswer::NoJob { .. } if options.ignore_no_job => return PAM_IGNORE,
        LoginAnswer::Admitted { .. } => return PAM_SUCCESS,
        LoginAnswer::Moved { run, environment } => {
            environment
                .iter()
                .for_each(|line| handle.put_variable(line));
            let text = format!("a session of {} is in job {}", user.name, run.job);
            handle.log(Urgency::Notice, &text);
            return PAM_SUCCESS;
        }
        _ => {}
    }
    let text = sentence::of_refusal(&answer);
    handle.log(
        Urgency::Notice,
        &format!("{} is refused: {text}", user.name),
    );
    tell(handle, options, &text);
    refused
}

fn tell(handle: &Handle, options: &Options, text: &str) {
    if !options.quiet {
        handle.tell(&format!("gpupool: {text}"));
    }
}
