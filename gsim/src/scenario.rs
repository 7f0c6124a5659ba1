//! Commands and faults of a simulated cluster: a list made from a seed, from which single entries can be left out.

use crate::board::{Disturbance, GpuAct, Illness};
use crate::prng::Prng;
use gmodel::gpu_health::Catalogue;
use std::fmt;
use std::sync::Arc;

/// The option of a submission that is an allocation; the others are below it.
pub const ALLOCATION: u8 = 24;

/// A cluster and everything that happens to it from outside.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub machines: u16,
    pub gpus: u16,
    /// Silent nodes keep their jobs (`lost_node = "wait"`).
    pub wait_for_lost: bool,
    /// The site has a `fence_program` that powers lost nodes off, and how often of ten times it fails.
    pub fence_fails: Option<u8>,
    /// Daemons look at their GPUs, by these signs.
    pub watches_gpus: bool,
    pub catalogue: Arc<Catalogue>,
    /// Jobs take so many times as long as usual.
    pub job_scale: i64,
    pub acts: Vec<Act>,
    /// When misfortune ends, milliseconds. Afterwards everything must come to rest.
    pub calm_from: i64,
}

#[derive(Clone, Debug)]
pub struct Act {
    pub at: i64,
    pub what: ActKind,
}

/// What a user submits. `option` chooses one of the options of [`crate::act`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubmissionAct {
    pub user: u8,
    pub gpus: u32,
    pub nodes: u32,
    /// 0: no array.
    pub tasks: u32,
    /// Most tasks at once; 0: all.
    pub cap: u32,
    pub limit_secs: u32,
    pub option: u8,
}

/// `pick` chooses among the jobs acknowledged so far; times are milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActKind {
    Submit(SubmissionAct),
    Cancel {
        pick: usize,
    },
    Hold {
        pick: usize,
        operator: bool,
    },
    Release {
        pick: usize,
        operator: bool,
    },
    Requeue {
        pick: usize,
    },
    Suspend {
        pick: usize,
    },
    /// The client of an allocation is done with it, or gone. Of other jobs the controller refuses it.
    EndAllocation {
        pick: usize,
        gone: bool,
    },
    /// A suspended job goes on.
    GoOn {
        pick: usize,
    },
    ChangeLimit {
        pick: usize,
        limit_secs: u32,
    },
    /// Of the policy: which of a few edits.
    Edit {
        edit: u8,
    },
    /// One job waits for another from now on.
    Depend {
        pick: usize,
        on: usize,
    },
    Drain {
        machine: usize,
    },
    DrainBy {
        machine: usize,
        millis: i64,
    },
    Resume {
        machine: usize,
    },

    ResetConnection {
        machine: usize,
    },
    Partition {
        machine: usize,
        millis: i64,
    },
    CrashDaemon {
        machine: usize,
        millis: i64,
    },
    LoseSpool {
        machine: usize,
        millis: i64,
    },
    Reboot {
        machine: usize,
        millis: i64,
        new_disk: bool,
    },
    KillSupervisor {
        machine: usize,
        pick: usize,
    },
    LoseGpu {
        machine: usize,
        millis: i64,
    },
    BreakStarts {
        machine: usize,
        millis: i64,
        prolog: bool,
    },
    JumpClock {
        millis: i64,
    },
    CrashController {
        millis: i64,
    },
    /// At a commit, counted from the start: before it is durable, or after and before any answer.
    CrashAtCommit {
        commit: u64,
        before: bool,
        millis: i64,
    },
    /// Faults of GPUs and lies about them.
    Gpu(GpuAct),
    Backup,
    /// The controller comes back with the backup.
    Restore {
        millis: i64,
    },
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            ActKind::CrashAtCommit { .. } => write!(f, "          {:?}", self.what),
            what => write!(f, "{:>8.1} s {what:?}", self.at as f64 / 1000.0),
        }
    }
}

impl Scenario {
    /// A cluster to which nothing happens: silent nodes lose their jobs, and daemons do not look at their GPUs.
    pub fn new(seed: u64, machines: u16, gpus: u16) -> Self {
        Self {
            seed,
            machines,
            gpus,
            wait_for_lost: false,
            fence_fails: None,
            watches_gpus: false,
            catalogue: Arc::new(Catalogue::built_in()),
            job_scale: 1,
            acts: Vec::new(),
            calm_from: 0,
        }
    }

