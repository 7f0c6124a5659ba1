//! An engine that is kept: its plans are those of a new one, and quick passes give out only what became free.

use super::promises::{cluster, cpus, gives_out_only_what_is_free};
use super::{NOW, picture};
use crate::changes::Changes;
use crate::decide::full_pass::walk_all;
use crate::engine::QuickPassState;
use crate::ledger::{Ledger, Take};
use crate::plan::Nomination;
use crate::{Engine, PendingJob, Plan, RunningRun, Snapshot, WorkBudget, plan};
use gmodel::config::{NodeSelection, Partition};
use gmodel::hostlist::Hostlist;
use gmodel::policy::{Account, GpuAmounts, Limits, PreemptMode};
use gmodel::{JobId, JobSpec, Policy, ReasonCode, RunClass, RunId, Timestamp};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What the core makes of a plan: runs instead of waiting jobs.
pub(super) fn enter(snapshot: &mut Snapshot, plan: &Plan) -> BTreeSet<RunId> {
    let mut runs = BTreeSet::new();
    for start in &plan.starts {
        let is_meant = |job: &PendingJob| {
            let own = job.id <= start.job && start.job.0 < job.id.0 + 10;
            own && start
                .partition
                .as_ref()
                .is_none_or(|name| *name == job.spec.partition)
        };
        let job = snapshot.pending.iter().rfind(|job| is_meant(job)).unwrap();
        let (id, is_array) = (job.id, job.particulars.positions.is_some());
        let ends_by = start
            .limit_secs
            .or(job.limit_secs)
            .map(|secs| snapshot.now.plus_secs(i64::from(secs)));
        let run = RunId::new(start.job, 1);
        let mut entry = RunningRun::new(run, job.spec.clone(), start.allocation.clone(), ends_by);
        entry.class = start.class;
        entry.placed = snapshot.now;
        entry.started = Some(snapshot.now);
        snapshot.running.push(entry);
        for share in &start.allocation {
            snapshot
                .nodes
                .iter_mut()
                .find(|node| node.id == share.node)
                .unwrap()
                .take(share);
        }
        assert!(runs.insert(run), "{run} twice");
        // All its entries, where it waits in several partitions.
        snapshot.pending.retain_mut(|job| {
            if job.id != id || job.particulars.positions.is_some() != is_array {
                return true;
            }
            let Some(positions) = &mut job.particulars.positions else {
                return false;
            };
            let position = (start.job.0 - id.0) as u32;
            *positions = positions.iter().filter(|one| *one != position).collect();
            !positions.is_empty()
        });
    }
    snapshot
        .pending
        .sort_by_key(|job| (job.id, job.spec.choice()));
    snapshot.running.sort_by_key(|run| run.run);
    runs
}

pub(super) fn end(snapshot: &mut Snapshot, at: usize) -> Changes {
    let gone = snapshot.running.remove(at);
    for share in &gone.shares {
        snapshot
            .nodes
            .iter_mut()
            .find(|node| node.id == share.node)
            .unwrap()
            .give(share);
    }
    Changes {
        runs: BTreeSet::from([gone.run]),
        nodes: gone.shares.iter().map(|share| share.node).collect(),
        all_pending: true,
        ..Changes::default()
    }
}

