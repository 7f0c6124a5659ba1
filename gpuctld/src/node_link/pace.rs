//! The pace at which a node's reports are stored.

use std::time::{Duration, Instant};

/// Bounds how often a node may report what is stored at each change: its inventory, and idle GPUs. Beyond the bound its
/// connection waits, and with it only this node.
pub(super) struct ReportPace {
    /// When the reports so far are paid for.
    paid: Instant,
}

impl ReportPace {
    /// One report is paid for after this.
    const EACH: Duration = Duration::from_secs(5);
    /// Reports that may come at once.
    const AT_ONCE: u32 = 40;

    pub(super) fn new(now: Instant) -> Self {
        Self { paid: now }
    }

    /// How long a report that arrives now has to wait.
    pub(super) fn wait(&mut self, now: Instant) -> Duration {
        self.paid = self.paid.max(now) + Self::EACH;
        self.paid
            .saturating_duration_since(now + Self::EACH * Self::AT_ONCE)
            .min(Self::EACH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_reports_all_the_time_is_read_every_few_seconds() {
        let start = Instant::now();
        let mut pace = ReportPace::new(start);
        let mut now = start;
        let mut waited = Duration::ZERO;
        for reports in 1..=100 {
            let wait = pace.wait(now);
            assert!(reports > ReportPace::AT_ONCE || wait.is_zero(), "{reports}");
            waited += wait;
            now += wait;
        }
        assert_eq!(waited, ReportPace::EACH * (100 - ReportPace::AT_ONCE));
        // A report every half a minute never waits.
        let mut pace = ReportPace::new(start);
        assert!((0..1000).all(|at| pace.wait(start + Duration::from_secs(30 * at)).is_zero()));
    }
}
