//! Starts foretold of those who wait for a limit, a guarantee or the next period of a cap.

use crate::tests::world::{NOW, world};
use crate::usage::Rate;
use crate::{PendingJob, RunningRun, Snapshot, WorkBudget, forecast, plan};
use gmodel::hostlist::Hostlist;
use gmodel::policy::{Backfill, JobOrder, Repeat, Reservation, ReservedPart};
use gmodel::{JobId, RunId, Timestamp};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// When each job is expected to start, seconds from now.
fn starts(snapshot: &Snapshot) -> Vec<(u64, Option<i64>)> {
    let all = snapshot.pending.iter().map(|job| job.id).collect();
    let mut told: Vec<_> = forecast(snapshot, &all)
        .iter()
        .map(|one| (one.job.0, one.start.map(|at| at.since_secs(NOW))))
        .collect();
    told.sort_unstable();
    told
}

fn told(text: &str) -> Vec<(u64, Option<i64>)> {
    starts(&world(text))
}

#[test]
fn who_waits_for_a_limit_starts_when_a_run_that_holds_it_ends() {
    let of = |policy: &str, job: &str| {
        let text = format!(
            "node n1 h100:8
             node n2 h100:8
             {policy}
             run 1 a ann 4 on=n1 ago=100 limit=700 {job}
             run 2 a bob 2 on=n1 ago=100 limit=400 {job}
             job 10 a ann 4 limit=1000 {job}
             job 11 a ann 1 limit=1000 {job}"
        );
        told(&text)
    };
    assert_eq!(
        of("account a limit=8", ""),
        [(10, Some(600)), (11, Some(0))],
        "who comes behind is within the limit, and takes of it"
    );
    assert_eq!(
        of("account a limit=9", ""),
        [(10, Some(300)), (11, Some(0))],
        "so much that the other run must be over, too"
    );
    assert_eq!(
        of("account a userjobs=1", ""),
        [(10, Some(600)), (11, Some(1600))],
        "of each user one run"
    );
    assert_eq!(
        of("qos q grpjobs=2\naccount a", "qos=q"),
        [(10, Some(300)), (11, Some(600))]
    );
    assert_eq!(
        of("qos q usergpus=4\naccount a", "qos=q"),
        [(10, Some(600)), (11, Some(1600))]
    );
    assert_eq!(
        of("account a grphours=1", ""),
        [(10, None), (11, Some(300))],
        "4 GPUs for 1000 s are more than that"
    );
    assert_eq!(
        of("account a limit=3", ""),
        [(10, None), (11, Some(600))],
        "more than the limit"
    );
    assert_eq!(of("account a", ""), [(10, Some(0)), (11, Some(0))]);
}

#[test]
fn who_is_within_a_limit_before_another_and_runs_on_moves_him_on() {
    let queue = |behind: &str| {
        told(&format!(
            "node n1 h100:8
             node n2 h100:8
             account a limit=8
             run 1 a ann 4 on=n1 limit=100
             run 2 a ann 4 on=n1 limit=200
             job 10 a ann 8 limit=50
             {behind}"
        ))
    };
    assert_eq!(queue(""), [(10, Some(200))]);
    assert_eq!(
        queue("job 11 a ann 4 limit=1000"),
        [(10, Some(1100)), (11, Some(100))]
    );
    assert_eq!(
        queue("job 11 a ann 4 limit=100"),
        [(10, Some(200)), (11, Some(100))]
    );
    assert_eq!(
        queue("job 11 a ann 4 limit=1000\njob 12 a ann 4 limit=1000"),
        [(10, Some(1200)), (11, Some(100)), (12, Some(200))]
    );
}

#[test]
fn however_many_move_one_on_the_plan_has_an_end() {
    // Each of one GPU passes those of eight before it, which it keeps waiting: in the end nobody is planned who does so.
    let many: String = (11..400)
        .map(|id| {
            format!(
                "job {id} a ann {} limit={}\n",
                if id % 4 == 0 { 8 } else { 1 },
                1000 + id * 37 % 911
            )
        })
        .collect();
    let told = told(&format!(
        "node n1 h100:64\naccount a limit=8\nrun 1 a ann 4 on=n1 limit=100\njob 10 a ann 8 limit=50\n{many}"
    ));
    assert!(told.iter().all(|(_, start)| start.is_some()), "{told:?}");
}

