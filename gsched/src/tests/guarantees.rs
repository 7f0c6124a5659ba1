//! Guarantees while preemption goes on: what a victim frees, who inherits a guarantee, and what a later pass finds.

use super::pool::{Job, LIMITS, Pool, guarantees};
use super::rounds::guarantees_hold;
use crate::{Engine, Plan};
use gmodel::RunClass;

/// A job of 60 seconds that comes at once.
fn job(account: usize, ask: usize, list: usize, high: bool) -> Job {
    Job {
        comes: 0,
        account,
        user: 0,
        ask,
        list,
        high,
        secs: 60,
        percent: 100,
    }
}

/// The preempted jobs, each with the job that it made room for, after all jobs came together and so many passes.
fn preempted_in(rounds: usize, pool: &mut Pool, jobs: &[Job]) -> Vec<(u64, u64)> {
    for (id, job) in (1..).zip(jobs) {
        pool.submit(id, job, true);
    }
    for _ in 0..rounds {
        pool.round();
    }
    preempted(pool)
}

fn preempted(pool: &Pool) -> Vec<(u64, u64)> {
    let victims = pool.preempted.iter();
    victims.map(|(_, victim, job)| (victim.0, job.0)).collect()
}

/// Otherwise the first job of the queue takes back what it just gave, and both change places for ever.
#[test]
fn nominated_nodes_belong_to_the_preemptor_though_the_victims_tier_is_higher() {
    let mut pool = Pool::new(&guarantees(1, 0, 0, false));
    // All of even is borrowed, in a tier above that of p, where lab wants its h100.
    for (id, ask) in [(1, 3), (2, 1)] {
        pool.submit(id, &job(4, ask, 2, false), true);
    }
    pool.submit(3, &job(4, 3, 1, false), true);
    pool.round();
    pool.submit(
        4,
        &Job {
            ask: 7,
            ..job(0, 0, 0, false)
        },
        true,
    );
    for _ in 0..20 {
        pool.round();
    }
    let runs: Vec<u64> = pool
        .snapshot
        .running
        .iter()
        .map(|run| run.run.job.0)
        .collect();
    let preempted = preempted(&pool);
    assert_eq!((runs, preempted), (vec![1, 3, 4], vec![(2, 4)]));
}

/// Vision's job is to get the slice that nlp's guaranteed run has, and nlp's whole GPUs to take over that guarantee: not in the pass
/// that starts a share on the same.
#[test]
fn a_guarantee_that_is_passed_on_is_not_given_to_another_in_the_same_pass() {
    let mut pool = Pool::new(LIMITS);
    for (id, account, ask, list) in [(1, 2, 10, 0), (2, 0, 5, 3), (3, 2, 4, 0)] {
        let long = Job {
            secs: 3000,
            ..job(account, ask, list, false)
        };
        pool.submit(id, &long, false);
    }
    pool.round();
    pool.submit(4, &job(1, 10, 0, false), false);
    let mut alone = Pool {
        engine: Engine::default(),
        snapshot: pool.snapshot.clone(),
        jobs: pool.jobs.clone(),
        ..Pool::new(LIMITS)
    };
    let passed_on = |told: &Plan| {
        told.preempts
            .iter()
            .map(|one| (one.run.job.0, one.heirs.len()))
            .collect::<Vec<_>>()
    };
    assert_eq!(passed_on(&alone.round()), [(1, 1)]);
    pool.submit(5, &job(2, 7, 2, false), false);
    let told = pool.round();
    assert_eq!(
        told.starts
            .iter()
            .map(|one| (one.job.0, one.class))
            .collect::<Vec<_>>(),
        [(5, Some(RunClass::Guaranteed))]
    );
    assert_eq!(passed_on(&told), []);
    guarantees_hold(&pool.snapshot, 6, 3);
}

