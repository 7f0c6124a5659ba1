//! The changes that `--why` proposes: each starts the job, and a smaller one does not.

use super::promises::cluster;
use super::why::check;
use super::{NOW, picture};
use crate::{ArrayCap, Edit, PendingJob, Snapshot, WorkBudget, plan, why};
use expect_test::expect;
use gmodel::gpu_request::GpuAmount;
use gmodel::policy::{Account, GpuAmounts, JobOrder, Limits, Placement};
use gmodel::{JobId, ReasonCode};
use proptest::prelude::*;
use std::sync::Arc;

#[test]
fn another_type_or_partition_is_proposed() {
    check(
        "partition main nodes=n1
         partition other nodes=n2
         node n1 h100:4 a100:4
         node n2 h100:4
         running 1 n1 gpus=0-3 left=600
         job gpus=h100:4 time=1000",
        10,
        expect![[r#"
            0 ahead
            Resources: needs 4 h100, 1 CPU and 1G of memory on one node; n1 comes nearest and has 0 of 4 GPUs free, more becomes free there at 1970-01-01T00:26:40Z (until 1970-01-01T00:26:40Z)
            expected 1970-01-01T00:26:40Z on [1]
            --gpus a100:4: 1970-01-01T00:16:40Z
            --partition other: 1970-01-01T00:16:40Z
        "#]],
    );
}

#[test]
fn an_array_at_its_cap_is_told_of_a_higher_one() {
    let of = |text: &str, cap: ArrayCap| {
        let mut snapshot = picture(text);
        snapshot.pending[0].particulars.cap = Some(cap);
        let told = why(&snapshot, JobId(10)).unwrap();
        (
            told.blockers[0].text.clone(),
            told.changes
                .iter()
                .map(|change| change.option.clone())
                .collect::<Vec<_>>(),
        )
    };
    let (idle, busy) = (
        "node n1 h100:8\njob gpus=1 array=5 room=0 time=100",
        "node n1 h100:1\nrunning 1 n1 gpus=0 left=600\njob gpus=1 array=5 room=0 time=100",
    );
    let (text, changes) = of(
        idle,
        ArrayCap {
            most: 2,
            running: 2,
        },
    );
    assert_eq!(
        (text.as_str(), changes),
        (
            "the array allows 2 at once, and 2 of its tasks run",
            vec!["ArrayTaskThrottle=3".to_owned()]
        )
    );
    assert_eq!(
        of(
            idle,
            ArrayCap {
                most: 1,
                running: 4
            }
        )
        .1,
        ["ArrayTaskThrottle=5"],
        "the cap was lowered"
    );
    assert!(
        of(
            busy,
            ArrayCap {
                most: 1,
                running: 1
            }
        )
        .1
        .is_empty(),
        "there is no room for more"
    );
}

#[test]
fn changes_are_of_use_only_before_the_deadline() {
    let told = |deadline: Option<i64>| {
        let mut snapshot = picture(
            "node n1 h100:8\nrunning 1 n1 gpus=0-3 left=600\nrunning 2 n1 gpus=4-7 left=9000\njob gpus=8 time=500",
        );
        let job = &mut snapshot.pending[0];
        Arc::make_mut(&mut job.spec).deadline = deadline.map(|secs| NOW.plus_secs(secs));
        let told = why(&snapshot, JobId(10)).unwrap();
        let late = told.blockers[0]
            .text
            .contains("that is too late for its deadline");
        (
            late,
            told.changes
                .iter()
                .map(|change| change.option.clone())
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(told(None), (false, vec!["--gpus 4".into()]));
    assert_eq!(
        told(Some(1100)),
        (true, vec!["--gpus 4".into()]),
        "from 600 to 1100"
    );
    assert_eq!(told(Some(1099)), (true, vec![]));
    assert_eq!(told(Some(9500)), (false, vec!["--gpus 4".into()]));
}

/// A snapshot in which more stands in the way of some jobs.
fn hindered(mut snapshot: Snapshot, held: u8, late: u8, limit: u64) -> Snapshot {
    for (at, job) in snapshot.pending.iter_mut().enumerate() {
        if held & (1 << (at % 8)) != 0 {
            job.particulars.held_by = Some("user:bob".into());
        }
        if late & (1 << (at % 8)) != 0 {
            job.eligible = NOW.plus_secs(60);
        }
        Arc::make_mut(&mut job.spec).account = "a".into();
    }
    Arc::make_mut(&mut snapshot.config).scheduler.order = JobOrder::Fifo;
    let group = Limits {
        gpus: Some(GpuAmounts::all(limit)),
        ..Limits::default()
    };
    let account = Account {
        name: "a".into(),
        group,
        ..Account::default()
    };
    Arc::make_mut(&mut snapshot.policy)
        .accounts
        .insert("a".into(), account);
    snapshot
}

/// Takes one thing out of the way; `None` where that is not a matter of the job or the policy.
pub(super) fn without(snapshot: &Snapshot, job: JobId, code: ReasonCode) -> Option<Snapshot> {
    let mut changed = snapshot.clone();
    let at = changed.pending.iter().position(|one| one.id == job)?;
    match code {
        ReasonCode::JobHeldUser => changed.pending[at].particulars.held_by = None,
        ReasonCode::BeginTime => changed.pending[at].eligible = NOW,
        // For the others it holds on.
        ReasonCode::AssocGrpGRES => {
            Arc::make_mut(&mut changed.pending[at].spec).account = "free".into()
        }
        _ => return None,
    }
    Some(changed)
}

pub(super) fn starts(snapshot: &Snapshot, job: JobId) -> bool {
    plan(snapshot, WorkBudget::default())
        .starts
        .iter()
        .any(|start| start.job == job)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn what_is_proposed_starts_the_job_and_no_blocker_is_for_show(
        snapshot in cluster(), held in any::<u8>(), late in any::<u8>(), limit in 1u64..20,
    ) {
        let snapshot = hindered(snapshot, held & 0x11, late & 0x12, limit);
        for job in &snapshot.pending {
            let why = why(&snapshot, job.id).unwrap();
            prop_assert_eq!(why.starts_now, starts(&snapshot, job.id), "job {}: {:?}", job.id, why);
            for change in why.changes.iter().filter(|change| change.starts == NOW) {
                let mut changed = snapshot.clone();
                let at = changed.pending.iter().position(|one| one.id == job.id).unwrap();
                changed.pending[at] = change.edit.apply(job).unwrap();
                prop_assert!(starts(&changed, job.id), "job {}: {:?}", job.id, change);
            }
            for blocker in &why.blockers {
                if let Some(changed) = without(&snapshot, job.id, blocker.code) {
                    let alone = why.blockers.len() == 1;
                    prop_assert_eq!(starts(&changed, job.id), alone, "job {} without {:?}: {:?}", job.id, blocker, why);
                }
            }
        }
    }
}

/// All changes of an amount of a job, the least first, of each kind.
fn amounts(job: &PendingJob) -> Vec<Vec<Edit>> {
    let request = &job.spec.request;
    let gpus = request
        .gpus
        .iter()
        .flat_map(|ask| &ask.alternatives)
        .filter_map(|one| match one.amount {
            GpuAmount::Whole(count) => Some(count),
            _ => None,
        });
    let minutes = job.limit_secs.map_or(0, |secs| secs.div_ceil(60));
    vec![
        (1..gpus.max().unwrap_or(0)).rev().map(Edit::Gpus).collect(),
        (1..request.nodes_min).rev().map(Edit::Nodes).collect(),
        (request.nodes_min..request.ntasks)
            .rev()
            .map(Edit::Tasks)
            .collect(),
        (1..request.cpus_per_task.unwrap_or(1))
            .rev()
            .map(Edit::CpusPerTask)
            .collect(),
        (1..request.cpus_per_gpu.unwrap_or(1))
            .rev()
            .map(Edit::CpusPerGpu)
            .collect(),
        (1..minutes)
            .rev()
            .map(|minutes| Edit::TimeLimit(minutes * 60))
            .collect(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn no_smaller_change_of_an_amount_starts_the_job(snapshot in cluster(), limit in 1u64..30) {
        let mut snapshot = hindered(snapshot, 0, 0, limit);
        // Where others are packed depends on what all ask for, so on the change too.
        Arc::make_mut(&mut snapshot.config).scheduler.placement = Placement::BestFit;
        for job in &snapshot.pending {
            let why = why(&snapshot, job.id).unwrap();
            if why.starts_now || why.changes.len() == 6 {
                continue;
            }
            let works = |edit: &Edit| {
                let mut changed = snapshot.clone();
                let at = changed.pending.iter().position(|one| one.id == job.id).unwrap();
                changed.pending[at] = edit.apply(job).unwrap();
                starts(&changed, job.id)
            };
            for edits in amounts(job) {
                let told = why.changes.iter().find(|change| change.starts == NOW && edits.contains(&change.edit));
                let least = edits.iter().find(|edit| works(edit));
                prop_assert_eq!(told.map(|change| &change.edit), least, "job {}: {:?}", job.id, why);
            }
        }
    }
}

#[test]
fn the_least_change_of_large_amounts_is_found() {
    // Free are 100 of 200 GPUs, 37 of 128 CPUs and 131G of 400G, for 9 days and 13 minutes until the maintenance.
    let gpus = "node n1 h100:200
         running 1 n1 gpus=0-99 left=600
         job gpus=200 time=100";
    let cpus = "node n1 h100:8 128c
         running 1 n1 cpus=91 left=600
         job cpus=128 time=100";
    let mem = "node n1 h100:8 400G
         node n2 h100:8 132G
         running 1 n1 cpus=1 left=600
         job mem=400 nodes=2 time=100";
    let time = "reservation patch maint from=778380 secs=50
         node n1 h100:8
         job gpus=8";
    let by_gpu = "node n1 h100:8 128c
         running 1 n1 cpus=91 left=600
         job gpus=4 cpg=32 time=100";
    for (text, option) in [
        (gpus, "--gpus 100"),
        (cpus, "--cpus-per-task 37"),
        (by_gpu, "--cpus-per-gpu 9"),
        (mem, "--mem 132G"),
        (time, "--time 12973"),
    ] {
        let told = why(&picture(text), JobId(10)).unwrap();
        assert!(
            told.changes.iter().any(|change| change.option == option),
            "{option}: {told:?}"
        );
    }
}

/// What is proposed to start a job at once, each proposal shown to start it.
fn proposals(text: &str) -> Vec<String> {
    let snapshot = picture(text);
    let job = snapshot.pending.iter().map(|job| job.id).max().unwrap();
    let told = why(&snapshot, job).unwrap();
    for change in told.changes.iter().filter(|change| change.starts == NOW) {
        assert!(change.loss_milli <= 1000, "{change:?}");
        let mut changed = snapshot.clone();
        let at = changed
            .pending
            .iter()
            .position(|one| one.id == job)
            .unwrap();
        changed.pending[at] = change.edit.apply(&snapshot.pending[at]).unwrap();
        assert!(starts(&changed, job), "{change:?}");
    }
    told.changes
        .into_iter()
        .map(|change| {
            if change.starts == NOW {
                change.option
            } else {
                format!("later {}", change.option)
            }
        })
        .collect()
}

#[test]
fn fewer_tasks_are_proposed_and_less_memory_than_goes_with_the_rest() {
    let busy = |cpus: u32| {
        format!(
            "node n1 h100:8 64c 512G\nnode n2 h100:8 64c 512G\nrunning 1 n1 cpus={cpus} left=600\nrunning 2 n2 cpus=60 left=600\n"
        )
    };
    assert_eq!(
        proposals(&format!("{}job ntasks=16", busy(50))),
        ["--ntasks 14"]
    );
    assert_eq!(
        proposals(&format!("{}job ntasks=16 mem=usual", busy(50))),
        ["--ntasks 14"],
        "with the memory that goes with them"
    );
    assert_eq!(
        proposals(&format!("{}job cpus=16 mem=usual", busy(50))),
        ["--cpus-per-task 14"]
    );
    assert_eq!(
        proposals(&format!("{}job ntasks=16 nodes=2", busy(50))),
        ["--ntasks 9"]
    );
    assert_eq!(
        proposals(&format!("{}job per_node=6 nodes=2", busy(50))),
        ["--nodes 1"]
    );
    assert_eq!(
        proposals(&format!(
            "{}job ntasks=8 per_node=4 nodes=2 cpus=2",
            busy(50)
        )),
        ["--ntasks 5", "--nodes 1 --ntasks 4", "--cpus-per-task 1"]
    );
    // CPUs are free, but not the memory that goes with a share of the node.
    let full = "node n1 h100:8 64c 512G
        job gpus=1 mem=500 time=900
        job gpus=2 mem=usual";
    assert_eq!(proposals(full), ["--mem 12G"]);
}

#[test]
fn an_array_of_which_tasks_have_started_is_told_what_starts_the_next() {
    let mut snapshot =
        picture("node n1 h100:8\n running 1 n1 gpus=0-5 left=600\n job gpus=4 array=3");
    snapshot.pending[0].particulars.positions = Some("1-2".parse().unwrap());
    let told = why(&snapshot, JobId(10)).unwrap();
    assert_eq!(
        told.changes
            .iter()
            .map(|change| (&*change.option, change.starts))
            .collect::<Vec<_>>(),
        [("--gpus 2", NOW)]
    );
}

#[test]
fn where_nothing_starts_it_now_the_change_that_starts_it_soonest_is_told() {
    // Two GPUs are free in 100 s, until job 10 has them in 600 s.
    check(
        "node n1 h100:8
         running 1 n1 gpus=0-1 left=100
         running 2 n1 gpus=2-7 left=600
         job gpus=8 time=1000
         job gpus=2 time=3000",
        20,
        expect![[r#"
            1 ahead
            Resources: needs 2 GPUs, 1 CPU and 1G of memory on one node; n1 comes nearest and has 0 of 2 GPUs free, more becomes free there at 1970-01-01T00:18:20Z (until 1970-01-01T00:43:20Z)
            expected 1970-01-01T00:43:20Z on [1]
            --time 8: 1970-01-01T00:18:20Z
        "#]],
    );
    // A held job is not told to ask for less.
    let held = picture(
        "node n1 h100:8\n running 1 n1 gpus=0-7 left=100\n job gpus=8 time=1000 held=user:bob",
    );
    assert_eq!(why(&held, JobId(10)).unwrap().changes, []);
}
