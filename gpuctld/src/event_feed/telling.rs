//! What is public of a stored event. One of ours is told as one event, as two, or as none; the record itself is never given out.

use super::cursor::Cursor;
use super::page::{Audience, ToldEvent};
use crate::store::reader::{ArrayFacts, EventLookup, JobFacts, ReadResult, StoredEvent};
use gcore::ctl::event::GpuNoteKind;
use gcore::ctl::state::{Outcome, Stop};
use gcore::ctl::{Event, PolicyChange};
use gmodel::array_spec::RangeSet;
use gmodel::hostlist;
use gmodel::node::{HoldMark, Link};
use gmodel::run::{NodeShare, StopCause};
use gmodel::{Instant, JobChange, JobId, NodeId, ReasonCode, RunId, Timestamp};
use gwire::api::{EventJob, EventKind, EventRow, SCHEMA};

/// The stored kinds of which any is told, as SQL has them. A test compares it with [`tell`].
pub const TOLD_KINDS: &str = "'job_submitted', 'job_held', 'array_held', 'tasks_held', 'job_released', 'array_released', 'tasks_released', \
    'job_updated', 'array_updated', 'job_cancelled', 'tasks_cancelled', 'job_requeued', 'tasks_requeued', 'run_placed', 'run_adopted', \
    'run_suspended', 'run_resumed', 'run_stopping', 'run_ended', 'run_settled', 'requeue_dropped', 'node_joined', 'node_removed', 'node_hello', \
    'node_link_changed', 'node_drained', 'node_resumed', 'node_fenced', 'gpu_noted', 'policy_changed', 'configured', 'restored'";

/// What an event is about.
enum Subject {
    Job(JobId),
    Array(JobId, Option<RangeSet>),
    Node(NodeId),
    Cluster,
    /// As `Cluster`, for operators.
    Site,
}

/// What is said of it; the subject is added.
struct Saying {
    kind: EventKind,
    subject: Subject,
    at: Timestamp,
    row: EventRow,
    /// An array may be over by it.
    may_end_array: bool,
    /// Only that is told of it.
    is_silent: bool,
}

impl Saying {
    fn new(kind: EventKind, subject: Subject, at: Timestamp) -> Self {
        Self {
            kind,
            subject,
            at,
            row: EventRow::default(),
            may_end_array: false,
            is_silent: false,
        }
    }

    fn by(mut self, by: &str) -> Self {
        by.clone_into(&mut self.row.by);
        self
    }

    fn text(mut self, text: &str) -> Self {
        text.clone_into(&mut self.row.text);
        self
    }

    fn reason(mut self, reason: impl ToString) -> Self {
        self.row.reason = reason.to_string();
        self
    }

    fn ending(mut self) -> Self {
        self.may_end_array = true;
        self
    }
}

/// What readers are told of an event, the second at most about its array.
///
/// # Errors
/// The database does not answer, or has what this release cannot read.
pub fn tell(
    stored: &StoredEvent,
    incarnation: u64,
    lookup: &EventLookup<'_>,
) -> ReadResult<Vec<ToldEvent>> {
    let saying = match stored.kind.as_str() {
        "job_submitted" => submitted(stored, lookup)?,
        "configured" => Some(Saying::new(
            EventKind::ClusterConfigured,
            Subject::Site,
            stored.at,
        )),
        // What another release wrote and this one does not know is passed over.
        _ => match serde_json::from_slice(&stored.doc) {
            Ok(event) => of_event(&event, stored.at, lookup)?,
            Err(_) => None,
        },
    };
    let ended_array = match &saying {
        Some(saying) if saying.may_end_array => ended_array(&saying.subject, saying.at, lookup)?,
        _ => None,
    };
    let mut told = Vec::new();
    if let Some(saying) = saying.filter(|saying| !saying.is_silent) {
        told.push(finish(saying, lookup)?);
    }
    if let Some((array, at)) = ended_array {
        let mut saying = Saying::new(EventKind::ArrayEnded, Subject::Array(array, None), at);
        saying.row.run.states = lookup.task_states(array)?;
        told.push(finish(saying, lookup)?);
    }
    let count = told.len();
    for (place, event) in told.iter_mut().enumerate() {
        let part = if place + 1 == count {
            u8::MAX
        } else {
            place as u8
        };
        event.at = Cursor {
            seq: stored.seq,
            part,
        };
        event.row.id = event.at.id(incarnation);
        event.row.seq = stored.seq;
    }
    Ok(told)
}

