//! What was said on one connection to the controller, so that only news is sent: whole phases, the fence, the inventory.
//!
//! A new connection begins with a hello that says everything; nothing is kept over its end.

use crate::clock::wall_clock;
use gcore::node::{NodeRun, NodeState, reports};
use gmodel::checkpoint::CheckpointMark;
use gmodel::node::Inventory;
use gmodel::run::{RunPhase, RunReport, RunTarget};
use gmodel::{Fence, RunId};
use gwire::node_protocol::{Hello, PROTOCOL, ToController};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// A phase that a run leaves so soon is passed over: each report is a commit of the controller.
const PASSING_WAITS: Duration = Duration::from_millis(250);

/// Marks of runs that say nothing else new go up together, so seldom: a thousand jobs that mark every second are no flood.
const MARKS_EVERY: Duration = Duration::from_secs(1);

/// One connection and what the controller heard on it.
pub struct Reporter {
    pub connection: u64,
    pub sender: mpsc::Sender<ToController>,
    /// How far each run was, and the number of its newest mark.
    reported: BTreeMap<RunId, (u8, u32)>,
    /// Runs of which only a phase that may pass is news: its rank, and since when.
    passing: BTreeMap<RunId, (u8, Instant)>,
    /// When marks alone were last told, and whether newer ones wait for the next time.
    marks_told: Option<Instant>,
    marks_wait: bool,
    obeyed: Fence,
    /// Since when a newer fence is obeyed. It is reported with the next runs, or at once where it stops a run; until then the
    /// controller can take an order back.
    obeys_newer: Option<Instant>,
    inventory: Arc<Inventory>,
}

impl Reporter {
    /// Says hello. `None` when the connection is gone already.
    pub fn greet(
        connection: u64,
        sender: mpsc::Sender<ToController>,
        state: &NodeState,
        inventory: &Arc<Inventory>,
    ) -> Option<Self> {
        let runs: Vec<RunReport> = reports(state)
            .into_iter()
            .map(|report| RunReport {
                sent: Some(wall_clock()),
                ..report
            })
            .collect();
        let reported = runs
            .iter()
            .map(|report| (report.run, progress_of(report)))
            .collect();
        let hello = Hello {
            protocol: PROTOCOL,
            release: env!("CARGO_PKG_VERSION").into(),
            life: state.life.clone(),
            fence: state.fence,
            inventory: Inventory::clone(inventory),
            runs,
        };
        sender.try_send(ToController::Hello(hello)).ok()?;
        Some(Self {
            connection,
            sender,
            reported,
            passing: BTreeMap::new(),
            marks_told: None,
            marks_wait: false,
            obeyed: state.fence,
            obeys_newer: None,
            inventory: Arc::clone(inventory),
        })
    }

    /// Sends what changed. False when the controller reads too slowly or is gone: let go, the next hello says everything.
    #[must_use]
    pub fn send_news(
        &mut self,
        state: &NodeState,
        inventory: &Arc<Inventory>,
        now: Instant,
    ) -> bool {
        let mut runs = Vec::new();
        for (&run, known) in &state.runs {
            let is_news =
                self.reported.get(&run) != Some(&progress(&known.phase, known.mark.as_ref()));
            if is_news && !self.may_wait(run, known, now) {
                runs.push(RunReport {
                    run,
                    phase: known.phase.clone(),
                    mark: known.mark.clone(),
                    sent: Some(wall_clock()),
                });
            }
        }
        self.hold_marks(&mut runs, now);
        self.reported.retain(|run, _| state.runs.contains_key(run));
        self.passing.retain(|run, _| {
            state.runs.contains_key(run) && runs.iter().all(|report| report.run != *run)
        });
        let mut frames = Vec::new();
        if self.obeyed != state.fence {
            let since = *self.obeys_newer.get_or_insert(now);
            let stops = state.runs.values().any(|known| {
                matches!(known.want, RunTarget::Stop { .. }) && known.phase.end().is_none()
            });
            if stops || !runs.is_empty() || now.duration_since(since) >= PASSING_WAITS {
                (self.obeyed, self.obeys_newer) = (state.fence, None);
                frames.push(ToController::Obeyed { fence: state.fence });
            }
        }
        // Before the runs: a GPU that a run did not leave clean is out before the run's share is free.
        // Nearly always it is the very one that was told, and its eight GPUs need not be compared.
        if !Arc::ptr_eq(&self.inventory, inventory) {
            if self.inventory != *inventory {
                frames.push(ToController::Inventory {
                    inventory: Inventory::clone(inventory),
                });
            }
            self.inventory = Arc::clone(inventory);
        }
        if !runs.is_empty() {
            self.reported
                .extend(runs.iter().map(|report| (report.run, progress_of(report))));
            frames.push(ToController::Runs { runs });
        }
        frames
            .into_iter()
            .all(|frame| self.sender.try_send(frame).is_ok())
    }

