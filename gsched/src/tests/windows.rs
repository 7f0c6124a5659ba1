//! Windows of reservations and maintenance, single and recurring, on random clusters: which jobs run and start in them, and
//! that starts are no later than forecast.

use super::kept::{end, enter};
use super::picture;
use super::promises::is_within_the_node;
use crate::{Engine, PendingJob, RunningRun, SchedNode, Snapshot, WorkBudget, forecast, plan};
use gmodel::gpu_request::GpuAmount;
use gmodel::policy::{Repeat, Reservation, ReservedPart};
use gmodel::{JobId, ReasonCode, Timestamp};
use gpolicy::pending_job::least_secs;
use gpolicy::window::{Window, asked, next};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A window of a reservation, seconds from now on.
#[derive(Clone, Debug)]
struct When {
    from: i64,
    secs: i64,
    hourly: bool,
}

fn when() -> impl Strategy<Value = When> {
    (-600i64..1500, 30i64..1200, any::<bool>()).prop_map(|(from, secs, hourly)| When {
        from,
        secs,
        hourly,
    })
}

/// Reservations by user: alice has one node, carl two nodes, dan GPUs; bob has none.
fn job() -> impl Strategy<Value = String> {
    let user = prop::sample::select(vec!["alice", "carl", "dan", "bob", "bob"]);
    let gpus = prop::sample::select(vec!["0", "1", "2", "3", "4"]);
    let limit = prop_oneof![
        Just(String::new()),
        (1u32..3000).prop_map(|secs| format!("time={secs}")),
        (1u32..200).prop_map(|secs| format!("time={secs}"))
    ];
    let least = prop_oneof![
        Just(String::new()),
        Just(String::new()),
        (1u32..1500).prop_map(|secs| format!("time_min={secs}"))
    ];
    let nodes = prop::sample::select(vec!["", "", "", "nodes=2"]);
    let partition = prop::sample::select(vec!["", "", "partition=side", "partition=main,side"]);
    (user, gpus, limit, least, nodes, partition).prop_map(
        |(user, gpus, limit, least, nodes, partition)| {
            let own = match user {
                "alice" => "reservation=one",
                "carl" => "reservation=two",
                "dan" => "reservation=some",
                _ => "",
            };
            let gpus = if nodes.is_empty() {
                format!("gpus={gpus}")
            } else {
                format!("gpn={gpus}")
            };
            format!("{gpus} user={user} {own} {limit} {least} {nodes} {partition}")
        },
    )
}

/// Nodes n1 to n5 of 4 GPUs; `one` is n1, `two` n2 and n3, `some` two GPUs, the maintenance n3 or n4.
fn cluster(windows: &[When], fixed: &str, jobs: &[String], backfill: &str) -> Snapshot {
    let names = [
        "one nodes=n1 user=alice",
        "two nodes=n[2-3] user=carl",
        "some gpus=2 user=dan",
        "fix maint",
    ];
    let mut text = format!(
        "backfill {backfill}
         partition main
         partition side nodes=n[2-5]
         {}",
        (1..6)
            .map(|node| format!("node n{node} h100:4\n"))
            .collect::<String>()
    );
    for (name, when) in names.iter().zip(windows) {
        let fixed = if *name == "fix maint" { fixed } else { "" };
        text += &format!(
            "reservation {name} {fixed} from={} secs={}\n",
            when.from, when.secs
        );
    }
    jobs.iter().for_each(|job| text += &format!("job {job}\n"));
    let mut snapshot = picture(&text);
    for (name, when) in names.iter().zip(windows) {
        let name = name.split(' ').next().unwrap();
        let one = Arc::make_mut(&mut snapshot.policy)
            .reservations
            .get_mut(name)
            .unwrap();
        one.repeat = if when.hourly {
            Repeat::Hourly
        } else {
            Repeat::Once
        };
    }
    for job in &mut snapshot.pending {
        // A run outside of reservations would have no end.
        if asked(&job.spec).is_none() {
            job.limit_secs.get_or_insert(500);
        }
        // As a submission is refused.
        let most = job.limit_secs.unwrap_or(u32::MAX);
        let spec = Arc::make_mut(&mut job.spec);
        spec.time_min_secs = spec.time_min_secs.map(|least| least.min(most));
    }
    snapshot
}

