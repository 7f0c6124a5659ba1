//! The planner thread: view -> snapshot -> plan -> input, one pass under way, then a rest.
//!
//! Channels: owns the receiving end of the wake (one place: wakes coalesce); asks the core by `CoreHandle`.
//! It decides nothing itself: `gsched` plans, the core checks each start again.

use crate::core_thread::{CoreHandle, now};
use gcore::ctl::{Mirror, State};
use gmodel::Timestamp;
use gsched::preempt::protection::next_unprotected;
use gsched::queue_order::of_starts;
use gsched::{Engine, Plan, PlanOrigin, WorkBudget};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Starts of one pass, so that entering a plan does not keep submissions waiting.
const STARTS_PER_PASS: usize = 400;
/// Reasons entered at once: until they are published, each stands in memory beside the record that it replaces.
const REASONS_AT_ONCE: usize = 4_000;
/// Node probes after which a long pass hands over what it has decided, some milliseconds' worth.
const SLICE_PROBES: u64 = 100_000;
/// After a full pass the thread rests so many times as long as the pass took, up to the longest rest.
const REST_FACTOR: u32 = 3;
const LONGEST_REST: Duration = Duration::from_millis(400);
/// Added to the thread's nice value, above the daemon's other threads.
const NICER: i32 = 5;
/// Without any wake, a pass this often.
const IDLE: Duration = Duration::from_secs(30);

/// The core's end: tells the planner that its last plan may be out of date.
#[derive(Clone)]
pub struct PlannerWake {
    wake: SyncSender<()>,
    urgent: Arc<AtomicBool>,
}

/// The planner's end.
pub struct Planner {
    wakes: Receiver<()>,
    urgent: Arc<AtomicBool>,
    /// Inputs are traced.
    traced: bool,
}

impl PlannerWake {
    /// `urgent`: something became free that waiting jobs may take.
    pub fn wake(&self, urgent: bool) {
        if urgent {
            self.urgent.store(true, Ordering::Release);
        }
        let _ = self.wake.try_send(()); // full: a wake is waiting already
    }
}

/// The two ends of the wake.
pub fn channel(traced: bool) -> (PlannerWake, Planner) {
    let (wake, wakes) = sync_channel(1);
    let urgent = Arc::new(AtomicBool::new(false));
    (
        PlannerWake {
            wake,
            urgent: urgent.clone(),
        },
        Planner {
            wakes,
            urgent,
            traced,
        },
    )
}