/// The request is not in the history: whether it was an array, the rows say.
fn submitted(stored: &StoredEvent, lookup: &EventLookup<'_>) -> ReadResult<Option<Saying>> {
    let Some(id) = stored.job else {
        return Ok(None);
    };
    let subject = match lookup.array(id)? {
        Some(_) => Subject::Array(id, None),
        None => Subject::Job(id),
    };
    Ok(Some(Saying::new(
        EventKind::JobSubmitted,
        subject,
        stored.at,
    )))
}

fn of_event(
    event: &Event,
    stored: Timestamp,
    lookup: &EventLookup<'_>,
) -> ReadResult<Option<Saying>> {
    Ok(match event {
        Event::RunPlaced {
            run,
            allocation,
            at,
            partition,
            ..
        } => {
            let saying = Saying::new(EventKind::JobStarted, Subject::Job(run.job), *at);
            Some(placed(
                saying,
                *run,
                allocation,
                partition.as_deref(),
                lookup,
            )?)
        }
        Event::RunAdopted { run, share, at, .. } => {
            let saying = Saying::new(EventKind::JobAdopted, Subject::Job(run.job), *at);
            Some(placed(
                saying,
                *run,
                std::slice::from_ref(share),
                None,
                lookup,
            )?)
        }
        _ => of_queue(event, stored)
            .or_else(|| of_run(event))
            .or_else(|| of_node(event))
            .or_else(|| of_cluster(event)),
    })
}

fn placed(
    mut saying: Saying,
    run: RunId,
    allocation: &[NodeShare],
    partition: Option<&str>,
    lookup: &EventLookup<'_>,
) -> ReadResult<Saying> {
    let names: ReadResult<Vec<_>> = allocation
        .iter()
        .map(|share| lookup.node(share.node))
        .collect();
    let milli: u64 = allocation.iter().map(|share| share.gpus.milli()).sum();
    let row = &mut saying.row;
    row.run.attempt = Some(run.attempt);
    row.run.nodelist = hostlist::compress(names?);
    row.run.gpus = Some(milli as f64 / 1000.0);
    row.job.partition = partition.unwrap_or_default().to_owned();
    Ok(saying)
}

fn of_queue(event: &Event, stored: Timestamp) -> Option<Saying> {
    use EventKind::{JobChanged, JobRequeued};
    let changed = |subject, change: &JobChange, by: &str| {
        let mut saying = Saying::new(JobChanged, subject, stored).by(by);
        let words = change.words().into_iter();
        saying.row.changed = words.map(|(key, _)| key.to_owned()).collect();
        saying
    };
    Some(match event {
        Event::JobUpdated { job, change, by } => changed(Subject::Job(*job), change, by),
        Event::ArrayUpdated { array, change, by } => {
            changed(Subject::Array(*array, None), change, by)
        }
        Event::JobCancelled {
            job,
            by,
            text,
            reason,
            at,
        } => cancelled(Subject::Job(*job), *reason, *at)
            .by(by)
            .text(text),
        Event::TasksCancelled {
            array,
            positions,
            by,
            reason,
            at,
        } => cancelled(tasks(*array, positions), *reason, *at).by(by),
        Event::JobRequeued { job, by, at, .. } => {
            Saying::new(JobRequeued, Subject::Job(*job), *at).by(by)
        }
        Event::TasksRequeued {
            array,
            positions,
            by,
            at,
        } => Saying::new(JobRequeued, tasks(*array, positions), *at).by(by),
        _ => return of_hold(event),
    })
}

fn tasks(array: JobId, positions: &RangeSet) -> Subject {
    Subject::Array(array, Some(positions.clone()))
}

fn of_hold(event: &Event) -> Option<Saying> {
    let held = |subject, mark: &HoldMark| {
        Saying::new(EventKind::JobHeld, subject, mark.since)
            .by(&mark.owner)
            .text(&mark.reason)
    };
    let released = |subject, owner: &Option<String>, at| {
        let by = owner.as_deref().unwrap_or_default();
        Saying::new(EventKind::JobReleased, subject, at).by(by)
    };
    Some(match event {
        Event::JobHeld { job, mark } => held(Subject::Job(*job), mark),
        Event::ArrayHeld { array, mark } => held(Subject::Array(*array, None), mark),
        Event::TasksHeld {
            array,
            positions,
            mark,
        } => held(tasks(*array, positions), mark),
        Event::JobReleased { job, owner, at } => released(Subject::Job(*job), owner, *at),
        Event::ArrayReleased { array, owner, at } => {
            released(Subject::Array(*array, None), owner, *at)
        }
        Event::TasksReleased {
            array,
            positions,
            owner,
            at,
        } => released(tasks(*array, positions), owner, *at),
        _ => return None,
    })
}

fn cancelled(subject: Subject, reason: ReasonCode, at: Timestamp) -> Saying {
    let saying = Saying::new(EventKind::JobCancelled, subject, at).ending();
    match reason {
        ReasonCode::None => saying.reason("cancelled"),
        reason => saying.reason(reason),
    }
}

