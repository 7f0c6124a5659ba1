//! One line of the queue: a job, an array's tasks that are alike, or one of these tasks by itself.
//!
//! Owns what a listing says of each (counts asked or held, times, files); [`crate::http::job::column`] writes it as JSON.

use crate::http::job::rank::{Rank, Ranks, class_word};
use gcore::ctl::{Array, Job, Node, Run, State, fence_words, idle_words, slowest_pull};
use gmodel::array_spec::RangeSet;
use gmodel::config::Partition;
use gmodel::duration::sacct_time;
use gmodel::job::JobSpec;
use gmodel::node::HoldMark;
use gmodel::pattern::{self, PatternContext};
use gmodel::{ExitCode, Instant, JobId, JobState, Reason, ReasonCode, Timestamp, hostlist};
use gwire::api::CheckpointMarkRow;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The state and the moment a listing is made from.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) state: &'a State,
    pub(crate) now: Timestamp,
    /// Host lists of jobs that hold nothing any more, as far as they were looked up.
    pub(crate) past_nodes: Option<&'a BTreeMap<JobId, String>>,
    /// Priorities and places of waiting jobs, as far as they were computed.
    pub(crate) ranks: Option<&'a Ranks>,
}

impl<'a> View<'a> {
    pub(crate) fn new(state: &'a State, now: Timestamp) -> Self {
        Self {
            state,
            now,
            past_nodes: None,
            ranks: None,
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Row<'a> {
    Job(&'a Job),
    /// Tasks without a record of their own, all pending or all cancelled.
    Tasks {
        array: &'a Array,
        alike: TaskGroup,
    },
    Task {
        array: &'a Array,
        position: u32,
        alike: TaskGroup,
    },
}

/// What tasks without a record of their own can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TaskGroup {
    Pending,
    /// Held, or not, unlike the rest of the array: its set of that number.
    HeldSet(usize),
    Cancelled,
    /// Their deadline passed.
    Late,
}

impl TaskGroup {
    /// All that tasks of an array are.
    pub(crate) fn all(array: &Array) -> impl Iterator<Item = Self> + use<> {
        std::iter::once(Self::Pending)
            .chain((0..array.apart.len()).map(Self::HeldSet))
            .chain([Self::Cancelled, Self::Late])
    }
}

/// A row by its ids: what remains of it while an answer is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RowKey {
    Job(JobId),
    Tasks(JobId, TaskGroup),
    Task(JobId, u32, TaskGroup),
}

impl RowKey {
    pub(crate) fn row(self, state: &State) -> Option<Row<'_>> {
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

pub(crate) fn positions(array: &Array, alike: TaskGroup) -> Cow<'_, RangeSet> {
    match alike {
        TaskGroup::Pending => array.together(),
        // An answer that is on its way may be of a set that is no more.
        TaskGroup::HeldSet(at) => array
            .apart
            .get(at)
            .map_or(Cow::Owned(RangeSet::new()), |one| {
                Cow::Borrowed(&one.positions)
            }),
        TaskGroup::Cancelled => array.not_late(),
        TaskGroup::Late => Cow::Borrowed(&array.dropped.late),
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
    pub(crate) fn key(&self) -> RowKey {
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

    pub(crate) fn spec(&self) -> &'a JobSpec {
        match self {
            Self::Job(job) => &job.spec,
            Self::Tasks { array, .. } | Self::Task { array, .. } => &array.spec,
        }
    }

    /// How long its GPUs have done nothing, and what follows.
    pub(crate) fn idle(&self, view: View) -> Option<String> {
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

    pub(crate) fn id(&self) -> u64 {
        match self {
            Self::Job(job) => job.id.0,
            Self::Tasks { array, .. } => array.id.0,
            Self::Task {
                array, position, ..
            } => array.task_id(*position).0,
        }
    }

    pub(crate) fn array_id(&self) -> Option<u64> {
        match self {
            Self::Job(job) => job.task.map(|task| task.array.0),
            Self::Tasks { array, .. } | Self::Task { array, .. } => Some(array.id.0),
        }
    }

    pub(crate) fn array_index(&self) -> Option<u32> {
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
    pub(crate) fn array_tasks(&self) -> Option<String> {
        match self {
            Self::Tasks { array, alike } if positions(array, *alike).len() > 1 => {
                Some(array.tasks.text_of(&positions(array, *alike)))
            }
            _ => None,
        }
    }

    /// `17`, `17+1`, `98_5`, `98_[7-9,12%2]`.
    pub(crate) fn shown_id(&self) -> String {
        if let Some(part) = self.spec().part {
            return part.shown();
        }
        let array = self.array_id().unwrap_or_default();
        match (self.array_index(), self.array_tasks()) {
            (Some(index), _) => format!("{array}_{index}"),
            (None, Some(tasks)) => format!("{array}_[{tasks}]"),
            (None, None) => self.id().to_string(),
        }
    }

    pub(crate) fn state(&self) -> JobState {
        match self {
            Self::Job(job) => job.state,
            Self::Tasks { alike, .. } | Self::Task { alike, .. } => match alike {
                TaskGroup::Pending | TaskGroup::HeldSet(_) => JobState::Pending,
                TaskGroup::Cancelled => JobState::Cancelled,
                TaskGroup::Late => JobState::Deadline,
            },
        }
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.state() == JobState::Pending
    }

    pub(crate) fn holds(&self) -> &'a [HoldMark] {
        match self {
            Self::Job(job) => &job.holds,
            Self::Tasks {
                array,
                alike: TaskGroup::HeldSet(at),
            }
            | Self::Task {
                array,
                alike: TaskGroup::HeldSet(at),
                ..
            } => array.apart.get(*at).map_or(&[], |one| &one.holds),
            Self::Tasks { array, .. } | Self::Task { array, .. } => &array.holds,
        }
    }

    /// Held tasks of an array, others of which are not: the queue knows only those.
    pub(crate) fn is_held_apart(&self) -> bool {
        !self.holds().is_empty()
            && self
                .array()
                .is_some_and(|array| !array.not_held().is_empty())
    }

    /// The pass's reason; before the first pass, what can be told without one.
    pub(crate) fn reason_code(&self, view: View) -> ReasonCode {
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
            return match self.state() {
                JobState::Deadline => ReasonCode::DeadLine,
                _ => ReasonCode::None,
            };
        };
        match job.state {
            JobState::Failed if job.past.started.is_none() => ReasonCode::JobLaunchFailure,
            JobState::Failed if job.past.exit.signal != 0 => ReasonCode::RaisedSignal,
            JobState::Failed => ReasonCode::NonZeroExitCode,
            JobState::Timeout => ReasonCode::TimeLimit,
            JobState::OutOfMemory => ReasonCode::OutOfMemory,
            JobState::NodeFail => ReasonCode::NodeDown,
            JobState::Deadline => ReasonCode::DeadLine,
            JobState::Cancelled => job.reason.code,
            _ => ReasonCode::None,
        }
    }

    pub(crate) fn reason_text(&self, view: View) -> Cow<'a, str> {
        if self.is_pending() {
            return match (self.reason(), self.last_failure()) {
                (reason, Some(failure)) if reason.code == ReasonCode::BeginTime => {
                    format!("{}: {failure}", reason.text).into()
                }
                (Cow::Borrowed(reason), _) => Cow::Borrowed(&reason.text),
                (Cow::Owned(reason), _) => Cow::Owned(reason.text.to_string()),
            };
        }
        let words = |node: &Node| Some(format!("{}: {}", node.name, fence_words(node)?));
        self.lost_node(view.state)
            .and_then(words)
            .or_else(|| self.hung(view.state))
            .unwrap_or_default()
            .into()
    }

