//! Arrays with a cap in plans that foretell: their tasks follow each other, and those behind them are told so.

use super::kept::{end, enter};
use super::promises::is_within_the_node;
use super::{NOW, picture};
use crate::{ArrayCap, Engine, Forecast, Snapshot, WorkBudget, forecast, plan};
use gmodel::JobId;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Arrays by their ids, with how many of their tasks may run at once. Their tasks have the ids up to the next entry's.
type Caps = BTreeMap<JobId, u32>;

/// `job ... array=10 cap=4`; with those that start at once.
fn at_work(text: &str) -> (Snapshot, Caps) {
    let mut snapshot = picture(text);
    let lines = text
        .lines()
        .filter(|line| line.trim_start().starts_with("job "));
    let caps = lines.zip(1u64..).filter_map(|(line, at)| {
        Some((
            JobId(10 * at),
            super::number(&line.split_whitespace().collect::<Vec<_>>(), "cap")?,
        ))
    });
    let caps: Caps = caps.collect();
    count(&mut snapshot, &caps);
    while go(&mut snapshot, &caps) > 0 {}
    (snapshot, caps)
}

/// What arrays have left of their caps.
fn count(snapshot: &mut Snapshot, caps: &Caps) {
    for (array, most) in caps {
        let running = snapshot
            .running
            .iter()
            .filter(|run| (array.0..array.0 + 10).contains(&run.run.job.0))
            .count() as u32;
        for job in snapshot
            .pending
            .iter_mut()
            .filter(|job| job.id == *array || job.array == Some(*array))
        {
            (job.room, job.cap) = (
                Some(most.saturating_sub(running)),
                Some(ArrayCap {
                    most: *most,
                    running,
                }),
            );
        }
    }
}

/// One pass; how many started.
fn go(snapshot: &mut Snapshot, caps: &Caps) -> usize {
    let told = plan(snapshot, WorkBudget::default());
    enter(snapshot, &told);
    is_within_the_node(snapshot);
    count(snapshot, caps);
    told.starts.len()
}

fn told(snapshot: &Snapshot) -> BTreeMap<JobId, Forecast> {
    let all: BTreeSet<JobId> = snapshot.pending.iter().map(|job| job.id).collect();
    forecast(snapshot, &all)
        .into_iter()
        .map(|one| (one.job, one))
        .collect()
}

/// By id, seconds from now on: of an array of its next task, and of its last.
fn starts(snapshot: &Snapshot) -> Vec<(u64, Option<i64>, Option<i64>)> {
    let secs = |at: gmodel::Timestamp| at.since_secs(snapshot.now);
    let last = |one: &Forecast| one.tasks.as_ref().and_then(|tasks| tasks.last()).map(secs);
    told(snapshot)
        .into_iter()
        .map(|(id, one)| (id.0, one.start.map(secs), last(&one)))
        .collect()
}

#[test]
fn who_waits_behind_an_array_at_its_cap_starts_when_its_tasks_have_had_their_turn() {
    let of = |rest: &str| {
        starts(
            &at_work(&format!(
                "node n1 h100:4\njob gpus=1 time=100 array=10 cap=4\n{rest}"
            ))
            .0,
        )
    };
    assert_eq!(of(""), [(10, Some(100), Some(200))]);
    assert_eq!(
        of("job gpus=1 time=50"),
        [(10, Some(100), Some(200)), (20, Some(200), None)],
        "of four and four tasks and two"
    );
    assert_eq!(
        of("job gpus=3 time=50"),
        [(10, Some(100), Some(200)), (20, Some(300), None)]
    );
    let queue = "job gpus=2 time=50\njob gpus=1 time=70\njob gpus=1 time=10";
    assert_eq!(
        of(queue),
        [
            (10, Some(100), Some(200)),
            (20, Some(200), None),
            (30, Some(250), None),
            (40, Some(250), None)
        ]
    );
    // Who comes before the array takes his room first.
    let (snapshot, _) = at_work(
        "node n1 h100:4\njob gpus=1 time=1000\njob gpus=1 time=100 array=10 cap=3\njob gpus=4 time=10",
    );
    assert_eq!(
        starts(&snapshot),
        [(20, Some(100), Some(300)), (30, Some(1000), None)]
    );
    let (snapshot, _) = at_work(
        "node n1 h100:4\njob gpus=2 time=150 array=2 cap=1\njob gpus=1 time=100 array=10 cap=2\njob gpus=1 time=10",
    );
    assert_eq!(
        starts(&snapshot),
        [
            (10, Some(150), Some(150)),
            (20, Some(100), Some(400)),
            (30, Some(300), None)
        ]
    );
}

