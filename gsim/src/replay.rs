//! A controller's own trace (`trace = true` in gpuctld.toml) once more through the core: the same inputs at the same times
//! give the same facts, and the scheduler, asked again at each plan, the same decisions.
//!
//! Owns the reading of the lines and the comparison. It changes nothing of what happened.

use crate::history::History;
use crate::recorded_trace::plan_of;
pub use crate::recorded_trace::{RecordedTrace, TraceEntry, TraceLine};
use gcore::ctl::{Input, Mirror, Rows, State, check, handle, snapshot};
use gmodel::Seq;
use gsched::{Engine, Plan, PlanOrigin, WorkBudget};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Differences that are told in words; the others are counted.
const MAX_TOLD: usize = 20;
/// Starts that gpuctld's planner allows one pass, where the trace does not say.
pub const STARTS_PER_PASS: usize = 400;

/// What came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReplayReport {
    /// Starts of the controller with what it found then.
    pub lives: u64,
    pub inputs: u64,
    pub events: u64,
    pub refused: u64,
    pub plans: u64,
    /// Plans that were made again with the same starts, preemptions, classes and cuts.
    pub plans_equal: u64,
    /// Of these, also with the same reasons.
    pub reasons_equal: u64,
    /// Plans made from a state that the trace does not hold.
    pub plans_unknown: u64,
    pub starts: u64,
    /// FNV-1a over every event, as JSON.
    pub hash: String,
    /// FNV-1a over every start, preemption, class and cut that was decided, as the trace has them.
    pub decisions_hash: String,
    /// Lines that do not follow the one before, and why.
    pub breaks: Vec<(usize, String)>,
    /// The first differences, in words.
    pub differences: Vec<String>,
    pub notes: Vec<String>,
}

/// Feeds every line to a core that begins with what the trace begins with, or empty, and asks the scheduler again for each plan.
///
/// # Errors
/// A broken invariant of the core.
pub fn replay(recorded: &RecordedTrace) -> Result<ReplayReport, String> {
    replay_with_history(recorded).map(|(replayed, ..)| replayed)
}

/// The same, with the state at the end and what became of every job, for trying another policy.
///
/// # Errors
/// A broken invariant of the core.
pub fn replay_with_history(
    recorded: &RecordedTrace,
) -> Result<(ReplayReport, History, State), String> {
    let mut history = History::default();
    let mut state = State::from_rows(Rows::default());
    let wanted: BTreeSet<Seq> = recorded.lines.iter().filter_map(plan_made_from).collect();
    let mut known: BTreeMap<Seq, State> = BTreeMap::new();
    let mut planner = Planner::default();
    let mut out = ReplayReport {
        notes: recorded.notes(),
        breaks: recorded.breaks.clone(),
        ..ReplayReport::default()
    };
    let (mut hash, mut decisions) = (Fnv::default(), Fnv::default());
    let mut unknown_nodes = BTreeSet::new();
    let mut events = Vec::new();
    for line in &recorded.lines {
        let input = match &line.what {
            TraceEntry::Input(input) => &**input,
            TraceEntry::Loaded(rows) => {
                state = State::from_rows((**rows).clone());
                planner = Planner::default();
                known.clear();
                known.insert(state.seq, state.clone());
                out.lives += 1;
                continue;
            }
        };
        if let Input::Node { node, .. } = input
            && !state.nodes.contains(*node)
        {
            unknown_nodes.insert(*node);
        }
        if let Some(plan) = plan_of(line).and_then(|part| planner.whole(part)) {
            decisions.json(&(&plan.starts, &plan.preempts, &plan.classes, &plan.cuts));
            planner.compare(line, &plan, known.get(&plan.made_from), &mut out);
            known.retain(|seq, _| *seq >= plan.made_from);
        }
        events.clear();
        out.inputs += 1;
        out.refused += u64::from(handle(&mut state, &mut events, input.clone(), line.now).is_err());
        out.events += events.len() as u64;
        for event in &events {
            hash.json(event);
            history.note(event);
        }
        if wanted.contains(&state.seq) {
            known.insert(state.seq, state.clone());
        }
    }
    out.notes.extend(unknown_nodes_note(unknown_nodes.len()));
    out.hash = hash.hex();
    out.decisions_hash = decisions.hex();
    match check(&state).first() {
        Some(violation) => Err(format!("after the last line: {violation}")),
        None => Ok((out, history, state)),
    }
}

