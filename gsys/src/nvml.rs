//! NVIDIA GPUs through NVML: which there are, how they are, and what befalls them. Every call runs on a thread of its own under
//! a deadline, because a call into NVML may never return; a GPU that holds a call is left out until it lets go. Changes nothing
//! on a GPU and decides nothing about one. Source: NVIDIA's NVML API reference.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::c_uint;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, P2pCapabilitiesIndex, P2pStatus, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError as Answer;
use nvml_wrapper::struct_wrappers::event::EventData;
use nvml_wrapper::{Device, Nvml as Library};
use serde::{Deserialize, Serialize};

/// The name under which the driver installs NVML.
pub const DEFAULT_LIBRARY: &str = "libnvidia-ml.so.1";

/// Distinct events kept for a caller that does not fetch them; repetitions of one only raise its count.
pub const MAX_WAITING_EVENTS: usize = 1024;

/// Threads given up to calls that do not return, before the worker starts no more.
pub const MAX_ABANDONED_THREADS: u64 = 8;

/// A vendor's GPUs. NVML is the first; ROCm SMI and Level Zero can follow. Lives on one thread; calls may hang.
pub trait GpuSource {
    /// All GPUs, and in their places those that did not answer.
    fn discover(&mut self, progress: &Progress) -> Result<Inventory, NvmlError>;
    /// How each GPU is at this moment.
    fn read_health(&mut self, progress: &Progress) -> Result<Vec<GpuHealth>, NvmlError>;
    /// Hands over events of these GPUs as they come, and `None` at least every second, until `each` breaks.
    fn watch(&mut self, uuids: &BTreeSet<String>, each: &mut dyn FnMut(Option<GpuEvent>) -> ControlFlow<()>) -> Result<(), NvmlError>;
}

/// What a node has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Inventory {
    pub driver_version: String,
    /// In the order of the driver's indices.
    pub gpus: Vec<GpuFacts>,
    /// GPUs that do not answer and never did, so that nothing but their index is known.
    pub unreadable: Vec<UnreadableGpu>,
}

/// What a GPU is; nothing here changes while the driver is loaded, except `index`, `mig_enabled` and `fault`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuFacts {
    /// The identity.
    pub uuid: String,
    /// The driver's index: moves when another GPU disappears.
    pub index: u32,
    /// The N of `/dev/nvidiaN`.
    pub minor: u32,
    /// As the driver names it: `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// The short type that requests use: `h100`.
    pub gpu_type: String,
    /// As the driver reports it.
    pub memory_bytes: u64,
    /// The size on the label, for comparing with `--gpu-mem`.
    pub nominal_memory_mib: u64,
    /// `00000000:1B:00.0`.
    pub pci_bus_id: String,
    /// The host memory node nearest to it.
    pub numa_node: Option<u32>,
    /// Major and minor.
    pub compute_capability: (u32, u32),
    pub mig_enabled: bool,
    /// UUIDs of the GPUs it reaches by NVLink, directly or through switches; sorted.
    pub nvlink_peers: Vec<String>,
    /// Why it cannot be used now: the facts are then from before.
    pub fault: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreadableGpu {
    pub index: u32,
    pub fault: String,
}

/// One reading of one GPU; what the board does not offer is `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuHealth {
    pub index: u32,
    /// Unknown where the GPU does not answer and was never discovered.
    pub uuid: Option<String>,
    /// Why there is no reading.
    pub fault: Option<String>,
    pub temperature_c: Option<u32>,
    pub power_mw: Option<u32>,
    /// Since the driver was loaded.
    pub energy_mj: Option<u64>,
    pub gpu_percent: Option<u32>,
    pub memory_percent: Option<u32>,
    pub memory_used_bytes: Option<u64>,
    pub sm_clock_mhz: Option<u32>,
    /// `nvmlClocksThrottleReason*` bits.
    pub throttle_reasons: Option<u64>,
    /// Since the driver was loaded.
    pub ecc_corrected: Option<u64>,
    pub ecc_uncorrected: Option<u64>,
    pub row_remap_pending: Option<bool>,
    pub row_remap_failed: Option<bool>,
    pub nvlinks_down: Vec<u32>,
    pub pcie_width: Option<u32>,
    pub processes: Vec<GpuProcess>,
}

/// A process with a compute context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    pub pid: u32,
    /// `None` where the driver will not say.
    pub memory_bytes: Option<u64>,
}