/// A slice of 3g.40gb counts half of a GPU, for its memory, though its compute is three sevenths.
#[test]
fn a_slice_asks_for_as_much_of_a_guarantee_as_it_will_hold() {
    let mut pool = Pool::new(&guarantees(1, 0, 0, false));
    let of_lab = [8, 9, 9].map(|ask| job(0, ask, 0, false));
    for (id, job) in (1..).zip(of_lab.iter().chain([&job(4, 10, 0, false)])) {
        pool.submit(id, job, true);
    }
    pool.round();
    pool.submit(5, &job(0, 10, 0, false), true);
    for _ in 0..20 {
        pool.round();
    }
    // 250 + 142 + 142 of 1000: beside these 428 would be within the guarantee.
    assert_eq!(pool.preempted, []);
    assert_eq!(
        pool.snapshot
            .pending
            .iter()
            .map(|job| job.id.0)
            .collect::<Vec<_>>(),
        [5]
    );
}

/// A borrowed run of vision inherits the guarantee that a QOS takes from it. A job that reclaims a borrowed run must look
/// elsewhere, or would give it back in the next pass.
#[test]
fn a_run_that_will_inherit_the_guarantee_of_one_that_goes_is_not_taken_as_a_borrowed_one() {
    let mut pool = Pool::new(&guarantees(7, 2, 2, true));
    let jobs = [
        job(1, 1, 4, false),
        job(0, 3, 2, false),
        job(0, 1, 0, true),
        job(2, 0, 0, false),
        job(1, 5, 3, false),
        job(0, 0, 0, false),
        job(3, 6, 3, true),
        job(2, 1, 2, true),
        job(4, 0, 2, false),
    ];
    assert_eq!(
        preempted_in(20, &mut pool, &jobs),
        [(5, 7)],
        "and not 1 for 3, which vision would take back"
    );
}

/// A run of a QOS that may preempt the job's does not make room by an exchange: it would take it back.
#[test]
fn a_run_that_may_preempt_the_reclaiming_job_passes_on_no_guarantee() {
    let mut pool = Pool::new(&guarantees(7, 2, 0, true));
    let jobs = [
        job(2, 5, 0, false),
        job(2, 5, 3, true),
        job(1, 6, 0, false),
        job(2, 3, 0, false),
    ];
    assert_eq!(preempted_in(20, &mut pool, &jobs), []);
}

/// In between, a QOS preempts a guaranteed run of lab, and the earlier borrower inherits the guarantee.
#[test]
fn a_victim_reclaims_a_guarantee_freed_by_a_third_job_and_then_all_rest() {
    let mut pool = Pool::new(&guarantees(7, 1, 0, true));
    let jobs = [
        job(0, 1, 4, false),
        job(1, 1, 2, false),
        job(2, 3, 2, false),
        job(1, 3, 5, true),
        job(1, 1, 2, false),
        job(0, 7, 0, true),
        job(0, 5, 3, false),
    ];
    assert_eq!(preempted_in(60, &mut pool, &jobs), [(1, 4), (3, 6), (4, 1)]);
}

/// The victims have ended and the job starts in the next pass. Until then no run of its account moves onto the guarantee;
/// otherwise the job would borrow, and give back.
#[test]
fn the_guarantee_is_there_for_the_preemptor_when_its_victims_have_ended() {
    let mut pool = Pool::new(&guarantees(7, 1, 0, true));
    let mut jobs = vec![
        job(4, 3, 5, false),
        job(2, 10, 3, false),
        job(0, 9, 0, false),
        job(0, 1, 2, false),
        job(3, 2, 2, false),
    ];
    jobs.extend([
        job(0, 5, 3, true),
        job(2, 9, 3, false),
        job(2, 11, 4, true),
        job(1, 7, 2, true),
        job(0, 8, 4, false),
    ]);
    jobs.extend([
        job(4, 1, 1, true),
        job(2, 6, 2, false),
        job(1, 7, 4, false),
        job(4, 8, 2, false),
        job(1, 11, 4, false),
    ]);
    [5, 8, 13]
        .into_iter()
        .for_each(|other: usize| jobs[other].user = 1);
    assert_eq!(
        preempted_in(20, &mut pool, &jobs),
        [(1, 11), (5, 13), (4, 8), (14, 4), (15, 4), (10, 14)],
        "and not 4 for 14"
    );
}
