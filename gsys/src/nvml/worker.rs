//! The threads on which NVML is called, and what they know together: GPUs as last read, GPUs that hold a call, events not yet
//! fetched. A caller waits up to the time it names; a thread whose call does not return is given up. Calls no NVML itself.

mod kernel_log_watch;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use gmodel::gpu_health::{EventSource, ReadFailure, ReadFailureKind};

use super::{
    Change, DEFAULT_LIBRARY, GpuEvent, GpuEventKind, GpuFacts, GpuHealth, GpuSource, GpuUse,
    Inventory, KernelXid, Nvml, NvmlError,
};

/// Distinct events kept for a caller that does not fetch them; repetitions of one only raise its count.
pub const MAX_WAITING_EVENTS: usize = 1024;

/// Threads given up to calls that do not return, before the worker starts no more.
pub const MAX_ABANDONED_THREADS: u64 = 8;

/// Whether all calls come back.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerState {
    Working,
    /// A call has not returned, or GPUs are left out because one about them has not.
    Degraded(String),
}

/// NVML on threads of its own. Callers block up to the time they name, never longer; call it where blocking is allowed.
///
/// Name a time well above what NVML honestly takes (without persistence mode the first call may take seconds per GPU): a
/// GPU at which a call is still found after its time is left out until that call returns.
pub struct NvmlWorker {
    /// Held by the caller whose call is under way.
    turn: Mutex<()>,
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
    pub fn start_with(
        open: impl Fn() -> Result<Box<dyn GpuSource>, NvmlError> + Send + Sync + 'static,
    ) -> Result<NvmlWorker, NvmlError> {
        let shared = Arc::new(Shared::default());
        let open: Arc<Opener> = Arc::new(open);
        let line = Line::start(&shared, &open)?;
        let (watched, opener) = (Arc::downgrade(&shared), Arc::clone(&open));
        spawn("nvml-events", move || watch_events(&watched, &*opener))?;
        Ok(NvmlWorker {
            turn: Mutex::new(()),
            line: Mutex::new(line),
            shared,
            open,
        })
    }

    /// Takes Xids from the kernel log too (`/dev/kmsg`), from now on: they come there even when NVML hangs or nobody watched. A log that
    /// cannot be read, which `tell` hears once each time, is opened again and again; `None` is told when it is read again.
    pub fn watch_kernel_log(
        &self,
        path: &Path,
        tell: impl Fn(Option<io::Error>) + Send + 'static,
    ) -> io::Result<()> {
        let watch = kernel_log_watch::begin(&self.shared, path, tell);
        spawn("nvml-kernel-log", watch).map_err(io::Error::other)
    }

    /// All GPUs. One that is lost or holds its calls comes with the facts from before and a `fault`.
    pub fn discover(&self, timeout: Duration) -> Result<Inventory, NvmlError> {
        self.call("discovery of GPUs", timeout, Request::Discover)
    }

    /// The condition of every GPU, those included that were discovered once and are not enumerated any more.
    pub fn read_health(&self, timeout: Duration) -> Result<Vec<GpuHealth>, NvmlError> {
        self.call("reading the health of GPUs", timeout, Request::Health)
    }

    /// How much every GPU is used. MIG instances are those that discovery last saw.
    pub fn sample_use(&self, timeout: Duration) -> Result<Vec<GpuUse>, NvmlError> {
        self.call("sampling the use of GPUs", timeout, |answer| {
            Request::Use(None, answer)
        })
    }

    /// The same of these GPUs alone, by UUID. One that does not answer is in it too, one that is not there is not.
    pub fn sample_use_of(
        &self,
        uuids: BTreeSet<String>,
        timeout: Duration,
    ) -> Result<Vec<GpuUse>, NvmlError> {
        self.call("sampling the use of GPUs", timeout, |answer| {
            Request::Use(Some(uuids), answer)
        })
    }