#[test]
fn a_run_without_an_end_and_a_limit_of_nothing_foretell_no_start() {
    assert_eq!(
        told("node n1 h100:8\naccount a limit=4\nrun 1 a ann 4 on=n1\njob 10 a ann 1 limit=50"),
        [(10, None)]
    );
    assert_eq!(
        told("node n1 h100:8\naccount a grpjobs=0\njob 10 a ann 1 limit=50"),
        [(10, None)]
    );
}

#[test]
fn who_waits_for_the_window_of_its_reservation_and_for_a_limit_starts_when_both_let_it() {
    let of = |account: &str, secs: u32, repeat: Repeat, tasks: Option<u32>| {
        let mut snapshot = world(&format!(
            "node n1 h100:8
             node n2 h100:8
             {account}
             run 1 a ann 4 on=n2 limit={secs}
             job 10 a ann 2 limit=50
             job 11 a ann 4 limit=50"
        ));
        let what = ReservedPart::Nodes(Hostlist::parse("n1").unwrap());
        let one = Reservation {
            name: "r".into(),
            start: NOW.plus_secs(100),
            duration_secs: 1000,
            repeat,
            what,
            users: ["ann".to_owned()].into(),
            ..Reservation::default()
        };
        Arc::make_mut(&mut snapshot.policy)
            .reservations
            .insert("r".into(), one);
        for job in &mut snapshot.pending {
            Arc::make_mut(&mut job.spec).reservation = Some("r".into());
        }
        snapshot.pending[0].positions = tasks.map(gmodel::array_spec::RangeSet::first_n);
        starts(&snapshot)
    };
    assert_eq!(
        of("account a limit=12", 300, Repeat::Once, None),
        [(10, Some(100)), (11, Some(100))]
    );
    assert_eq!(
        of("account a limit=4", 300, Repeat::Once, None),
        [(10, Some(300)), (11, Some(350))]
    );
    assert_eq!(
        of("account a limit=4", 2000, Repeat::Once, None),
        [(10, None), (11, None)],
        "then the window is over"
    );
    assert_eq!(
        of("account a limit=4", 2000, Repeat::Hourly, None),
        [(10, Some(3700)), (11, Some(3750))]
    );
    assert_eq!(
        of("account a\nqos urgent headroom=11", 300, Repeat::Once, None),
        [(10, Some(300)), (11, Some(350))],
        "of 16 five may be taken"
    );
    assert_eq!(
        of("account a limit=4", 300, Repeat::Once, Some(5)),
        [(10, Some(300)), (11, Some(450))],
        "two tasks at a time, and the last alone"
    );
}

#[test]
fn tasks_of_an_array_start_as_the_limit_lets_them() {
    let snapshot = world(
        "node n1 h100:8
         account a limit=2
         run 1 a ann 2 on=n1 limit=100
         job 10 a ann 1 limit=50 tasks=5",
    );
    let told = forecast(&snapshot, &BTreeSet::from([JobId(10)]));
    let tasks = told[0].tasks.as_ref().unwrap();
    let at = |task| tasks.of(task).map(|at| at.since_secs(NOW));
    assert_eq!(
        (0..5).map(at).collect::<Vec<_>>(),
        [100, 100, 150, 150, 200].map(Some)
    );
}