/// What a mirror tells.
fn difference(before: &Snapshot, after: &Snapshot) -> Changes {
    if before.nodes.len() != after.nodes.len() {
        return Changes {
            everything: true,
            ..Changes::default()
        };
    }
    let runs = |one: &Snapshot, other: &Snapshot| -> Vec<RunId> {
        one.running
            .iter()
            .filter(|run| !other.running.contains(run))
            .map(|run| run.run)
            .collect()
    };
    let nodes = before
        .nodes
        .iter()
        .zip(&after.nodes)
        .filter(|(was, is)| was != is);
    let only_free = before.nodes.iter().zip(&after.nodes).filter(|(was, is)| {
        let free = is.free_gpu_milli.clone();
        was != is
            && crate::SchedNode {
                free_cpus: is.free_cpus,
                free_mem_bytes: is.free_mem_bytes,
                free_gpu_milli: free,
                runs: is.runs,
                ..(*was).clone()
            } == **is
    });
    let length = before.pending.len().max(after.pending.len());
    Changes {
        runs: runs(before, after)
            .into_iter()
            .chain(runs(after, before))
            .collect(),
        nodes: nodes.map(|(_, is)| is.id).collect(),
        only_free: only_free.map(|(_, is)| is.id).collect(),
        pending: (0..length)
            .filter(|at| before.pending.get(*at) != after.pending.get(*at))
            .collect(),
        ..Changes::default()
    }
}

fn all() -> WorkBudget {
    WorkBudget::default()
}

/// A pass along the lines starts what a pass job by job starts, and gives everybody a reason of the same kind.
fn says_what_a_look_at_every_job_says(snapshot: &Snapshot, plan: &Plan) {
    let mut engine = Engine::default();
    engine.sync(snapshot, None);
    let (by_job, left) = walk_all(&mut engine, snapshot, all(), None, None, None);
    assert_eq!(plan.starts, by_job.starts);
    // Along the lines those are put off that are in nobody's way: they must come out the same after all starts.
    let mut along_lines = Engine::default();
    along_lines.plan(snapshot, all());
    assert_eq!(promises(&mut along_lines, snapshot), reserved(&left));
    let reasons = |plan: &Plan| -> BTreeMap<_, _> {
        let all = plan
            .reasons
            .iter()
            .map(|one| (one, false))
            .chain(plan.array_reasons.iter().map(|one| (one, true)));
        let told: BTreeMap<_, _> = all
            .map(|((job, reason), array)| ((*job, array), reason.code))
            .collect();
        assert_eq!(
            told.len(),
            plan.reasons.len() + plan.array_reasons.len(),
            "nobody is told twice"
        );
        // Who is told nothing has the reason that is known.
        let known = snapshot.pending.iter().map(|job| {
            (
                (job.id, job.particulars.positions.is_some()),
                job.reason.code,
            )
        });
        known.chain(told).collect()
    };
    assert_eq!(reasons(plan), reasons(&by_job));
}

pub(super) fn told_what_changed_it_plans_alike(
    mut snapshot: Snapshot,
    coming: Snapshot,
    steps: Vec<(prop::sample::Index, i64)>,
) {
    snapshot.running.sort_by_key(|run| run.run);
    let mut coming = coming.pending.into_iter().peekable();
    let mut engine = Engine::default();
    let mut silent = Engine::silent();
    let mut before = Snapshot::default();
    for (which, secs) in steps {
        let kept = engine.plan_changed(&snapshot, Some(&difference(&before, &snapshot)), all());
        let only_starts =
            silent.plan_changed(&snapshot, Some(&difference(&before, &snapshot)), all());
        assert_eq!(
            (
                &only_starts.starts,
                &only_starts.preempts,
                &only_starts.classes
            ),
            (&kept.starts, &kept.preempts, &kept.classes)
        );
        assert_eq!(&kept, &plan(&snapshot, all()));
        says_what_a_look_at_every_job_says(&snapshot, &kept);
        let mut new = Engine::default();
        new.plan(&snapshot, all());
        assert_eq!(
            promises(&mut engine, &snapshot),
            promises(&mut new, &snapshot)
        );
        before = snapshot.clone();
        enter(&mut snapshot, &kept);
        for (id, reason) in &kept.reasons {
            snapshot
                .pending
                .iter_mut()
                .filter(|job| job.id == *id && job.particulars.positions.is_none())
                .for_each(|job| {
                    job.reason = reason.clone();
                    job.particulars.nomination = kept.nomination(*id, false).cloned();
                });
        }
        snapshot.now = snapshot.now.plus_secs(secs);
        if secs % 2 == 0 && !snapshot.running.is_empty() {
            let count = snapshot.running.len();
            end(&mut snapshot, which.index(count));
        }
        let mut new: Vec<_> = coming.by_ref().take(which.index(3)).collect();
        while let Some(rest) =
            coming.next_if(|next| new.last().is_some_and(|last| last.id == next.id))
        {
            new.push(rest);
        }
        for job in &mut new {
            (job.id, job.submitted) = (JobId(job.id.0 + 10_000), snapshot.now);
            job.eligible = snapshot.now.plus_secs(if secs % 5 == 0 { 30 } else { 0 });
        }
        snapshot.pending.append(&mut new);
        if secs % 3 == 0 && !snapshot.pending.is_empty() {
            let at = which.index(snapshot.pending.len());
            let gone = snapshot.pending.swap_remove(at);
            let is_array = gone.particulars.positions.is_some();
            snapshot
                .pending
                .retain(|job| job.id != gone.id || job.particulars.positions.is_some() != is_array);
        }
    }
}

