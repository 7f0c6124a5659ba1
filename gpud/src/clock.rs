//! The node's wall clock: its stamps are for display, the controller computes ages by its own clock.

use gmodel::Timestamp;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since the epoch.
pub fn wall_clock() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(since.as_millis() as i64)
}

/// By so much the clock may run apart from the machine's steady one without having been set: a daemon that adjusts it is slower.
const DRIFT: Duration = Duration::from_secs(2);

/// Notices that the wall clock is set.
#[derive(Debug)]
pub struct ClockWatch {
    wall: Timestamp,
    steady: Instant,
}

impl ClockWatch {
    pub fn new() -> Self {
        Self {
            wall: wall_clock(),
            steady: Instant::now(),
        }
    }

    /// Whether the clock was set since the last call.
    pub fn was_set(&mut self) -> bool {
        let before = std::mem::replace(self, Self::new());
        let by_steady = self.steady.duration_since(before.steady).as_millis() as i64;
        let by_wall = self.wall.0 - before.wall.0;
        by_wall.abs_diff(by_steady) > DRIFT.as_millis() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_of_the_clock_is_seen_once_and_its_passing_is_none() {
        let mut clock = ClockWatch::new();
        assert!(!clock.was_set());
        for millis in [-60_000, 60_000] {
            clock.wall.0 += millis;
            assert!(clock.was_set());
            assert!(!clock.was_set());
        }
    }
}