/// Something that befell a GPU, `count` times since events were last fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuEvent {
    pub uuid: String,
    pub kind: GpuEventKind,
    pub count: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuEventKind {
    /// The driver's error number, as in the kernel log.
    Xid(u64),
    EccCorrected,
    EccUncorrected,
    /// It answers no more.
    Lost,
}

/// Why there is no answer about GPUs.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NvmlError {
    #[error("no NVML here: {path} cannot be loaded ({reason}); without the NVIDIA driver this is a CPU node")]
    LibraryMissing { path: String, reason: String },
    #[error("{path} is too old: {reason}")]
    LibraryTooOld { path: String, reason: String },
    #[error("NVML does not start: {0}")]
    Init(String),
    #[error("{doing} did not return within {waited_secs:.1} s{}", at_gpu(*index))]
    Timeout { doing: &'static str, waited_secs: f64, index: Option<u32> },
    #[error("NVML still holds an earlier call: {doing}{}, for {for_secs:.0} s", at_gpu(*index))]
    Stuck { doing: &'static str, for_secs: f64, index: Option<u32> },
    #[error("{doing}: {reason}")]
    Failed { doing: &'static str, reason: String },
    #[error("the thread for NVML cannot run: {0}")]
    Thread(String),
}

impl NvmlError {
    /// True where nothing suggests that there are NVIDIA GPUs: the caller may go on as a CPU node.
    pub fn means_cpu_node(&self) -> bool {
        matches!(self, NvmlError::LibraryMissing { .. })
    }
}

/// Whether all calls come back.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerState {
    Working,
    /// A call has not returned, or GPUs are left out because one about them has not.
    Degraded(String),
}

/// The device node of a GPU: `/dev/nvidia<minor>`, or in the sandbox's directory.
pub fn device_node(dev_dir: &Path, gpu: &GpuFacts) -> PathBuf {
    dev_dir.join(format!("nvidia{}", gpu.minor))
}

/// The short type that requests use: `h100` for `NVIDIA H100 80GB HBM3`. Names of another form become one word: `rtx_a6000`.
pub fn gpu_type_of(name: &str) -> String {
    let mut words: Vec<&str> = name.split([' ', '-', '/', '_']).filter(|word| !word.is_empty()).collect();
    while words.len() > 1 && ["nvidia", "tesla", "geforce", "quadro"].iter().any(|brand| words[0].eq_ignore_ascii_case(brand)) {
        words.remove(0);
    }
    let short = words.first().filter(|word| is_model_word(word)).map(|word| word.to_lowercase());
    short.unwrap_or_else(|| {
        let letters = |word: &&str| word.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase();
        let kept: Vec<String> = words.iter().map(letters).filter(|word| !word.is_empty()).collect();
        if kept.is_empty() { "gpu".to_owned() } else { kept.join("_") }
    })
}

/// `L4`, `A100`, `GH200`, `L40S`: one or two letters, digits, perhaps a letter.
fn is_model_word(word: &str) -> bool {
    let rest = word.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
    let tail = rest.trim_start_matches(|digit: char| digit.is_ascii_digit());
    (1..=2).contains(&(word.len() - rest.len())) && rest.len() > tail.len() && tail.len() <= 1 && tail.chars().all(|last| last.is_ascii_alphabetic())
}

/// Sizes that GPUs are sold with, in GiB.
const LABEL_GIB: &[u64] = &[
    1, 2, 3, 4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 72, 80, 94, 96, 128, 141, 144, 180, 186, 192, 256, 288, 384, 512,
];

/// The size on the label in MiB: drivers report a little less (81,559 of 81,920), GDDR boards with ECC a sixteenth less.
pub fn nominal_memory_mib(memory_bytes: u64) -> u64 {
    let mib = memory_bytes >> 20;
    let label = LABEL_GIB.iter().map(|gib| gib * 1024).find(|&label| label >= mib);
    label.filter(|label| mib * 100 >= label * 92).unwrap_or_else(|| mib.div_ceil(1024) * 1024)
}

/// NVML on threads of its own. Callers block up to the time they name, never longer; call it where blocking is allowed.
pub struct NvmlWorker {
    line: Mutex<Line>,
    shared: Arc<Shared>,
    open: Arc<Opener>,
}

type Opener = dyn Fn() -> Result<Box<dyn GpuSource>, NvmlError> + Send + Sync;

impl NvmlWorker {
    /// Starts the threads, without touching NVML yet. `library`: [`DEFAULT_LIBRARY`] where `None`.
    pub fn start(library: Option<PathBuf>) -> Result<NvmlWorker, NvmlError> {
        let path = library.unwrap_or_else(|| PathBuf::from(DEFAULT_LIBRARY));
        NvmlWorker::start_with(move || Ok(Box::new(Nvml::open(&path)?)))
    }

    /// The same for any source of GPUs; it is opened on the thread that uses it, anew when the driver went away.
    pub fn start_with(open: impl Fn() -> Result<Box<dyn GpuSource>, NvmlError> + Send + Sync + 'static) -> Result<NvmlWorker, NvmlError> {
        let shared = Arc::new(Shared::default());
        let open: Arc<Opener> = Arc::new(open);
        let line = Line::start(&shared, &open)?;
        let (watched, opener) = (Arc::downgrade(&shared), Arc::clone(&open));
        spawn("nvml-events", move || watch_events(&watched, &*opener))?;
        Ok(NvmlWorker { line: Mutex::new(line), shared, open })
    }

    /// All GPUs. One that is lost or holds its calls comes with the facts from before and a `fault`.
    pub fn discover(&self, timeout: Duration) -> Result<Inventory, NvmlError> {
        self.call("discovery of GPUs", timeout, Request::Discover)
    }

    /// One reading of every GPU.
    pub fn read_health(&self, timeout: Duration) -> Result<Vec<GpuHealth>, NvmlError> {
        self.call("reading the health of GPUs", timeout, Request::Health)
    }

    /// Events since the last call, waiting for the first up to `timeout`.
    pub fn next_events(&self, timeout: Duration) -> Vec<GpuEvent> {
        let deadline = Instant::now() + timeout;
        let mut events = lock(&self.shared.events);
        while events.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            events = self.shared.event_came.wait_timeout(events, left).map_or_else(|broken| broken.into_inner().0, |(events, _)| events);
        }
        events.drain(..).collect()
    }

    /// Events that were dropped because [`MAX_WAITING_EVENTS`] others waited.
    pub fn dropped_events(&self) -> u64 {
        self.shared.dropped_events.load(Ordering::Relaxed)
    }

    /// Whether events of this GPU are being delivered: some moments after it was first discovered.
    pub fn is_watching(&self, uuid: &str) -> bool {
        lock(&self.shared.watched).contains(uuid)
    }

    /// Whether any call hangs.
    pub fn state(&self) -> WorkerState {
        let line = lock(&self.line);
        let held: Vec<String> = lock(&self.shared.held).keys().map(u32::to_string).collect();
        match line.stuck() {
            Some(stuck) => WorkerState::Degraded(stuck.to_string()),
            None if !held.is_empty() => WorkerState::Degraded(format!("calls about GPUs with index {} do not return", held.join(", "))),
            None => WorkerState::Working,
        }
    }

    fn call<T>(&self, doing: &'static str, timeout: Duration, request: impl FnOnce(SyncSender<Result<T, NvmlError>>) -> Request) -> Result<T, NvmlError> {
        let mut line = lock(&self.line);
        if let Some(stuck) = line.stuck() {
            self.replace(&mut line, stuck)?;
        }
        let (answer, answered) = sync_channel(1);
        line.job.begin(doing);
        if line.requests.send(request(answer)).is_err() {
            *line = Line::start(&self.shared, &self.open)?;
            return Err(NvmlError::Thread("it ended unexpectedly; started again".to_owned()));
        }
        match answered.recv_timeout(timeout) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => Err(NvmlError::Timeout { doing, waited_secs: timeout.as_secs_f64(), index: line.job.index() }),
            Err(RecvTimeoutError::Disconnected) => {
                *line = Line::start(&self.shared, &self.open)?;
                Err(NvmlError::Thread(format!("it ended unexpectedly while {doing}; started again")))
            }
        }
    }

    /// Gives up the thread whose call does not return, and leaves the GPU it asks about out. Where no GPU can be named the
    /// whole library hangs: another thread would only hang too.
    fn replace(&self, line: &mut Line, stuck: NvmlError) -> Result<(), NvmlError> {
        let Some(index) = line.job.index() else { return Err(stuck) };
        if self.shared.abandoned.load(Ordering::SeqCst) >= MAX_ABANDONED_THREADS {
            return Err(stuck);
        }
        if line.job.abandon(index, &self.shared) {
            *line = Line::start(&self.shared, &self.open)?;
        }
        Ok(())
    }
}

