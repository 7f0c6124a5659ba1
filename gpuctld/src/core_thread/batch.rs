//! The core thread's loop: take inputs, handle each, one commit for all, then answers, view, nodes, planner.
//!
//! Nothing is answered before the commit that holds its facts; a commit that fails, with the reserve given up too, ends the process.

use super::disk::Disk;
use super::gpu_log;
use super::{
    COMMAND_QUEUE, CoreHandle, CoreMessage, CoreShared, CoreStats, PublishedView, QueuedInput,
    REPORT_QUEUE,
};
use crate::group_members::PartitionGroups;
use crate::node_changes::NodeChanges;
use crate::planner::PlannerWake;
use crate::store::reader::Reader;
use crate::store::{Batch, Store, WriteError};
use crate::trace_file::TraceFile;
use gcore::ctl::{Event, Input, Refusal, Reply, State, handle, next_deadline};
use gmodel::config::ClusterConfig;
use gmodel::{NodeId, Timestamp};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Semaphore, oneshot, watch};

/// Inputs in one commit at most: bounds the wait of the first of them.
const BATCH_INPUTS: usize = 512;
/// A plan of so many reasons retires the view, so that its records are not copied; the next request makes a new one.
const MANY_REASONS: usize = 4_000;
/// The deadline is derived from the whole state; after changes it is looked at this often at most.
const DEADLINE_PAUSE: Duration = Duration::from_millis(20);
/// Between two wakes at least, should a deadline stay due.
const WAKE_PAUSE: Duration = Duration::from_millis(100);
/// Longest sleep: the disk is looked at even when nothing happens.
const IDLE: Duration = Duration::from_secs(5);

/// How often a batch is written into the given-up reserve, and the time between.
const FULL_TRIES: u32 = 10;
const FULL_PAUSE: Duration = Duration::from_millis(100);

/// The thread's own half. `run` it on a thread of its own.
pub struct Core {
    state: State,
    store: Store,
    inputs: Receiver<CoreMessage>,
    shared: Arc<CoreShared>,
    node_changes: NodeChanges,
    planner: PlannerWake,
    disk: Disk,
    trace: Option<TraceFile>,
    deadline: NextWake,
    /// The configuration of which the groups of partitions were told.
    told_groups_of: Arc<ClusterConfig>,
}

/// What a new core is made of.
pub struct CoreParts {
    /// As loaded, with its configuration set.
    pub state: State,
    pub store: Store,
    pub node_changes: NodeChanges,
    pub planner: PlannerWake,
    /// Below so many free bytes commands are refused. Shared, since a reload may change it.
    pub min_free_bytes: Arc<AtomicU64>,
    pub trace: Option<TraceFile>,
}

/// Next wake, derived again after changes.
struct NextWake {
    at: Option<Timestamp>,
    /// The state changed since `at` was derived.
    stale: bool,
    derived: Instant,
    woken: Instant,
}

/// An answer that waits for its commit.
struct PendingReply {
    reply: oneshot::Sender<Result<Reply, Refusal>>,
    result: Result<Reply, Refusal>,
    since: Instant,
}

/// What one batch owes its askers once it is committed.
#[derive(Default)]
struct BatchReplies {
    /// How many were taken: commands, and what nodes and the planner say.
    inputs: u64,
    answers: Vec<PendingReply>,
    views: Vec<oneshot::Sender<Arc<State>>>,
    full_states: Vec<oneshot::Sender<Box<State>>>,
    finish_checkpoint: bool,
    stop: bool,
}

impl Core {
    pub fn new(parts: CoreParts) -> (CoreHandle, Self) {
        let CoreParts {
            state,
            store,
            node_changes,
            planner,
            min_free_bytes,
            trace,
        } = parts;
        let (sender, inputs) = channel();
        let disk = Disk::new(
            store
                .path()
                .parent()
                .expect("the database is in a directory"),
            min_free_bytes,
        );
        let shared = Arc::new(CoreShared {
            inputs: sender,
            command_room: Arc::new(Semaphore::new(COMMAND_QUEUE)),
            report_room: Arc::new(Semaphore::new(REPORT_QUEUE)),
            published: PublishedView::new(view_of(&mut state.clone())),
            versions: watch::Sender::new(0),
            partition_groups: RwLock::new(Arc::new(PartitionGroups::of(&state.config))),
            stats: CoreStats::default(),
            reader: Reader::new(store.path()),
        });
        let now = Instant::now();
        let deadline = NextWake {
            at: None,
            stale: true,
            derived: now - DEADLINE_PAUSE,
            woken: now - WAKE_PAUSE,
        };
        let core = Self {
            told_groups_of: state.config.clone(),
            state,
            store,
            inputs,
            shared: shared.clone(),
            node_changes,
            planner,
            disk,
            trace,
            deadline,
        };
        (CoreHandle { shared }, core)
    }