fn covers(one: &Reservation, node: &SchedNode) -> bool {
    matches!(&one.what, ReservedPart::Nodes(list) if list.contains(&node.name))
}

fn of<'s>(snapshot: &'s Snapshot, spec: &gmodel::JobSpec) -> Option<&'s Reservation> {
    asked(spec).map(|name| &snapshot.policy.reservations[name])
}

/// The window that holds a time.
fn window_at(one: &Reservation, at: Timestamp) -> Option<Window> {
    next(one, at).filter(|window| window.from <= at)
}

/// No run is in a window of another reservation, or in its own after its end.
fn is_where_it_may_be(snapshot: &Snapshot, run: &RunningRun) -> Result<(), TestCaseError> {
    let end = run.ends_by.unwrap_or(Timestamp(i64::MAX));
    let own = of(snapshot, &run.spec);
    if let Some(own) = own {
        let window = window_at(own, run.placed);
        prop_assert!(
            window.is_some_and(|window| end <= window.to),
            "{} of {:?} runs until {end}, its window is {window:?}",
            run.run,
            own.name
        );
    }
    let nodes = || {
        run.shares
            .iter()
            .map(|share| &snapshot.nodes[share.node.0 as usize - 1])
    };
    for one in snapshot
        .policy
        .reservations
        .values()
        .filter(|one| Some(*one) != own && nodes().any(|node| covers(one, node)))
    {
        let meets = next(one, run.placed).is_some_and(|window| window.from < end);
        prop_assert!(
            !meets,
            "{} is on nodes of {:?} until {end}, which begins before",
            run.run,
            one.name
        );
    }
    Ok(())
}

fn gpus_of(job: &PendingJob) -> u32 {
    match job
        .spec
        .request
        .gpus
        .as_ref()
        .and_then(|ask| ask.alternatives.first())
        .map(|one| &one.amount)
    {
        Some(GpuAmount::Whole(count)) => *count,
        _ => 0,
    }
}

/// Whether a job of a reservation of nodes could be on one of these now and until its end; for two each by itself.
fn has_room(snapshot: &Snapshot, job: &PendingJob, own: &Reservation, window: Window) -> bool {
    let partition = snapshot.config.partition(&job.spec.partition).unwrap();
    let secs = i64::from(job.spec.time_min_secs.unwrap_or(job.held_secs()));
    let end = snapshot.now.plus_secs(secs).min(window.to);
    let gpus = gpus_of(job);
    let fits = |node: &&SchedNode| {
        let free = node
            .free_gpu_milli
            .iter()
            .filter(|milli| **milli == 1000)
            .count();
        let others = snapshot
            .policy
            .reservations
            .values()
            .filter(|one| *one != own && covers(one, node));
        let is_open = others
            .into_iter()
            .all(|one| next(one, snapshot.now).is_none_or(|window| end <= window.from));
        covers(own, node)
            && partition.holds(&node.name, &[])
            && free >= gpus as usize
            && node.free_cpus >= 1
            && is_open
    };
    snapshot.nodes.iter().filter(fits).count() >= job.spec.request.nodes_min as usize
}

