//! An engine that is kept: its plans are those of a new one, and quick passes give out only what became free.

use super::promises::{cluster, cpus, gives_out_only_what_is_free};
use super::{NOW, picture};
use crate::changes::Changes;
use crate::decide::full_pass::pass_over_entries;
use crate::engine::QuickPassState;
use crate::ledger::{Ledger, Take};
use crate::tests::world::end_run;
use crate::{Engine, PendingJob, Plan, RunningRun, Snapshot, WorkBudget, plan};
use gmodel::config::{NodeSelection, Partition};
use gmodel::hostlist::Hostlist;
use gmodel::policy::{Account, GpuAmounts, Limits, PreemptMode};
use gmodel::{JobId, JobSpec, Policy, RunId, Timestamp};
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
    let id = snapshot.running[at].run;
    let gone = end_run(snapshot, id);
    Changes {
        runs: BTreeSet::from([gone.run]),
        nodes: gone.shares.iter().map(|share| share.node).collect(),
        all_pending: true,
        ..Changes::default()
    }
}

/// What a mirror tells.
pub(super) fn difference(before: &Snapshot, after: &Snapshot) -> Changes {
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

pub(super) fn all() -> WorkBudget {
    WorkBudget::default()
}

/// A pass by queue groups starts the same jobs as a pass job by job, and gives reasons of the same kind.
fn says_what_a_look_at_every_job_says(snapshot: &Snapshot, plan: &Plan) {
    let mut engine = Engine::default();
    engine.sync(snapshot, None);
    let (by_job, left) = pass_over_entries(&mut engine, snapshot, all(), |_| {}, |_, _, _| true);
    assert_eq!(plan.starts, by_job.starts);
    // A pass by queue groups defers planned starts that block no job: they must come out the same after all starts.
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
        // A job without a new reason keeps its present one.
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

/// All planned starts after a pass: job, time and nodes.
pub(super) fn promises(
    engine: &mut Engine,
    snapshot: &Snapshot,
) -> Vec<(JobId, Timestamp, Vec<usize>)> {
    engine.make_ready(snapshot);
    reserved(engine.left.as_ref().unwrap())
}

/// Those that were not taken back.
pub(super) fn reserved(left: &QuickPassState) -> Vec<(JobId, Timestamp, Vec<usize>)> {
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
    fn an_engine_told_the_changes_plans_as_one_that_looks_at_everything(
        snapshot in cluster(), coming in cluster(), steps in prop::collection::vec((any::<prop::sample::Index>(), 0i64..90), 1..8),
    ) {
        told_what_changed_it_plans_alike(snapshot, coming, steps);
    }

    /// Where nodes are given out in their order more is promised again without a search.
    #[test]
    fn an_engine_told_the_changes_plans_alike_on_nodes_without_gpus(
        snapshot in cpus(), coming in cpus(), steps in prop::collection::vec((any::<prop::sample::Index>(), 0i64..200), 1..12),
    ) {
        told_what_changed_it_plans_alike(snapshot, coming, steps);
    }

    /// Quick passes do not delay the first pending job.
    #[test]
    fn a_planned_start_is_kept(mut snapshot in cluster(), which in any::<prop::sample::Index>()) {
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

pub(super) fn starts(snapshot: &Snapshot) -> Vec<(JobId, Option<i64>)> {
    let jobs = snapshot.pending.iter().map(|job| job.id).collect();
    let told = crate::forecast(snapshot, &jobs);
    told.into_iter()
        .map(|one| (one.job, one.start.map(|at| at.since_secs(NOW))))
        .collect()
}

#[test]
fn a_job_that_waits_for_broken_gpus_is_told_when_that_changes() {
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
fn a_silent_engine_starts_the_same_jobs_and_gives_no_reasons() {
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

/// The start that the text of the first plan named, seconds from now; nothing where it named none.
pub(super) fn named(plan: &Plan, job: JobId) -> i64 {
    let text = plan
        .reasons
        .iter()
        .find(|(id, _)| *id == job)
        .map(|(_, reason)| reason.text.to_string());
    let at = text.and_then(|text| gmodel::time::parse_rfc3339(text.rsplit_once("expected by ")?.1));
    at.map_or(i64::MAX, |at| at.since_secs(NOW))
}