/// The way to the thread that makes the calls at present.
struct Line {
    requests: Sender<Request>,
    job: Arc<Job>,
}

enum Request {
    Discover(SyncSender<Result<Inventory, NvmlError>>),
    Health(SyncSender<Result<Vec<GpuHealth>, NvmlError>>),
}

impl Line {
    fn start(shared: &Arc<Shared>, open: &Arc<Opener>) -> Result<Line, NvmlError> {
        let (requests, receiver) = channel();
        let job = Arc::new(Job::default());
        let (shared, open, its_job) = (Arc::clone(shared), Arc::clone(open), Arc::clone(&job));
        spawn("nvml", move || serve(&receiver, &shared, &*open, its_job))?;
        Ok(Line { requests, job })
    }

    /// The call that should long have returned, if there is one: callers take turns, so any call under way is such a one.
    fn stuck(&self) -> Option<NvmlError> {
        let thread_is_gone = Arc::strong_count(&self.job) == 1;
        let (doing, since) = (*lock(&self.job.doing)).filter(|_| !thread_is_gone)?;
        Some(NvmlError::Stuck { doing, for_secs: since.elapsed().as_secs_f64(), index: self.job.index() })
    }
}

/// What a thread is doing, as others may see it.
struct Job {
    doing: Mutex<Option<(&'static str, Instant)>>,
    /// The GPU being asked; negative: none.
    index: AtomicI64,
    /// The GPU for whose sake the thread was given up.
    abandoned_at: Mutex<Option<u32>>,
}

impl Default for Job {
    fn default() -> Job {
        Job { doing: Mutex::new(None), index: AtomicI64::new(-1), abandoned_at: Mutex::new(None) }
    }
}

impl Job {
    fn begin(&self, doing: &'static str) {
        *lock(&self.doing) = Some((doing, Instant::now()));
    }