/// A reservation with one pending job only has no room for that job.
fn no_job_waits_in_vain(snapshot: &Snapshot) -> Result<(), TestCaseError> {
    for own in snapshot
        .policy
        .reservations
        .values()
        .filter(|one| matches!(one.what, ReservedPart::Nodes(_)))
    {
        let waiting: BTreeSet<JobId> = snapshot
            .pending
            .iter()
            .filter(|job| asked(&job.spec) == Some(&own.name))
            .map(|job| job.id)
            .collect();
        let (Some(window), 1) = (window_at(own, snapshot.now), waiting.len()) else {
            continue;
        };
        for job in snapshot
            .pending
            .iter()
            .filter(|job| waiting.contains(&job.id))
        {
            let least = least_secs(&job.spec, job.limit_secs);
            let is_in_time = snapshot.now.plus_secs(i64::from(least)) <= window.to;
            // A job without a least time keeps the reservation until its end.
            prop_assert!(
                !is_in_time || !has_room(snapshot, job, own, window),
                "job {} of {:?} has room and waits",
                job.id,
                own.name
            );
        }
    }
    Ok(())
}

/// When runs end and windows begin or end next.
fn next_time(snapshot: &Snapshot) -> Option<Timestamp> {
    let ends = snapshot.running.iter().filter_map(|run| run.ends_by);
    let windows = snapshot
        .policy
        .reservations
        .values()
        .filter_map(|one| next(one, snapshot.now));
    ends.chain(windows.flat_map(|window| [window.from, window.to]))
        .filter(|at| *at > snapshot.now)
        .min()
}

fn starts_told(snapshot: &Snapshot) -> BTreeMap<JobId, Timestamp> {
    let all = snapshot.pending.iter().map(|job| job.id).collect();
    forecast(snapshot, &all)
        .into_iter()
        .filter_map(|one| Some((one.job, one.start?)))
        .collect()
}

/// More rounds than single windows and a few recurring ones need.
const ROUNDS: usize = 120;

/// Advances from change to change; each run lasts to its limit unless `early` ends it. Returns the pending jobs.
fn go_on(
    mut snapshot: Snapshot,
    mut early: impl FnMut(&Snapshot) -> Option<(usize, i64)>,
    mut look: impl FnMut(&Snapshot, &crate::Plan) -> Result<(), TestCaseError>,
) -> Result<Snapshot, TestCaseError> {
    let mut engine = Engine::default();
    for _ in 0..ROUNDS {
        let told = engine.plan(&snapshot, WorkBudget::default());
        prop_assert_eq!(&told, &plan(&snapshot, WorkBudget::default()));
        enter(&mut snapshot, &told);
        is_within_the_node(&snapshot);
        for (id, reason) in &told.reasons {
            snapshot
                .pending
                .iter_mut()
                .filter(|job| job.id == *id)
                .for_each(|job| {
                    job.reason = reason.clone();
                    job.particulars.nomination = told.nomination(*id, false).cloned();
                });
        }
        look(&snapshot, &told)?;
        let Some(at) = next_time(&snapshot) else {
            break;
        };
        if snapshot.pending.is_empty() {
            break;
        }
        let ended = early(&snapshot);
        snapshot.now = ended.map_or(at, |(_, secs)| at.min(snapshot.now.plus_secs(secs)));
        let mut over: Vec<usize> = (0..snapshot.running.len())
            .filter(|at| {
                snapshot.running[*at]
                    .ends_by
                    .is_some_and(|at| at <= snapshot.now)
            })
            .collect();
        if let (Some((which, _)), true) = (ended, over.is_empty()) {
            over.push(which);
        }
        over.into_iter()
            .rev()
            .for_each(|at| drop(end(&mut snapshot, at)));
    }
    Ok(snapshot)
}

