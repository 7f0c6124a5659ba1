//! A run's use of its GPUs: the node's samples, added up to means, peaks, idle time and joules. Integers only: the same
//! samples give the same sums. Time without samples is never guessed.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// One sample of one GPU or MIG instance. `None`: not told. Counters only rise while the driver is loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UseSample {
    pub at: Timestamp,
    /// Of the multiprocessors' time, where told, else of the time in which any kernel ran.
    pub busy_percent: Option<u32>,
    /// Of the time in which memory was read or written.
    pub memory_percent: Option<u32>,
    pub memory_used_bytes: Option<u64>,
    pub power_mw: Option<u32>,
    pub temperature_c: Option<u32>,
    /// Counters.
    pub energy_mj: Option<u64>,
    pub nvlink_kib: Option<u64>,
    pub pcie_kib: Option<u64>,
    /// Time slowed down for lack of power or for heat.
    pub slowed_ms: Option<u64>,
}

/// Sums over the samples of one run; of several GPUs by [`GpuUseTotals::merge`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuUseTotals {
    /// GPU time between samples that were near enough to each other; of two GPUs it is twice as long.
    pub sampled_ms: u64,
    /// Of it, the time without any use.
    pub idle_ms: u64,
    /// Percent times milliseconds, over the time in which it was told.
    pub busy_percent_ms: u64,
    pub busy_told_ms: u64,
    pub memory_percent_ms: u64,
    pub memory_told_ms: u64,
    pub memory_peak_bytes: u64,
    pub power_peak_mw: u32,
    pub temperature_peak_c: u32,
    pub energy_mj: u64,
    pub nvlink_kib: u64,
    pub pcie_kib: u64,
    pub slowed_ms: u64,
    /// How long it has been idle up to the last sample; with several GPUs, the shortest: one that works is enough.
    pub idle_now_ms: u64,
}

/// Samples further apart say nothing about the time between them; counters do.
pub const MAX_GAP_MS: u64 = 90_000;

impl GpuUseTotals {
    /// Adds the time between two samples of one GPU. `share_milli` is the part of the GPU that the run holds: what is measured of
    /// the GPU as a whole (energy, traffic) is charged in this part, use is not.
    pub fn add(&mut self, before: &UseSample, after: &UseSample, share_milli: u32) {
        let elapsed_ms = after.at.since_millis(before.at) as u64;
        let charged = |old: Option<u64>, new: Option<u64>| {
            rise(old, new).saturating_mul(u64::from(share_milli)) / 1000
        };
        self.energy_mj += charged(before.energy_mj, after.energy_mj);
        self.nvlink_kib += charged(before.nvlink_kib, after.nvlink_kib);
        self.pcie_kib += charged(before.pcie_kib, after.pcie_kib);
        self.slowed_ms += rise(before.slowed_ms, after.slowed_ms);
        let peak = after.memory_used_bytes.unwrap_or(0);
        self.memory_peak_bytes = self.memory_peak_bytes.max(peak);
        self.power_peak_mw = self.power_peak_mw.max(after.power_mw.unwrap_or(0));
        self.temperature_peak_c = self
            .temperature_peak_c
            .max(after.temperature_c.unwrap_or(0));
        if elapsed_ms > MAX_GAP_MS {
            self.idle_now_ms = 0;
            return;
        }
        self.sampled_ms += elapsed_ms;
        if let Some(percent) = after.busy_percent {
            self.busy_told_ms += elapsed_ms;
            self.busy_percent_ms += u64::from(percent.min(100)) * elapsed_ms;
        }
        if let Some(percent) = after.memory_percent {
            self.memory_told_ms += elapsed_ms;
            self.memory_percent_ms += u64::from(percent.min(100)) * elapsed_ms;
        }
        // A GPU that tells of no use is not called idle.
        match after.busy_percent {
            Some(0) => {
                self.idle_ms += elapsed_ms;
                self.idle_now_ms += elapsed_ms;
            }
            _ => self.idle_now_ms = 0,
        }
    }

