//! The three drivers of the scheduler: decide (full and quick passes), explain, forecast.
//!
//! Each runs a pass over an [`Engine`]; none of them has a mode of its own.

use crate::changes::Changes;
use crate::decide::full_pass::decide;
use crate::decide::quick::{make_deferred_starts, quick_pass};
use crate::engine::Engine;
use crate::forecast::job_starts::{Forecast, forecast_jobs};
use crate::pass::{HandOver, Slices};
use crate::plan::{Plan, WorkBudget};
use crate::snapshot::Snapshot;
use crate::why::answer::Explanation;
use crate::why::explanation::{explain_job, explain_job_now};
use gmodel::JobId;
use std::collections::BTreeSet;

/// Decides which pending jobs start now, and why the others wait.
pub fn plan(snapshot: &Snapshot, budget: WorkBudget) -> Plan {
    Engine::default().plan(snapshot, budget)
}

impl Engine {
    pub fn plan(&mut self, snapshot: &Snapshot, budget: WorkBudget) -> Plan {
        self.plan_changed(snapshot, None, budget)
    }

    /// As `plan`, where it is known what is otherwise than in the snapshot of the last plan (of this or of `after`).
    pub fn plan_changed(
        &mut self,
        snapshot: &Snapshot,
        changes: Option<&Changes>,
        budget: WorkBudget,
    ) -> Plan {
        decide(self, snapshot, changes, budget, None)
    }

    /// As `plan_changed`; a long pass hands over its plan in parts, after each `slice` node probes.
    /// All parts are made from the same snapshot; the last one is returned.
    pub fn plan_in_slices(
        &mut self,
        snapshot: &Snapshot,
        changes: Option<&Changes>,
        budget: WorkBudget,
        slice: u64,
        hand_over: HandOver,
    ) -> Plan {
        let slices = Slices {
            take: hand_over,
            probes: slice,
            since: u64::MAX,
            handed: Plan::default().sizes(),
        };
        decide(self, snapshot, changes, budget, Some(slices))
    }

    /// What can start now that could not in the pass before, by what became free since. `None`: that takes a full pass.
    pub fn after(
        &mut self,
        snapshot: &Snapshot,
        changes: &Changes,
        budget: WorkBudget,
    ) -> Option<Plan> {
        quick_pass(self, snapshot, changes, budget)
    }

    /// Makes the planned starts that the last pass deferred, before quick passes need them.
    pub fn make_ready(&mut self, snapshot: &Snapshot) {
        make_deferred_starts(self, snapshot);
    }

    /// Expected starts of these jobs (an array by its own id: its next task), in the order of the queue.
    pub fn forecast(
        &mut self,
        snapshot: &Snapshot,
        jobs: &BTreeSet<JobId>,
        budget: WorkBudget,
    ) -> Vec<Forecast> {
        forecast_jobs(self, snapshot, jobs, budget)
    }

    /// As [`why`](crate::why()), with a bound.
    pub fn why(
        &mut self,
        snapshot: &Snapshot,
        job: JobId,
        budget: WorkBudget,
    ) -> Option<Explanation> {
        explain_job(self, snapshot, job, budget)
    }

    /// The same without the forecast.
    pub fn why_now(
        &mut self,
        snapshot: &Snapshot,
        job: JobId,
        budget: WorkBudget,
    ) -> Option<Explanation> {
        explain_job_now(self, snapshot, job, budget)
    }
}