    /// How its last run failed, where it is tried again later for that.
    fn last_failure(&self) -> Option<&'a str> {
        let Self::Job(job) = self else { return None };
        let text = job.past.try_after.map(|_| job.past.end_text.as_str());
        text.filter(|text| !text.is_empty())
    }

    /// How far its image is, on the node that is least far.
    pub(crate) fn pull(&self, view: View) -> Option<String> {
        let Self::Job(job) = self else { return None };
        let (node, pull) = slowest_pull(view.state, job.live_run()?)?;
        let node = view.state.nodes.get(node)?;
        Some(format!("{} on {}", pull.progress, node.name))
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

    /// The reason of an array is that of its tasks without a hold, if there are any.
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

    pub(crate) fn nice(&self) -> i32 {
        match self {
            Self::Job(job) => job.nice,
            Self::Tasks { array, .. } | Self::Task { array, .. } => array.nice,
        }
    }

    /// Of a job that runs its run's, which may have been cut to what there was room for.
    pub(crate) fn limit_secs(&self, view: View) -> Option<u32> {
        match self {
            Self::Job(job) => view.state.limit_in_force(job),
            Self::Tasks { array, .. } | Self::Task { array, .. } => array.limit_secs,
        }
    }

    pub(crate) fn submitted(&self) -> Timestamp {
        match self {
            Self::Job(job) => job.submitted,
            Self::Tasks { array, .. } | Self::Task { array, .. } => array.submitted,
        }
    }

    pub(crate) fn eligible(&self) -> Timestamp {
        match self {
            Self::Job(job) => job.eligible,
            Self::Tasks { array, .. } | Self::Task { array, .. } => array.eligible,
        }
    }

    /// From when on it is eligible; not known while it is held or has a dependency.
    pub(crate) fn known_eligible(&self) -> Option<Instant> {
        let waits = match self {
            Self::Job(job) => job.waits.is_some(),
            Self::Tasks { array, .. } | Self::Task { array, .. } => array.waits.is_some(),
        };
        let is_known = self.started().is_some() || (self.holds().is_empty() && !waits);
        is_known.then(|| Instant(self.eligible()))
    }

    pub(crate) fn started(&self) -> Option<Timestamp> {
        match self {
            Self::Job(job) if !self.is_pending() => job.past.started,
            _ => None,
        }
    }

    pub(crate) fn ended(&self) -> Option<Timestamp> {
        match self {
            Self::Job(job) if job.state.is_final() || job.state == JobState::Completing => {
                job.past.ended
            }
            Self::Job(_) => None,
            Self::Tasks { array, .. } | Self::Task { array, .. } => {
                array.ended.filter(|_| !self.is_pending())
            }
        }
    }

    /// Seconds of the present or last run, without those in which it stood still.
    pub(crate) fn elapsed_secs(&self, view: View) -> i64 {
        let stood_still = self
            .run(view)
            .map_or(0, |run| run.suspended_by(view.now) / 1000);
        let all = self.started().map_or(0, |started| {
            self.ended().unwrap_or(view.now).since_secs(started)
        });
        (all - i64::try_from(stood_still).unwrap_or(all)).max(0)
    }

    pub(crate) fn exit(&self) -> ExitCode {
        match self {
            Self::Job(job) => job.past.exit,
            _ => ExitCode::SUCCESS,
        }
    }

    pub(crate) fn end_text(&self) -> &'a str {
        match self {
            Self::Job(job) => &job.past.end_text,
            _ => "",
        }
    }