    /// Scales GPU time to a share of the GPU, in thousandths: half a GPU for an hour is half a GPU-hour. Means, and what was
    /// measured in time alone, stay.
    pub fn in_part(&self, part_milli: u32) -> GpuUseTotals {
        let part = |millis: u64| millis.saturating_mul(u64::from(part_milli)) / 1000;
        GpuUseTotals {
            sampled_ms: part(self.sampled_ms),
            idle_ms: part(self.idle_ms),
            busy_percent_ms: part(self.busy_percent_ms),
            busy_told_ms: part(self.busy_told_ms),
            memory_percent_ms: part(self.memory_percent_ms),
            memory_told_ms: part(self.memory_told_ms),
            slowed_ms: part(self.slowed_ms),
            ..*self
        }
    }

    /// The two together: the GPUs of a run, or the nodes of a run.
    pub fn merge(&self, other: &GpuUseTotals) -> GpuUseTotals {
        if self.is_empty() {
            return *other;
        }
        if other.is_empty() {
            return *self;
        }
        GpuUseTotals {
            sampled_ms: self.sampled_ms.saturating_add(other.sampled_ms),
            idle_ms: self.idle_ms.saturating_add(other.idle_ms),
            busy_percent_ms: self.busy_percent_ms.saturating_add(other.busy_percent_ms),
            busy_told_ms: self.busy_told_ms.saturating_add(other.busy_told_ms),
            memory_percent_ms: self
                .memory_percent_ms
                .saturating_add(other.memory_percent_ms),
            memory_told_ms: self.memory_told_ms.saturating_add(other.memory_told_ms),
            memory_peak_bytes: self.memory_peak_bytes.max(other.memory_peak_bytes),
            power_peak_mw: self.power_peak_mw.max(other.power_peak_mw),
            temperature_peak_c: self.temperature_peak_c.max(other.temperature_peak_c),
            energy_mj: self.energy_mj.saturating_add(other.energy_mj),
            nvlink_kib: self.nvlink_kib.saturating_add(other.nvlink_kib),
            pcie_kib: self.pcie_kib.saturating_add(other.pcie_kib),
            slowed_ms: self.slowed_ms.saturating_add(other.slowed_ms),
            idle_now_ms: self.idle_now_ms.min(other.idle_now_ms),
        }
    }

    /// Nothing was sampled.
    pub fn is_empty(&self) -> bool {
        *self == GpuUseTotals::default()
    }

    /// Mean use in tenths of a percent; `None` where it was never told.
    pub fn busy_mean_permille(&self) -> Option<u32> {
        mean_permille(self.busy_percent_ms, self.busy_told_ms)
    }

    /// Mean use of the memory's bandwidth in tenths of a percent.
    pub fn memory_mean_permille(&self) -> Option<u32> {
        mean_permille(self.memory_percent_ms, self.memory_told_ms)
    }

    pub fn idle_secs(&self) -> u64 {
        self.idle_ms / 1000
    }

    pub fn joules(&self) -> u64 {
        self.energy_mj / 1000
    }
}

fn mean_permille(percent_ms: u64, told_ms: u64) -> Option<u32> {
    let tenths = percent_ms.saturating_mul(10).checked_div(told_ms)?;
    u32::try_from(tenths).ok()
}

