//! The spool: which life this node lives, the fence it obeyed, and a directory per run (gmodel `supervise`).
//!
//! The fence survives a power cut (`fence_file`). Files of a run survive the daemon; after a reboot the run is lost in any case.

mod fence_file;
pub mod file;
mod old_logs;
pub mod run_log;
mod spare_dirs;

use anyhow::{Context, Result, bail};
use fence_file::FenceFile;
use file::{make_dir, mark, private_dir, read_json, remove_dir, write_aside};
use gmodel::checkpoint::CheckpointMark;
use gmodel::gpu_use::GpuUseTotals;
use gmodel::job_output::OUTPUTS_DIR;
use gmodel::launch_order::LaunchOrder;
use gmodel::run::{EndCause, RunEnd};
use gmodel::supervise::{IMAGE_FILE, RunSetup};
use gmodel::{Fence, NodeLife, RunId, Timestamp};
use gsys::durable_file::write_atomic;
use old_logs::OldLogs;
use run_log::{open_log, write_log_line};
use serde::{Deserialize, Serialize};
use spare_dirs::SpareDirs;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

/// Below this the node takes no new run.
pub const MIN_FREE_BYTES: u64 = 64 << 20;
/// In a run's directory: what the driver told of its GPUs, a line each.
const GPU_EVENTS: &str = "gpu-events";
const MAX_GPU_EVENTS: usize = 16;
/// Most of a run's log that is read for `gq --log`.
const LOG_READ_BYTES: usize = 64 << 10;
const BOXES: &str = "boxes";
const IMAGES: &str = "images";
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

/// The spool directory of one daemon, locked against a second one.
#[derive(Debug)]
pub struct Spool {
    dir: PathBuf,
    fence: Mutex<FenceFile>,
    life: NodeLife,
    spares: SpareDirs,
    /// The contents of files of runs that were accepted or read since the daemon began.
    known: Mutex<BTreeMap<RunId, CachedRun>>,
    old_logs: OldLogs,
    /// Held for the lock.
    _lock: nix::fcntl::Flock<File>,
}

/// What was written or read of a run, so that it is not read again. Scripts and variables, which may be long, are not kept.
#[derive(Debug, Default)]
struct CachedRun {
    order: Option<Arc<LaunchOrder>>,
    setup: Option<Arc<RunSetup>>,
    log: Option<Arc<File>>,
}

/// What a run's directory says, before its supervisor was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredRun {
    /// Accepted; no process of the user was ever started, and the run was never reported ready.
    Order,
    /// Its supervisor was ready once, or is about to be.
    Supervised,
    /// It ended; `clean`: its traces are removed, too.
    Ended { end: Box<RunEnd>, clean: bool },
}

