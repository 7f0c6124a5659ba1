//! Reservations of GPUs by their number, on random clusters round after round: what is set apart is there, and its jobs take no more.

use super::kept::{end, enter};
use super::picture;
use super::promises::is_within_the_node;
use crate::{Engine, RunningRun, Snapshot, WorkBudget, plan};
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Job {
    /// Of the reservation.
    inside: bool,
    gpus: &'static str,
    secs: u32,
}

fn jobs() -> impl Strategy<Value = Vec<Job>> {
    let gpus = prop::sample::select(vec![
        "0", "1", "2", "3", "4", "h100:1", "h100:2", "a100:1", "0.5",
    ]);
    let job = (any::<bool>(), gpus, 30u32..400).prop_map(|(inside, gpus, secs)| Job {
        inside,
        gpus,
        secs,
    });
    prop::collection::vec(job, 4..24)
}

/// Thousandths: of h100 (on the first two nodes), and of all.
fn held(snapshot: &Snapshot, inside: bool) -> (u64, u64) {
    let of = |run: &&RunningRun| run.spec.reservation.is_some() == inside;
    let shares = snapshot
        .running
        .iter()
        .filter(of)
        .flat_map(|run| &run.shares);
    let parts = shares.map(|share| {
        (
            if share.node.0 < 3 {
                share.gpus.milli()
            } else {
                0
            },
            share.gpus.milli(),
        )
    });
    parts.fold((0, 0), |sum, part| (sum.0 + part.0, sum.1 + part.1))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]
    #[test]
    fn gpus_that_are_reserved_are_there_for_its_jobs_and_for_no_more_of_them(
        jobs in jobs(), h100 in 0u64..4, more in 0u64..4, steps in prop::collection::vec((any::<prop::sample::Index>(), 1i64..120), 1..12),
    ) {
        let all = h100 + more;
        let mut text = format!(
            "partition main sharing=uncapped
             node n1 h100:4
             node n2 h100:2
             node n3 a100:3
             reservation demo gpus=h100:{h100},gpu:{all} user=alice secs=100000\n"
        );
        for job in &jobs {
            // Beside a part of a GPU that one of its jobs has nothing is set apart.
            let gpus = if job.inside && job.gpus == "0.5" { "1" } else { job.gpus };
            let whose = if job.inside { "user=alice reservation=demo" } else { "user=bob" };
            text += &format!("job gpus={gpus} time={} {whose}\n", job.secs);
        }
        let mut snapshot = picture(&text);
        let mut waiting = std::mem::take(&mut snapshot.pending).into_iter();
        let mut engine = Engine::default();
        for (which, secs) in steps {
            snapshot.pending.extend(waiting.by_ref().take(4));
            loop {
                let told = engine.plan(&snapshot, WorkBudget::default());
                prop_assert_eq!(&told, &plan(&snapshot, WorkBudget::default()));
                enter(&mut snapshot, &told);
                is_within_the_node(&snapshot);
                if !told.again {
                    break;
                }
            }
            let late = plan(&snapshot, WorkBudget::default()).starts;
            prop_assert!(late.is_empty(), "the passes were over, and {late:?} starts all the same");
            let (own, others) = (held(&snapshot, true), held(&snapshot, false));
            prop_assert!(own.1 <= all * 1000, "its jobs hold {} of {}", own.1, all);
            prop_assert!(own.1 - own.0 <= more * 1000, "its jobs hold {} of others than h100, of {more}", own.1 - own.0);
            prop_assert!(others.1 + all * 1000 <= 9000, "others hold {}, and {} are reserved", others.1, all);
            let is_owed = (h100 * 1000).saturating_sub(own.0);
            prop_assert!(own.0 + others.0 + is_owed <= 6000, "h100: {} and {} are held, {} are owed", own.0, others.0, is_owed);
            snapshot.now = snapshot.now.plus_secs(secs);
            let mut over: Vec<usize> = (0..snapshot.running.len()).filter(|at| snapshot.running[*at].ends_by.is_some_and(|at| at <= snapshot.now)).collect();
            if over.is_empty() && !snapshot.running.is_empty() {
                over.push(which.index(snapshot.running.len()));
            }
            for at in over.into_iter().rev() {
                let changes = end(&mut snapshot, at);
                prop_assert_eq!(engine.after(&snapshot, &changes, WorkBudget::default()), None);
            }
        }
    }
}
