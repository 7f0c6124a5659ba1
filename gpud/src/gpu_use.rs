//! What each run makes of its GPUs: samples are added up while it lives and lie beside its record, so that a restart loses
//! nothing but seconds. Takes no sample itself and judges nothing; the sums are `gmodel::gpu_use`.

use gmodel::gpu_use::{GpuUseTotals, UseSample};
use gmodel::{RunId, Timestamp};
use gsys::nvml::GpuUse;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// Beside the run's record.
const USE_FILE: &str = "gpu-use.json";
/// A sample so young is as good as a new one: jobs that begin and end in crowds share one.
pub const FRESH: Duration = Duration::from_secs(1);

/// The samples of a node and the sums of its runs.
#[derive(Debug, Default)]
pub struct UseBook {
    latest: Vec<GpuUse>,
    taken: Option<(Instant, Timestamp)>,
    runs: BTreeMap<RunId, RunUse>,
}

/// One run's GPUs by UUID.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct RunUse {
    gpus: BTreeMap<String, OneGpu>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct OneGpu {
    /// Thousandths of it that the run holds.
    milli: u32,
    totals: GpuUseTotals,
    /// Up to where `totals` goes.
    last: Option<UseSample>,
}

impl Default for OneGpu {
    fn default() -> Self {
        Self { milli: 1000, totals: GpuUseTotals::default(), last: None }
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
        for run in self.runs.values_mut() {
            run.add(&self.latest, now);
        }
    }

    /// The newest sample of a GPU.
    pub fn latest(&self, uuid: &str) -> Option<&GpuUse> {
        self.latest.iter().find(|sample| sample.uuid.as_deref() == Some(uuid))
    }

    /// A run begins, or is found again, with its sums from before.
    pub fn open(&mut self, run: RunId, run_dir: &Path, gpus: &[(String, u32)]) {
        let Some((_, at)) = self.taken else { return };
        let kept = std::fs::read(run_dir.join(USE_FILE)).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let fresh = || RunUse { gpus: gpus.iter().map(|(uuid, milli)| (uuid.clone(), OneGpu { milli: *milli, ..OneGpu::default() })).collect() };
        let latest = &self.latest;
        self.runs.entry(run).or_insert_with(|| {
            let mut begun = kept.unwrap_or_else(fresh);
            begun.add(latest, at);
            begun
        });
    }

    /// Writes down what is known of the run.
    pub fn keep(&self, run: RunId, run_dir: &Path) {
        let Some(sums) = self.runs.get(&run) else { return };
        let written = serde_json::to_vec(sums).map_err(std::io::Error::from);
        let path = run_dir.join(USE_FILE);
        let aside = path.with_extension("new");
        let written = written.and_then(|bytes| std::fs::write(&aside, bytes)).and_then(|()| std::fs::rename(&aside, &path));
        if let Err(e) = written {
            tracing::debug!(%run, "{}: {e}", path.display());
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
    }
}

impl RunUse {
    fn add(&mut self, samples: &[GpuUse], now: Timestamp) {
        for (uuid, gpu) in &mut self.gpus {
            let sample = samples.iter().find(|sample| sample.uuid.as_ref() == Some(uuid) && sample.fault.is_none());
            let Some(sample) = sample.map(|sample| sample.sample(now)) else { continue };
            if let Some(last) = gpu.last.as_ref().filter(|last| last.at < now) {
                gpu.totals.add(last, &sample, gpu.milli);
            }
            gpu.last = Some(sample);
        }
    }
}

/// What a run made of all its GPUs together, as far as it was written down.
pub fn kept(run_dir: &Path) -> GpuUseTotals {
    let bytes = std::fs::read(run_dir.join(USE_FILE)).unwrap_or_default();
    let kept: RunUse = serde_json::from_slice(&bytes).unwrap_or_default();
    kept.gpus.values().fold(GpuUseTotals::default(), |sum, gpu| sum.merge(&gpu.totals))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(uuid: &str, percent: u32, energy_mj: u64) -> GpuUse {
        GpuUse { uuid: Some(uuid.into()), gpu_percent: Some(percent), energy_mj: Some(energy_mj), ..GpuUse::default() }
    }

    #[test]
    fn a_runs_sums_go_on_over_a_restart_and_are_of_its_own_gpus() {
        let dir = std::env::temp_dir().join(format!("gpud-use-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let run: RunId = "7-1".parse().unwrap();
        let at = Timestamp::from_secs;
        let mut book = UseBook::default();
        book.add(vec![sample("GPU-a", 0, 1000), sample("GPU-b", 50, 0)], at(100));
        book.open(run, &dir, &[("GPU-a".into(), 1000)]);
        book.add(vec![sample("GPU-a", 100, 6000), sample("GPU-b", 50, 9000)], at(110));
        book.keep(run, &dir);
        let mut book = UseBook::default();
        book.add(vec![sample("GPU-a", 0, 7000)], at(130));
        book.open(run, &dir, &[("GPU-a".into(), 1000)]);
        // A GPU that does not answer adds nothing, and its energy is not lost.
        let silent = gsys::nvml::Silence { kind: gsys::nvml::SilenceKind::Lost, text: "lost".into() };
        book.add(vec![GpuUse { uuid: Some("GPU-a".into()), fault: Some(silent), ..GpuUse::default() }], at(140));
        book.add(vec![sample("GPU-a", 0, 9000)], at(150));
        book.keep(run, &dir);
        let sums = kept(&dir);
        assert_eq!((sums.joules(), sums.sampled_ms, sums.idle_secs()), (8, 50_000, 40));
        assert_eq!(sums.busy_mean_permille(), Some(200));
        book.close(run);
        assert!(book.runs().is_empty());
        assert!(kept(&dir.join("none")).is_empty());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn energy_of_a_shared_gpu_is_charged_in_the_runs_part() {
        let dir = std::env::temp_dir().join(format!("gpud-use-part-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let run: RunId = "8-1".parse().unwrap();
        let mut book = UseBook::default();
        book.add(vec![sample("GPU-a", 80, 0)], Timestamp::from_secs(100));
        book.open(run, &dir, &[("GPU-a".into(), 250)]);
        book.add(vec![sample("GPU-a", 80, 8000)], Timestamp::from_secs(110));
        book.keep(run, &dir);
        let sums = kept(&dir);
        assert_eq!((sums.joules(), sums.busy_mean_permille()), (2, Some(800)), "busy is said of the GPU");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
