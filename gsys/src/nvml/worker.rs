//! NVML under deadlines: calls run on threads of the worker. A caller waits up to the time it names; a thread is given up when its call
//! does not return. Calls no NVML itself.

mod job;
mod kernel_log_watch;
mod shared;
#[cfg(test)]
mod tests;
mod thread;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use super::change::Change;
use super::error::NvmlError;
use super::facts::Inventory;
use super::library::Nvml;
use super::usage::GpuUse;
use super::{DEFAULT_LIBRARY, GpuSource};
use super::{GpuEvent, GpuHealth};
use job::{Call, Job};
use shared::{SharedState, lock};
use thread::{CallThread, Request, SourceOpener, spawn, watch_events};

pub use job::Progress;
pub use shared::MAX_WAITING_EVENTS;

/// Threads given up to calls that do not return, before the worker starts no more.
pub const MAX_ABANDONED_THREADS: u64 = 8;

/// Whether all calls come back.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerState {
    Working,
    /// A call has not returned, or GPUs are left out because a call about each has not.
    Degraded(String),
}

/// NVML on threads of its own. Callers block up to the time they name, never longer; call it where blocking is allowed.
///
/// Name a time well above what NVML honestly takes (without persistence mode the first call may take seconds per GPU): a
/// GPU at which a call is still found after its time is left out until that call returns.
pub struct NvmlWorker {
    /// Held by the caller during its call.
    turn: Mutex<()>,
    line: Mutex<CallThread>,
    shared: Arc<SharedState>,
    open: Arc<SourceOpener>,
}

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
        let shared = Arc::new(SharedState::default());
        let open: Arc<SourceOpener> = Arc::new(open);
        let line = CallThread::start(&shared, &open)?;
        let (watched, opener) = (Arc::downgrade(&shared), Arc::clone(&open));
        spawn("nvml-events", move || watch_events(&watched, &*opener))?;
        Ok(NvmlWorker {
            turn: Mutex::new(()),
            line: Mutex::new(line),
            shared,
            open,
        })
    }

    /// Takes Xids from the kernel log too (`/dev/kmsg`), from now on: there an Xid appears even when NVML hangs or has no watcher. A log that
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

    /// Closes NVML on all threads: the driver resets no GPU that a process has open. Until the returned value is dropped calls fail with
    /// [`NvmlError::Closed`]; the next call opens NVML again. An error where a call that does not return still has it open.
    pub fn close(&self, timeout: Duration) -> Result<ClosedNvml, NvmlError> {
        let begun = Instant::now();
        self.shared.closed.fetch_add(1, Ordering::SeqCst);
        let closed = ClosedNvml(Arc::clone(&self.shared));
        self.call("closing NVML", timeout, Request::Close)?;
        while self.shared.open.load(Ordering::SeqCst) > 0 {
            if begun.elapsed() >= timeout {
                return Err(NvmlError::Timeout {
                    doing: "closing NVML",
                    waited_secs: timeout.as_secs_f64(),
                    index: None,
                });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(closed)
    }

    /// Waits while NVML is let go, at most so long.
    pub fn wait_until_open(&self, timeout: Duration) {
        let begun = Instant::now();
        while self.shared.is_closed() && begun.elapsed() < timeout {
            std::thread::sleep(Duration::from_millis(50));
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

    /// Waits for the few other callers: gpud's discovery and its health poll.
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
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(5)),
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

    /// A thread that ended by itself had a fault of gsys: the next call finds a fresh one.
    fn start_again(&self) -> Result<NvmlError, NvmlError> {
        *lock(&self.line) = CallThread::start(&self.shared, &self.open)?;
        Ok(NvmlError::Thread(
            "it ended unexpectedly; started again".to_owned(),
        ))
    }

    /// Gives up the thread of a call that does not return, and leaves out the GPU of that call. Where no GPU can be named the whole
    /// library hangs: another thread would only hang too. A thread that has moved on to another GPU is slow, not stuck.
    fn replace(&self, line: &mut CallThread, call: &Call) -> Result<(), NvmlError> {
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
            *line = CallThread::start(&self.shared, &self.open)?;
        }
        Ok(())
    }
}

/// While it lives no thread of the worker has NVML open.
pub struct ClosedNvml(Arc<SharedState>);

impl Drop for ClosedNvml {
    fn drop(&mut self) {
        self.0.closed.fetch_sub(1, Ordering::SeqCst);
    }
}
