//! Jobs that limits refuse: forecasts name the limit and its holder that ends first; caps hold over their periods.

use crate::tests::world::{NOW, world};
use crate::{Holder, PendingJob, RunningRun, Snapshot, WorkBudget, forecast, plan, why};
use gmodel::hostlist::Hostlist;
use gmodel::policy::{Repeat, Reservation, ReservedPart};
use gmodel::{JobId, RunId, Timestamp};
use gpolicy::usage::Rate;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What the forecast says of a job, seconds from now.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Starts(i64),
    /// Refused by a limit, with the job of the holder that ends first and its end.
    Refused(Option<(u64, Option<i64>)>),
    Nothing,
}
use Told::{Nothing, Refused, Starts};

fn holder((job, ends): (u64, i64)) -> Told {
    Refused(Some((job, Some(ends))))
}

fn of_forecast(one: &crate::Forecast) -> Told {
    let secs = |at: Timestamp| at.since_secs(NOW);
    let of_holder = |holder: Holder| (holder.job.0, holder.ends.map(secs));
    match (one.start, &one.limit) {
        (Some(start), _) => Starts(secs(start)),
        (None, Some(limit)) => Refused(limit.holder.map(of_holder)),
        (None, None) => Nothing,
    }
}

fn told_of(snapshot: &Snapshot) -> Vec<Told> {
    let all: BTreeSet<JobId> = snapshot.pending.iter().map(|job| job.id).collect();
    let mut told = forecast(snapshot, &all);
    told.sort_by_key(|one| one.job);
    told.iter().map(of_forecast).collect()
}

fn told(text: &str) -> Vec<Told> {
    told_of(&world(text))
}

#[test]
fn a_job_at_a_limit_has_no_start_and_the_holder_that_ends_first_is_named() {
    let of = |policy: &str, job: &str| {
        told(&format!(
            "node n1 h100:8
             node n2 h100:8
             {policy}
             run 1 a ann 4 on=n1 ago=100 limit=700 {job}
             run 2 a bob 2 on=n1 ago=100 limit=400 {job}
             job 10 a ann 4 limit=1000 {job}
             job 11 a ann 1 limit=1000 {job}"
        ))
    };
    assert_eq!(
        of("account a limit=8", ""),
        [holder((2, 300)), Starts(0)],
        "the job behind it is within the limit"
    );
    assert_eq!(
        of("account a userjobs=1", ""),
        [holder((1, 600)), holder((1, 600))],
        "only the runs of the same user hold it"
    );
    assert_eq!(
        of("qos q grpjobs=2\naccount a", "qos=q"),
        [holder((2, 300)), holder((2, 300))]
    );
    assert_eq!(
        of("account a limit=3", ""),
        [Refused(None), holder((2, 300))],
        "no run's end makes room for more than the limit"
    );
    assert_eq!(of("account a", ""), [Starts(0), Starts(0)]);
}

#[test]
fn holders_without_a_time_limit_have_no_end() {
    assert_eq!(
        told("node n1 h100:8\naccount a limit=4\nrun 1 a ann 4 on=n1\njob 10 a ann 1 limit=50"),
        [Refused(Some((1, None)))]
    );
    assert_eq!(
        told("node n1 h100:8\naccount a grpjobs=0\njob 10 a ann 1 limit=50"),
        [Refused(None)]
    );
}

#[test]
fn of_guarantees_caps_and_headroom_the_limit_is_told_too() {
    let of = |policy: &str, job: &str| {
        let snapshot = world(&format!(
            "node n1 h100:8
             node n2 h100:8
             {policy}
             run 1 a ann 4 on=n1 limit=100 class=g
             run 2 a ann 2 on=n1 limit=300 class=b
             {job}"
        ));
        let told = forecast(&snapshot, &BTreeSet::from([JobId(10)]));
        let code = told[0].limit.as_ref().map(|limit| limit.reason.code);
        (code.map(|code| code.to_string()), of_forecast(&told[0]))
    };
    let code = |name: &str| Some(name.to_owned());
    let guarantee = "account a g=4\naccount b g=4";
    assert_eq!(
        of(guarantee, "job 10 a ann 2 limit=50 noborrow"),
        (code("Quota"), holder((1, 100))),
        "the guaranteed run holds it"
    );
    assert_eq!(
        of(guarantee, "job 10 a ann 5 limit=50 noborrow"),
        (code("Quota"), Refused(None))
    );
    assert_eq!(
        of("account a cap=8/day", "job 10 a ann 8 limit=36000"),
        (code("AssocGrpBilling"), Refused(None)),
        "its text says when the next period begins"
    );
    assert_eq!(
        of(
            "account a\nqos urgent headroom=9",
            "job 10 a ann 2 limit=50"
        ),
        (code("Headroom"), holder((1, 100)))
    );
}

#[test]
fn of_an_array_at_its_cap_the_task_that_ends_first_is_named() {
    let mut snapshot = world(
        "node n1 h100:8
         run 10 a ann 1 on=n1 limit=300
         run 11 a ann 1 on=n1 limit=200
         run 30 a ann 1 on=n1 limit=100
         job 10 a ann 1 limit=50 tasks=8",
    );
    let waiting = &mut snapshot.pending[0];
    let positions = waiting.particulars.positions.as_mut().unwrap();
    positions.remove(0);
    positions.remove(1);
    waiting.particulars.room = Some(0);
    waiting.particulars.cap = Some(crate::ArrayCap {
        most: 2,
        running: 2,
    });
    assert_eq!(told_of(&snapshot), [holder((11, 200))]);
    let why = why(&snapshot, JobId(10)).unwrap();
    assert_eq!(of_forecast(&why.forecast.unwrap()), holder((11, 200)));
}

#[test]
fn a_job_that_waits_for_a_window_of_its_reservation_starts_in_it_unless_a_limit_refuses_it() {
    let of = |account: &str| {
        let mut snapshot = world(&format!(
            "node n1 h100:8
             node n2 h100:8
             {account}
             run 1 a ann 4 on=n2 limit=300
             job 10 a ann 2 limit=50
             job 11 a ann 4 limit=50"
        ));
        let what = ReservedPart::Nodes(Hostlist::parse("n1").unwrap());
        let one = Reservation {
            name: "r".into(),
            start: NOW.plus_secs(100),
            duration_secs: 1000,
            repeat: Repeat::Once,
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
        told_of(&snapshot)
    };
    assert_eq!(of("account a limit=12"), [Starts(100), Starts(100)]);
    assert_eq!(
        of("account a limit=4"),
        [holder((1, 300)), holder((1, 300))]
    );
}

/// What becomes of a queue that no job joins, where every run takes its whole limit: each run with its end. What was used is charged.
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