pub(super) fn plans_as_a_new_one(mut snapshot: Snapshot, which: Vec<prop::sample::Index>) {
    snapshot.running.sort_by_key(|run| run.run);
    let mut engine = Engine::default();
    for which in which {
        let kept = engine.plan(&snapshot, all());
        assert_eq!(&kept, &plan(&snapshot, all()));
        says_what_a_look_at_every_job_says(&snapshot, &kept);
        let met = enter(&mut snapshot, &kept);
        if snapshot.running.is_empty() {
            break;
        }
        snapshot.now = snapshot.now.plus_secs(7);
        let count = snapshot.running.len();
        let mut changes = end(&mut snapshot, which.index(count));
        changes.runs.extend(met);
        changes.nodes.extend(
            kept.starts
                .iter()
                .flat_map(|start| &start.allocation)
                .map(|share| share.node),
        );
        let quick = engine.after(&snapshot, &changes, all()).unwrap();
        gives_out_only_what_is_free(&snapshot, &quick);
        enter(&mut snapshot, &quick);
    }
}

/// All reservations after a pass: for whom, when, and on which nodes.
fn promises(engine: &mut Engine, snapshot: &Snapshot) -> Vec<(JobId, Timestamp, Vec<usize>)> {
    engine.make_ready(snapshot);
    reserved(engine.left.as_ref().unwrap())
}

