//! The GPU checks of this node: those under way, and those that ended while the order may still stand. A run that is given a GPU
//! ends the check of it, and waits until the check is dead. Starts no program.

use anyhow::{Result, bail, ensure};
use gmodel::gpu_check::CheckReport;
use gmodel::gpu_order::{GpuOrder, GpuOrderDone};
use nix::fcntl::OFlag;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A program that is told to end has so long to do so by itself.
pub const GRACE: Duration = Duration::from_millis(250);
/// For the kernel to end what was killed: a GPU that hangs may keep a process.
pub const DEATH: Duration = Duration::from_secs(10);
/// Until nothing is left of a check that is to end: its own time, then the kernel's.
const PATIENCE: Duration =
    Duration::from_millis(GRACE.as_millis() as u64 + DEATH.as_millis() as u64 + 1000);

/// The checks of this node: those under way, and those that ended while the order may still stand.
#[derive(Debug, Default)]
pub struct GpuChecks {
    book: Mutex<CheckBook>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct CheckBook {
    /// By the GPU's UUID.
    running: BTreeMap<String, RunningCheck>,
    /// Peer GPUs of link checks: by the peer, the GPU that is checked.
    other_ends: BTreeMap<String, String>,
    finished: BTreeMap<u64, GpuOrderDone>,
}

#[derive(Debug)]
struct RunningCheck {
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

    /// Ends the checks of these GPUs and waits until no process of a check is left. How long that took; `None` without a check.
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
        let alive = |book: &mut CheckBook| uuids.iter().any(|uuid| book.on(uuid).is_some());
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

    fn lock(&self) -> MutexGuard<'_, CheckBook> {
        self.book.lock().expect("no holder panics")
    }

    /// Enters the check as under way: a run or a repair of the GPU waits from now on. The descriptor hangs up when the check is to end.
    pub fn enter(&self, order: &GpuOrder, peer: &str) -> Result<OwnedFd> {
        let (ends, stop) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        let running = RunningCheck {
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
    pub fn leave(
        &self,
        order: &GpuOrder,
        report: impl FnOnce(&str) -> CheckReport,
    ) -> GpuOrderDone {
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
    pub fn known(&self, number: u64) -> Option<CheckState> {
        let book = self.lock();
        let running = book
            .running
            .values()
            .any(|running| running.number == number);
        running.then_some(CheckState::Before).or_else(|| {
            book.finished
                .get(&number)
                .cloned()
                .map(CheckState::Answered)
        })
    }
}

impl CheckBook {
    /// The check that a GPU is under, or is the other end of.
    fn on(&mut self, uuid: &str) -> Option<&mut RunningCheck> {
        let checked = self
            .other_ends
            .get(uuid)
            .map_or(uuid, String::as_str)
            .to_owned();
        self.running.get_mut(&checked)
    }
}

impl RunningCheck {
    fn end(&mut self, why: &str) {
        if self.stop.take().is_some() {
            why.clone_into(&mut self.why);
        }
    }
}

/// How far a check has come when its order arrives.
pub enum CheckState {
    /// It is under way.
    Before,
    /// It was begun by a daemon before this one, or is of no use.
    Answered(GpuOrderDone),
    Running(OwnedFd),
}
