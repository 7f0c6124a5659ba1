//! Quick and cut passes of a kept engine: arrays, caps, guarantees, and plans that are handed over in parts.

use super::kept::{all, end, promises};
use super::picture;
use crate::changes::Changes;
use crate::plan::Nomination;
use crate::{Engine, PendingJob, Plan, Snapshot, WorkBudget, plan};
use gmodel::policy::{Account, GpuAmounts, PreemptMode};
use gmodel::{JobId, Policy, ReasonCode, RunClass};
use std::sync::Arc;

#[test]
fn the_job_that_waits_longest_gets_what_is_freed() {
    let mut snapshot = picture(
        "node n1 h100:4
         node n2 h100:4
         running 1 n1 gpus=0-3 left=1000
         running 2 n2 gpus=0-3 left=2000
         job gpus=8 nodes=2 time=100
         job gpus=4 time=5000
         job gpus=4 time=900
         job gpus=4 time=900",
    );
    let mut engine = Engine::default();
    assert!(engine.plan(&snapshot, all()).starts.is_empty());
    let changes = end(&mut snapshot, 0);
    let quick = engine.after(&snapshot, &changes, all()).unwrap();
    let starts: Vec<_> = quick
        .starts
        .iter()
        .map(|start| (start.job.0, start.allocation[0].node.0))
        .collect();
    // The first needs both nodes, the second would keep it waiting.
    assert_eq!(starts, [(30, 1)]);
    assert!(quick.reasons.is_empty() && !quick.cut_short);
    let other = Changes {
        everything: true,
        ..Changes::default()
    };
    assert_eq!(
        engine.after(&snapshot, &other, all()),
        None,
        "that takes a full pass"
    );
}

/// An array of id 10 with a cap of two: tasks 1 and 2, and 0 and 3 with records of their own, behind them a job of 6 GPUs.
fn capped(cluster: &str) -> Snapshot {
    let mut snapshot = picture(&format!(
        "{cluster}\njob gpus=1 time=100 array=3 room=2\njob gpus=1 time=100 room=2\njob gpus=1 time=100 room=2\njob gpus=6 time=100"
    ));
    for (at, id) in [(1, 10), (2, 13)] {
        snapshot.pending[at].id = JobId(id);
        snapshot.pending[at].particulars.array = Some(JobId(10));
    }
    let mut between = gmodel::array_spec::RangeSet::new();
    for position in 1..3 {
        between.insert(position);
    }
    snapshot.pending[0].particulars.positions = Some(between);
    snapshot
}

#[test]
fn all_records_of_an_array_count_for_its_cap() {
    let started = |plan: &Plan| {
        plan.starts
            .iter()
            .map(|start| start.job.0)
            .collect::<Vec<_>>()
    };
    let snapshot = capped("node n1 h100:8");
    let told = plan(&snapshot, all());
    let of_array = started(&told).into_iter().filter(|id| *id < 40).count();
    assert_eq!(
        (of_array, started(&told).contains(&40)),
        (2, true),
        "who is behind gets what the others may not have: {told:?}"
    );
    let waits = told
        .reasons
        .iter()
        .chain(&told.array_reasons)
        .filter(|(_, reason)| reason.code == ReasonCode::JobArrayTaskLimit);
    assert_eq!(waits.count(), 2);
    let mut free = snapshot.clone();
    free.pending
        .iter_mut()
        .for_each(|job| job.particulars.array = None);
    assert_eq!(
        started(&plan(&free, all())).len(),
        4,
        "tasks of other arrays do not count: two, one and one"
    );
    // The starts of a pass count in later quick passes. Their snapshot lacks the runs.
    let mut snapshot = capped("node n1 h100:4\nnode n2 h100:1\nrunning 1 n1 gpus=0-3 left=1000");
    let mut engine = Engine::default();
    assert_eq!(engine.plan(&snapshot, all()).starts.len(), 1);
    let changes = end(&mut snapshot, 0);
    assert_eq!(
        engine
            .after(&snapshot, &changes, all())
            .unwrap()
            .starts
            .len(),
        1
    );
}

#[test]
fn of_an_array_beyond_its_guarantee_each_task_starts_once() {
    let mut snapshot = picture("node n1 h100:4\njob gpus=1 time=100 array=3 account=lab");
    let lab = Account {
        name: "lab".into(),
        guaranteed: Some(GpuAmounts::all(1)),
        ..Account::default()
    };
    snapshot.policy = Arc::new(Policy {
        accounts: [("lab".to_owned(), lab)].into(),
        ..Policy::default()
    });
    let starts: Vec<_> = plan(&snapshot, all())
        .starts
        .iter()
        .map(|start| (start.job.0, start.class))
        .collect();
    // Tasks beyond the guarantee came once more from the first on, and the fourth GPU stayed idle.
    assert_eq!(
        starts,
        [
            (10, Some(RunClass::Guaranteed)),
            (11, Some(RunClass::Borrowed)),
            (12, Some(RunClass::Borrowed))
        ]
    );
}

#[test]
fn a_pass_that_was_cut_short_comes_further_the_next_time() {
    let mut text = String::from(
        "backfill all\nnode n1 h100:8\nnode n2 h100:1\nrunning 1 n1 gpus=0-7 left=100\n",
    );
    (1..60).for_each(|at| text += &format!("job gpus={} time={}\n", 2 + at % 7, 10 + at));
    text += "job gpus=1 time=10\n";
    let snapshot = picture(&text);
    let mut engine = Engine::default();
    let few = WorkBudget {
        node_probes: 20,
        starts: 100,
    };
    let passes = (1..20).find(|_| !engine.plan(&snapshot, few).cut_short);
    assert!(passes.is_some_and(|passes| passes > 1), "{passes:?}");
}

