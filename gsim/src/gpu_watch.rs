//! The simulated daemon's watch over its GPUs: looks, the runs that end, programs of the site, orders of the controller. Decides nothing:
//! the health machine does, in `node_gpus`.

use crate::board::{GpuAct, Illness};
use crate::cluster::{Cluster, root};
use crate::node_gpus::LookOutcome;
use crate::sim_event::SimEvent;
use gcore::ctl::{Command, NodeReport};
use gmodel::gpu_health::RepairStage;
use gmodel::gpu_order::{GpuAction, GpuOrder};
use gmodel::run::{EndCause, RunEnd};
use gmodel::{ExitCode, RunId};

/// Operators look after a GPU that has been out of service for so long.
const FOR_OPERATORS_MILLIS: i64 = 7_200_000;

/// Something happens to GPUs.
pub fn act(cluster: &mut Cluster, what: GpuAct) {
    let now = cluster.now;
    match what {
        GpuAct::FallsIll {
            machine,
            gpu,
            illness,
        } => {
            cluster.machines[machine].gpus.falls_ill(gpu, illness, now);
            if illness == Illness::Missing {
                report_inventory(cluster, machine);
            }
            look_soon(cluster, machine);
        }
        GpuAct::Disturbed { machine, gpu, what } => {
            cluster.machines[machine].gpus.is_disturbed(gpu, what, now);
            look_soon(cluster, machine);
        }
        GpuAct::AllDisturbed { machine, what } => {
            let gpus = &mut cluster.machines[machine].gpus;
            (0..gpus.boards.len()).for_each(|gpu| gpus.is_disturbed(gpu, what, now));
            look_soon(cluster, machine);
        }
        GpuAct::DriverSilent { machine, millis } => {
            let gpus = &mut cluster.machines[machine].gpus;
            gpus.silent_until = now + millis;
            gpus.alert(Vec::new(), now + millis);
            look_soon(cluster, machine);
        }
        GpuAct::ClockStep { machine, millis } => {
            cluster.machines[machine].gpus.clock_is_set(millis, now);
        }
        GpuAct::FalseSigns { one_in, millis } => {
            for machine in 0..cluster.machines.len() {
                let gpus = &mut cluster.machines[machine].gpus;
                for board in &mut gpus.boards {
                    if cluster.gpu_chance.one_in(one_in as u64) {
                        board.false_sign_until = now + millis;
                    }
                }
                gpus.alert(Vec::new(), now + millis);
                look_soon(cluster, machine);
            }
        }
        GpuAct::Round => operators_round(cluster, FOR_OPERATORS_MILLIS),
    }
}

/// Operators mend what has been out of service for so long, and return it.
pub fn operators_round(cluster: &mut Cluster, out_millis: i64) {
    for machine in 0..cluster.machines.len() {
        let one = &mut cluster.machines[machine];
        let node = one.id;
        for uuid in one.gpus.operators_round(out_millis, cluster.now) {
            let command = Command::GpuOrder {
                node,
                uuid,
                what: GpuAction::Return,
            };
            cluster.ask(root(), command);
        }
        report_inventory(cluster, machine);
        look_soon(cluster, machine);
    }
}

/// No GPU of any machine is sick, and every sensor tells the truth from now on.
pub fn calm(cluster: &mut Cluster) {
    for machine in 0..cluster.machines.len() {
        let now = cluster.now;
        let gpus = &mut cluster.machines[machine].gpus;
        gpus.silent_until = 0;
        gpus.boards.iter_mut().for_each(|board| board.calm(now));
        report_inventory(cluster, machine);
        look_soon(cluster, machine);
    }
}

/// The last GPU of a machine is not enumerated any more.
pub fn lose_gpu(cluster: &mut Cluster, machine: usize) {
    let gpus = &mut cluster.machines[machine].gpus;
    gpus.falls_ill(gpus.boards.len() - 1, Illness::Missing, cluster.now);
    report_inventory(cluster, machine);
    look_soon(cluster, machine);
}

pub fn gpu_returns(cluster: &mut Cluster, machine: usize) {
    for board in &mut cluster.machines[machine].gpus.boards {
        if board.illness == Some(Illness::Missing) {
            board.is_cured(cluster.now);
        }
    }
    report_inventory(cluster, machine);
    look_soon(cluster, machine);
}

fn report_inventory(cluster: &mut Cluster, machine: usize) {
    if let Some(connection) = cluster.connection_of(machine) {
        let inventory = cluster.machines[machine].inventory();
        cluster.send_to_controller(connection, NodeReport::Inventory { inventory });
    }
}

