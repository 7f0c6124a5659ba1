//! The core thread owns the controller's state and the database's only writing connection. All other threads
//! talk to it through [`CoreHandle`]; it opens no socket and reads no file but the database.
//!
//! Channels: owns the receiving end of `inputs` (bounded by two semaphores), the sending end of the
//! `versions` and `node_changes` watches and of the planner's wake. Loop and order of work: `core_thread/batch.rs`.

mod batch;
mod disk;
mod gpu_log;
mod job_flow;

pub use batch::{Core, CoreParts, now};
pub use disk::make_room_to_start;
pub use job_flow::JobFlow;

use crate::group_members::PartitionGroups;
use crate::histogram::Histogram;
use crate::launch_texts;
use crate::store::Blob;
use crate::store::reader::Reader;
use gcore::ctl::{Actor, BillChange, Command, Input, NodeReport, Refusal, Reply, State, Target};
use gmodel::config::ClusterConfig;
use gmodel::dependency::{Dependency, DependencyKind, DependencyTerm, JobRef, MAX_CONDITIONS};
use gmodel::{BlobId, JobSpec, NodeId};
use gsched::Plan;
use sha2::{Digest, Sha256};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, mpsc};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

/// Commands that may wait for the core thread; the next is refused as unavailable.
pub const COMMAND_QUEUE: usize = 4096;
/// Node reports that may wait; the connections of further ones wait with them.
pub const REPORT_QUEUE: usize = 4096;
/// Blobs above this are hashed on a blocking thread, so that one script does not stall other clients.
const HASH_INLINE_BYTES: usize = 256 << 10;

/// The way to the core thread. Cheap to clone, usable from any task or thread.
#[derive(Clone)]
pub struct CoreHandle {
    shared: Arc<CoreShared>,
}

/// What the handles and the core thread share.
struct CoreShared {
    inputs: mpsc::Sender<CoreMessage>,
    command_room: Arc<Semaphore>,
    report_room: Arc<Semaphore>,
    published: PublishedView,
    versions: watch::Sender<u64>,
    partition_groups: RwLock<Arc<PartitionGroups>>,
    stats: CoreStats,
    reader: Reader,
}

/// A submission with its texts, before they become blobs.
#[derive(Clone, Debug, Default)]
pub struct Submission {
    /// `spec.user` is set by the core from the actor; the blob ids in `spec.launch` are set here.
    pub spec: JobSpec,
    pub client_key: Option<String>,
    /// Text of the script; empty when `spec.launch.argv` is the command.
    pub script: String,
    /// `NAME=value` each, separated by NUL bytes, as it is stored.
    pub environment: String,
    /// The other components of a job of unlike parts.
    pub others: Vec<JobSpec>,
}

/// Times and counts of the core thread, for `gadm diag` and `/metrics`. Durations in microseconds.
#[derive(Debug, Default)]
pub struct CoreStats {
    /// From the first write of a batch to the end of its commit.
    pub commit: Histogram,
    /// Inputs in one commit.
    pub batch_inputs: Histogram,
    /// From entry into the queue until the core thread took it.
    pub queue: Histogram,
    /// From entry into the queue until the answer was released.
    pub answer: Histogram,
    /// One pass of the planner: snapshot, plan and its acceptance.
    pub pass: Histogram,
    /// One pass of the WAL's checkpoint.
    pub checkpoint: Histogram,
    pub commits: AtomicU64,
    pub events: AtomicU64,
    pub refusals: AtomicU64,
    /// Jobs started by plans.
    pub starts: AtomicU64,
    /// Clones of the state that were made for readers.
    pub views: AtomicU64,
    /// Bytes free where the database is, as last seen.
    pub disk_free_bytes: AtomicU64,
    /// Bytes of the write-ahead log, as last seen.
    pub wal_bytes: AtomicU64,
    /// Bytes of the database, and of those that are free in it to be used again, as last seen.
    pub database_bytes: AtomicU64,
    pub database_free_bytes: AtomicU64,
    /// What the look at its pages found.
    pub damage: OnceLock<String>,
    /// What became of jobs.
    pub flow: JobFlow,
}