#[test]
fn who_does_not_borrow_starts_when_the_guarantee_has_room() {
    let of = |jobs: &str| {
        told(&format!(
            "node n1 h100:8
             node n2 h100:8
             account a g=4
             account b g=4
             run 1 a ann 4 on=n1 limit=100 class=g
             run 2 a ann 2 on=n1 limit=300 class=b
             run 3 b bob 2 on=n2 limit=900 class=g
             {jobs}"
        ))
    };
    assert_eq!(
        of("job 10 a ann 2 limit=50 noborrow"),
        [(10, Some(100))],
        "the borrowed run takes two of the four"
    );
    assert_eq!(
        of("job 10 a ann 4 limit=50 noborrow"),
        [(10, Some(300))],
        "all of them are free only after that"
    );
    assert_eq!(of("job 10 a ann 5 limit=50 noborrow"), [(10, None)]);
    assert_eq!(of("job 10 b bob 4 limit=50 noborrow"), [(10, Some(900))]);
    assert_eq!(
        of("job 10 a ann 2 limit=50"),
        [(10, Some(0))],
        "who borrows need not wait"
    );
    assert_eq!(
        of("job 10 a ann 4 limit=50 noborrow\njob 11 a ann 4 limit=50 noborrow"),
        [(10, Some(300)), (11, Some(350))]
    );
    assert_eq!(
        of("job 10 a ann 4 limit=50 noborrow\njob 11 a ann 2 limit=900"),
        [(10, Some(900)), (11, Some(0))],
        "who borrows now is guaranteed then"
    );
}

#[test]
fn who_waits_for_a_cap_starts_in_its_next_period() {
    // It is noon. Of 8 GPU-hours a day 6 are promised to what runs.
    let of = |jobs: &str| {
        told(&format!(
            "node n1 h100:8
             account a cap=8/day
             run 1 a ann 3 on=n1 limit=7200
             {jobs}"
        ))
    };
    let (hour, midnight) = (3600, 12 * 3600);
    assert_eq!(of("job 10 a ann 1 limit=7200"), [(10, Some(0))]);
    assert_eq!(
        of("job 10 a ann 4 limit=3600"),
        [(10, Some(midnight - hour / 2))],
        "what is left is enough for the last half hour of the day"
    );
    assert_eq!(
        of("job 10 a ann 2 limit=3600\njob 11 a ann 4 limit=3600"),
        [(10, Some(0)), (11, Some(midnight))]
    );
    assert_eq!(
        of("job 10 a ann 2 limit=3600\njob 11 a ann 8 limit=3600\njob 12 a ann 1 limit=3600"),
        [
            (10, Some(0)),
            (11, Some(midnight)),
            (12, Some(2 * midnight + midnight))
        ]
    );
    assert_eq!(
        of("job 10 a ann 1 limit=36000"),
        [(10, Some(midnight - 2 * hour))],
        "each of the two days that it reaches into has room"
    );
    assert_eq!(
        of("job 10 a ann 1 limit=43200"),
        [(10, Some(midnight + 16 * hour))],
        "8 hours in each of the next days"
    );
    assert_eq!(
        of("job 10 a ann 1 limit=36000\njob 11 a ann 1 limit=3600"),
        [(10, Some(midnight + 16 * hour)), (11, Some(0))]
    );
    assert_eq!(
        of("job 10 a ann 1 limit=36000\njob 11 a ann 1 limit=10800"),
        [(10, Some(midnight - 2 * hour)), (11, Some(3 * midnight))]
    );
    assert_eq!(
        of("job 10 a ann 8 limit=36000"),
        [(10, None)],
        "no day has so much"
    );
}