/// The state from which a line's plan was made.
fn plan_made_from(line: &TraceLine) -> Option<Seq> {
    plan_of(line).map(|plan| plan.made_from)
}

fn unknown_nodes_note(count: usize) -> Option<String> {
    (count > 0).then(|| {
        format!(
            "{count} nodes report that the trace does not introduce: it was begun when the database was not empty, and what \
             was there before is not replayed"
        )
    })
}

/// The planner of the controller: what it keeps from pass to pass, quick ones go on from.
#[derive(Default)]
struct Planner {
    mirror: Mirror,
    engine: Engine,
    /// The parts so far of a plan that comes in several.
    parts: Option<Plan>,
}

impl Planner {
    /// The plan that is complete with this part.
    fn whole(&mut self, part: &Plan) -> Option<Plan> {
        let mut plan = self.parts.take().unwrap_or_else(|| Plan {
            made_from: part.made_from,
            ..Plan::default()
        });
        plan.append(part.clone());
        match plan.made {
            Some(PlanOrigin { more: true, .. }) => {
                self.parts = Some(plan);
                None
            }
            _ => Some(plan),
        }
    }

    fn compare(
        &mut self,
        line: &TraceLine,
        plan: &Plan,
        state: Option<&State>,
        out: &mut ReplayReport,
    ) {
        out.plans += 1;
        out.starts += plan.starts.len() as u64;
        match state.and_then(|state| self.again(line, plan, state)) {
            Some(again) => out.hold_against(line, plan, &again),
            None => out.plans_unknown += 1,
        }
    }

    /// The plan once more. `None`: what it was made from is not known.
    fn again(&mut self, line: &TraceLine, plan: &Plan, state: &State) -> Option<Plan> {
        let Some(PlanOrigin {
            now,
            node_probes,
            starts,
            quick,
            more: _,
        }) = plan.made
        else {
            // Of a trace that does not say how: a full pass at the time when the plan came in.
            let budget = WorkBudget {
                starts: STARTS_PER_PASS,
                ..WorkBudget::default()
            };
            return Some(gsched::plan(&snapshot(state, line.now), budget));
        };
        let budget = WorkBudget {
            node_probes,
            starts,
        };
        self.mirror.update(state, now);
        let (picture, changes) = self.mirror.picture()?;
        let again = if quick {
            self.engine.after(picture, changes, budget)
        } else {
            Some(self.engine.plan_changed(picture, Some(changes), budget))
        };
        self.mirror.forget_changes();
        if !quick && let Some((picture, _)) = self.mirror.picture() {
            self.engine.make_ready(picture);
        }
        again
    }
}

impl ReplayReport {
    fn hold_against(&mut self, line: &TraceLine, plan: &Plan, again: &Plan) {
        let same = again.starts == plan.starts
            && again.preempts == plan.preempts
            && again.classes == plan.classes
            && again.cuts == plan.cuts;
        if same {
            self.plans_equal += 1;
            self.reasons_equal += u64::from(
                again.reasons == plan.reasons && again.array_reasons == plan.array_reasons,
            );
            return;
        }
        let starts = |plan: &Plan| -> Vec<String> {
            let one = |start: &gsched::Start| {
                let nodes: Vec<String> = start
                    .allocation
                    .iter()
                    .map(|share| share.node.to_string())
                    .collect();
                format!("{} on {}", start.job, nodes.join("+"))
            };
            plan.starts.iter().map(one).collect()
        };
        let (then, now) = (starts(plan), starts(again));
        let missing: Vec<&String> = then
            .iter()
            .filter(|start| !now.contains(start))
            .take(3)
            .collect();
        let new: Vec<&String> = now
            .iter()
            .filter(|start| !then.contains(start))
            .take(3)
            .collect();
        if self.differences.len() < MAX_TOLD {
            self.differences.push(format!(
                "line {}: {} starts then, {} now; only then: {missing:?}; only now: {new:?}; preemptions {} then, {} now",
                line.number,
                then.len(),
                now.len(),
                plan.preempts.len(),
                again.preempts.len()
            ));
        }
    }
}

struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn json(&mut self, value: &impl Serialize) {
        let text = serde_json::to_vec(value).expect("facts are JSON");
        for byte in text.iter().chain(b"\n") {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    fn hex(&self) -> String {
        format!("{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcore::ctl::{Actor, Command, NodeReport};
    use gmodel::Timestamp;
    use gmodel::config::{ClusterConfig, Partition};
    use gmodel::gpu_request::GpuRequest;
    use gmodel::run::{RunEnd, RunPhase, RunReport};
    use gmodel::trace_chain::TraceChain;
    use gmodel::{CommonSpec, Fence, JobSpec, NodeLife, RunId};
    use serde_json::Value;

    /// A short life of a controller as gpuctld would have written it: one node of 4 GPUs, six jobs of 2.
    fn written() -> Vec<String> {
        written_of(|_| {})
    }

    /// The same of six jobs that ask for more.
    fn written_of(more: impl Fn(&mut JobSpec)) -> Vec<String> {
        let mut state = State::from_rows(Rows::default());
        let mut lines = Vec::new();
        let mut now = Timestamp::from_secs(1000);
        let mut give = |state: &mut State, input: Input, now: Timestamp| {
            let mut line = serde_json::to_value(&input).unwrap();
            line["now"] = serde_json::json!(now);
            lines.push(line.to_string());
            handle(state, &mut Vec::new(), input, now).unwrap()
        };
        let partition = Partition {
            name: "main".into(),
            is_default: true,
            ..Partition::default()
        };
        let config = ClusterConfig {
            partitions: vec![partition],
            ..ClusterConfig::default()
        };
        give(
            &mut state,
            Input::Configure {
                config: config.into(),
            },
            now,
        );
        give(&mut state, Input::Started, now);
        let root = Actor {
            user: "root".into(),
            operator: true,
            ..Actor::default()
        };
        let token = gcore::ctl::state::JoinToken {
            hash: "t".into(),
            role: gmodel::node::Role::Compute,
            name: None,
            expires: Timestamp::from_secs(9999),
            minted_by: "root".into(),
            admin: false,
        };
        let command = Command::MintToken { token };
        give(
            &mut state,
            Input::Command {
                actor: root.clone(),
                command,
            },
            now,
        );
        let command = Command::Join {
            token_hash: "t".into(),
            name: "n1".into(),
        };
        give(
            &mut state,
            Input::Command {
                actor: root,
                command,
            },
            now,
        );
        let node = state.nodes.keys().next().unwrap();
        let shape = crate::hardware::NodeShape {
            gpus: 4,
            cpus: 8,
            mem_bytes: 1 << 40,
            ..Default::default()
        };
        let life = NodeLife {
            boot: "b".into(),
            spool: "s".into(),
        };
        let report = NodeReport::Hello {
            life,
            fence: Fence::default(),
            inventory: shape.inventory("n1"),
            runs: vec![],
        };
        give(&mut state, Input::Node { node, report }, now);
        for _ in 0..6 {
            let mut spec = JobSpec::from(CommonSpec {
                time_limit_secs: Some(100),
                ..CommonSpec::default()
            });
            spec.launch.work_dir = "/".into();
            spec.request.gpus = Some(GpuRequest::whole(2));
            more(&mut spec);
            let actor = Actor {
                user: "ada".into(),
                uid: 1000,
                ..Actor::default()
            };
            let command = Command::Submit {
                spec: Box::new(spec),
                client_key: None,
            };
            give(&mut state, Input::Command { actor, command }, now);
        }
        for _ in 0..4 {
            now = now.plus_secs(10);
            let plan = gsched::plan(
                &snapshot(&state, now),
                WorkBudget {
                    starts: STARTS_PER_PASS,
                    ..WorkBudget::default()
                },
            );
            give(&mut state, Input::Plan { plan }, now);
            let live: Vec<RunId> = state.runs.values().map(|run| run.id).collect();
            for run in live {
                let phase = RunPhase::Clean(RunEnd::default().into());
                let report = NodeReport::Runs {
                    runs: vec![RunReport::new(run, phase)],
                };
                give(&mut state, Input::Node { node, report }, now);
            }
        }
        lines
    }

    #[test]
    fn a_trace_gives_the_same_decisions_bit_for_bit() {
        let text = written().join("\n") + "\n";
        let done = replay(&RecordedTrace::parse(&text).unwrap()).unwrap();
        assert_eq!(
            (done.plans, done.plans_equal, done.starts, done.refused),
            (4, 4, 6, 0),
            "{done:?}"
        );
        assert_eq!(
            (done.plans_unknown, done.notes.len(), done.differences.len()),
            (0, 1, 0),
            "{done:?}"
        );
        let again = replay(&RecordedTrace::parse(&text).unwrap()).unwrap();
        assert_eq!(
            (again.hash, again.decisions_hash),
            (done.hash, done.decisions_hash)
        );
    }

    #[test]
    fn a_plan_in_parts_is_made_again_in_one_piece() {
        let in_parts = |line: String| {
            let mut last: Value = serde_json::from_str(&line).unwrap();
            if last["input"] != "plan" {
                return vec![line];
            }
            let budget = WorkBudget::default();
            let made = |more: bool| {
                serde_json::json!({
                    "now": last["now"], "node_probes": budget.node_probes, "starts": STARTS_PER_PASS, "quick": false, "more": more,
                })
            };
            let (first_made, last_made) = (made(true), made(false));
            let starts = last["plan"]["starts"].as_array().unwrap().clone();
            let (some, rest) = starts.split_at(starts.len().min(1));
            let mut first = last.clone();
            first["plan"]["starts"] = some.into();
            first["plan"]["reasons"] = Value::Array(Vec::new());
            first["plan"]["made"] = first_made;
            last["plan"]["starts"] = rest.into();
            last["plan"]["made"] = last_made;
            vec![first.to_string(), last.to_string()]
        };
        let lines: Vec<String> = written().into_iter().flat_map(in_parts).collect();
        let done = replay(&RecordedTrace::parse(&lines.join("\n")).unwrap()).unwrap();
        assert_eq!(
            (done.plans, done.plans_equal, done.starts, done.refused),
            (4, 4, 6, 0),
            "{done:?}"
        );
    }

    #[test]
    fn another_policy_is_tried_on_the_same_history() {
        let recorded = RecordedTrace::parse(&written().join("\n")).unwrap();
        let (_, mut history, state) = replay_with_history(&recorded).unwrap();
        let told = history.told(&state).unwrap();
        assert_eq!(
            (
                told.trace.jobs.len(),
                told.hardware.gpus(),
                told.measures.finished
            ),
            (6, 4, 6)
        );
        let job = &told.trace.jobs[0];
        assert_eq!(
            (&*job.id, &*job.user, job.gpu_milli, job.limit_ms),
            ("1", "ada", 2000, Some(100_000))
        );
        // The planner of the test waited 10 s before each pass; a simulation does not.
        let place = crate::experiment::ClusterChoice::Given(told.hardware.clone());
        let policy = crate::policy_file::PolicyFile::named("fifo").unwrap();
        let done =
            crate::experiment::Experiment::run(&told.trace, &place, &policy, &mut || 0).unwrap();
        assert!(done.measures.wait_secs.mean < told.measures.wait_secs.mean);
        let moved = told.moved(&done.parts[0].outcome);
        assert_eq!(moved.len(), 6, "{moved:?}");
        assert!(
            History::default()
                .told(&state)
                .unwrap_err()
                .starts_with("no job of the trace ended")
        );
        // Of two runs that were ended only the one that gave way counts.
        assert_eq!(
            (told.measures.preemptions, told.measures.gpu_hours_lost),
            (0, 0.0)
        );
        for (job, ended_as) in [
            (1, gmodel::JobState::Preempted),
            (2, gmodel::JobState::NodeFail),
        ] {
            let outcome = gcore::ctl::state::Outcome {
                state: ended_as,
                exit: gmodel::ExitCode::default(),
                text: String::new(),
                started: None,
                ended: Timestamp::from_secs(5000),
                held_millis: Vec::new(),
                unheld_millis: 0,
                gpu_events: Vec::new(),
                image: String::new(),
                try_after: None,
                usage: Default::default(),
                requeue: Some(Timestamp::from_secs(5000)),
                hold: None,
                lost_gpu_secs: 7200,
                idle_spells: Vec::new(),
            };
            history.note(&gcore::ctl::Event::RunEnded {
                run: RunId::new(gmodel::JobId(job), 1),
                outcome,
                settled: true,
                at: Timestamp::from_secs(5000),
            });
        }
        let measures = history.told(&state).unwrap().measures;
        assert_eq!((measures.preemptions, measures.gpu_hours_lost), (1, 2.0));
    }

    #[test]
    fn under_another_policy_jobs_ask_for_what_they_did() {
        let lines = written_of(|spec| {
            (spec.account, spec.qos) = ("lost".into(), "odd".into());
            spec.request.exclusive = true;
            spec.request.nodelist = Some("n1".parse().unwrap());
            spec.deadline = Some(Timestamp::from_secs(5000));
        });
        let recorded = RecordedTrace::parse(&lines.join("\n")).unwrap();
        let (_, history, state) = replay_with_history(&recorded).unwrap();
        let mut told = history.told(&state).unwrap();
        let asked = told.trace.jobs[0].asked.clone().unwrap();
        assert_eq!(
            (asked.deadline, asked.request.nodelist.is_some()),
            (Some(Timestamp::from_secs(4000)), true),
            "4000 s after the begin"
        );
        let site = "order = \"fifo\"\n[account.vision]\nguaranteed = 4\n[qos.high]\npriority = 1\n";
        let mut policy = crate::policy_file::PolicyFile::parse("site", site).unwrap();
        let notes = told.fit(&mut policy);
        let wanted = [
            "policy site has no account lost: 4 jobs that name it run in one that is made for this, without guarantee and limit",
            "policy site has no QOS odd: 4 jobs that name it run in their account's usual one",
        ];
        assert_eq!(notes, wanted);
        let place = crate::experiment::ClusterChoice::Given(told.hardware.clone());
        let done =
            crate::experiment::Experiment::run(&told.trace, &place, &policy, &mut || 0).unwrap();
        assert_eq!(
            (done.measures.finished, done.measures.refused),
            (4, 0),
            "{:?}",
            done.measures.refusals
        );
        // Two jobs of two GPUs fit on one node; an exclusive job does not join them.
        let mut spans: Vec<(i64, i64)> = done.parts[0]
            .outcome
            .jobs
            .iter()
            .map(|job| (job.start_ms, job.end_ms))
            .collect();
        spans.sort_unstable();
        assert!(
            spans.windows(2).all(|pair| pair[0].1 <= pair[1].0),
            "{spans:?}"
        );
    }

    #[test]
    fn a_decision_that_was_another_is_found() {
        let mut lines = written();
        let at = lines
            .iter()
            .position(|line| line.contains("\"input\":\"plan\""))
            .unwrap();
        let mut line: Value = serde_json::from_str(&lines[at]).unwrap();
        line["plan"]["starts"].as_array_mut().unwrap().pop();
        lines[at] = line.to_string();
        let done = replay(&RecordedTrace::parse(&lines.join("\n")).unwrap()).unwrap();
        assert!(done.plans_equal < done.plans, "{done:?}");
        assert!(
            done.differences[0].contains("1 starts then, 2 now"),
            "{:?}",
            done.differences
        );
    }

    #[test]
    fn usage_that_is_more_than_64_bits_is_read_as_it_was_written() {
        // 23 days of one GPU: what a controller that is started again finds in its database.
        let used = "{\"decayed\":{\"half_life_secs\":604800,\"epochs\":{\"2968\":1236118891860599372000}}}";
        let empty = serde_json::to_string(&State::from_rows(Rows::default()).rows()).unwrap();
        let rows = empty.replace(
            "\"usage\":[]",
            &format!("\"usage\":[[\"default\",\"root\",{used}]]"),
        );
        let text = format!("{{\"now\":1,\"input\":\"loaded\",\"rows\":{rows}}}\n");
        let recorded = RecordedTrace::parse(&text).unwrap();
        let TraceEntry::Loaded(rows) = &recorded.lines[0].what else {
            panic!("{text}")
        };
        assert!(
            serde_json::to_string(rows).unwrap().contains(used),
            "{}",
            serde_json::to_string(rows).unwrap()
        );
    }

    #[test]
    fn a_trace_that_does_not_begin_empty_says_so() {
        let report = r#"{"now":1,"input":"node","node":7,"report":{"report":"gone"}}"#;
        let done = replay(
            &RecordedTrace::parse(&format!("{{\"now\":1,\"input\":\"started\"}}\n{report}\n"))
                .unwrap(),
        )
        .unwrap();
        assert!(
            done.notes[1].starts_with("1 nodes report that the trace does not introduce"),
            "{:?}",
            done.notes
        );
    }

    /// As gpuctld writes it: two lives, numbered.
    fn sealed() -> Vec<String> {
        let rows = serde_json::to_string(&State::from_rows(Rows::default()).rows()).unwrap();
        let mut chain = TraceChain::default();
        let mut first = vec![chain.seal(&format!(
            "{{\"now\":1,\"input\":\"loaded\",\"version\":\"{}\",\"rows\":{rows}}}",
            env!("CARGO_PKG_VERSION")
        ))];
        first.extend(written().iter().map(|line| chain.seal(line)));
        let after = chain.text();
        chain = TraceChain::default();
        let second = chain.seal(&format!("{{\"now\":2000000,\"input\":\"loaded\",\"version\":\"0.0.7\",\"after\":\"{after}\",\"rows\":{rows}}}"));
        first.into_iter().chain([second]).collect()
    }

    #[test]
    fn lines_that_are_missing_changed_or_moved_are_said_with_their_number() {
        let lines = sealed();
        let read = |lines: &[String]| RecordedTrace::parse(&(lines.join("\n") + "\n")).unwrap();
        let whole = replay(&read(&lines)).unwrap();
        assert_eq!(
            (whole.breaks.len(), whole.lives, whole.plans_equal),
            (0, 2, 4),
            "{whole:?}"
        );
        assert_eq!(
            whole.notes,
            [format!(
                "written by gpuctld 0.0.7, and this is {}: decisions may be others for that",
                env!("CARGO_PKG_VERSION")
            )]
        );
        let told = |lines: &[String]| {
            read(lines)
                .breaks
                .iter()
                .map(|(line, why)| format!("{line}: {why}"))
                .collect::<Vec<_>>()
        };
        let mut gap = lines.clone();
        gap.drain(6..8);
        assert_eq!(told(&gap), ["7: 2 lines are missing before it"]);
        assert_eq!(told(&lines[1..]), ["1: one line is missing before it"]);
        let mut end = lines.clone();
        end.remove(end.len() - 2);
        assert_eq!(
            told(&end),
            [format!(
                "{}: the controller's life before it ended otherwise: lines are missing between them",
                end.len()
            )]
        );
        let mut changed = lines.clone();
        changed[7] = changed[7].replacen("ada", "bob", 1);
        assert_eq!(told(&changed), ["8: was changed since it was written"]);
        let mut moved = lines.clone();
        moved.swap(7, 8);
        assert_eq!(told(&moved).len(), 3, "{:?}", told(&moved));
        // A crash cut a line off; the next life ended it.
        let mut crashed = lines.clone();
        let last = crashed.len() - 2;
        crashed[last].truncate(40);
        assert_eq!(told(&crashed), Vec::<String>::new());
        assert!(read(&lines[..3]).notes().is_empty());
        assert!(
            RecordedTrace::parse(&written().join("\n")).unwrap().notes()[0]
                .contains("lines are of a release that did not number them")
        );
    }
}
