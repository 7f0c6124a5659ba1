//! A task between its start and its program: it waits for what the PMIx server tells it, `gstepd --pmix-rank FD -- COMMAND`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use gsys::launch::LaunchSpec;

/// As a shell has it.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
/// This very program, by the kernel's link.
const SELF: &str = "/proc/self/exe";

/// Turns the launch of a program, or of a container's first process, into one that waits first.
pub fn wait_for_server(launch: &mut LaunchSpec<'_>, fd: BorrowedFd<'_>) {
    let command = std::mem::take(&mut launch.argv);
    let fd = fd.as_raw_fd().to_string();
    let itself = if launch.program.is_some() { SELF } else { "" };
    let head = ["gstepd", "--pmix-rank", &fd, itself, "--"].map(OsString::from);
    launch.argv = head.into_iter().chain(command).collect();
    launch.program = Some(SELF.into());
}

/// Never returns when the task has become the program.
pub fn become_program(fd: &OsStr, program: &OsStr, command: &[OsString]) -> ExitCode {
    // A pipe: it can be opened by its number, which its program is not to find open.
    let number = fd.to_string_lossy();
    let read = fs::read(format!("/proc/self/fd/{number}"));
    let _ = number.parse().map(|number: i32| nix::unistd::close(number));
    let (Ok(told), [name, arguments @ ..]) = (read, command) else {
        return ExitCode::FAILURE;
    };
    if told.is_empty() {
        // The step's client was told why.
        return ExitCode::FAILURE;
    }
    let mut task = Command::new(if program.is_empty() { name } else { program });
    task.arg0(name).args(arguments);
    for line in told.split(|byte| *byte == 0) {
        let mut parts = line.splitn(2, |byte| *byte == b'=');
        if let (Some(name @ [_, ..]), Some(value)) = (parts.next(), parts.next()) {
            task.env(OsStr::from_bytes(name), OsStr::from_bytes(value));
        }
    }
    let error = task.exec();
    eprintln!("gstepd: {}: {error}", name.to_string_lossy());
    ExitCode::from(match error.kind() {
        std::io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    })
}