    pub fn from_seed(seed: u64, machines: Option<u16>) -> Self {
        let mut prng = Prng::new(seed, 1);
        let machines = machines.unwrap_or_else(|| prng.range(2, 8) as u16);
        let calm_from = prng.range(200, 1500) * 1000;
        let scale = usize::from(machines / 50).max(1);
        let submissions = scale * prng.range(5, 40) as usize;
        let submit = |_| Act {
            at: prng.range(0, calm_from),
            what: submission(&mut prng),
        };
        let mut acts: Vec<Act> = (0..submissions).map(submit).collect();
        let drawn = |prng: &mut Prng, from, what| Act {
            at: prng.range(from, calm_from),
            what,
        };
        for _ in 0..scale * prng.range(0, 25) as usize {
            let what = person(&mut prng, usize::from(machines));
            acts.push(drawn(&mut prng, 0, what));
        }
        for _ in 0..scale * prng.range(0, 25) as usize {
            let what = misfortune(&mut prng, usize::from(machines));
            acts.push(drawn(&mut prng, 0, what));
        }
        if prng.one_in(4) {
            acts.push(drawn(&mut prng, 0, ActKind::Backup));
            let backup_at = acts[acts.len() - 1].at;
            for _ in 0..prng.range(1, 2) {
                let millis = prng.range(0, 20_000);
                acts.push(drawn(&mut prng, backup_at, ActKind::Restore { millis }));
            }
        }
        // Chances of their own: older seeds are what they were but for these.
        let mut later = Prng::new(seed, 5);
        if later.one_in(2) {
            for _ in 0..scale * later.range(1, 12) as usize {
                let what = suspension(&mut later);
                acts.push(drawn(&mut later, 0, what));
            }
        }
        let fence_fails = later.one_in(2).then(|| later.below(8) as u8);
        let wait_for_lost = prng.one_in(3);
        let gpus = prng.range(1, 8) as u16;
        // And of their own again: half of the seeds watch their GPUs, which fall ill.
        let mut sick = Prng::new(seed, 6);
        let watches_gpus = sick.one_in(2) && machines <= 64;
        if watches_gpus {
            acts.extend(gpu_faults(&mut sick, machines, gpus, calm_from));
        }
        acts.extend(allocations(seed, scale, calm_from));
        acts.sort_by_key(|act| act.at);
        Self {
            wait_for_lost,
            fence_fails,
            watches_gpus,
            acts,
            calm_from,
            ..Self::new(seed, machines, gpus)
        }
    }
}

/// An operator suspends a run, or resumes one.
fn suspension(prng: &mut Prng) -> ActKind {
    let pick = prng.below(1 << 20);
    if prng.one_in(3) {
        ActKind::GoOn { pick }
    } else {
        ActKind::Suspend { pick }
    }
}

fn gpu_faults(prng: &mut Prng, machines: u16, gpus: u16, calm_from: i64) -> Vec<Act> {
    let faults = prng.range(1, 40);
    let fault = |_| Act {
        at: prng.range(0, calm_from),
        what: ActKind::Gpu(gpu_act(prng, usize::from(machines), usize::from(gpus))),
    };

    (0..faults).map(fault).collect()
}

/// A fault of a GPU, or a lie about healthy ones.
pub fn gpu_act(prng: &mut Prng, machines: usize, gpus: usize) -> GpuAct {
    let (machine, gpu) = (prng.below(machines), prng.below(gpus));
    let what = Disturbance::ALL[prng.below(Disturbance::ALL.len())].0;
    match prng.below(20) {
        0..=4 => GpuAct::FallsIll {
            machine,
            gpu,
            illness: Illness::ALL[prng.below(Illness::ALL.len())].0,
        },
        5 => GpuAct::AllDisturbed { machine, what },
        6 => GpuAct::DriverSilent {
            machine,
            millis: prng.range(1000, 400_000),
        },
        7 => GpuAct::ClockStep {
            machine,
            millis: prng.range(-7_200_000, 7_200_000),
        },
        _ => GpuAct::Disturbed { machine, gpu, what },
    }
}

