//! The spool: which life this node lives, the fence it obeyed, and a directory per run (gmodel `supervise`).
//!
//! The fence survives a power cut: two slots of a preallocated file, written in turn, so that one is always whole and a
//! full disk does not matter. Files of a run survive the daemon; after a reboot the run is lost whatever they say.

use crate::old_logs::OldLogs;
use crate::spare_dirs::SpareDirs;
use anyhow::{Context, Result, bail};
use gmodel::checkpoint::CheckpointMark;
use gmodel::gpu_use::GpuUseTotals;
use gmodel::launch_order::LaunchOrder;
use gmodel::run::{EndCause, RunEnd};
use gmodel::supervise::RunSetup;
use gmodel::{Fence, NodeLife, RunId, Timestamp};
use gsys::durable_file::{sync_parent, write_atomic};
use gsys::removal::remove_tree;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A sector each, so that a torn write spoils one.
const SLOT_BYTES: usize = 512;
const SLOTS: u64 = 2;
/// Below this the node takes no new run.
pub const MIN_FREE_BYTES: u64 = 64 << 20;
/// Most of a run's log that is kept, and most that is read for `gq --log`.
const LOG_MAX_BYTES: u64 = 1 << 20;
/// In a run's directory: what the driver told of its GPUs, a line each.
const GPU_EVENTS: &str = "gpu-events";
const MAX_GPU_EVENTS: usize = 16;
const LOG_READ_BYTES: usize = 64 << 10;
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// A record file is never larger; a larger one is somebody's mistake.
const RECORD_MAX_BYTES: u64 = 16 << 20;
const READ_AT_ONCE_BYTES: usize = 8 << 10;

/// The spool directory of one daemon, locked against a second one.
#[derive(Debug)]
pub struct Spool {
    dir: PathBuf,
    fence: Mutex<FenceFile>,
    life: NodeLife,
    spares: SpareDirs,
    /// Of runs that were accepted or asked for since the daemon began: what is in their files.
    known: Mutex<BTreeMap<RunId, Known>>,
    old_logs: OldLogs,
    /// Held for the lock.
    _lock: nix::fcntl::Flock<File>,
}

/// What was written or read of a run, so that it is not read again. Scripts and variables, which may be long, are not kept.
#[derive(Debug, Default)]
struct Known {
    order: Option<Arc<LaunchOrder>>,
    setup: Option<Arc<RunSetup>>,
    log: Option<Arc<File>>,
}