#[test]
fn a_long_pass_is_handed_over_in_parts_that_make_up_the_whole() {
    let mut text = String::from(
        "backfill all\nnode n1 h100:8\nnode n2 h100:4\nrunning 1 n1 gpus=0-7 left=100\n",
    );
    (1..40).for_each(|at| text += &format!("job gpus={} time={}\n", 1 + at % 8, 10 + at));
    let snapshot = picture(&text);
    let whole = plan(&snapshot, all());
    let (tell, told) = std::sync::mpsc::channel();
    let last = Engine::default().plan_in_slices(
        &snapshot,
        None,
        all(),
        10,
        Box::new(move |part| tell.send(part).unwrap()),
    );
    let mut parts: Vec<Plan> = told.iter().collect();
    assert!(parts.len() > 1, "{} parts", parts.len());
    assert!(
        parts[0].starts.len() + parts[0].reasons.len() < whole.starts.len() + whole.reasons.len()
    );
    parts.push(last);
    assert_eq!(
        parts
            .iter()
            .flat_map(|part| part.starts.clone())
            .collect::<Vec<_>>(),
        whole.starts
    );
    assert_eq!(
        parts
            .iter()
            .flat_map(|part| part.reasons.clone())
            .collect::<Vec<_>>(),
        whole.reasons
    );
}

#[test]
fn a_waiting_array_has_one_planned_start_until_a_later_job_would_start_beside_it() {
    let text = "node n1 h100:4\nrunning 1 n1 gpus=0-3 left=1000\njob gpus=4 time=100 array=50\njob gpus=4 time=100 array=50";
    let snapshot = picture(text);
    let mut engine = Engine::default();
    engine.plan(&snapshot, all());
    assert_eq!(engine.left.as_ref().unwrap().reserved.len(), 1);
    let promised = promises(&mut engine, &snapshot);
    assert_eq!(promised.len(), 100, "K");
    assert!(promised[..50].iter().all(|(job, ..)| *job == promised[0].0));
}

#[test]
fn no_quick_pass_gives_away_the_guarantee_of_a_preemptor() {
    // 11 comes before 10 in the order, and asks for the same guarantee.
    let text = "node n1 h100:4
         node n2 h100:4
         account a g=4
         account b
         run 1 b bob 4 on=n1 ago=900 class=b
         run 2 b bob 4 on=n2 ago=800 class=b
         job 10 a ann 4
         job 11 a ann 4 nice=-100";
    let quick = |victim_of: Option<JobId>, ends: usize| {
        let mut snapshot = crate::tests::world::world(text);
        snapshot.running[0].stops_by = victim_of.map(|_| snapshot.now.plus_secs(60));
        snapshot.running[0].victim_of = victim_of;
        snapshot.pending[0].particulars.nomination = Some(Nomination::default());
        if victim_of.is_none() {
            snapshot.pending.remove(0);
            let partitions = &mut Arc::make_mut(&mut snapshot.config).partitions;
            partitions
                .iter_mut()
                .for_each(|one| one.preempt_mode = PreemptMode::Off);
        }
        let mut engine = Engine::default();
        engine.plan(&snapshot, all());
        let changes = end(&mut snapshot, ends);
        engine.after(&snapshot, &changes, all()).map(|plan| {
            plan.starts
                .iter()
                .map(|start| start.job.0)
                .collect::<Vec<_>>()
        })
    };
    assert_eq!(quick(None, 1), Some(vec![11]));
    assert_eq!(quick(Some(JobId(10)), 1), None, "that takes a full pass");
    assert_eq!(
        quick(Some(JobId(10)), 0),
        None,
        "the last of them is gone, and 10 is to start"
    );
}

#[test]
fn a_victim_does_not_return_in_its_preemptors_place_in_a_quick_pass() {
    for quotas in ["", "account b g=1"] {
        for limit in ["", "limit=600"] {
            let mut snapshot = crate::tests::world::world(&format!(
                "node n1 h100:2
                 account a
                 {quotas}
                 qos low
                 qos scav
                 qos high preempts=scav
                 run 1 a ann 1 on=n1 ago=900 qos=low
                 run 2 a ann 1 on=n1 ago=800 qos=scav limit=6000
                 job 10 a ann 1 qos=high {limit}"
            ));
            let mut engine = Engine::default();
            let told = engine.plan(&snapshot, all());
            assert_eq!(
                told.preempts
                    .iter()
                    .map(|one| one.run.job.0)
                    .collect::<Vec<_>>(),
                [2]
            );
            snapshot.pending[0].reason = told.reasons[0].1.clone();
            snapshot.pending[0].particulars.nomination =
                told.nomination(told.reasons[0].0, false).cloned();
            // It is gone at once, and back in the queue.
            let back = PendingJob {
                id: JobId(2),
                limit_secs: Some(6000),
                spec: snapshot.running[1].spec.clone(),
                ..snapshot.pending[0].clone()
            };
            let back = PendingJob {
                submitted: snapshot.now.plus_secs(-800),
                eligible: snapshot.now.plus_secs(-800),
                reason: gmodel::Reason::default(),
                ..back
            };
            let mut back = back;
            back.particulars.nomination = None;
            let mut changes = end(&mut snapshot, 1);
            snapshot.pending.insert(0, back);
            changes.all_pending = true;
            assert_eq!(
                engine.after(&snapshot, &changes, all()),
                None,
                "quotas {quotas:?} {limit:?}: that takes a full pass"
            );
            let starts: Vec<u64> = engine
                .plan(&snapshot, all())
                .starts
                .iter()
                .map(|start| start.job.0)
                .collect();
            assert_eq!(starts, [10], "quotas {quotas:?} {limit:?}");
        }
    }
}
