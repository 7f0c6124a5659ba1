//! The scheduler's proposal. The core checks each part again before it becomes a fact.

use gmodel::policy::PreemptMode;
use gmodel::run::Allocation;
use gmodel::{JobId, NodeId, Reason, RunClass, RunId, Seq, Timestamp};
pub use gpolicy::pending_job::Nomination;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A proposal made from the state at `made_from`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub made_from: Seq,
    pub starts: Vec<Start>,
    /// Runs to end, each with the proof that a pending job can start then.
    #[serde(default)]
    pub preempts: Vec<Preempt>,
    /// Suspended runs with free CPUs: they resume.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resumes: Vec<RunId>,
    /// Runs with a new class.
    #[serde(default)]
    pub classes: Vec<(RunId, RunClass)>,
    /// Empty GPUs to be cut by MIG.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cuts: Vec<Cut>,
    /// The priorities of the starting jobs, where they were computed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub priorities: Vec<(JobId, i64)>,
    /// The pending reasons that are new, one for each job.
    pub reasons: Vec<(JobId, Reason)>,
    /// The same for arrays; their untouched tasks share it.
    #[serde(default)]
    pub array_reasons: Vec<(JobId, Reason)>,
    /// The nominations of jobs among `reasons`; the other jobs have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nominations: Vec<(JobId, Nomination)>,
    /// The same for arrays.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub array_nominations: Vec<(JobId, Nomination)>,
    /// The budget ran out before the end of the queue.
    pub cut_short: bool,
    /// Starts may move GPUs that are reserved by number: another pass may use their old nodes at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
    /// Set by a planner, for the replay of a trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<PlanOrigin>,
}

/// The origin of a plan, so that a replay can make it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanOrigin {
    pub now: Timestamp,
    pub node_probes: u64,
    pub starts: usize,
    /// Made by a quick pass: gives away what ended runs freed, without a walk of the whole queue.
    pub quick: bool,
    /// A part of the plan: the next part follows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

/// How many starts, preemptions, reasons, and reasons of arrays a plan has.
pub(crate) type Sizes = [usize; 4];

impl Plan {
    /// Whether the plan carries nothing out and tells nothing.
    pub fn is_empty(&self) -> bool {
        // Every field is named, so that a new one is not forgotten.
        let Self {
            made_from: _,
            starts,
            preempts,
            resumes,
            classes,
            cuts,
            priorities: _,
            reasons,
            array_reasons,
            // They come with reasons.
            nominations: _,
            array_nominations: _,
            cut_short: _,
            again: _,
            made: _,
        } = self;
        starts.is_empty()
            && preempts.is_empty()
            && resumes.is_empty()
            && classes.is_empty()
            && cuts.is_empty()
            && reasons.is_empty()
            && array_reasons.is_empty()
    }

    /// Adds the next part of the same plan, with how it came about.
    pub fn append(&mut self, part: Self) {
        let Self {
            made_from: _,
            starts,
            preempts,
            resumes,
            classes,
            cuts,
            priorities,
            reasons,
            array_reasons,
            nominations,
            array_nominations,
            cut_short,
            again,
            made,
        } = part;
        self.starts.extend(starts);
        self.preempts.extend(preempts);
        self.resumes.extend(resumes);
        self.classes.extend(classes);
        self.cuts.extend(cuts);
        self.priorities.extend(priorities);
        self.reasons.extend(reasons);
        self.array_reasons.extend(array_reasons);
        self.nominations.extend(nominations);
        self.array_nominations.extend(array_nominations);
        self.cut_short |= cut_short;
        self.again |= again;
        self.made = made;
    }

    pub(crate) fn sizes(&self) -> Sizes {
        [
            self.starts.len(),
            self.preempts.len(),
            self.reasons.len(),
            self.array_reasons.len(),
        ]
    }

    /// The nomination that comes with the reason of a job or, by its own id, an array.
    pub fn nomination(&self, id: JobId, is_array: bool) -> Option<&Nomination> {
        let all = match is_array {
            false => &self.nominations,
            true => &self.array_nominations,
        };
        let found = all.iter().find(|(one, _)| *one == id);
        found.map(|(_, nomination)| nomination)
    }

    pub(crate) fn give_reason(
        &mut self,
        id: JobId,
        is_array: bool,
        reason: Reason,
        nomination: Option<Nomination>,
    ) {
        let (reasons, nominations) = match is_array {
            false => (&mut self.reasons, &mut self.nominations),
            true => (&mut self.array_reasons, &mut self.array_nominations),
        };
        reasons.push((id, reason));
        nominations.extend(nomination.map(|nomination| (id, nomination)));
    }

    /// The parts that were added since it had these sizes, without what only a full pass gives.
    pub(crate) fn beyond(&self, sizes: Sizes) -> Self {
        let (reasons, array_reasons) = (&self.reasons[sizes[2]..], &self.array_reasons[sizes[3]..]);
        Self {
            made_from: self.made_from,
            starts: self.starts[sizes[0]..].to_vec(),
            preempts: self.preempts[sizes[1]..].to_vec(),
            nominations: of_those(&self.nominations, reasons),
            array_nominations: of_those(&self.array_nominations, array_reasons),
            reasons: reasons.to_vec(),
            array_reasons: array_reasons.to_vec(),
            ..Self::default()
        }
    }
}

/// The nominations of the jobs with reasons here.
fn of_those(
    nominations: &[(JobId, Nomination)],
    reasons: &[(JobId, Reason)],
) -> Vec<(JobId, Nomination)> {
    let ids: BTreeSet<JobId> = reasons.iter().map(|(id, _)| *id).collect();
    let told = nominations.iter().filter(|(id, _)| ids.contains(id));
    told.cloned().collect()
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// The job, or the array task by its own id.
    pub job: JobId,
    pub allocation: Allocation,
    /// The partition, where the job is pending in several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// `None` where there are no quotas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<RunClass>,
    /// A limit shortened down to `--time-min` so that it fits; `None`: as asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_secs: Option<u32>,
}

/// One idle GPU to be cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    pub node: NodeId,
    pub uuid: String,
    /// In the order of their places; none: whole again.
    pub profiles: Vec<String>,
    /// For messages: the job that needs the cut.
    pub why: String,
}

/// One victim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preempt {
    pub run: RunId,
    /// The job that starts when all its victims have ended.
    pub for_job: JobId,
    pub mode: PreemptMode,
    /// Work that is lost if the checkpoint signal is not answered: GPU-seconds since the last mark.
    pub lost_gpu_secs: u64,
    /// For messages: the job, and the ground of the preemption.
    pub why: String,
    /// Where the victim is guaranteed: borrowed runs elsewhere that inherit its guarantee.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub heirs: Vec<RunId>,
    /// The job starts on borrowed GPUs: none of its account's guarantee is held for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub for_borrower: bool,
}

/// Bound of one pass, in node probes: a result never depends on the machine's speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkBudget {
    pub node_probes: u64,
    pub starts: usize,
}

impl Default for WorkBudget {
    fn default() -> Self {
        Self {
            node_probes: 20_000_000,
            starts: 10_000,
        }
    }
}