impl Spool {
    /// Opens or makes the spool. Runs of an earlier boot get their record, `NodeRebooted`, here.
    pub fn open(dir: &Path, now: Timestamp) -> Result<Self> {
        private_dir(dir)?;
        for below in [
            "runs",
            "marks",
            "private",
            "logs",
            BOXES,
            IMAGES,
            OUTPUTS_DIR,
        ] {
            private_dir(&dir.join(below))?;
        }
        // Jobs reach the mark socket and their containers through these directories, and can list nothing there.
        let of_users = ["marks", BOXES, IMAGES].map(|below| dir.join(below));
        for passed in of_users.iter().chain([&dir.to_owned()]) {
            fs::set_permissions(passed, fs::Permissions::from_mode(0o711))?;
        }
        let lock = lock(&dir.join("lock"))?;
        let fence = Mutex::new(FenceFile::open(&dir.join("fence"))?);
        let old_logs = OldLogs::open(dir.join("logs"));
        let (life, spares, known) = (NodeLife::default(), SpareDirs::default(), Mutex::default());
        let mut spool = Self {
            dir: dir.to_owned(),
            fence,
            life,
            spares,
            known,
            old_logs,
            _lock: lock,
        };
        spool.begin_life(now)?;
        Ok(spool)
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Of the containers of a run: its user's.
    pub fn boxes_dir(&self, run: RunId) -> PathBuf {
        self.dir.join(BOXES).join(run.to_string())
    }

    /// The run was accepted here and is not forgotten.
    pub fn has(&self, run: RunId) -> bool {
        self.run_dir(run).exists()
    }

    /// Of outputs that jobs write to the spool.
    pub fn outputs_dir(&self) -> PathBuf {
        self.dir.join(OUTPUTS_DIR)
    }

    /// Of the images of a user: that user's.
    pub fn images_dir(&self, uid: u32) -> PathBuf {
        self.dir.join(IMAGES).join(uid.to_string())
    }

    pub fn life(&self) -> &NodeLife {
        &self.life
    }

    pub fn fence(&self) -> Fence {
        self.fence.lock().expect("no holder panics").newest
    }

    /// Returns once the fence is on the disk.
    pub fn write_fence(&self, fence: Fence) -> Result<()> {
        self.fence
            .lock()
            .expect("no holder panics")
            .write(fence)
            .context("writing the fence to the spool")
    }

    /// Makes the run's directory with its order: the run is accepted. Not synced: after a power cut it is lost anyway.
    pub fn accept(&self, run: RunId, order: &LaunchOrder) -> Result<()> {
        self.write_order(run, order)?;
        self.known().insert(
            run,
            CachedRun {
                order: Some(without_texts(order.clone())),
                ..CachedRun::default()
            },
        );
        Ok(())
    }

    fn write_order(&self, run: RunId, order: &LaunchOrder) -> Result<()> {
        let (dir, bytes) = (self.run_dir(run), serde_json::to_vec(order)?);
        if let Some(spare) = self.spares.take() {
            write_aside(&spare.join("order.json"), &bytes)?;
            match fs::rename(&spare, &dir) {
                Ok(()) => return Ok(()),
                // It was accepted before.
                Err(_) => remove_dir(&spare)?,
            }
        }
        make_dir(&dir, 0o700)?;
        write_aside(&dir.join("order.json"), &bytes)
    }

    /// The run's order, without script and variables: those are its supervisor's affair.
    pub fn order(&self, run: RunId) -> Result<Arc<LaunchOrder>> {
        if let Some(order) = self.known().get(&run).and_then(|known| known.order.clone()) {
            return Ok(order);
        }
        let read: Option<LaunchOrder> = read_json(&self.run_dir(run).join("order.json"))?;
        let order = without_texts(read.with_context(|| format!("run {run} has no launch order"))?);
        self.known().entry(run).or_default().order = Some(Arc::clone(&order));
        Ok(order)
    }

    /// Comes before the supervisor: from now on the run may have processes.
    pub fn write_setup(&self, run: RunId, setup: &RunSetup) -> Result<()> {
        write_aside(
            &self.run_dir(run).join("setup.json"),
            &serde_json::to_vec(setup)?,
        )?;
        self.known().entry(run).or_default().setup = Some(Arc::new(setup.clone()));
        Ok(())
    }

    pub fn setup(&self, run: RunId) -> Result<Option<Arc<RunSetup>>> {
        if let Some(setup) = self.known().get(&run).and_then(|known| known.setup.clone()) {
            return Ok(Some(setup));
        }
        let read: Option<RunSetup> = read_json(&self.run_dir(run).join("setup.json"))?;
        let Some(setup) = read.map(Arc::new) else {
            return Ok(None);
        };
        self.known().entry(run).or_default().setup = Some(Arc::clone(&setup));
        Ok(Some(setup))
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<RunId, CachedRun>> {
        self.known.lock().expect("no holder panics")
    }

    /// The run's end, written by its supervisor or by gpud in its place, as [`Spool::explained`].
    pub fn end(&self, run: RunId) -> Result<Option<RunEnd>> {
        let end = match read_json::<RunEnd>(&self.run_dir(run).join("exit.json")) {
            Ok(Some(end)) => end,
            // Its content was on the disk before it had its name, which a power cut may undo.
            Ok(None) => match read_json::<RunEnd>(&self.run_dir(run).join("exit.json.room")) {
                Ok(Some(end)) => end,
                _ => return Ok(None),
            },
            // One spoilt record must not keep the node from starting: how that run ended is lost, that it ended is not.
            Err(e) if e.downcast_ref::<serde_json::Error>().is_some() => {
                tracing::error!(%run, "{e:#}");
                RunEnd {
                    cause: EndCause::SpoolLost,
                    text: format!("{e:#}"),
                    ..RunEnd::default()
                }
            }
            Err(e) => return Err(e),
        };
        Ok(Some(self.explained(run, end)))
    }

    /// The end that is on record, as it is told: a broken fence or a sick GPU explains it. With what the run made of its GPUs.
    pub fn explained(&self, run: RunId, mut end: RunEnd) -> RunEnd {
        for (file, cause) in [
            ("gpu_failed", EndCause::GpuFailed),
            ("fence_broken", EndCause::FenceBroken),
        ] {
            if let Ok(text) = fs::read_to_string(self.run_dir(run).join(file)) {
                end.cause = cause;
                end.text = text;
            }
        }
        if end.usage.gpu.is_empty() {
            end.usage.gpu = self.gpu_use(run);
        }
        if end.gpu_events.is_empty() {
            end.gpu_events = self.gpu_events(run);
        }
        if end.image.is_empty() {
            end.image = self.image(run);
        }
        end
    }

    /// Notes the image that a run is in.
    pub fn note_image(&self, run: RunId, name: &str) -> Result<()> {
        let path = self.run_dir(run).join(IMAGE_FILE);
        fs::write(&path, name).with_context(|| format!("writing {}", path.display()))
    }

    /// Noted here, or by its supervisor.
    fn image(&self, run: RunId) -> String {
        fs::read_to_string(self.run_dir(run).join(IMAGE_FILE)).unwrap_or_default()
    }

    fn gpu_events(&self, run: RunId) -> Vec<String> {
        let text = fs::read_to_string(self.run_dir(run).join(GPU_EVENTS)).unwrap_or_default();
        text.lines()
            .take(MAX_GPU_EVENTS)
            .map(str::to_owned)
            .collect()
    }

    /// Notes what befell a GPU of a run; `false` where that is known, or so much is.
    pub fn note_gpu_event(&self, run: RunId, line: &str) -> bool {
        let known = self.gpu_events(run);
        if known.len() >= MAX_GPU_EVENTS || known.iter().any(|one| one == line) {
            return false;
        }
        let path = self.run_dir(run).join(GPU_EVENTS);
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path);
        file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()))
            .is_ok()
    }

    /// What it made of its GPUs, each in the part that it holds.
    fn gpu_use(&self, run: RunId) -> GpuUseTotals {
        let order = self.order(run).ok();
        let part = |uuid: &str| {
            order
                .iter()
                .flat_map(|order| &order.gpus)
                .find(|gpu| gpu.uuid == uuid)
                .map(|gpu| gpu.part.milli())
        };
        crate::gpu::use_book::kept(&self.run_dir(run), |uuid| part(uuid).unwrap_or(1000))
    }

    /// Writes the end of a run that no supervisor will write, unless there is one; returns the one that counts.
    pub fn write_end(&self, run: RunId, end: RunEnd) -> Result<RunEnd> {
        if let Some(there) = self.end(run)? {
            return Ok(there);
        }
        write_atomic(
            &self.run_dir(run).join("exit.json"),
            &serde_json::to_vec(&end)?,
        )
        .with_context(|| format!("writing the end of run {run}"))?;
        Ok(end)
    }

    /// The run's newest checkpoint mark. A mark that cannot be read is lost, and gpud's log says so.
    pub fn mark(&self, run: RunId) -> Option<CheckpointMark> {
        read_json(&self.run_dir(run).join("mark.json")).unwrap_or_else(|e| {
            tracing::error!(%run, "{e:#}");
            None
        })
    }

    /// The supervisor waits: from now on the run may be released, and is lost if the supervisor is.
    pub fn mark_ready(&self, run: RunId) -> Result<()> {
        mark(&self.run_dir(run).join("ready"))
    }

    pub fn was_ready(&self, run: RunId) -> bool {
        self.run_dir(run).join("ready").exists()
    }

    /// When it came to be ready, by the file system's clock.
    pub fn ready_since(&self, run: RunId) -> SystemTime {
        let mark = fs::metadata(self.run_dir(run).join("ready"));
        mark.and_then(|mark| mark.modified())
            .unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// The run is about to be ended because its fence was changed.
    pub fn mark_fence_broken(&self, run: RunId, text: &str) -> Result<()> {
        write_aside(&self.run_dir(run).join("fence_broken"), text.as_bytes())
    }

    /// The run is about to be ended because a GPU of it is sick. The first reason stays: true when this is it.
    pub fn mark_gpu_failed(&self, run: RunId, text: &str) -> Result<bool> {
        let path = self.run_dir(run).join("gpu_failed");
        let is_first = !path.exists();
        if is_first {
            write_aside(&path, text.as_bytes())?;
        }
        Ok(is_first)
    }

    pub fn mark_clean(&self, run: RunId) -> Result<()> {
        mark(&self.run_dir(run).join("clean"))
    }

    /// Removes all files of a clean run but its log, which stays for `gq --log` among the newest.
    pub fn forget(&self, run: RunId) -> Result<()> {
        match fs::read(self.run_dir(run).join("log")).and_then(|log| self.old_logs.keep(run, &log))
        {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                tracing::warn!(%run, "keeping the log: {e}")
            }
            _ => {}
        }
        remove_dir(&self.private_dir(run))?;
        let dir = self.run_dir(run);
        self.spares
            .retire(&dir, run)
            .with_context(|| format!("removing {}", dir.display()))?;
        self.known().remove(&run);
        Ok(())
    }

    /// Every run in the spool.
    pub fn scan(&self) -> Result<BTreeMap<RunId, StoredRun>> {
        let mut runs = BTreeMap::new();
        let root = self.dir.join("runs");
        for entry in fs::read_dir(&root).with_context(|| format!("listing {}", root.display()))? {
            let entry = entry?;
            let name = entry.file_name();
            match name.to_str().map(str::parse::<RunId>) {
                Some(Ok(run)) if entry.path().join("order.json").exists() => {
                    runs.insert(run, self.record(run)?);
                }
                // A run of which not even the order was written was never accepted; `.gone-` is half removed.
                _ => remove_dir(&entry.path())?,
            }
        }
        Ok(runs)
    }

    /// Runs that were ready and have not ended: what the audit looks at. Touches nothing.
    pub fn live(&self) -> Vec<RunId> {
        let Ok(entries) = fs::read_dir(self.dir.join("runs")) else {
            return Vec::new();
        };
        let runs = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<RunId>().ok());
        runs.filter(|run| self.was_ready(*run) && !self.run_dir(*run).join("exit.json").exists())
            .collect()
    }

    /// Runs that were accepted and are not clean. Touches nothing.
    pub fn held(&self) -> Vec<RunId> {
        let Ok(entries) = fs::read_dir(self.dir.join("runs")) else {
            return Vec::new();
        };
        let runs = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<RunId>().ok());
        runs.filter(|run| {
            self.run_dir(*run).join("order.json").exists()
                && !self.run_dir(*run).join("clean").exists()
        })
        .collect()
    }

    fn record(&self, run: RunId) -> Result<StoredRun> {
        let dir = self.run_dir(run);
        Ok(match self.end(run)? {
            Some(end) => StoredRun::Ended {
                end: Box::new(end),
                clean: dir.join("clean").exists(),
            },
            None if dir.join("setup.json").exists() => StoredRun::Supervised,
            None => StoredRun::Order,
        })
    }

    pub fn runs_dir(&self) -> PathBuf {
        self.dir.join("runs")
    }
    pub fn run_dir(&self, run: RunId) -> PathBuf {
        self.runs_dir().join(run.to_string())
    }
    /// The copy of the run's script, which its supervisor makes and removes.
    pub fn script(&self, run: RunId) -> PathBuf {
        self.dir.join("marks").join(format!("{run}.script"))
    }
    /// Parent of the run's private /tmp and /dev/shm.
    pub fn private_dir(&self, run: RunId) -> PathBuf {
        self.dir.join("private").join(run.to_string())
    }

    /// Why the spool can take no new run; empty when it can.
    pub fn shortage(&self) -> String {
        match nix::sys::statvfs::statvfs(&self.dir) {
            Ok(stat) => {
                let free = stat.blocks_available() * stat.fragment_size();
                if free >= MIN_FREE_BYTES {
                    return String::new();
                }
                format!(
                    "spool full: {} MiB free in {}, {} needed",
                    free >> 20,
                    self.dir.display(),
                    MIN_FREE_BYTES >> 20
                )
            }
            Err(e) => format!("spool unreadable: {}: {e}", self.dir.display()),
        }
    }

    /// One line for `gq --log`. Losing it must not stop a run, so an error is only traced.
    pub fn log(&self, run: RunId, now: Timestamp, line: &str) {
        tracing::debug!(%run, "{line}");
        let open = self.known().get(&run).and_then(|known| known.log.clone());
        let file = match open.map_or_else(|| open_log(&self.run_dir(run)).map(Arc::new), Ok) {
            Ok(file) => file,
            Err(e) => return tracing::debug!(%run, "opening the log: {e}"),
        };
        write_log_line(&file, now, line)
            .unwrap_or_else(|e| tracing::debug!(%run, "writing the log: {e}"));
        self.known().entry(run).or_default().log = Some(file);
    }

    /// The last lines of the run's log, at most 64 KiB.
    pub fn read_log(&self, run: RunId) -> Result<String> {
        let log = match fs::read(self.run_dir(run).join("log")) {
            Err(e) if e.kind() == ErrorKind::NotFound => self.old_logs.read(run)?,
            log => log?,
        };
        if log.is_empty() {
            bail!("this node has no record of run {run} any more");
        }
        let cut = log.len().saturating_sub(LOG_READ_BYTES);
        let text = String::from_utf8_lossy(&log[cut..]);
        let whole = if cut > 0 {
            text.split_once('\n').map_or("", |(_, rest)| rest)
        } else {
            &text
        };
        // The mark of a file that is used again; see `spare_dirs`.
        Ok(whole.trim_start_matches('\n').to_owned())
    }

    /// Reads which life the spool was in, ends the runs of an earlier boot, and begins this one.
    fn begin_life(&mut self, now: Timestamp) -> Result<()> {
        let path = self.dir.join("life.json");
        let boot = gsys::clock::boot_id().context("reading the boot id")?;
        let before: Option<StoredLife> = read_json(&path)?;
        let spool = match &before {
            Some(life) => life.spool.clone(),
            None => random_id()?,
        };
        self.life = NodeLife {
            boot: boot.clone(),
            spool: spool.clone(),
        };
        if before.as_ref().is_some_and(|life| life.boot == boot) {
            return Ok(());
        }
        for (run, record) in self.scan()? {
            if !matches!(record, StoredRun::Ended { .. }) {
                let text = "the node was rebooted while it had this run".to_owned();
                let end = RunEnd {
                    cause: EndCause::NodeRebooted,
                    text,
                    ended: Some(now),
                    ..RunEnd::default()
                };
                self.write_end(run, end)?;
            }
        }
        write_atomic(&path, &serde_json::to_vec(&StoredLife { boot, spool })?)
            .context("writing the spool's life")
    }
}

#[derive(Serialize, Deserialize)]
struct StoredLife {
    boot: String,
    spool: String,
}

fn without_texts(order: LaunchOrder) -> Arc<LaunchOrder> {
    Arc::new(LaunchOrder {
        script: String::new(),
        environment: Vec::new(),
        ..order
    })
}

/// A daemon killed between fork and exec leaves a child that holds its lock for another moment: hence the patience.
fn lock(path: &Path) -> Result<nix::fcntl::Flock<File>> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((_, e)) if Instant::now() > deadline => {
                bail!("{}: {e}: another gpud uses this spool", path.display())
            }
            Err((back, _)) => file = back,
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn random_id() -> Result<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/uuid")
        .context("asking the kernel for a random id")?;
    Ok(id.trim().to_owned())
}

#[cfg(test)]
mod tests;