    fn index(&self) -> Option<u32> {
        u32::try_from(self.index.load(Ordering::SeqCst)).ok()
    }

    /// Gives the thread up and the GPU with it; false where the call came back in the meantime.
    fn abandon(&self, index: u32, shared: &Shared) -> bool {
        let doing = lock(&self.doing);
        if doing.is_none() {
            return false;
        }
        *lock(&self.abandoned_at) = Some(index);
        lock(&shared.held).insert(index, Instant::now());
        shared.abandoned.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// Marks the call as returned, which frees the GPU that held it. True where someone may still wait for the answer.
    fn finish(&self, shared: &Shared) -> bool {
        self.index.store(-1, Ordering::SeqCst);
        let mut doing = lock(&self.doing);
        *doing = None;
        let Some(index) = lock(&self.abandoned_at).take() else { return true };
        lock(&shared.held).remove(&index);
        shared.abandoned.fetch_sub(1, Ordering::SeqCst);
        false
    }
}

/// Through which a source says which GPU it is about to ask, and hears which to leave alone.
pub struct Progress {
    job: Arc<Job>,
    held: BTreeMap<u32, Instant>,
}

impl Progress {
    /// To be called before each GPU; an error: leave it alone, for this reason.
    pub fn begin(&self, index: u32) -> Result<(), String> {
        if let Some(since) = self.held.get(&index) {
            return Err(format!("calls about it have not returned for {} s", since.elapsed().as_secs()));
        }
        self.job.index.store(index.into(), Ordering::SeqCst);
        Ok(())
    }

    /// To be called when the work on single GPUs is done.
    pub fn end(&self) {
        self.job.index.store(-1, Ordering::SeqCst);
    }
}

/// What all threads of a worker know.
#[derive(Default)]
struct Shared {
    /// GPUs as last read, faulty ones as last read well.
    known: Mutex<Vec<GpuFacts>>,
    /// Indices whose calls do not return, and since when we know.
    held: Mutex<BTreeMap<u32, Instant>>,
    abandoned: AtomicU64,
    /// Rises when the driver was found gone: whoever holds the library must open it anew.
    reopened: AtomicU64,
    watched: Mutex<BTreeSet<String>>,
    events: Mutex<VecDeque<GpuEvent>>,
    event_came: Condvar,
    dropped_events: AtomicU64,
}

impl Shared {
    fn push_event(&self, event: GpuEvent) {
        let mut events = lock(&self.events);
        let full = events.len() >= MAX_WAITING_EVENTS;
        match events.iter_mut().find(|waiting| waiting.uuid == event.uuid && waiting.kind == event.kind) {
            Some(waiting) => waiting.count += event.count,
            None if full => {
                self.dropped_events.fetch_add(event.count, Ordering::Relaxed);
            }
            None => events.push_back(event),
        }
        self.event_came.notify_all();
    }