    /// Takes inputs that need no answer, before a socket is bound: the configuration and `Started`.
    ///
    /// # Errors
    /// The commit failed.
    pub fn take(&mut self, inputs: Vec<Input>) -> Result<(), WriteError> {
        let mut batch = Batch {
            now: now(),
            ..Batch::default()
        };
        for input in inputs {
            self.handle(input, &mut batch)
                .expect("commands are refused, these inputs are not");
        }
        self.commit(batch, BatchReplies::default())
    }

    /// Runs until it is told to stop, then closes the database.
    ///
    /// # Errors
    /// A commit failed: nothing of it was answered, and the process must end.
    pub fn run(mut self) -> Result<(), WriteError> {
        loop {
            if self.deadline.is_due(&self.state) {
                // Alone in its commit: what it forgets must be on disk already.
                let mut batch = Batch {
                    now: now(),
                    ..Batch::default()
                };
                self.handle(Input::Wake, &mut batch)
                    .expect("a wake is not refused");
                self.commit(batch, BatchReplies::default())?;
            }
            self.disk.look();
            let first = match self.inputs.recv_timeout(self.deadline.sleep()) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let (batch, owed) = self.take_batch(first);
            let (stop, finish_checkpoint) = (owed.stop, owed.finish_checkpoint);
            self.commit(batch, owed)?;
            if finish_checkpoint {
                match self.store.checkpoint() {
                    // The log holds all of it, and is brought home when there is room.
                    Err(e) if e.is_full() => tracing::warn!("no room for a checkpoint: {e}"),
                    done => done?,
                }
            }
            if stop {
                break;
            }
        }
        let version = self.shared.published.version.load(Relaxed);
        self.shared
            .published
            .publish(version, view_of(&mut self.state));
        self.store.close()
    }

    fn take_batch(&mut self, first: CoreMessage) -> (Batch, BatchReplies) {
        let mut batch = Batch {
            now: now(),
            ..Batch::default()
        };
        let mut owed = BatchReplies::default();
        let mut message = first;
        for taken in 1.. {
            match message {
                CoreMessage::Input(queued) => self.take_input(*queued, &mut batch, &mut owed),
                CoreMessage::View(reply) => owed.views.push(reply),
                CoreMessage::FullState(reply) => owed.full_states.push(reply),
                CoreMessage::FinishCheckpoint => owed.finish_checkpoint = true,
                CoreMessage::Stop => {
                    owed.stop = true;
                    break;
                }
            }
            if taken == BATCH_INPUTS {
                break;
            }
            match self.inputs.try_recv() {
                Ok(next) => message = next,
                Err(_) => break,
            }
        }
        if owed.inputs > 0 {
            self.shared.stats.batch_inputs.record(owed.inputs);
        }
        (batch, owed)
    }

    fn take_input(&mut self, queued: QueuedInput, batch: &mut Batch, owed: &mut BatchReplies) {
        let QueuedInput {
            input,
            blobs,
            reply,
            since,
            _permit,
        } = queued;
        drop(_permit);
        owed.inputs += 1;
        self.shared.stats.queue.record_duration(since.elapsed());
        let refused = match &input {
            Input::Command { .. } => self.disk.refusal(),
            // Nothing new is started into a disk that is all but full.
            Input::Plan { .. } => self
                .disk
                .refusal()
                .filter(|_| self.disk.reserve_is_given_up()),
            _ => None,
        };
        if matches!(&input, Input::Plan { plan } if plan.reasons.len() >= MANY_REASONS) {
            self.shared.published.retire();
        }
        let result = match refused {
            Some(refusal) => Err(refusal),
            None => self.handle(input, batch),
        };
        match &result {
            Ok(Reply::Submitted { repeated: true, .. }) => {}
            Ok(_) => batch.blobs.extend(blobs),
            Err(_) => {
                self.shared.stats.refusals.fetch_add(1, Relaxed);
            }
        }
        if let Some(reply) = reply {
            owed.answers.push(PendingReply {
                reply,
                result,
                since,
            });
        }
    }

    fn handle(&mut self, input: Input, batch: &mut Batch) -> Result<Reply, Refusal> {
        if let Some(trace) = &mut self.trace {
            trace.write(batch.now, &input);
        }
        handle(&mut self.state, &mut batch.events, input, batch.now)
    }

    /// Makes a batch durable; only then answers, wakes and publishes.
    fn commit(&mut self, batch: Batch, owed: BatchReplies) -> Result<(), WriteError> {
        let shared = self.shared.clone();
        let stats = &shared.stats;
        if let Some(trace) = &mut self.trace {
            trace.flush();
        }
        if !batch.events.is_empty() {
            let wakes = batch.events.iter().any(Event::wakes_planner);
            let urgent = wakes && batch.events.iter().any(frees_resources);
            let starts = batch
                .events
                .iter()
                .filter(|e| matches!(e, Event::RunPlaced { .. }))
                .count();
            stats.events.fetch_add(batch.events.len() as u64, Relaxed);
            stats.starts.fetch_add(starts as u64, Relaxed);
            let begun = Instant::now();
            let of_gpus = gpu_log::lines(&self.state, &batch.events);
            let changed = if batch.events.iter().any(Event::is_stored) {
                let changed = self.write(&batch)?;
                stats.commit.record_duration(begun.elapsed());
                stats.commits.fetch_add(1, Relaxed);
                changed
            } else {
                Vec::new()
            };
            gpu_log::say(of_gpus);
            stats.flow.record(&self.state, &batch.events, batch.now);
            let version = shared.published.version.load(Relaxed) + 1;
            shared.published.version.store(version, Release);
            shared.versions.send_replace(version);
            self.deadline.stale = true;
            self.node_changes.notify(&changed);
            if wakes {
                self.planner.wake(urgent);
            }
        }
        stats.disk_free_bytes.store(self.disk.free_bytes(), Relaxed);
        self.tell_groups();
        self.release(owed);
        Ok(())
    }