/// Those that were not taken back.
fn reserved(left: &QuickPassState) -> Vec<(JobId, Timestamp, Vec<usize>)> {
    let standing = left.reserved.iter().filter(|one| !one.holds.is_empty());
    standing
        .map(|one| (one.job, one.at, one.nodes().collect()))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn a_kept_engine_plans_as_a_new_one(snapshot in cluster(), which in prop::collection::vec(any::<prop::sample::Index>(), 1..6)) {
        plans_as_a_new_one(snapshot, which);
    }

    /// The ledger that quick passes keep says what one says that counts everything anew.
    #[test]
    fn a_kept_ledger_says_what_a_new_one_says(
        mut snapshot in cluster(), which in prop::collection::vec(any::<prop::sample::Index>(), 1..8),
        guaranteed in prop::option::of(prop::collection::vec(0u64..5, 2)), kept_idle in prop::option::of((0u64..4, 0u64..3)),
    ) {
        snapshot.running.sort_by_key(|run| run.run);
        let partitions = &mut Arc::make_mut(&mut snapshot.config).partitions;
        partitions[0].preempt_mode = PreemptMode::Off;
        let side = Partition { name: "side".into(), nodes: NodeSelection::Names(Hostlist::parse("n1").unwrap()), ..partitions[0].clone() };
        partitions.push(Partition { is_default: false, ..side });
        if let Some((main, side)) = kept_idle {
            (partitions[0].headroom, partitions[1].headroom) = (Some(GpuAmounts::all(main)), Some(GpuAmounts::all(side)));
        }
        let limits = Limits { gpus: Some(GpuAmounts::all(3)), running_jobs: Some(4), ..Limits::default() };
        let guaranteed = |at: usize| guaranteed.as_ref().map(|gpus| GpuAmounts::all(gpus[at]));
        let account = |at: usize, name: &str| Account { name: name.into(), group: limits.clone(), guaranteed: guaranteed(at), ..Account::default() };
        let accounts = [(0, "odd"), (1, "even")].map(|(at, name)| (name.to_owned(), account(at, name)));
        snapshot.policy = Arc::new(Policy { accounts: accounts.into(), ..Policy::default() });
        let of_account = |spec: &mut Arc<JobSpec>, is_even: bool, partition: &str| {
            let spec = Arc::make_mut(spec);
            (spec.partition, spec.account) = (partition.into(), if is_even { "even" } else { "odd" }.into());
        };
        let partition = |job: JobId| if job.0 % 30 == 0 { "side" } else { "main" };
        snapshot.pending.iter_mut().for_each(|job| of_account(&mut job.spec, job.id.0 % 20 == 0, partition(job.id)));
        snapshot.running.iter_mut().for_each(|run| of_account(&mut run.spec, run.run.job.0 % 2 == 0, "main"));
        let mut engine = Engine::default();
        let plan = engine.plan(&snapshot, all());
        for (id, class) in &plan.classes {
            snapshot.running.iter_mut().filter(|run| run.run == *id).for_each(|run| run.class = Some(*class));
        }
        let mut met = enter(&mut snapshot, &plan);
        let mut nodes: BTreeSet<_> = plan.starts.iter().flat_map(|start| &start.allocation).map(|share| share.node).collect();
        for which in which {
            // One that ends before it was met is counted until the full pass.
            let known: Vec<usize> = (0..snapshot.running.len()).filter(|at| !met.contains(&snapshot.running[*at].run)).collect();
            if known.is_empty() {
                break;
            }
            let mut changes = end(&mut snapshot, known[which.index(known.len())]);
            changes.runs.append(&mut met);
            changes.nodes.append(&mut nodes);
            // None where something is set aside until more is idle.
            let Some(quick) = engine.after(&snapshot, &changes, all()) else { break };
            nodes.extend(quick.starts.iter().flat_map(|start| &start.allocation).map(|share| share.node));
            met = enter(&mut snapshot, &quick);
            let (kept, new) = (engine.left.as_ref().unwrap().ledger.as_ref().unwrap(), Ledger::new(&snapshot));
            for (job, gpus) in snapshot.pending.iter().flat_map(|job| (0..5).map(move |gpus| (job, gpus))) {
                let take = Take { gpus: BTreeMap::from([("h100".to_owned(), gpus * 1000)]), cpus: 1, nodes: 1 };
                prop_assert_eq!(kept.check_but(job, &take, |_| false), new.check_but(job, &take, |_| false), "job {} of {} GPUs", job.id, gpus);
            }
        }
    }

    /// What changed says all that an engine must know to plan as one that sees everything for the first time.
    #[test]
    fn who_is_told_what_changed_plans_as_who_looks_at_everything(
        snapshot in cluster(), coming in cluster(), steps in prop::collection::vec((any::<prop::sample::Index>(), 0i64..90), 1..8),
    ) {
        told_what_changed_it_plans_alike(snapshot, coming, steps);
    }

    /// Where nodes are given out in their order more is promised again without a search.
    #[test]
    fn on_nodes_without_gpus_who_is_told_what_changed_plans_alike_too(
        snapshot in cpus(), coming in cpus(), steps in prop::collection::vec((any::<prop::sample::Index>(), 0i64..200), 1..12),
    ) {
        told_what_changed_it_plans_alike(snapshot, coming, steps);
    }

    /// The first that waits loses nothing by those who are started quickly.
    #[test]
    fn who_was_to_start_at_a_time_still_can(mut snapshot in cluster(), which in any::<prop::sample::Index>()) {
        snapshot.running.sort_by_key(|run| run.run);
        let mut engine = Engine::default();
        let first = engine.plan(&snapshot, all());
        let mut met = enter(&mut snapshot, &first);
        prop_assume!(!snapshot.running.is_empty());
        let count = snapshot.running.len();
        let mut changes = end(&mut snapshot, which.index(count));
        let before = starts(&snapshot);
        changes.runs.append(&mut met);
        changes.nodes.extend(first.starts.iter().flat_map(|start| &start.allocation).map(|share| share.node));
        let quick = engine.after(&snapshot, &changes, all()).unwrap();
        enter(&mut snapshot, &quick);
        let head = snapshot.pending.iter().filter(|job| job.particulars.positions.is_none()).map(|job| job.id).min();
        let ahead = |job: JobId| quick.starts.iter().any(|start| start.job < job);
        if let Some(head) = head.filter(|head| !ahead(*head)) {
            let after = starts(&snapshot);
            let told = |list: &[(JobId, Option<i64>)]| list.iter().find(|(job, _)| *job == head).and_then(|(_, at)| *at);
            if let (Some(before), Some(after)) = (told(&before), told(&after)) {
                prop_assert!(after <= before.max(named(&first, head)), "job {head} from {before} to {after}");
            }
        }
    }
}

