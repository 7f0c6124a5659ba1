//! The watch over this node's GPUs: discovery, health, events, use, and whether a run left its GPUs clean. Each call into NVML has a
//! deadline, so a driver that hangs costs freshness only. The thread that drives it is `watch_thread`.

use crate::clock::{ClockWatch, wall_clock};
use crate::config::{Config, ConfigError};
use crate::gpu::catalogue::SiteCatalogue;
use crate::gpu::health::HealthBook;
use crate::gpu::mig;
use crate::gpu::table::{GpuReader, GpuTable, Gpus};
use crate::gpu::use_book::UseBook;
use crate::spool::Spool;
use crate::spool::file::private_dir;
use crate::spool::run_log::log_line;
use anyhow::{Context, Result};
use gcore::node::gpu_health::{HealthInput, RepairMeans, RepairPolicy, SeenGpu};
use gmodel::RunId;
use gmodel::idle::IdleReport;
use gsys::nvml::{Change, ComputeMode, GpuEvent, GpuEventKind, GpuUse, NvmlError, NvmlWorker};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// For a call into NVML.
const PATIENCE: Duration = Duration::from_secs(5);
/// What a driver keeps for itself on an empty board: some 600 MiB on the largest.
const CLEAN_SLACK_BYTES: u64 = 1 << 30;
/// How long a run's GPUs may take to be clean after its last process.
const CLEAN_WITHIN: Duration = Duration::from_secs(10);
pub const CLEAN_LOOK_EVERY: Duration = Duration::from_millis(200);
/// For the site's programs that reset a GPU, or have the machine boot.
pub const RESET_LIMIT: Duration = Duration::from_secs(300);
/// In the spool: what administrators of this node order, a file per GPU.
pub const ORDERS_DIR: &str = "gpu-orders";

/// What the threads of the daemon know together of its GPUs.
pub struct GpuWatch {
    pub(super) reader: GpuReader,
    /// The GPUs as discovery sees them, without the faults of the health book.
    seen: Mutex<Gpus>,
    pub(super) health: Mutex<HealthBook>,
    uses: Mutex<UseBook>,
    pub(super) catalogue: Mutex<SiteCatalogue>,
    pub(super) orders: PathBuf,
    /// The controller's orders are carried out one after the other.
    pub(super) carrying_out: Mutex<()>,
    /// Some were: the next step is due at once.
    pub(super) ordered: AtomicBool,
    pub(super) opened: Instant,
    clock: Mutex<ClockWatch>,
    /// The GPUs were read since then, and each repair took its step.
    pub(super) looked: AtomicBool,
    pub(super) every: Duration,
}

impl std::fmt::Debug for GpuWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GpuWatch")
            .field("every", &self.every)
            .finish_non_exhaustive()
    }
}

impl GpuWatch {
    /// Reads the GPUs once; the health book counts from the first report on. Blocking.
    pub fn open(config: &Config, spool: &Spool, table: &GpuTable) -> Result<Self> {
        let catalogue = SiteCatalogue::open(config.gpu_signs.as_deref())
            .map_err(|ConfigError(text)| anyhow::anyhow!(text))?;
        let worker = NvmlWorker::start(config.nvml_lib.clone())?;
        if let Some(log) = &config.kernel_log {
            let shown = log.display().to_string();
            worker.watch_kernel_log(log, move |trouble| match trouble {
                Some(e) => tracing::warn!(
                    "Xids are taken from NVML alone until the kernel log {shown} can be read: {e}"
                ),
                None => tracing::info!("Xids are taken from the kernel log {shown} again"),
            })?;
        }
        let orders = spool.dir().join(ORDERS_DIR);
        private_dir(&orders)?;
        let boot = spool.life().boot.clone();
        let watch = Self {
            reader: GpuReader::new(worker, config),
            seen: Mutex::default(),
            health: Mutex::new(HealthBook::open(
                spool.dir(),
                boot,
                means(config),
                wall_clock(),
            )),
            uses: Mutex::default(),
            catalogue: Mutex::new(catalogue),
            orders,
            carrying_out: Mutex::default(),
            ordered: AtomicBool::default(),
            opened: Instant::now(),
            clock: Mutex::new(ClockWatch::new()),
            looked: AtomicBool::default(),
            every: Duration::from_secs(u64::from(config.gpu_watch_secs)),
        };
        watch.discover(table);
        let found = table.current();
        if found.facts.is_empty() && found.trouble.is_empty() {
            tracing::info!("a CPU node: NVML shows no GPU");
        }
        Ok(watch)
    }

    /// A run's first process was started: its use counts from now.
    pub fn run_began(&self, run: RunId, run_dir: &Path, held_milli: &BTreeMap<String, u32>) {
        self.sample();
        lock(&self.uses).open(run, run_dir, held_milli);
    }