impl CoreHandle {
    /// Carries out a command. Returns only after its facts are on disk.
    ///
    /// # Errors
    /// The core's refusal, or `Unavailable` when the queue is full, the disk is short or we are stopping.
    pub async fn command(&self, actor: Actor, command: Command) -> Result<Reply, Refusal> {
        let command = self.knowing_the_past(command).await?;
        self.ask(Input::Command { actor, command }, Vec::new())
            .await
    }

    /// Accepts a job. Script, environment and long arguments are hashed here, off the core thread, and written in the
    /// transaction of the job.
    ///
    /// # Errors
    /// As [`Self::command`].
    pub async fn submit(&self, actor: Actor, submission: Submission) -> Result<Reply, Refusal> {
        let Submission {
            mut spec,
            client_key,
            script,
            environment,
            others,
        } = submission;
        let mut blobs = Vec::with_capacity(2);
        spec.launch.script = BlobId::default();
        if !script.is_empty() {
            let blob = make_blob(script.into_bytes()).await;
            spec.launch.script = blob.id();
            blobs.push(blob);
        }
        let environment = launch_texts::packed(environment, &mut spec.launch.argv);
        let blob = make_blob(environment.into_bytes()).await;
        spec.launch.environment = blob.id();
        blobs.push(blob);
        let command = submit_command(spec, others, client_key);
        let command = self.knowing_the_past(command).await?;
        self.ask(Input::Command { actor, command }, blobs).await
    }

    /// Closes a month: its bill is written in the transaction of the close.
    ///
    /// # Errors
    /// As [`Self::command`].
    pub async fn close_bill(
        &self,
        actor: Actor,
        mut change: BillChange,
        text: Vec<u8>,
    ) -> Result<Reply, Refusal> {
        let blob = make_blob(text).await;
        if let BillChange::Close { bill, .. } = &mut change {
            *bill = blob.id();
        }
        let command = Command::Bill { change };
        self.ask(Input::Command { actor, command }, vec![blob])
            .await
    }

