//! Waiting for a while or for a signal that ends a program, whichever comes first.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::AsFd;
use std::time::Duration;

/// The signal that came meanwhile, if it is one that ends a program that waits.
pub(crate) fn signal_within(signals: &SigSet, patience: Duration) -> Option<u8> {
    let Ok(fd) = SignalFd::with_flags(signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
    else {
        std::thread::sleep(patience);
        return None;
    };
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    let _ = poll(
        &mut fds,
        PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX),
    );
    let signal = fd.read_signal().ok().flatten()?.ssi_signo as u8;
    let passed_on = [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGWINCH]
        .iter()
        .any(|known| *known as u8 == signal);
    (!passed_on).then_some(signal)
}
