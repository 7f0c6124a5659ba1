use super::*;
use crate::snapshot::SchedNode;
use crate::tests::world::{NOW, world};
use expect_test::{Expect, expect};
use gmodel::{JobId, Timestamp};
use std::sync::Arc;

/// Whether so many GPUs on each of so many nodes are free with these runs gone: what the engine proves, for whole GPUs.
fn has_room(snapshot: &Snapshot, job: &PendingJob, gone: &BTreeSet<RunId>) -> bool {
    let (gpu_type, milli) = gpus_asked(&job.spec.request);
    let nodes = job.spec.request.nodes_min as usize;
    let each = (milli / 1000) as usize / nodes;
    let mut free: Vec<SchedNode> = snapshot.nodes.clone();
    for run in snapshot
        .running
        .iter()
        .filter(|run| gone.contains(&run.run) || run.leaves_by.is_some())
    {
        for share in &run.shares {
            free.iter_mut()
                .find(|node| node.id == share.node)
                .unwrap()
                .give(share);
        }
    }
    let fits = |node: &&SchedNode| {
        let of_type = |at: &usize| gpu_type.is_none_or(|name| node.gpus[*at].info.gpu_type == name);
        (0..node.gpus.len())
            .filter(of_type)
            .filter(|at| node.free_gpu_milli[*at] == 1000)
            .count()
            >= each
    };
    free.iter().filter(fits).count() >= nodes
}

fn chosen(snapshot: &Snapshot, job: &PendingJob) -> Option<Vec<Preempt>> {
    let ledger = Ledger::new(snapshot);
    victims(snapshot, &ledger, job, &mut |gone| {
        has_room(snapshot, job, gone)
    })
}

/// For each job: the runs that it preempts.
fn check(text: &str, want: Expect) {
    let snapshot = world(text);
    let mut shown = String::new();
    for job in &snapshot.pending {
        let set = chosen(&snapshot, job).map_or("nobody".into(), |set| {
            let one = |one: &Preempt| {
                format!(
                    "{} {:?} loses {}: {}",
                    one.run, one.mode, one.lost_gpu_secs, one.why
                )
            };
            set.iter().map(one).collect::<Vec<_>>().join("\n   ")
        });
        shown += &format!("{}: {set}\n", job.id);
    }
    want.assert_eq(&shown);
}

