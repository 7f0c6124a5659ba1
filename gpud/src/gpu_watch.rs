//! The thread that watches this node's GPUs: what there is, how each is, what befalls it, how much it is used. Every call into
//! NVML has a deadline, so a driver that hangs costs freshness and nothing else. Decides by `gpu_health`, tells the daemon.

use crate::config::{Config, ConfigError};
use crate::daemon::{Happening, wall_clock};
use crate::gpu_catalogue::SiteCatalogue;
use crate::gpu_health::{HealthBook, Means, Order};
use crate::gpu_scrub;
use crate::gpu_share;
use crate::gpu_use::UseBook;
use crate::inventory::{GpuTable, Gpus, Reader};
use crate::mig;
use crate::site::Site;
use crate::site_program::SiteProgram;
use crate::spool::{Spool, log_line};
use anyhow::{Context, Result};
use gmodel::RunId;
use gmodel::gpu_health::{RepairPolicy, RepairStage};
use gmodel::gpu_order::{GpuAction, GpuOrder, GpuOrderDone};
use gmodel::idle::IdleReport;
use gsys::nvml::{Change, ComputeMode, GpuEvent, GpuEventKind, GpuUse, NvmlError, NvmlWorker};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// For a call into NVML.
const PATIENCE: Duration = Duration::from_secs(5);
/// Orders of administrators and changes of the catalogue are seen so soon.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// What a driver keeps for itself on an empty board: some 600 MiB on the largest.
const CLEAN_SLACK_BYTES: u64 = 1 << 30;
/// How long a run's GPUs may take to be clean after its last process.
const CLEAN_WITHIN: Duration = Duration::from_secs(10);
const CLEAN_LOOK_EVERY: Duration = Duration::from_millis(200);
/// For the site's program on a GPU that is to go back into service.
const BURN_IN_LIMIT: Duration = Duration::from_secs(900);
/// For the site's programs that reset a GPU, or have the machine boot.
const RESET_LIMIT: Duration = Duration::from_secs(300);
/// For NVML to be closed before a reset: those who wait for its events look up every second.
const LET_GO_WITHIN: Duration = Duration::from_secs(15);
/// For GPUs to be looked at for the first time after the daemon's start: an order that comes sooner waits so long.
const FIRST_LOOK_WITHIN: Duration = Duration::from_secs(20);
/// A run that is to end and has not is told again.
const END_AGAIN: Duration = Duration::from_secs(10);
/// In the spool: what administrators of this node order, a file per GPU.
const ORDERS_DIR: &str = "gpu-orders";

/// What the threads of the daemon know together of its GPUs.
pub struct GpuWatch {
    reader: Reader,
    /// As discovery sees them, without what the book says.
    seen: Mutex<Gpus>,
    health: Mutex<HealthBook>,
    uses: Mutex<UseBook>,
    catalogue: Mutex<SiteCatalogue>,
    orders: PathBuf,
    /// The controller's orders are carried out one after the other.
    carrying_out: Mutex<()>,
    /// Some were: the next step is due at once.
    ordered: AtomicBool,
    opened: Instant,
    /// GPUs were looked at since, and took their steps by it.
    looked: AtomicBool,
    every: Duration,
}

impl std::fmt::Debug for GpuWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GpuWatch")
            .field("every", &self.every)
            .finish_non_exhaustive()
    }
}

