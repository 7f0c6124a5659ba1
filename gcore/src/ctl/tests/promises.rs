//! What holds after every input of a story, whatever it was: rows and events give the state, and nothing changes unnamed.

use crate::ctl::state::{State, StateMemos};
use crate::ctl::*;
use gmodel::NodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Rows as the store keeps them: documents.
pub(super) fn through_json(rows: Rows) -> Rows {
    serde_json::from_slice(&serde_json::to_vec(&rows).unwrap()).unwrap()
}

/// Everything but the memos of submission.
pub(super) fn same(one: &State, other: &State) -> bool {
    let blind = |state: &State| {
        let mut state = state.clone();
        state.memo = StateMemos {
            feasible: Arc::default(),
            members: Default::default(),
            late_specs: Default::default(),
            respecified: BTreeMap::new(),
            minutes: SubmissionTimes::default(),
            ..state.memo
        };
        format!("{state:?}")
    };
    blind(one) == blind(other)
}

/// What ends and is forgotten in one commit would never be written.
pub(super) fn none_is_forgotten_unwritten(before: &State, events: &[Event], shown: &str) {
    for event in events {
        if let Event::JobsForgotten { jobs, arrays } = event {
            for id in jobs {
                let over = before.job(*id).is_some_and(|job| job.state.is_final());
                assert!(over, "job {id} is forgotten by what ended it: {shown}");
            }
            for id in arrays {
                let over = before.array(*id).is_some_and(Array::is_over);
                assert!(over, "array {id} is forgotten by what ended it: {shown}");
            }
        }
    }
}

/// Where there is a fence program, a run that may still go on is written off only when its node is known to be off.
pub(super) fn none_is_written_off_before_the_fence(
    before: &State,
    after: &State,
    events: &[Event],
    shown: &str,
) {
    let is_off = |node: NodeId| {
        events
            .iter()
            .any(|event| matches!(event, Event::NodeFenced { node: off, .. } if *off == node))
    };
    let by_word = shown.contains("NodeDown") && shown.contains("fenced: true");
    for event in events {
        let Event::RunForfeited { run, node, .. } = event else {
            continue;
        };
        let member = before.run(*run).and_then(|run| run.member(*node));
        let may_go_on = member.is_some_and(|member| !member.is_ended());
        assert!(
            !after.config.fence_program || !may_go_on || is_off(*node) || by_word,
            "run {run} was written off before node {node} was off by {shown}"
        );
    }
}

/// A node takes the same number twice for the same orders.
pub(super) fn new_orders_have_a_new_number(before: &State, after: &State, shown: &str) {
    for id in before.nodes.keys().filter(|id| after.nodes.contains(*id)) {
        let (old, new) = (desired(before, id), desired(after, id));
        if old.runs != new.runs {
            assert!(
                old.fence < new.fence,
                "node {id} gets other orders with the same number after {shown}"
            );
        }
    }
}

/// A record that changed and is not named by an event's `touched` would be old after a restart.
pub(super) fn touched_covers_changes(before: &State, after: &State, events: &[Event], shown: &str) {
    let (mut jobs, mut arrays) = (BTreeSet::new(), BTreeSet::new());
    let (mut runs, mut nodes, mut tokens) = (BTreeSet::new(), BTreeSet::new(), false);
    for event in events {
        let touched = event.touched();
        jobs.extend(touched.job);
        arrays.extend(touched.array);
        runs.extend(touched.run);
        nodes.extend(touched.node);
        tokens |= touched.tokens;
        if touched.array_of_job {
            let job = touched.job.and_then(|job| after.job(job));
            arrays.extend(job.and_then(|job| job.task).map(|task| task.array));
        }
        // The store adds the run of a job with a changed limit, and forgets nothing that is over.
        match event {
            Event::JobUpdated { job, .. } => runs.extend(after.job(*job).and_then(Job::live_run)),
            Event::JobsForgotten {
                jobs: gone,
                arrays: gone_arrays,
            } => {
                jobs.extend(gone);
                arrays.extend(gone_arrays);
            }
            Event::ReasonsGiven {
                jobs: given,
                arrays: of_arrays,
            } => {
                jobs.extend(given.iter().map(|(id, _)| *id));
                arrays.extend(of_arrays.iter().map(|(id, _)| *id));
            }
            Event::ControllerStarted { .. } => nodes.extend(after.nodes.keys()),
            Event::NodeObeyed { node, .. } => {
                nodes.insert(*node);
            }
            _ => {}
        }
    }
    for (id, job) in after.jobs.iter().filter(|(id, _)| !jobs.contains(id)) {
        assert_eq!(
            Some(job),
            before.job(id),
            "job {id} changed untouched by {shown}"
        );
    }
    for (id, array) in after.arrays.iter().filter(|(id, _)| !arrays.contains(id)) {
        assert_eq!(
            Some(array),
            before.array(id),
            "array {id} changed untouched by {shown}"
        );
    }
    for (id, run) in after.runs.iter().filter(|(id, _)| !runs.contains(id)) {
        assert_eq!(
            Some(run),
            before.run(id),
            "run {id} changed untouched by {shown}"
        );
    }
    for id in before.runs.keys().filter(|id| !after.runs.contains(*id)) {
        assert!(runs.contains(&id), "run {id} went untouched by {shown}");
    }
    for (id, node) in after.nodes.iter().filter(|(id, _)| !nodes.contains(id)) {
        let Some(old) = before.node(id) else {
            panic!("node {id} came untouched by {shown}")
        };
        // These two are in the rows of the runs and in the number of the last event.
        let old = Node {
            runs: node.runs.clone(),
            generation: node.generation,
            ..old.clone()
        };
        assert_eq!(*node, old, "node {id} changed untouched by {shown}");
    }
    assert!(
        tokens || before.tokens.joins == after.tokens.joins,
        "tokens changed untouched by {shown}"
    );
}