    /// With what the database knows of the jobs that the command depends on and that may have left the memory.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn knowing_the_past(&self, command: Command) -> Result<Command, Refusal> {
        let dependency = match &command {
            Command::Submit { spec, .. } => spec.dependency.as_ref(),
            Command::SubmitParts { specs, .. } => {
                specs.first().and_then(|spec| spec.dependency.as_ref())
            }
            Command::Update { change, .. } => change.dependency.as_ref().and_then(Option::as_ref),
            _ => None,
        };
        let targets: &[Target] = if let Command::Requeue { targets, .. } = &command {
            targets
        } else {
            &[]
        };
        if dependency.is_none() && targets.is_empty() {
            return Ok(command);
        }
        let view = self.view().await;
        let of_targets = targets
            .iter()
            .filter_map(|target| dependency_of(&view, target));
        let conditions = dependency
            .into_iter()
            .chain(of_targets)
            .flat_map(|dependency| &dependency.conditions);
        let mut names: Vec<JobRef> = conditions.filter_map(|one| forgotten(&view, one)).collect();
        names.dedup();
        names.truncate(MAX_CONDITIONS);
        if names.is_empty() {
            return Ok(command);
        }
        let past = self.reader().past_jobs(names).await.map_err(|error| {
            let text = format!(
                "the jobs it depends on cannot be looked up: {:#}",
                anyhow::Error::from(error)
            );
            Refusal::unavailable(text)
        })?;
        Ok(Command::Knowing {
            past,
            asked: Box::new(command),
        })
    }

    /// Which partitions are for some groups of users, as of the newest commit.
    pub fn partition_groups(&self) -> Arc<PartitionGroups> {
        let groups = self.shared.partition_groups.read();
        groups.expect("no panic while held").clone()
    }

    /// Hands in a node's report. Waits for room in the queue, so a flood slows only its own connection.
    ///
    /// # Errors
    /// The core's refusal.
    pub async fn node_input(&self, node: NodeId, report: NodeReport) -> Result<Reply, Refusal> {
        let Ok(permit) = self.shared.report_room.clone().acquire_owned().await else {
            return Err(stopping());
        };
        let (reply, answer) = oneshot::channel();
        self.send(CoreMessage::Input(Box::new(QueuedInput {
            input: Input::Node { node, report },
            blobs: Vec::new(),
            reply: Some(reply),
            since: Instant::now(),
            _permit: Some(permit),
        })));
        answer.await.unwrap_or_else(|_| Err(stopping()))
    }

    /// Hands in what a call of one of the site's programs came to.
    ///
    /// # Errors
    /// `Unavailable` as for [`Self::command`].
    pub async fn site_program_ended(&self, end: Input) -> Result<Reply, Refusal> {
        self.ask(end, Vec::new()).await
    }

    /// Puts a configuration in force that was read again.
    ///
    /// # Errors
    /// As [`Self::command`].
    pub async fn reload(&self, config: Arc<ClusterConfig>) -> Result<Reply, Refusal> {
        self.ask(Input::Reload { config }, Vec::new()).await
    }

    /// The state, at least as new as every answer given so far. Without `client_keys`, which grow with
    /// the queue and which no reader needs.
    pub async fn view(&self) -> Arc<State> {
        if let Some(view) = self.shared.published.current() {
            return view;
        }
        let (reply, answer) = oneshot::channel();
        self.send(CoreMessage::View(reply));
        match answer.await {
            Ok(view) => view,
            Err(_) => self.shared.published.last().await, // stopping: the newest there will be
        }
    }

    /// What the core's checker says about the whole state, client keys included.
    ///
    /// # Errors
    /// `Unavailable` when we are stopping.
    pub async fn full_state(&self) -> Result<State, Refusal> {
        let (reply, answer) = oneshot::channel();
        self.send(CoreMessage::FullState(reply));
        answer.await.map(|state| *state).map_err(|_| stopping())
    }

    /// Number of the newest committed change; grows with every batch that changed anything.
    pub fn version(&self) -> u64 {
        self.shared.published.version.load(Ordering::Acquire)
    }

    /// Follows [`Self::version`], for long polls.
    pub fn versions(&self) -> watch::Receiver<u64> {
        self.shared.versions.subscribe()
    }

    /// Waits until the version is above `seen` or the time is up; returns the version then.
    pub async fn wait_changed(&self, seen: u64, timeout: Duration) -> u64 {
        let mut versions = self.versions();
        let newer = versions.wait_for(|version| *version > seen);
        let _ = tokio::time::timeout(timeout, newer).await; // either way: what is there now
        self.version()
    }

    pub fn stats(&self) -> &CoreStats {
        &self.shared.stats
    }

    /// Commands waiting for the core thread now.
    pub fn queue_len(&self) -> usize {
        COMMAND_QUEUE.saturating_sub(self.shared.command_room.available_permits())
    }

    /// Questions to the database about what is no longer in memory.
    pub fn reader(&self) -> &Reader {
        &self.shared.reader
    }

    /// The planner's way in: blocks its thread until the plan is committed.
    ///
    /// # Errors
    /// `Unavailable` when we are stopping.
    pub(crate) fn plan_blocking(&self, plan: Plan) -> Result<Reply, Refusal> {
        let (reply, answer) = oneshot::channel();
        self.send(CoreMessage::Input(Box::new(QueuedInput {
            input: Input::Plan { plan },
            blobs: Vec::new(),
            reply: Some(reply),
            since: Instant::now(),
            _permit: None, // one pass under way: bounded by itself
        })));
        answer.blocking_recv().unwrap_or_else(|_| Err(stopping()))
    }

    /// The planner's view; `None` when we are stopping.
    pub(crate) fn view_blocking(&self) -> Option<Arc<State>> {
        if let Some(view) = self.shared.published.current() {
            return Some(view);
        }
        let (reply, answer) = oneshot::channel();
        self.send(CoreMessage::View(reply));
        answer.blocking_recv().ok()
    }

    /// Asks the core thread to bring the end of a checkpoint home between two batches.
    pub(crate) fn finish_checkpoint(&self) {
        self.send(CoreMessage::FinishCheckpoint);
    }

    /// Ends the core thread after everything that is queued now.
    pub(crate) fn stop(&self) {
        self.send(CoreMessage::Stop);
    }

    async fn ask(&self, input: Input, blobs: Vec<Blob>) -> Result<Reply, Refusal> {
        let Ok(permit) = self.shared.command_room.clone().try_acquire_owned() else {
            self.shared.stats.refusals.fetch_add(1, Ordering::Relaxed);
            return Err(Refusal::unavailable(format!(
                "{COMMAND_QUEUE} requests are waiting already. Try again in a moment"
            )));
        };
        let (reply, answer) = oneshot::channel();
        self.send(CoreMessage::Input(Box::new(QueuedInput {
            input,
            blobs,
            reply: Some(reply),
            since: Instant::now(),
            _permit: Some(permit),
        })));
        answer.await.unwrap_or_else(|_| Err(stopping()))
    }

    /// A message to a thread that has ended is dropped, and with it its reply channel: the asker hears.
    fn send(&self, message: CoreMessage) {
        let _ = self.shared.inputs.send(message);
    }
}