    pub(crate) fn attempts(&self) -> u32 {
        match self {
            Self::Job(job) => job.attempts,
            _ => 0,
        }
    }

    /// The live run, when there is one.
    pub(crate) fn run(&self, view: View<'a>) -> Option<&'a Run> {
        match self {
            Self::Job(job) => view.state.runs.get(job.live_run()?),
            _ => None,
        }
    }

    /// While it waits in several the first of them.
    pub(crate) fn partition(&self, view: View<'a>) -> Option<&'a Partition> {
        view.state
            .config
            .partitions_of(&self.spec().partition)
            .next()
    }

    /// Place and priority of a waiting job. Tasks of an array have their array's.
    pub(crate) fn rank(&self, view: View) -> Option<Rank> {
        let ranks = view.ranks.filter(|_| self.is_pending())?;
        ranks
            .get(JobId(self.id()))
            .or_else(|| ranks.get(self.array()?.id))
    }

    /// Of a live run; of a waiting job as what it would start. None where there are no quotas.
    pub(crate) fn class(&self, view: View) -> Option<&'static str> {
        let class = match self.run(view) {
            Some(run) => run.class,
            None => self.rank(view).and_then(|rank| rank.class),
        };
        class.and_then(class_word)
    }

    /// What of the dependency is not met, as squeue has it: `afterok:17(unfulfilled)`.
    pub(crate) fn dependency(&self) -> String {
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
        let one = |wait: &gcore::ctl::OpenTerm| {
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

    /// `1@00:30:00`.
    pub(crate) fn switches(&self) -> Option<String> {
        let switches = self.spec().request.switches?;
        let wait = switches
            .wait_secs
            .map(|secs| format!("@{}", sacct_time(u64::from(secs))))
            .unwrap_or_default();
        Some(format!("{}{wait}", switches.most))
    }

    /// The newest checkpoint mark of all its runs.
    pub(crate) fn last_mark(&self) -> Option<CheckpointMarkRow> {
        let Self::Job(job) = self else { return None };
        let mark = job.past.last_mark.as_deref()?;
        Some(CheckpointMarkRow {
            number: mark.number,
            at: Some(Instant(mark.at)),
            note: mark.note.clone(),
        })
    }

    /// When its last run that was preempted ended.
    pub(crate) fn preempted(&self) -> Option<Timestamp> {
        match self {
            Self::Job(job) => job.past.preempted,
            _ => None,
        }
    }

    /// The job that its run gives way to.
    pub(crate) fn preempted_for(&self, view: View) -> Option<String> {
        let job = self.run(view)?.stop.as_ref()?.for_job?;
        Some(
            view.state
                .jobs
                .get(job)
                .map_or_else(|| job.to_string(), Job::shown_id),
        )
    }

    /// The reservation that it names, or that drew its run.
    pub(crate) fn reservation(&self) -> Option<&str> {
        match self {
            Self::Job(job) => gcore::ctl::reservation_of(job),
            _ => self.spec().reservation.as_deref(),
        }
    }

    /// 0 for jobs that are held, as in Slurm.
    pub(crate) fn priority(&self, view: View) -> u64 {
        if self.is_pending() && !self.holds().is_empty() {
            return 0;
        }
        if let Some(rank) = self.rank(view) {
            return u64::try_from(rank.priority).unwrap_or(0);
        }
        // A job keeps the number that it was placed with, as in Slurm.
        let placed = match self {
            Self::Job(job) if !self.is_pending() => job.past.priority,
            _ => None,
        };
        // 0 would say that it is held.
        placed.map_or(1, |placed| u64::try_from(placed).unwrap_or(0))
    }

    /// Where it was, once it holds nothing any more; while it does, its run says so.
    pub(crate) fn is_past(&self, view: View) -> bool {
        !self.is_pending() && self.attempts() > 0 && self.run(view).is_none()
    }

    /// Host list of the run, in its order.
    pub(crate) fn nodelist(&self, view: View) -> String {
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

    /// What befell the GPUs of its last run that is over.
    pub(crate) fn gpu_events(&self) -> &'a [String] {
        match self {
            Self::Job(job) => &job.past.gpu_events,
            _ => &[],
        }
    }

    /// The image of its last run that is over.
    pub(crate) fn image(&self) -> &'a str {
        match self {
            Self::Job(job) => job.past.image.as_deref().unwrap_or_default(),
            _ => "",
        }
    }

    /// What the job runs, for display.
    pub(crate) fn command(&self) -> String {
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

    pub(crate) fn stdout(&self, view: View) -> String {
        let launch = &self.spec().launch;
        match (launch.stdout.as_str(), self.array_id()) {
            ("", None) => self.file(pattern::DEFAULT_OUTPUT, view),
            ("", Some(_)) => self.file(pattern::DEFAULT_ARRAY_OUTPUT, view),
            (pattern, _) => self.file(pattern, view),
        }
    }

    pub(crate) fn stderr(&self, view: View) -> String {
        match self.spec().launch.stderr.as_str() {
            "" => self.stdout(view),
            pattern => self.file(pattern, view),
        }
    }

    pub(crate) fn stdin(&self, view: View) -> String {
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