    /// When something held back must be told.
    pub fn due(&self) -> Option<Instant> {
        let passing = self
            .passing
            .values()
            .map(|(_, since)| *since)
            .chain(self.obeys_newer)
            .min();
        let marks = self
            .marks_told
            .filter(|_| self.marks_wait)
            .map(|told| told + MARKS_EVERY);
        [passing.map(|since| since + PASSING_WAITS), marks]
            .into_iter()
            .flatten()
            .min()
    }

    /// Leaves out what has only a newer mark, unless its time has come.
    fn hold_marks(&mut self, runs: &mut Vec<RunReport>, now: Instant) {
        let is_mark_only = |report: &RunReport| {
            self.reported
                .get(&report.run)
                .is_some_and(|(rank, _)| *rank == report.phase.rank())
        };
        let is_early = self.marks_told.is_some_and(|told| now < told + MARKS_EVERY);
        let waiting = runs.iter().filter(|report| is_mark_only(report)).count();
        if is_early {
            runs.retain(|report| !is_mark_only(report));
        } else if waiting > 0 {
            self.marks_told = Some(now);
        }
        self.marks_wait = is_early && waiting > 0;
    }

    /// Whether this phase can be held back, because the run is about to report a later one. The controller waits for a run to be clean,
    /// and to be ready where the run is not released yet.
    fn may_wait(&mut self, run: RunId, known: &NodeRun, now: Instant) -> bool {
        let is_awaited = match known.phase {
            RunPhase::Accepted | RunPhase::Running { .. } | RunPhase::Ended(_) => false,
            RunPhase::Ready => known.want != RunTarget::Run,
            RunPhase::Clean(_) => true,
        };
        let rank = known.phase.rank();
        // A new mark in a phase that was told has its own turn.
        if is_awaited
            || self
                .reported
                .get(&run)
                .is_some_and(|(told, _)| *told == rank)
        {
            return false;
        }
        let passing = self.passing.entry(run).or_insert((rank, now));
        if passing.0 != rank {
            *passing = (rank, now);
        }
        now.duration_since(passing.1) < PASSING_WAITS
    }
}

/// What of a report can be news.
fn progress(phase: &RunPhase, mark: Option<&CheckpointMark>) -> (u8, u32) {
    (phase.rank(), mark.map_or(0, |mark| mark.number))
}