    /// There is a sample of this second: then a run begins and ends here without a call into NVML.
    pub fn has_fresh_sample(&self) -> bool {
        !lock(&self.uses).is_stale()
    }

    /// Whether the use of its GPUs is added up.
    pub fn follows(&self, run: RunId) -> bool {
        lock(&self.uses).follows(run)
    }

    /// The run is suspended, or resumed: a suspended run is not idle.
    pub fn run_suspended(&self, run: RunId, suspended: bool) {
        lock(&self.uses).suspend(run, suspended);
    }

    /// Its last process is gone: the sums are written down for its record. Blocking, at most as long as NVML is given.
    pub fn run_ended(&self, run: RunId, run_dir: &Path) {
        if self.follows(run) {
            self.sample();
            let mut uses = lock(&self.uses);
            uses.keep(run, run_dir);
            uses.close(run);
        }
    }

    /// Waits until nothing of a run is left on its GPUs; a GPU that is not clean gets no job. What was seen, for the run's log. Blocking.
    pub fn leave_clean(&self, run: RunId, gpus: &[String], table: &GpuTable) -> String {
        self.nvml();
        let begun = Instant::now();
        loop {
            let left = self.left_on(gpus);
            if left.is_empty() {
                let clean = match gpus.len() {
                    1 => "1 GPU is clean".to_owned(),
                    count => format!("{count} GPUs are clean"),
                };
                return format!(
                    "{clean}: no process, memory given back, after {:.1} s",
                    begun.elapsed().as_secs_f64()
                );
            }
            let silent = left.values().all(|(_, silent)| *silent);
            if silent || begun.elapsed() >= CLEAN_WITHIN {
                let mut health = lock(&self.health);
                for (uuid, (what, _)) in &left {
                    left_on(&mut health, uuid, format!("after run {run}, {what}"), false);
                }
                health.write(wall_clock());
                drop(health);
                self.show(table);
                let words: Vec<String> = left
                    .iter()
                    .map(|(uuid, (what, _))| {
                        format!("GPU {uuid} is not clean and is not given out: {what}")
                    })
                    .collect();
                return words.join("; ");
            }
            std::thread::sleep(CLEAN_LOOK_EVERY);
        }
    }

    /// This GPU gets no job until it is seen clean.
    pub fn not_clean(&self, uuid: &str, why: String, table: &GpuTable) {
        let mut health = lock(&self.health);
        left_on(&mut health, uuid, why, false);
        health.write(wall_clock());
        drop(health);
        self.show(table);
    }

    /// Its memory is to be overwritten before it is given out; `why` it is not, where nothing else was left on it.
    pub fn not_scrubbed(&self, uuid: &str, why: &str, table: &GpuTable) {
        let mut health = lock(&self.health);
        let left = health.health().left(uuid).0.to_owned();
        let what = if left.is_empty() {
            why.to_owned()
        } else {
            left
        };
        left_on(&mut health, uuid, what, true);
        health.write(wall_clock());
        drop(health);
        self.show(table);
    }

    /// Its memory was overwritten.
    pub fn scrubbed(&self, uuid: &str, table: &GpuTable) {
        self.not_clean(uuid, String::new(), table);
    }

    /// Whether a run left something on it.
    pub fn is_clean(&self, uuid: &str) -> bool {
        lock(&self.health).health().left(uuid).0.is_empty()
    }

    /// GPUs without processes and allocations of an earlier run, with memory that is not scrubbed.
    pub fn to_scrub(&self, spool: &Spool) -> Vec<String> {
        let waiting: Vec<String> = {
            let book = lock(&self.health);
            let health = book.health();
            health
                .unclean()
                .into_iter()
                .filter(|uuid| health.left(uuid).1)
                .collect()
        };
        if waiting.is_empty() {
            return waiting;
        }
        let held = mig::holders(spool);
        waiting
            .into_iter()
            .filter(|uuid| !held.contains_key(uuid) && self.is_empty(uuid))
            .collect()
    }

    /// By a sample newer than what was last seen on it: no process, and memory given back. While NVML hangs there is none.
    fn is_empty(&self, uuid: &str) -> bool {
        let since = lock(&self.health).health().left_at(uuid);
        lock(&self.uses)
            .latest(uuid, since)
            .is_some_and(|sample| sample.leftovers(None, CLEAN_SLACK_BYTES).is_none())
    }

