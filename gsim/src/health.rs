//! A long time of a whole pool in which GPUs fall ill, sensors lie and programs fail, to see that the health machine takes out of
//! service what is sick and nothing else.
//!
//! Controller, breaker and health machine are the real ones. A node looks at its GPUs every 10 s until 20 minutes after the last thing
//! that happened to it, and else every 60 s, the longest interval that a site may set.

use crate::board::GpuAct;
use crate::cluster::Cluster;
use crate::node_gpus::HealthTally;
use crate::prng::Prng;
use crate::scenario::{Act, ActKind, Scenario, SubmissionAct, gpu_act};
use gmodel::gpu_health::Catalogue;
use std::sync::Arc;

const HOUR: i64 = 3_600_000;
/// Jobs take so many times as long as in the fuzz, where they take a minute.
const JOB_SCALE: i64 = 300;
/// A job comes for each so many hours of a GPU: some hours long, on two or three GPUs.
const GPU_HOURS_PER_JOB: i64 = 12;

/// What is simulated.
#[derive(Clone, Debug)]
pub struct HealthTrial {
    pub seed: u64,
    pub gpu_hours: i64,
    pub machines: u16,
    pub gpus: u16,
    /// Mean hours of one GPU between two things that happen to it, most of them to a healthy one. Real pools are far calmer: a
    /// board fault each 50,000 hours.
    pub hours_between_acts: i64,
    pub catalogue: Arc<Catalogue>,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct HealthResult {
    pub gpu_hours: i64,
    pub hours: i64,
    pub tally: HealthTally,
    pub jobs_over: u64,
    /// Steps that the breaker allowed, and those that had to wait for it.
    pub allowed: u64,
    pub stopped: u64,
    /// The most that was lost within an hour when it allowed one more, and its bound, in thousandths of nodes.
    pub most_lost: u64,
    pub bound: u64,
    pub violation: Option<String>,
    pub trace: Vec<String>,
}

impl HealthTrial {
    pub fn new(seed: u64, gpu_hours: i64, machines: u16) -> Self {
        Self {
            seed,
            gpu_hours,
            machines,
            gpus: 8,
            hours_between_acts: 24,
            catalogue: Arc::new(Catalogue::built_in()),
        }
    }

    fn pool(&self) -> i64 {
        i64::from(self.machines) * i64::from(self.gpus)
    }

    fn scenario(&self) -> Scenario {
        let end = self.gpu_hours * HOUR / self.pool();
        let mut chance = Prng::new(self.seed, 1);
        let (machines, gpus) = (usize::from(self.machines), usize::from(self.gpus));
        let mut acts = Vec::new();
        let mut happen = |times: i64, what: &dyn Fn(&mut Prng) -> ActKind| {
            for _ in 0..times {
                let at = chance.range(5000, end);
                let what = what(&mut chance);
                acts.push(Act { at, what });
            }
        };
        happen(self.gpu_hours / self.hours_between_acts, &|chance| {
            ActKind::Gpu(gpu_act(chance, machines, gpus))
        });
        happen(self.gpu_hours / GPU_HOURS_PER_JOB, &|chance| {
            ActKind::Submit(SubmissionAct {
                user: chance.below(3) as u8,
                gpus: chance.range(1, 4) as u32,
                nodes: 1,
                tasks: 0,
                cap: 0,
                limit_secs: 864_000,
                option: 99,
            })
        });
        misfortunes(self, end, &mut happen);
        // Operators come every half hour.
        let rounds = (1..=end / (HOUR / 2)).map(|round| Act {
            at: round * HOUR / 2,
            what: ActKind::Gpu(GpuAct::Round),
        });
        acts.extend(rounds);
        acts.sort_by_key(|act| act.at);
        Scenario {
            watches_gpus: true,
            catalogue: Arc::clone(&self.catalogue),
            job_scale: JOB_SCALE,
            acts,
            calm_from: end,
            // Odd: a site with all programs.
            ..Scenario::new(self.seed | 1, self.machines, self.gpus)
        }
    }

    /// Runs it to its end, or to the first broken promise.
    pub fn run(&self, traced: bool) -> HealthResult {
        let scenario = self.scenario();
        let end = scenario.calm_from;
        let mut cluster = Cluster::new(scenario);
        cluster.trace = traced.then(Vec::new);
        cluster.run_until(end);
        let mut tally = HealthTally::default();
        for machine in &cluster.machines {
            tally.add(&machine.gpus.tally);
        }
        HealthResult {
            gpu_hours: cluster.now * self.pool() / HOUR,
            hours: cluster.now / HOUR,
            tally,
            jobs_over: cluster.truth.jobs_over,
            allowed: cluster.truth.breaker.allowed,
            stopped: cluster.truth.breaker.stopped,
            most_lost: cluster.truth.breaker.most_lost,
            bound: (u64::from(self.machines) * 100).max(1000),
            violation: cluster.violation,
            trace: cluster.trace.unwrap_or_default(),
        }
    }
}

/// Crashes of nodes, daemons and the controller, and wrong drivers.
fn misfortunes(
    trial: &HealthTrial,
    end: i64,
    happen: &mut dyn FnMut(i64, &dyn Fn(&mut Prng) -> ActKind),
) {
    let machines = usize::from(trial.machines);
    let node_hours = trial.gpu_hours / i64::from(trial.gpus);
    happen(node_hours / 500, &|chance| ActKind::Reboot {
        machine: chance.below(machines),
        millis: chance.range(30_000, 900_000),
        new_disk: false,
    });
    happen(node_hours / 200, &|chance| ActKind::CrashDaemon {
        machine: chance.below(machines),
        millis: chance.range(100, 400_000),
    });
    happen(node_hours / 500, &|chance| ActKind::Partition {
        machine: chance.below(machines),
        millis: chance.range(1000, 300_000),
    });
    happen(end / HOUR / 24, &|chance| ActKind::CrashController {
        millis: chance.range(0, 600_000),
    });
    happen(end / HOUR / 200 + 1, &|chance| {
        ActKind::Gpu(GpuAct::FalseSigns {
            one_in: chance.range(1, 4) as usize,
            millis: chance.range(HOUR / 2, 3 * HOUR),
        })
    });
}