fn submission(prng: &mut Prng) -> ActKind {
    let several = prng.one_in(4);
    let array = prng.one_in(4);
    ActKind::Submit(SubmissionAct {
        user: prng.below(3) as u8,
        gpus: prng.range(0, 4) as u32,
        nodes: if several { prng.range(2, 3) as u32 } else { 1 },
        tasks: if array { prng.range(2, 12) as u32 } else { 0 },
        cap: prng.range(0, 3) as u32,
        limit_secs: prng.range(5, 300) as u32,
        option: prng.below(24) as u8,
    })
}

/// Half of the seeds have allocations, and as many words of clients that end them. By chances of their own, too.
fn allocations(seed: u64, scale: usize, calm_from: i64) -> Vec<Act> {
    let mut prng = Prng::new(seed, 7);
    let mut acts = Vec::new();
    if prng.one_in(2) {
        return acts;
    }
    for _ in 0..scale * prng.range(1, 10) as usize {
        let at = prng.range(0, calm_from);
        let what = allocation(&mut prng);
        acts.push(Act { at, what });
        let (pick, gone) = (prng.below(1 << 20), prng.one_in(2));
        let at = prng.range(0, calm_from);
        let what = ActKind::EndAllocation { pick, gone };
        acts.push(Act { at, what });
    }
    acts
}

fn allocation(prng: &mut Prng) -> ActKind {
    ActKind::Submit(SubmissionAct {
        user: prng.below(3) as u8,
        gpus: prng.range(0, 4) as u32,
        nodes: prng.range(1, 3) as u32,
        tasks: 0,
        cap: 0,
        limit_secs: prng.range(5, 300) as u32,
        option: ALLOCATION,
    })
}

fn person(prng: &mut Prng, machines: usize) -> ActKind {
    let pick = prng.below(1 << 20);
    let operator = prng.one_in(2);
    let machine = prng.below(machines);
    match prng.below(20) {
        12..=15 => ActKind::Edit {
            edit: prng.below(9) as u8,
        },
        16 | 17 => ActKind::Depend {
            pick,
            on: prng.below(1 << 20),
        },
        18 => ActKind::DrainBy {
            machine,
            millis: prng.range(0, 60_000),
        },
        0..=3 => ActKind::Cancel { pick },
        4 => ActKind::Hold { pick, operator },
        5 => ActKind::Release { pick, operator },
        6..=8 => ActKind::Requeue { pick },
        9 => ActKind::ChangeLimit {
            pick,
            limit_secs: prng.range(1, 400) as u32,
        },
        10 => ActKind::Drain { machine },
        _ => ActKind::Resume { machine },
    }
}

fn misfortune(prng: &mut Prng, machines: usize) -> ActKind {
    let machine = prng.below(machines);
    let short = prng.range(0, 5_000);
    // Around the node timeout of 60 s, on both sides.
    let long = prng.range(1_000, 150_000);
    let millis = if prng.one_in(2) { short } else { long };
    match prng.below(20) {
        0..=2 => ActKind::ResetConnection { machine },
        3 | 4 => ActKind::Partition { machine, millis },
        5..=7 => ActKind::CrashDaemon { machine, millis },
        8 => ActKind::LoseSpool { machine, millis },
        9 | 10 => ActKind::Reboot {
            machine,
            millis,
            new_disk: prng.one_in(3),
        },
        11 | 12 => ActKind::KillSupervisor {
            machine,
            pick: prng.below(16),
        },
        13 => ActKind::LoseGpu {
            machine,
            millis: long,
        },
        14 => ActKind::BreakStarts {
            machine,
            millis: long,
            prolog: prng.one_in(3),
        },
        15 => ActKind::JumpClock {
            millis: prng.range(-120_000, 600_000),
        },
        16 => ActKind::CrashController { millis },
        _ => {
            let commit = prng.range(1, 600) as u64;
            ActKind::CrashAtCommit {
                commit,
                before: prng.one_in(2),
                millis,
            }
        }
    }
}