fn progress_of(report: &RunReport) -> (u8, u32) {
    progress(&report.phase, report.mark.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcore::node::{NodeEvent, NodeInput, SpooledRun, apply, handle};
    use gmodel::run::{RunEnd, StopCause};
    use gmodel::{NodeLife, Timestamp};

    fn run() -> RunId {
        "7-1".parse().unwrap()
    }

    fn feed(state: &mut NodeState, input: NodeInput) {
        let events: Vec<NodeEvent> = handle(state, input, Timestamp(0));
        events.iter().for_each(|event| apply(state, event));
    }

    /// A node that knows nothing of a run, a connection on which that was said, and what comes out of it.
    fn told() -> (NodeState, Reporter, mpsc::Receiver<ToController>) {
        let mut state = NodeState::new();
        let life = NodeLife::default();
        feed(
            &mut state,
            NodeInput::Scanned {
                life,
                fence: Fence::default(),
                runs: Vec::new(),
            },
        );
        let (sender, mut frames) = mpsc::channel(8);
        let told = Reporter::greet(1, sender, &state, &Arc::default()).unwrap();
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

    fn with_run(state: &NodeState, found: SpooledRun) -> NodeState {
        let mut with = NodeState::new();
        let runs = vec![(run(), found)];
        feed(
            &mut with,
            NodeInput::Scanned {
                life: state.life.clone(),
                fence: state.fence,
                runs,
            },
        );
        with
    }

    fn wanted(mut state: NodeState, want: RunTarget) -> NodeState {
        state.runs.get_mut(&run()).expect("it is there").want = want;
        state
    }

    #[test]
    fn what_is_ready_at_once_is_reported_as_ready_only() {
        let (state, mut told, mut frames) = told();
        let now = Instant::now();
        let accepted = with_run(&state, SpooledRun::Accepted);
        assert!(told.send_news(&accepted, &Arc::default(), now));
        assert_eq!(phases(&mut frames), [0; 0]);
        assert_eq!(told.due(), Some(now + PASSING_WAITS));
        assert!(told.send_news(&with_run(&state, SpooledRun::Ready), &Arc::default(), now));
        assert_eq!(
            (phases(&mut frames), told.due()),
            (vec![1], None),
            "the controller waits for it"
        );
    }

    #[test]
    fn of_a_run_that_is_over_at_once_only_the_end_is_told() {
        let (state, mut told, mut frames) = told();
        let mut now = Instant::now();
        let end = RunEnd::default();
        let ended = |clean| SpooledRun::Ended {
            end: end.clone(),
            clean,
        };
        for found in [
            SpooledRun::Accepted,
            SpooledRun::Ready,
            SpooledRun::Running {
                started: Timestamp(1),
            },
            ended(false),
        ] {
            now += PASSING_WAITS / 2;
            assert!(told.send_news(
                &wanted(with_run(&state, found), RunTarget::Run),
                &Arc::default(),
                now
            ));
            assert_eq!(
                (phases(&mut frames), told.due()),
                (vec![], Some(now + PASSING_WAITS))
            );
        }
        assert!(told.send_news(&with_run(&state, ended(true)), &Arc::default(), now));
        assert_eq!((phases(&mut frames), told.due()), (vec![4], None));
    }

    #[test]
    fn a_phase_that_lasts_is_told_in_time() {
        let (state, mut told, mut frames) = told();
        let mut now = Instant::now();
        for (found, rank) in [
            (SpooledRun::Ready, 1),
            (
                SpooledRun::Running {
                    started: Timestamp(1),
                },
                2,
            ),
        ] {
            let lasting = wanted(with_run(&state, found), RunTarget::Run);
            assert!(told.send_news(&lasting, &Arc::default(), now));
            assert_eq!(phases(&mut frames), [0; 0]);
            now = told.due().expect("it is held back");
            assert!(told.send_news(&lasting, &Arc::default(), now));
            assert_eq!((phases(&mut frames), told.due()), (vec![rank], None));
        }
    }

    #[test]
    fn a_fence_is_told_with_the_runs_or_soon() {
        let (mut state, mut told, mut frames) = told();
        let now = Instant::now();
        let mut told_fence = || match frames.try_recv() {
            Ok(ToController::Obeyed { fence }) => Some(fence.generation),
            _ => None,
        };
        state.fence.generation = 7;
        assert!(told.send_news(&state, &Arc::default(), now));
        assert_eq!(
            (told_fence(), told.due()),
            (None, Some(now + PASSING_WAITS))
        );
        assert!(told.send_news(&with_run(&state, SpooledRun::Ready), &Arc::default(), now));
        assert_eq!(
            (told_fence(), told_fence()),
            (Some(7), None),
            "before the run"
        );
        state.fence.generation = 8;
        assert!(told.send_news(&state, &Arc::default(), now));
        assert!(told.send_news(&state, &Arc::default(), told.due().expect("held back")));
        assert_eq!((told_fence(), told.due()), (Some(8), None));
        let running = with_run(
            &state,
            SpooledRun::Running {
                started: Timestamp(1),
            },
        );
        assert!(told.send_news(&running, &Arc::default(), now));
        assert!(told.send_news(&running, &Arc::default(), told.due().expect("held back")));
        assert_eq!(told_fence(), None, "the run");
        let mut stopped = wanted(
            running,
            RunTarget::Stop {
                why: StopCause::Preempted,
                grace_secs: 30,
            },
        );
        stopped.fence.generation = 9;
        assert!(told.send_news(&stopped, &Arc::default(), now));
        assert_eq!(told_fence(), Some(9), "at once");
    }

    #[test]
    fn a_new_mark_is_news() {
        let (state, mut told, mut frames) = told();
        let mut running = with_run(
            &state,
            SpooledRun::Running {
                started: Timestamp(1),
            },
        );
        let began = Instant::now();
        assert!(told.send_news(&running, &Arc::default(), began));
        let now = began + PASSING_WAITS;
        assert!(told.send_news(&running, &Arc::default(), now));
        for _ in 0..2 {
            let mark = gmodel::checkpoint::CheckpointMark {
                number: 1,
                ..Default::default()
            };
            feed(&mut running, NodeInput::Marked { run: run(), mark });
            assert!(told.send_news(&running, &Arc::default(), now));
        }
        assert_eq!(
            phases(&mut frames),
            [2, 2],
            "once for the phase, once for the mark"
        );
        assert_eq!(told.due(), None);
        let mark = gmodel::checkpoint::CheckpointMark {
            number: 2,
            ..Default::default()
        };
        feed(&mut running, NodeInput::Marked { run: run(), mark });
        let half = now + MARKS_EVERY / 2;
        assert!(told.send_news(&running, &Arc::default(), half));
        assert_eq!(
            (phases(&mut frames), told.due()),
            (vec![], Some(now + MARKS_EVERY)),
            "the next one waits its turn"
        );
        feed(
            &mut running,
            NodeInput::Ended {
                run: run(),
                end: RunEnd::default(),
            },
        );
        feed(&mut running, NodeInput::Cleaned { run: run() });
        assert!(told.send_news(&running, &Arc::default(), half));
        assert_eq!(
            (phases(&mut frames), told.due()),
            (vec![4], None),
            "unless the run has more to say"
        );
    }

    #[test]
    fn a_long_prolog_leaves_the_acceptance_reported_in_time() {
        let (state, mut told, mut frames) = told();
        let now = Instant::now();
        let accepted = with_run(&state, SpooledRun::Accepted);
        assert!(told.send_news(&accepted, &Arc::default(), now));
        assert!(told.send_news(&accepted, &Arc::default(), now + PASSING_WAITS / 2));
        assert_eq!(phases(&mut frames), [0; 0]);
        assert!(told.send_news(&accepted, &Arc::default(), now + PASSING_WAITS));
        assert_eq!((phases(&mut frames), told.due()), (vec![0], None));
        assert!(told.send_news(&accepted, &Arc::default(), now + PASSING_WAITS * 2));
        assert_eq!(
            (phases(&mut frames), told.due()),
            (vec![], None),
            "said once"
        );
        assert!(told.send_news(&state, &Arc::default(), now));
        assert!(told.send_news(&accepted, &Arc::default(), now));
        assert!(told.send_news(&state, &Arc::default(), now));
        assert_eq!(
            (phases(&mut frames), told.due()),
            (vec![], None),
            "nothing is due of a run that is gone"
        );
    }
}
