//! What each run makes of its GPUs: samples are added up while it lives and lie beside its record, so that a restart loses
//! nothing but seconds; and what of it the controller is told meanwhile. Takes no sample itself and judges nothing; the sums
//! are `gmodel::gpu_use`.

use crate::spool::file::write_aside;
use gmodel::gpu_use::{GpuUseTotals, UseSample};
use gmodel::idle::IdleReport;
use gmodel::{RunId, Timestamp};
use gsys::nvml::GpuUse;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

/// Beside the run's record.
const USE_FILE: &str = "gpu-use.json";
/// A sample so young is as good as a new one: jobs that begin and end in crowds share one.
pub const FRESH: Duration = Duration::from_secs(1);
/// The controller hears this often how idle a run is: what it was told counts for four times as long.
const TELL_EVERY: Duration = Duration::from_secs(30);
/// And with every sample while a GPU of it has been idle for less than this, seconds.
const YOUNG_SECS: u32 = 60;

/// The samples of a node and the sums of its runs.
#[derive(Debug, Default)]
pub struct UseBook {
    latest: Vec<GpuUse>,
    taken: Option<(Instant, Timestamp)>,
    runs: BTreeMap<RunId, RunUse>,
    /// Runs that stand still.
    suspended: BTreeSet<RunId>,
    /// What the controller was told of each, and when.
    told: BTreeMap<RunId, (Instant, IdleReport)>,
}

/// One run's GPUs by UUID.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct RunUse {
    gpus: BTreeMap<String, HeldGpuUse>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct HeldGpuUse {
    /// Thousandths of it that the run holds.
    milli: u32,
    totals: GpuUseTotals,
    /// Up to where `totals` goes.
    last: Option<UseSample>,
}

impl Default for HeldGpuUse {
    fn default() -> Self {
        Self {
            milli: 1000,
            totals: GpuUseTotals::default(),
            last: None,
        }
    }
}

impl UseBook {
    /// True when no sample of the last second is there.
    pub fn is_stale(&self) -> bool {
        self.taken.is_none_or(|(taken, _)| taken.elapsed() >= FRESH)
    }

    /// Takes a sample of all GPUs and adds it to every run.
    pub fn add(&mut self, samples: Vec<GpuUse>, now: Timestamp) {
        self.latest = samples;
        self.taken = Some((Instant::now(), now));
        for (id, run) in &mut self.runs {
            run.add(&self.latest, now);
            if self.suspended.contains(id) {
                run.gpus
                    .values_mut()
                    .for_each(|gpu| gpu.totals.idle_now_ms = 0);
            }
        }
    }

    /// The run is suspended, or resumed.
    pub fn suspend(&mut self, run: RunId, suspended: bool) {
        match suspended {
            true => self.suspended.insert(run),
            false => self.suspended.remove(&run),
        };
    }

    /// What the controller is to hear now of the runs that the newest sample was of.
    pub fn idle_runs(&mut self, now: Instant) -> Vec<IdleReport> {
        let Some((_, taken)) = self.taken else {
            return Vec::new();
        };
        let mut due = Vec::new();
        for (id, run) in &self.runs {
            let Some(report) = run.idle(*id, taken) else {
                continue;
            };
            if is_due(self.told.get(id), &report, now) {
                self.told.insert(*id, (now, report.clone()));
                due.push(report);
            }
        }
        due
    }

    /// The newest sample of a GPU, if it was taken after `since`.
    pub fn latest(&self, uuid: &str, since: Timestamp) -> Option<&GpuUse> {
        let (_, at) = self.taken?;
        self.latest
            .iter()
            .find(|sample| at > since && sample.uuid.as_deref() == Some(uuid))
    }

    /// A run begins, or is found again, with its sums from before. `held_milli`: thousandths of each GPU that it holds, by UUID.
    pub fn open(&mut self, run: RunId, run_dir: &Path, held_milli: &BTreeMap<String, u32>) {
        let Some((_, at)) = self.taken else { return };
        let kept = std::fs::read(run_dir.join(USE_FILE))
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let fresh = || RunUse {
            gpus: held_milli
                .iter()
                .map(|(uuid, milli)| {
                    (
                        uuid.clone(),
                        HeldGpuUse {
                            milli: *milli,
                            ..HeldGpuUse::default()
                        },
                    )
                })
                .collect(),
        };
        let latest = &self.latest;
        self.runs.entry(run).or_insert_with(|| {
            let mut begun = kept.unwrap_or_else(fresh);
            begun.add(latest, at);
            begun
        });
    }

    /// Writes down what is known of the run.
    pub fn keep(&self, run: RunId, run_dir: &Path) {
        let Some(sums) = self.runs.get(&run) else {
            return;
        };
        // Of a run that was over before its second sample there is nothing to say, and no file says so too.
        if sums.gpus.values().all(|gpu| gpu.totals.is_empty()) {
            return;
        }
        let written = serde_json::to_vec(sums).map_err(anyhow::Error::from);
        if let Err(e) = written.and_then(|bytes| write_aside(&run_dir.join(USE_FILE), &bytes)) {
            tracing::debug!(%run, "{e:#}");
        }
    }

