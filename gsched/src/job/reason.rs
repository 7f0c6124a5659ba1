//! Why a job waits, in words: what holds whatever is free, and what is not free now.
//!
//! Texts that a long queue shares are the same in every pass, so that it does not change with each job that starts.

use crate::snapshot::{ArrayCap, PendingJob, Snapshot};
use gmodel::config::{Partition, PartitionState};
use gmodel::{JobId, JobSpec, Policy, Reason, ReasonCode, Timestamp};
use gpolicy::limits::secs_text;
use gpolicy::pending_job::UNLIMITED_SECS;
use gpolicy::reserved_nodes::Windows;
use gpolicy::window::Window;

/// The reason of a job with this owner's hold on it.
pub fn held_by(owner: &str) -> Reason {
    if let Some(numbers) = owner.strip_prefix("token:") {
        return Reason::new(ReasonCode::TokenGpuHoursLimit, numbers);
    }
    let code = if owner.starts_with("user:") {
        ReasonCode::JobHeldUser
    } else if owner == "system" {
        ReasonCode::JobHoldMaxRequeue
    } else {
        ReasonCode::JobHeldAdmin
    };
    Reason::new(code, format!("held by {owner}"))
}

pub fn no_partition(job: &PendingJob) -> Reason {
    let text = format!(
        "partition {:?} is not in the configuration",
        job.spec.partition
    );
    Reason::new(ReasonCode::PartitionConfig, text)
}

/// A reason that does not depend on what is free, where it holds.
type Condition = fn(&PendingJob, &Partition, &Snapshot) -> Option<Reason>;

/// In the order in which they are told.
const CONDITIONS: &[Condition] = &[
    |job, _, _| job.particulars.held_by.as_deref().map(held_by),
    |job, _, _| job.particulars.dependency.clone(),
    begins_later,
    tried_later,
    |_, partition, _| partition_closed(partition),
    |job, partition, snapshot| closed_to(&job.spec, partition, &snapshot.policy),
    over_partition_time,
    over_partition_nodes,
    past_deadline,
    |job, _, _| (job.particulars.room == Some(0)).then(|| array_limit(job)),
];

/// The first reason that does not depend on what is free.
pub fn standing(job: &PendingJob, partition: &Partition, snapshot: &Snapshot) -> Option<Reason> {
    let mut conditions = CONDITIONS.iter();
    conditions.find_map(|reason| reason(job, partition, snapshot))
}

/// All of them.
pub fn all_standing(job: &PendingJob, partition: &Partition, snapshot: &Snapshot) -> Vec<Reason> {
    let conditions = CONDITIONS.iter();
    conditions
        .filter_map(|reason| reason(job, partition, snapshot))
        .collect()
}

fn begins_later(job: &PendingJob, _: &Partition, snapshot: &Snapshot) -> Option<Reason> {
    let text = || format!("not before {}", job.eligible);
    (job.eligible > snapshot.now).then(|| Reason::new(ReasonCode::BeginTime, text()))
}

fn tried_later(job: &PendingJob, _: &Partition, snapshot: &Snapshot) -> Option<Reason> {
    let at = job.particulars.try_after.filter(|at| *at > snapshot.now)?;
    let text = format!("its last run failed with its node; tried again at {at}");
    Some(Reason::new(ReasonCode::BeginTime, text))
}

fn partition_closed(partition: &Partition) -> Option<Reason> {
    let name = &partition.name;
    match partition.state {
        PartitionState::Down => Some(Reason::new(
            ReasonCode::PartitionDown,
            format!("partition {name:?} is DOWN: it takes jobs and starts none"),
        )),
        PartitionState::Inactive => Some(Reason::new(
            ReasonCode::PartitionInactive,
            format!("partition {name:?} is INACTIVE: it neither takes nor starts jobs"),
        )),
        PartitionState::Up | PartitionState::Drain => None,
    }
}

fn over_partition_time(job: &PendingJob, partition: &Partition, _: &Snapshot) -> Option<Reason> {
    let (most, limit) = partition.max_time_secs.zip(job.limit_secs)?;
    let text = || {
        format!(
            "asks for {}, partition {:?} allows {}",
            secs_text(limit),
            partition.name,
            secs_text(most)
        )
    };
    (limit > most).then(|| Reason::new(ReasonCode::PartitionTimeLimit, text()))
}

fn over_partition_nodes(job: &PendingJob, partition: &Partition, _: &Snapshot) -> Option<Reason> {
    let nodes = job.spec.request.nodes_min;
    let most = partition.max_nodes.filter(|most| nodes > *most)?;
    let text = format!("asks for {nodes} nodes, the limit is {most}");
    Some(Reason::new(ReasonCode::PartitionNodeLimit, text))
}

fn past_deadline(job: &PendingJob, _: &Partition, snapshot: &Snapshot) -> Option<Reason> {
    let secs = job.spec.time_min_secs.unwrap_or(job.held_secs());
    let end = snapshot.now.plus_secs(i64::from(secs));
    let deadline = job.spec.deadline.filter(|deadline| end > *deadline)?;
    let text = format!("needs {secs} s and was to end by {deadline}");
    Some(Reason::new(ReasonCode::DeadLine, text))
}