#[test]
fn a_cap_counts_tasks_with_records_of_their_own_and_more_than_it_allows_now() {
    let (mut snapshot, mut caps) =
        at_work("node n1 h100:8\njob gpus=1 time=100 array=6 cap=3\njob gpus=8 time=10");
    let mut own = snapshot
        .pending
        .iter()
        .find(|job| job.id == JobId(10))
        .unwrap()
        .clone();
    let positions = own.positions.take().unwrap();
    own.array = Some(JobId(10));
    (own.id, own.limit_secs) = (JobId(15), Some(500));
    let array = snapshot
        .pending
        .iter_mut()
        .find(|job| job.id == JobId(10))
        .unwrap();
    array.positions = Some(positions.iter().filter(|one| *one != 5).collect());
    snapshot.pending.push(own);
    assert_eq!(
        starts(&snapshot),
        [
            (10, Some(100), Some(100)),
            (15, Some(100), None),
            (20, Some(600), None)
        ]
    );
    // Of three that run two are too many.
    caps.insert(JobId(10), 1);
    count(&mut snapshot, &caps);
    assert_eq!(
        starts(&snapshot),
        [
            (10, Some(100), Some(200)),
            (15, Some(300), None),
            (20, Some(800), None)
        ]
    );
}

#[test]
fn rows_of_tasks_end_before_a_window_of_others() {
    let (snapshot, _) = at_work(
        "node n1 h100:2
         reservation fix maint from=350 secs=100
         job gpus=1 time=100 array=9 cap=2
         job gpus=1 time=10
         job gpus=1 time=60",
    );
    // Two side by side: at 0, 100, 200, and after the window at 450 and 550.
    assert_eq!(
        starts(&snapshot),
        [
            (10, Some(100), Some(550)),
            (20, Some(300), None),
            (30, Some(550), None)
        ]
    );
}

#[test]
fn an_array_of_several_partitions_follows_itself_in_each() {
    let (snapshot, _) = at_work(
        "partition main nodes=n1\npartition side nodes=n2\nnode n1 h100:1\nnode n2 h100:1\njob gpus=1 time=100 array=6 cap=2 partition=main,side\njob gpus=1 time=10",
    );
    assert_eq!(
        starts(&snapshot),
        [(10, Some(100), Some(200)), (20, Some(300), None)]
    );
}