/// What reaches the core thread.
enum CoreMessage {
    Input(Box<QueuedInput>),
    View(oneshot::Sender<Arc<State>>),
    FullState(oneshot::Sender<Box<State>>),
    FinishCheckpoint,
    Stop,
}

struct QueuedInput {
    input: Input,
    blobs: Vec<Blob>,
    reply: Option<oneshot::Sender<Result<Reply, Refusal>>>,
    since: Instant,
    /// Room in the queue, given back when the input is taken.
    _permit: Option<OwnedSemaphorePermit>,
}

/// The newest view and whether it is still true.
struct PublishedView {
    /// Version of the newest committed change.
    version: AtomicU64,
    view: Mutex<Option<(u64, Arc<State>)>>,
}

impl PublishedView {
    fn current(&self) -> Option<Arc<State>> {
        // Version first: a view published after it can only be newer.
        let version = self.version.load(Ordering::Acquire);
        let view = self.view.lock().expect("no panic while held");
        view.as_ref()
            .filter(|(of, _)| *of >= version)
            .map(|(_, state)| state.clone())
    }
    /// Of a core thread that has ended. Without a view it failed, and so the process ends without an answer.
    async fn last(&self) -> Arc<State> {
        let view = self
            .view
            .lock()
            .expect("no panic while held")
            .as_ref()
            .map(|(_, state)| state.clone());
        match view {
            Some(state) => state,
            None => std::future::pending().await,
        }
    }
    /// Gives the view up, so that a change of every record need not copy those it shares.
    fn retire(&self) {
        *self.view.lock().expect("no panic while held") = None;
    }
    fn publish(&self, version: u64, state: State) -> Arc<State> {
        let state = Arc::new(state);
        *self.view.lock().expect("no panic while held") = Some((version, state.clone()));
        state
    }
}

/// The job of a condition, unless it is there and not over: then it stays in memory until it has been over for a while.
fn forgotten(state: &State, condition: &DependencyTerm) -> Option<JobRef> {
    let DependencyTerm::On { kind, job, .. } = condition else {
        return None;
    };
    let live = match state.arrays.get(job.id) {
        // Of an array that is not over, single tasks may be forgotten.
        Some(array) => {
            job.index.is_none() && *kind != DependencyKind::AfterCorr && !array.is_over()
        }
        None => state
            .jobs
            .get(job.id)
            .is_some_and(|job| !job.state.is_final()),
    };
    (!live).then_some(*job)
}

/// The command for a job, or for one of unlike parts.
pub(crate) fn submit_command(
    spec: JobSpec,
    others: Vec<JobSpec>,
    client_key: Option<String>,
) -> Command {
    match others.is_empty() {
        true => Command::Submit {
            spec: Box::new(spec),
            client_key,
        },
        false => Command::SubmitParts {
            specs: std::iter::once(spec).chain(others).collect(),
            client_key,
        },
    }
}

/// Of a job or array as it was submitted.
fn dependency_of<'s>(state: &'s State, target: &Target) -> Option<&'s Dependency> {
    let (Target::Job(id)
    | Target::Part { leader: id, .. }
    | Target::Task { array: id, .. }
    | Target::Tasks { array: id, .. }) = target;
    let array = state.arrays.get(*id).map(|array| &array.spec);
    array
        .or_else(|| state.jobs.get(*id).map(|job| &job.spec))?
        .dependency
        .as_ref()
}

fn stopping() -> Refusal {
    Refusal::unavailable("the controller is stopping. Try again when it is back")
}

async fn make_blob(data: Vec<u8>) -> Blob {
    if data.len() <= HASH_INLINE_BYTES {
        return hash(data);
    }
    tokio::task::spawn_blocking(move || hash(data))
        .await
        .expect("hashing does not panic")
}

fn hash(data: Vec<u8>) -> Blob {
    let digest: [u8; 32] = Sha256::digest(&data).into();
    Blob { sha: digest, data }
}