    /// The compute mode of a GPU, asked now. Blocking.
    pub fn compute_mode(&self, uuid: &str) -> Result<ComputeMode> {
        let found = self.nvml().discover(PATIENCE)?;
        let gpu = found
            .gpus
            .into_iter()
            .find(|gpu| gpu.uuid == uuid)
            .with_context(|| format!("GPU {uuid} is not in this node"))?;
        gpu.compute_mode
            .with_context(|| format!("GPU {uuid} does not tell its compute mode"))
    }

    /// Blocking.
    pub fn set_compute_mode(&self, uuid: &str, mode: ComputeMode) -> Result<()> {
        self.nvml()
            .change(uuid, Change::ComputeMode(mode), PATIENCE)?;
        Ok(())
    }

    /// For what has to be done: waits while another GPU is reset.
    pub(super) fn nvml(&self) -> &NvmlWorker {
        self.reader.worker.wait_until_open(RESET_LIMIT);
        &self.reader.worker
    }

    /// What is left on each GPU that is not clean, and whether that GPU merely does not answer.
    fn left_on(&self, gpus: &[String]) -> BTreeMap<String, (String, bool)> {
        let samples = match self.sample_of(gpus) {
            Ok(samples) => samples,
            Err(e) => {
                return gpus
                    .iter()
                    .map(|uuid| (uuid.clone(), (e.to_string(), true)))
                    .collect();
            }
        };
        let look = |uuid: &String| {
            let Some(sample) = find_sample(&samples, uuid) else {
                return Some((uuid.clone(), ("it is not there any more".to_owned(), true)));
            };
            let left = sample.leftovers(None, CLEAN_SLACK_BYTES)?;
            let names = sample
                .processes
                .iter()
                .map(|process| process_words(process.pid))
                .collect::<String>();
            Some((uuid.clone(), (left + &names, sample.fault.is_some())))
        };
        gpus.iter().filter_map(look).collect()
    }

    /// How much these GPUs and slices are used: the others are not asked, which takes its time on real boards.
    fn sample_of(&self, gpus: &[String]) -> Result<Vec<GpuUse>, NvmlError> {
        let boards = {
            let seen = lock(&self.seen);
            gpus.iter()
                .map(|uuid| mig::board(&seen.facts, uuid).unwrap_or(uuid).to_owned())
                .collect()
        };
        let samples = mig::with_slices(
            self.reader.worker.sample_use_of(boards, PATIENCE)?,
            &lock(&self.seen).facts,
        );
        // One that is not where discovery saw it may be elsewhere.
        if gpus
            .iter()
            .all(|uuid| find_sample(&samples, uuid).is_some())
        {
            Ok(samples)
        } else {
            self.take_sample()
        }
    }

    /// A sample of all GPUs, unless there is one of this second.
    fn sample(&self) {
        if !lock(&self.uses).is_stale() {
            return;
        }
        match self.take_sample() {
            Ok(samples) => lock(&self.uses).add(samples, wall_clock()),
            Err(e) => tracing::debug!("{e}"),
        }
    }

    /// How much each GPU is used, and each slice of those that are cut.
    fn take_sample(&self) -> Result<Vec<GpuUse>, NvmlError> {
        let samples = self.reader.worker.sample_use(PATIENCE)?;
        Ok(mig::with_slices(samples, &lock(&self.seen).facts))
    }

    /// True when something is news.
    pub(super) fn discover(&self, table: &GpuTable) -> bool {
        let before = lock(&self.seen).clone();
        let gpus = self.reader.read(&before);
        tell_driver(&before, &gpus);
        let seen = gpus.facts.iter().map(|gpu| SeenGpu {
            uuid: &gpu.uuid,
            index: gpu.index,
            gpu_type: &gpu.gpu_type,
        });
        let discovered = HealthInput::Discovered {
            gpus: seen.collect(),
        };
        lock(&self.health).take(discovered, wall_clock());
        *lock(&self.seen) = gpus;
        self.show(table)
    }

    /// What discovery saw, with what the book says. True when it is news.
    pub(super) fn show(&self, table: &GpuTable) -> bool {
        let mut gpus = lock(&self.seen).clone();
        let health = lock(&self.health);
        health.apply(&mut gpus.facts);
        gpus.health = health.health().reports();
        gpus.slice_faults = health.health().faults_of_slices();
        drop(health);
        table.replace(gpus)
    }

    /// Looks at everything, and says which runs have to end.
    pub(super) fn sweep(&self, table: &GpuTable, spool: &Spool) -> bool {
        let now = wall_clock();
        if lock(&self.clock).was_set() {
            lock(&self.health).take(HealthInput::ClockSet, now);
        }
        let catalogue = lock(&self.catalogue).current();
        if table.current().facts.is_empty() {
            return self.discover(table);
        }
        match self.reader.worker.read_health(PATIENCE) {
            Ok(sweep) => {
                let catalogue = &*catalogue;
                lock(&self.health).take(HealthInput::Swept { catalogue, sweep }, now);
            }
            Err(e) => tracing::debug!("{e}"),
        }
        self.follow_runs(spool);
        self.look_at_unclean(spool);
        self.discover(table)
    }

