//! Outputs of runs that came from the spools of nodes, as files: `STATE_DIR/outputs/JOB/JOB-ATTEMPT.out`. What is here is whole and on the
//! disk. Owns names, bounds and removal; `http/step/kept_output.rs` decides which node and user may bring or read one.

use gmodel::job_output::{OUTPUTS_DIR, SpooledFile};
use gmodel::{JobId, NodeId};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

/// Outputs that are being received; one of a node.
const MAX_UPLOADS: usize = 64;
/// What a file counts at least, so that the bound of bytes bounds their number.
const LEAST_BYTES: u64 = 4096;
/// After so long the connection of a part is gone.
const PART_AGE: Duration = Duration::from_secs(3600);
const PART: &str = "part";

/// How much is kept, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct OutputBounds {
    pub days: u32,
    pub all_bytes: u64,
    /// Of all runs of a job.
    pub job_bytes: u64,
}

#[derive(Debug, Default)]
pub struct KeptOutputs {
    dir: PathBuf,
    /// As of the last look at all files, with what came since.
    bytes: AtomicU64,
    parts: AtomicU64,
    uploading: Mutex<BTreeSet<NodeId>>,
}

/// A node's leave to send an output.
pub struct UploadPermit {
    outputs: Arc<KeptOutputs>,
    node: NodeId,
}

impl Drop for UploadPermit {
    fn drop(&mut self) {
        self.outputs.lock_uploading().remove(&self.node);
    }
}

/// Bytes of an output on their way.
pub struct OutputPart {
    path: PathBuf,
    pub file: File,
}

impl OutputPart {
    pub fn path(&self) -> &Path {
        &self.path
    }
}

struct FoundFile {
    path: PathBuf,
    file: Option<SpooledFile>,
    bytes: u64,
    modified: SystemTime,
}

impl KeptOutputs {
    pub fn new(state_dir: &Path) -> Self {
        Self {
            dir: state_dir.join(OUTPUTS_DIR),
            ..Self::default()
        }
    }

    pub fn path(&self, file: SpooledFile) -> PathBuf {
        self.job_dir(file.run.job).join(file.to_string())
    }

    fn job_dir(&self, job: JobId) -> PathBuf {
        self.dir.join(job.to_string())
    }

    /// The runs of a job whose output is here, the oldest first. Blocking.
    pub fn attempts(&self, job: JobId, stderr: bool) -> Vec<u32> {
        let found = files_in(&self.job_dir(job)).unwrap_or_default();
        let files = found.into_iter().filter_map(|found| found.file);
        let mut attempts: Vec<u32> = files
            .filter(|file| file.run.job == job && file.stderr == stderr)
            .map(|file| file.run.attempt)
            .collect();
        attempts.sort_unstable();
        attempts
    }

    /// None while another output of this node is under way, or too many of all nodes are.
    pub fn permit(self: &Arc<Self>, node: NodeId) -> Option<UploadPermit> {
        let mut uploading = self.lock_uploading();
        let is_free = uploading.len() < MAX_UPLOADS && uploading.insert(node);
        // Made only where it is due: its end gives a permit back.
        is_free.then(|| UploadPermit {
            outputs: Arc::clone(self),
            node,
        })
    }

    fn lock_uploading(&self) -> std::sync::MutexGuard<'_, BTreeSet<NodeId>> {
        self.uploading.lock().expect("no panic while held")
    }

    /// A new file for bytes on their way. Blocking.
    ///
    /// # Errors
    /// The disk's.
    pub fn begin(&self, file: SpooledFile) -> io::Result<OutputPart> {
        let dir = self.job_dir(file.run.job);
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&dir)?;
        let number = self.parts.fetch_add(1, Relaxed);
        let path = dir.join(format!("{file}.{}.{number}.{PART}", std::process::id()));
        let mut options = OpenOptions::new();
        let file = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)?;
        Ok(OutputPart { path, file })
    }

    /// Makes a part the output of a run: on the disk when this returns. Removes what is then beyond the bounds. Blocking.
    ///
    /// # Errors
    /// The disk's.
    pub fn keep(
        &self,
        part: OutputPart,
        file: SpooledFile,
        bounds: OutputBounds,
    ) -> io::Result<()> {
        part.file.sync_all()?;
        let bytes = part.file.metadata()?.len().max(LEAST_BYTES);
        fs::rename(part.path, self.path(file))?;
        let dir = self.job_dir(file.run.job);
        for dir in [&dir, &self.dir] {
            File::open(dir)?.sync_all()?;
        }
        self.bound_job(&dir, file, bounds.job_bytes);
        if self.bytes.fetch_add(bytes, Relaxed) + bytes > bounds.all_bytes {
            self.prune(bounds)?;
        }
        Ok(())
    }

    /// The newest run's output stays, whatever its size.
    fn bound_job(&self, dir: &Path, newest: SpooledFile, max_bytes: u64) {
        let mut found = files_in(dir).unwrap_or_default();
        found.retain(|found| found.file.is_some_and(|file| file.run < newest.run));
        found.sort_by_key(|found| std::cmp::Reverse(found.file));
        let mut bytes = 0;
        for old in found {
            bytes += old.bytes;
            if bytes > max_bytes {
                self.remove(&old);
            }
        }
    }

    /// Removes what is past its days, and of too many bytes the oldest. Blocking.
    ///
    /// # Errors
    /// The disk's.
    pub fn prune(&self, bounds: OutputBounds) -> io::Result<()> {
        let mut found = Vec::new();
        for job in read_dir(&self.dir)? {
            found.extend(files_in(&job)?);
        }
        found.sort_by_key(|file| (file.modified, file.file));
        let mut bytes: u64 = found.iter().map(|file| file.bytes).sum();
        // Room for more, so that the next output does not call for another look at all of them.
        let most = match bytes > bounds.all_bytes {
            true => bounds.all_bytes / 10 * 9,
            false => bounds.all_bytes,
        };
        let max_age = Duration::from_secs(u64::from(bounds.days) * 24 * 3600);
        for file in &found {
            let age = file.modified.elapsed().unwrap_or_default();
            let is_over = match file.file {
                Some(_) => bytes > most || age > max_age,
                None => age > PART_AGE,
            };
            if is_over {
                bytes -= file.bytes;
                self.remove(file);
            }
        }
        self.bytes.store(bytes, Relaxed);
        Ok(())
    }

    fn remove(&self, found: &FoundFile) {
        if let Err(e) = fs::remove_file(&found.path) {
            tracing::warn!("removing {}: {e}", found.path.display());
        }
        if let Some(dir) = found.path.parent() {
            // Until it is empty it stays.
            let _ = fs::remove_dir(dir);
        }
    }
}

