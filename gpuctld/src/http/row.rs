//! One line of the queue: a job, an array's tasks that are alike, or one of these tasks by itself.
//!
//! Owns what a listing says of each (counts asked or held, times, files); [`super::column`] writes it as JSON.

use super::ranks::{Rank, Ranks};
use super::standing::class_word;
use gcore::ctl::{Array, Job, Node, Run, State, fence_words, idle_words};
use gmodel::array_spec::RangeSet;
use gmodel::config::Partition;
use gmodel::duration::sacct_time;
use gmodel::gpu_link::weakest;
use gmodel::gpu_request::GpuAmount;
use gmodel::job::{GpuScope, JobSpec, MemRequest};
use gmodel::node::{GpuEntry, HoldMark};
use gmodel::pattern::{self, PatternContext};
use gmodel::run::NodeShare;
use gmodel::{ExitCode, Instant, JobId, JobState, Reason, ReasonCode, Timestamp, hostlist};
use gwire::api::{CheckpointMarkRow, HeldRow};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The state and the moment a listing is made from.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) state: &'a State,
    pub(super) now: Timestamp,
    /// Host lists of jobs that hold nothing any more, as far as they were looked up.
    pub(super) past_nodes: Option<&'a BTreeMap<JobId, String>>,
    /// Priorities and places of waiting jobs, as far as they were computed.
    pub(super) ranks: Option<&'a Ranks>,
}

impl<'a> View<'a> {
    pub(super) fn new(state: &'a State, now: Timestamp) -> Self {
        Self {
            state,
            now,
            past_nodes: None,
            ranks: None,
        }
    }
}

#[derive(Clone, Copy)]
pub(super) enum Row<'a> {
    Job(&'a Job),
    /// Tasks without a record of their own, all pending or all cancelled.
    Tasks {
        array: &'a Array,
        alike: Alike,
    },
    Task {
        array: &'a Array,
        position: u32,
        alike: Alike,
    },
}

/// What tasks without a record of their own can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Alike {
    Pending,
    /// Held, or not, unlike the rest of the array: its set of that number.
    Apart(usize),
    Cancelled,
}

impl Alike {
    /// All that tasks of an array are.
    pub(super) fn all(array: &Array) -> impl Iterator<Item = Self> + use<> {
        std::iter::once(Self::Pending)
            .chain((0..array.apart.len()).map(Self::Apart))
            .chain([Self::Cancelled])
    }
}

/// A row by its ids: what remains of it while an answer is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RowKey {
    Job(JobId),
    Tasks(JobId, Alike),
    Task(JobId, u32, Alike),
}

impl RowKey {
    pub(super) fn row(self, state: &State) -> Option<Row<'_>> {
        match self {
            Self::Job(id) => state.jobs.get(id).map(Row::Job),
            Self::Tasks(id, alike) => state
                .arrays
                .get(id)
                .map(|array| Row::Tasks { array, alike }),
            Self::Task(id, position, alike) => state.arrays.get(id).map(|array| Row::Task {
                array,
                position,
                alike,
            }),
        }
    }
}

pub(super) fn positions(array: &Array, alike: Alike) -> Cow<'_, RangeSet> {
    match alike {
        Alike::Pending => array.together(),
        // An answer that is on its way may be of a set that is no more.
        Alike::Apart(at) => array
            .apart
            .get(at)
            .map_or(Cow::Owned(RangeSet::new()), |one| {
                Cow::Borrowed(&one.positions)
            }),
        Alike::Cancelled => Cow::Borrowed(&array.cancelled),
    }
}

/// Whether all of a part are among them; not of none.
fn covers(all: &RangeSet, part: &RangeSet) -> bool {
    let mut ranges = all.runs().peekable();
    !part.is_empty()
        && part.runs().all(|(first, last)| {
            while ranges.next_if(|(_, end)| *end < first).is_some() {}
            ranges
                .peek()
                .is_some_and(|(start, end)| *start <= first && last <= *end)
        })
}

impl<'a> Row<'a> {
    pub(super) fn key(&self) -> RowKey {
        match *self {
            Self::Job(job) => RowKey::Job(job.id),
            Self::Tasks { array, alike } => RowKey::Tasks(array.id, alike),
            Self::Task {
                array,
                position,
                alike,
            } => RowKey::Task(array.id, position, alike),
        }
    }

