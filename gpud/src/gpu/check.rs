//! The controller's orders to check a GPU. Never begins a check on a GPU that a run holds, and repeats none that died with the
//! daemon. How the program is run is `check_program`; the controller judges the results.

use crate::gpu::check_book::CheckState;
use crate::gpu::{check_program, mig};
use crate::input::DaemonInput;
use crate::site::Site;
use anyhow::{Context, Result, bail};
use gmodel::gpu_check::{CheckProgram, CheckReport};
use gmodel::gpu_health::RepairStage;
use gmodel::gpu_order::{GpuAction, GpuOrder, GpuOrderDone};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;

/// Begins the checks among these orders that were not begun before, each on a thread; answers what ended. Blocking, not for long.
pub fn obey(
    site: &Arc<Site>,
    sender: &mpsc::Sender<DaemonInput>,
    incarnation: u64,
    orders: Vec<GpuOrder>,
) {
    for order in orders {
        let GpuAction::Check(program) = &order.what else {
            continue;
        };
        match begin(site, incarnation, &order, program) {
            Ok(CheckState::Before) => {}
            Ok(CheckState::Answered(done)) => answer(sender, done),
            Ok(CheckState::Running(ends)) => {
                let (site, sender, program) = (Arc::clone(site), sender.clone(), program.clone());
                std::thread::spawn(move || check(&site, &sender, &order, &program, &ends));
            }
            Err(e) => answer(sender, GpuOrderDone::new(&order, format!("{e:#}"))),
        }
    }
}

/// Enters the check while no run is made ready, and records that it was begun.
fn begin(
    site: &Site,
    incarnation: u64,
    order: &GpuOrder,
    program: &CheckProgram,
) -> Result<CheckState> {
    let watch = site
        .gpu_watch
        .as_ref()
        .context("this node does not look after GPUs")?;
    // The lock also keeps out a second check: the same order may come twice at once.
    let _nobody_prepares = site.gpus.cutting.write().expect("no holder panics");
    if let Some(known) = site.checks.known(order.number) {
        return Ok(known);
    }
    let held = mig::holders(&site.spool);
    let here = site.gpus.current();
    for uuid in [&order.uuid, &program.peer] {
        if let Some(run) = held.get(uuid).and_then(BTreeSet::first) {
            bail!(
                "run {run} holds {}",
                if *uuid == order.uuid {
                    "it"
                } else {
                    "the other end of the way"
                }
            );
        }
        let standing = here
            .health
            .get(uuid)
            .and_then(|shown| shown.standing.as_ref());
        if let Some(standing) = standing.filter(|one| {
            matches!(
                one.stage,
                RepairStage::Resetting | RepairStage::Booting | RepairStage::BurningIn
            )
        }) {
            bail!("the repair of {uuid} is under way ({:?})", standing.stage);
        }
    }
    if let Some(done) = watch.check_begins(incarnation, order)? {
        return Ok(CheckState::Answered(done));
    }
    Ok(CheckState::Running(
        site.checks.enter(order, &program.peer)?,
    ))
}

fn answer(sender: &mpsc::Sender<DaemonInput>, done: GpuOrderDone) {
    let _ = sender.blocking_send(DaemonInput::GpuOrdersDone { done: vec![done] });
}

fn check(
    site: &Site,
    sender: &mpsc::Sender<DaemonInput>,
    order: &GpuOrder,
    program: &CheckProgram,
    ends: &OwnedFd,
) {
    let begun = Instant::now();
    let outcome = check_program::run(site, order, program, ends);
    let took_ms = begun.elapsed().as_millis() as u64;
    let done = site.checks.leave(order, |why| {
        let report = match outcome {
            _ if !why.is_empty() => {
                CheckReport::stopped(format!("ended after {} s: {why}", took_ms / 1000))
            }
            Ok(Ok(results)) => CheckReport {
                results,
                ..CheckReport::default()
            },
            Ok(Err(trouble)) => CheckReport {
                trouble,
                ..CheckReport::default()
            },
            Err(e) => CheckReport::stopped(format!("{}: {e:#}", program.program)),
        };
        CheckReport { took_ms, ..report }
    });
    let report = done.check.clone().unwrap_or_default();
    match (&report.trouble, &report.stopped) {
        (trouble, _) if !trouble.is_empty() => {
            tracing::warn!("check of GPU {}: {trouble}", order.uuid)
        }
        (_, stopped) if !stopped.is_empty() => {
            tracing::info!("check of GPU {}: {stopped}", order.uuid)
        }
        _ => tracing::info!("check of GPU {}: {}", order.uuid, report.words()),
    }
    answer(sender, done);
}
