//! The clock of job time limits: CLOCK_BOOTTIME, which goes on during suspend and cannot be set. And the boot id, which says whether
//! two readings may be compared.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

/// Milliseconds since boot, suspend included.
pub fn boottime_millis() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: now outlives the call, which cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut now) };
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// A random id the kernel draws at each boot: the text of /proc/sys/kernel/random/boot_id.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

/// A timer for a poll loop, on CLOCK_BOOTTIME.
#[derive(Debug)]
pub struct BootTimer {
    timer: TimerFd,
}

impl BootTimer {
    pub fn new() -> io::Result<BootTimer> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        Ok(BootTimer {
            timer: TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?,
        })
    }

    /// Becomes readable when the clock reaches `deadline_millis`, at once if it has.
    pub fn set(&self, deadline_millis: u64) -> io::Result<()> {
        // Zero would disarm.
        let at = TimeSpec::from_duration(Duration::from_millis(deadline_millis.max(1)));
        Ok(self.timer.set(
            Expiration::OneShot(at),
            TimerSetTimeFlags::TFD_TIMER_ABSTIME,
        )?)
    }

    pub fn disarm(&self) -> io::Result<()> {
        Ok(self.timer.unset()?)
    }

    /// Takes an expiry, so that the descriptor is not readable any more. True if there was one.
    pub fn take_expiry(&self) -> io::Result<bool> {
        match self.timer.wait() {
            Ok(()) => Ok(true),
            Err(nix::Error::EAGAIN) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }
}

impl AsFd for BootTimer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    #[test]
    fn a_timer_fires_at_its_deadline_and_not_before() {
        let timer = BootTimer::new().expect("timerfd");
        let deadline = boottime_millis() + 50;
        timer.set(deadline).expect("arm");
        assert!(!timer.take_expiry().expect("read"), "not yet");
        let mut fds = [PollFd::new(timer.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut fds, PollTimeout::from(5000u16)).expect("poll"), 1);
        assert!(boottime_millis() >= deadline);
        assert!(timer.take_expiry().expect("read"));
    }

    #[test]
    fn the_boot_id_is_a_uuid() {
        assert_eq!(boot_id().expect("boot id").len(), 36);
    }
}