    /// Before the answers: a partition that was just made for some groups is known to be by the next submission.
    fn tell_groups(&mut self) {
        if Arc::ptr_eq(&self.told_groups_of, &self.state.config) {
            return;
        }
        self.told_groups_of = self.state.config.clone();
        let groups = Arc::new(PartitionGroups::of(&self.state.config));
        *self
            .shared
            .partition_groups
            .write()
            .expect("no panic while held") = groups;
    }

    /// Writes a batch; into the reserve where the disk is full.
    fn write(&mut self, batch: &Batch) -> Result<Vec<NodeId>, WriteError> {
        let mut written = self.store.write(&self.state, batch);
        if written.as_ref().is_err_and(WriteError::is_full) && self.disk.give_up_reserve() {
            // Some file systems give freed bytes out a moment later.
            for _ in 0..FULL_TRIES {
                written = self.store.write(&self.state, batch);
                if !written.as_ref().is_err_and(WriteError::is_full) {
                    break;
                }
                std::thread::sleep(FULL_PAUSE);
            }
        }
        written
    }

    /// Notes how far the database has come, before the first answer.
    pub fn mark(&self) {
        self.store.mark();
    }

    fn release(&mut self, owed: BatchReplies) {
        for PendingReply {
            reply,
            result,
            since,
        } in owed.answers
        {
            self.shared.stats.answer.record_duration(since.elapsed());
            let _ = reply.send(result); // the asker may have gone
        }
        if !owed.views.is_empty() {
            let view = match self.shared.published.current() {
                Some(view) => view,
                None => {
                    self.shared.stats.views.fetch_add(1, Relaxed);
                    let version = self.shared.published.version.load(Relaxed);
                    self.shared
                        .published
                        .publish(version, view_of(&mut self.state))
                }
            };
            for reply in owed.views {
                let _ = reply.send(view.clone());
            }
        }
        for reply in owed.full_states {
            let _ = reply.send(Box::new(self.state.clone()));
        }
    }
}

impl NextWake {
    fn is_due(&mut self, state: &State) -> bool {
        if self.stale && self.derived.elapsed() >= DEADLINE_PAUSE {
            self.at = next_deadline(state);
            self.derived = Instant::now();
            self.stale = false;
        }
        let due = self.at.is_some_and(|at| at <= now()) && self.woken.elapsed() >= WAKE_PAUSE;
        if due {
            self.woken = Instant::now();
            self.stale = true;
        }
        due
    }

    /// Until the next look at the state or the clock.
    fn sleep(&self) -> Duration {
        let until = |at: Timestamp| Duration::from_millis(at.since_millis(now()).unsigned_abs());
        let deadline = self
            .at
            .map_or(IDLE, until)
            .max(WAKE_PAUSE.saturating_sub(self.woken.elapsed()));
        let derive = if self.stale {
            DEADLINE_PAUSE.saturating_sub(self.derived.elapsed())
        } else {
            IDLE
        };
        // A millisecond at least: a deadline of this very millisecond is not busy waiting.
        deadline.min(derive).min(IDLE).max(Duration::from_millis(1))
    }
}

/// The state for readers: without the clients' keys, the late requests and the dependents, which are many and which no reader
/// needs.
fn view_of(state: &mut State) -> State {
    let keys = std::mem::take(&mut state.index.client_keys);
    let specs = std::mem::take(&mut state.memo.late_specs);
    let dependents = std::mem::take(&mut state.index.dependents);
    let view = state.clone();
    state.index.dependents = dependents;
    state.index.client_keys = keys;
    state.memo.late_specs = specs;
    view
}

/// Something waits for these: the planner does not rest before looking.
fn frees_resources(event: &Event) -> bool {
    matches!(
        event,
        Event::RunClosed { .. }
            | Event::RunReported {
                phase: gmodel::run::RunPhase::Clean(_),
                ..
            }
            | Event::NodeHello { .. }
            | Event::NodeInventory { .. }
            | Event::NodeResumed { .. }
    )
}

/// The controller's clock: milliseconds since 1970.
pub fn now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

impl PublishedView {
    pub(super) fn new(state: State) -> Self {
        Self {
            version: AtomicU64::new(0),
            view: Mutex::new(Some((0, Arc::new(state)))),
        }
    }
}
