//! The sentences of `gq --log`: one for every kind of event, as people read them.

use super::*;
use gmodel::array_spec::ArraySpec;
use gmodel::gpu_set::{GpuSet, GpuSlot};
use gmodel::run::NodeShare;
use gmodel::{CommonSpec, ExitCode, JobId, JobState, Timestamp};
use serde_json::json;

fn spec() -> JobSpec {
    let mut spec = JobSpec::from(CommonSpec {
        partition: "main".into(),
        ..CommonSpec::default()
    });
    spec.user.name = "alice".into();
    spec
}

fn line(doc: Value) -> HistoryLine {
    let kind = doc["event"].as_str().unwrap().to_owned();
    HistoryLine {
        seq: 1,
        at: Timestamp::from_secs(0),
        kind,
        run: None,
        node: None,
        doc: doc.to_string(),
    }
}

/// What is told of events as they lie in the database.
fn told(spec: &JobSpec, docs: Vec<Value>) -> Vec<String> {
    let lines: Vec<HistoryLine> = docs.into_iter().map(line).collect();
    events(&lines, spec, &|id| format!("node{}", id.0))
        .into_iter()
        .map(|event| event.text)
        .collect()
}

fn one(event: &Event) -> String {
    told(&spec(), vec![serde_json::to_value(event).unwrap()]).remove(0)
}

fn run() -> RunId {
    RunId::new(JobId(17), 2)
}

fn ends(state: JobState, exit: ExitCode, text: &str) -> Outcome {
    let ended = Timestamp::from_secs(60);
    let text = text.to_owned();
    Outcome {
        state,
        exit,
        text,
        started: None,
        ended,
        held_millis: Vec::new(),
        unheld_millis: 0,
        gpu_events: Vec::new(),
        image: String::new(),
        usage: Default::default(),
        requeue: None,
        try_after: None,
        hold: None,
        lost_gpu_secs: 0,
        idle_spells: Vec::new(),
    }
}

#[test]
fn a_submission_is_told_without_the_clients_key() {
    let doc = json!({"event": "job_submitted", "id": 17, "limit_secs": null, "at": 0, "client_key": "k1"});
    let lines = [line(doc.clone())];
    let told_events = events(&lines, &spec(), &|id| id.to_string());
    assert_eq!(told_events[0].text, "submitted by alice to partition main");
    assert_eq!(
        told_events[0].event,
        json!({"event": "job_submitted", "id": 17, "limit_secs": null, "at": 0})
    );
    let mut array = spec();
    array.array = Some(ArraySpec::parse("5-9").unwrap());
    let cancelled =
        json!({"event": "tasks_cancelled", "array": 17, "positions": "1-2", "by": "root", "at": 0});
    assert_eq!(
        told(&array, vec![doc.clone(), cancelled]),
        [
            "submitted by alice to partition main as an array of 5 tasks",
            "tasks 6-7 cancelled by root",
        ]
    );
    let moved = json!({"event": "job_updated", "job": 17, "change": {"partition": "night"}});
    assert_eq!(
        told(&spec(), vec![doc, moved]),
        ["submitted by alice", "partition changed to night"]
    );
}

#[test]
fn of_several_partitions_the_log_names_all_and_the_one() {
    let mut spec = spec();
    (spec.partition, spec.partitions) = ("night".into(), "day,night".into());
    let submitted = json!({"event": "job_submitted", "id": 17, "limit_secs": 60, "at": 0});
    let placed = json!({"event": "run_placed", "run": "17-1", "allocation": [], "lives": [], "partition": "night", "limit_secs": 60, "at": 0});
    assert_eq!(
        told(&spec, vec![submitted, placed]),
        [
            "submitted by alice to partitions day,night",
            "placed on  (0 CPUs), attempt 1, in partition night"
        ]
    );
}

