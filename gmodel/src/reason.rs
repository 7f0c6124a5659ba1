//! Why a job waits: exactly one reason per pending job, in Slurm's spelling, with numbers.
//!
//! One table holds each code with its meaning and with what to do about it; gpupool-reasons(7) is written from it.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

macro_rules! reason_codes {
    ($($(#[$attribute:meta])* $code:ident: $meaning:literal, $advice:literal;)*) => {
        /// The primary reason of a job that waits or did not end well, as `squeue %r` prints it.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum ReasonCode {
            $($(#[$attribute])* #[doc = $meaning] $code,)*
        }

        impl ReasonCode {
            pub const ALL: &[Self] = &[$(Self::$code),*];

            /// One sentence for people.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$code => $meaning,)* }
            }

            /// What the user, or an operator, can do about it. Commands stand between backticks.
            pub const fn advice(self) -> &'static str {
                match self { $(Self::$code => $advice,)* }
            }
        }
    };
}

reason_codes! {
    #[default] None:
        "The job is running, or no pass has looked at it yet.",
        "A pass follows a submission within a second; if this stays, `gadm diag` shows whether the scheduler runs.";
    Resources:
        "The nodes that fit this job are busy, and it is the next of its partition to get them.",
        "Wait; `gq --start` gives an expected start. `gq --why` lists the runs that hold what it needs and smaller requests that would start sooner.";
    Priority:
        "Jobs of higher priority in the same partition are to start first.",
        "Wait; `gq --prio` shows what its priority is made of. A shorter `--time` lets backfill start it earlier.";
    Dependency:
        "A job named by its `--dependency` has not come to the state that it waits for.",
        "Wait for that job, or change the condition with `gadm job update JOB Dependency=`.";
    JobHeldUser:
        "Its owner holds the job.",
        "`gadm job release JOB`.";
    JobHeldAdmin:
        "An operator or the site's policy holds the job.",
        "Ask an operator, who may release it with `gadm job release JOB`; `gq --log JOB` says who held it and why.";
    BeginTime:
        "Its `--begin` time has not come, or it waits a while before it is tried again after a failed start.",
        "Wait, or `gadm job update JOB StartTime=now`.";
    JobArrayTaskLimit:
        "As many tasks of its array run as its cap (`--array=...%N`) allows.",
        "Wait for a task to end, or raise the cap with `gadm job update ARRAY ArrayTaskThrottle=N`.";
    PartitionDown:
        "The partition takes jobs and starts none.",
        "Ask an operator, or move the job: `gadm job update JOB Partition=NAME`.";
    PartitionInactive:
        "The partition takes no jobs and starts none.",
        "Ask an operator, or move the job: `gadm job update JOB Partition=NAME`.";
    PartitionNodeLimit:
        "The job asks for more nodes than its partition gives to one job.",
        "Change `--nodes`, or choose another partition.";
    PartitionTimeLimit:
        "The job's time limit is above what its partition allows.",
        "Lower it: `gadm job update JOB TimeLimit=`.";
    PartitionConfig:
        "The partition's nodes can never give what the job asks for, as they are configured now.",
        "`gq --why JOB` says what is missing, and which partition or request would do.";
    ReqNodeNotAvail:
        "A node that the job needs is down, drained, reserved for others, or not yet back.",
        "`gnodes` shows the node's state and reason. Leave out `--nodelist`, or wait for the node.";
    BadConstraints:
        "No node has the features, GPU type, memory or links that the job asks for together.",
        "`gq --why JOB` names the condition that excludes each group of nodes.";
    JobHoldMaxRequeue:
        "A node went down soon after each of the job's last starts, so the job is held to protect other nodes.",
        "Look at `gq --log JOB`; if the job is not the cause, `gadm job release JOB`.";
    TokenGpuHoursLimit:
        "It went back to the queue and may now use more GPU-hours than the cap of its token has left, so it is held.",
        "Lower its limit with `gadm job update JOB TimeLimit=` and then `gadm job release JOB`; `gq token list` shows what is used. Or cancel it and submit it with another token.";
    DependencyNeverSatisfied:
        "A job that it depends on ended in a way that the condition excludes.",
        "Cancel it with `gdel JOB`, or change the condition with `gadm job update JOB Dependency=`.";
    Reservation:
        "Its reservation has not begun, or what the reservation sets apart is in use.",
        "`gadm reservation list` shows the next window and its nodes.";
    ReservationDeleted:
        "The reservation that it was submitted to is gone.",
        "`gadm job update JOB ReservationName=` leaves it to the partition, or names another.";
    Licenses:
        "Too few licences that it asks for are free.",
        "Wait; `gadm licence list` shows their use.";
    AssocGrpJobsLimit:
        "An account of the job, its own or one above it, may not hold more running jobs at once, and this job would exceed that.",
        "Wait until runs counted there end; `gq --why` names them. Ask for less, or have an operator raise `running_jobs` of the account.";
    AssocGrpGRES:
        "An account of the job, its own or one above it, may not hold more GPUs at once, and this job would exceed that.",
        "Wait until runs counted there end; `gq --why` names them. Ask for less, or have an operator raise `gpus` of the account.";
    AssocGrpCpuLimit:
        "An account of the job, its own or one above it, may not hold more CPUs at once, and this job would exceed that.",
        "Wait until runs counted there end; `gq --why` names them. Ask for less, or have an operator raise `cpus` of the account.";
    AssocGrpNodeLimit:
        "An account of the job, its own or one above it, may not hold more nodes at once, and this job would exceed that.",
        "Wait until runs counted there end; `gq --why` names them. Ask for less, or have an operator raise `nodes` of the account.";
    AssocGrpGRESRunMinutes:
        "The time limits of the account's running jobs add up to its limit of GPU-hours, with this job's.",
        "Give the job a shorter `--time`, or have an operator raise `running_gpu_hours` of the account.";
    AssocMaxJobsLimit:
        "The user may not hold more running jobs at once, and this job would exceed that.",
        "Wait until runs counted there end; `gq --why` names them. Ask for less, or have an operator raise `running_jobs` of the user in the account.";
    AssocMaxGRESPerUser:
        "The user may not hold more GPUs at once, and this job would exceed that.",
        "Wait until runs counted there end; `gq --why` names them. Ask for less, or have an operator raise `gpus` of the user in the account.";
    AssocMaxCpuPerUser:
        "The user may not hold more CPUs at once, and this job would exceed that.",
        "Wait until runs counted there end; `gq --why` names them. Ask for less, or have an operator raise `cpus` of the user in the account.";
    AssocMaxNodePerUser:
        "The user may not hold more nodes at once, and this job would exceed that.",
        "Wait until runs counted there end; `gq --why` names them. Ask for less, or have an operator raise `nodes` of the user in the account.";
    AssocGrpBilling:
        "A budget of the account is spent for its period, or would be with this job.",
        "`gadm share` shows the budget and when its next period begins.";
    QOSGrpJobsLimit:
        "All jobs of the QOS, or of the partition, may not hold more running jobs at once, and this job would exceed that.",
        "Wait until runs counted there end; `gq --why` names them. Ask for less, or have an operator raise `running_jobs` of the QOS or partition.";
    QOSGrpGRES:
        "All jobs of the QOS, or of the partition, may not hold more GPUs at once, and this job would exceed that.",
        "Wait until runs counted there end; `gq --why` names them. Ask for less, or have an operator raise `gpus` of the QOS or partition.";
    QOSGrpCpuLimit:
        "All jobs of the QOS, or of the partition, may not hold more CPUs at once, and this job would exceed that.",
        "Wait until runs counted there end; `gq --why` names them. Ask for less, or have an operator raise `cpus` of the QOS or partition.";
    QOSGrpNodeLimit:
        "All jobs of the QOS, or of the partition, may not hold more nodes at once, and this job would exceed that.",
        "Wait until runs counted there end; `gq --why` names them. Ask for less, or have an operator raise `nodes` of the QOS or partition.";
    QOSGrpGRESRunMinutes:
        "The time limits of running jobs of the QOS or partition add up to its limit of GPU-hours, with this job's.",
        "Give the job a shorter `--time`, or have an operator raise `running_gpu_hours` of the QOS or partition.";
    QOSMaxJobsPerUserLimit:
        "One user in the QOS, or in the partition, may not hold more running jobs at once, and this job would exceed that.",
        "Wait until runs counted there end; `gq --why` names them. Ask for less, or have an operator raise `running_jobs` in `per_user` of the QOS or partition.";
    QOSMaxGRESPerUser:
        "One user in the QOS, or in the partition, may not hold more GPUs at once, and this job would exceed that.",
        "Wait until runs counted there end; `gq --why` names them. Ask for less, or have an operator raise `gpus` in `per_user` of the QOS or partition.";
    QOSMaxCpuPerUserLimit:
        "One user in the QOS, or in the partition, may not hold more CPUs at once, and this job would exceed that.",
        "Wait until runs counted there end; `gq --why` names them. Ask for less, or have an operator raise `cpus` in `per_user` of the QOS or partition.";
    QOSMaxNodePerUserLimit:
        "One user in the QOS, or in the partition, may not hold more nodes at once, and this job would exceed that.",
        "Wait until runs counted there end; `gq --why` names them. Ask for less, or have an operator raise `nodes` in `per_user` of the QOS or partition.";
    MaxJobsPerAccount:
        "One account in the QOS, or in the partition, may not hold more running jobs at once, and this job would exceed that.",
        "Wait until runs counted there end; `gq --why` names them. Ask for less, or have an operator raise `running_jobs` in `per_account` of the QOS or partition.";
    MaxGRESPerAccount:
        "One account in the QOS, or in the partition, may not hold more GPUs at once, and this job would exceed that.",
        "Wait until runs counted there end; `gq --why` names them. Ask for less, or have an operator raise `gpus` in `per_account` of the QOS or partition.";
    MaxCpuPerAccount:
        "One account in the QOS, or in the partition, may not hold more CPUs at once, and this job would exceed that.",
        "Wait until runs counted there end; `gq --why` names them. Ask for less, or have an operator raise `cpus` in `per_account` of the QOS or partition.";
    MaxNodePerAccount:
        "One account in the QOS, or in the partition, may not hold more nodes at once, and this job would exceed that.",
        "Wait until runs counted there end; `gq --why` names them. Ask for less, or have an operator raise `nodes` in `per_account` of the QOS or partition.";
    QOSMaxGRESPerJob:
        "The job asks for more GPUs than its QOS gives to one job.",
        "Ask for fewer GPUs, or for another QOS.";
    QOSMaxCpuPerJobLimit:
        "The job asks for more CPUs than its QOS gives to one job.",
        "Ask for fewer CPUs, or for another QOS.";
    QOSMaxNodePerJobLimit:
        "The job asks for more nodes than its QOS gives to one job.",
        "Ask for fewer nodes, or for another QOS.";
    QOSMinGRES:
        "The job asks for fewer GPUs than its QOS wants of each job.",
        "Ask for more GPUs, or for another QOS.";
    QOSMaxWallDurationPerJobLimit:
        "The job's time limit is above what its QOS allows.",
        "Lower it: `gadm job update JOB TimeLimit=`.";
    QOSNotAllowed:
        "The job's account or partition may not use its QOS, or may no longer.",
        "Choose another: `gadm job update JOB QOS=NAME`.";
    AccountNotAllowed:
        "The job's account may not use its partition, or is gone.",
        "Choose another account or partition with `gadm job update`.";
    Quota:
        "The account's guarantee is in use, and the job may not borrow what others leave idle.",
        "Wait until a job of the account ends. A QOS that may borrow starts it earlier.";
    Headroom:
        "The GPUs that are idle are kept: for urgent work of the partition, or by a lending limit of their account.",
        "Wait; `gq --why JOB` says how many are kept and by whom.";
    Preempting:
        "Runs are ending to make room for this job.",
        "Wait for the grace time; `gq --why JOB` names these runs.";
    DeadLine:
        "The job could not end by its `--deadline`.",
        "It is cancelled. Submit it with a later deadline or a shorter `--time`.";
    NodeDown:
        "A node of the job was lost. The job waits until that node is powered off, or ended with it.",
        "`gq --log JOB` names the node; `gadm node down NODE --fenced` says that an operator has switched it off.";
    NonZeroExitCode:
        "The job ended with an exit code other than 0.",
        "Read the job's output; `gacct JOB` has the exit code.";
    RaisedSignal:
        "A signal ended the job.",
        "`gacct JOB` names the signal.";
    JobLaunchFailure:
        "The node could not start the job.",
        "`gq --log JOB` has the node's error.";
    TimeLimit:
        "The job reached its time limit.",
        "Ask for a longer `--time`, or checkpoint and requeue.";
    OutOfMemory:
        "The kernel ended a process of the job for memory.",
        "Ask for more `--mem`; `gacct JOB` shows the peak.";
    #[serde(other)] Unknown:
        "A newer controller gave a reason that this program does not know.",
        "Upgrade the commands.";
}

/// A reason with the sentence that explains it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    pub code: ReasonCode,
    /// The numbers behind the code, as text. May be empty. Shared: a hundred thousand jobs may have the same.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub text: Arc<str>,
}

impl Reason {
    pub fn new(code: ReasonCode, text: impl Into<Arc<str>>) -> Self {
        Self {
            code,
            text: text.into(),
        }
    }
}

fn is_empty(text: &Arc<str>) -> bool {
    text.is_empty()
}

impl From<ReasonCode> for Reason {
    fn from(code: ReasonCode) -> Self {
        Self {
            code,
            text: Arc::default(),
        }
    }
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