    pub(super) fn spec(&self) -> &'a JobSpec {
        match self {
            Self::Job(job) => &job.spec,
            Self::Tasks { array, .. } | Self::Task { array, .. } => &array.spec,
        }
    }

    /// How long its GPUs have done nothing, and what follows.
    pub(super) fn idle(&self, view: View) -> Option<String> {
        match self {
            Self::Job(job) => idle_words(view.state, job),
            Self::Tasks { .. } | Self::Task { .. } => None,
        }
    }

    fn array(&self) -> Option<&'a Array> {
        match self {
            Self::Job(_) => None,
            Self::Tasks { array, .. } | Self::Task { array, .. } => Some(array),
        }
    }

    pub(super) fn id(&self) -> u64 {
        match self {
            Self::Job(job) => job.id.0,
            Self::Tasks { array, .. } => array.id.0,
            Self::Task {
                array, position, ..
            } => array.task_id(*position).0,
        }
    }

    pub(super) fn array_id(&self) -> Option<u64> {
        match self {
            Self::Job(job) => job.task.map(|task| task.array.0),
            Self::Tasks { array, .. } | Self::Task { array, .. } => Some(array.id.0),
        }
    }

    pub(super) fn array_index(&self) -> Option<u32> {
        match self {
            Self::Job(job) => job.task.map(|task| task.index),
            Self::Task {
                array, position, ..
            } => array.tasks.nth(*position),
            Self::Tasks { array, alike } => {
                let set = positions(array, *alike);
                if set.len() == 1 {
                    array.tasks.nth(set.first()?)
                } else {
                    None
                }
            }
        }
    }

    /// The indices a row stands for, `7-9,12%2`, when there are several.
    pub(super) fn array_tasks(&self) -> Option<String> {
        match self {
            Self::Tasks { array, alike } if positions(array, *alike).len() > 1 => {
                Some(array.tasks.text_of(&positions(array, *alike)))
            }
            _ => None,
        }
    }

    /// `17`, `98_5`, `98_[7-9,12%2]`.
    pub(super) fn shown_id(&self) -> String {
        let array = self.array_id().unwrap_or_default();
        match (self.array_index(), self.array_tasks()) {
            (Some(index), _) => format!("{array}_{index}"),
            (None, Some(tasks)) => format!("{array}_[{tasks}]"),
            (None, None) => self.id().to_string(),
        }
    }

    pub(super) fn state(&self) -> JobState {
        match self {
            Self::Job(job) => job.state,
            Self::Tasks { alike, .. } | Self::Task { alike, .. } => match alike {
                Alike::Pending | Alike::Apart(_) => JobState::Pending,
                Alike::Cancelled => JobState::Cancelled,
            },
        }
    }

    pub(super) fn is_pending(&self) -> bool {
        self.state() == JobState::Pending
    }

    pub(super) fn holds(&self) -> &'a [HoldMark] {
        match self {
            Self::Job(job) => &job.holds,
            Self::Tasks {
                array,
                alike: Alike::Apart(at),
            }
            | Self::Task {
                array,
                alike: Alike::Apart(at),
                ..
            } => array.apart.get(*at).map_or(&[], |one| &one.holds),
            Self::Tasks { array, .. } | Self::Task { array, .. } => &array.holds,
        }
    }

    /// Held tasks of an array, others of which are not: the queue knows only those.
    pub(super) fn is_held_apart(&self) -> bool {
        !self.holds().is_empty()
            && self
                .array()
                .is_some_and(|array| !array.not_held().is_empty())
    }

    /// The pass's reason; before the first pass, what can be told without one.
    pub(super) fn reason_code(&self, view: View) -> ReasonCode {
        if !self.is_pending() {
            return if self.lost_node(view.state).is_some() {
                ReasonCode::NodeDown
            } else {
                self.end_reason()
            };
        }
        match (self.reason().code, self.holds().first()) {
            (ReasonCode::None, Some(hold)) if hold.owner.starts_with("user:") => {
                ReasonCode::JobHeldUser
            }
            (ReasonCode::None, Some(_)) => ReasonCode::JobHeldAdmin,
            (ReasonCode::None, None) if self.eligible() > view.now => ReasonCode::BeginTime,
            (code, _) => code,
        }
    }

    /// How it ended, where that is not how it should.
    fn end_reason(&self) -> ReasonCode {
        let Self::Job(job) = self else {
            return ReasonCode::None;
        };
        match job.state {
            JobState::Failed if job.started.is_none() => ReasonCode::JobLaunchFailure,
            JobState::Failed if job.exit.signal != 0 => ReasonCode::RaisedSignal,
            JobState::Failed => ReasonCode::NonZeroExitCode,
            JobState::Timeout => ReasonCode::TimeLimit,
            JobState::OutOfMemory => ReasonCode::OutOfMemory,
            JobState::NodeFail => ReasonCode::NodeDown,
            JobState::Cancelled => job.reason.code,
            _ => ReasonCode::None,
        }
    }

    pub(super) fn reason_text(&self, view: View) -> Cow<'a, str> {
        if self.is_pending() {
            return match self.reason() {
                Cow::Borrowed(reason) => Cow::Borrowed(&reason.text),
                Cow::Owned(reason) => Cow::Owned(reason.text.to_string()),
            };
        }
        let words = |node: &Node| Some(format!("{}: {}", node.name, fence_words(node)?));
        self.lost_node(view.state)
            .and_then(words)
            .or_else(|| self.hung(view.state))
            .unwrap_or_default()
            .into()
    }

    /// Which of its processes do not die, on the first node that says so.
    fn hung(&self, state: &State) -> Option<String> {
        let Self::Job(job) = self else { return None };
        let run = job.live_run()?;
        let nodes = state
            .runs
            .get(run)?
            .members
            .iter()
            .filter(|member| !member.is_settled())
            .filter_map(|member| state.nodes.get(member.node));
        nodes.into_iter().find_map(|node| {
            let hung = node
                .inventory
                .hung
                .iter()
                .find(|hung| hung.run == Some(run))?;
            Some(format!("{}: {}", node.name, hung.text))
        })
    }

    /// The node that must be off before the job goes on elsewhere.
    fn lost_node<'s>(&self, state: &'s State) -> Option<&'s Node> {
        let Self::Job(job) = self else { return None };
        let run = state.runs.get(job.live_run()?)?;
        run.members
            .iter()
            .filter(|member| !member.is_settled())
            .filter_map(|member| state.nodes.get(member.node))
            .find(|node| node.fencing.is_some())
    }

    /// That of an array is of those of its tasks that nobody holds, if there are any.
    fn reason(&self) -> Cow<'a, Reason> {
        match (self, self.holds().first()) {
            (Self::Job(job), _) => Cow::Borrowed(&job.reason),
            (Self::Tasks { .. } | Self::Task { .. }, Some(hold)) => {
                Cow::Owned(gsched::held_by(&hold.owner))
            }
            (Self::Tasks { array, .. } | Self::Task { array, .. }, None) => {
                Cow::Borrowed(&array.reason)
            }
        }
    }

    pub(super) fn nice(&self) -> i32 {
        match self {
            Self::Job(job) => job.nice,
            Self::Tasks { array, .. } | Self::Task { array, .. } => array.nice,
        }
    }

    /// Of a job that runs its run's, which may have been cut to what there was room for.
    pub(super) fn limit_secs(&self, view: View) -> Option<u32> {
        match self {
            Self::Job(job) => view.state.limit_in_force(job),
            Self::Tasks { array, .. } | Self::Task { array, .. } => array.limit_secs,
        }
    }

    pub(super) fn submitted(&self) -> Timestamp {
        match self {
            Self::Job(job) => job.submitted,
            Self::Tasks { array, .. } | Self::Task { array, .. } => array.submitted,
        }
    }

    pub(super) fn eligible(&self) -> Timestamp {
        match self {
            Self::Job(job) => job.eligible,
            Self::Tasks { array, .. } | Self::Task { array, .. } => array.eligible,
        }
    }

    /// From when on it stands in line; nobody knows that of one that is held or waits for other jobs.
    pub(super) fn known_eligible(&self) -> Option<Instant> {
        let waits = match self {
            Self::Job(job) => job.waits.is_some(),
            Self::Tasks { array, .. } | Self::Task { array, .. } => array.waits.is_some(),
        };
        let is_known = self.started().is_some() || (self.holds().is_empty() && !waits);
        is_known.then(|| Instant(self.eligible()))
    }

    pub(super) fn started(&self) -> Option<Timestamp> {
        match self {
            Self::Job(job) if !self.is_pending() => job.started,
            _ => None,
        }
    }

    pub(super) fn ended(&self) -> Option<Timestamp> {
        match self {
            Self::Job(job) if job.state.is_final() || job.state == JobState::Completing => {
                job.ended
            }
            Self::Job(_) => None,
            Self::Tasks { array, .. } | Self::Task { array, .. } => {
                array.ended.filter(|_| !self.is_pending())
            }
        }
    }

    /// Seconds of the present or last run, without those in which it stood still.
    pub(super) fn elapsed_secs(&self, view: View) -> i64 {
        let stood_still = self
            .run(view)
            .map_or(0, |run| run.suspended_by(view.now) / 1000);
        let all = self.started().map_or(0, |started| {
            self.ended().unwrap_or(view.now).since_secs(started)
        });
        (all - i64::try_from(stood_still).unwrap_or(all)).max(0)
    }

    pub(super) fn exit(&self) -> ExitCode {
        match self {
            Self::Job(job) => job.exit,
            _ => ExitCode::SUCCESS,
        }
    }

    pub(super) fn end_text(&self) -> &'a str {
        match self {
            Self::Job(job) => &job.end_text,
            _ => "",
        }
    }

    pub(super) fn attempts(&self) -> u32 {
        match self {
            Self::Job(job) => job.attempts,
            _ => 0,
        }
    }

    /// The live run, when there is one.
    pub(super) fn run(&self, view: View<'a>) -> Option<&'a Run> {
        match self {
            Self::Job(job) => view.state.runs.get(job.live_run()?),
            _ => None,
        }
    }

    /// While it waits in several the first of them.
    fn partition(&self, view: View<'a>) -> Option<&'a Partition> {
        view.state
            .config
            .partitions_of(&self.spec().partition)
            .next()
    }

    /// Place and priority of a waiting job. Tasks of an array have their array's.
    pub(super) fn rank(&self, view: View) -> Option<Rank> {
        let ranks = view.ranks.filter(|_| self.is_pending())?;
        ranks
            .get(JobId(self.id()))
            .or_else(|| ranks.get(self.array()?.id))
    }

    /// Of a live run; of a waiting job as what it would start. None where there are no quotas.
    pub(super) fn class(&self, view: View) -> Option<&'static str> {
        let class = match self.run(view) {
            Some(run) => run.class,
            None => self.rank(view).and_then(|rank| rank.class),
        };
        class.and_then(class_word)
    }

    /// What of the dependency is not met, as squeue has it: `afterok:17(unfulfilled)`.
    pub(super) fn dependency(&self) -> String {
        let waits = match self {
            Self::Job(job) => job.waits.as_deref(),
            Self::Tasks { array, .. } | Self::Task { array, .. } => array.waits.as_deref(),
        };
        let Some(waits) = waits.filter(|_| self.is_pending()) else {
            return String::new();
        };
        // An array may wait task by task.
        let all_failed = |failed: &RangeSet| match self {
            Self::Job(_) => false,
            Self::Task { position, .. } => failed.contains(*position),
            Self::Tasks { array, alike } => covers(failed, &positions(array, *alike)),
        };
        let one = |wait: &gcore::ctl::Wait| {
            let fate = if wait.never.is_some() || all_failed(&wait.failed) {
                "failed"
            } else {
                "unfulfilled"
            };
            format!("{}({fate})", wait.condition)
        };
        waits
            .on
            .iter()
            .map(one)
            .collect::<Vec<_>>()
            .join(if waits.any { "?" } else { "," })
    }

    /// `matlab:2,ansys:1`.
    pub(super) fn licences(&self) -> String {
        let parts = self
            .spec()
            .licences
            .iter()
            .map(|(name, count)| format!("{name}:{count}"));
        parts.collect::<Vec<_>>().join(",")
    }

    /// `1@00:30:00`.
    pub(super) fn switches(&self) -> Option<String> {
        let switches = self.spec().request.switches?;
        let wait = switches
            .wait_secs
            .map(|secs| format!("@{}", sacct_time(u64::from(secs))))
            .unwrap_or_default();
        Some(format!("{}{wait}", switches.most))
    }

    /// The newest checkpoint mark of all its runs.
    pub(super) fn last_mark(&self) -> Option<CheckpointMarkRow> {
        let Self::Job(job) = self else { return None };
        let mark = job.last_mark.as_deref()?;
        Some(CheckpointMarkRow {
            number: mark.number,
            at: Some(Instant(mark.at)),
            note: mark.note.clone(),
        })
    }

    /// When its last run that was preempted ended.
    pub(super) fn preempted(&self) -> Option<Timestamp> {
        match self {
            Self::Job(job) => job.preempted,
            _ => None,
        }
    }

    /// The job that its run gives way to.
    pub(super) fn preempted_for(&self, view: View) -> Option<String> {
        let job = self.run(view)?.stop.as_ref()?.for_job?;
        Some(
            view.state
                .jobs
                .get(job)
                .map_or_else(|| job.to_string(), Job::shown_id),
        )
    }

    /// The reservation that it names, or that drew its run.
    pub(super) fn reservation(&self) -> Option<&str> {
        match self {
            Self::Job(job) => gcore::ctl::reservation_of(job),
            _ => self.spec().reservation.as_deref(),
        }
    }

    /// 0 for jobs that are held, as in Slurm.
    pub(super) fn priority(&self, view: View) -> u64 {
        if self.is_pending() && !self.holds().is_empty() {
            return 0;
        }
        if let Some(rank) = self.rank(view) {
            return u64::try_from(rank.priority).unwrap_or(0);
        }
        // A job keeps the number that it was placed with, as in Slurm.
        let placed = match self {
            Self::Job(job) if !self.is_pending() => job.priority,
            _ => None,
        };
        // 0 would say that it is held.
        placed.map_or(1, |placed| u64::try_from(placed).unwrap_or(0))
    }

    /// Nodes held, or asked for.
    pub(super) fn nodes(&self, view: View) -> u32 {
        match self.run(view) {
            Some(run) => run.allocation.len() as u32,
            None => {
                let request = &self.spec().request;
                let named = request
                    .nodelist
                    .as_ref()
                    .map_or(0, |list| list.len() as u32);
                request.nodes_min.max(named).max(1)
            }
        }
    }

    fn tasks_asked(&self, view: View) -> u32 {
        let request = &self.spec().request;
        let nodes = self.nodes(view);
        match request.ntasks_per_node {
            Some(per_node) if request.ntasks <= 1 => per_node.saturating_mul(nodes),
            _ => request.ntasks.max(nodes),
        }
    }

    pub(super) fn ntasks(&self, view: View) -> u32 {
        match self.run(view) {
            Some(run) => run.allocation.iter().map(|share| share.tasks).sum(),
            None => self.tasks_asked(view),
        }
    }

    /// CPUs held, or asked for on all nodes.
    pub(super) fn cpus(&self, view: View) -> u32 {
        if let Some(run) = self.run(view) {
            return run.allocation.iter().map(|share| share.cpus).sum();
        }
        let request = &self.spec().request;
        let tasks = self.tasks_asked(view);
        let by_task = request.cpus_per_task.map(|cpus| cpus.saturating_mul(tasks));
        let usual = self
            .partition(view)
            .and_then(|p| p.cpus_per_gpu)
            .filter(|_| by_task.is_none());
        let gpus = self.gpu_milli(view).div_ceil(1000) as u32;
        let by_gpu = request
            .cpus_per_gpu
            .or(usual)
            .map_or(0, |cpus| cpus.saturating_mul(gpus));
        by_task.unwrap_or(tasks).max(by_gpu).max(1)
    }

    /// Thousandths of GPUs held, or asked for on all nodes.
    pub(super) fn gpu_milli(&self, view: View) -> u64 {
        if let Some(run) = self.run(view) {
            return run.allocation.iter().map(|share| share.gpus.milli()).sum();
        }
        let request = &self.spec().request;
        let Some(first) = request.gpus.as_ref().and_then(|ask| ask.first()) else {
            return 0;
        };
        let each = match &first.amount {
            GpuAmount::Whole(count) => u64::from(*count) * 1000,
            GpuAmount::Mig { profile, count } => {
                u64::from(*count) * u64::from(gmodel::mig::least_milli(profile))
            }
            GpuAmount::Share { milli } => u64::from(*milli),
        };
        each * match request.gpu_scope {
            GpuScope::Job => 1,
            GpuScope::Node => u64::from(self.nodes(view)),
            GpuScope::Task => u64::from(self.tasks_asked(view)),
        }
    }

    /// The memory that was asked for, or is given by the partition.
    fn mem_ask(&self, view: View) -> MemRequest {
        let request = &self.spec().request;
        self.partition(view).map_or(request.mem, |partition| {
            partition.mem_ask(request.mem, request.has_gpus())
        })
    }

    /// What its first node gave a run without a request of its own.
    fn mem_given(&self, view: View<'a>) -> Option<u64> {
        let share = self.run(view)?.allocation.first()?;
        self.spec()
            .request
            .mem
            .is_default()
            .then_some(share.mem_bytes)
    }

    /// As `squeue %m`: the request as it was made; of a run without one, what its first node gave. `None` while
    /// nobody can say.
    pub(super) fn mem_bytes(&self, view: View<'a>) -> Option<u64> {
        self.mem_given(view).or(match self.mem_ask(view) {
            MemRequest::PerNode(bytes) | MemRequest::PerCpu(bytes) | MemRequest::PerGpu(bytes) => {
                Some(bytes)
            }
            MemRequest::Default => None,
        })
    }

    /// Memory held, or asked for, on all nodes; 0 of a request that leaves it to the node.
    pub(super) fn mem_total_bytes(&self, view: View) -> u64 {
        if let Some(run) = self.run(view) {
            return run.allocation.iter().map(|share| share.mem_bytes).sum();
        }
        match self.mem_ask(view) {
            MemRequest::PerNode(bytes) => bytes.saturating_mul(self.nodes(view).into()),
            MemRequest::PerCpu(bytes) => bytes.saturating_mul(self.cpus(view).into()),
            MemRequest::PerGpu(bytes) => bytes.saturating_mul(self.gpu_milli(view).div_ceil(1000)),
            MemRequest::Default => 0,
        }
    }

    /// What one [`Self::mem_bytes`] is for.
    pub(super) fn mem_per(&self, view: View<'a>) -> &'static str {
        match self.mem_ask(view) {
            _ if self.mem_given(view).is_some() => "node",
            MemRequest::PerCpu(_) => "cpu",
            MemRequest::PerGpu(_) => "gpu",
            MemRequest::PerNode(_) | MemRequest::Default => "node",
        }
    }

    /// Where it was, once it holds nothing any more; while it does, its run says so.
    pub(super) fn is_past(&self, view: View) -> bool {
        !self.is_pending() && self.attempts() > 0 && self.run(view).is_none()
    }

    /// Host list of the run, in its order.
    pub(super) fn nodelist(&self, view: View) -> String {
        let Some(run) = self.run(view) else {
            let past = view.past_nodes.filter(|_| self.is_past(view));
            return past
                .and_then(|nodes| nodes.get(&JobId(self.id())))
                .cloned()
                .unwrap_or_default();
        };
        let names = run
            .allocation
            .iter()
            .filter_map(|share| view.state.nodes.get(share.node));
        hostlist::compress(names.map(|node| node.name.as_str()))
    }

    /// Held GPUs by node and type: `node1:h100:0-3`, by the index that nvidia-smi shows; slices by GPU and first memory slice:
    /// `node1:a100:2g.20gb:0.4`.
    pub(super) fn gpus_held(&self, view: View) -> Vec<String> {
        let Some(run) = self.run(view) else {
            return Vec::new();
        };
        let mut texts = Vec::new();
        for share in &run.allocation {
            let Some(node) = view.state.nodes.get(share.node) else {
                continue;
            };
            let mut held: Vec<(&str, u32)> = share
                .gpus
                .slots()
                .filter_map(|slot| node.gpus.iter().find(|gpu| gpu.slot == slot))
                .filter(|gpu| gpu.info.slice.is_none())
                .map(|gpu| (gpu.info.gpu_type.as_str(), gpu.info.index))
                .collect();
            held.sort_unstable();
            for of_type in held.chunk_by(|a, b| a.0 == b.0) {
                let indices: RangeSet = of_type.iter().map(|(_, index)| *index).collect();
                texts.push(format!("{}:{}:{indices}", node.name, of_type[0].0));
            }
            let slices = share
                .gpus
                .slots()
                .filter_map(|slot| node.gpus.get(usize::from(slot.0)));
            let mut by_kind: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for gpu in slices {
                if let Some(slice) = &gpu.info.slice {
                    by_kind
                        .entry(gpu.info.kind())
                        .or_default()
                        .push(format!("{}.{}", gpu.info.index, slice.placement));
                }
            }
            texts.extend(
                by_kind
                    .iter()
                    .map(|(kind, places)| format!("{}:{kind}:{}", node.name, places.join(","))),
            );
        }
        texts
    }

    /// CPUs and memory by node.
    pub(super) fn held(&self, view: View) -> Vec<HeldRow> {
        let shares = self.run(view).into_iter().flat_map(|run| &run.allocation);
        let of_share = |share: &NodeShare| {
            let node = view.state.nodes.get(share.node)?;
            Some(HeldRow {
                node: node.name.clone(),
                cpus: share.cpus,
                mem_bytes: share.mem_bytes,
            })
        };
        shares.filter_map(of_share).collect()
    }

    /// The GPUs and slices held, by UUID: `node1:GPU-...`. An index may mean another one tomorrow.
    pub(super) fn gpu_uuids(&self, view: View) -> Vec<String> {
        let shares = self.run(view).into_iter().flat_map(|run| &run.allocation);
        let of_share = |share: &NodeShare| {
            let node = view.state.nodes.get(share.node)?;
            let gpus = share
                .gpus
                .slots()
                .filter_map(|slot| node.gpus.get(usize::from(slot.0)));
            Some(
                gpus.map(|gpu| format!("{}:{}", node.name, gpu.info.uuid))
                    .collect::<Vec<_>>(),
            )
        };
        shares.filter_map(of_share).flatten().collect()
    }

    /// What befell the GPUs of its last run that is over.
    pub(super) fn gpu_events(&self) -> &'a [String] {
        match self {
            Self::Job(job) => &job.gpu_events,
            _ => &[],
        }
    }

    /// How the GPUs held of each node are joined, several whole ones: `node1:NV18`.
    pub(super) fn gpu_links(&self, view: View) -> Vec<String> {
        let shares = self.run(view).into_iter().flat_map(|run| &run.allocation);
        let of_share = |share: &NodeShare| {
            let node = view.state.nodes.get(share.node)?;
            let held: Vec<&GpuEntry> = share
                .gpus
                .slots()
                .filter_map(|slot| node.gpus.get(usize::from(slot.0)))
                .collect();
            let whole = held.iter().filter(|gpu| gpu.info.slice.is_none());
            let link = weakest(whole.map(|gpu| (gpu.info.minor, &gpu.info.links)))?;
            Some(format!("{}:{link}", node.name))
        };
        shares.filter_map(of_share).collect()
    }

    /// What the job runs, for display.
    pub(super) fn command(&self) -> String {
        let launch = &self.spec().launch;
        if !launch.command.is_empty() {
            return launch.command.clone();
        }
        let mut text = String::new();
        for word in &launch.argv {
            let blank = if text.is_empty() { "" } else { " " };
            let _ = write!(text, "{blank}{word}"); // to a String: cannot fail
            if text.len() > 4096 {
                break;
            }
        }
        text
    }

    pub(super) fn stdout(&self, view: View) -> String {
        let launch = &self.spec().launch;
        match (launch.stdout.as_str(), self.array_id()) {
            ("", None) => self.file(pattern::DEFAULT_OUTPUT, view),
            ("", Some(_)) => self.file(pattern::DEFAULT_ARRAY_OUTPUT, view),
            (pattern, _) => self.file(pattern, view),
        }
    }

    pub(super) fn stderr(&self, view: View) -> String {
        match self.spec().launch.stderr.as_str() {
            "" => self.stdout(view),
            pattern => self.file(pattern, view),
        }
    }

    pub(super) fn stdin(&self, view: View) -> String {
        match self.spec().launch.stdin.as_str() {
            "" => "/dev/null".to_owned(),
            pattern => self.file(pattern, view),
        }
    }

    /// A pattern as a path; left as it is where a row stands for several tasks.
    fn file(&self, pattern: &str, view: View) -> String {
        let spec = self.spec();
        let index = self.array_index();
        let name = if self.array().is_some() && index.is_none() {
            pattern.to_owned()
        } else {
            let batch_node = self
                .run(view)
                .and_then(|run| view.state.nodes.get(run.allocation.first()?.node));
            let context = PatternContext {
                job_id: self.id(),
                array: self.array_id().zip(index),
                job_name: &spec.name,
                user_name: &spec.user.name,
                node_name: batch_node.map_or("%N", |node| &node.name),
                node_index: 0,
                step: None,
                task: 0,
            };
            pattern::expand(pattern, &context).unwrap_or_else(|_| pattern.to_owned())
        };
        if name.starts_with('/') {
            name
        } else {
            format!("{}/{name}", spec.launch.work_dir.trim_end_matches('/'))
        }
    }
}