/// As much work for a million tasks as for some.
#[test]
fn a_long_array_is_planned_in_rows() {
    let of = |tasks: u32, cap: Option<u32>| {
        let mut snapshot = picture(
            "node n1 h100:4\njob gpus=1 time=1000\njob gpus=1 time=100 array=9\njob gpus=4 time=10",
        );
        snapshot.pending.retain(|job| job.id != JobId(10));
        snapshot.pending[0].positions = Some(gmodel::array_spec::RangeSet::first_n(tasks));
        (snapshot.pending[0].room, snapshot.pending[0].cap) =
            (cap, cap.map(|most| ArrayCap { most, running: 0 }));
        // Behind all of its tasks.
        snapshot.pending[1].id = JobId(10_000_000);
        let mut engine = Engine::default();
        let all = BTreeSet::from([JobId(20), JobId(10_000_000)]);
        let told = engine.forecast(
            &snapshot,
            &all,
            WorkBudget {
                node_probes: u64::MAX,
                starts: usize::MAX,
            },
        );
        let secs = |at: gmodel::Timestamp| at.since_secs(NOW);
        (
            told[0].tasks.as_ref().unwrap().last().map(secs),
            told[1].start.map(secs),
            engine.memory.probed,
        )
    };
    let (last, behind, work) = of(1_000_000, Some(4));
    assert_eq!((last, behind), (Some(24_999_900), Some(25_000_000)));
    assert_eq!(of(1_000, Some(4)), (Some(24_900), Some(25_000), work));
    let (last, behind, work) = of(1_000, Some(3));
    assert_eq!((last, behind), (Some(33_300), Some(33_400)));
    assert_eq!(of(100_000, Some(3)).2, work);
    // Without a cap, or with one beyond what there is.
    for cap in [None, Some(1000)] {
        let (last, behind, work) = of(1_000_000, cap);
        // The last places are not all free at once.
        assert!(
            last.is_some_and(|last| (24_900_000..25_300_000).contains(&last))
                && behind.is_some_and(|behind| (25_000_000..25_300_000).contains(&behind)),
            "{last:?} {behind:?}"
        );
        let fewer = of(10_000, cap).2;
        assert!(work <= fewer + fewer / 10, "{work} {fewer}");
        assert_eq!(of(100, cap).1, Some(2500));
    }
}

/// One of any kind, or some of one GPU, where all is on one node: else where each is has a say in who comes behind.
fn arrays() -> impl Strategy<Value = Vec<String>> {
    let array = |gpus: Vec<&'static str>| {
        let gpus = prop::sample::select(gpus);
        (gpus, 1u32..10, 1u32..5, 1u32..300).prop_map(|(gpus, tasks, cap, secs)| {
            format!("{gpus} array={tasks} cap={cap} time={secs}")
        })
    };
    let one = prop::collection::vec(
        array(vec![
            "gpus=1",
            "gpus=1",
            "gpus=2",
            "gpus=3",
            "nodes=2 gpn=1",
            "cpus=20",
        ]),
        1,
    );
    prop_oneof![one, prop::collection::vec(array(vec!["gpus=1"]), 2..4)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn the_first_in_line_behind_arrays_starts_no_later_than_told_when_all_run_to_their_limits(
        arrays in arrays(), runs in prop::collection::vec((0..3u32, 1u32..300), 0..3),
        gpus in 1u32..5, secs in 1u32..300, backfill in prop::sample::select(vec!["easy", "3", "all"]),
    ) {
        let nodes = if arrays.len() == 1 { "node n1 h100:4\nnode n2 h100:4\nnode n3 h100:4\n" } else { "node n1 h100:4\n" };
        let mut text = format!("order fifo\nbackfill {backfill}\n{nodes}");
        for (at, (node, left)) in runs.iter().enumerate() {
            text += &format!("running {} n{} gpus={} left={left}\n", at + 1, if arrays.len() == 1 { node + 1 } else { 1 }, at);
        }
        arrays.iter().for_each(|array| text += &format!("job {array}\n"));
        text += &format!("job gpus={gpus} time={secs}\n");
        let last = JobId(10 * (arrays.len() as u64 + 1));
        let (mut snapshot, caps) = at_work(&text);
        let mut before: Option<gmodel::Timestamp> = None;
        while snapshot.pending.iter().any(|job| job.id == last) {
            let starts = told(&snapshot)[&last].start;
            prop_assert!(starts.is_some(), "{text}");
            if let Some((before, now)) = before.zip(starts) {
                prop_assert!(now <= before, "job {last} from {before} to {now}, {}\n{text}", snapshot.now);
            }
            before = starts;
            snapshot.now = snapshot.running.iter().filter_map(|run| run.ends_by).min().unwrap();
            while let Some(at) = snapshot.running.iter().position(|run| run.ends_by.is_some_and(|by| by <= snapshot.now)) {
                end(&mut snapshot, at);
            }
            count(&mut snapshot, &caps);
            while go(&mut snapshot, &caps) > 0 {}
        }
        prop_assert!(before.is_none_or(|before| snapshot.now <= before), "job {last} at {} and was told {before:?}\n{text}", snapshot.now);
    }
}