/// Why a partition takes no jobs of a user, an account or a QOS: its permissions may have changed since the job was submitted.
pub(crate) fn closed_to(spec: &JobSpec, partition: &Partition, policy: &Policy) -> Option<Reason> {
    let name = &partition.name;
    if !partition.takes_account(policy, &spec.account) {
        let text = format!(
            "partition {name:?} is for the accounts {} now, not for {}",
            partition.accounts_text(),
            spec.account
        );
        return Some(Reason::new(ReasonCode::AccountNotAllowed, text));
    }
    if !partition.is_open_to_qos(&spec.qos) {
        let text = format!(
            "partition {name:?} is for the QOS {} now, not for {}",
            partition.qos_text(),
            spec.qos
        );
        return Some(Reason::new(ReasonCode::QOSNotAllowed, text));
    }
    let is_open = partition.is_open_to_user(&spec.user.name);
    (!is_open).then(|| {
        Reason::new(
            ReasonCode::PartitionConfig,
            format!("partition {name:?} is not open to {} now", spec.user.name),
        )
    })
}

pub fn array_limit(job: &PendingJob) -> Reason {
    let text = match job.particulars.cap {
        // Tasks that the pass starts are not counted yet.
        Some(ArrayCap { most, running }) if running >= most => {
            format!("the array allows {most} at once, and {running} of its tasks run")
        }
        Some(ArrayCap { most, .. }) => {
            format!("the array allows {most} of its tasks at once, and as many run")
        }
        None => "as many tasks of the array run as it allows at once".to_owned(),
    };
    Reason::new(ReasonCode::JobArrayTaskLimit, text)
}

/// The end of the reason of a job that waits for the same as a job of higher priority.
pub const BEHIND: &str = "; jobs of higher priority wait for such resources too";

/// The same words in every pass, so that a long queue does not change with each job that starts.
pub fn behind_others(needs: &str) -> Reason {
    let text = format!("needs {needs}{BEHIND}");
    Reason::new(ReasonCode::Priority, text)
}

/// What holds free nodes that are not given to a job class.
#[derive(Clone, Copy, Debug)]
pub enum KeptFor {
    /// The reservation in this place of the windows; `by_number`: for so many GPUs, on any nodes.
    Reservation {
        at: usize,
        window: Window,
        by_number: bool,
    },
    /// The planned start of a job.
    Job(JobId),
}

impl KeptFor {
    pub fn reason(self, windows: &Windows) -> Reason {
        match self {
            Self::Reservation {
                at,
                window: Window { from, to },
                by_number,
            } => {
                let reservation = &windows.list[at].reservation;
                let (needs, what) = match (by_number, reservation.maintenance) {
                    (true, _) => ("GPUs", "reservation"),
                    (false, true) => ("nodes", "maintenance"),
                    (false, false) => ("nodes", "reservation"),
                };
                let name = &reservation.name;
                Reason::new(
                    ReasonCode::ReqNodeNotAvail,
                    format!("{needs} it needs are kept for {what} {name:?} from {from} to {to}"),
                )
            }
            Self::Job(job) => Reason::new(
                ReasonCode::Priority,
                format!("nodes it needs are planned for job {job}"),
            ),
        }
    }
}

/// The reason of the first job of a partition that waits for nodes: what its class needs, what is free, and when it is
/// expected to start.
pub(crate) fn first_of_partition(
    behind: &Reason,
    free: &str,
    start: Option<Timestamp>,
    now: Timestamp,
) -> Reason {
    let needs = behind.text.strip_suffix(BEHIND).unwrap_or(&behind.text);
    // A run without a limit is no promise of an end.
    let some_day = now.plus_secs(i64::from(UNLIMITED_SECS) - 86_400);
    let expected = start
        .filter(|at| *at < some_day)
        .map_or(String::new(), |at| format!("; room is expected by {at}"));
    Reason::new(ReasonCode::Resources, format!("{needs}; {free}{expected}"))
}

/// How far from a start a job with a reason is: runs end by themselves, a closed partition stays closed. Of
/// several entries of a job the nearest gives its reason.
pub(crate) fn distance(code: ReasonCode) -> u32 {
    match code {
        ReasonCode::JobArrayTaskLimit | ReasonCode::Preempting => 0,
        ReasonCode::Resources => 1,
        ReasonCode::Priority => 2,
        ReasonCode::PartitionDown
        | ReasonCode::PartitionInactive
        | ReasonCode::PartitionTimeLimit
        | ReasonCode::PartitionNodeLimit
        | ReasonCode::PartitionConfig
        | ReasonCode::BadConstraints => 5,
        ReasonCode::ReqNodeNotAvail | ReasonCode::Reservation => 4,
        ReasonCode::None => 9,
        _ => 3,
    }
}