    pub fn follows(&self, run: RunId) -> bool {
        self.runs.contains_key(&run)
    }

    /// Runs that are followed.
    pub fn runs(&self) -> Vec<RunId> {
        self.runs.keys().copied().collect()
    }

    /// It has ended: nothing is added any more.
    pub fn close(&mut self, run: RunId) {
        self.runs.remove(&run);
        self.suspended.remove(&run);
        self.told.remove(&run);
    }
}

fn is_due(told: Option<&(Instant, IdleReport)>, new: &IdleReport, now: Instant) -> bool {
    let Some((at, old)) = told.filter(|(_, old)| old.watched_secs < new.watched_secs) else {
        return told.is_none();
    };
    let is_young = new.idle_secs.iter().any(|secs| *secs < YOUNG_SECS);
    // Fewer idle GPUs, or one that is idle for less long: some work was done.
    let worked = new.idle_secs.len() < old.idle_secs.len()
        || new
            .idle_secs
            .iter()
            .zip(&old.idle_secs)
            .any(|(new, old)| new < old);
    is_young || worked || now.duration_since(*at) >= TELL_EVERY
}

impl RunUse {
    /// As of a sample; `None` where one of its GPUs was not in it.
    fn idle(&self, run: RunId, taken: Timestamp) -> Option<IdleReport> {
        let is_sampled = |gpu: &HeldGpuUse| gpu.last.as_ref().is_some_and(|last| last.at == taken);
        let all = || self.gpus.values();
        if all().len() == 0 || !all().all(is_sampled) {
            return None;
        }
        let secs = |millis: u64| u32::try_from(millis / 1000).unwrap_or(u32::MAX);
        let watched_secs = all()
            .map(|gpu| secs(gpu.totals.sampled_ms))
            .min()
            .unwrap_or(0);
        let mut idle_secs: Vec<u32> = all()
            .map(|gpu| secs(gpu.totals.idle_now_ms))
            .filter(|secs| *secs > 0)
            .collect();
        idle_secs.sort_unstable_by(|a, b| b.cmp(a));
        Some(IdleReport {
            run,
            watched_secs,
            idle_secs,
        })
    }

    fn add(&mut self, samples: &[GpuUse], now: Timestamp) {
        for (uuid, gpu) in &mut self.gpus {
            let sample = samples
                .iter()
                .find(|sample| sample.uuid.as_ref() == Some(uuid) && sample.fault.is_none());
            let Some(sample) = sample.map(|sample| sample.sample(now)) else {
                continue;
            };
            if let Some(last) = gpu.last.as_ref().filter(|last| last.at < now) {
                gpu.totals.add(last, &sample, gpu.milli);
            }
            gpu.last = Some(sample);
        }
    }
}

