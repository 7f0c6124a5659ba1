//! The threads of a worker: one that carries out calls, and one that waits for events. Each opens the library for itself.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use super::job::{Call, Job, Progress};
use super::shared::{SharedState, SilentGpu, lock};
use crate::nvml::GpuSource;
use crate::nvml::change::Change;
use crate::nvml::error::NvmlError;
use crate::nvml::facts::Inventory;
use crate::nvml::usage::GpuUse;
use crate::nvml::{GpuEvent, GpuHealth};

pub type SourceOpener = dyn Fn() -> Result<Box<dyn GpuSource>, NvmlError> + Send + Sync;

/// A source, and that it is open.
struct OpenSource {
    source: Box<dyn GpuSource>,
    _counted: OpenCount,
}

/// Counts from before the library is opened until after it is closed.
struct OpenCount(Arc<AtomicU64>);

impl OpenSource {
    pub fn open(shared: &SharedState, open: &SourceOpener) -> Result<OpenSource, NvmlError> {
        shared.open.fetch_add(1, Ordering::SeqCst);
        let counted = OpenCount(Arc::clone(&shared.open));
        // After it was counted, so that a concurrent close sees the count or is seen here.
        if shared.is_closed() {
            return Err(NvmlError::Closed);
        }
        Ok(OpenSource {
            source: open()?,
            _counted: counted,
        })
    }
}

impl Drop for OpenCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The way to the thread that makes the calls at present.
pub struct CallThread {
    pub requests: Sender<Request>,
    pub job: Arc<Job>,
}

pub enum Request {
    Discover(SyncSender<Result<Inventory, NvmlError>>),
    Health(SyncSender<Result<Vec<GpuHealth>, NvmlError>>),
    Use(
        Option<BTreeSet<String>>,
        SyncSender<Result<Vec<GpuUse>, NvmlError>>,
    ),
    Change(String, Change, SyncSender<Result<Option<u32>, NvmlError>>),
    Close(SyncSender<Result<(), NvmlError>>),
}

impl CallThread {
    pub fn start(
        shared: &Arc<SharedState>,
        open: &Arc<SourceOpener>,
    ) -> Result<CallThread, NvmlError> {
        let (requests, receiver) = channel();
        let job = Arc::new(Job::default());
        let (shared, open, its_job) = (Arc::clone(shared), Arc::clone(open), Arc::clone(&job));
        spawn("nvml", move || serve(&receiver, &shared, &*open, its_job))?;
        Ok(CallThread { requests, job })
    }

    /// The call that should long have returned, if there is one: callers take turns, so any call under way is such a one,
    /// unless its thread is gone.
    pub fn held_call(&self) -> Option<Call> {
        let thread_is_gone = Arc::strong_count(&self.job) == 1;
        self.job.call_under_way().filter(|_| !thread_is_gone)
    }
}

/// The life of the thread "nvml": until the worker is dropped, or gives this thread up.
fn serve(requests: &Receiver<Request>, shared: &SharedState, open: &SourceOpener, job: Arc<Job>) {
    let mut source: Option<OpenSource> = None;
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
                    shared.name_silent(readings.iter_mut().filter_map(SilentGpu::of_health));
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
                    shared.name_silent(samples.iter_mut().filter_map(SilentGpu::of_use));
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
            Request::Close(answer) => {
                source = None;
                job.finish(shared);
                let _ = answer.send(Ok(()));
            }
        }
    }
}

/// Opens the source where it is not; where the driver went away under it, opens it once more and tries again.
fn with_source<T>(
    source: &mut Option<OpenSource>,
    shared: &SharedState,
    open: &SourceOpener,
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
    work(
        source
            .insert(OpenSource::open(shared, open)?)
            .source
            .as_mut(),
    )
}

/// The life of the thread "nvml-events".
pub fn watch_events(worker: &Weak<SharedState>, open: &SourceOpener) {
    while let Some(shared) = worker.upgrade() {
        let wanted = shared.healthy();
        let generation = shared.reopened.load(Ordering::SeqCst);
        let opened = if wanted.is_empty() {
            None
        } else {
            Some(OpenSource::open(&shared, open))
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
    worker: &Weak<SharedState>,
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

pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), NvmlError> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map(drop)
        .map_err(|error| NvmlError::Thread(error.to_string()))
}