/// The start that the text of the first plan named, seconds from now; nothing where it named none.
fn named(plan: &Plan, job: JobId) -> i64 {
    let text = plan
        .reasons
        .iter()
        .find(|(id, _)| *id == job)
        .map(|(_, reason)| reason.text.to_string());
    let at = text.and_then(|text| gmodel::time::parse_rfc3339(text.rsplit_once("expected by ")?.1));
    at.map_or(i64::MAX, |at| at.since_secs(NOW))
}

fn starts(snapshot: &Snapshot) -> Vec<(JobId, Option<i64>)> {
    let jobs = snapshot.pending.iter().map(|job| job.id).collect();
    let told = crate::forecast(snapshot, &jobs);
    told.into_iter()
        .map(|one| (one.job, one.start.map(|at| at.since_secs(NOW))))
        .collect()
}

#[test]
fn who_waits_for_what_is_out_of_order_is_told_when_that_changes() {
    let mut snapshot = picture("node n1 h100:2\njob gpus=2 time=100");
    let mut engine = Engine::default();
    let mut before = Snapshot::default();
    let mut told = |snapshot: &Snapshot| {
        let plan = engine.plan_changed(snapshot, Some(&difference(&before, snapshot)), all());
        before = snapshot.clone();
        assert_eq!(plan, super::plan(snapshot, all()));
        plan.reasons[0].1.text.to_string()
    };
    snapshot.nodes[0].unavailable = Some("not responding".into());
    assert_eq!(
        told(&snapshot),
        "nodes it needs are not available (n1: not responding)"
    );
    snapshot.nodes[0].unavailable = Some("drained: disk".into());
    assert_eq!(
        told(&snapshot),
        "nodes it needs are not available (n1: drained: disk)"
    );
    snapshot.nodes[0].unavailable = None;
    let fault = |snapshot: &mut Snapshot, fault: &str| {
        Arc::make_mut(&mut snapshot.nodes[0].gpus)[1].info.fault = fault.into()
    };
    fault(&mut snapshot, "is hot");
    assert_eq!(
        told(&snapshot),
        "nodes it needs are not available (n1: gpu1 is hot)"
    );
    fault(&mut snapshot, "fell off the bus");
    assert_eq!(
        told(&snapshot),
        "nodes it needs are not available (n1: gpu1 fell off the bus)"
    );
    Arc::make_mut(&mut snapshot.nodes[0].gpus)[1].present = false;
    Arc::make_mut(&mut snapshot.nodes[0].gpus)[1].forgotten = true;
    assert!(
        told(&snapshot).ends_with("has no such nodes"),
        "nobody expects it back"
    );
}

