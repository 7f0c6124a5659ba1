//! What was said on one connection to the controller, so that only news is sent: whole phases, the fence, the inventory.
//!
//! A new connection begins with a hello that says everything; nothing is kept over its end.

use gcore::node::{NodeState, reports};
use gmodel::node::Inventory;
use gmodel::run::{RunPhase, RunReport};
use gmodel::{Fence, RunId};
use gwire::node_protocol::{Hello, PROTOCOL, ToController};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// A run that is ready so soon is reported as that and no more: each report is a commit of the controller.
const ACCEPTED_WAITS: Duration = Duration::from_millis(50);

/// Marks of runs that say nothing else new go up together, so seldom: a thousand jobs that mark every second are no flood.
const MARKS_EVERY: Duration = Duration::from_secs(1);

/// One connection and what the controller heard on it.
pub struct Told {
    pub connection: u64,
    pub sender: mpsc::Sender<ToController>,
    /// How far each run was, and the number of its newest mark.
    reported: BTreeMap<RunId, (u8, u32)>,
    /// Runs of which only the acceptance is news, since when.
    accepted: BTreeMap<RunId, Instant>,
    /// When marks alone were last told, and whether newer ones wait for the next time.
    marks_told: Option<Instant>,
    marks_wait: bool,
    obeyed: Fence,
    inventory: Inventory,
}

impl Told {
    /// Says hello. `None` when the connection is gone already.
    pub fn greet(
        connection: u64,
        sender: mpsc::Sender<ToController>,
        state: &NodeState,
        inventory: &Inventory,
    ) -> Option<Self> {
        let runs = reports(state);
        let reported = runs.iter().map(|report| (report.run, progress(report))).collect();
        let hello = Hello {
            protocol: PROTOCOL,
            release: env!("CARGO_PKG_VERSION").into(),
            life: state.life.clone(),
            fence: state.fence,
            inventory: inventory.clone(),
            runs,
        };
        sender.try_send(ToController::Hello(hello)).ok()?;
        let (accepted, inventory, obeyed) = (BTreeMap::new(), inventory.clone(), state.fence);
        Some(Self { connection, sender, reported, accepted, marks_told: None, marks_wait: false, obeyed, inventory })
    }

    /// Sends what changed. False when the controller reads too slowly or is gone: let go, the next hello says everything.
    #[must_use]
    pub fn send_news(&mut self, state: &NodeState, inventory: &Inventory, now: Instant) -> bool {
        let mut frames = Vec::new();
        if self.obeyed != state.fence {
            self.obeyed = state.fence;
            frames.push(ToController::Obeyed { fence: state.fence });
        }
        // Before the runs: a GPU that a run did not leave clean is out before the run's share is free.
        if self.inventory != *inventory {
            self.inventory = inventory.clone();
            frames.push(ToController::Inventory { inventory: inventory.clone() });
        }
        let is_news = |report: &RunReport| self.reported.get(&report.run) != Some(&progress(report));
        let mut runs: Vec<RunReport> = reports(state).into_iter().filter(is_news).collect();
        runs.retain(|report| !self.may_wait(report, now));
        self.hold_marks(&mut runs, now);
        self.reported.retain(|run, _| state.runs.contains_key(run));
        self.accepted.retain(|run, _| state.runs.contains_key(run) && runs.iter().all(|report| report.run != *run));
        if !runs.is_empty() {
            self.reported.extend(runs.iter().map(|report| (report.run, progress(report))));
            frames.push(ToController::Runs { runs });
        }
        frames.into_iter().all(|frame| self.sender.try_send(frame).is_ok())
    }

    /// When something held back must be told.
    pub fn due(&self) -> Option<Instant> {
        let accepted = self.accepted.values().min().map(|since| *since + ACCEPTED_WAITS);
        let marks = self.marks_told.filter(|_| self.marks_wait).map(|told| told + MARKS_EVERY);
        [accepted, marks].into_iter().flatten().min()
    }

    /// Leaves out what has only a newer mark, unless its time has come.
    fn hold_marks(&mut self, runs: &mut Vec<RunReport>, now: Instant) {
        let is_mark_only =
            |report: &RunReport| self.reported.get(&report.run).is_some_and(|(rank, _)| *rank == report.phase.rank());
        let is_early = self.marks_told.is_some_and(|told| now < told + MARKS_EVERY);
        let waiting = runs.iter().filter(|report| is_mark_only(report)).count();
        if is_early {
            runs.retain(|report| !is_mark_only(report));
        } else if waiting > 0 {
            self.marks_told = Some(now);
        }
        self.marks_wait = is_early && waiting > 0;
    }

    fn may_wait(&mut self, report: &RunReport, now: Instant) -> bool {
        report.phase == RunPhase::Accepted
            && now.duration_since(*self.accepted.entry(report.run).or_insert(now)) < ACCEPTED_WAITS
    }
}

