//! A submission as it is sent: what the submitting process is, the variables that go along, and a key of its own.

use crate::environment;
use crate::launch_context::Submitter;
use crate::resource_limits;
use crate::script::Work;
use crate::specification::Submission;
use gcli::{Failure, local_time};
use gmodel::byte_text;
use gwire::api::{HOME, SubmitRequest};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;

/// This process. From outside of the cluster its directory means nothing there, and its limits neither: the controller knows the
/// user's home directory as `~`.
pub(crate) fn submitter(outside: bool) -> Result<Submitter, Failure> {
    let host = nix::unistd::gethostname()
        .map_err(|error| Failure::new(format_args!("cannot read the host's name: {error}")))?;
    Ok(Submitter {
        work_dir: match outside {
            true => Some(HOME.to_owned()),
            false => work_dir(),
        },
        host: host.to_string_lossy().into_owned(),
        umask: umask(),
        limits: match outside {
            true => Vec::new(),
            false => resource_limits::own(),
        },
        now: local_time::now(),
        outside,
    })
}

/// The working directory by the name the user knows it under, which may lead through links; None if it is gone.
fn work_dir() -> Option<String> {
    let real = std::env::current_dir().ok()?;
    let named = std::env::var_os("PWD")
        .map(std::path::PathBuf::from)
        .filter(|path| path.is_absolute() && path.canonicalize().is_ok_and(|path| path == real));
    Some(byte_text::from_bytes(
        named.unwrap_or(real).as_os_str().as_bytes(),
    ))
}

/// The mask can only be read by setting it; the command has one thread.
fn umask() -> u32 {
    use nix::sys::stat::{Mode, umask};
    let mask = umask(Mode::empty());
    umask(mask);
    mask.bits()
}

pub(crate) fn request(submission: &Submission, work: &Work) -> Result<SubmitRequest, Failure> {
    let variables = submission.export.select(std::env::vars_os());
    environment::check_size(&variables).map_err(Failure::new)?;
    Ok(SubmitRequest {
        spec: submission.spec.clone(),
        script: work.script.clone(),
        environment: variables,
        client_key: Some(client_key()?),
        others: submission.others.clone(),
    })
}

/// 128 random bits.
fn client_key() -> Result<String, Failure> {
    let mut key = [0; 16];
    let read =
        std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut key));
    read.map_err(|error| Failure::new(format_args!("cannot read /dev/urandom: {error}")))?;
    Ok(key.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ() {
        let (one, other) = (client_key().unwrap(), client_key().unwrap());
        assert!(one != other && one.len() == 32, "{one} {other}");
    }
}
