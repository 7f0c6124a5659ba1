//! FIFO, EASY and conservative backfill against the definitions, second by second, on one pool of GPUs.

use super::picture;
use crate::{WorkBudget, plan};
use gmodel::JobId;
use proptest::prelude::*;

const POOL: usize = 16;
const SECONDS: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Fifo,
    Easy,
    Conservative,
}

/// Jobs of the queue, by place, that start at second 0: what each definition says.
fn by_definition(by: By, running: &[(usize, usize)], queue: &[(usize, usize)]) -> Vec<usize> {
    let mut free = [POOL as i64; SECONDS];
    let take = |free: &mut [i64; SECONDS], at: usize, (gpus, secs): (usize, usize)| {
        free[at..at + secs]
            .iter_mut()
            .for_each(|free| *free -= gpus as i64);
    };
    running.iter().for_each(|run| take(&mut free, 0, *run));
    let mut starts = Vec::new();
    let mut waiting = false;
    for (place, job) in queue.iter().enumerate() {
        let fits = |at: usize| {
            free[at..at + job.1]
                .iter()
                .all(|free| *free >= job.0 as i64)
        };
        let earliest = (0..SECONDS - 100)
            .find(|at| fits(*at))
            .expect("the pool is empty in the end");
        let may_start = earliest == 0 && !(by == By::Fifo && waiting);
        if may_start {
            starts.push(place);
        }
        if may_start || by == By::Conservative || (by == By::Easy && !waiting) {
            take(&mut free, earliest, *job);
        }
        waiting |= !may_start;
    }
    starts
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]
    #[test]
    fn starts_are_those_of_the_textbook(
        running in prop::collection::vec((1usize..6, 1usize..60), 0..4),
        queue in prop::collection::vec((1usize..17, 1usize..40), 1..14),
    ) {
        let mut left = POOL;
        let running: Vec<_> = running.into_iter().filter(|(gpus, _)| { let fits = *gpus <= left; left -= if fits { *gpus } else { 0 }; fits }).collect();
        for (by, word) in [(By::Fifo, "off"), (By::Easy, "easy"), (By::Conservative, "all")] {
            let mut text = format!("backfill {word}\norder fifo\nnode n1 h100:{POOL} 640c\n");
            let mut slot = 0;
            for (id, (gpus, secs)) in running.iter().enumerate() {
                text += &format!("running {} n1 gpus={slot}-{} left={secs}\n", id + 1, slot + gpus - 1);
                slot += gpus;
            }
            queue.iter().for_each(|(gpus, secs)| text += &format!("job gpus={gpus} time={secs}\n"));
            let snapshot = picture(&text);
            let starts: Vec<JobId> = plan(&snapshot, WorkBudget::default()).starts.iter().map(|start| start.job).collect();
            let expected: Vec<JobId> =
                by_definition(by, &running, &queue).into_iter().map(|place| snapshot.pending[place].id).collect();
            prop_assert_eq!(starts, expected, "{:?}", by);
        }
    }
}