    /// Changes one GPU; the id of what was made, where something was. A change whose time is up may still happen: discover.
    pub fn change(
        &self,
        uuid: &str,
        change: Change,
        timeout: Duration,
    ) -> Result<Option<u32>, NvmlError> {
        let uuid = uuid.to_owned();
        let doing = change.doing();
        self.call(doing, timeout, |answer| {
            Request::Change(uuid, change, answer)
        })
    }

    /// Closes NVML on all threads: the driver resets no GPU that anybody has open. Until what is returned is dropped calls fail with
    /// [`NvmlError::LetGo`]; then it is opened anew by who needs it. An error where a call that does not return has it open still.
    pub fn let_go(&self, timeout: Duration) -> Result<LetGo, NvmlError> {
        let begun = Instant::now();
        self.shared.closed.fetch_add(1, Ordering::SeqCst);
        let closed = LetGo(Arc::clone(&self.shared));
        self.call("letting NVML go", timeout, Request::LetGo)?;
        while self.shared.open.load(Ordering::SeqCst) > 0 {
            if begun.elapsed() >= timeout {
                return Err(NvmlError::Timeout {
                    doing: "letting NVML go",
                    waited_secs: timeout.as_secs_f64(),
                    index: None,
                });
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(closed)
    }

    /// Waits while NVML is let go, at most so long.
    pub fn wait_until_open(&self, timeout: Duration) {
        let begun = Instant::now();
        while self.shared.is_closed() && begun.elapsed() < timeout {
            thread::sleep(Duration::from_millis(50));
        }
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
            events = self
                .shared
                .event_came
                .wait_timeout(events, left)
                .map_or_else(|broken| broken.into_inner().0, |(events, _)| events);
        }
        events.drain(..).collect()
    }

    /// Xids of addresses at which no GPU is known, the newest last.
    pub fn strays(&self) -> Vec<String> {
        lock(&self.shared.strays).iter().cloned().collect()
    }

    /// Events that were dropped because [`MAX_WAITING_EVENTS`] others waited.
    pub fn dropped_events(&self) -> u64 {
        self.shared.dropped_events.load(Ordering::Relaxed)
    }

    /// Whether events of this GPU are being delivered: some moments after it was first discovered.
    pub fn is_watching(&self, uuid: &str) -> bool {
        lock(&self.shared.watched).contains(uuid)
    }

    /// Whether any call hangs. Never waits for one.
    pub fn state(&self) -> WorkerState {
        let overdue = lock(&self.line)
            .job
            .call_under_way()
            .filter(|call| call.overdue_at.is_some());
        let held: Vec<String> = lock(&self.shared.held).keys().map(u32::to_string).collect();
        match overdue {
            Some(call) => WorkerState::Degraded(call.stuck().to_string()),
            None if !held.is_empty() => WorkerState::Degraded(format!(
                "calls about GPUs with index {} do not return",
                held.join(", ")
            )),
            None => WorkerState::Working,
        }
    }

    fn call<T>(
        &self,
        doing: &'static str,
        timeout: Duration,
        request: impl FnOnce(SyncSender<Result<T, NvmlError>>) -> Request,
    ) -> Result<T, NvmlError> {
        let _turn = self.take_turn(doing, timeout)?;
        let (answer, answered) = sync_channel(1);
        let job = self.hand_over(doing, request(answer))?;
        match answered.recv_timeout(timeout) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => {
                let index = job.index();
                job.mark_overdue(index);
                Err(NvmlError::Timeout {
                    doing,
                    waited_secs: timeout.as_secs_f64(),
                    index,
                })
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.start_again()?),
        }
    }