    /// What is to be told of idle GPUs, if there was a sample.
    pub(super) fn idle_runs(&self) -> Vec<IdleReport> {
        lock(&self.uses).idle_runs(Instant::now())
    }

    fn follow_runs(&self, spool: &Spool) {
        self.sample();
        let live: BTreeSet<RunId> = spool.live().into_iter().collect();
        let mut uses = lock(&self.uses);
        for run in uses.runs() {
            uses.keep(run, &spool.run_dir(run));
            if !live.contains(&run) {
                uses.close(run);
            }
        }
    }

    /// A GPU that was not clean is given out again when it is.
    fn look_at_unclean(&self, spool: &Spool) {
        let unclean = lock(&self.health).health().unclean();
        if unclean.is_empty() {
            return;
        }
        let held = mig::holders(spool);
        for uuid in unclean.into_iter().filter(|uuid| !held.contains_key(uuid)) {
            if self.is_empty(&uuid) {
                let mut health = lock(&self.health);
                if !health.health().left(&uuid).1 {
                    left_on(&mut health, &uuid, String::new(), false);
                }
            }
        }
    }

    /// Xids of addresses at which no GPU is known.
    pub fn strays(&self) -> Vec<String> {
        self.reader.worker.strays()
    }

    /// Xids go into the record and the log of each run that holds the GPU, once each.
    pub(super) fn note_for_runs(&self, events: &[GpuEvent], spool: &Spool) {
        let xids: BTreeSet<(&str, u64)> = events
            .iter()
            .filter_map(|event| match event.kind {
                GpuEventKind::Xid(xid) => Some((event.uuid.as_str(), xid)),
                _ => None,
            })
            .collect();
        if xids.is_empty() {
            return;
        }
        let held = mig::holders(spool);
        for (uuid, xid) in xids {
            for run in held.get(uuid).into_iter().flatten() {
                let line = format!("{uuid}: Xid {xid}");
                if spool.note_gpu_event(*run, &line) {
                    log_line(&spool.run_dir(*run), wall_clock(), &line);
                }
            }
        }
    }

    pub(super) fn take_events(&self, events: &[GpuEvent]) {
        let catalogue = lock(&self.catalogue).current();
        let catalogue = &*catalogue;
        lock(&self.health).take(HealthInput::Events { catalogue, events }, wall_clock());
    }
}

fn left_on(health: &mut HealthBook, uuid: &str, what: String, to_scrub: bool) {
    let left = HealthInput::Left {
        uuid,
        what,
        to_scrub,
    };
    health.take(left, wall_clock());
}

/// For the log: a driver that fell silent, answers again, or is another one.
fn tell_driver(before: &Gpus, now: &Gpus) {
    if before.trouble == now.trouble && before.driver == now.driver {
        return;
    }
    match now.trouble.as_str() {
        "" => tracing::info!(
            "{} GPUs, driver {}{}",
            now.facts.len(),
            now.driver,
            if before.trouble.is_empty() {
                ""
            } else {
                ": it answers again"
            }
        ),
        trouble => tracing::warn!("{trouble}"),
    }
}

/// What the site gives this node to mend GPUs with. Without its programs nothing is reset or booted.
fn means(config: &Config) -> RepairMeans {
    let usual = RepairPolicy::default();
    let policy = RepairPolicy {
        max_resets: if config.gpu_reset.is_some() {
            usual.max_resets
        } else {
            0
        },
        max_boots: u32::from(config.node_reboot.is_some()),
        first_pause_secs: config.gpu_repair_pause_secs.into(),
        ..usual
    };
    RepairMeans {
        burn_in: config.gpu_burn_in.is_some(),
        policy,
    }
}

fn find_sample<'a>(samples: &'a [GpuUse], uuid: &str) -> Option<&'a GpuUse> {
    samples
        .iter()
        .find(|sample| sample.uuid.as_deref() == Some(uuid))
}

/// ` (4711 is "python" of uid 1000)`; empty for a process that is gone or hidden from gpud.
fn process_words(pid: u32) -> String {
    use std::os::unix::fs::MetadataExt;
    let dir = PathBuf::from(format!("/proc/{pid}"));
    let name = std::fs::read_to_string(dir.join("comm"));
    match (name, std::fs::metadata(&dir)) {
        (Ok(name), Ok(meta)) => format!(" ({pid} is {:?} of uid {})", name.trim(), meta.uid()),
        _ => String::new(),
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder panics")
}
