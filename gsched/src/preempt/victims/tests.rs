use super::*;
use crate::snapshot::SchedNode;
use crate::tests::world::{NOW, give_back, world};
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
        .filter(|run| gone.contains(&run.run) || run.stops_by.is_some())
    {
        give_back(&mut free, run);
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

/// Idle GPUs beside the victims belong to the preemptor too. Otherwise a later job takes them, and the preemption was in vain.
#[test]
fn no_later_job_takes_idle_gpus_beside_the_victims() {
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
fn qos_that_preempt_each_other_in_a_circle_preempt_no_run_of_it() {
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
fn among_borrowers_an_account_below_its_fair_part_preempts_one_above() {
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
    snapshot.running[0].stops_by = Some(NOW.plus_secs(60));
    snapshot.running[0].victim_of = Some(JobId(10));
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

mod properties;