    /// Waits for other callers, who are few: gpud's discovery and its health poll.
    fn take_turn(
        &self,
        doing: &'static str,
        timeout: Duration,
    ) -> Result<MutexGuard<'_, ()>, NvmlError> {
        let begun = Instant::now();
        loop {
            match self.turn.try_lock() {
                Ok(turn) => return Ok(turn),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if begun.elapsed() >= timeout => {
                    return Err(NvmlError::Timeout {
                        doing,
                        waited_secs: timeout.as_secs_f64(),
                        index: None,
                    });
                }
                Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Gives the request to the thread, or to another where the present one still holds an earlier call.
    fn hand_over(&self, doing: &'static str, request: Request) -> Result<Arc<Job>, NvmlError> {
        let mut line = lock(&self.line);
        if let Some(call) = line.held_call() {
            self.replace(&mut line, &call)?;
        }
        line.job.begin(doing);
        if line.requests.send(request).is_err() {
            drop(line);
            return Err(self.start_again()?);
        }
        Ok(Arc::clone(&line.job))
    }

    /// A thread that ended by itself was a fault of ours: the next call finds a fresh one.
    fn start_again(&self) -> Result<NvmlError, NvmlError> {
        *lock(&self.line) = Line::start(&self.shared, &self.open)?;
        Ok(NvmlError::Thread(
            "it ended unexpectedly; started again".to_owned(),
        ))
    }

    /// Gives up the thread whose call does not return, and leaves the GPU it asks about out. Where no GPU can be named the
    /// whole library hangs: another thread would only hang too. Where it has moved on to another GPU it is slow, not stuck.
    fn replace(&self, line: &mut Line, call: &Call) -> Result<(), NvmlError> {
        let index = call
            .index
            .filter(|_| call.overdue_at == Some(call.index))
            .ok_or_else(|| {
                line.job.mark_overdue(call.index);
                call.stuck()
            })?;
        if self.shared.abandoned.load(Ordering::SeqCst) >= MAX_ABANDONED_THREADS {
            return Err(call.stuck());
        }
        if line.job.abandon(index, &self.shared) {
            *line = Line::start(&self.shared, &self.open)?;
        }
        Ok(())
    }
}

/// While it lives nobody here has NVML open.
pub struct LetGo(Arc<Shared>);

impl Drop for LetGo {
    fn drop(&mut self) {
        self.0.closed.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A source, and that it is open.
struct Opened {
    source: Box<dyn GpuSource>,
    _counted: Counted,
}

/// Counts from before the library is opened until after it is closed.
struct Counted(Arc<AtomicU64>);

impl Opened {
    fn open(shared: &Shared, open: &Opener) -> Result<Opened, NvmlError> {
        shared.open.fetch_add(1, Ordering::SeqCst);
        let counted = Counted(Arc::clone(&shared.open));
        // After it was counted: whoever closes sees the one or is seen.
        if shared.is_closed() {
            return Err(NvmlError::LetGo);
        }
        Ok(Opened {
            source: open()?,
            _counted: counted,
        })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
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
    Use(
        Option<BTreeSet<String>>,
        SyncSender<Result<Vec<GpuUse>, NvmlError>>,
    ),
    Change(String, Change, SyncSender<Result<Option<u32>, NvmlError>>),
    LetGo(SyncSender<Result<(), NvmlError>>),
}

impl Line {
    fn start(shared: &Arc<Shared>, open: &Arc<Opener>) -> Result<Line, NvmlError> {
        let (requests, receiver) = channel();
        let job = Arc::new(Job::default());
        let (shared, open, its_job) = (Arc::clone(shared), Arc::clone(open), Arc::clone(&job));
        spawn("nvml", move || serve(&receiver, &shared, &*open, its_job))?;
        Ok(Line { requests, job })
    }

    /// The call that should long have returned, if there is one: callers take turns, so any call under way is such a one,
    /// unless its thread is gone.
    fn held_call(&self) -> Option<Call> {
        let thread_is_gone = Arc::strong_count(&self.job) == 1;
        self.job.call_under_way().filter(|_| !thread_is_gone)
    }
}

/// What a thread is doing, as others may see it.
struct Job {
    call: Mutex<Option<Call>>,
    /// The GPU being asked; negative: none.
    index: AtomicI64,
    /// The GPU for whose sake the thread was given up.
    abandoned_at: Mutex<Option<u32>>,
}

/// A call into NVML that has not returned.
#[derive(Clone)]
struct Call {
    doing: &'static str,
    since: Instant,
    /// The GPU being asked now.
    index: Option<u32>,
    /// The GPU being asked when its time was up, once it was.
    overdue_at: Option<Option<u32>>,
}

impl Call {
    fn stuck(&self) -> NvmlError {
        NvmlError::Stuck {
            doing: self.doing,
            for_secs: self.since.elapsed().as_secs_f64(),
            index: self.index,
        }
    }
}

impl Default for Job {
    fn default() -> Job {
        Job {
            call: Mutex::new(None),
            index: AtomicI64::new(-1),
            abandoned_at: Mutex::new(None),
        }
    }
}

impl Job {
    fn begin(&self, doing: &'static str) {
        let call = Call {
            doing,
            since: Instant::now(),
            index: None,
            overdue_at: None,
        };
        *lock(&self.call) = Some(call);
    }

    fn call_under_way(&self) -> Option<Call> {
        let call = lock(&self.call).clone()?;
        Some(Call {
            index: self.index(),
            ..call
        })
    }

    fn mark_overdue(&self, index: Option<u32>) {
        if let Some(call) = lock(&self.call).as_mut() {
            call.overdue_at = Some(index);
        }
    }

    fn index(&self) -> Option<u32> {
        u32::try_from(self.index.load(Ordering::SeqCst)).ok()
    }

    /// Gives the thread up and the GPU with it; false where the call came back in the meantime.
    fn abandon(&self, index: u32, shared: &Shared) -> bool {
        let call = lock(&self.call);
        if call.is_none() {
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
        let mut call = lock(&self.call);
        *call = None;
        let Some(index) = lock(&self.abandoned_at).take() else {
            return true;
        };
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
            return Err(format!(
                "calls about it have not returned for {} s",
                since.elapsed().as_secs()
            ));
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
    /// Every GPU ever discovered, with the index it was last seen at.
    ever_seen: Mutex<BTreeMap<String, u32>>,
    /// Indices whose calls do not return, and since when we know.
    held: Mutex<BTreeMap<u32, Instant>>,
    abandoned: AtomicU64,
    /// Rises when the driver was found gone: whoever holds the library must open it anew.
    reopened: AtomicU64,
    /// Sources that are open, on whatever thread; and how many want none to be.
    open: Arc<AtomicU64>,
    closed: AtomicU64,
    watched: Mutex<BTreeSet<String>>,
    events: Mutex<VecDeque<GpuEvent>>,
    event_came: Condvar,
    dropped_events: AtomicU64,
    /// Xids of addresses at which no GPU is known, the newest last.
    strays: Mutex<VecDeque<String>>,
}

impl Shared {
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst) > 0
    }

    fn note_stray(&self, xid: &KernelXid) {
        const MOST: usize = 8;
        let text: String = xid.text.chars().take(120).collect();
        let words = format!(
            "Xid {} at PCI {}, where no GPU is known: {text}",
            xid.xid, xid.pci_bus_id
        );
        let mut strays = lock(&self.strays);
        if !strays.contains(&words) {
            strays.push_back(words);
            let over = strays.len().saturating_sub(MOST);
            strays.drain(..over);
        }
    }

    fn push_event(&self, event: GpuEvent) {
        let mut events = lock(&self.events);
        let full = events.len() >= MAX_WAITING_EVENTS;
        match events.iter_mut().find(|waiting| {
            (&waiting.uuid, waiting.kind, waiting.source) == (&event.uuid, event.kind, event.source)
        }) {
            Some(waiting) => waiting.count += event.count,
            None if full => {
                self.dropped_events
                    .fetch_add(event.count, Ordering::Relaxed);
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
            match known
                .iter()
                .find(|old| old.index == gpu.index && !present.contains(&old.uuid))
            {
                Some(old) => {
                    if old.fault.is_none() && gpu.kind == ReadFailureKind::Lost {
                        self.push_event(GpuEvent {
                            uuid: old.uuid.clone(),
                            kind: GpuEventKind::Lost,
                            count: 1,
                            source: EventSource::Reading,
                        });
                    }
                    inventory.gpus.push(GpuFacts {
                        fault: Some(gpu.fault),
                        ..old.clone()
                    });
                }
                None => inventory.unreadable.push(gpu),
            }
        }
        inventory.gpus.sort_by_key(|gpu| gpu.index);
        *known = inventory.gpus.clone();
        let seen = inventory
            .gpus
            .iter()
            .map(|gpu| (gpu.uuid.clone(), gpu.index));
        lock(&self.ever_seen).extend(seen);
    }

    /// The UUID that was last seen at an index which gives no answer now, for each such index. Tells of each GPU that just
    /// fell silent.
    fn name_silent<'a>(
        &self,
        silent: impl Iterator<Item = (u32, &'a ReadFailure, &'a mut Option<String>)>,
    ) {
        let mut known = lock(&self.known);
        for (index, silence, uuid) in silent {
            let Some(old) = known.iter_mut().find(|old| old.index == index) else {
                continue;
            };
            *uuid = Some(old.uuid.clone());
            if old.fault.is_none() {
                old.fault = Some(silence.text.clone());
                if silence.kind == ReadFailureKind::Lost {
                    self.push_event(GpuEvent {
                        uuid: old.uuid.clone(),
                        kind: GpuEventKind::Lost,
                        count: 1,
                        source: EventSource::Reading,
                    });
                }
            }
        }
    }

    /// A reading for each GPU that was discovered once and is not enumerated any more.
    fn add_missing(&self, readings: &mut Vec<GpuHealth>) {
        let present: BTreeSet<String> = readings
            .iter()
            .filter_map(|health| health.uuid.clone())
            .collect();
        for (uuid, &index) in lock(&self.ever_seen).iter() {
            if !present.contains(uuid) {
                let silence = ReadFailure {
                    kind: ReadFailureKind::Missing,
                    text: "the driver does not list it any more".to_owned(),
                };
                readings.push(GpuHealth {
                    uuid: Some(uuid.clone()),
                    ..GpuHealth::silent(index, silence)
                });
            }
        }
    }

    fn healthy(&self) -> BTreeSet<String> {
        lock(&self.known)
            .iter()
            .filter(|gpu| gpu.fault.is_none())
            .map(|gpu| gpu.uuid.clone())
            .collect()
    }
}

/// The life of the thread "nvml": until the worker is dropped, or gives this thread up.
fn serve(requests: &Receiver<Request>, shared: &Shared, open: &Opener, job: Arc<Job>) {
    let mut source: Option<Opened> = None;
    while let Ok(request) = requests.recv() {
        let progress = Progress {
            job: Arc::clone(&job),
            held: lock(&shared.held).clone(),
        };
        match request {
            Request::Discover(answer) => {
                let mut result = with_source(&mut source, shared, open, |source| {
                    source.discover(&progress)
                });
                if job.finish(shared)
                    && let Ok(inventory) = &mut result
                {
                    shared.remember(inventory);
                }
                let _ = answer.send(result); // a caller whose time was up is gone
            }
            Request::Health(answer) => {
                let mut result = with_source(&mut source, shared, open, |source| {
                    source.read_health(&progress)
                });
                if job.finish(shared)
                    && let Ok(readings) = &mut result
                {
                    shared.name_silent(readings.iter_mut().filter_map(|health| {
                        let silence = health.reading.fault.as_ref()?;
                        Some((health.index, silence, &mut health.uuid))
                    }));
                    shared.add_missing(readings);
                }
                let _ = answer.send(result);
            }
            Request::Use(only, answer) => {
                let mut result = with_source(&mut source, shared, open, |source| {
                    source.sample_use(&progress, only.as_ref())
                });
                if job.finish(shared)
                    && let Ok(samples) = &mut result
                {
                    shared.name_silent(samples.iter_mut().filter_map(|sample| {
                        Some((sample.index, sample.fault.as_ref()?, &mut sample.uuid))
                    }));
                }
                let _ = answer.send(result);
            }
            Request::Change(uuid, change, answer) => {
                let result = with_source(&mut source, shared, open, |source| {
                    source.change(&progress, &uuid, &change)
                });
                job.finish(shared);
                let _ = answer.send(result);
            }
            Request::LetGo(answer) => {
                source = None;
                job.finish(shared);
                let _ = answer.send(Ok(()));
            }
        }
    }
}

/// Opens the source where it is not; where the driver went away under it, opens it once more and tries again.
fn with_source<T>(
    source: &mut Option<Opened>,
    shared: &Shared,
    open: &Opener,
    mut work: impl FnMut(&mut dyn GpuSource) -> Result<T, NvmlError>,
) -> Result<T, NvmlError> {
    if let Some(opened) = source {
        match work(opened.source.as_mut()) {
            Err(NvmlError::Init(_)) => {
                *source = None;
                shared.reopened.fetch_add(1, Ordering::SeqCst);
            }
            result => return result,
        }
    }
    work(source.insert(Opened::open(shared, open)?).source.as_mut())
}

/// The life of the thread "nvml-events".
fn watch_events(worker: &Weak<Shared>, open: &Opener) {
    while let Some(shared) = worker.upgrade() {
        let wanted = shared.healthy();
        let generation = shared.reopened.load(Ordering::SeqCst);
        let opened = if wanted.is_empty() {
            None
        } else {
            Some(Opened::open(&shared, open))
        };
        drop(shared);
        if let Some(opened) = opened {
            let mut each = |event| pass_on(worker, &wanted, generation, event);
            let outcome = opened.and_then(|mut opened| opened.source.watch(&wanted, &mut each));
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

fn pass_on(
    worker: &Weak<Shared>,
    wanted: &BTreeSet<String>,
    generation: u64,
    event: Option<GpuEvent>,
) -> ControlFlow<()> {
    let Some(shared) = worker.upgrade() else {
        return ControlFlow::Break(());
    };
    match event {
        Some(event) => shared.push_event(event),
        None => lock(&shared.watched).clone_from(wanted),
    }
    let all_watched = shared.healthy().is_subset(wanted);
    if all_watched && !shared.is_closed() && generation == shared.reopened.load(Ordering::SeqCst) {
        ControlFlow::Continue(())
    } else {
        ControlFlow::Break(())
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), NvmlError> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map(drop)
        .map_err(|error| NvmlError::Thread(error.to_string()))
}

/// A panic of another thread leaves these data whole: each is changed in one statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::super::UnreadableGpu;
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    /// Ten GPUs without NVML, of which some hang, and a count of how many sources are open.
    #[derive(Default)]
    struct Rack {
        hanging: Mutex<BTreeSet<u32>>,
        changed: Condvar,
        open: AtomicU64,
    }

    struct RackSource(Arc<Rack>);

    impl Rack {
        fn hang(&self, indices: &[u32]) {
            *lock(&self.hanging) = indices.iter().copied().collect();
            self.changed.notify_all();
        }

        fn ask(&self, index: u32) {
            let mut hanging = lock(&self.hanging);
            while hanging.contains(&index) {
                hanging = self.changed.wait(hanging).unwrap();
            }
        }
    }

    impl Drop for RackSource {
        fn drop(&mut self) {
            self.0.open.fetch_sub(1, Ordering::SeqCst);
        }
    }

    impl GpuSource for RackSource {
        fn discover(&mut self, progress: &Progress) -> Result<Inventory, NvmlError> {
            let mut inventory = Inventory::default();
            for index in 0..10 {
                match progress.begin(index) {
                    Ok(()) => self.0.ask(index),
                    Err(fault) => inventory.unreadable.push(UnreadableGpu {
                        index,
                        kind: ReadFailureKind::Hangs,
                        fault,
                    }),
                }
            }
            progress.end();
            Ok(inventory)
        }

        fn read_health(&mut self, _progress: &Progress) -> Result<Vec<GpuHealth>, NvmlError> {
            panic!("a fault of our own");
        }

        fn sample_use(
            &mut self,
            _progress: &Progress,
            _only: Option<&BTreeSet<String>>,
        ) -> Result<Vec<GpuUse>, NvmlError> {
            Ok(Vec::new())
        }

        fn change(
            &mut self,
            progress: &Progress,
            _uuid: &str,
            _change: &Change,
        ) -> Result<Option<u32>, NvmlError> {
            let _ = progress.begin(3);
            self.0.ask(3);
            progress.end();
            Ok(Some(3))
        }

        fn watch(
            &mut self,
            _uuids: &BTreeSet<String>,
            _each: &mut dyn FnMut(Option<GpuEvent>) -> ControlFlow<()>,
        ) -> Result<(), NvmlError> {
            Ok(())
        }
    }

    fn start(rack: &Arc<Rack>) -> NvmlWorker {
        let rack = Arc::clone(rack);
        let open = move || -> Result<Box<dyn GpuSource>, NvmlError> {
            rack.open.fetch_add(1, Ordering::SeqCst);
            Ok(Box::new(RackSource(Arc::clone(&rack))))
        };
        NvmlWorker::start_with(open).unwrap()
    }

    fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + SOON;
        while !is_so() {
            assert!(Instant::now() < deadline, "did not happen in 20 s: {what}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn several_hanging_gpus_are_left_out_one_by_one_and_come_back_together() {
        let rack = Arc::new(Rack::default());
        let worker = start(&rack);
        rack.hang(&[2, 5, 7]);
        let brief = Duration::from_millis(500);
        for index in [2, 5, 7] {
            let outcome = worker.discover(brief);
            assert!(
                matches!(outcome, Err(NvmlError::Timeout { index: Some(at), .. }) if at == index),
                "{outcome:?}"
            );
        }
        let left_out: Vec<u32> = worker
            .discover(SOON)
            .unwrap()
            .unreadable
            .iter()
            .map(|gpu| gpu.index)
            .collect();
        assert_eq!(left_out, [2, 5, 7]);
        rack.hang(&[]);
        eventually("all come back", || {
            worker.discover(SOON).unwrap().unreadable.is_empty()
        });
        eventually("only the present thread's source is open", || {
            rack.open.load(Ordering::SeqCst) == 1
        });
    }

    #[test]
    fn threads_given_up_are_bounded() {
        let rack = Arc::new(Rack::default());
        let worker = start(&rack);
        rack.hang(&(0..10).collect::<Vec<_>>());
        let given_up = || worker.shared.abandoned.load(Ordering::SeqCst);
        eventually("as many are given up as may be", || {
            let outcome = worker.discover(Duration::from_millis(20));
            assert!(outcome.is_err(), "{outcome:?}");
            given_up() == MAX_ABANDONED_THREADS
        });
        for _ in 0..5 {
            assert!(worker.discover(Duration::from_millis(20)).is_err());
            assert_eq!(given_up(), MAX_ABANDONED_THREADS);
        }
        assert!(matches!(
            worker.discover(SOON),
            Err(NvmlError::Stuck { .. })
        ));
        rack.hang(&[]);
        eventually("it works again", || {
            worker
                .discover(SOON)
                .is_ok_and(|inventory| inventory.unreadable.is_empty())
        });
        assert_eq!(worker.state(), WorkerState::Working);
    }

    #[test]
    fn callers_wait_no_longer_than_they_said_even_for_each_other() {
        let rack = Arc::new(Rack::default());
        let worker = Arc::new(start(&rack));
        rack.hang(&[0]);
        let patient = Arc::clone(&worker);
        let patient = thread::spawn(move || patient.discover(SOON));
        eventually("the patient caller's call is under way", || {
            worker.turn.try_lock().is_err()
        });
        let begun = Instant::now();
        let outcome = worker.discover(Duration::from_millis(30));
        assert!(
            matches!(outcome, Err(NvmlError::Timeout { index: None, .. })),
            "{outcome:?}"
        );
        assert_eq!(
            worker.state(),
            WorkerState::Working,
            "the other call still has time"
        );
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "{:?}",
            begun.elapsed()
        );
        rack.hang(&[]);
        assert!(patient.join().unwrap().is_ok());
    }

    #[test]
    fn a_library_that_is_slow_but_moves_on_costs_no_gpu() {
        let rack = Arc::new(Rack::default());
        let worker = start(&rack);
        rack.hang(&[3, 4]);
        assert!(matches!(
            worker.discover(Duration::from_millis(500)),
            Err(NvmlError::Timeout { index: Some(3), .. })
        ));
        rack.hang(&[4]);
        eventually("it comes to the next GPU", || {
            lock(&worker.line).job.index() == Some(4)
        });
        assert!(matches!(
            worker.discover(SOON),
            Err(NvmlError::Stuck { index: Some(4), .. })
        ));
        rack.hang(&[]);
        eventually("the slow call is over", || {
            worker.state() == WorkerState::Working
        });
        assert!(worker.discover(SOON).unwrap().unreadable.is_empty());
    }

    #[test]
    fn a_thread_that_panics_is_replaced() {
        let worker = start(&Arc::new(Rack::default()));
        assert!(matches!(
            worker.read_health(SOON),
            Err(NvmlError::Thread(_))
        ));
        assert!(worker.discover(SOON).is_ok());
    }

    #[test]
    fn who_lets_go_has_nothing_open_and_begins_anew_afterwards() {
        let rack = Arc::new(Rack::default());
        let worker = start(&rack);
        worker.discover(SOON).unwrap();
        let closed = worker.let_go(SOON).unwrap();
        assert_eq!(rack.open.load(Ordering::SeqCst), 0);
        assert_eq!(worker.discover(SOON).unwrap_err(), NvmlError::LetGo);
        let again = worker.let_go(SOON).unwrap();
        drop(closed);
        assert_eq!(
            worker.discover(SOON).unwrap_err(),
            NvmlError::LetGo,
            "the other still wants it closed"
        );
        drop(again);
        worker.wait_until_open(SOON);
        assert!(worker.discover(SOON).is_ok());
    }

    #[test]
    fn a_call_that_does_not_return_keeps_it_open_and_that_is_said() {
        let rack = Arc::new(Rack::default());
        let worker = start(&rack);
        worker.discover(SOON).unwrap();
        rack.hang(&[3]);
        let brief = Duration::from_millis(200);
        assert!(worker.discover(brief).is_err());
        let outcome = worker.let_go(brief).map(drop);
        assert!(
            matches!(
                outcome,
                Err(NvmlError::Timeout { .. } | NvmlError::Stuck { .. })
            ),
            "{outcome:?}"
        );
        rack.hang(&[]);
        eventually("it works again, not being closed", || {
            worker.discover(SOON).is_ok()
        });
    }

    #[test]
    fn dropping_the_worker_closes_its_sources() {
        let rack = Arc::new(Rack::default());
        let worker = start(&rack);
        worker.discover(SOON).unwrap();
        drop(worker);
        eventually("all sources are closed", || {
            rack.open.load(Ordering::SeqCst) == 0
        });
    }

    #[test]
    fn events_nobody_fetches_are_bounded_and_the_rest_is_counted() {
        let shared = Shared::default();
        for number in 0..5000 {
            shared.push_event(GpuEvent {
                uuid: "GPU-x".to_owned(),
                kind: GpuEventKind::Xid(number),
                count: 2,
                source: EventSource::EventSet,
            });
        }
        assert_eq!(lock(&shared.events).len(), MAX_WAITING_EVENTS);
        assert_eq!(
            shared.dropped_events.load(Ordering::Relaxed),
            (5000 - MAX_WAITING_EVENTS as u64) * 2
        );
    }
}