/// What a run's directory says, before its supervisor was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
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
        for below in ["runs", "marks", "private", "logs"] {
            private_dir(&dir.join(below))?;
        }
        // Jobs reach their mark socket through it; they can list nothing.
        for passed in [dir.to_owned(), dir.join("marks")] {
            fs::set_permissions(&passed, fs::Permissions::from_mode(0o711))?;
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
            Known {
                order: Some(without_texts(order.clone())),
                ..Known::default()
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

    fn known(&self) -> MutexGuard<'_, BTreeMap<RunId, Known>> {
        self.known.lock().expect("no holder panics")
    }

    /// The run's end, as its supervisor wrote it, or as we did for it, as [`Spool::explained`].
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
        end
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
        crate::gpu_use::kept(&self.run_dir(run), |uuid| part(uuid).unwrap_or(1000))
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

    /// The run's newest checkpoint mark. One that cannot be read is lost, and said so in our log.
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
    pub fn scan(&self) -> Result<BTreeMap<RunId, Record>> {
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

    fn record(&self, run: RunId) -> Result<Record> {
        let dir = self.run_dir(run);
        Ok(match self.end(run)? {
            Some(end) => Record::Ended {
                end: Box::new(end),
                clean: dir.join("clean").exists(),
            },
            None if dir.join("setup.json").exists() => Record::Supervised,
            None => Record::Order,
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
            if !matches!(record, Record::Ended { .. }) {
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

/// Two slots: `{"incarnation":1,"generation":7,"turn":12}` and spaces.
#[derive(Debug)]
struct FenceFile {
    file: File,
    newest: Fence,
    turn: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct FenceSlot {
    #[serde(flatten)]
    fence: Fence,
    turn: u64,
    /// So that half of an old and half of a new slot is seen for what it is.
    sum: u64,
}

impl FenceFile {
    fn open(path: &Path) -> Result<Self> {
        let is_new = !path.exists();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .with_context(|| format!("opening {}", path.display()))?;
        if is_new || file.metadata()?.len() < SLOTS * SLOT_BYTES as u64 {
            file.write_all_at(&[b' '; SLOT_BYTES * SLOTS as usize], 0)?;
            file.sync_all()?;
            sync_parent(path)?;
        }
        let newest = (0..SLOTS)
            .filter_map(|slot| read_slot(&file, slot))
            .max_by_key(|slot| slot.turn);
        let (newest, turn) = newest.map_or((Fence::default(), 0), |slot| (slot.fence, slot.turn));
        Ok(Self { file, newest, turn })
    }

    fn write(&mut self, fence: Fence) -> Result<()> {
        let turn = self.turn + 1;
        let mut bytes = serde_json::to_vec(&FenceSlot {
            fence,
            turn,
            sum: slot_sum(fence, turn),
        })?;
        assert!(bytes.len() < SLOT_BYTES, "a fence fits into a sector");
        bytes.resize(SLOT_BYTES, b' ');
        self.file
            .write_all_at(&bytes, (turn % SLOTS) * SLOT_BYTES as u64)?;
        self.file.sync_data()?;
        (self.newest, self.turn) = (fence, turn);
        Ok(())
    }
}

fn read_slot(file: &File, slot: u64) -> Option<FenceSlot> {
    let mut bytes = [0; SLOT_BYTES];
    file.read_exact_at(&mut bytes, slot * SLOT_BYTES as u64)
        .ok()?;
    let slot: FenceSlot = serde_json::from_slice(&bytes).ok()?;
    (slot.sum == slot_sum(slot.fence, slot.turn)).then_some(slot)
}

fn slot_sum(fence: Fence, turn: u64) -> u64 {
    let mix = |sum: u64, n: u64| {
        (sum ^ n)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(29)
    };
    [fence.incarnation, fence.generation, turn]
        .into_iter()
        .fold(0x6770_7570_6F6F_6C31, mix)
}

/// One line in a run's log: for threads that have the directory and not the spool.
pub fn log_line(run_dir: &Path, now: Timestamp, line: &str) {
    let written = open_log(run_dir).and_then(|file| write_log_line(&file, now, line));
    if let Err(e) = written {
        tracing::debug!("the log in {}: {e}", run_dir.display());
    }
}

fn open_log(run_dir: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(run_dir.join("log"))
}

/// One write, since others write there too.
fn write_log_line(mut file: &File, now: Timestamp, line: &str) -> std::io::Result<()> {
    match file.metadata()?.len() > LOG_MAX_BYTES {
        true => Ok(()),
        false => file.write_all(format!("{now} {}\n", line.replace('\n', " | ")).as_bytes()),
    }
}

fn without_texts(order: LaunchOrder) -> Arc<LaunchOrder> {
    Arc::new(LaunchOrder {
        script: String::new(),
        environment: Vec::new(),
        ..order
    })
}

/// A directory of root's that others cannot look into.
pub fn private_dir(path: &Path) -> Result<()> {
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path);
    made.with_context(|| format!("making {}", path.display()))
}

fn make_dir(path: &Path, mode: u32) -> Result<()> {
    match fs::DirBuilder::new().mode(mode).create(path) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => {
            Err(e).with_context(|| format!("making {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Removes a file, or the link that stands there; what is gone is fine.
pub fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(e).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Removes a directory, of any depth, without following links; what is gone is fine.
pub fn remove_dir(path: &Path) -> Result<()> {
    remove_tree(path).with_context(|| format!("removing {}", path.display()))
}

/// Whole or not at all for a crash of the daemon; not synced, since these files mean nothing after a reboot.
pub fn write_aside(path: &Path, bytes: &[u8]) -> Result<()> {
    let aside = path.with_extension("new");
    let write = || {
        // Not truncated first: ext4 takes what is written after that for a replaced file, and writes it out when it is closed.
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&aside)?;
        file.write_all(bytes)?;
        if file.metadata()?.len() != bytes.len() as u64 {
            file.set_len(bytes.len() as u64)?;
        }
        fs::rename(&aside, path)
    };
    let written = write();
    written.with_context(|| format!("writing {}", path.display()))
}

/// A name says it by being there: another one of the order, which costs less than a file.
fn mark(path: &Path) -> Result<()> {
    let made = fs::hard_link(path.with_file_name("order.json"), path).or_else(|e| match e.kind() {
        ErrorKind::AlreadyExists => Ok(()),
        // There may be file systems without.
        _ => OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map(drop),
    });
    made.with_context(|| format!("making {}", path.display()))
}

fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>> {
    let file = match File::open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.with_context(|| format!("reading {}", path.display()))?,
    };
    // Most are read at once.
    let mut text = Vec::with_capacity(READ_AT_ONCE_BYTES);
    file.take(RECORD_MAX_BYTES).read_to_end(&mut text)?;
    serde_json::from_slice(&text)
        .map(Some)
        .with_context(|| format!("{} is not what we wrote", path.display()))
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
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_000);

    struct Scratch(PathBuf);
    impl Scratch {
        fn new(name: &str) -> Self {
            let dir =
                std::env::temp_dir().join(format!("gpud-spool-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            Self(dir)
        }
    }
    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn run(text: &str) -> RunId {
        text.parse().unwrap()
    }
    fn fence(generation: u64) -> Fence {
        Fence {
            incarnation: 3,
            generation,
        }
    }

    #[test]
    fn fence_and_spool_id_survive_and_a_second_daemon_is_refused() {
        let scratch = Scratch::new("fence");
        let spool = Spool::open(&scratch.0, NOW).unwrap();
        for generation in 1..6 {
            spool.write_fence(fence(generation)).unwrap();
        }
        let life = spool.life().clone();
        assert!(
            Spool::open(&scratch.0, NOW)
                .unwrap_err()
                .to_string()
                .contains("another gpud")
        );
        drop(spool);
        let again = Spool::open(&scratch.0, NOW).unwrap();
        assert_eq!((again.fence(), again.life()), (fence(5), &life));
    }

    #[test]
    fn a_torn_slot_leaves_the_fence_before_it() {
        let scratch = Scratch::new("torn");
        let spool = Spool::open(&scratch.0, NOW).unwrap();
        spool.write_fence(fence(1)).unwrap();
        spool.write_fence(fence(2)).unwrap();
        spool
            .fence
            .lock()
            .unwrap()
            .file
            .write_all_at(br#"{"incarnation":9"#, 0)
            .unwrap();
        drop(spool);
        assert_eq!(Spool::open(&scratch.0, NOW).unwrap().fence(), fence(1));
    }

    #[test]
    fn a_run_directory_says_how_far_the_run_came() {
        let scratch = Scratch::new("scan");
        let spool = Spool::open(&scratch.0, NOW).unwrap();
        for id in ["1-1", "2-1", "3-1", "4-1"] {
            spool.accept(run(id), &LaunchOrder::default()).unwrap();
        }
        fs::create_dir(scratch.0.join("runs/5-1")).unwrap();
        spool.write_setup(run("2-1"), &RunSetup::default()).unwrap();
        for id in ["3-1", "4-1"] {
            spool.write_end(run(id), RunEnd::default()).unwrap();
        }
        spool.mark_clean(run("4-1")).unwrap();
        let ended = |clean| Record::Ended {
            end: Box::default(),
            clean,
        };
        let expected = [
            (run("1-1"), Record::Order),
            (run("2-1"), Record::Supervised),
            (run("3-1"), ended(false)),
            (run("4-1"), ended(true)),
        ];
        assert_eq!(spool.scan().unwrap(), BTreeMap::from(expected));
        assert!(!scratch.0.join("runs/5-1").exists(), "never accepted");
        spool.forget(run("4-1")).unwrap();
        spool.forget(run("4-1")).unwrap();
        assert_eq!(spool.scan().unwrap().len(), 3);
    }

    #[test]
    fn what_is_kept_of_a_run_has_no_texts_and_goes_with_it() {
        let scratch = Scratch::new("known");
        let spool = Spool::open(&scratch.0, NOW).unwrap();
        let id = run("1-1");
        let order = LaunchOrder {
            job_name: "train".into(),
            script: "secret".into(),
            environment: vec!["A=b".into()],
            ..LaunchOrder::default()
        };
        spool.accept(id, &order).unwrap();
        spool
            .write_setup(
                id,
                &RunSetup {
                    node_name: "n1".into(),
                    ..RunSetup::default()
                },
            )
            .unwrap();
        let kept = spool.order(id).unwrap();
        assert_eq!(
            (
                kept.job_name.as_str(),
                kept.script.as_str(),
                kept.environment.len()
            ),
            ("train", "", 0)
        );
        // A daemon that begins reads the same from the files, in which the texts are.
        drop(spool);
        let spool = Spool::open(&scratch.0, NOW).unwrap();
        assert_eq!(*spool.order(id).unwrap(), *kept);
        assert_eq!(spool.setup(id).unwrap().unwrap().node_name, "n1");
        assert!(
            fs::read_to_string(scratch.0.join("runs/1-1/order.json"))
                .unwrap()
                .contains("secret")
        );
        spool.log(id, NOW, "accepted");
        spool.forget(id).unwrap();
        assert!(
            spool.known().is_empty()
                && spool.order(id).is_err()
                && spool.setup(id).unwrap().is_none()
        );
    }

    #[test]
    fn a_directory_that_is_used_again_is_a_new_run() {
        let scratch = Scratch::new("again");
        let spool = Spool::open(&scratch.0, NOW).unwrap();
        let (first, second) = (run("1-1"), run("2-1"));
        let order = |name: &str| LaunchOrder {
            job_name: name.into(),
            ..LaunchOrder::default()
        };
        spool.accept(first, &order("first")).unwrap();
        spool.write_setup(first, &RunSetup::default()).unwrap();
        spool.mark_ready(first).unwrap();
        spool.mark_ready(first).unwrap();
        assert!(spool.was_ready(first));
        spool.write_end(first, RunEnd::default()).unwrap();
        spool.mark_clean(first).unwrap();
        spool.forget(first).unwrap();
        spool.accept(second, &order("second")).unwrap();
        assert_eq!(
            spool.scan().unwrap(),
            BTreeMap::from([(second, Record::Order)])
        );
        assert!(
            !spool.was_ready(second)
                && spool.setup(second).unwrap().is_none()
                && spool.end(second).unwrap().is_none()
        );
        assert_eq!(spool.order(second).unwrap().job_name, "second");
        // Accepted again, while there is a spare one: the run keeps its directory.
        spool.accept(first, &order("first")).unwrap();
        spool.forget(first).unwrap();
        spool.mark_ready(second).unwrap();
        spool.accept(second, &order("again")).unwrap();
        assert!(spool.was_ready(second) && spool.order(second).unwrap().job_name == "again");
        drop(spool);
        let spool = Spool::open(&scratch.0, NOW).unwrap();
        assert_eq!(
            spool.scan().unwrap(),
            BTreeMap::from([(second, Record::Order)]),
            "spare ones are no runs"
        );
        assert_eq!(fs::read_dir(spool.runs_dir()).unwrap().count(), 1);
    }

    #[test]
    fn runs_of_an_earlier_boot_are_ended_when_the_spool_is_opened() {
        let scratch = Scratch::new("boot");
        let spool = Spool::open(&scratch.0, NOW).unwrap();
        spool.accept(run("1-1"), &LaunchOrder::default()).unwrap();
        let path = scratch.0.join("life.json");
        let life = StoredLife {
            boot: "yesterday".into(),
            spool: spool.life().spool.clone(),
        };
        fs::write(&path, serde_json::to_vec(&life).unwrap()).unwrap();
        drop(spool);
        let spool = Spool::open(&scratch.0, NOW).unwrap();
        assert_eq!(
            spool.end(run("1-1")).unwrap().unwrap().cause,
            EndCause::NodeRebooted
        );
        assert_eq!(spool.life().spool, life.spool);
    }

    #[test]
    fn an_end_whose_name_was_undone_by_a_power_cut_counts_and_a_half_written_one_does_not() {
        let scratch = Scratch::new("room");
        let spool = Spool::open(&scratch.0, NOW).unwrap();
        let room = scratch.0.join("runs/1-1/exit.json.room");
        spool.accept(run("1-1"), &LaunchOrder::default()).unwrap();
        let end = RunEnd {
            cause: EndCause::TimeLimit,
            ..RunEnd::default()
        };
        let text = serde_json::to_string(&end).unwrap();
        for unfinished in [
            "",
            "{",
            "\0\0\0\0",
            &text[..text.len() - 1],
            &format!("{text}\0\0"),
        ] {
            fs::write(&room, unfinished).unwrap();
            assert_eq!(spool.end(run("1-1")).unwrap(), None, "{unfinished:?}");
        }
        fs::write(&room, &text).unwrap();
        assert_eq!(spool.end(run("1-1")).unwrap(), Some(end.clone()));
        assert_eq!(
            spool.scan().unwrap()[&run("1-1")],
            Record::Ended {
                end: Box::new(end),
                clean: false
            }
        );
    }

    #[test]
    fn the_first_end_counts_and_a_broken_fence_explains_it() {
        let scratch = Scratch::new("end");
        let spool = Spool::open(&scratch.0, NOW).unwrap();
        spool.accept(run("1-1"), &LaunchOrder::default()).unwrap();
        let lost = RunEnd {
            cause: EndCause::SupervisorLost,
            ..RunEnd::default()
        };
        spool.write_end(run("1-1"), lost.clone()).unwrap();
        assert_eq!(
            spool.write_end(run("1-1"), RunEnd::default()).unwrap(),
            lost
        );
        fs::write(scratch.0.join("runs/1-1/exit.json"), "{").unwrap();
        assert_eq!(
            spool.end(run("1-1")).unwrap().unwrap().cause,
            EndCause::SpoolLost
        );
        spool.mark_fence_broken(run("1-1"), "changed").unwrap();
        assert_eq!(
            spool.end(run("1-1")).unwrap().unwrap().cause,
            EndCause::FenceBroken
        );
    }

    #[test]
    fn a_log_is_read_back_bounded() {
        let scratch = Scratch::new("log");
        let spool = Spool::open(&scratch.0, NOW).unwrap();
        assert!(
            spool
                .read_log(run("1-1"))
                .unwrap_err()
                .to_string()
                .contains("no record of run 1-1")
        );
        spool.accept(run("1-1"), &LaunchOrder::default()).unwrap();
        for n in 0..5000 {
            spool.log(run("1-1"), NOW, &format!("line {n} {}", "x".repeat(40)));
        }
        let text = spool.read_log(run("1-1")).unwrap();
        assert!(
            text.len() <= LOG_READ_BYTES
                && text.ends_with(&format!("line 4999 {}\n", "x".repeat(40)))
        );
        assert!(text.starts_with("1970-01-01T00:00:01Z line "));
    }

    #[test]
    fn logs_outlive_their_runs() {
        let scratch = Scratch::new("old-logs");
        let spool = Spool::open(&scratch.0, NOW).unwrap();
        spool.accept(run("1-1"), &LaunchOrder::default()).unwrap();
        spool.log(run("1-1"), NOW, "accepted");
        spool.forget(run("1-1")).unwrap();
        assert_eq!(
            spool.read_log(run("1-1")).unwrap(),
            "1970-01-01T00:00:01Z accepted\n"
        );
        // Of a run in the same directory, only that.
        spool.accept(run("2-1"), &LaunchOrder::default()).unwrap();
        spool.log(run("2-1"), NOW, "another");
        assert_eq!(
            spool.read_log(run("2-1")).unwrap(),
            "1970-01-01T00:00:01Z another\n"
        );
        spool.forget(run("2-1")).unwrap();
        drop(spool);
        let spool = Spool::open(&scratch.0, NOW).unwrap();
        assert_eq!(
            spool.read_log(run("1-1")).unwrap(),
            "1970-01-01T00:00:01Z accepted\n"
        );
        assert_eq!(
            spool.read_log(run("2-1")).unwrap(),
            "1970-01-01T00:00:01Z another\n"
        );
        assert_eq!(
            fs::read_dir(scratch.0.join("logs")).unwrap().count(),
            1,
            "no file for each run"
        );
    }
}