    /// Puts the remembered facts in place of GPUs that do not answer, and tells of each that just fell silent.
    fn remember(&self, inventory: &mut Inventory) {
        let mut known = lock(&self.known);
        let present: BTreeSet<String> = inventory.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        let silent = std::mem::take(&mut inventory.unreadable);
        for gpu in silent {
            match known.iter().find(|old| old.index == gpu.index && !present.contains(&old.uuid)) {
                Some(old) => {
                    if old.fault.is_none() {
                        self.push_event(GpuEvent { uuid: old.uuid.clone(), kind: GpuEventKind::Lost, count: 1 });
                    }
                    inventory.gpus.push(GpuFacts { fault: Some(gpu.fault), ..old.clone() });
                }
                None => inventory.unreadable.push(gpu),
            }
        }
        inventory.gpus.sort_by_key(|gpu| gpu.index);
        *known = inventory.gpus.clone();
    }

    fn name_silent(&self, readings: &mut [GpuHealth]) {
        let mut known = lock(&self.known);
        for reading in readings {
            let Some(fault) = &reading.fault else { continue };
            let Some(old) = known.iter_mut().find(|old| old.index == reading.index) else { continue };
            reading.uuid = Some(old.uuid.clone());
            if old.fault.is_none() {
                old.fault = Some(fault.clone());
                self.push_event(GpuEvent { uuid: old.uuid.clone(), kind: GpuEventKind::Lost, count: 1 });
            }
        }
    }

    fn healthy(&self) -> BTreeSet<String> {
        lock(&self.known).iter().filter(|gpu| gpu.fault.is_none()).map(|gpu| gpu.uuid.clone()).collect()
    }
}

/// The life of the thread "nvml": until the worker is dropped, or gives this thread up.
fn serve(requests: &Receiver<Request>, shared: &Shared, open: &Opener, job: Arc<Job>) {
    let mut source: Option<Box<dyn GpuSource>> = None;
    while let Ok(request) = requests.recv() {
        let progress = Progress { job: Arc::clone(&job), held: lock(&shared.held).clone() };
        match request {
            Request::Discover(answer) => {
                let mut result = with_source(&mut source, shared, open, |source| source.discover(&progress));
                if job.finish(shared)
                    && let Ok(inventory) = &mut result
                {
                    shared.remember(inventory);
                }
                let _ = answer.send(result); // a caller whose time was up is gone
            }
            Request::Health(answer) => {
                let mut result = with_source(&mut source, shared, open, |source| source.read_health(&progress));
                if job.finish(shared)
                    && let Ok(readings) = &mut result
                {
                    shared.name_silent(readings);
                }
                let _ = answer.send(result);
            }
        }
    }
}

/// Opens the source where it is not; where the driver went away under it, opens it once more and tries again.
fn with_source<T>(
    source: &mut Option<Box<dyn GpuSource>>,
    shared: &Shared,
    open: &Opener,
    mut work: impl FnMut(&mut dyn GpuSource) -> Result<T, NvmlError>,
) -> Result<T, NvmlError> {
    if let Some(opened) = source {
        match work(opened.as_mut()) {
            Err(NvmlError::Init(_)) => {
                *source = None;
                shared.reopened.fetch_add(1, Ordering::SeqCst);
            }
            result => return result,
        }
    }
    work(source.insert(open()?).as_mut())
}

/// The life of the thread "nvml-events".
fn watch_events(worker: &Weak<Shared>, open: &Opener) {
    while let Some(shared) = worker.upgrade() {
        let wanted = shared.healthy();
        let generation = shared.reopened.load(Ordering::SeqCst);
        drop(shared);
        if !wanted.is_empty() {
            let mut each = |event| pass_on(worker, &wanted, generation, event);
            let outcome = open().and_then(|mut source| source.watch(&wanted, &mut each));
            if outcome.is_err() {
                // What is wrong with the source, discovery tells; here it is only opened anew.
                thread::sleep(Duration::from_secs(1));
            }
            if let Some(shared) = worker.upgrade() {
                lock(&shared.watched).clear();
            }
        }
        thread::sleep(Duration::from_millis(100));
    }
}

fn pass_on(worker: &Weak<Shared>, wanted: &BTreeSet<String>, generation: u64, event: Option<GpuEvent>) -> ControlFlow<()> {
    let Some(shared) = worker.upgrade() else { return ControlFlow::Break(()) };
    match event {
        Some(event) => shared.push_event(event),
        None => lock(&shared.watched).clone_from(wanted),
    }
    let all_watched = shared.healthy().is_subset(wanted);
    if all_watched && generation == shared.reopened.load(Ordering::SeqCst) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}

/// NVML itself. Opened by [`NvmlWorker`]; for direct use where a call that hangs may hang the caller.
pub struct Nvml {
    library: Library,
}

impl Nvml {
    /// Loads and initialises the library.
    pub fn open(path: &Path) -> Result<Nvml, NvmlError> {
        let shown = path.display().to_string();
        let library = Library::builder().lib_path(path.as_os_str()).init().map_err(|error| match error {
            Answer::LibloadingError(reason) => NvmlError::LibraryMissing { path: shown, reason: reason.to_string() },
            Answer::FailedToLoadSymbol(reason) => NvmlError::LibraryTooOld { path: shown, reason },
            other => NvmlError::Init(other.to_string()),
        })?;
        Ok(Nvml { library })
    }

