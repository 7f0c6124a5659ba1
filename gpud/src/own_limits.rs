//! The limits of this daemon itself, open files and processes: it raises its own, hands the original to its children, and waits for a
//! shortage to pass, since that is no fault of the node. Also the process numbers of the machine that runs may have.

use anyhow::Error;
use gsys::launch::{Resource, Rlimit};
use nix::libc::{EAGAIN, EMFILE, ENFILE, ENOMEM};
use std::fs;
use std::io;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// For a shortage to pass before it counts as the node's error.
const PATIENCE: Duration = Duration::from_secs(60);
const TRY_EVERY: Duration = Duration::from_millis(500);

static INHERITED: OnceLock<Rlimit> = OnceLock::new();

/// Takes as many open files as the hard limit allows. Once, at the start.
pub fn raise_open_files() {
    let Ok(inherited) = Resource::Nofile.current() else {
        return;
    };
    let inherited = *INHERITED.get_or_init(|| inherited);
    if let Err(e) = (Rlimit {
        soft: inherited.hard,
        ..inherited
    })
    .set()
    {
        tracing::warn!("gpud has {} open files at most: {e}", inherited.soft);
    }
}

/// Gives a supervisor the limit that gpud began with: jobs inherit it.
pub fn hand_down(pid: u32) {
    if let Some(Err(e)) = INHERITED.get().map(|limit| limit.set_of(pid as i32)) {
        tracing::debug!("open files of {pid}: {e}");
    }
}

/// Whether it is about what this daemon, or the whole machine, has too few of at this moment.
pub fn is_shortage(error: &Error) -> bool {
    let number = |cause: &(dyn std::error::Error + 'static)| {
        let of_io = cause
            .downcast_ref::<io::Error>()
            .and_then(io::Error::raw_os_error);
        of_io.or_else(|| {
            cause
                .downcast_ref::<nix::Error>()
                .map(|errno| *errno as i32)
        })
    };
    error
        .chain()
        .filter_map(number)
        .any(|number| matches!(number, EMFILE | ENFILE | EAGAIN | ENOMEM))
}

/// An outcome that can be a shortage.
pub trait Outcome {
    fn shortage(&self) -> Option<String>;
}

impl<T> Outcome for anyhow::Result<T> {
    fn shortage(&self) -> Option<String> {
        self.as_ref()
            .err()
            .filter(|e| is_shortage(e))
            .map(|e| format!("{e:#}"))
    }
}

/// Does it again and again while that is all that stands against it. Blocking.
pub fn patiently<T: Outcome>(what: &str, attempt: impl Fn() -> T) -> T {
    let deadline = Instant::now() + PATIENCE;
    let mut told = false;
    loop {
        let outcome = attempt();
        match outcome.shortage() {
            Some(why) if Instant::now() < deadline => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!("{what} waits, for up to {} s: {why}", PATIENCE.as_secs());
                }
                std::thread::sleep(TRY_EVERY);
            }
            _ => return outcome,
        }
    }
}

/// Process numbers that all runs together may have, and the most for one: an eighth of the machine's stays with the system, and no run
/// has more than half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PidRoom {
    pub all: u64,
    pub one: u64,
}

impl PidRoom {
    /// `None` where the kernel does not tell how many there are.
    pub fn of_machine() -> Option<PidRoom> {
        let number = |name: &str| {
            fs::read_to_string(format!("/proc/sys/kernel/{name}"))
                .ok()?
                .trim()
                .parse::<u64>()
                .ok()
        };
        let machine = number("pid_max")?.min(number("threads-max").unwrap_or(u64::MAX));
        Some(PidRoom {
            all: machine - machine / 8,
            one: (machine / 2).max(1),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn a_shortage_is_found_below_what_was_said_of_it() {
        let wrapped = |e: io::Error| Err::<(), _>(e).context("opening the cgroup").unwrap_err();
        assert!(is_shortage(&wrapped(io::Error::from_raw_os_error(EMFILE))));
        assert!(is_shortage(
            &Error::from(nix::Error::EMFILE).context("a pipe")
        ));
        assert!(
            !is_shortage(&wrapped(io::Error::from_raw_os_error(nix::libc::EIO)))
                && !is_shortage(&anyhow::anyhow!("EMFILE"))
        );
    }

    #[test]
    fn one_run_never_has_all_process_numbers() {
        let room = PidRoom::of_machine().unwrap();
        let machine: u64 = fs::read_to_string("/proc/sys/kernel/pid_max")
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        assert!(
            room.one < room.all && room.all < machine && room.one <= machine / 2,
            "{room:?} of {machine}"
        );
    }
}
