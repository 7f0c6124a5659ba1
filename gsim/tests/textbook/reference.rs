//! The textbook policies, written straight from their definitions, slowly, and sharing nothing with the scheduler:
//! FIFO and SJF without backfill; EASY (Lifka 1995): only the head of the queue has a reservation; conservative
//! (Mu'alem and Feitelson 2001): every job has one, made in the order of the queue.
//!
//! Equal nodes with so many GPUs. At one instant first the ends, then the arrivals, then one pass.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    Fifo,
    Sjf,
    Easy,
    Conservative,
}

#[derive(Clone, Debug)]
pub struct Job {
    pub submit: i64,
    pub run: i64,
    /// What the scheduler believes of how long it runs.
    pub believed: i64,
    pub gpus: u32,
}

/// A part of the cluster that is taken for some time, now or in a reservation: GPUs on each node.
#[derive(Clone)]
struct Occupied {
    from: i64,
    to: i64,
    gpus: Vec<(usize, u32)>,
}

struct RunningJob {
    end: i64,
    taken: Occupied,
}

/// When each job starts, and the nodes it gets.
pub fn starts(jobs: &[Job], nodes: usize, size: u32, rule: Rule) -> Vec<(i64, Vec<usize>)> {
    let mut started = vec![(-1, Vec::new()); jobs.len()];
    let mut queue: Vec<usize> = Vec::new();
    let mut running: Vec<RunningJob> = Vec::new();
    let mut next = 0;
    loop {
        let end = running.iter().map(|run| run.end).min();
        let arrival = jobs.get(next).map(|job| job.submit);
        let Some(now) = [end, arrival].into_iter().flatten().min() else {
            return started;
        };
        running.retain(|run| run.end > now);
        while next < jobs.len() && jobs[next].submit <= now {
            queue.push(next);
            next += 1;
        }
        if rule == Rule::Sjf {
            queue.sort_by_key(|job| (jobs[*job].believed, *job));
        }
        // A run that is longer than was believed may end at any moment.
        let mut taken: Vec<Occupied> = running
            .iter()
            .map(|run| Occupied {
                to: run.taken.to.max(now + 1),
                ..run.taken.clone()
            })
            .collect();
        let mut reservations = match rule {
            Rule::Fifo | Rule::Sjf => 0,
            Rule::Easy => 1,
            Rule::Conservative => usize::MAX,
        };
        let mut waiting = Vec::new();
        let mut blocked = false;
        for job in std::mem::take(&mut queue) {
            let backfill = !matches!(rule, Rule::Fifo | Rule::Sjf);
            let fits = if blocked && !backfill {
                None
            } else {
                place(&taken, nodes, size, &jobs[job], now)
            };
            if let Some(gpus) = fits {
                started[job] = (now, gpus.iter().map(|(node, _)| *node).collect());
                let run = Occupied {
                    from: now,
                    to: now + jobs[job].believed.max(1),
                    gpus,
                };
                taken.push(run.clone());
                running.push(RunningJob {
                    end: now + jobs[job].run,
                    taken: run,
                });
                continue;
            }
            blocked = true;
            waiting.push(job);
            if reservations > 0 {
                reservations -= 1;
                let reserved = earliest(&taken, nodes, size, &jobs[job], now);
                taken.push(reserved);
            }
        }
        queue = waiting;
    }
}

/// The earliest time after now at which the job fits: something that is taken ends then.
fn earliest(taken: &[Occupied], nodes: usize, size: u32, job: &Job, now: i64) -> Occupied {
    let mut times: Vec<i64> = taken
        .iter()
        .map(|taken| taken.to)
        .filter(|at| *at > now)
        .collect();
    times.sort_unstable();
    for from in times {
        if let Some(gpus) = place(taken, nodes, size, job, from) {
            return Occupied {
                from,
                to: from + job.believed.max(1),
                gpus,
            };
        }
    }
    panic!("a job that never fits is in the queue");
}

/// Best fit for the whole of the believed time from `at`: the node with the fewest GPUs free then that has enough; for
/// more than a node whole empty ones, and the rest on the one with the most free.
fn place(
    taken: &[Occupied],
    nodes: usize,
    size: u32,
    job: &Job,
    at: i64,
) -> Option<Vec<(usize, u32)>> {
    let to = at + job.believed.max(1);
    let free_at = |node: usize, time: i64| {
        let held: u32 = taken
            .iter()
            .filter(|taken| taken.from <= time && time < taken.to)
            .flat_map(|taken| &taken.gpus)
            .filter(|(on, _)| *on == node)
            .map(|(_, gpus)| *gpus)
            .sum();
        size.saturating_sub(held)
    };
    // It changes only where something begins.
    let mut moments: Vec<i64> = taken
        .iter()
        .map(|taken| taken.from)
        .filter(|from| at < *from && *from < to)
        .collect();
    moments.push(at);
    let free: Vec<u32> = (0..nodes)
        .map(|node| {
            moments
                .iter()
                .map(|time| free_at(node, *time))
                .min()
                .unwrap_or(0)
        })
        .collect();
    let now: Vec<u32> = (0..nodes).map(|node| free_at(node, at)).collect();
    if job.gpus <= size {
        let node = (0..nodes)
            .filter(|node| free[*node] >= job.gpus)
            .min_by_key(|node| (now[*node], *node))?;
        return Some(vec![(node, job.gpus)]);
    }
    let (whole, rest) = ((job.gpus / size) as usize, job.gpus % size);
    let mut chosen: Vec<(usize, u32)> = (0..nodes)
        .filter(|node| free[*node] == size)
        .take(whole)
        .map(|node| (node, size))
        .collect();
    if chosen.len() < whole {
        return None;
    }
    if rest > 0 {
        let others = (0..nodes).filter(|node| !chosen.iter().any(|(taken, _)| taken == node));
        let node = others
            .filter(|node| free[*node] >= rest)
            .max_by_key(|node| (now[*node], std::cmp::Reverse(*node)))?;
        chosen.push((node, rest));
    }
    chosen.sort_unstable();
    Some(chosen)
}