fn of_run(event: &Event) -> Option<Saying> {
    Some(match event {
        Event::RunSuspended { run, suspension } => {
            of(EventKind::JobSuspended, *run, suspension.since)
                .by(&suspension.by)
                .text(&suspension.text)
        }
        Event::RunResumed { run, by, at } => of(EventKind::JobResumed, *run, *at).by(by),
        Event::RunStopping { run, stop } => stopping(*run, stop),
        Event::RunEnded {
            run, outcome, at, ..
        } => ended(*run, outcome, *at),
        // The last task of an array may have been completing.
        Event::RunSettled { run, at } => Saying {
            is_silent: true,
            ..of(EventKind::JobEnded, *run, *at).ending()
        },
        Event::RequeueDropped { run, stop } => {
            let subject = Subject::Job(run.job);
            cancelled(subject, ReasonCode::None, stop.at).by(&stop.by)
        }
        _ => return None,
    })
}

fn of(kind: EventKind, run: RunId, at: Timestamp) -> Saying {
    let mut saying = Saying::new(kind, Subject::Job(run.job), at);
    saying.row.run.attempt = Some(run.attempt);
    saying
}

fn stopping(run: RunId, stop: &Stop) -> Saying {
    let (kind, reason) = match stop.why {
        StopCause::Preempted => (EventKind::JobPreempted, "preempted"),
        StopCause::Cancelled => (EventKind::JobStopping, "cancelled"),
        StopCause::Requeued => (EventKind::JobStopping, "requeued"),
        StopCause::Drained => (EventKind::JobStopping, "drained"),
        StopCause::Member => (EventKind::JobStopping, "member_ended"),
        StopCause::Ended => (EventKind::JobStopping, "allocation_ended"),
        StopCause::PrepareTimeout => (EventKind::JobStopping, "not_ready"),
        StopCause::Fenced => (EventKind::JobStopping, "fenced"),
        StopCause::GpuFailed => (EventKind::JobStopping, "gpu_failed"),
        StopCause::FenceBroken => (EventKind::JobStopping, "fence_broken"),
        StopCause::Unknown => (EventKind::JobStopping, "unknown"),
    };
    // For which other job is that one's affair.
    let by = match kind {
        EventKind::JobPreempted => "",
        _ => &stop.by,
    };
    of(kind, run, stop.at).by(by).reason(reason)
}

fn ended(run: RunId, outcome: &Outcome, at: Timestamp) -> Saying {
    let kind = match outcome.requeue {
        Some(_) => EventKind::JobRequeued,
        None => EventKind::JobEnded,
    };
    let mut saying = of(kind, run, at).text(&outcome.text);
    saying.row.run.state = Some(outcome.state);
    saying.row.run.exit_code = Some(outcome.exit);
    saying.ending()
}

fn of_node(event: &Event) -> Option<Saying> {
    let on = |kind, node: &NodeId, at: &Timestamp| Saying::new(kind, Subject::Node(*node), *at);
    Some(match event {
        Event::NodeJoined { node, at, .. } => on(EventKind::NodeJoined, node, at),
        Event::NodeRemoved { node, by, at } => on(EventKind::NodeRemoved, node, at).by(by),
        Event::NodeHello { node, at, .. } => on(EventKind::NodeUp, node, at),
        Event::NodeLinkChanged { node, link, at } => match link {
            Link::Up => on(EventKind::NodeUp, node, at),
            Link::Silent => on(EventKind::NodeSilent, node, at),
            Link::Down => on(EventKind::NodeDown, node, at),
            Link::Never => return None,
        },
        Event::NodeDrained { node, mark, .. } => on(EventKind::NodeDrained, node, &mark.since)
            .by(&mark.owner)
            .text(&mark.reason),
        Event::NodeResumed { node, by, at, .. } => on(EventKind::NodeResumed, node, at).by(by),
        Event::NodeFenced { node, by, at } => on(EventKind::NodeFenced, node, at).by(by),
        Event::GpuNoted {
            node,
            uuid,
            kind,
            text,
            at,
            ..
        } => {
            let told = match kind {
                GpuNoteKind::Sick | GpuNoteKind::Gone | GpuNoteKind::Moved => {
                    EventKind::GpuQuarantined
                }
                GpuNoteKind::Well => EventKind::GpuHealthy,
                _ => return None,
            };
            let mut saying = on(told, node, at).reason(kind.word()).text(text);
            saying.row.gpu.clone_from(uuid);
            saying
        }
        _ => return None,
    })
}

