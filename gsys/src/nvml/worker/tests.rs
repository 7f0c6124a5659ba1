//! The worker over ten GPUs without NVML, of which some hang.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use gmodel::gpu_health::{EventSource, GpuEventKind, ReadFailureKind};

use super::*;
use crate::nvml::facts::UnreadableGpu;

const SOON: Duration = Duration::from_secs(20);

/// Ten GPUs without NVML, of which some hang, and a count of how many sources are open.
#[derive(Default)]
struct Rack {
    hanging: Mutex<BTreeSet<u32>>,
    changed: Condvar,
    open: AtomicU64,
}

struct RackSource(Arc<Rack>);

impl Rack {
    fn hang(&self, indices: &[u32]) {
        *lock(&self.hanging) = indices.iter().copied().collect();
        self.changed.notify_all();
    }

    fn ask(&self, index: u32) {
        let mut hanging = lock(&self.hanging);
        while hanging.contains(&index) {
            hanging = self.changed.wait(hanging).unwrap();
        }
    }
}

impl Drop for RackSource {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl GpuSource for RackSource {
    fn discover(&mut self, progress: &Progress) -> Result<Inventory, NvmlError> {
        let mut inventory = Inventory::default();
        for index in 0..10 {
            match progress.begin(index) {
                Ok(()) => self.0.ask(index),
                Err(fault) => inventory.unreadable.push(UnreadableGpu {
                    index,
                    kind: ReadFailureKind::Hangs,
                    fault,
                }),
            }
        }
        progress.end();
        Ok(inventory)
    }

    fn read_health(&mut self, _progress: &Progress) -> Result<Vec<GpuHealth>, NvmlError> {
        panic!("a fault of our own");
    }

    fn sample_use(
        &mut self,
        _progress: &Progress,
        _only: Option<&BTreeSet<String>>,
    ) -> Result<Vec<GpuUse>, NvmlError> {
        Ok(Vec::new())
    }

    fn change(
        &mut self,
        progress: &Progress,
        _uuid: &str,
        _change: &Change,
    ) -> Result<Option<u32>, NvmlError> {
        let _ = progress.begin(3);
        self.0.ask(3);
        progress.end();
        Ok(Some(3))
    }

    fn watch(
        &mut self,
        _uuids: &BTreeSet<String>,
        _each: &mut dyn FnMut(Option<GpuEvent>) -> ControlFlow<()>,
    ) -> Result<(), NvmlError> {
        Ok(())
    }
}

fn start(rack: &Arc<Rack>) -> NvmlWorker {
    let rack = Arc::clone(rack);
    let open = move || -> Result<Box<dyn GpuSource>, NvmlError> {
        rack.open.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(RackSource(Arc::clone(&rack))))
    };
    NvmlWorker::start_with(open).unwrap()
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < deadline, "did not happen in 20 s: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn several_hanging_gpus_are_left_out_one_by_one_and_come_back_together() {
    let rack = Arc::new(Rack::default());
    let worker = start(&rack);
    rack.hang(&[2, 5, 7]);
    let brief = Duration::from_millis(500);
    for index in [2, 5, 7] {
        let outcome = worker.discover(brief);
        assert!(
            matches!(outcome, Err(NvmlError::Timeout { index: Some(at), .. }) if at == index),
            "{outcome:?}"
        );
    }
    let left_out: Vec<u32> = worker
        .discover(SOON)
        .unwrap()
        .unreadable
        .iter()
        .map(|gpu| gpu.index)
        .collect();
    assert_eq!(left_out, [2, 5, 7]);
    rack.hang(&[]);
    eventually("all come back", || {
        worker.discover(SOON).unwrap().unreadable.is_empty()
    });
    eventually("only the present thread's source is open", || {
        rack.open.load(Ordering::SeqCst) == 1
    });
}

#[test]
fn threads_given_up_are_bounded() {
    let rack = Arc::new(Rack::default());
    let worker = start(&rack);
    rack.hang(&(0..10).collect::<Vec<_>>());
    let given_up = || worker.shared.abandoned.load(Ordering::SeqCst);
    eventually("as many are given up as may be", || {
        let outcome = worker.discover(Duration::from_millis(20));
        assert!(outcome.is_err(), "{outcome:?}");
        given_up() == MAX_ABANDONED_THREADS
    });
    for _ in 0..5 {
        assert!(worker.discover(Duration::from_millis(20)).is_err());
        assert_eq!(given_up(), MAX_ABANDONED_THREADS);
    }
    assert!(matches!(
        worker.discover(SOON),
        Err(NvmlError::Stuck { .. })
    ));
    rack.hang(&[]);
    eventually("it works again", || {
        worker
            .discover(SOON)
            .is_ok_and(|inventory| inventory.unreadable.is_empty())
    });
    assert_eq!(worker.state(), WorkerState::Working);
}

