//! Random jobs that wait in several partitions: each starts once, and its explanation and proposed changes hold in all of them.

use super::kept::{plans_as_a_new_one, told_what_changed_it_plans_alike};
use super::promises::{cluster, gives_out_only_what_is_free};
use super::{NOW, RESERVING};
use crate::{Explanation, Snapshot, WorkBudget, plan, why};
use gmodel::JobId;
use gmodel::config::{NodeSelection, Partition};
use gmodel::hostlist::Hostlist;
use gmodel::policy::{Account, Backfill, GpuAmounts};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Three partitions over the nodes of a random cluster, which give other CPUs with a GPU, and jobs that name some of them.
fn in_partitions() -> impl Strategy<Value = Snapshot> {
    let lists = prop::sample::select(vec![
        "main",
        "odd",
        "main,odd",
        "odd,main",
        "even,odd,main",
        "odd,gone",
    ]);
    let cpus = prop::collection::vec(prop::sample::select(vec![None, Some(4), Some(10)]), 3);
    let backfill = prop::sample::select(vec![Backfill::EASY, Backfill::First(3), RESERVING]);
    // Nodes of two kinds, and jobs that want all of theirs to be of one.
    let alike = prop::sample::select(vec![
        None,
        None,
        Some("[r1|r2]"),
        Some("[gone|r2|r1]"),
        Some("r1"),
    ]);
    let lists = (lists, alike);
    (
        cluster(),
        prop::collection::vec(lists, 12),
        any::<bool>(),
        cpus,
        backfill,
    )
        .prop_map(|(mut snapshot, lists, tiers, cpus, backfill)| {
            for (at, node) in snapshot.nodes.iter_mut().enumerate() {
                node.features
                    .push(if at % 3 == 0 { "r1" } else { "r2" }.to_owned());
            }
            let part = |name: &str, nodes: &str, priority_tier: u32| Partition {
                name: name.into(),
                nodes: NodeSelection::Names(Hostlist::parse(nodes).unwrap()),
                priority_tier,
                ..Partition::default()
            };
            let mut config = (*snapshot.config).clone();
            config.partitions.extend([
                part("odd", "n1,n3,n5", if tiers { 3 } else { 1 }),
                part("even", "n2,n4", 1),
            ]);
            config.scheduler.backfill = backfill;
            config
                .partitions
                .iter_mut()
                .zip(cpus)
                .for_each(|(one, cpus)| one.cpus_per_gpu = cpus);
            snapshot.config = Arc::new(config);
            let jobs = std::mem::take(&mut snapshot.pending);
            for (mut job, (list, alike)) in jobs.into_iter().zip(lists) {
                let mut spec = (*job.spec).clone();
                spec.partition = list.into();
                spec.request.constraint =
                    alike.map(str::to_owned).or(spec.request.constraint.clone());
                // Half of them ask for what the partition gives.
                spec.request.cpus_per_task = spec.request.cpus_per_task.filter(|cpus| *cpus > 10);
                job.spec = Arc::new(spec);
                snapshot.pending.extend(job.in_each_partition());
            }
            snapshot
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn each_starts_once_or_has_one_reason(snapshot in in_partitions()) {
        let told = plan(&snapshot, WorkBudget::default());
        gives_out_only_what_is_free(&snapshot, &told);
        let started: BTreeSet<JobId> = told.starts.iter().map(|start| start.job).collect();
        prop_assert_eq!(started.len(), told.starts.len(), "nobody starts twice");
        for start in &told.starts {
            let entry = snapshot.pending.iter().rfind(|job| job.id <= start.job).unwrap();
            prop_assert_eq!(start.partition.is_some(), entry.partition_of_several().is_some());
            if entry.spec.alternative.is_some() {
                let node = |id| snapshot.nodes.iter().find(|node| node.id == id).unwrap();
                let kinds: BTreeSet<&String> = start.allocation.iter().map(|share| node(share.node).features.last().unwrap()).collect();
                prop_assert_eq!(kinds.len(), 1, "all nodes are alike");
            }
        }
        let reasons: Vec<JobId> = told.reasons.iter().chain(&told.array_reasons).map(|(id, _)| *id).collect();
        prop_assert_eq!(reasons.iter().collect::<BTreeSet<_>>().len(), reasons.len(), "nobody has two reasons");
        for job in &snapshot.pending {
            let tasks = job.particulars.positions.as_ref().map_or(1, |positions| positions.len());
            let all = (0..tasks).all(|at| started.contains(&JobId(job.id.0 + at)));
            prop_assert_ne!(all, reasons.contains(&job.id), "job {} has to start or to have a reason", job.id);
        }
    }

    #[test]
    fn a_kept_engine_treats_them_as_a_new_one(snapshot in in_partitions(), which in prop::collection::vec(any::<prop::sample::Index>(), 1..6)) {
        plans_as_a_new_one(snapshot, which);
    }

    #[test]
    fn told_what_changed_an_engine_treats_them_alike(
        snapshot in in_partitions(), coming in in_partitions(), steps in prop::collection::vec((any::<prop::sample::Index>(), 0i64..90), 1..8),
    ) {
        told_what_changed_it_plans_alike(snapshot, coming, steps);
    }
}

/// Licences that some need, a night in which a node is kept, a limit of the account, jobs that are held: all at once.
fn with_all_that_hinders(mut snapshot: Snapshot, needs: u8, held: u8, limit: u64) -> Snapshot {
    let config = Arc::make_mut(&mut snapshot.config);
    config.scheduler.order = gmodel::policy::JobOrder::Fifo;
    config.scheduler.licences.insert("matlab".into(), 2);
    let group = gmodel::policy::Limits {
        gpus: Some(GpuAmounts::all(limit)),
        ..Default::default()
    };
    let account = Account {
        name: "a".into(),
        group,
        ..Account::default()
    };
    let kept = super::reservation(&["night", "nodes=n1", "from=700", "secs=500"]);
    let policy = Arc::make_mut(&mut snapshot.policy);
    policy.accounts.insert("a".into(), account);
    policy.reservations.insert(kept.name.clone(), kept);
    for job in &mut snapshot.pending {
        let bit = 1u8 << (job.id.0 / 10 % 8);
        job.particulars.held_by = (held & bit != 0).then(|| "user:bob".into());
        let spec = Arc::make_mut(&mut job.spec);
        spec.account = "a".into();
        if needs & bit != 0 {
            spec.licences.insert("matlab".into(), 1);
        }
    }
    snapshot
}

pub(super) fn starts(snapshot: &Snapshot, job: JobId) -> bool {
    let entries = || snapshot.pending.iter().filter(|one| one.id == job);
    plan(snapshot, WorkBudget::default())
        .starts
        .iter()
        .any(|start| entries().any(|entry| entry.is_or_has(start.job)))
}

/// A job that is told to start does, one that is not has something in its way, and each change that is proposed starts it.
pub(super) fn what_is_told_is_so(
    snapshot: &Snapshot,
    id: JobId,
) -> Result<Explanation, TestCaseError> {
    let told = why(snapshot, id).unwrap();
    prop_assert_eq!(
        told.starts_now,
        starts(snapshot, id),
        "job {}: {:?}",
        id,
        told
    );
    prop_assert_ne!(
        told.starts_now,
        !told.blockers.is_empty(),
        "job {}: {:?}",
        id,
        told
    );
    for change in told.changes.iter().filter(|change| change.starts == NOW) {
        let mut changed = snapshot.clone();
        changed
            .pending
            .iter_mut()
            .filter(|one| one.id == id)
            .for_each(|one| *one = change.edit.apply(one).unwrap_or_else(|| one.clone()));
        if matches!(change.edit, crate::Edit::Partition(_)) {
            let mut seen = BTreeSet::new();
            changed
                .pending
                .retain(|one| one.id != id || seen.insert(one.spec.alternative));
        }
        prop_assert!(starts(&changed, id), "job {}: {:?}", id, change);
    }
    Ok(told)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
    /// The change is made in all of a job's partitions, as `gadm job update` does.
    #[test]
    fn what_is_proposed_starts_the_job_in_one_of_its_partitions(
        snapshot in in_partitions(), needs in any::<u8>(), held in any::<u8>(), limit in 1u64..20,
    ) {
        let snapshot = with_all_that_hinders(snapshot, needs & 0x6b, held & 0x12, limit);
        let ids: BTreeSet<JobId> = snapshot.pending.iter().map(|job| job.id).collect();
        for id in ids {
            what_is_told_is_so(&snapshot, id)?;
        }
    }
}