    /// Calls `read` for each index in turn; what it says of one GPU does not keep it from the next.
    fn each_gpu<T>(
        &self,
        doing: &'static str,
        progress: &Progress,
        mut read: impl FnMut(u32, &Device<'_>) -> Result<T, Answer>,
    ) -> Result<Vec<(u32, Result<T, String>)>, NvmlError> {
        let count = self.library.device_count().map_err(|error| whole_failure(doing, error))?;
        let mut answers = Vec::new();
        for index in 0..count {
            let answer = match progress.begin(index) {
                Err(fault) => Err(fault),
                Ok(()) => match self.library.device_by_index(index).and_then(|device| read(index, &device)) {
                    Err(error) if concerns_driver(&error) => return Err(whole_failure(doing, error)),
                    answer => answer.map_err(|error| error.to_string()),
                },
            };
            answers.push((index, answer));
        }
        progress.end();
        Ok(answers)
    }

    /// Of those in `gpus`, which reach each other by NVLink. One that does not answer has no peers.
    fn join_by_nvlink(&self, gpus: &mut [GpuFacts], progress: &Progress) {
        let mut devices = Vec::new();
        for gpu in gpus.iter() {
            let device = progress.begin(gpu.index).ok().and_then(|()| self.library.device_by_index(gpu.index).ok());
            devices.push((gpu.index, gpu.uuid.clone(), device));
        }
        for (gpu, (_, _, device)) in gpus.iter_mut().zip(&devices) {
            let Some(device) = device else { continue };
            let joined = |other: &Device<'_>| matches!(device.p2p_status(other, P2pCapabilitiesIndex::NvLink), Ok(P2pStatus::Ok));
            for (index, uuid, other) in &devices {
                if *uuid != gpu.uuid && progress.begin(*index).is_ok() && other.as_ref().is_some_and(&joined) {
                    gpu.nvlink_peers.push(uuid.clone());
                }
            }
            gpu.nvlink_peers.sort();
        }
        progress.end();
    }
}

impl GpuSource for Nvml {
    fn discover(&mut self, progress: &Progress) -> Result<Inventory, NvmlError> {
        let doing = "discovery of GPUs";
        let driver_version = self.library.sys_driver_version().map_err(|error| whole_failure(doing, error))?;
        let mut inventory = Inventory { driver_version, ..Inventory::default() };
        for (index, answer) in self.each_gpu(doing, progress, read_facts)? {
            match answer {
                Ok(facts) => inventory.gpus.push(facts),
                Err(fault) => inventory.unreadable.push(UnreadableGpu { index, fault }),
            }
        }
        self.join_by_nvlink(&mut inventory.gpus, progress);
        Ok(inventory)
    }

    fn read_health(&mut self, progress: &Progress) -> Result<Vec<GpuHealth>, NvmlError> {
        let answers = self.each_gpu("reading the health of GPUs", progress, read_one_health)?;
        let or_fault = |(index, answer): (u32, Result<GpuHealth, String>)| {
            answer.unwrap_or_else(|fault| GpuHealth { index, fault: Some(fault), ..GpuHealth::default() })
        };
        Ok(answers.into_iter().map(or_fault).collect())
    }

