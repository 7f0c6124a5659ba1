//! Orders to check a GPU, and whoever wants the GPU meanwhile: a run that is given it waits for the death of the check and for nothing
//! else. Never begins a check on a GPU that a run holds; the outcome is told, and a check that dies with the daemon is not done
//! again. How the program is run is `check_program`; what its results mean is the controller's affair.

use crate::check_program;
use crate::daemon::Happening;
use crate::mig;
use crate::site::Site;
use anyhow::{Context, Result, bail, ensure};
use gmodel::gpu_check::{CheckProgram, CheckReport};
use gmodel::gpu_health::RepairStage;
use gmodel::gpu_order::{GpuAction, GpuOrder, GpuOrderDone};
use nix::fcntl::OFlag;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Until nothing is left of a check that is to end: its own time, then the kernel's.
const PATIENCE: Duration = Duration::from_millis(
    check_program::GRACE.as_millis() as u64 + check_program::DEATH.as_millis() as u64 + 1000,
);

/// The checks of this node: under way, and those that ended and whose order may still be open.
#[derive(Debug, Default)]
pub struct GpuChecks {
    book: Mutex<Book>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Book {
    /// By the GPU's UUID.
    running: BTreeMap<String, Running>,
    /// GPUs to which a way is measured, and the GPU whose check that is.
    other_ends: BTreeMap<String, String>,
    finished: BTreeMap<u64, GpuOrderDone>,
}

#[derive(Debug)]
struct Running {
    number: u64,
    /// Dropped: it is to end.
    stop: Option<OwnedFd>,
    /// Why it was ended.
    why: String,
}

impl GpuChecks {
    /// Orders that stand: what is under way for another is over, and answers to others are of no use.
    pub fn keep_only(&self, numbers: &BTreeSet<u64>) {
        let mut book = self.lock();
        book.finished.retain(|number, _| numbers.contains(number));
        for running in book
            .running
            .values_mut()
            .filter(|running| !numbers.contains(&running.number))
        {
            running.end("its order was taken back");
        }
    }

    /// Ends the checks of these GPUs, and waits until nothing of them is left. How long that took; `None`: there was none.
    pub fn give_way<'a>(
        &self,
        uuids: impl IntoIterator<Item = &'a str>,
        to: &str,
    ) -> Result<Option<Duration>> {
        let uuids: Vec<&str> = uuids.into_iter().collect();
        let begun = Instant::now();
        let mut book = self.lock();
        let mut any = false;
        for uuid in &uuids {
            if let Some(running) = book.on(uuid) {
                running.end(to);
                any = true;
            }
        }
        let alive = |book: &mut Book| uuids.iter().any(|uuid| book.on(uuid).is_some());
        let (book, late) = self
            .ended
            .wait_timeout_while(book, PATIENCE, alive)
            .expect("no holder panics");
        drop(book);
        if late.timed_out() {
            bail!(
                "a check of {} does not end within {} s of being told to",
                uuids.join(", "),
                PATIENCE.as_secs()
            );
        }
        Ok(any.then(|| begun.elapsed()))
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("no holder panics")
    }

    /// Entered as under way: whoever wants the GPU from now on waits. What tells it to end.
    fn enter(&self, order: &GpuOrder, peer: &str) -> Result<OwnedFd> {
        let (ends, stop) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        let running = Running {
            number: order.number,
            stop: Some(stop),
            why: String::new(),
        };
        let mut book = self.lock();
        ensure!(
            book.on(&order.uuid).is_none() && (peer.is_empty() || book.on(peer).is_none()),
            "another check of it is under way"
        );
        book.running.insert(order.uuid.clone(), running);
        if !peer.is_empty() {
            book.other_ends.insert(peer.to_owned(), order.uuid.clone());
        }
        Ok(ends)
    }

    /// Nothing of it is left: what came of it, by why it was ended where it was. In one go, so that an order that comes again
    /// meets the check or its answer.
    fn leave(&self, order: &GpuOrder, report: impl FnOnce(&str) -> CheckReport) -> GpuOrderDone {
        let mut book = self.lock();
        let why = book
            .running
            .remove(&order.uuid)
            .map_or_else(String::new, |running| running.why);
        book.other_ends.retain(|_, uuid| *uuid != order.uuid);
        let done = GpuOrderDone {
            check: Some(Box::new(report(&why))),
            ..GpuOrderDone::new(order, "")
        };
        book.finished.insert(order.number, done.clone());
        self.ended.notify_all();
        done
    }

    /// What is known of an order: that its check is under way, or what came of it.
    fn known(&self, number: u64) -> Option<Begun> {
        let book = self.lock();
        let running = book
            .running
            .values()
            .any(|running| running.number == number);
        running
            .then_some(Begun::Before)
            .or_else(|| book.finished.get(&number).cloned().map(Begun::Answered))
    }
}

impl Book {
    /// The check that a GPU is under, or is the other end of.
    fn on(&mut self, uuid: &str) -> Option<&mut Running> {
        let checked = self
            .other_ends
            .get(uuid)
            .map_or(uuid, String::as_str)
            .to_owned();
        self.running.get_mut(&checked)
    }
}

impl Running {
    fn end(&mut self, why: &str) {
        if self.stop.take().is_some() {
            why.clone_into(&mut self.why);
        }
    }
}

/// Begins the checks among these orders that were not begun before, each on a thread; answers what ended. Blocking, not for long.
pub fn obey(
    site: &Arc<Site>,
    sender: &mpsc::Sender<Happening>,
    incarnation: u64,
    orders: Vec<GpuOrder>,
) {
    for order in orders {
        let GpuAction::Check(program) = &order.what else {
            continue;
        };
        match begin(site, incarnation, &order, program) {
            Ok(Begun::Before) => {}
            Ok(Begun::Answered(done)) => answer(sender, done),
            Ok(Begun::Running(ends)) => {
                let (site, sender, program) = (Arc::clone(site), sender.clone(), program.clone());
                std::thread::spawn(move || check(&site, &sender, &order, &program, &ends));
            }
            Err(e) => answer(sender, GpuOrderDone::new(&order, format!("{e:#}"))),
        }
    }
}

enum Begun {
    /// It is under way.
    Before,
    /// It was begun by a daemon before this one, or is of no use.
    Answered(GpuOrderDone),
    Running(OwnedFd),
}

/// Enters the check while nobody makes a run ready, and writes down that it was begun.
fn begin(site: &Site, incarnation: u64, order: &GpuOrder, program: &CheckProgram) -> Result<Begun> {
    let watch = site
        .gpu_watch
        .as_ref()
        .context("this node does not look after GPUs")?;
    // Nor does anybody else begin one: the same order may come twice at once.
    let _nobody_prepares = site.gpus.cutting.write().expect("no holder panics");
    if let Some(known) = site.checks.known(order.number) {
        return Ok(known);
    }
    let held = mig::holders(site);
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
        return Ok(Begun::Answered(done));
    }
    Ok(Begun::Running(site.checks.enter(order, &program.peer)?))
}

fn answer(sender: &mpsc::Sender<Happening>, done: GpuOrderDone) {
    let _ = sender.blocking_send(Happening::GpuOrdersDone { done: vec![done] });
}

fn check(
    site: &Site,
    sender: &mpsc::Sender<Happening>,
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