/// The daemon looks at its GPUs at once, where the scenario has it look at all.
pub fn look_soon(cluster: &mut Cluster, machine: usize) {
    let pause = cluster.gpu_chance.range(0, 1000);
    look_after(cluster, machine, pause);
}

fn look_after(cluster: &mut Cluster, machine: usize, millis: i64) {
    let one = &mut cluster.machines[machine];
    let Some(epoch) = one.daemon.as_ref().map(|daemon| daemon.epoch) else {
        return;
    };
    if cluster.scenario.watches_gpus {
        one.gpu_look += 1;
        let number = one.gpu_look;
        cluster.after(
            millis,
            SimEvent::GpuLook {
                machine,
                epoch,
                number,
            },
        );
    }
}

pub fn look(cluster: &mut Cluster, machine: usize, epoch: u64, number: u64) {
    let now = cluster.now;
    let one = &mut cluster.machines[machine];
    let is_same = one
        .daemon
        .as_ref()
        .is_some_and(|daemon| daemon.epoch == epoch);
    if !is_same || one.gpu_look != number {
        return;
    }
    let (held, node_empty) = if one.gpus.is_quiet(now) {
        Default::default()
    } else {
        one.gpu_holders()
    };
    let outcome = one.gpus.look(&held, node_empty, now);
    let pause = one.gpus.next_look(now);
    look_after(cluster, machine, pause);
    carry_out(cluster, machine, outcome);
}

fn carry_out(cluster: &mut Cluster, machine: usize, outcome: LookOutcome) {
    let now = cluster.now;
    if let Some(violation) = outcome.violation {
        cluster.violated(violation);
    }
    for run in outcome.ends {
        end_run(cluster, machine, run);
    }
    let one = &mut cluster.machines[machine];
    let epoch = one.daemon.as_ref().map_or(0, |daemon| daemon.epoch);
    let programs: Vec<_> = outcome
        .programs
        .into_iter()
        .map(|(gpu, stage)| (gpu, stage, one.gpus.program(gpu, stage, now)))
        .collect();
    for (gpu, stage, (millis, failure)) in programs {
        cluster.note(|| format!("n{} GPU {gpu}: {stage:?} begins", machine + 1));
        let ends = SimEvent::GpuProgramEnds {
            machine,
            epoch,
            gpu,
            stage,
            failure,
        };
        cluster.after(millis, ends);
    }
    if outcome.is_news {
        report_inventory(cluster, machine);
    }
}

/// A program of a daemon that is gone ended with it.
pub fn program_ends(
    cluster: &mut Cluster,
    machine: usize,
    epoch: u64,
    gpu: usize,
    stage: RepairStage,
    failure: Option<String>,
) {
    let one = &mut cluster.machines[machine];
    if one
        .daemon
        .as_ref()
        .is_none_or(|daemon| daemon.epoch != epoch)
    {
        return;
    }
    let boots = stage == RepairStage::Booting && failure.is_none();
    one.gpus.program_ended(gpu, failure, cluster.now);
    if !boots {
        return look_soon(cluster, machine);
    }
    let mut supervisors = one.supervisors.values();
    if let Some(run) = supervisors.find_map(|one| one.running_since.map(|_| one.order.run)) {
        cluster.violated(format!("n{} boots for a GPU while {run} runs", machine + 1));
    }
    cluster.daemon_crashes(machine);
    cluster.machines[machine].power_off();
    let off = cluster.gpu_chance.range(30_000, 200_000);
    cluster.after(off, SimEvent::PowerOn { machine });
}

/// A GPU of the run is sick: it ends at once.
fn end_run(cluster: &mut Cluster, machine: usize, run: RunId) {
    if cluster.begin_stop(machine, run).is_none() {
        return;
    }
    cluster.machines[machine].gpus.tally.runs_ended += 1;
    let end = RunEnd {
        cause: EndCause::GpuFailed,
        exit: ExitCode::killed(9),
        text: "a GPU of it failed".into(),
        ..RunEnd::default()
    };
    let delay = cluster.gpu_chance.range(0, 5000);
    cluster.end_after(machine, run, delay, end);
}

pub fn obey(cluster: &mut Cluster, machine: usize, incarnation: u64, orders: &[GpuOrder]) {
    let now = cluster.now;
    let one = &mut cluster.machines[machine];
    let (_, node_empty) = one.gpu_holders();
    let mut outcome = LookOutcome::default();
    let mut done = Vec::new();
    for order in orders {
        let gpus = &mut one.gpus;
        done.extend(gpus.order(incarnation, order, node_empty, now, &mut outcome));
    }
    carry_out(cluster, machine, outcome);
    if let Some(connection) = cluster.connection_of(machine) {
        cluster.send_to_controller(connection, NodeReport::GpuOrders { done });
    }
    look_soon(cluster, machine);
}