#[test]
fn a_run_is_told_with_names_and_amounts() {
    let share = |node, gpus| NodeShare {
        node: NodeId(node),
        cpus: 4,
        mem_bytes: 64 << 30,
        gpus,
        tasks: 1,
    };
    let placed = |allocation| {
        one(&Event::RunPlaced {
            run: run(),
            allocation,
            lives: Vec::new(),
            partition: None,
            limit_secs: None,
            class: None,
            priority: None,
            imex_channel: None,
            at: Timestamp::from_secs(0),
        })
    };
    assert_eq!(
        placed(vec![share(1, GpuSet::whole([GpuSlot(3)]))]),
        "placed on node1 (1 GPU, 4 CPUs, 64G), attempt 2"
    );
    let two = vec![
        share(1, GpuSet::whole([GpuSlot(0)])),
        share(2, GpuSet::whole([GpuSlot(0)])),
    ];
    assert_eq!(
        placed(two),
        "placed on node[1-2] (2 GPUs, 8 CPUs, 128G), attempt 2"
    );
    assert_eq!(
        placed(vec![share(1, GpuSet::default())]),
        "placed on node1 (4 CPUs, 64G), attempt 2"
    );
}

#[test]
fn every_phase_of_a_node_is_told() {
    let phase = |phase| {
        one(&Event::RunReported {
            run: run(),
            node: NodeId(1),
            phase,
            at: Timestamp::from_secs(0),
        })
    };
    assert_eq!(phase(RunPhase::Accepted), "node1: accepted");
    assert_eq!(phase(RunPhase::Ready), "node1: ready");
    assert_eq!(
        phase(RunPhase::Running {
            started: Timestamp::from_secs(1)
        }),
        "running on node1"
    );
    let killed = RunEnd {
        exit: ExitCode::killed(9),
        ..RunEnd::default()
    };
    assert_eq!(
        phase(RunPhase::Ended(killed.clone().into())),
        "ended on node1: exit 0:9"
    );
    assert_eq!(
        phase(RunPhase::Clean(killed.clone().into())),
        "node1: cleaned up (exit 0:9)"
    );
    let late = RunEnd {
        cause: EndCause::TimeLimit,
        text: "it was 0:30".into(),
        ..killed
    };
    assert_eq!(
        phase(RunPhase::Ended(late.into())),
        "ended on node1: time limit, exit 0:9: it was 0:30"
    );
    let lost = RunEnd {
        cause: EndCause::LaunchUser,
        text: "no directory /x".into(),
        ..RunEnd::default()
    };
    assert_eq!(
        phase(RunPhase::Ended(lost.into())),
        "ended on node1: could not be started: no directory /x"
    );
}

#[test]
fn an_end_says_state_exit_and_what_becomes_of_the_job() {
    let at = Timestamp::from_secs(60);
    let told = |outcome| {
        one(&Event::RunEnded {
            run: run(),
            outcome,
            settled: true,
            at,
        })
    };
    assert_eq!(
        told(ends(JobState::Failed, ExitCode::exited(9), "")),
        "FAILED, exit 9:0"
    );
    let back = Outcome {
        requeue: Some(at.plus_secs(30)),
        ..ends(JobState::NodeFail, ExitCode::SUCCESS, "node node1 was lost")
    };
    assert_eq!(
        told(back.clone()),
        "requeued, not before 1970-01-01T00:01:30Z: node node1 was lost"
    );
    let in_line = Outcome {
        requeue: Some(at),
        text: String::new(),
        ..back.clone()
    };
    assert_eq!(told(in_line), "requeued: NODE_FAIL", "it keeps its place");
    let mark = HoldMark {
        owner: "system".into(),
        reason: "it took three nodes down".into(),
        since: at,
    };
    let held = Outcome {
        hold: Some(mark),
        ..back
    };
    assert!(told(held).ends_with("was lost; held by system: it took three nodes down"));
}