#[test]
fn callers_wait_no_longer_than_they_said_even_for_each_other() {
    let rack = Arc::new(Rack::default());
    let worker = Arc::new(start(&rack));
    rack.hang(&[0]);
    let patient = Arc::clone(&worker);
    let patient = thread::spawn(move || patient.discover(SOON));
    eventually("the patient caller's call is under way", || {
        worker.turn.try_lock().is_err()
    });
    let begun = Instant::now();
    let outcome = worker.discover(Duration::from_millis(30));
    assert!(
        matches!(outcome, Err(NvmlError::Timeout { index: None, .. })),
        "{outcome:?}"
    );
    assert_eq!(
        worker.state(),
        WorkerState::Working,
        "the other call still has time"
    );
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    rack.hang(&[]);
    assert!(patient.join().unwrap().is_ok());
}

#[test]
fn a_library_that_is_slow_but_moves_on_costs_no_gpu() {
    let rack = Arc::new(Rack::default());
    let worker = start(&rack);
    rack.hang(&[3, 4]);
    assert!(matches!(
        worker.discover(Duration::from_millis(500)),
        Err(NvmlError::Timeout { index: Some(3), .. })
    ));
    rack.hang(&[4]);
    eventually("it comes to the next GPU", || {
        lock(&worker.line).job.index() == Some(4)
    });
    assert!(matches!(
        worker.discover(SOON),
        Err(NvmlError::Stuck { index: Some(4), .. })
    ));
    rack.hang(&[]);
    eventually("the slow call is over", || {
        worker.state() == WorkerState::Working
    });
    assert!(worker.discover(SOON).unwrap().unreadable.is_empty());
}

#[test]
fn a_thread_that_panics_is_replaced() {
    let worker = start(&Arc::new(Rack::default()));
    assert!(matches!(
        worker.read_health(SOON),
        Err(NvmlError::Thread(_))
    ));
    assert!(worker.discover(SOON).is_ok());
}

#[test]
fn a_closed_worker_has_nothing_open_and_opens_again() {
    let rack = Arc::new(Rack::default());
    let worker = start(&rack);
    worker.discover(SOON).unwrap();
    let closed = worker.close(SOON).unwrap();
    assert_eq!(rack.open.load(Ordering::SeqCst), 0);
    assert_eq!(worker.discover(SOON).unwrap_err(), NvmlError::Closed);
    let again = worker.close(SOON).unwrap();
    drop(closed);
    assert_eq!(
        worker.discover(SOON).unwrap_err(),
        NvmlError::Closed,
        "the other still wants it closed"
    );
    drop(again);
    worker.wait_until_open(SOON);
    assert!(worker.discover(SOON).is_ok());
}

#[test]
fn a_call_that_does_not_return_keeps_it_open_and_that_is_said() {
    let rack = Arc::new(Rack::default());
    let worker = start(&rack);
    worker.discover(SOON).unwrap();
    rack.hang(&[3]);
    let brief = Duration::from_millis(200);
    assert!(worker.discover(brief).is_err());
    let outcome = worker.close(brief).map(drop);
    assert!(
        matches!(
            outcome,
            Err(NvmlError::Timeout { .. } | NvmlError::Stuck { .. })
        ),
        "{outcome:?}"
    );
    rack.hang(&[]);
    eventually("it works again, not being closed", || {
        worker.discover(SOON).is_ok()
    });
}

#[test]
fn dropping_the_worker_closes_its_sources() {
    let rack = Arc::new(Rack::default());
    let worker = start(&rack);
    worker.discover(SOON).unwrap();
    drop(worker);
    eventually("all sources are closed", || {
        rack.open.load(Ordering::SeqCst) == 0
    });
}

#[test]
fn unfetched_events_are_bounded_and_the_rest_is_counted() {
    let shared = SharedState::default();
    for number in 0..5000 {
        shared.push_event(GpuEvent {
            uuid: "GPU-x".to_owned(),
            kind: GpuEventKind::Xid(number),
            count: 2,
            source: EventSource::EventSet,
        });
    }
    assert_eq!(lock(&shared.events).len(), MAX_WAITING_EVENTS);
    assert_eq!(
        shared.dropped_events.load(Ordering::Relaxed),
        (5000 - MAX_WAITING_EVENTS as u64) * 2
    );
}