    fn watch(&mut self, uuids: &BTreeSet<String>, each: &mut dyn FnMut(Option<GpuEvent>) -> ControlFlow<()>) -> Result<(), NvmlError> {
        let doing = "watching for events of GPUs";
        let library = &self.library;
        // A GPU that fell off the bus cannot be asked for its UUID any more, when that very event comes: keep it by handle.
        let mut by_handle = BTreeMap::new();
        let mut refused = BTreeSet::new();
        let set = 'again: loop {
            by_handle.clear();
            let mut set = library.create_event_set().map_err(|error| whole_failure(doing, error))?;
            for uuid in uuids.difference(&refused) {
                let registered = library.device_by_uuid(uuid.as_str()).and_then(|device| {
                    by_handle.insert(handle_number(&device), uuid.clone());
                    device.supported_event_types().map(|supported| (device, supported))
                });
                let Ok((device, supported)) = registered else { continue };
                let wanted = supported & (EventTypes::CRITICAL_XID_ERROR | EventTypes::SINGLE_BIT_ECC_ERROR | EventTypes::DOUBLE_BIT_ECC_ERROR);
                match device.register_events(wanted, set) {
                    Ok(kept) => set = kept,
                    // The set is gone with the refusal: begin again without this GPU.
                    Err(_) => {
                        refused.insert(uuid.clone());
                        continue 'again;
                    }
                }
            }
            break set;
        };
        // One that was refused may be watched later, when it has been reset.
        let until = (!refused.is_empty()).then(|| Instant::now() + Duration::from_secs(60));
        let mut next = None;
        while each(next).is_continue() && until.is_none_or(|until| Instant::now() < until) {
            next = match set.wait(500) {
                Ok(event) => event_of(&event, &by_handle),
                Err(Answer::Timeout) => None,
                Err(error) if concerns_driver(&error) => return Err(whole_failure(doing, error)),
                Err(_) => {
                    // Some drivers answer "lost" at once for as long as one GPU is: do not spin.
                    thread::sleep(Duration::from_millis(200));
                    None
                }
            };
        }
        Ok(())
    }
}

fn event_of(event: &EventData<'_>, by_handle: &BTreeMap<usize, String>) -> Option<GpuEvent> {
    use nvml_wrapper::enums::event::XidError;
    let uuid = by_handle.get(&handle_number(&event.device))?.clone();
    let kind = match event.event_data {
        Some(XidError::Value(number)) => GpuEventKind::Xid(number),
        Some(XidError::Unknown) => GpuEventKind::Xid(999),
        None if event.event_type.contains(EventTypes::DOUBLE_BIT_ECC_ERROR) => GpuEventKind::EccUncorrected,
        None if event.event_type.contains(EventTypes::SINGLE_BIT_ECC_ERROR) => GpuEventKind::EccCorrected,
        None => return None,
    };
    Some(GpuEvent { uuid, kind, count: 1 })
}

fn handle_number(device: &Device<'_>) -> usize {
    // SAFETY: the handle is only compared, never used to call NVML.
    unsafe { device.handle() as usize }
}

fn read_facts(index: u32, device: &Device<'_>) -> Result<GpuFacts, Answer> {
    let name = device.name()?;
    let memory_bytes = device.memory_info()?.total;
    let pci_bus_id = device.pci_info()?.bus_id;
    let capability = device.cuda_compute_capability()?;
    Ok(GpuFacts {
        uuid: device.uuid()?,
        index,
        minor: device.minor_number()?,
        gpu_type: gpu_type_of(&name),
        name,
        memory_bytes,
        nominal_memory_mib: nominal_memory_mib(memory_bytes),
        numa_node: numa_node(device, &pci_bus_id)?,
        pci_bus_id,
        compute_capability: (capability.major as u32, capability.minor as u32),
        mig_enabled: if_offered(device.mig_mode())?.is_some_and(|mode| mode.current != 0),
        nvlink_peers: Vec::new(),
        fault: None,
    })
}

/// The host's node, not NVML's `NumaNodeId`: that one is the GPU's own memory and exists on Grace only.
fn numa_node(device: &Device<'_>, pci_bus_id: &str) -> Result<Option<u32>, Answer> {
    const WITHIN_NODE: c_uint = 0;
    let words = if_offered(device.memory_affinity(16, WITHIN_NODE))?.unwrap_or_default();
    let bits = u64::BITS;
    let from_nvml = words.iter().zip(0u32..).find(|(word, _)| **word != 0).map(|(word, at)| at * bits + word.trailing_zeros());
    Ok(from_nvml.or_else(|| numa_node_in_sysfs(pci_bus_id)))
}

fn numa_node_in_sysfs(pci_bus_id: &str) -> Option<u32> {
    // NVML writes the domain with eight digits, the kernel with four.
    let (domain, place) = pci_bus_id.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    let path = format!("/sys/bus/pci/devices/{domain:04x}:{}/numa_node", place.to_lowercase());
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn read_one_health(index: u32, device: &Device<'_>) -> Result<GpuHealth, Answer> {
    let load = if_offered(device.utilization_rates())?;
    let rows = remapped_rows(device)?;
    let processes = if_offered(device.running_compute_processes())?.unwrap_or_default();
    let process = |process: nvml_wrapper::struct_wrappers::device::ProcessInfo| GpuProcess {
        pid: process.pid,
        memory_bytes: match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        },
    };
    Ok(GpuHealth {
        index,
        uuid: Some(device.uuid()?),
        fault: None,
        temperature_c: if_offered(device.temperature(TemperatureSensor::Gpu))?,
        power_mw: if_offered(device.power_usage())?,
        energy_mj: if_offered(device.total_energy_consumption())?,
        gpu_percent: load.as_ref().map(|load| load.gpu),
        memory_percent: load.as_ref().map(|load| load.memory),
        memory_used_bytes: if_offered(device.memory_info())?.map(|memory| memory.used),
        sm_clock_mhz: if_offered(device.clock_info(Clock::SM))?,
        throttle_reasons: if_offered(device.current_throttle_reasons())?.map(|reasons| reasons.bits()),
        ecc_corrected: if_offered(device.total_ecc_errors(MemoryError::Corrected, EccCounter::Volatile))?,
        ecc_uncorrected: if_offered(device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile))?,
        row_remap_pending: rows.map(|(pending, _)| pending),
        row_remap_failed: rows.map(|(_, failed)| failed),
        nvlinks_down: nvlinks_down(device)?,
        pcie_width: if_offered(device.current_pcie_link_width())?,
        processes: processes.into_iter().map(process).collect(),
    })
}

/// Whether a row remap waits for a reset, and whether one failed. The wrapper does not have this call.
fn remapped_rows(device: &Device<'_>) -> Result<Option<(bool, bool)>, Answer> {
    const SUCCESS: c_uint = 0;
    const GPU_IS_LOST: c_uint = 15;
    let Ok(ask) = &device.nvml().lib().nvmlDeviceGetRemappedRows else { return Ok(None) };
    let (mut corrected, mut uncorrected, mut pending, mut failed) = (0, 0, 0, 0);
    // SAFETY: the handle is of the library the function comes from, and all four pointers are to live integers of NVML's type.
    let code = unsafe { ask(device.handle(), &mut corrected, &mut uncorrected, &mut pending, &mut failed) };
    match code {
        SUCCESS => Ok(Some((pending != 0, failed != 0))),
        GPU_IS_LOST => Err(Answer::GpuLost),
        _ => Ok(None),
    }
}

/// NVML has links 0 to 17 at most, and refuses the number behind a board's last.
fn nvlinks_down(device: &Device<'_>) -> Result<Vec<u32>, Answer> {
    let mut down = Vec::new();
    for link in 0..18 {
        match if_offered(device.link_wrapper_for(link).is_active())? {
            Some(true) => {}
            Some(false) => down.push(link),
            None => break,
        }
    }
    Ok(down)
}

/// `None` where the board, the driver or the library does not know the question.
fn if_offered<T>(answer: Result<T, Answer>) -> Result<Option<T>, Answer> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(Answer::NotSupported | Answer::InvalidArg | Answer::NotFound | Answer::FailedToLoadSymbol(_) | Answer::FunctionNotFound) => Ok(None),
        Err(Answer::NoPermission | Answer::UnexpectedVariant(_) | Answer::IncorrectBits(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Errors that are not of one GPU: the library must be opened anew.
fn concerns_driver(error: &Answer) -> bool {
    matches!(error, Answer::Uninitialized | Answer::DriverNotLoaded | Answer::LibRmVersionMismatch)
}

fn whole_failure(doing: &'static str, error: Answer) -> NvmlError {
    if concerns_driver(&error) { NvmlError::Init(error.to_string()) } else { NvmlError::Failed { doing, reason: error.to_string() } }
}

fn at_gpu(index: Option<u32>) -> String {
    index.map(|index| format!(", at the GPU with index {index}")).unwrap_or_default()
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), NvmlError> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map(drop).map_err(|error| NvmlError::Thread(error.to_string()))
}

/// A panic of another thread leaves these data whole: each is changed in one statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