/// What a counter rose by. One that fell began anew with its driver: what it shows came since then.
fn rise(old: Option<u64>, new: Option<u64>) -> u64 {
    match (old, new) {
        (Some(old), Some(new)) if new >= old => new - old,
        (Some(_), Some(new)) => new,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(secs: i64, busy: Option<u32>, energy_mj: u64) -> UseSample {
        UseSample {
            at: Timestamp::from_secs(secs),
            busy_percent: busy,
            memory_percent: busy.map(|busy| busy / 2),
            memory_used_bytes: Some(1 << 30),
            power_mw: Some(100_000 + secs as u32),
            energy_mj: Some(energy_mj),
            ..UseSample::default()
        }
    }

    fn totals(samples: &[UseSample]) -> GpuUseTotals {
        let mut totals = GpuUseTotals::default();
        for pair in samples.windows(2) {
            totals.add(&pair[0], &pair[1], 1000);
        }
        totals
    }

    #[test]
    fn use_is_the_mean_over_time_and_idle_time_is_counted() {
        let totals = totals(&[
            sample(0, Some(100), 0),
            sample(10, Some(100), 5_000_000),
            sample(40, Some(0), 8_000_000),
            sample(70, Some(0), 9_000_000),
        ]);
        assert_eq!(
            totals.busy_mean_permille(),
            Some(142),
            "10 s of 70 at 100 %"
        );
        assert_eq!(
            (totals.idle_secs(), totals.idle_now_ms, totals.joules()),
            (60, 60_000, 9000)
        );
        assert_eq!(
            (totals.memory_peak_bytes, totals.power_peak_mw),
            (1 << 30, 100_070)
        );
    }

    #[test]
    fn time_without_samples_is_not_guessed_and_joules_are_not_lost_in_it() {
        let totals = totals(&[
            sample(0, Some(0), 0),
            sample(30, Some(0), 10),
            sample(1000, Some(0), 700),
        ]);
        assert_eq!(
            (totals.sampled_ms, totals.idle_ms, totals.idle_now_ms),
            (30_000, 30_000, 0)
        );
        assert_eq!(totals.energy_mj, 700);
    }

    #[test]
    fn a_gpu_that_tells_no_use_is_not_idle_and_a_driver_that_began_anew_takes_nothing_away() {
        let totals = totals(&[
            sample(0, None, 900),
            sample(10, None, 1000),
            sample(20, None, 50),
        ]);
        assert_eq!(
            (
                totals.idle_ms,
                totals.busy_mean_permille(),
                totals.sampled_ms
            ),
            (0, None, 20_000)
        );
        assert_eq!(totals.energy_mj, 150);
    }

    #[test]
    fn a_share_is_charged_its_part_of_the_energy() {
        let mut half = GpuUseTotals::default();
        half.add(
            &sample(0, Some(50), 0),
            &sample(10, Some(50), 1_000_000),
            500,
        );
        assert_eq!(
            (half.energy_mj, half.busy_mean_permille()),
            (500_000, Some(500))
        );
    }

    #[test]
    fn of_a_part_of_a_gpu_the_gpu_time_is_its_part_and_no_more_is_idle_than_is_held() {
        let whole = totals(&[
            sample(0, Some(0), 0),
            sample(40, Some(0), 0),
            sample(60, Some(60), 6_000_000),
        ]);
        let slice = whole.in_part(142);
        assert_eq!(
            (slice.sampled_ms, slice.idle_ms, slice.busy_mean_permille()),
            (8_520, 5_680, whole.busy_mean_permille())
        );
        assert_eq!(
            (slice.energy_mj, slice.idle_now_ms, slice.memory_peak_bytes),
            (whole.energy_mj, whole.idle_now_ms, whole.memory_peak_bytes)
        );
        assert_eq!(whole.in_part(1000), whole);
    }

    #[test]
    fn of_several_gpus_one_that_works_ends_the_idleness() {
        let idle = totals(&[sample(0, Some(0), 0), sample(60, Some(0), 0)]);
        let busy = totals(&[sample(0, Some(0), 0), sample(60, Some(80), 0)]);
        assert_eq!(idle.merge(&idle).idle_now_ms, 60_000);
        let both = idle.merge(&busy);
        assert_eq!(
            (
                both.idle_now_ms,
                both.idle_secs(),
                both.busy_mean_permille()
            ),
            (0, 60, Some(400))
        );
        assert_eq!(idle.merge(&GpuUseTotals::default()), idle);
    }

    proptest! {
        #[test]
        fn sums_stay_within_what_was_sampled(
            steps in proptest::collection::vec((1i64..200, proptest::option::of(0u32..=130), 0u64..1_000_000), 2..60),
        ) {
            let mut now = 0;
            let samples: Vec<UseSample> = steps
                .into_iter()
                .map(|(secs, busy, energy)| {
                    now += secs;
                    sample(now, busy, energy)
                })
                .collect();
            let all = totals(&samples);
            prop_assert!(all.idle_ms <= all.sampled_ms && all.idle_now_ms <= all.idle_ms);
            prop_assert!(all.busy_told_ms <= all.sampled_ms && all.sampled_ms <= now as u64 * 1000);
            prop_assert!(all.busy_mean_permille().is_none_or(|mean| mean <= 1000));
            let cut = samples.len() / 2;
            let (first, second) = (totals(&samples[..=cut]), totals(&samples[cut..]));
            let merged = first.merge(&second);
            prop_assert_eq!((merged.energy_mj, merged.sampled_ms, merged.idle_ms), (all.energy_mj, all.sampled_ms, all.idle_ms));
        }
    }
}
