//! The ordinary user of the tests: made when missing, removed by the last test that needs them.
//!
//! Tests run in parallel processes: a lock file counts them (shared while in use, exclusive to make or remove).

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::User;
use std::fs::{File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

const NAME: &str = "gpupool-test";
const LOCK: &str = "/run/gpupool-test-user.lock";
/// There while the user is one that a test made.
const MADE: &str = "/run/gpupool-test-user.made";

/// An ordinary user of this machine.
pub struct Person {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    lock: Option<Flock<File>>,
}

impl Person {
    /// The user, that stays until the last borrower is gone.
    pub fn borrow() -> Self {
        loop {
            // No test removes the user while the lock is held.
            let lock = Flock::lock(lock_file(), FlockArg::LockShared)
                .map_err(|(_, error)| error)
                .unwrap();
            if let Some(user) = find() {
                return Self {
                    name: user.name,
                    uid: user.uid.as_raw(),
                    gid: user.gid.as_raw(),
                    lock: Some(lock),
                };
            }
            drop(lock);
            let _alone = Flock::lock(lock_file(), FlockArg::LockExclusive)
                .map_err(|(_, error)| error)
                .unwrap();
            if find().is_none() {
                make();
            }
        }
    }

    /// May they run this program where it is?
    pub fn may_execute(&self, program: &Path) -> bool {
        let mut test = Command::new("/usr/bin/test");
        test.arg("-x").arg(program).uid(self.uid).gid(self.gid);
        test.status().is_ok_and(|status| status.success())
    }
}

impl Drop for Person {
    fn drop(&mut self) {
        drop(self.lock.take());
        if let Ok(_alone) = Flock::lock(lock_file(), FlockArg::LockExclusiveNonblock)
            && Path::new(MADE).exists()
        {
            let _ = Command::new("userdel").arg(NAME).output();
            let _ = std::fs::remove_file(MADE);
        }
    }
}

fn lock_file() -> File {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(LOCK)
        .unwrap()
}

fn find() -> Option<User> {
    User::from_name(NAME).unwrap()
}

fn make() {
    let output = Command::new("useradd")
        .args(["-r", "-M", "-s", "/bin/sh", NAME])
        .output();
    let output = output.expect("useradd makes the ordinary user of the tests (package passwd)");
    assert!(output.status.success(), "{output:?}");
    std::fs::write(MADE, "").unwrap();
}