#[test]
fn only_reservations_that_may_begin_before_a_start_is_over_are_made_for_it() {
    let queue = |second: &str| {
        format!(
            "node n1 h100:4
             node n2 h100:4
             running 1 n1 gpus=0-3 left=1000
             running 2 n2 gpus=0 left=300
             job nodes=2 gpn=4 time=1000
             {second}
             job nodes=2 gpn=4 time=700
             job gpus=2 time=900"
        )
    };
    let decided = |text: &str| {
        let mut engine = Engine::default();
        let plan = engine.plan(&picture(text), all());
        let left = engine.left.unwrap();
        (
            plan.starts
                .iter()
                .map(|start| start.job.0)
                .collect::<Vec<_>>(),
            left.reserved.len(),
            left.wants.len(),
        )
    };
    assert_eq!(
        decided(&queue("job nodes=2 gpn=4 time=500")),
        (vec![40], 1, 2),
        "both begin after the first"
    );
    assert!(
        decided(&queue("job gpus=4 time=600")).0.is_empty(),
        "between the run on n2 and the first there is time for the second"
    );
    assert_eq!(
        decided(&queue("job gpus=4 time=800")),
        (vec![40], 1, 2),
        "there is not"
    );
}

#[test]
fn a_silent_engine_starts_the_same_and_tells_nobody_why_he_waits() {
    let snapshot = picture(
        "node n1 h100:4
         node n2 h100:4
         running 1 n1 gpus=0-3 left=1000
         job nodes=2 gpn=4 time=1000
         job gpus=4 time=2000
         job gpus=4 time=900
         job gpus=4 time=800",
    );
    let (mut silent, loud) = (Engine::silent(), plan(&snapshot, all()));
    let only_starts = silent.plan(&snapshot, all());
    assert_eq!(
        only_starts
            .starts
            .iter()
            .map(|start| start.job.0)
            .collect::<Vec<_>>(),
        [30]
    );
    assert_eq!(
        (
            &only_starts.starts,
            only_starts.reasons.len(),
            loud.reasons.len()
        ),
        (&loud.starts, 0, 3)
    );
    assert!(
        silent.left.is_none(),
        "what it did not look at no quick pass may rest on"
    );
}

#[test]
fn the_one_who_waits_longest_for_what_is_freed_gets_it() {
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
    // What a pass started counts in the quick ones after it, whose snapshot knows no run of it yet.
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
    // What is beyond it came once more from the first task on, and the fourth GPU was kept for nobody.
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
fn of_an_array_that_waits_first_one_task_is_promised_a_start_until_somebody_would_start_beside_it()
{
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
fn while_others_go_for_a_job_no_quick_pass_gives_its_guarantee_away() {
    // 11 comes before 10 in the order, and asks for the same guarantee.
    let text = "node n1 h100:4
         node n2 h100:4
         account a g=4
         account b
         run 1 b bob 4 on=n1 ago=900 class=b
         run 2 b bob 4 on=n2 ago=800 class=b
         job 10 a ann 4
         job 11 a ann 4 nice=-100";
    let quick = |leaves_for: Option<JobId>, ends: usize| {
        let mut snapshot = crate::tests::world::world(text);
        snapshot.running[0].leaves_by = leaves_for.map(|_| snapshot.now.plus_secs(60));
        snapshot.running[0].leaves_for = leaves_for;
        snapshot.pending[0].particulars.nomination = Some(Nomination::default());
        if leaves_for.is_none() {
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
fn who_just_went_for_a_job_does_not_come_back_in_its_place_in_a_quick_pass() {
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