/// What a run made of all its GPUs together, as far as it was written down. `part_milli`: how much it holds of one, by UUID.
pub fn kept(run_dir: &Path, part_milli: impl Fn(&str) -> u32) -> GpuUseTotals {
    let bytes = std::fs::read(run_dir.join(USE_FILE)).unwrap_or_default();
    let kept: RunUse = serde_json::from_slice(&bytes).unwrap_or_default();
    kept.gpus
        .iter()
        .fold(GpuUseTotals::default(), |sum, (uuid, gpu)| {
            sum.merge(&gpu.totals.in_part(part_milli(uuid)))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(uuid: &str, percent: u32, energy_mj: u64) -> GpuUse {
        GpuUse {
            uuid: Some(uuid.into()),
            gpu_percent: Some(percent),
            energy_mj: Some(energy_mj),
            ..GpuUse::default()
        }
    }

    #[test]
    fn a_sample_says_nothing_of_what_came_after_it() {
        let mut book = UseBook::default();
        book.add(vec![sample("GPU-a", 0, 0)], Timestamp(1000));
        assert!(book.latest("GPU-a", Timestamp(999)).is_some());
        assert!(book.latest("GPU-a", Timestamp(1000)).is_none());
        assert!(book.latest("GPU-b", Timestamp(0)).is_none());
    }

    #[test]
    fn the_controller_hears_of_idle_gpus_of_a_sample_that_was_just_taken_and_not_more_often_than_it_needs()
     {
        let run: RunId = "7-1".parse().unwrap();
        let (at, begun) = (Timestamp::from_secs, Instant::now());
        let mut book = UseBook::default();
        let nobody = Path::new("/nonexistent");
        let both = |a, b| vec![sample("GPU-a", a, 0), sample("GPU-b", b, 0)];
        let told = |book: &mut UseBook, secs: i64, samples| {
            book.add(samples, at(secs));
            let reports = book.idle_runs(begun + Duration::from_secs(secs as u64));
            reports
                .into_iter()
                .map(|report| (report.watched_secs, report.idle_secs))
                .collect::<Vec<_>>()
        };
        assert_eq!(told(&mut book, 0, both(0, 0)), [], "no run");
        book.open(
            run,
            nobody,
            &BTreeMap::from([("GPU-a".into(), 1000), ("GPU-b".into(), 1000)]),
        );
        assert_eq!(told(&mut book, 20, both(0, 50)), [(20, vec![20])]);
        assert_eq!(told(&mut book, 40, both(0, 0)), [(40, vec![40, 20])]);
        assert_eq!(
            told(&mut book, 50, vec![sample("GPU-a", 0, 0)]),
            [],
            "the other was not sampled"
        );
        assert_eq!(told(&mut book, 70, both(0, 0)), [(70, vec![70, 50])]);
        assert_eq!(told(&mut book, 90, both(0, 0)), [], "nothing new");
        assert_eq!(told(&mut book, 100, both(0, 0)), [(100, vec![100, 80])]);
        assert_eq!(
            told(&mut book, 110, both(0, 9)),
            [(110, vec![110])],
            "one works"
        );
        assert_eq!(told(&mut book, 150, both(1, 9)), [(150, vec![])]);
        assert_eq!(told(&mut book, 170, both(1, 9)), []);
        assert_eq!(
            told(&mut book, 180, both(1, 9)),
            [(180, vec![])],
            "a run on several nodes needs to hear of each"
        );
        assert_eq!(
            told(&mut book, 400, both(0, 0)),
            [],
            "for long nobody sampled, and of that time nothing is known"
        );
        assert_eq!(told(&mut book, 420, both(0, 0)), [(200, vec![20, 20])]);
        book.suspend(run, true);
        assert_eq!(
            told(&mut book, 440, both(0, 0)),
            [(220, vec![])],
            "it stands still"
        );
        book.suspend(run, false);
        assert_eq!(told(&mut book, 450, both(0, 0)), [(230, vec![10, 10])]);
        book.close(run);
        assert_eq!(told(&mut book, 460, both(0, 0)), []);
    }

    #[test]
    fn a_runs_sums_go_on_over_a_restart_and_are_of_its_own_gpus() {
        let dir = std::env::temp_dir().join(format!("gpud-use-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let run: RunId = "7-1".parse().unwrap();
        let at = Timestamp::from_secs;
        let mut book = UseBook::default();
        book.add(
            vec![sample("GPU-a", 0, 1000), sample("GPU-b", 50, 0)],
            at(100),
        );
        book.open(run, &dir, &BTreeMap::from([("GPU-a".into(), 1000)]));
        book.add(
            vec![sample("GPU-a", 100, 6000), sample("GPU-b", 50, 9000)],
            at(110),
        );
        book.keep(run, &dir);
        let mut book = UseBook::default();
        book.add(vec![sample("GPU-a", 0, 7000)], at(130));
        book.open(run, &dir, &BTreeMap::from([("GPU-a".into(), 1000)]));
        // A GPU that does not answer adds nothing, and its energy is not lost.
        let silent = gsys::nvml::ReadFailure {
            kind: gsys::nvml::ReadFailureKind::Lost,
            text: "lost".into(),
        };
        book.add(
            vec![GpuUse {
                uuid: Some("GPU-a".into()),
                fault: Some(silent),
                ..GpuUse::default()
            }],
            at(140),
        );
        book.add(vec![sample("GPU-a", 0, 9000)], at(150));
        book.keep(run, &dir);
        let sums = kept(&dir, |_| 1000);
        assert_eq!(
            (sums.joules(), sums.sampled_ms, sums.idle_secs()),
            (8, 50_000, 40)
        );
        assert_eq!(sums.busy_mean_permille(), Some(200));
        book.close(run);
        assert!(book.runs().is_empty());
        let short = dir.join("short");
        std::fs::create_dir(&short).unwrap();
        book.open(run, &short, &BTreeMap::from([("GPU-a".into(), 1000)]));
        book.keep(run, &short);
        assert!(
            kept(&short, |_| 1000).is_empty() && !short.join(USE_FILE).exists(),
            "of no sample nothing is written"
        );
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn energy_of_a_shared_gpu_is_charged_in_the_runs_part() {
        let dir = std::env::temp_dir().join(format!("gpud-use-part-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let run: RunId = "8-1".parse().unwrap();
        let mut book = UseBook::default();
        book.add(vec![sample("GPU-a", 80, 0)], Timestamp::from_secs(100));
        book.open(run, &dir, &BTreeMap::from([("GPU-a".into(), 250)]));
        book.add(vec![sample("GPU-a", 80, 8000)], Timestamp::from_secs(110));
        book.keep(run, &dir);
        let sums = kept(&dir, |_| 250);
        assert_eq!(
            (sums.joules(), sums.busy_mean_permille(), sums.sampled_ms),
            (2, Some(800), 2_500),
            "busy is said of the GPU"
        );
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