/// What of a report can be news.
fn progress(report: &RunReport) -> (u8, u32) {
    (report.phase.rank(), report.mark.as_ref().map_or(0, |mark| mark.number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcore::node::{Found, NodeEvent, NodeInput, apply, handle};
    use gmodel::{NodeLife, Timestamp};

    fn run() -> RunId {
        "7-1".parse().unwrap()
    }

    fn feed(state: &mut NodeState, input: NodeInput) {
        let events: Vec<NodeEvent> = handle(state, input, Timestamp(0));
        events.iter().for_each(|event| apply(state, event));
    }

    /// A node that knows nothing of a run, a connection on which that was said, and what comes out of it.
    fn told() -> (NodeState, Told, mpsc::Receiver<ToController>) {
        let mut state = NodeState::new();
        let life = NodeLife::default();
        feed(&mut state, NodeInput::Scanned { life, fence: Fence::default(), runs: Vec::new() });
        let (sender, mut frames) = mpsc::channel(8);
        let told = Told::greet(1, sender, &state, &Inventory::default()).unwrap();
        assert!(matches!(frames.try_recv(), Ok(ToController::Hello(_))));
        (state, told, frames)
    }

    fn phases(frames: &mut mpsc::Receiver<ToController>) -> Vec<u8> {
        let frames = std::iter::from_fn(|| frames.try_recv().ok());
        let runs = frames.flat_map(|frame| match frame {
            ToController::Runs { runs } => runs,
            other => panic!("{other:?}"),
        });
        runs.map(|report| report.phase.rank()).collect()
    }

    fn with_run(state: &NodeState, found: Found) -> NodeState {
        let mut with = NodeState::new();
        let runs = vec![(run(), found)];
        feed(&mut with, NodeInput::Scanned { life: state.life.clone(), fence: state.fence, runs });
        with
    }

    #[test]
    fn what_is_ready_at_once_is_reported_as_ready_only() {
        let (state, mut told, mut frames) = told();
        let now = Instant::now();
        let accepted = with_run(&state, Found::Accepted);
        assert!(told.send_news(&accepted, &Inventory::default(), now));
        assert_eq!(phases(&mut frames), [0; 0]);
        assert_eq!(told.due(), Some(now + ACCEPTED_WAITS));
        assert!(told.send_news(&with_run(&state, Found::Ready), &Inventory::default(), now));
        assert_eq!((phases(&mut frames), told.due()), (vec![1], None));
    }

    #[test]
    fn a_new_mark_is_news() {
        let (state, mut told, mut frames) = told();
        let mut running = with_run(&state, Found::Running { started: Timestamp(1) });
        let now = Instant::now();
        assert!(told.send_news(&running, &Inventory::default(), now));
        for _ in 0..2 {
            let mark = gmodel::checkpoint::Mark { number: 1, ..Default::default() };
            feed(&mut running, NodeInput::Marked { run: run(), mark });
            assert!(told.send_news(&running, &Inventory::default(), now));
        }
        assert_eq!(phases(&mut frames), [2, 2], "once for the phase, once for the mark");
        assert_eq!(told.due(), None);
        let mark = gmodel::checkpoint::Mark { number: 2, ..Default::default() };
        feed(&mut running, NodeInput::Marked { run: run(), mark });
        let half = now + MARKS_EVERY / 2;
        assert!(told.send_news(&running, &Inventory::default(), half));
        assert_eq!((phases(&mut frames), told.due()), (vec![], Some(now + MARKS_EVERY)), "the next one waits its turn");
        feed(&mut running, NodeInput::Ended { run: run(), end: gmodel::run::RunEnd::default() });
        assert!(told.send_news(&running, &Inventory::default(), half));
        assert_eq!((phases(&mut frames), told.due()), (vec![3], None), "unless the run has more to say");
    }

    #[test]
    fn a_long_prolog_leaves_the_acceptance_reported_in_time() {
        let (state, mut told, mut frames) = told();
        let now = Instant::now();
        let accepted = with_run(&state, Found::Accepted);
        assert!(told.send_news(&accepted, &Inventory::default(), now));
        assert!(told.send_news(&accepted, &Inventory::default(), now + ACCEPTED_WAITS / 2));
        assert_eq!(phases(&mut frames), [0; 0]);
        assert!(told.send_news(&accepted, &Inventory::default(), now + ACCEPTED_WAITS));
        assert_eq!((phases(&mut frames), told.due()), (vec![0], None));
        assert!(told.send_news(&accepted, &Inventory::default(), now + ACCEPTED_WAITS * 2));
        assert_eq!((phases(&mut frames), told.due()), (vec![], None), "said once");
        assert!(told.send_news(&state, &Inventory::default(), now));
        assert!(told.send_news(&accepted, &Inventory::default(), now));
        assert!(told.send_news(&state, &Inventory::default(), now));
        assert_eq!((phases(&mut frames), told.due()), (vec![], None), "nothing is due of a run that is gone");
    }
}
