//! Jobs of another batch system: their rows, their sums, what they used, and the numbers they leave free.

use super::*;
use crate::store::{Arrival, PastJobs};
use gimport::sacct::{PastJob, PastOwner, PastShare};

fn past(id: u64, user: &str, hours: i64) -> PastJob {
    PastJob {
        id,
        owner: PastOwner {
            user: user.into(),
            uid: 1000,
            gid: 1000,
            account: "vision".into(),
            partition: "gone".into(),
            qos: "normal".into(),
            work_dir: "/home".into(),
        },
        name: format!("job{id}"),
        state: JobState::Completed,
        submitted: START,
        started: Some(START.plus_secs(HOUR)),
        ended: START.plus_secs(HOUR + hours * HOUR),
        held: PastShare {
            nodes: 2,
            nodelist: "old[1-2]".into(),
            cpus: 16,
            mem_bytes: 64 << 30,
            gpus: BTreeMap::from([("h100".to_owned(), 4000)]),
            cpu_used_micros: 5_000_000,
        },
        ..PastJob::default()
    }
}

fn bring(dir: &std::path::Path, jobs: &[PastJob], first_id: Option<u64>) -> (Vec<Arrival>, u64) {
    let config = ClusterConfig {
        name: "test".into(),
        ..ClusterConfig::default()
    };
    let mut writer = PastJobs::open(dir, &config).unwrap();
    let arrivals = jobs.iter().map(|job| writer.add(job).unwrap()).collect();
    (arrivals, writer.finish(first_id).unwrap())
}

#[test]
fn past_jobs_are_in_accounting_and_fair_share_and_each_comes_once() {
    let dir = tempfile::tempdir().unwrap();
    Store::make(dir.path(), "test").unwrap();
    let jobs = [past(7, "ada", 2), past(9, "bob", 1)];
    let (arrivals, next) = bring(dir.path(), &jobs, None);
    assert_eq!((arrivals, next), (vec![Arrival::Brought; 2], 1_000_010));
    let of_other = PastJob {
        submitted: START.plus_secs(1),
        ..past(7, "ada", 2)
    };
    let again = [past(7, "ada", 2), of_other, past(8, "eve", 1)];
    let (arrivals, next) = bring(dir.path(), &again, Some(3_000_000));
    let expected = vec![Arrival::Known, Arrival::NumberTaken, Arrival::Brought];
    assert_eq!((arrivals, next), (expected, 3_000_000));

    let (store, state) = Store::open(dir.path(), "test", 300).unwrap();
    assert_eq!(
        (state.next_job, state.jobs.len()),
        (3_000_000, 0),
        "none is in memory"
    );
    let now = START.plus_secs(4 * HOUR);
    let used: BTreeMap<&str, bool> = state
        .usage
        .users()
        .map(|(_, user, used)| (user, !used.is_empty()))
        .collect();
    assert_eq!(
        used,
        BTreeMap::from([("ada", true), ("bob", true), ("eve", true)])
    );
    let month = state
        .usage
        .in_period("vision", gmodel::policy::Period::Year, now, Some("h100"));
    assert_eq!(
        month,
        4 * 4000 * 3_600_000,
        "8 + 4 + 4 GPU-hours, in thousandths of a GPU times milliseconds"
    );

    let db = Connection::open(store.path()).unwrap();
    while super::super::usage_sums::count_older(&db, 2).unwrap() > 0 {}
    let reader = Reader::new(store.path());
    let rows = wait(reader.report(vec!["user".into()], START, now, now, BTreeMap::new())).unwrap();
    let told: Vec<(String, f64)> = rows
        .into_iter()
        .map(|row| (row.group.concat(), row.gpu_hours))
        .collect();
    assert_eq!(
        told,
        [
            ("ada".to_owned(), 8.0),
            ("bob".to_owned(), 4.0),
            ("eve".to_owned(), 4.0)
        ]
    );
    let Some(StoredJob::Job(job)) = wait(reader.jobs(vec![JobId(7)])).unwrap().pop().flatten()
    else {
        panic!("job 7 is there")
    };
    assert_eq!(
        (
            job.spec.name.as_str(),
            job.spec.partition.as_str(),
            job.attempts
        ),
        ("job7", "gone", 1)
    );
}

#[test]
fn a_controller_that_runs_and_a_directory_without_a_cluster_take_none() {
    let world = World::new();
    let config = ClusterConfig::default();
    let refused = PastJobs::open(world.dir.path(), &config).err().unwrap();
    assert!(refused.to_string().contains("another gpuctld"), "{refused}");
    let empty = tempfile::tempdir().unwrap();
    let refused = PastJobs::open(empty.path(), &config).err().unwrap();
    assert!(
        refused.to_string().contains("there is no cluster"),
        "{refused}"
    );
}