/// Whether a job that waits to the end waits for a reason that will not go.
fn may_wait_for_ever(snapshot: &Snapshot, job: &PendingJob) -> bool {
    let gpus = gpus_of(job);
    let Some(own) = of(snapshot, &job.spec) else {
        // What recurs leaves no gap that is long enough.
        return snapshot
            .policy
            .reservations
            .values()
            .any(|one| one.repeat != Repeat::Once);
    };
    let nodes = snapshot
        .nodes
        .iter()
        .filter(|node| {
            covers(own, node)
                && snapshot
                    .config
                    .partition(&job.spec.partition)
                    .unwrap()
                    .holds(&node.name, &[])
        })
        .count();
    let too_few = match &own.what {
        ReservedPart::Nodes(_) => nodes < job.spec.request.nodes_min as usize,
        _ => gpus * job.spec.request.nodes_min > 2,
    };
    let others_recur = snapshot
        .policy
        .reservations
        .values()
        .any(|one| one != own && one.repeat != Repeat::Once);
    own.repeat == Repeat::Once || too_few || others_recur || job.least_secs() > own.duration_secs
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, ..ProptestConfig::default() })]
    #[test]
    fn no_run_is_in_a_window_of_another_reservation_or_stays_beyond_its_own(
        windows in prop::collection::vec(when(), 4), fixed in prop::sample::select(vec!["nodes=n3", "nodes=n4"]),
        jobs in prop::collection::vec(job(), 2..14), backfill in prop::sample::select(vec!["easy", "3", "all"]),
        early in prop::collection::vec((any::<prop::sample::Index>(), 1i64..300), 0..6),
    ) {
        let snapshot = cluster(&windows, fixed, &jobs, backfill);
        let mut early = early.into_iter();
        let ends = |snapshot: &Snapshot| {
            let running = snapshot.running.len();
            early.next().filter(|_| running > 0).map(|(which, secs)| (which.index(running), secs))
        };
        let last = go_on(snapshot, ends, |snapshot, _| {
            snapshot.running.iter().try_for_each(|run| is_where_it_may_be(snapshot, run))?;
            no_job_waits_in_vain(snapshot)
        })?;
        for job in &last.pending {
            prop_assert!(may_wait_for_ever(&last, job), "job {} still waits: {}", job.id, job.reason.text);
            let is_final = matches!(job.reason.code, ReasonCode::Reservation | ReasonCode::PartitionConfig);
            let is_told = of(&last, &job.spec).is_none_or(|own| own.repeat != Repeat::Once || is_final);
            prop_assert!(is_told && job.reason.code != ReasonCode::None, "job {} waits for ever and is told {}: {}", job.id, job.reason.code, job.reason.text);
        }
    }

    /// A later job may find another node taken than was planned.
    #[test]
    fn the_first_in_line_starts_no_later_than_told_when_all_run_to_their_limits(
        windows in prop::collection::vec(when(), 4), fixed in prop::sample::select(vec!["nodes=n3", "nodes=n4"]),
        jobs in prop::collection::vec(job(), 2..14),
    ) {
        // GPUs reserved by number may be anywhere, so jobs that ask for one at a time are used.
        let plain = |job: String| if job.contains("user=dan") { job.replace("gpus=2", "gpus=1").replace("gpus=3", "gpus=1").replace("gpus=4", "gpus=1") } else { job };
        let jobs: Vec<String> = jobs.into_iter().map(plain).filter(|job| !job.contains("user=dan") || !job.contains("nodes=") && !job.contains("partition=")).collect();
        let mut told: BTreeMap<JobId, Timestamp> = BTreeMap::new();
        let mut first: Option<JobId> = None;
        let last = go_on(cluster(&windows, fixed, &jobs, "all"), |_| None, |snapshot, plan| {
            for start in &plan.starts {
                prop_assert!(told.get(&start.job).is_none_or(|told| snapshot.now <= *told), "job {} starts at {} and was told {:?}", start.job, snapshot.now, told.get(&start.job));
                told.remove(&start.job);
            }
            if first.is_none_or(|first| snapshot.pending.iter().all(|job| job.id != first)) {
                let expected = starts_told(snapshot);
                first = snapshot.pending.iter().map(|job| job.id).find(|job| expected.contains_key(job));
                told.extend(first.map(|first| (first, expected[&first])));
            }
            Ok(())
        })?;
        prop_assert!(told.values().all(|told| *told > last.now), "{told:?} have not started by {}", last.now);
    }
}