impl GpuWatch {
    /// Reads the GPUs once. What was known of their health counts from the first report on. Blocking.
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
        crate::spool::private_dir(&orders)?;
        let boot = spool.life().boot.clone();
        let watch = Self {
            reader: Reader::new(worker, config),
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
    pub fn run_began(&self, run: RunId, run_dir: &Path, gpus: &[(String, u32)]) {
        self.sample();
        lock(&self.uses).open(run, run_dir, gpus);
    }

    /// There is a sample of this second: then a run begins and ends here without a call into NVML.
    pub fn has_fresh_sample(&self) -> bool {
        !lock(&self.uses).is_stale()
    }

    /// Whether the use of its GPUs is added up.
    pub fn follows(&self, run: RunId) -> bool {
        lock(&self.uses).follows(run)
    }

    /// It stands still, or goes on: until then it is not idle.
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

    /// Waits until nothing of a run is left on its GPUs; those that do not come clean are given to nobody. What was seen, for
    /// the run's log. Blocking.
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
                    health.left_on(uuid, format!("after run {run}, {what}"), wall_clock());
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

    /// This GPU is given to nobody until it is seen clean.
    pub fn not_clean(&self, uuid: &str, why: String, table: &GpuTable) {
        let mut health = lock(&self.health);
        health.left_on(uuid, why, wall_clock());
        health.write(wall_clock());
        drop(health);
        self.show(table);
    }

    /// Its memory is to be overwritten before it is given out; `why` it is not, where nothing else was left on it.
    pub fn not_scrubbed(&self, uuid: &str, why: &str, table: &GpuTable) {
        let mut health = lock(&self.health);
        let left = health.left(uuid).0.to_owned();
        health.unscrubbed(
            uuid,
            if left.is_empty() {
                why.to_owned()
            } else {
                left
            },
            wall_clock(),
        );
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
        lock(&self.health).left(uuid).0.is_empty()
    }

    /// GPUs on which nothing is left but what their memory holds.
    pub fn to_scrub(&self, site: &Site) -> Vec<String> {
        let waiting: Vec<String> = {
            let health = lock(&self.health);
            health
                .unclean()
                .into_iter()
                .filter(|uuid| health.left(uuid).1)
                .collect()
        };
        if waiting.is_empty() {
            return waiting;
        }
        let held = mig::holders(site);
        waiting
            .into_iter()
            .filter(|uuid| !held.contains_key(uuid) && self.is_empty(uuid))
            .collect()
    }

    /// By a sample newer than what was last seen on it: no process, and memory given back. While NVML hangs there is none.
    fn is_empty(&self, uuid: &str) -> bool {
        let since = lock(&self.health).left_at(uuid);
        lock(&self.uses)
            .latest(uuid, since)
            .is_some_and(|sample| sample.leftovers(None, CLEAN_SLACK_BYTES).is_none())
    }

    /// Who may have a context on a GPU, asked now. Blocking.
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
    fn nvml(&self) -> &NvmlWorker {
        self.reader.worker.wait_until_open(RESET_LIMIT);
        &self.reader.worker
    }

    /// What is left on those GPUs that are not clean, and whether they are merely silent.
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
    fn discover(&self, table: &GpuTable) -> bool {
        let before = lock(&self.seen).clone();
        let gpus = self.reader.read(&before);
        tell_driver(&before, &gpus);
        lock(&self.health).meet(&gpus.facts);
        *lock(&self.seen) = gpus;
        self.show(table)
    }

    /// What discovery saw, with what the book says. True when it is news.
    fn show(&self, table: &GpuTable) -> bool {
        let mut gpus = lock(&self.seen).clone();
        let health = lock(&self.health);
        health.apply(&mut gpus.facts);
        gpus.health = health.shown();
        gpus.slice_faults = health.faults_of_slices();
        drop(health);
        table.replace(gpus)
    }

    /// Looks at everything, and says which runs have to end.
    fn sweep(&self, site: &Site) -> bool {
        let now = wall_clock();
        let catalogue = lock(&self.catalogue).current();
        let facts = site.gpus.current();
        if facts.facts.is_empty() {
            return self.discover(&site.gpus);
        }
        match self.reader.worker.read_health(PATIENCE) {
            Ok(readings) => lock(&self.health).read(&catalogue, readings, &facts.facts, now),
            Err(e) => tracing::debug!("{e}"),
        }
        self.follow_runs(site);
        self.look_at_unclean(site);
        self.discover(&site.gpus)
    }

    /// What is to be told of idle GPUs, if there was a sample.
    fn idle_runs(&self) -> Vec<IdleReport> {
        lock(&self.uses).idle_runs(Instant::now())
    }

    fn follow_runs(&self, site: &Site) {
        self.sample();
        let live: BTreeSet<RunId> = site.spool.live().into_iter().collect();
        let mut uses = lock(&self.uses);
        for run in uses.runs() {
            uses.keep(run, &site.spool.run_dir(run));
            if !live.contains(&run) {
                uses.close(run);
            }
        }
    }

    /// A GPU that was not clean is given out again when it is.
    fn look_at_unclean(&self, site: &Site) {
        let unclean = lock(&self.health).unclean();
        if unclean.is_empty() {
            return;
        }
        let held = mig::holders(site);
        for uuid in unclean.into_iter().filter(|uuid| !held.contains_key(uuid)) {
            if self.is_empty(&uuid) && !lock(&self.health).left(&uuid).1 {
                lock(&self.health).left_on(&uuid, String::new(), wall_clock());
            }
        }
    }

    /// Xids of addresses at which no GPU is known.
    pub fn strays(&self) -> Vec<String> {
        self.reader.worker.strays()
    }

    /// Xids go into the record of the runs that hold the GPU, and into their logs, once each.
    fn note_for_runs(&self, events: &[GpuEvent], site: &Site) {
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
        let held = mig::holders(site);
        for (uuid, xid) in xids {
            for run in held.get(uuid).into_iter().flatten() {
                let line = format!("{uuid}: Xid {xid}");
                if site.spool.note_gpu_event(*run, &line) {
                    log_line(&site.spool.run_dir(*run), wall_clock(), &line);
                }
            }
        }
    }

    fn take_events(&self, events: &[GpuEvent]) {
        let catalogue = lock(&self.catalogue).current();
        lock(&self.health).events(&catalogue, events, wall_clock());
    }

    /// Carries out the controller's orders, each once however often it comes; the answers, which are on disk. Empty where
    /// the disk failed: the orders come again. Blocking.
    pub fn carry_out(
        &self,
        incarnation: u64,
        orders: &[GpuOrder],
        site: &Site,
    ) -> Vec<GpuOrderDone> {
        let _one_at_a_time = lock(&self.carrying_out);
        let mut done = Vec::new();
        for order in orders {
            let known = lock(&self.health).answered(incarnation, order);
            done.push(known.unwrap_or_else(|| {
                self.wait_for_first_look(order);
                // Seconds, in which nothing of the health may wait.
                let cut = match &order.what {
                    GpuAction::Cut { profiles } => self.cut(site, &order.uuid, profiles),
                    _ => Ok(()),
                };
                let mut health = lock(&self.health);
                let outcome = match &order.what {
                    GpuAction::Quarantine { reason } => {
                        health.obey(&order.uuid, Order::Quarantine(reason.clone()), wall_clock())
                    }
                    GpuAction::Return => health.obey(&order.uuid, Order::Return, wall_clock()),
                    GpuAction::Repair => {
                        health.permit(&order.uuid, site.spool.live().is_empty(), wall_clock())
                    }
                    GpuAction::Cut { .. } => cut,
                    GpuAction::Check(_) => Err(anyhow::anyhow!("a check is begun elsewhere")),
                    GpuAction::Unknown => Err(anyhow::anyhow!(
                        "gpud {} does not know this order",
                        env!("CARGO_PKG_VERSION")
                    )),
                };
                health.carried_out(incarnation, order, outcome)
            }));
        }
        let written = lock(&self.health).write(wall_clock());
        self.ordered.store(true, Ordering::Relaxed);
        self.show(&site.gpus);
        if !written {
            std::thread::sleep(LOOK_EVERY);
            done.clear();
        }
        done
    }

    /// A driver may be slower than the controller's first order, and only a look finds the step of a repair that waits. Blocking.
    fn wait_for_first_look(&self, order: &GpuOrder) {
        let needs_look = order.what == GpuAction::Repair;
        let too_soon = || {
            !self.looked.load(Ordering::Relaxed)
                && (needs_look || !lock(&self.health).knows(&order.uuid))
        };
        while too_soon() && self.opened.elapsed() < FIRST_LOOK_WITHIN {
            std::thread::sleep(CLEAN_LOOK_EVERY);
        }
    }

    /// Writes down that a check begins; the answer where that was written before: its daemon or its node ended during it.
    pub fn check_begins(&self, incarnation: u64, order: &GpuOrder) -> Result<Option<GpuOrderDone>> {
        let mut health = lock(&self.health);
        if let Some(done) = health.answered(incarnation, order) {
            return Ok(Some(done));
        }
        health.carried_out(
            incarnation,
            order,
            Err(anyhow::anyhow!("gpud or its node ended during the check")),
        );
        anyhow::ensure!(health.write(wall_clock()), "the spool cannot be written");
        Ok(None)
    }

    /// Cuts a GPU by MIG, and sees what came of it before anybody hears.
    fn cut(&self, site: &Site, uuid: &str, profiles: &[String]) -> Result<()> {
        site.checks.give_way([uuid], "the GPU is cut by MIG")?;
        let outcome = mig::cut(site, self.nvml(), uuid, profiles);
        self.discover(&site.gpus);
        outcome
    }

    /// What administrators ordered since; the order is gone once it is obeyed. True when there was one.
    fn take_orders(&self) -> bool {
        let mut taken = self.ordered.swap(false, Ordering::Relaxed);
        let Ok(entries) = std::fs::read_dir(&self.orders) else {
            return taken;
        };
        for path in entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|e| e == "json"))
        {
            let Some(uuid) = path.file_stem().and_then(|stem| stem.to_str()) else {
                continue;
            };
            let order = std::fs::read(&path)
                .map_err(anyhow::Error::from)
                .and_then(|bytes| Ok(serde_json::from_slice::<Order>(&bytes)?));
            match order {
                Ok(order) => {
                    if let Err(e) = lock(&self.health).obey(uuid, order, wall_clock()) {
                        tracing::warn!("{e:#}");
                    }
                }
                Err(e) => tracing::error!("{}: {e:#}", path.display()),
            }
            lock(&self.health).write(wall_clock());
            let _ = std::fs::remove_file(&path);
            taken = true;
        }
        taken
    }

    /// Next steps on every GPU's way; the runs that have to end.
    fn act(&self, site: &Site) -> BTreeSet<RunId> {
        // Who holds what matters only to a GPU that is sick.
        let well = lock(&self.health).all_well();
        let held = if well {
            BTreeMap::new()
        } else {
            mig::holders(site)
        };
        let node_empty = well || site.spool.live().is_empty();
        let mut health = lock(&self.health);
        let to_end = health.step(&held, node_empty, wall_clock());
        self.looked
            .fetch_or(health.has_readings(), Ordering::Relaxed);
        health.write(wall_clock());
        drop(health);
        let sick = to_end.into_iter().map(|end| (end.run, end.why));
        let to_end: Vec<(RunId, String)> = sick.chain(gpu_share::look(site)).collect();
        for (run, why) in &to_end {
            match site.spool.mark_gpu_failed(*run, why) {
                Ok(true) => log_line(
                    &site.spool.run_dir(*run),
                    wall_clock(),
                    &format!("ends, for a GPU of it failed: {why}"),
                ),
                Ok(false) => {}
                Err(e) => tracing::error!(%run, "{e:#}"),
            }
        }
        to_end.into_iter().map(|(run, _)| run).collect()
    }
}