impl Planner {
    /// Runs until the core is gone. Something that became free is given away at once; a pass over the whole queue
    /// follows when the one before is long enough ago.
    pub fn run(self, core: &CoreHandle) {
        step_back();
        let mut memory = PassMemory {
            traced: self.traced,
            ..PassMemory::default()
        };
        let mut next_begin = None;
        let mut full_due = Instant::now();
        let mut full_wanted = false;
        loop {
            let rest = full_due.saturating_duration_since(Instant::now());
            match self
                .wakes
                .recv_timeout(if full_wanted { rest } else { until(next_begin) })
            {
                Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let urgent = self.urgent.swap(false, Ordering::AcqRel);
            if Instant::now() < full_due {
                full_wanted = true;
                if !urgent {
                    // Leaves the processors to others.
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                match quick_pass(core, &mut memory) {
                    Some(true) => continue,
                    Some(false) => {}
                    None => return,
                }
            }
            let begun = Instant::now();
            let Some(pass) = pass(core, &mut memory) else {
                return;
            };
            let took = begun.elapsed();
            core.stats().pass.record_duration(took);
            next_begin = pass.next_begin;
            full_due = Instant::now() + (took * REST_FACTOR).min(LONGEST_REST);
            // The pass reached its limit of starts, or left GPUs to others: the rest of the queue needs no wake.
            full_wanted = pass.again;
        }
    }
}

struct PassResult {
    /// More could start at once.
    again: bool,
    next_begin: Option<Timestamp>,
}

/// Kept from pass to pass, so that a pass costs what changed where it can.
#[derive(Default)]
struct PassMemory {
    mirror: Mirror,
    engine: Engine,
    /// Inputs are traced: an empty plan is entered too, since a replay makes every pass again.
    traced: bool,
}

/// Gives away what became free. Whether that could be said without a full pass; `None` when the core is gone.
fn quick_pass(core: &CoreHandle, memory: &mut PassMemory) -> Option<bool> {
    let view = core.view_blocking()?;
    let now = now();
    memory.mirror.update(&view, now);
    drop(view);
    let (snapshot, changes) = memory.mirror.picture()?;
    let Some(mut plan) = memory.engine.after(snapshot, changes, budget()) else {
        return Some(false);
    };
    plan.priorities = of_starts(snapshot, &plan.starts);
    memory.mirror.forget_changes();
    if memory.traced || !plan.is_empty() {
        enter(core, plan, made(now, true));
    }
    Some(true)
}

/// One pass; `None` when the core is gone.
fn pass(core: &CoreHandle, memory: &mut PassMemory) -> Option<PassResult> {
    let view = core.view_blocking()?;
    let now = now();
    memory.mirror.update(&view, now);
    let next_begin = next_begin(&view, now);
    drop(view); // chunks that are not shared need not be copied
    let (snapshot, changes) = memory.mirror.picture()?;
    let made = made(now, false);
    let starts = Arc::new(AtomicUsize::new(0));
    let (handed_over, handle) = (starts.clone(), core.clone());
    let hand_over = move |part: Plan| {
        handed_over.fetch_add(part.starts.len(), Ordering::Relaxed);
        enter(&handle, part, PlanOrigin { more: true, ..made });
    };
    let mut plan = memory.engine.plan_in_slices(
        snapshot,
        Some(changes),
        budget(),
        SLICE_PROBES,
        Box::new(hand_over),
    );
    plan.priorities = of_starts(snapshot, &plan.starts);
    memory.mirror.forget_changes();
    let mut again =
        (plan.cut_short || plan.again) && starts.load(Ordering::Relaxed) + plan.starts.len() > 0;
    if memory.traced || !plan.is_empty() {
        again &= enter(core, plan, made);
    }
    let (snapshot, _) = memory.mirror.picture()?;
    let next_begin = next_begin.into_iter().chain(next_unprotected(snapshot));
    let next_begin = next_begin.min();
    // The starts are under way: now there is time for what quick passes need.
    memory.engine.make_ready(snapshot);
    Some(PassResult { again, next_begin })
}

fn budget() -> WorkBudget {
    WorkBudget {
        starts: STARTS_PER_PASS,
        ..WorkBudget::default()
    }
}

/// How a pass is made, so that a replay can make it again.
fn made(now: Timestamp, quick: bool) -> PlanOrigin {
    let WorkBudget {
        node_probes,
        starts,
    } = budget();
    PlanOrigin {
        now,
        node_probes,
        starts,
        quick,
        more: false,
    }
}

/// Enters a plan part by part; false when the core refused one.
fn enter(core: &CoreHandle, plan: Plan, made: PlanOrigin) -> bool {
    let mut parts = in_parts(plan, made).into_iter();
    let taken = parts.try_for_each(|part| core.plan_blocking(part).map(drop));
    taken
        .inspect_err(|refusal| tracing::warn!("a plan was not taken: {refusal}"))
        .is_ok()
}

/// The decisions with the first reasons; then the other reasons.
fn in_parts(mut plan: Plan, made: PlanOrigin) -> Vec<Plan> {
    let rest = plan
        .reasons
        .split_off(plan.reasons.len().min(REASONS_AT_ONCE));
    let made_from = plan.made_from;
    let of_reasons = |part: &[_]| Plan {
        made_from,
        reasons: part.to_vec(),
        ..Plan::default()
    };
    let rest: Vec<Plan> = rest.chunks(REASONS_AT_ONCE).map(of_reasons).collect();
    let mut parts: Vec<Plan> = std::iter::once(plan).chain(rest).collect();
    let last = parts.len() - 1;
    for (at, part) in parts.iter_mut().enumerate() {
        let more = made.more || at < last;
        part.made = Some(PlanOrigin { more, ..made });
    }
    parts
}

/// When the next job becomes eligible that is not yet.
fn next_begin(state: &State, now: Timestamp) -> Option<Timestamp> {
    state
        .index
        .not_yet
        .iter()
        .map(|(at, _)| *at)
        .find(|at| *at > now)
}

/// Lowers the calling thread's priority: answers go before planning. Linux has a nice value for each
/// thread. Best effort.
pub(crate) fn step_back() {
    let lowered = rustix::process::getpriority_process(None)
        .and_then(|nice| rustix::process::setpriority_process(None, nice + NICER));
    if let Err(e) = lowered {
        tracing::debug!("the planner thread keeps its priority: {e}");
    }
}

fn until(next_begin: Option<Timestamp>) -> Duration {
    next_begin.map_or(IDLE, |at| {
        Duration::from_millis(at.since_millis(now()).unsigned_abs()).min(IDLE)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Field 19 of stat(5): the nice value.
    fn nice() -> i32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let fields = stat.rsplit_once(") ").unwrap().1;
        fields.split(' ').nth(16).unwrap().parse().unwrap()
    }

    #[test]
    fn a_plan_in_parts_is_the_whole_plan() {
        use gmodel::{JobId, Reason, ReasonCode, RunId, Seq};
        let reasons: Vec<_> = (1..10_000)
            .map(|id| (JobId(id), Reason::new(ReasonCode::Resources, "")))
            .collect();
        let plan = Plan {
            made_from: Seq(7),
            resumes: vec![RunId::new(JobId(1), 1)],
            reasons: reasons.clone(),
            ..Plan::default()
        };
        let parts = in_parts(plan.clone(), made(now(), false));
        assert_eq!(parts.len(), 3);
        assert_eq!(parts[0].resumes, plan.resumes);
        assert!(
            parts[1..]
                .iter()
                .all(|part| part.resumes.is_empty() && part.made_from == Seq(7))
        );
        let more = |part: &Plan| part.made.map(|made| made.more);
        let marks: Vec<_> = parts.iter().map(more).collect();
        assert_eq!(marks, [Some(true), Some(true), Some(false)]);
        assert_eq!(
            parts
                .into_iter()
                .flat_map(|part| part.reasons)
                .collect::<Vec<_>>(),
            reasons
        );
        let made = made(now(), false);
        let whole = Plan {
            made: Some(made),
            ..Plan::default()
        };
        assert_eq!(in_parts(Plan::default(), made), [whole]);
    }

    #[test]
    fn only_the_planner_steps_back() {
        let before = nice();
        let planner = std::thread::spawn(|| {
            step_back();
            nice()
        });
        assert_eq!(planner.join().unwrap(), (before + NICER).min(19));
        assert_eq!(nice(), before);
    }
}
