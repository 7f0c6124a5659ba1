//! The planner with a kept snapshot and a kept engine, as in the controller: its plans equal those of a new
//! one, whatever happened in between.

use crate::ctl::state::State;
use crate::ctl::{Mirror, snapshot};
use gmodel::Timestamp;
use gsched::{Engine, Plan, WorkBudget};

#[derive(Default)]
pub(super) struct KeptPlanner {
    mirror: Mirror,
    engine: Engine,
}

impl KeptPlanner {
    pub fn plan(&mut self, state: &State, now: Timestamp) -> Plan {
        self.mirror.update(state, now);
        let (picture, changes) = self.mirror.picture().unwrap();
        let kept = in_order(self.engine.plan_changed(
            picture,
            Some(changes),
            WorkBudget::default(),
        ));
        let new = in_order(gsched::plan(&snapshot(state, now), WorkBudget::default()));
        assert_eq!(kept, new, "told {changes:?} of {picture:#?}");
        self.mirror.forget_changes();
        kept
    }

    /// What a quick pass gives away; `None`: that takes a full one.
    pub fn quick(&mut self, state: &State, now: Timestamp) -> Option<Plan> {
        self.mirror.update(state, now);
        let (picture, changes) = self.mirror.picture().unwrap();
        let plan = self.engine.after(picture, changes, WorkBudget::default())?;
        self.mirror.forget_changes();
        Some(plan)
    }
}

/// Jobs that may not start at all get that reason in the order of the snapshot, which is any.
fn in_order(mut plan: Plan) -> Plan {
    plan.reasons.sort_by_key(|(job, _)| *job);
    plan.array_reasons.sort_by_key(|(job, _)| *job);
    plan
}