#[test]
fn who_waits_until_more_is_idle_than_is_kept_starts_when_runs_that_leave_enough_end() {
    let of = |policy: &str, jobs: &str| {
        told(&format!(
            "node n1 h100:8
             node n2 h100:4
             {policy}
             run 1 a ann 4 on=n1 limit=300 partition=p
             run 2 a bob 2 on=n2 limit=600 partition=p
             account a
             {jobs}"
        ))
    };
    let urgent = |kept: u32| format!("qos urgent headroom={kept}");
    assert_eq!(of(&urgent(2), "job 10 a ann 4 limit=50"), [(10, Some(0))]);
    assert_eq!(of(&urgent(3), "job 10 a ann 4 limit=50"), [(10, Some(300))]);
    assert_eq!(of(&urgent(7), "job 10 a ann 4 limit=50"), [(10, Some(600))]);
    assert_eq!(
        of(&urgent(9), "job 10 a ann 4 limit=50"),
        [(10, None)],
        "12 are never idle beside it"
    );
    assert_eq!(
        of(&urgent(7), "job 10 a ann 4 limit=50 qos=urgent"),
        [(10, Some(0))],
        "it is kept for such"
    );
    // What the first waits for nobody behind it takes; who is urgent does, and moves it on.
    let queue = "job 10 a ann 4 limit=50
job 11 a eve 1 limit=900";
    assert_eq!(of(&urgent(3), queue), [(10, Some(300)), (11, Some(300))]);
    assert_eq!(
        of(
            &urgent(4),
            "job 10 a ann 6 limit=50
job 11 a eve 1 limit=1000"
        ),
        [(10, Some(300)), (11, Some(350))]
    );
    assert_eq!(
        of(
            &urgent(4),
            "job 10 a ann 6 limit=50
job 11 a eve 1 limit=1000 qos=urgent"
        ),
        [(10, Some(600)), (11, Some(0))]
    );
    // Of a partition: on its nodes, from all but those who stand on their guarantee.
    let partition = |kept: u32| format!("partition train nodes=n1 headroom={kept}");
    assert_eq!(
        of(&partition(4), "job 10 a ann 4 limit=50 partition=train"),
        [(10, Some(300))]
    );
    assert_eq!(
        of(&partition(4), "job 10 a ann 2 limit=50"),
        [(10, Some(0))],
        "n2 keeps nothing"
    );
    assert_eq!(
        of(&partition(4), "job 10 a ann 3 limit=50"),
        [(10, Some(300))],
        "n1 has room sooner than n2"
    );
    assert_eq!(
        of(&partition(6), "job 10 a ann 3 limit=50"),
        [(10, Some(600))],
        "on n2"
    );
    assert_eq!(
        of(&partition(6), "job 10 a ann 3 limit=50 partition=train"),
        [(10, None)]
    );
    let owed = of(
        &format!(
            "{}
account b g=8",
            partition(4)
        ),
        "job 10 b eve 4 limit=50 partition=train
job 11 b eve 4 limit=20 partition=train",
    );
    assert_eq!(
        owed,
        [(10, Some(0)), (11, Some(40))],
        "each stands on its guarantee, and the second makes room"
    );
    // Of what accounts do not lend borrowers are told, too.
    let lent = |lend: u32| {
        of(
            &format!("account b g=8 lend={lend}"),
            "job 10 a ann 3 limit=50",
        )
    };
    assert_eq!(
        (lent(8), lent(5), lent(1)),
        (
            vec![(10, Some(0))],
            vec![(10, Some(0))],
            vec![(10, Some(300))]
        )
    );
}

#[test]
fn who_would_break_into_a_whole_node_that_is_kept_starts_when_more_nodes_are_idle() {
    let of = |kept: u32, jobs: &str| {
        let mut snapshot = world(&format!(
            "node n1 h100:4
             node n2 h100:4
             node n3 h100:4
             run 1 a ann 3 on=n1 limit=300
             run 2 a bob 4 on=n2 limit=600
             {jobs}"
        ));
        Arc::make_mut(&mut snapshot.config).partitions[0].headroom_nodes = kept;
        starts(&snapshot)
    };
    assert_eq!(of(0, "job 10 a ann 2 limit=50"), [(10, Some(0))]);
    assert_eq!(
        of(1, "job 10 a ann 1 limit=50"),
        [(10, Some(0))],
        "beside the run on n1"
    );
    assert_eq!(of(1, "job 10 a ann 2 limit=50"), [(10, Some(300))]);
    assert_eq!(of(2, "job 10 a ann 2 limit=50"), [(10, Some(600))]);
    assert_eq!(of(3, "job 10 a ann 2 limit=50"), [(10, None)]);
    assert_eq!(
        of(
            1,
            "job 10 a ann 2 limit=50
job 11 a eve 2 limit=900"
        ),
        [(10, Some(300)), (11, Some(300))],
        "two on one node"
    );
    assert_eq!(
        of(
            1,
            "job 10 a ann 4 limit=50
job 11 a eve 3 limit=900"
        ),
        [(10, Some(300)), (11, Some(350))]
    );
    let guaranteed = "account a g=4
account b g=4
job 10 b eve 2 limit=50";
    assert_eq!(of(3, guaranteed), [(10, Some(0))]);
}

