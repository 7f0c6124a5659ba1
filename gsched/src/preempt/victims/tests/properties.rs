use super::*;
use crate::tests::world::end_run;
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
    (2..6usize, prop::collection::vec(run, 4..12), 1..4usize).prop_map(|(nodes, runs, wanted)| {
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
    })
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
        let gpus = gmodel::GpuSet::whole(slots.iter().map(|slot| gmodel::GpuSlot(*slot as u16)));
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
        let run = end_run(&mut self.snapshot, id);
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
    let run =
        |snapshot: &Snapshot| chosen(snapshot, &snapshot.pending[0]).map(|set| set[0].run.job.0);
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