fn of_cluster(event: &Event) -> Option<Saying> {
    Some(match event {
        Event::PolicyChanged { change, by, at } => {
            let (record, name, is_gone) = edited(change);
            let kind = match (record, is_gone) {
                ("reservation", false) => EventKind::ReservationChanged,
                ("reservation", true) => EventKind::ReservationRemoved,
                _ => EventKind::PolicyChanged,
            };
            let subject = match record {
                "reservation" => Subject::Cluster,
                _ => Subject::Site,
            };
            let reason = if is_gone { "removed" } else { "changed" };
            let mut saying = Saying::new(kind, subject, *at).by(by).reason(reason);
            (saying.row.record, saying.row.record_name) = (record.to_owned(), name);
            saying
        }
        Event::Restored { at, .. } => {
            Saying::new(EventKind::ClusterRestored, Subject::Cluster, *at)
        }
        _ => return None,
    })
}

/// What was edited: of which kind, its name, and whether it is gone.
fn edited(change: &PolicyChange) -> (&'static str, String, bool) {
    match change {
        PolicyChange::Account { account } => ("account", account.name.clone(), false),
        PolicyChange::AccountRemoved { name } => ("account", name.clone(), true),
        PolicyChange::User { account, user, .. } => ("user", format!("{user} in {account}"), false),
        PolicyChange::UserRemoved { account, user } => {
            ("user", format!("{user} in {account}"), true)
        }
        PolicyChange::Qos { qos } => ("qos", qos.name.clone(), false),
        PolicyChange::QosRemoved { name } => ("qos", name.clone(), true),
        PolicyChange::Reservation { reservation } => {
            ("reservation", reservation.name.clone(), false)
        }
        PolicyChange::ReservationRemoved { name, .. } => ("reservation", name.clone(), true),
        PolicyChange::Partition { made } => ("partition", made.partition.name.clone(), false),
        PolicyChange::PartitionRemoved { name } => ("partition", name.clone(), true),
        PolicyChange::All { .. } => ("all", String::new(), false),
    }
}

/// The array that was over at this moment, with its last task.
fn ended_array(
    subject: &Subject,
    at: Timestamp,
    lookup: &EventLookup<'_>,
) -> ReadResult<Option<(JobId, Timestamp)>> {
    let array = match subject {
        Subject::Array(id, _) => Some(*id),
        Subject::Job(id) => lookup.job(*id)?.and_then(|job| Some(job.task?.0)),
        _ => None,
    };
    let Some(id) = array else { return Ok(None) };
    let facts = lookup.array(id)?;
    Ok(facts
        .filter(|array| array.ended == Some(at))
        .map(|_| (id, at)))
}

fn finish(saying: Saying, lookup: &EventLookup<'_>) -> ReadResult<ToldEvent> {
    let Saying {
        kind,
        subject,
        at,
        mut row,
        ..
    } = saying;
    row.schema = SCHEMA;
    row.time = Instant(at);
    kind.name().clone_into(&mut row.kind);
    let audience = match subject {
        Subject::Job(id) => match lookup.job(id)? {
            Some(job) => of_job(&mut row.job, &job),
            None => {
                // A job that was removed since, or a task that never had a record: its array's.
                row.job.job_id = Some(id.0);
                Audience::Operators
            }
        },
        Subject::Array(id, positions) => match lookup.array(id)? {
            Some(array) => of_array(&mut row.job, &array, positions),
            None => {
                row.job.job_id = Some(id.0);
                Audience::Operators
            }
        },
        Subject::Node(id) => {
            row.node = lookup.node(id)?.to_string();
            Audience::All
        }
        Subject::Cluster => Audience::All,
        Subject::Site => Audience::Operators,
    };
    Ok(ToldEvent {
        kind,
        row,
        audience,
        at: Cursor::whole(0),
    })
}

fn of_job(row: &mut EventJob, job: &JobFacts) -> Audience {
    row.job_id = Some(job.id.0);
    row.shown_id = match job.task {
        Some((array, index)) => format!("{array}_{index}"),
        None => job.id.to_string(),
    };
    if let Some((array, index)) = job.task {
        (row.array_id, row.array_index) = (Some(array.0), Some(index));
    }
    row.user.clone_from(&job.user);
    row.account.clone_from(&job.account);
    row.qos.clone_from(&job.qos);
    row.name.clone_from(&job.name);
    if row.partition.is_empty() {
        row.partition.clone_from(&job.partition);
    }
    Audience::Job {
        user: job.user.clone(),
        account: job.account.clone(),
        partition: job.partition.clone(),
    }
}

fn of_array(row: &mut EventJob, array: &ArrayFacts, positions: Option<RangeSet>) -> Audience {
    let told = of_job(row, &array.job);
    row.array_id = row.job_id;
    if let Some(positions) = positions {
        row.array_tasks = array.tasks.text_of(&positions);
    }
    told
}