fn read_dir(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

fn files_in(dir: &Path) -> io::Result<Vec<FoundFile>> {
    let mut found = Vec::new();
    for path in read_dir(dir)? {
        // It may be removed meanwhile.
        let Ok(metadata) = path.metadata() else {
            continue;
        };
        let name = path.file_name().and_then(|name| name.to_str());
        found.push(FoundFile {
            file: name.and_then(|name| name.parse().ok()),
            bytes: metadata.len().max(LEAST_BYTES),
            modified: metadata.modified()?,
            path,
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::RunId;
    use std::io::Write;

    const BOUNDS: OutputBounds = OutputBounds {
        days: 14,
        all_bytes: 1 << 20,
        job_bytes: 100_000,
    };

    fn file(job: u64, attempt: u32, stderr: bool) -> SpooledFile {
        let run = RunId::new(JobId(job), attempt);
        SpooledFile { run, stderr }
    }

    fn keep(outputs: &KeptOutputs, file: SpooledFile, bytes: usize) {
        let mut part = outputs.begin(file).unwrap();
        part.file.write_all(&vec![b'x'; bytes]).unwrap();
        outputs.keep(part, file, BOUNDS).unwrap();
    }

    #[test]
    fn outputs_of_a_jobs_runs_are_found_and_parts_are_none() {
        let dir = tempfile::tempdir().unwrap();
        let outputs = KeptOutputs::new(dir.path());
        assert!(outputs.attempts(JobId(17), false).is_empty());
        for (attempt, stderr) in [(10, false), (2, false), (2, true)] {
            keep(&outputs, file(17, attempt, stderr), 10);
        }
        outputs.begin(file(17, 3, false)).unwrap();
        assert_eq!(outputs.attempts(JobId(17), false), [2, 10]);
        assert_eq!(outputs.attempts(JobId(17), true), [2]);
        assert!(outputs.attempts(JobId(1), false).is_empty());
    }

    #[test]
    fn a_job_that_is_requeued_without_end_keeps_its_newest_outputs() {
        let dir = tempfile::tempdir().unwrap();
        let outputs = KeptOutputs::new(dir.path());
        for attempt in 1..=5 {
            keep(&outputs, file(17, attempt, false), 50_000);
        }
        assert_eq!(outputs.attempts(JobId(17), false), [3, 4, 5]);
    }

    #[test]
    fn the_oldest_go_when_all_are_too_many_and_the_counted_bytes_stay_true() {
        let dir = tempfile::tempdir().unwrap();
        let outputs = KeptOutputs::new(dir.path());
        let bounds = OutputBounds {
            all_bytes: 20 * LEAST_BYTES,
            ..BOUNDS
        };
        for job in 1..=30 {
            let part = outputs.begin(file(job, 1, false)).unwrap();
            outputs.keep(part, file(job, 1, false), bounds).unwrap();
        }
        let left: Vec<u64> = (1..=30)
            .filter(|job| outputs.path(file(*job, 1, false)).exists())
            .collect();
        assert!((18..=20).contains(&left.len()), "{left:?}");
        assert_eq!(left.last(), Some(&30));
        assert_eq!(left[0], 31 - left.len() as u64, "the oldest went");
        assert!(!dir.path().join("outputs/1").exists());
        // Another controller counts what is there.
        let outputs = KeptOutputs::new(dir.path());
        outputs.prune(bounds).unwrap();
        assert_eq!(outputs.bytes.load(Relaxed), LEAST_BYTES * left.len() as u64);
    }

    #[test]
    fn what_is_past_its_days_goes() {
        let dir = tempfile::tempdir().unwrap();
        let outputs = KeptOutputs::new(dir.path());
        let (old, new) = (file(1, 1, false), file(2, 1, true));
        keep(&outputs, old, 5);
        keep(&outputs, new, 5);
        let long_ago = SystemTime::now() - Duration::from_secs(15 * 24 * 3600);
        let opened = OpenOptions::new().write(true).open(outputs.path(old));
        opened.unwrap().set_modified(long_ago).unwrap();
        outputs.prune(BOUNDS).unwrap();
        assert!(!outputs.path(old).exists() && outputs.path(new).exists());
    }

    #[test]
    fn a_node_sends_one_output_at_a_time() {
        let outputs = Arc::new(KeptOutputs::default());
        let first = outputs.permit(NodeId(1));
        assert!(first.is_some() && outputs.permit(NodeId(1)).is_none());
        assert!(outputs.permit(NodeId(2)).is_some());
        drop(first);
        assert!(outputs.permit(NodeId(1)).is_some());
        let held: Vec<_> = (10..200)
            .filter_map(|node| outputs.permit(NodeId(node)))
            .collect();
        assert_eq!(held.len(), MAX_UPLOADS);
    }
}