#[test]
fn guaranteed_demand_takes_back_what_others_borrow() {
    check(
        "node n1 h100:4
         account a g=4
         account b
         run 1 b bob 2 on=n1 ago=900 marked=600 class=b
         run 2 b bob 2 on=n1 ago=900 marked=300 class=b
         job 10 a ann 2
         job 11 b bob 2
         job 12 a ann 5
         job 13 a ann 0",
        expect![[r#"
            10: 2-1 Requeue loses 600: account a takes back GPUs of its guarantee for job 10 (uses 0 of 4); account b borrows 4
            11: nobody
            12: nobody
            13: nobody
        "#]],
    );
}

#[test]
fn the_account_furthest_above_its_guarantee_comes_first_then_the_least_loss() {
    check(
        "node n1 h100:8
         account a g=8
         account b g=1
         account c
         run 1 b bob 1 on=n1 ago=900 class=g
         run 2 b bob 2 on=n1 ago=10 class=b
         run 3 c eve 1 on=n1 ago=900 class=b
         run 4 c eve 1 on=n1 ago=800 class=b
         run 5 c eve 1 on=n1 ago=7200 marked=100 class=b
         run 6 c eve 1 on=n1 ago=900 marked=5 leaving class=b
         job 10 a ann 2",
        expect![[r#"
            10: 5-1 Requeue loses 100: account a takes back GPUs of its guarantee for job 10 (uses 0 of 8); account c borrows 3
        "#]],
    );
}

#[test]
fn what_runs_outside_of_quotas_goes_before_what_is_borrowed_unless_it_is_never_preempted() {
    let text = |more: &str| {
        format!(
            "node n1 h100:8
             account a g=8
             account b
             qos scavenger outside {more}
             qos urgent preempts=scavenger
             run 1 b bob 4 on=n1 ago=10 class=b
             run 2 b bob 4 on=n1 ago=900 qos=scavenger
             job 10 a ann 4
             job 11 b bob 4 qos=urgent
             job 12 b bob 4"
        )
    };
    check(
        &text(""),
        expect![[r#"
            10: 2-1 Requeue loses 3600: account a takes back GPUs of its guarantee for job 10 (uses 0 of 8); QOS scavenger runs outside of quotas
            11: 2-1 Requeue loses 3600: QOS urgent of job 11 may preempt QOS scavenger
            12: nobody
        "#]],
    );
    check(
        &text("mode=off"),
        expect![[r#"
            10: 1-1 Requeue loses 40: account a takes back GPUs of its guarantee for job 10 (uses 0 of 8); account b borrows 4
            11: nobody
            12: nobody
        "#]],
    );
    // Jobs that may preempt each other would go back and forth.
    check(
        &text("preempts=urgent"),
        expect![[r#"
            10: 2-1 Requeue loses 3600: account a takes back GPUs of its guarantee for job 10 (uses 0 of 8); QOS scavenger runs outside of quotas
            11: nobody
            12: nobody
        "#]],
    );
}

#[test]
fn work_protects_a_run_only_up_to_the_bound() {
    // Two and five hours without a mark protect alike: the younger goes, and never marking gains nothing.
    check(
        "node n1 h100:2
         account a g=2
         run 1 b bob 1 on=n1 ago=18000 class=b
         run 2 b bob 1 on=n1 ago=7200 class=b
         job 10 a ann 1",
        expect![[r#"
            10: 2-1 Requeue loses 7200: account a takes back GPUs of its guarantee for job 10 (uses 0 of 2); account b borrows 2
        "#]],
    );
}

/// What lies idle beside those who give way belongs to the job too: else it would find it taken when they are gone, and
/// what they left would go to others.
#[test]
fn nobody_behind_takes_what_room_is_being_made_with() {
    let snapshot = world(
        "node n1 h100:4
         node n2 h100:4
         account a g=8
         account b
         run 1 b bob 2 on=n1 ago=900 limit=9000 class=b
         run 2 a ann 4 on=n2 ago=900 limit=1200 class=g
         job 10 a ann 4
         job 11 b bob 2",
    );
    let plan = crate::plan(&snapshot, crate::WorkBudget::default());
    assert_eq!(
        plan.preempts
            .iter()
            .map(|one| (one.run.job.0, one.for_job.0))
            .collect::<Vec<_>>(),
        [(1, 10)]
    );
    assert_eq!(plan.starts, []);
}

#[test]
fn a_gang_counts_whole() {
    check(
        "node n1 h100:2
         node n2 h100:2
         account a g=2
         run 1 b bob 1 on=n1,n2 ago=600 class=b
         run 2 b bob 1 on=n1 ago=900 class=b
         run 3 b bob 1 on=n2 ago=1000 class=b
         job 10 a ann 1
         job 11 a ann 2 nodes=2",
        expect![[r#"
            10: 2-1 Requeue loses 900: account a takes back GPUs of its guarantee for job 10 (uses 0 of 2); account b borrows 4
            11: 1-1 Requeue loses 1200: account a takes back GPUs of its guarantee for job 11 (uses 0 of 2); account b borrows 4
        "#]],
    );
}

#[test]
fn off_young_and_just_returned_runs_are_left_alone() {
    check(
        "node n1 h100:6
         account a g=6
         partition safe mode=off
         qos keep mode=off
         qos slow min=1000
         qos swift mode=cancel
         run 1 b bob 1 on=n1 ago=90 partition=safe class=b
         run 2 b bob 1 on=n1 ago=90 qos=keep class=b
         run 3 b bob 1 on=n1 ago=90 qos=slow class=b
         run 4 b bob 1 on=n1 ago=200 back class=b
         run 5 b bob 1 on=n1 ago=500 norequeue class=b
         run 6 b bob 1 on=n1 ago=900 back qos=swift partition=safe class=b
         job 10 a ann 1
         job 11 a ann 2
         job 12 a ann 3",
        expect![[r#"
            10: 5-1 Cancel loses 500: account a takes back GPUs of its guarantee for job 10 (uses 0 of 6); account b borrows 6
            11: 5-1 Cancel loses 500: account a takes back GPUs of its guarantee for job 11 (uses 0 of 6); account b borrows 6
               6-1 Cancel loses 900: account a takes back GPUs of its guarantee for job 11 (uses 0 of 6); account b borrows 6
            12: nobody
        "#]],
    );
}

#[test]
fn qos_that_preempt_each_other_in_a_circle_preempt_nobody_of_it() {
    let victim = |qos: &str, runs: &str, waits: &str| {
        let snapshot = world(&format!(
            "node n1 h100:1\n{qos}\nqos low\nrun 1 b bob 1 on=n1 ago=900 qos={runs}\njob 10 a ann 1 qos={waits}"
        ));
        chosen(&snapshot, &snapshot.pending[0]).is_some()
    };
    let pairs = [("b", "a"), ("c", "b"), ("a", "c"), ("low", "b")];
    let all = |qos: &str| pairs.map(|(runs, waits)| victim(qos, runs, waits));
    assert_eq!(
        all("qos a preempts=b\nqos b preempts=c,low\nqos c"),
        [true, true, false, true]
    );
    // The three would take the GPU from each other for ever; the job outside of quotas still gives way.
    assert_eq!(
        all("qos a preempts=b\nqos b preempts=c,low\nqos c preempts=a"),
        [false, false, false, true]
    );
}

#[test]
fn a_qos_preempts_those_it_names_and_no_others() {
    check(
        "node n1 h100:2
         qos high preempts=low
         qos low
         run 1 b bob 1 on=n1 ago=90 qos=low
         run 2 b bob 1 on=n1 ago=20
         job 10 a ann 1 qos=high
         job 11 a ann 2 qos=high
         job 12 a ann 1",
        expect![[r#"
            10: 1-1 Requeue loses 90: QOS high of job 10 may preempt QOS low
            11: nobody
            12: nobody
        "#]],
    );
}

#[test]
fn a_frozen_run_would_keep_its_gpus() {
    check(
        "node n1 h100:1
         qos high preempts=low
         qos low mode=suspend
         run 1 b bob 1 on=n1 ago=90 qos=low
         job 10 a ann 1 qos=high",
        expect![[r#"
            10: nobody
        "#]],
    );
}

#[test]
fn among_borrowers_who_is_below_the_fair_part_takes_from_who_is_above() {
    check(
        "node n1 h100:8
         account none g=0
         account a
         account b
         account c
         run 1 b bob 2 on=n1 ago=900 class=b
         run 2 b bob 2 on=n1 ago=800 class=b
         run 3 b bob 1 on=n1 ago=700 class=b
         run 4 c eve 2 on=n1 ago=10 class=b
         run 5 c eve 1 on=n1 ago=10 class=b
         job 10 a ann 1
         job 11 a ann 2
         job 12 a ann 3
         job 13 c eve 1",
        expect![[r#"
            10: 3-1 Requeue loses 700: account a is below its fair part of the GPUs, for job 10; account b is above its own and borrows 5
            11: 2-1 Requeue loses 1600: account a is below its fair part of the GPUs, for job 11; account b is above its own and borrows 5
            12: nobody
            13: nobody
        "#]],
    );
}

#[test]
fn no_run_is_named_for_two_jobs() {
    let snapshot = world(
        "node n1 h100:2
         account a g=2
         run 1 b bob 1 on=n1 ago=900 class=b
         run 2 b bob 1 on=n1 ago=950 class=b
         job 10 a ann 1
         job 11 a ann 1
         job 12 a ann 1",
    );
    let ledger = Ledger::new(&snapshot);
    let mut candidates = VictimCandidates::new(&snapshot, &ledger);
    let mut named = |at: usize| {
        let job = &snapshot.pending[at];
        let set = candidates.victims(job, &mut |gone| has_room(&snapshot, job, gone));
        set.map(|set| set.iter().map(|one| one.run.job.0).collect::<Vec<_>>())
    };
    assert_eq!(named(0), Some(vec![1]));
    assert_eq!(named(1), Some(vec![2]));
    assert_eq!(named(2), None);
}

/// One job after the other in a pass, each with the runs that it preempts.
fn in_one_pass(snapshot: &Snapshot) -> Vec<Vec<u64>> {
    let ledger = Ledger::new(snapshot);
    let mut candidates = VictimCandidates::new(snapshot, &ledger);
    let mut named = BTreeSet::new();
    let set_for = |job: &PendingJob| {
        let set = candidates.victims(job, &mut |gone| {
            // What others wait for is not there for this one.
            let gone: BTreeSet<RunId> = gone.difference(&named).copied().collect();
            has_room(snapshot, job, &gone)
        });
        let set = set.unwrap_or_default();
        named.extend(set.iter().map(|one| one.run));
        set.iter().map(|one| one.run.job.0).collect()
    };
    snapshot.pending.iter().map(set_for).collect()
}

#[test]
fn a_guarantee_is_claimed_once_while_room_is_made() {
    let text = "node n1 h100:4
         account a g=2
         run 1 b bob 2 on=n1 ago=900 class=b
         run 2 b bob 2 on=n1 ago=950 class=b
         job 10 a ann 2
         job 11 a ann 2";
    let mut snapshot = world(text);
    assert_eq!(in_one_pass(&snapshot), [vec![1], vec![]]);
    // In a later pass, with the run still on its way out.
    snapshot.running[0].leaves_by = Some(NOW.plus_secs(60));
    snapshot.running[0].leaves_for = Some(JobId(10));
    let ledger = Ledger::new(&snapshot);
    let job = &snapshot.pending[1];
    assert_eq!(victims(&snapshot, &ledger, job, &mut |_| true), None);
}

#[test]
fn a_fair_part_is_claimed_once_and_given_once() {
    let snapshot = world(
        "node n1 h100:8
         account none g=0
         account a
         account b
         account c
         run 1 b bob 1 on=n1 ago=900 class=b
         run 2 b bob 1 on=n1 ago=800 class=b
         run 3 b bob 2 on=n1 ago=700 class=b
         run 4 c eve 1 on=n1 ago=600 class=b
         run 5 c eve 3 on=n1 ago=500 class=b
         job 10 a ann 1
         job 11 a ann 1
         job 12 a ann 1
         job 13 none pat 1
         job 14 none pat 1
         job 15 none pat 1",
    );
    // Two GPUs each are fair: a takes two, and none only what the others have above their parts in whole runs.
    assert_eq!(
        in_one_pass(&snapshot),
        [vec![4], vec![2], vec![], vec![1], vec![], vec![]]
    );
}

/// Two nodes of one run each, on which much is lost; beside them one of two runs on which nothing is. One run more is
/// allowed, two are not; and the account furthest above its guarantee comes before the loss.
#[test]
fn one_run_more_is_ended_where_less_is_lost() {
    let cluster = |last: &str| {
        format!(
            "node n1 h100:4
             node n2 h100:4
             node n3 h100:4
             node n4 h100:4
             account a g=8
             account b
             account c
             run 1 b bob 4 on=n1 ago=3000 class=b
             run 2 b bob 4 on=n2 ago=2000 class=b
             run 3 {last} eve 2 on=n3 ago=10 class=b
             run 4 {last} eve 2 on=n3 ago=20 class=b
             run 5 b bob 1 on=n4 ago=10 class=b
             run 6 b bob 1 on=n4 ago=10 class=b
             run 7 b bob 2 on=n4 ago=10 class=b
             job 10 a ann 8 nodes=2"
        )
    };
    let victims = |text: &str| {
        let snapshot = world(text);
        let set = chosen(&snapshot, &snapshot.pending[0]).unwrap();
        set.iter().map(|one| one.run.job.0).collect::<Vec<_>>()
    };
    assert_eq!(victims(&cluster("b")), [3, 4, 2]);
    assert_eq!(victims(&cluster("c")), [2, 1], "account c borrows less");
}

#[test]
fn a_reclaim_on_a_full_cluster_asks_for_few_proofs() {
    let mut text = String::from("account a g=8\n");
    for node in 0..500 {
        text += &format!("node n{node} h100:8\n");
        for gpu in 0..8 {
            let id = 1 + node * 8 + gpu;
            text += &format!(
                "run {id} b bob 1 on=n{node} ago={} class=b\n",
                100 + (id * 37) % 3000
            );
        }
    }
    let mut snapshot = world(&text);
    snapshot.pending =
        world("job 9000 a ann 1\njob 9001 a ann 8\njob 9002 a ann 8 nodes=2").pending;
    // So many are to stay idle besides, so many runs go for it, after so many proofs.
    for (at, kept, runs, few) in [
        (0, 0, 1, 3),
        (1, 0, 8, 12),
        (2, 0, 8, 24),
        (0, 8, 9, 120),
        (1, 8, 16, 140),
    ] {
        let ledger = Ledger::new(&snapshot);
        let job = &snapshot.pending[at];
        let mut asked = 0;
        let set = victims(&snapshot, &ledger, job, &mut |gone| {
            asked += 1;
            has_room(&snapshot, job, gone)
                && gone.len() as u64 >= kept + gpus_asked(&job.spec.request).1 / 1000
        });
        assert_eq!(set.unwrap().len(), runs);
        assert!(asked <= few, "{asked} proofs");
    }
}

mod properties {
    use super::*;
    use proptest::prelude::*;
    use std::fmt::Write;

    /// Full or half-full nodes of 4 GPUs, runs of 1 to 4 GPUs on one or two of them, one job of the owner.
    fn clusters() -> impl Strategy<Value = String> {
        let run = (
            1..4u32,
            0..4usize,
            0..4usize,
            prop::bool::weighted(0.25),
            1..5000u32,
            0..3usize,
        );
        let job = prop::sample::select(vec![
            "1",
            "2",
            "3",
            "4",
            "2 nodes=2",
            "4 nodes=2",
            "6 nodes=2",
            "3 nodes=3",
            "6 nodes=3",
        ]);
        (2..5usize, prop::collection::vec(run, 1..10), job).prop_map(|(nodes, runs, job)| {
            let mut text = String::from("account a g=16\naccount c g=1\n");
            let mut free = vec![4u32; nodes];
            for node in 0..nodes {
                writeln!(text, "node n{node} h100:4").unwrap();
            }
            for (id, (gpus, one, two, gang, ago, account)) in (1..).zip(runs) {
                let (one, two) = (one % nodes, two % nodes);
                let mut on = vec![one];
                if gang && two != one {
                    on.push(two);
                }
                if on.iter().any(|node| free[*node] < gpus) {
                    continue;
                }
                on.iter().for_each(|node| free[*node] -= gpus);
                let on: Vec<String> = on.iter().map(|node| format!("n{node}")).collect();
                let account = ["b", "c", "d"][account];
                writeln!(
                    text,
                    "run {id} {account} bob {gpus} on={} ago={ago} class=b",
                    on.join(",")
                )
                .unwrap();
            }
            writeln!(text, "job 99 a ann {job}").unwrap();
            text
        })
    }

    /// The fewest runs that make room, by trying all sets.
    fn optimum(eligible: &[RunId], makes_room: impl Fn(&BTreeSet<RunId>) -> bool) -> Option<usize> {
        let sets = 0..1u32 << eligible.len();
        let set = |bits: u32| {
            (0..eligible.len())
                .filter(|at| bits & (1 << at) != 0)
                .map(|at| eligible[at])
                .collect()
        };
        sets.filter(|bits| makes_room(&set(*bits)))
            .map(u32::count_ones)
            .min()
            .map(|count| count as usize)
    }

    /// With so many GPUs idle beside the job.
    fn has_room_beside(
        snapshot: &Snapshot,
        job: &PendingJob,
        kept: u64,
        gone: &BTreeSet<RunId>,
    ) -> bool {
        let left = snapshot
            .running
            .iter()
            .filter(|run| gone.contains(&run.run))
            .map(gpus_of)
            .sum::<u64>();
        let idle: usize = snapshot
            .nodes
            .iter()
            .flat_map(|node| &node.free_gpu_milli)
            .filter(|milli| **milli == 1000)
            .count();
        has_room(snapshot, job, gone)
            && idle as u64 + left >= kept + gpus_asked(&job.spec.request).1 / 1000
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(800))]
        #[test]
        fn the_set_makes_room_needs_each_member_and_is_near_the_smallest(text in clusters(), kept in prop::option::of(0..6u64)) {
            let snapshot = world(&text);
            let job = &snapshot.pending[0];
            let ledger = Ledger::new(&snapshot);
            let borrowed: Vec<RunId> = snapshot.running.iter()
                .filter(|run| ledger.class_of(run.run) == Some(RunClass::Borrowed)).map(|run| run.run).collect();
            let has_room = |snapshot: &Snapshot, job: &PendingJob, gone: &BTreeSet<RunId>| has_room_beside(snapshot, job, kept.unwrap_or(0), gone);
            if has_room(&snapshot, job, &BTreeSet::new()) {
                return Ok(());
            }
            let least = optimum(&borrowed, |gone| has_room(&snapshot, job, gone));
            let set = victims(&snapshot, &ledger, job, &mut |gone| has_room(&snapshot, job, gone));
            prop_assert_eq!(set.is_some(), least.is_some(), "{}", text);
            let Some(set) = set else { return Ok(()) };
            let ids: BTreeSet<RunId> = set.iter().map(|one| one.run).collect();
            prop_assert_eq!(ids.len(), set.len());
            prop_assert!(ids.iter().all(|id| borrowed.contains(id)), "only who may be preempted");
            prop_assert!(has_room(&snapshot, job, &ids), "the set makes room\n{}", text);
            for id in &ids {
                let without: BTreeSet<RunId> = ids.iter().copied().filter(|other| other != id).collect();
                prop_assert!(!has_room(&snapshot, job, &without), "{} is not needed\n{}", id, text);
            }
            prop_assert!(ids.len() <= least.unwrap() + 1, "{} instead of {}\n{}", ids.len(), least.unwrap(), text);
        }
    }

    /// Runs of one account on one node each, and a job that wants whole nodes.
    fn whole_nodes() -> impl Strategy<Value = String> {
        let run = (1..5u32, 0..6usize, 1..3000u32);
        (2..6usize, prop::collection::vec(run, 4..12), 1..4usize).prop_map(
            |(nodes, runs, wanted)| {
                let mut text = String::from("account a g=24\n");
                let mut free = vec![4u32; nodes];
                for node in 0..nodes {
                    writeln!(text, "node n{node} h100:4").unwrap();
                }
                for (id, (gpus, on, ago)) in (1..).zip(runs) {
                    let on = on % nodes;
                    if free[on] >= gpus {
                        free[on] -= gpus;
                        writeln!(text, "run {id} b bob {gpus} on=n{on} ago={ago} class=b").unwrap();
                    }
                }
                writeln!(text, "job 99 a ann {} nodes={wanted}", 4 * wanted).unwrap();
                text
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn of_whole_nodes_none_that_need_at_most_one_run_more_than_the_fewest_lose_less(text in whole_nodes()) {
            let snapshot = world(&text);
            let job = &snapshot.pending[0];
            let ids: Vec<RunId> = snapshot.running.iter().map(|run| run.run).collect();
            if has_room(&snapshot, job, &BTreeSet::new()) {
                return Ok(());
            }
            let Some(least) = optimum(&ids, |gone| has_room(&snapshot, job, gone)) else { return Ok(()) };
            let lost = |gone: &BTreeSet<RunId>| -> u64 {
                let of = |run: &RunningRun| gpus_of(run) * snapshot.now.since_secs(run.started.unwrap()).min(3600) as u64;
                snapshot.running.iter().filter(|run| gone.contains(&run.run)).map(of).sum()
            };
            let sets = (0..1u32 << ids.len()).filter(|bits| bits.count_ones() as usize <= least + 1);
            let sets = sets.map(|bits| (0..ids.len()).filter(|at| bits & (1 << at) != 0).map(|at| ids[at]).collect::<BTreeSet<_>>());
            let best = sets.filter(|gone| has_room(&snapshot, job, gone)).map(|gone| lost(&gone)).min().unwrap();
            let set: BTreeSet<RunId> = chosen(&snapshot, job).unwrap().iter().map(|one| one.run).collect();
            prop_assert!(set.len() <= least + 1, "{} instead of {}\n{}", set.len(), least, text);
            prop_assert_eq!(lost(&set), best, "{:?}\n{}", set, text);
        }
    }

    fn gpus_of(run: &RunningRun) -> u64 {
        run.shares.iter().map(|share| share.gpus.len() as u64).sum()
    }

    /// A small cluster in rounds: demand exceeds the GPUs, starts and ends follow the policy.
    struct Rounds {
        snapshot: Snapshot,
        now: Timestamp,
        preemptions: Vec<(i64, JobId)>,
    }

    impl Rounds {
        fn place(&mut self, at: usize) -> bool {
            let job = self.snapshot.pending[at].clone();
            let count = (gpus_asked(&job.spec.request).1 / 1000) as usize;
            let ledger = Ledger::new(&self.snapshot);
            let Ok(class) = ledger.check_but(
                &job,
                &crate::tests::world::take("h100", count as u64),
                |_| false,
            ) else {
                return false;
            };
            let free = |node: &SchedNode| {
                node.free_gpu_milli
                    .iter()
                    .filter(|milli| **milli == 1000)
                    .count()
            };
            let Some(node) = self
                .snapshot
                .nodes
                .iter_mut()
                .find(|node| free(node) >= count)
            else {
                return false;
            };
            let slots: Vec<usize> = (0..node.gpus.len())
                .filter(|at| node.free_gpu_milli[*at] == 1000)
                .take(count)
                .collect();
            let gpus =
                gmodel::GpuSet::whole(slots.iter().map(|slot| gmodel::GpuSlot(*slot as u16)));
            let share = gmodel::run::NodeShare {
                node: node.id,
                cpus: 1,
                mem_bytes: 0,
                gpus,
                tasks: 1,
            };
            node.take(&share);
            let attempt = 1 + self
                .preemptions
                .iter()
                .filter(|(_, id)| *id == job.id)
                .count() as u32;
            let mut run = RunningRun::new(
                RunId::new(job.id, attempt),
                job.spec.clone(),
                vec![share],
                None,
            );
            (run.placed, run.started, run.class, run.preempted) =
                (self.now, Some(self.now), class, job.particulars.preempted);
            self.snapshot.running.push(run);
            self.snapshot.running.sort_by_key(|run| run.run);
            self.snapshot.pending.remove(at);
            true
        }

        fn end(&mut self, id: RunId, preempted: bool) {
            let at = self
                .snapshot
                .running
                .iter()
                .position(|run| run.run == id)
                .unwrap();
            let run = self.snapshot.running.remove(at);
            for share in &run.shares {
                self.snapshot
                    .nodes
                    .iter_mut()
                    .find(|node| node.id == share.node)
                    .unwrap()
                    .give(share);
            }
            if preempted {
                self.preemptions.push((self.now.secs(), id.job));
                let mut back = world("job 1 a ann 1").pending.remove(0);
                (back.id, back.spec) = (id.job, run.spec.clone());
                (back.submitted, back.eligible, back.particulars.preempted) =
                    (NOW, self.now, Some(self.now));
                self.snapshot.pending.push(back);
            }
        }

        fn round(&mut self, secs: i64) {
            self.now = self.now.plus_secs(secs);
            self.snapshot.now = self.now;
            for (id, class) in Ledger::new(&self.snapshot).classes() {
                self.snapshot
                    .running
                    .iter_mut()
                    .find(|run| run.run == id)
                    .unwrap()
                    .class = Some(class);
            }
            let order = in_order_of(&self.snapshot);
            for id in order {
                let at = self
                    .snapshot
                    .pending
                    .iter()
                    .position(|job| job.id == id)
                    .unwrap();
                if self.place(at) {
                    continue;
                }
                let job = self.snapshot.pending[at].clone();
                if let Some(set) = chosen(&self.snapshot, &job) {
                    set.iter().for_each(|one| self.end(one.run, true));
                    let at = self
                        .snapshot
                        .pending
                        .iter()
                        .position(|job| job.id == id)
                        .unwrap();
                    assert!(self.place(at), "what was preempted for job {id} starts it");
                }
            }
        }
    }

    fn in_order_of(snapshot: &Snapshot) -> Vec<JobId> {
        let order = crate::queue_order::in_order(snapshot, &Ledger::new(snapshot));
        order
            .iter()
            .map(|one| snapshot.pending[one.at].id)
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// Constant demand comes to rest: after some rounds no run is preempted any more.
        #[test]
        fn preemptors_and_victims_do_not_alternate(
            jobs in prop::collection::vec((0..4usize, 1..5u64), 4..16), guarantees in prop::collection::vec(0..5u64, 3), pairs in any::<bool>(),
        ) {
            let mut text = String::from("node n1 h100:4\nnode n2 h100:4\nnode n3 h100:4\nqos low\n");
            text += if pairs { "qos high preempts=low\n" } else { "qos high\n" };
            for (name, g) in ["a", "b", "c"].iter().zip(&guarantees) {
                writeln!(text, "account {name} g={g} shares={}", 1 + g % 3).unwrap();
            }
            for (id, (account, gpus)) in (1..).zip(&jobs) {
                let qos = if id % 3 == 0 { "high" } else { "low" };
                writeln!(text, "job {id} {} bob {gpus} qos={qos}", ["a", "b", "c", "d"][*account]).unwrap();
            }
            let mut rounds = Rounds { snapshot: world(&text), now: NOW, preemptions: Vec::new() };
            for _ in 0..60 {
                rounds.round(400);
            }
            let settled = rounds.preemptions.len();
            for _ in 0..60 {
                rounds.round(400);
            }
            prop_assert_eq!(rounds.preemptions.len(), settled, "it goes on: {:?}", &rounds.preemptions[settled..]);
            prop_assert!(settled <= jobs.len() * 3, "{} preemptions for {} jobs", settled, jobs.len());
        }
    }

    #[test]
    fn a_run_that_came_back_is_spared_for_a_while() {
        let text = "node n1 h100:1\nnode n2 h100:1\naccount a g=1\nrun 1 b bob 1 on=n1 ago=1 class=b back\nrun 2 b bob 1 on=n2 ago=9000 class=b\njob 3 a ann 1";
        let mut snapshot = world(text);
        let run = |snapshot: &Snapshot| {
            chosen(snapshot, &snapshot.pending[0]).map(|set| set[0].run.job.0)
        };
        assert_eq!(run(&snapshot), Some(2));
        snapshot.now = NOW.plus_secs(300);
        assert_eq!(
            run(&snapshot),
            Some(1),
            "it has less to lose, and ran long enough"
        );
        let config = Arc::make_mut(&mut snapshot.config);
        config.scheduler.preempt.min_run_secs = 1000;
        assert_eq!(run(&snapshot), Some(2));
    }
}
