//! A histogram of counts in powers of two, filled from any thread without a lock.
//!
//! Owns the buckets and what is read from them; never knows what is counted. Durations are microseconds.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Bucket `b` counts values below `2^b`; the last takes everything above.
pub const BUCKETS: usize = 27;

#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
    max: AtomicU64,
}

/// What a histogram held at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistogramValues {
    /// Upper bound (exclusive) and count of each bucket, not cumulated.
    pub buckets: Vec<(u64, u64)>,
    pub count: u64,
    pub sum: u64,
    pub max: u64,
}

impl Histogram {
    pub fn record(&self, value: u64) {
        let bucket = (u64::BITS - value.leading_zeros()) as usize;
        self.buckets[bucket.min(BUCKETS - 1)].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
        self.max.fetch_max(value, Relaxed);
    }

    /// Records a duration in microseconds.
    pub fn record_duration(&self, duration: Duration) {
        self.record(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
    }

    pub fn values(&self) -> HistogramValues {
        let buckets: Vec<(u64, u64)> = self
            .buckets
            .iter()
            .enumerate()
            .map(|(b, n)| (1 << b, n.load(Relaxed)))
            .collect();
        let count = buckets.iter().map(|(_, n)| n).sum();
        HistogramValues {
            buckets,
            count,
            sum: self.sum.load(Relaxed),
            max: self.max.load(Relaxed),
        }
    }
}

impl HistogramValues {
    /// Upper bound of the bucket that holds the given share (0 to 100) of all values; 0 when empty.
    pub fn percentile(&self, percent: u64) -> u64 {
        let wanted = (self.count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        for (bound, count) in &self.buckets {
            seen += count;
            if seen >= wanted {
                return (*bound).min(self.max);
            }
        }
        0
    }
    pub fn mean(&self) -> u64 {
        self.sum.checked_div(self.count).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_come_from_the_bucket_that_holds_them() {
        let h = Histogram::default();
        assert_eq!(h.values().percentile(50), 0);
        for value in [1, 3, 3, 100] {
            h.record(value);
        }
        let values = h.values();
        assert_eq!(
            (values.count, values.sum, values.max, values.mean()),
            (4, 107, 100, 26)
        );
        assert_eq!(values.percentile(50), 4);
        assert_eq!(values.percentile(100), 100);
        h.record(u64::MAX / 2);
        assert_eq!(
            h.values().buckets[BUCKETS - 1].1,
            1,
            "too large for any other bucket"
        );
    }
}