/// Starts the thread. Does nothing on a node without GPU watch.
pub fn start(site: Arc<Site>, daemon: mpsc::Sender<Happening>) -> Result<()> {
    if site.gpu_watch.is_some() {
        std::thread::Builder::new()
            .name("gpus".into())
            .spawn(move || keep(&site, &daemon))?;
    }
    Ok(())
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
fn means(config: &Config) -> Means {
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
    Means {
        burn_in: config.gpu_burn_in.is_some(),
        policy,
    }
}

/// Runs the site's program for the GPU that is due, on a thread of its own.
fn run_program(site: &Arc<Site>) {
    let Some((uuid, stage)) = site
        .gpu_watch
        .as_ref()
        .and_then(|watch| lock(&watch.health).take_program())
    else {
        return;
    };
    let site = Arc::clone(site);
    std::thread::spawn(move || {
        let Some(watch) = &site.gpu_watch else { return };
        let config = &site.config;
        let (kind, path, time_limit) = match stage {
            RepairStage::Resetting => ("gpu_reset", &config.gpu_reset, RESET_LIMIT),
            RepairStage::Booting => ("node_reboot", &config.node_reboot, RESET_LIMIT),
            _ => ("gpu_burn_in", &config.gpu_burn_in, BURN_IN_LIMIT),
        };
        let Some(path) = path else { return };
        tracing::info!("GPU {uuid}: {} begins", path.display());
        let program = SiteProgram {
            kind,
            path,
            node_name: &site.name,
            gpu_uuid: &uuid,
            dir: &watch.orders,
            cgroups: site.cgroups.as_ref(),
            time_limit,
        };
        let freed = site.checks.give_way([uuid.as_str()], "the GPU is repaired");
        let outcome = freed.and_then(|_| {
            let _closed = (stage == RepairStage::Resetting)
                .then(|| watch.reader.worker.let_go(LET_GO_WITHIN))
                .transpose();
            if let Err(e) = &_closed {
                tracing::warn!(
                    "GPU {uuid}: gpud itself may be what its driver refuses the reset for: {e}"
                );
            }
            program.run()
        });
        let mut health = lock(&watch.health);
        health.program_ended(&uuid, outcome, wall_clock());
        health.write(wall_clock());
    });
}

fn keep(site: &Arc<Site>, daemon: &mpsc::Sender<Happening>) {
    let Some(watch) = &site.gpu_watch else { return };
    let mut due = Instant::now();
    let mut strays: Vec<String> = Vec::new();
    let mut told: BTreeMap<RunId, Instant> = BTreeMap::new();
    while !daemon.is_closed() {
        let wait = due
            .saturating_duration_since(Instant::now())
            .min(LOOK_EVERY);
        let events = watch.reader.worker.next_events(wait);
        let begun = Instant::now();
        watch.take_events(&events);
        watch.note_for_runs(&events, site);
        lock(&watch.catalogue).refresh();
        let ordered = watch.take_orders();
        let mut news = false;
        if begun >= due || ordered {
            news = watch.sweep(site);
            due = begun + watch.every;
            let runs = watch.idle_runs();
            if !runs.is_empty() && daemon.blocking_send(Happening::GpusIdle { runs }).is_err() {
                return;
            }
        }
        let runs = watch.act(site);
        run_program(site);
        gpu_scrub::again(site);
        // What the steps changed is told at once, and not with the next discovery.
        news |= watch.show(&site.gpus);
        let now_stray = watch.strays();
        if now_stray != strays {
            now_stray
                .iter()
                .filter(|words| !strays.contains(words))
                .for_each(|words| tracing::warn!("{words}"));
            (strays, news) = (now_stray, true);
        }
        told.retain(|run, at| runs.contains(run) && at.elapsed() < END_AGAIN);
        let fresh: Vec<RunId> = runs
            .into_iter()
            .filter(|run| !told.contains_key(run))
            .collect();
        told.extend(fresh.iter().map(|run| (*run, begun)));
        if !fresh.is_empty()
            && daemon
                .blocking_send(Happening::GpusFailed { runs: fresh })
                .is_err()
        {
            return;
        }
        if news && daemon.blocking_send(Happening::InventoryChanged).is_err() {
            return;
        }
        // Ten thousand Xids a second are ten looks.
        if !events.is_empty() {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn find_sample<'a>(samples: &'a [GpuUse], uuid: &str) -> Option<&'a GpuUse> {
    samples
        .iter()
        .find(|sample| sample.uuid.as_deref() == Some(uuid))
}

/// ` (4711 is "python" of uid 1000)`; nothing of a process that is gone or not ours to see.
fn process_words(pid: u32) -> String {
    use std::os::unix::fs::MetadataExt;
    let dir = PathBuf::from(format!("/proc/{pid}"));
    let name = std::fs::read_to_string(dir.join("comm"));
    match (name, std::fs::metadata(&dir)) {
        (Ok(name), Ok(meta)) => format!(" ({pid} is {:?} of uid {})", name.trim(), meta.uid()),
        _ => String::new(),
    }
}

/// Leaves an order for the daemon of this node. `gpu`: UUID, its beginning, or the driver's index.
pub fn order(spool_dir: &Path, gpu: &str, order: &Order) -> Result<String> {
    let uuid = find(spool_dir, gpu)?;
    let dir = spool_dir.join(ORDERS_DIR);
    let path = dir.join(format!("{uuid}.json"));
    let bytes = serde_json::to_vec(order)?;
    gsys::durable_file::write_atomic(&path, &bytes)
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(uuid)
}

fn find(spool_dir: &Path, gpu: &str) -> Result<String> {
    let records = crate::gpu_health::records(spool_dir)?;
    let is_it = |uuid: &str, index: u32| {
        gpu.parse() == Ok(index) || (!gpu.is_empty() && uuid.starts_with(gpu))
    };
    let found: Vec<&String> = records
        .iter()
        .filter(|(uuid, record)| is_it(uuid, record.index))
        .map(|(uuid, _)| uuid)
        .collect();
    match found[..] {
        [uuid] => Ok(uuid.clone()),
        [] => anyhow::bail!(
            "no GPU {gpu:?} here; gpud gpu list shows the {} that were seen on this node",
            records.len()
        ),
        _ => anyhow::bail!(
            "{gpu:?} means {} GPUs of this node; name the UUID, as gpud gpu list shows it",
            found.len()
        ),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder panics")
}