#[test]
fn what_people_do_is_told_with_their_names() {
    let at = Timestamp::from_secs(0);
    let mark = HoldMark {
        owner: "admin:root".into(),
        reason: "ask me".into(),
        since: at,
    };
    assert_eq!(
        one(&Event::JobHeld {
            job: JobId(17),
            mark
        }),
        "held by admin:root: ask me"
    );
    assert_eq!(
        one(&Event::JobReleased {
            job: JobId(17),
            owner: None,
            at
        }),
        "released"
    );
    let change = JobChange {
        limit_secs: Some(Some(3600)),
        nice: Some(5),
        ..JobChange::default()
    };
    assert_eq!(
        one(&Event::JobUpdated {
            job: JobId(17),
            change,
            by: "ada".into()
        }),
        "time limit changed to 1:00:00, nice changed to 5 by ada"
    );
    let change = JobChange {
        limit_secs: Some(None),
        ..JobChange::default()
    };
    assert_eq!(
        one(&Event::JobUpdated {
            job: JobId(17),
            change,
            by: String::new()
        }),
        "time limit changed to UNLIMITED"
    );
    let mut request = gmodel::request_change::RequestChange::default();
    for (key, text) in [
        ("nodes", "2-4"),
        ("gpus_per_node", "h100:2"),
        ("mem_per_node", "8G"),
        ("exclude", ""),
    ] {
        request.set(key, text).unwrap();
    }
    let change = JobChange {
        request,
        ..JobChange::default()
    };
    let told = one(&Event::JobUpdated {
        job: JobId(17),
        change,
        by: "root".into(),
    });
    assert_eq!(
        told,
        "nodes changed to 2-4, memory changed to 8G per node, GPUs changed to h100:2 per node, excluded nodes changed to none by root"
    );
    let stop = Stop::new(StopCause::Cancelled, 30, at, "root");
    assert_eq!(
        one(&Event::RunStopping {
            run: run(),
            stop: stop.clone()
        }),
        "cancelled by root"
    );
    let late = Stop {
        why: StopCause::PrepareTimeout,
        late: vec![NodeId(2)],
        ..stop
    };
    assert_eq!(
        one(&Event::RunStopping {
            run: run(),
            stop: late
        }),
        "stopped: node2 did not get ready in time"
    );
    let unneeded = |called_back| Event::RunUnneeded {
        run: run(),
        for_job: JobId(40),
        called_back,
        at,
    };
    assert_eq!(
        one(&unneeded(true)),
        "may stay: job 40 started elsewhere, and no node of it had confirmed that order"
    );
    assert_eq!(
        one(&unneeded(false)),
        "job 40 started elsewhere; its signal is out, so it goes all the same"
    );
    let back = Event::JobRequeued {
        job: JobId(17),
        run: None,
        by: "ada".into(),
        at,
    };
    assert_eq!(
        one(&back),
        "put back into the queue by ada: it had been over"
    );
    let tasks = Event::TasksRequeued {
        array: JobId(17),
        positions: [1, 2].into_iter().collect(),
        by: "ada".into(),
        at,
    };
    assert_eq!(one(&tasks), "tasks 1-2 put back into the queue by ada");
    let signal = NumberedSignal {
        number: 1,
        signal: 10,
        batch_only: true,
        full: false,
    };
    assert_eq!(
        one(&Event::RunSignalled { run: run(), signal }),
        "signal SIGUSR1 to the batch script only"
    );
    let step = Event::StepStarted {
        run: run(),
        step: 0,
        name: "bash".into(),
        tasks: 4,
        nodes: 2,
        places: vec![],
        hold: None,
        limit_secs: None,
        at,
    };
    assert_eq!(one(&step), "step 0: bash, 4 tasks");
}

#[test]
fn what_another_release_wrote_is_told_by_its_name() {
    assert_eq!(
        told(&spec(), vec![json!({"event": "job_praised", "job": 17})]),
        ["job praised"]
    );
}