/// What really becomes of a queue that nobody joins, where every run takes its whole limit.
fn real_starts(snapshot: Snapshot) -> BTreeMap<JobId, Timestamp> {
    real_runs(snapshot)
        .into_iter()
        .map(|(run, _)| (run.run.job, run.placed))
        .collect()
}

/// The same, and when each run ended; those that run already, too. What was used is charged.
fn real_runs(mut snapshot: Snapshot) -> Vec<(RunningRun, Timestamp)> {
    let mut found = Vec::new();
    for _ in 0..1000 {
        let told = plan(&snapshot, WorkBudget::default());
        for start in &told.starts {
            let at = snapshot
                .pending
                .iter()
                .position(|job| job.id == start.job)
                .unwrap();
            let PendingJob {
                spec, limit_secs, ..
            } = snapshot.pending.remove(at);
            for share in &start.allocation {
                snapshot
                    .nodes
                    .iter_mut()
                    .find(|node| node.id == share.node)
                    .unwrap()
                    .take(share);
            }
            let ends_by = limit_secs.map(|secs| snapshot.now.plus_secs(i64::from(secs)));
            let mut run = RunningRun::new(
                RunId::new(start.job, 1),
                spec,
                start.allocation.to_vec(),
                ends_by,
            );
            (run.placed, run.started, run.class) = (snapshot.now, Some(snapshot.now), start.class);
            snapshot.running.push(run);
        }
        snapshot.running.sort_by_key(|run| run.run);
        if !told.starts.is_empty() {
            continue;
        }
        let Some(next) = snapshot.running.iter().filter_map(|run| run.ends_by).min() else {
            break;
        };
        snapshot.now = next;
        let ended = |run: &RunningRun| run.ends_by == Some(next);
        for run in snapshot.running.iter().filter(|run| ended(run)) {
            found.push((run.clone(), next));
            let gpus = run
                .shares
                .iter()
                .map(|share| 1000 * share.gpus.slots().count() as u64)
                .sum();
            let rate = Rate {
                weighted_micro: 0,
                gpus: [("h100".to_owned(), gpus)].into(),
            };
            let (account, user) = (&run.spec.account, &run.spec.user.name);
            Arc::make_mut(&mut snapshot.usage).charge(
                account,
                user,
                &rate,
                run.started.unwrap_or(next),
                next,
                0,
            );
            for share in &run.shares {
                let node = snapshot
                    .nodes
                    .iter_mut()
                    .find(|node| node.id == share.node)
                    .unwrap();
                node.free_cpus += share.cpus;
                node.free_mem_bytes += share.mem_bytes;
                node.runs -= 1;
                share
                    .gpus
                    .slots()
                    .for_each(|slot| node.free_gpu_milli[usize::from(slot.0)] = 1000);
            }
        }
        snapshot.running.retain(|run| !ended(run));
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn no_period_of_a_cap_is_overrun(
        jobs in prop::collection::vec((0..2usize, 1..9u32, 1..60u32), 1..20),
        caps in [8..100u64, 20..200u64],
    ) {
        let accounts = ["a", "b"];
        let mut text = format!("node n1 h100:16\naccount lab cap={}/day\naccount a under=lab cap={}/day\naccount b under=lab\n", caps[1], caps[0]);
        for (at, (account, gpus, hours)) in jobs.into_iter().enumerate() {
            text.push_str(&format!("job {} {} ann {gpus} limit={}\n", at + 10, accounts[account], hours * 3600));
        }
        let runs = real_runs(world(&text));
        for (account, most) in [("a", caps[0]), ("", caps[1])] {
            let of_account = runs.iter().filter(|(run, _)| run.spec.account.starts_with(account));
            let mut used: BTreeMap<i64, i64> = BTreeMap::new();
            for (run, end) in of_account {
                let gpus: i64 = run.shares.iter().map(|share| share.gpus.slots().count() as i64).sum();
                for hour in run.placed.secs() / 3600..end.secs() / 3600 {
                    *used.entry(hour / 24).or_default() += gpus;
                }
            }
            for (day, used) in used {
                prop_assert!(used <= most as i64, "{account}: {used} of {most} on day {day}\n{text}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn who_waits_for_limits_alone_starts_when_it_was_foretold(
        runs in prop::collection::vec((0..2usize, 0..3usize, 1..5u32, 1..20u32), 0..6),
        jobs in prop::collection::vec((0..2usize, 0..3usize, 1..9u32, 1..20u32), 1..10),
        limit in 4..13u64, user in 1..4u32, group in 4..20u64, of_qos in 0..20u64, of_partition in 0..20u64, urgent in 0..8u64,
    ) {
        let (accounts, users) = (["a", "b"], ["ann", "bob", "cyd"]);
        // Some keep so many idle that about as many are left as limits allow.
        let kept = |of: u64| if of < 10 { 0 } else { 128 - of };
        let (of_qos, of_partition) = (kept(of_qos), kept(of_partition));
        let mut text = format!("node n1 h100:128\naccount lab grpgpus={group}\naccount a under=lab limit={limit}\naccount b under=lab userjobs={user}\n");
        text.push_str(&format!("qos urgent headroom={of_qos}\npartition train headroom={of_partition}\n"));
        for (at, (account, user, gpus, tens)) in runs.into_iter().enumerate() {
            text.push_str(&format!("run {} {} {} {gpus} on=n1 limit={}\n", at + 1, accounts[account], users[user], tens * 10));
        }
        for (at, (account, user, gpus, tens)) in jobs.into_iter().enumerate() {
            let qos = if at as u64 == urgent { " qos=urgent" } else { "" };
            text.push_str(&format!("job {} {} {} {gpus} limit={}{qos}\n", at + 10, accounts[account], users[user], tens * 10));
        }
        let mut snapshot = world(&text);
        let config = Arc::make_mut(&mut snapshot.config);
        (config.scheduler.order, config.scheduler.backfill) = (JobOrder::Fifo, Backfill::All);
        let real = real_starts(snapshot.clone());
        for (job, start) in starts(&snapshot) {
            let real = real.get(&JobId(job)).map(|at| at.since_secs(NOW));
            prop_assert!(real.is_none() || start.is_some_and(|start| Some(start) >= real), "job {job}: {start:?}, really {real:?}\n{text}");
            prop_assert!(start.is_none() || real.is_some(), "job {job}: {start:?}\n{text}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn who_waits_for_whole_nodes_to_be_idle_starts_when_it_was_foretold(
        runs in prop::collection::vec(1..20u32, 0..5),
        jobs in prop::collection::vec((1..4u32, 1..20u32), 1..8),
        kept in 5..18u32, of_qos in 0..18u32,
    ) {
        let mut text: String = (1..17).map(|id| format!("node n{id} h100:8\n")).collect();
        text.push_str(&format!("account a\nqos urgent headroom={}\n", of_qos * 8));
        for (at, tens) in runs.into_iter().enumerate() {
            text.push_str(&format!("run {} a ann 8 on=n{} limit={}\n", at + 1, at + 1, tens * 10));
        }
        for (at, (nodes, tens)) in jobs.into_iter().enumerate() {
            text.push_str(&format!("job {} a bob {} nodes={nodes} limit={}\n", at + 10, nodes * 8, tens * 10));
        }
        let mut snapshot = world(&text);
        let config = Arc::make_mut(&mut snapshot.config);
        (config.scheduler.order, config.scheduler.backfill) = (JobOrder::Fifo, Backfill::All);
        config.partitions[0].headroom_nodes = kept;
        let real = real_starts(snapshot.clone());
        for (job, start) in starts(&snapshot) {
            let real = real.get(&JobId(job)).map(|at| at.since_secs(NOW));
            prop_assert!(real.is_none() || start.is_some_and(|start| Some(start) >= real), "job {job}: {start:?}, really {real:?}, kept {kept}\n{text}");
            prop_assert!(start.is_none() || real.is_some(), "job {job}: {start:?}\n{text}");
        }
    }
}
