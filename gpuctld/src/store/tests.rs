//! The store against the real core: what is written comes back, whatever happened in between.

use super::backup::BackupError;
use super::reader::{Reader, StoredJob};
use super::*;
use gcore::ctl::state::JoinToken;
use gcore::ctl::{Actor, Command, Input, NodeReport, Reply, Target, handle, snapshot};
use gmodel::array_spec::ArraySpec;
use gmodel::config::{ClusterConfig, Partition};
use gmodel::gpu_check::{CheckReport, CheckResult, Diagnostics};
use gmodel::gpu_order::GpuOrderDone;
use gmodel::gpu_request::GpuAsk;
use gmodel::job::{JobSpec, JobState};
use gmodel::node::{GpuInfo, Inventory, Role};
use gmodel::run::{EndCause, RunEnd, RunPhase, RunReport, Usage};
use gmodel::{ExitCode, Fence, JobId, NodeLife, RunId};
use gwire::api::RunQuery;
use std::sync::Arc;

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const HOUR: i64 = 3600;

/// A store, the state above it, and a clock.
struct World {
    dir: tempfile::TempDir,
    store: Store,
    state: State,
    now: Timestamp,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (store, state) = Store::open(dir.path(), "test").unwrap();
        let mut world = Self { dir, store, state, now: START };
        let partition = Partition { name: "main".into(), is_default: true, ..Partition::default() };
        let config = ClusterConfig { partitions: vec![partition], ..ClusterConfig::default() };
        world.input(Input::Configure { config: Arc::new(config) });
        world.input(Input::Started);
        world
    }

    fn input(&mut self, input: Input) -> Reply {
        self.inputs(vec![input], Vec::new()).pop().unwrap()
    }

    /// Several inputs in one commit.
    fn inputs(&mut self, inputs: Vec<Input>, blobs: Vec<Blob>) -> Vec<Reply> {
        let mut batch = Batch { blobs, now: self.now, ..Batch::default() };
        let replies = inputs
            .into_iter()
            .map(|input| handle(&mut self.state, &mut batch.events, input, self.now).unwrap())
            .collect();
        self.store.write(&self.state, batch).unwrap();
        replies
    }

    fn command(&mut self, command: Command) -> Reply {
        self.input(Input::Command { actor: alice(), command })
    }

    fn submit(&mut self, spec: JobSpec) -> JobId {
        match self.command(Command::Submit { spec: Box::new(spec), client_key: None }) {
            Reply::Submitted { id, .. } => id,
            other => panic!("{other:?}"),
        }
    }

    fn add_node(&mut self, name: &str, gpus: u32) -> NodeId {
        let hash = format!("hash of {name}");
        let token = JoinToken {
            hash: hash.clone(),
            role: Role::Compute,
            name: Some(name.into()),
            expires: self.now.plus_secs(60),
            minted_by: "root".into(),
            admin: false,
        };
        let actor = Actor { user: "root".into(), operator: true, ..Actor::default() };
        self.input(Input::Command { actor, command: Command::MintToken { token } });
        let reply = self.command(Command::Join { token_hash: hash, name: name.into() });
        let Reply::Joined { node, .. } = reply else { panic!("{reply:?}") };
        let gpu = |index| GpuInfo {
            uuid: format!("GPU-{name}-{index}"),
            gpu_type: "h100".into(),
            index,
            memory_mib: 81_920,
            ..GpuInfo::default()
        };
        let inventory = Inventory {
            cpus: 64,
            mem_bytes: 512 << 30,
            gpus: (0..gpus).map(gpu).collect(),
            isolation: "fence".into(),
            ..Inventory::default()
        };
        self.report(node, NodeReport::Hello { life: life(), fence: Fence::default(), inventory, runs: Vec::new() });
        node
    }

    fn report(&mut self, node: NodeId, report: NodeReport) {
        self.input(Input::Node { node, report });
    }

    fn plan(&mut self) {
        let plan = gsched::plan(&snapshot(&self.state, self.now), gsched::WorkBudget::default());
        self.input(Input::Plan { plan });
    }

    fn phase(&mut self, node: NodeId, job: JobId, phase: RunPhase) {
        let run = self.state.jobs.get(job).and_then(|job| job.live_run()).expect("it runs");
        self.report(node, NodeReport::Runs { runs: vec![RunReport::new(run, phase)] });
    }

    fn start(&mut self, node: NodeId, job: JobId) {
        self.plan();
        let started = self.now;
        self.phase(node, job, RunPhase::Running { started });
    }

    fn end(&mut self, node: NodeId, job: JobId) {
        let end = RunEnd {
            cause: EndCause::Exited,
            exit: ExitCode::exited(3),
            started: Some(self.now),
            ended: Some(self.now),
            usage: Usage { cpu_user_micros: 7_000_000, peak_memory_bytes: 1 << 30, ..Usage::default() },
            ..RunEnd::default()
        };
        self.phase(node, job, RunPhase::Clean(end));
    }

    fn reopen(self) -> Self {
        let Self { dir, store, now, state } = self;
        store.close().unwrap();
        let config = state.config.clone();
        let (store, mut state) = Store::open(dir.path(), "test").unwrap();
        state.config = config;
        Self { dir, store, state, now }
    }

    /// The state as a controller finds it that is started now.
    fn assert_comes_back(&self) {
        let copy = tempfile::tempdir().unwrap();
        backup(self.store.path(), &copy.path().join(DATABASE)).unwrap();
        let (_store, loaded) = Store::open(copy.path(), "test").unwrap();
        let state = &self.state;
        assert_eq!((loaded.seq, loaded.next_job, loaded.next_node), (state.seq, state.next_job, state.next_node));
        for (id, job) in loaded.jobs.iter() {
            assert_eq!(Some(job), state.jobs.get(id));
        }
        for job in state.jobs.values().filter(|job| !job.state.is_final()) {
            assert!(loaded.jobs.contains(job.id), "job {} is lost", job.id);
        }
        for array in state.arrays.values().filter(|array| !array.is_over()) {
            assert_eq!(loaded.arrays.get(array.id), Some(array));
        }
        assert!(loaded.runs.iter().eq(state.runs.iter()), "runs differ");
        assert_eq!(loaded.nodes.len(), state.nodes.len());
        for node in state.nodes.values() {
            let mut back = loaded.nodes.get(node.id).expect("the node is there").clone();
            back.obeyed = node.obeyed; // the node says it again
            assert!(back.generation >= node.generation, "a node would refuse older orders");
            back.generation = node.generation;
            assert_eq!(&back, node);
        }
        assert_eq!(loaded.usage, state.usage, "what was used is exact");
        assert_eq!(loaded.tokens, state.tokens);
        assert_eq!(loaded.automatic_drains, state.automatic_drains);
        assert_eq!(gcore::ctl::check(&loaded), []);
    }

    fn reader(&self) -> Reader {
        Reader::new(self.store.path())
    }

    fn runs(&self, query: RunQuery) -> Vec<String> {
        let rows = wait(self.reader().runs(query, self.now)).unwrap();
        rows.iter().map(|row| format!("{}#{} {}", row.shown_id, row.attempt, row.state)).collect()
    }
}

fn wait<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn alice() -> Actor {
    Actor { user: "alice".into(), uid: 1000, gid: 1000, ..Actor::default() }
}

fn life() -> NodeLife {
    NodeLife { boot: "b1".into(), spool: "s1".into() }
}

fn spec(gpus: &str) -> JobSpec {
    let mut spec = JobSpec { name: "train".into(), ..JobSpec::default() };
    spec.tags = vec!["paper".into()];
    spec.launch.work_dir = "/home/alice".into();
    spec.request.gpus = (!gpus.is_empty()).then(|| GpuAsk::parse(gpus).unwrap());
    spec
}

fn changed(mut spec: JobSpec, change: impl FnOnce(&mut JobSpec)) -> JobSpec {
    change(&mut spec);
    spec
}

fn array(tasks: &str) -> JobSpec {
    changed(spec("h100:1"), |spec| spec.array = Some(ArraySpec::parse(tasks).unwrap()))
}

fn all() -> RunQuery {
    RunQuery::default()
}

#[test]
fn everything_comes_back_at_every_step_of_a_life() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    world.assert_comes_back();
    let job = world.submit(spec("h100:2"));
    let tasks = world.submit(array("0-9%3"));
    world.assert_comes_back();
    world.start(node, job);
    world.assert_comes_back();
    let hold = Command::Hold { targets: vec![Target::Job(tasks)], reason: "wait".into() };
    world.command(hold);
    world.assert_comes_back();
    world.report(node, NodeReport::Gone);
    world.assert_comes_back();
    world.now = world.now.plus_secs(60);
    world.end(node, job);
    world.assert_comes_back();
    let used: Vec<_> = world.state.usage.rows().map(|(account, user, _)| format!("{account}/{user}")).collect();
    assert_eq!(used, ["default/", "default/alice"]);
    let mut world = world.reopen();
    assert!(world.state.jobs.contains(job), "it ended just before: its client may ask again");
    assert_eq!(world.state.arrays.get(tasks).unwrap().own_live, 3);
    world.now = world.now.plus_secs(HOUR);
    world.submit(spec(""));
    let world = world.reopen();
    assert!(!world.state.jobs.contains(job), "a job that ended long ago stays in the file");
}

#[test]
fn a_client_key_outlives_a_restart_though_its_job_is_over() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let actor = Actor { user: "alice".into(), uid: 1001, gid: 1001, ..Actor::default() };
    let ask = || Input::Command {
        actor: actor.clone(),
        command: Command::Submit { spec: Box::new(spec("h100:1")), client_key: Some("k".into()) },
    };
    world.inputs(vec![ask()], Vec::new());
    let job = world.state.jobs.keys().next().unwrap();
    world.start(node, job);
    world.end(node, job);
    let mut world = world.reopen();
    world.inputs(vec![ask()], Vec::new());
    assert_eq!(world.state.jobs.len(), 1, "the same question made a second job");
}

#[test]
fn a_million_tasks_are_one_row() {
    let mut world = World::new();
    let id = world.submit(array("0-999999"));
    let size = world.store.path().with_extension("db-wal").metadata().unwrap().len();
    assert!(size < 1 << 20, "{size} bytes");
    let next = world.submit(spec(""));
    assert_eq!(next.0, id.0 + 1_000_000);
    world.assert_comes_back();
}

#[test]
fn a_run_that_is_placed_and_gone_in_one_commit_is_in_the_accounting() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let job = world.submit(spec("h100:4"));
    let plan = gsched::plan(&snapshot(&world.state, world.now), gsched::WorkBudget::default());
    let run = RunId::new(job, 1);
    let end = RunEnd { exit: ExitCode::exited(9), started: Some(world.now), ended: Some(world.now), ..RunEnd::default() };
    let clean = NodeReport::Runs { runs: vec![RunReport::new(run, RunPhase::Clean(end))] };
    world.inputs(vec![Input::Plan { plan }, Input::Node { node, report: clean }], Vec::new());
    assert!(world.state.runs.is_empty());
    let rows = wait(world.reader().runs(RunQuery { attempts: true, ..all() }, world.now)).unwrap();
    let row = &rows[0];
    assert_eq!((row.id, row.exit_code, row.gpus.as_str()), (job.0, ExitCode::exited(9), "h100:4"));
    assert_eq!((row.nodelist.as_str(), row.nodes), ("node1", 1));
    world.assert_comes_back();
}

#[test]
fn accounting_finds_jobs_by_user_state_id_and_time() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let first = world.submit(spec("h100:1"));
    world.start(node, first);
    world.now = world.now.plus_secs(HOUR);
    world.end(node, first);
    let tasks = world.submit(array("5-6"));
    world.plan();
    let waiting = world.submit(spec("h100:8"));
    let named = |job: String| RunQuery { job, ..all() };
    assert_eq!(world.runs(all()), ["1#1 FAILED", "2_5#1 RUNNING", "2_6#1 RUNNING"]);
    assert_eq!(world.runs(named(waiting.to_string())), [format!("{waiting}#0 PENDING")]);
    assert_eq!(world.runs(named(tasks.to_string())), ["2_5#1 RUNNING", "2_6#1 RUNNING"]);
    assert_eq!(world.runs(named("2_[6-7],1".into())), ["1#1 FAILED", "2_6#1 RUNNING"]);
    assert_eq!(world.runs(RunQuery { state: "f,pd".into(), ..all() }), ["1#1 FAILED", "4#0 PENDING"]);
    assert_eq!(world.runs(RunQuery { user: "bob".into(), ..all() }), [""; 0]);
    assert_eq!(world.runs(RunQuery { limit: Some(1), user: "alice".into(), ..all() }), ["2_6#1 RUNNING"]);
    let from = |at| RunQuery { from: Some(gmodel::Instant(at)), user: "alice".into(), ..all() };
    assert_eq!(world.runs(from(START.plus_secs(HOUR + 1))), ["2_5#1 RUNNING", "2_6#1 RUNNING"]);
    assert_eq!(world.runs(from(START)).len(), 3);
    let to = RunQuery { to: Some(gmodel::Instant(START.plus_secs(1))), ..all() };
    assert_eq!(world.runs(to), ["1#1 FAILED"]);
    for (query, word) in [(named("x'; DROP TABLE jobs".into()), "is not a job"), (RunQuery { state: "LOST".into(), ..all() }, "States:")] {
        let error = wait(world.reader().runs(query, world.now)).unwrap_err();
        assert!(error.question().unwrap().contains(word), "{error:?}");
    }
}

#[test]
fn tasks_cancelled_untouched_are_one_line_of_accounting() {
    let mut world = World::new();
    let node = world.add_node("node1", 1);
    let tasks = world.submit(array("5-9"));
    world.submit(array("0-3"));
    world.start(node, tasks);
    world.now = world.now.plus_secs(HOUR);
    let shown = |world: &World, query: RunQuery| world.runs(query);
    let cancel = |world: &mut World, indices: &[u32]| {
        let targets = indices.iter().map(|index| Target::Task { array: tasks, index: *index }).collect();
        world.command(Command::Cancel { targets, signal: None });
    };
    cancel(&mut world, &[7, 8]);
    let lines = ["1_5#1 RUNNING", "1_[7-8]#0 CANCELLED"];
    assert_eq!(shown(&world, all()), lines);
    assert_eq!(shown(&world, RunQuery { job: "1".into(), ..all() }), lines);
    for (job, want) in [("1_[6-7]", "1_7#0 CANCELLED"), ("4", "1_8#0 CANCELLED"), ("1_9", ""), ("1_7,4", lines[1])] {
        let want: Vec<&str> = Some(want).filter(|want| !want.is_empty()).into_iter().collect();
        assert_eq!(shown(&world, RunQuery { job: job.into(), ..all() }), want, "{job}");
    }
    assert_eq!(shown(&world, RunQuery { state: "CA".into(), ..all() }), lines[1..]);
    assert_eq!(shown(&world, RunQuery { state: "R".into(), ..all() }), lines[..1]);
    assert_eq!(shown(&world, RunQuery { limit: Some(1), ..all() }), lines[1..]);
    let at = |secs| Some(gmodel::Instant(START.plus_secs(secs)));
    assert_eq!(shown(&world, RunQuery { from: at(HOUR + 1), ..all() }), lines[..1]);
    assert_eq!(shown(&world, RunQuery { from: at(HOUR), user: "alice,bob".into(), name: "train".into(), ..all() }), lines);
    for query in [
        RunQuery { user: "bob".into(), ..all() },
        RunQuery { partition: "night".into(), ..all() },
        RunQuery { qos: "high".into(), ..all() },
        RunQuery { to: at(-1), ..all() },
    ] {
        assert_eq!(shown(&world, query), [""; 0]);
    }
    let row = wait(world.reader().runs(RunQuery { state: "CA".into(), ..all() }, world.now)).unwrap().remove(0);
    assert_eq!((row.id, row.array_id, row.array_tasks.as_deref()), (3, Some(1), Some("7-8")));
    assert_eq!((row.start_time, row.end_time), (None, at(HOUR)));
    // A database of schema 1 had it in its history only.
    let mut world = world;
    let db = Connection::open(world.store.path()).unwrap();
    for column in gpu_use::COLUMNS {
        db.execute_batch(&format!("ALTER TABLE runs DROP COLUMN gpu_{column}")).unwrap();
    }
    db.execute_batch(
        "DROP INDEX runs_unsummed; DROP INDEX runs_repeated; DROP INDEX runs_idle; ALTER TABLE runs DROP COLUMN idle_spells;
         ALTER TABLE runs DROP COLUMN suspended_ms; ALTER TABLE runs DROP COLUMN suspended_since_ms; DROP TABLE usage_sums; DROP TABLE usage_keys; DROP TABLE run_hours; ALTER TABLE runs DROP COLUMN summed;
         DROP TABLE policy; DROP TABLE usage; ALTER TABLE runs DROP COLUMN class; ALTER TABLE runs DROP COLUMN lost_gpu_secs;
         DROP TABLE gpu_history; DROP TABLE gpu_checks; DROP TABLE forecasts; ALTER TABLE jobs DROP COLUMN script; ALTER TABLE arrays DROP COLUMN script; DROP INDEX arrays_cancelled; ALTER TABLE arrays DROP COLUMN cancelled_ms; PRAGMA user_version = 1",
    )
    .unwrap();
    drop(db);
    world = world.reopen();
    assert_eq!(shown(&world, RunQuery { from: at(HOUR), ..all() }), lines);
    // More of them, later.
    world.now = world.now.plus_secs(60);
    cancel(&mut world, &[9]);
    let world = world.reopen();
    assert_eq!(shown(&world, RunQuery { from: at(HOUR + 60), state: "CA".into(), ..all() }), ["1_[7-9]#0 CANCELLED"]);
}

#[test]
fn accounting_finds_jobs_by_node_and_quality_of_service() {
    let mut world = World::new();
    let nodes = [world.add_node("node1", 1), world.add_node("node2", 1)];
    let first = world.submit(changed(spec("h100:1"), |spec| spec.qos = "high".into()));
    let second = world.submit(spec("h100:1"));
    world.plan();
    let on = |job| world.state.runs.get(RunId::new(job, 1)).unwrap().allocation[0].node;
    let name = |job| if on(job) == nodes[0] { "node1" } else { "node2" };
    let (one, other) = (name(first).to_owned(), name(second).to_owned());
    assert_ne!(one, other);
    let by_node = |nodelist: &str| world.runs(RunQuery { nodelist: nodelist.into(), ..all() });
    assert_eq!(by_node(&one), ["1#1 RUNNING"]);
    assert_eq!(by_node("node[1-9]"), ["1#1 RUNNING", "2#1 RUNNING"]);
    assert_eq!(by_node("node3"), [""; 0]);
    let limited = RunQuery { nodelist: one.clone(), limit: Some(1), attempts: true, ..all() };
    assert_eq!(world.runs(limited), ["1#1 RUNNING"], "the limit counts what is on the node");
    assert_eq!(world.runs(RunQuery { qos: "high,low".into(), ..all() }), ["1#1 RUNNING"]);
    let error = wait(world.reader().runs(RunQuery { nodelist: "node[".into(), ..all() }, world.now)).unwrap_err();
    assert!(error.question().is_some(), "{error:?}");
}

#[test]
fn the_last_run_of_an_arrays_first_task_is_its_own() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let tasks = world.submit(array("0-1"));
    world.start(node, tasks);
    let run = wait(world.reader().last_run(tasks, world.now)).unwrap().unwrap();
    assert_eq!(run.shown_id, "1_0");
}

#[test]
fn a_finished_job_is_found_by_id_with_its_request_and_history() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let job = world.submit(spec("h100:1"));
    world.start(node, job);
    world.end(node, job);
    world.now = world.now.plus_secs(120);
    world.input(Input::Wake);
    assert!(!world.state.jobs.contains(job), "forgotten");
    match wait(world.reader().job(job)).unwrap() {
        Some(StoredJob::Job(found)) => {
            assert_eq!((found.state, found.spec.name.as_str()), (JobState::Failed, "train"));
            assert_eq!(found.spec.user.name, "alice");
        }
        other => panic!("{other:?}"),
    }
    let history = wait(world.reader().history(job)).unwrap();
    let kinds: Vec<&str> = history.iter().map(|line| line.kind.as_str()).collect();
    assert_eq!(kinds[..3], ["job_submitted", "run_placed", "run_go"]);
    assert!(kinds.contains(&"run_ended") && history.iter().any(|line| line.node == Some(node)), "{kinds:?}");
    assert_eq!(wait(world.reader().job(JobId(999))).unwrap(), None);
}

#[test]
fn tasks_are_found_with_and_without_a_record_of_their_own() {
    let mut world = World::new();
    let node = world.add_node("node1", 1);
    let tasks = world.submit(array("10-12"));
    world.start(node, tasks);
    let own = wait(world.reader().task(tasks, 10)).unwrap().unwrap();
    assert!(matches!(own, StoredJob::Job(job) if job.task.unwrap().index == 10));
    let shared = wait(world.reader().task(tasks, 12)).unwrap().unwrap();
    assert!(matches!(shared, StoredJob::Array(array) if array.id == tasks));
    assert_eq!(wait(world.reader().task(tasks, 13)).unwrap(), None);
}

#[test]
fn an_updated_array_leaves_the_requests_of_its_started_tasks() {
    let mut world = World::new();
    let node = world.add_node("node1", 1);
    let tasks = world.submit(array("0-3"));
    world.start(node, tasks);
    let change = gcore::ctl::JobChange { name: Some("second".into()), ..Default::default() };
    world.command(Command::Update { target: Target::Job(tasks), change });
    world.assert_comes_back();
    let first = wait(world.reader().task(tasks, 0)).unwrap().unwrap();
    let name = match first {
        StoredJob::Job(job) => job.spec.name.clone(),
        StoredJob::Array(array) => panic!("{array:?}"),
    };
    assert_eq!(name, world.state.jobs.get(tasks).unwrap().spec.name);
}

#[test]
fn a_report_counts_the_part_of_each_run_in_the_period() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let long = world.submit(spec("h100:4"));
    world.start(node, long);
    let short = world.submit(changed(spec(""), |spec| spec.tags.clear()));
    world.start(node, short);
    let cpus = |world: &World, job| f64::from(world.state.runs.get(RunId::new(job, 1)).unwrap().allocation[0].cpus);
    let (long_cpus, short_cpus) = (cpus(&world, long), cpus(&world, short));
    world.now = world.now.plus_secs(HOUR);
    world.end(node, short);
    world.now = world.now.plus_secs(HOUR);
    let report = |by: &[&str], from: i64, to: i64| {
        let by = by.iter().map(|word| (*word).to_owned()).collect();
        let none = BTreeMap::new();
        wait(world.reader().report(by, START.plus_secs(from), START.plus_secs(to), world.now, none)).unwrap()
    };
    let rows = report(&["user"], 0, 10 * HOUR);
    assert_eq!((rows.len(), rows[0].jobs, rows[0].gpu_hours), (1, 2, 8.0));
    assert_eq!(rows[0].cpu_hours, 2.0 * long_cpus + short_cpus);
    let rows = report(&["gpu-type"], HOUR / 2, HOUR + HOUR / 2);
    assert_eq!((rows[1].group[0].as_str(), rows[1].gpu_hours, rows[1].cpu_hours), ("h100", 4.0, long_cpus));
    assert_eq!((rows[0].group[0].as_str(), rows[0].gpu_hours, rows[0].cpu_hours), ("", 0.0, short_cpus / 2.0));
    let rows = report(&["account", "tag"], 0, HOUR);
    assert_eq!(rows[1].group, ["default", "paper"]);
    assert!(report(&["user"], -2 * HOUR, -HOUR).is_empty());
    assert_eq!(report(&["class"], 0, HOUR)[0].group, [""], "there are no quotas");
    let error = wait(world.reader().report(vec!["colour".into()], START, START, START, BTreeMap::new())).unwrap_err();
    assert!(error.question().unwrap().contains("account,user,partition,gpu-type,tag"));

    // Nothing before the first price; 2.00 in the second half hour, 3.00 from then on.
    let price = |secs: i64, per_gpu_hour_milli: u64| gmodel::policy::Price { from: START.plus_secs(secs), per_gpu_hour_milli };
    let prices = BTreeMap::from([("h100".to_owned(), vec![price(HOUR / 2, 2000), price(HOUR, 3000)])]);
    let priced = |by: &str| {
        let reader = world.reader();
        let rows = reader.report(vec![by.into()], START, START.plus_secs(2 * HOUR), world.now, prices.clone());
        wait(rows).unwrap().iter().map(|row| row.cost.unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(priced("user"), [4.0 * (0.5 * 2.0 + 3.0)]);
    assert_eq!(priced("gpu-type"), [0.0, 16.0]);
}

#[test]
fn scripts_go_when_their_time_is_over_and_not_while_a_job_needs_them() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let blob = |text: &str| {
        use sha2::{Digest, Sha256};
        Blob { sha: Sha256::digest(text).into(), data: text.into() }
    };
    let (of_done, of_waiting) = (blob("#!/bin/sh\n# done"), blob("#!/bin/sh\n# waiting"));
    let with = |script: &Blob, gpus: &str| {
        let mut spec = spec(gpus);
        spec.launch.script = script.id();
        let command = Command::Submit { spec: Box::new(spec), client_key: None };
        Input::Command { actor: alice(), command }
    };
    world.inputs(
        vec![with(&of_done, "h100:8"), with(&of_waiting, "h100:8")],
        vec![of_done.clone(), of_waiting.clone()],
    );
    let done = JobId(1);
    world.start(node, done);
    let read = |world: &World, blob: &Blob| wait(world.reader().blob(blob.id())).unwrap();
    assert_eq!(read(&world, &of_done), Some(of_done.data.clone()));
    world.now = world.now.plus_secs(40 * 24 * HOUR);
    world.end(node, done);
    // 40 days after the submission and on the day of the end: kept.
    maintenance::prune(world.store.path(), world.now, 30).unwrap();
    assert!(read(&world, &of_done).is_some());
    maintenance::prune(world.store.path(), world.now.plus_secs(31 * 24 * HOUR), 30).unwrap();
    assert_eq!(read(&world, &of_done), None);
    assert!(read(&world, &of_waiting).is_some(), "its job still waits");
    assert_eq!(read(&world, &Blob { sha: [0; 32], data: Vec::new() }), None);
}

#[test]
fn one_state_directory_has_one_controller() {
    let world = World::new();
    let error = Store::open(world.dir.path(), "test").unwrap_err().to_string();
    assert!(error.contains("another gpuctld has"), "{error}");
    world.reopen();
}

#[test]
fn a_newer_database_is_refused_and_not_touched() {
    let world = World::new();
    let path = world.store.path().to_owned();
    world.store.close().unwrap();
    let db = Connection::open(&path).unwrap();
    db.pragma_update(None, "user_version", SCHEMA + 1).unwrap();
    db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(db);
    let look = || {
        let mut files: Vec<_> = std::fs::read_dir(world.dir.path())
            .unwrap()
            .map(|entry| {
                let path = entry.unwrap().path();
                (path.clone(), std::fs::read(path).unwrap())
            })
            .collect();
        files.sort();
        files
    };
    let before = look();
    let error = Store::open(world.dir.path(), "test").unwrap_err().to_string();
    assert!(error.contains("from a newer release") && error.contains("Nothing was changed"), "{error}");
    assert!(before == look(), "a file was changed or made");
}

#[test]
fn a_damaged_database_points_to_the_backup() {
    let mut world = World::new();
    for _ in 0..300 {
        world.submit(spec("h100:1"));
    }
    let path = world.store.path().to_owned();
    world.store.close().unwrap();
    let whole = std::fs::read(&path).unwrap();
    let mut damages = vec![b"this is no database at all, but it is longer than a header of SQLite would be, which has 100 bytes".to_vec()];
    let mut torn = whole.clone();
    torn[4096..].fill(0xa5);
    damages.push(torn);
    for bytes in damages {
        std::fs::write(&path, bytes).unwrap();
        let error = Store::open(world.dir.path(), "test").unwrap_err().to_string();
        assert!(error.contains("is damaged") && error.contains("gpuctld restore --from"), "{error}");
        for end in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{end}", path.display()));
        }
    }
    std::fs::write(&path, whole).unwrap();
    Store::open(world.dir.path(), "test").unwrap();
}

#[test]
fn another_programs_database_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(DATABASE);
    let db = Connection::open(&path).unwrap();
    db.execute_batch("CREATE TABLE recipes (name TEXT)").unwrap();
    drop(db);
    let before = std::fs::read(&path).unwrap();
    let error = Store::open(dir.path(), "test").unwrap_err().to_string();
    assert!(error.contains("another program"), "{error}");
    assert_eq!(before, std::fs::read(&path).unwrap());
}

#[test]
fn a_restored_backup_gives_no_id_and_no_incarnation_twice() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let kept = world.submit(spec("h100:1"));
    let copies = tempfile::tempdir().unwrap();
    let file = copies.path().join("backup.db");
    backup(world.store.path(), &file).unwrap();
    assert!(matches!(backup(world.store.path(), &file), Err(BackupError::Exists(_))));
    let later = world.submit(spec("h100:1"));
    let dir = world.dir.path().to_owned();
    assert!(restore(&dir, &file, "test").unwrap_err().to_string().contains("another gpuctld has"));
    world.store.close().unwrap();
    let mut incarnations = vec![world.state.incarnation];
    for _ in 0..2 {
        let former = restore(&dir, &file, "test").unwrap().unwrap();
        assert!(former.exists());
        let (store, state) = Store::open(&dir, "test").unwrap();
        assert!(state.jobs.contains(kept) && !state.jobs.contains(later) && state.nodes.contains(node));
        assert!(state.next_job > later.0 + 900_000, "next id {}", state.next_job);
        incarnations.push(state.incarnation);
        store.close().unwrap();
    }
    assert!(incarnations.is_sorted_by(|a, b| a < b), "{incarnations:?}");
}

#[test]
fn a_database_that_was_there_is_never_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    drop(Store::open(dir.path(), "test").unwrap());
    drop(crate::pki::Pki::open(dir.path(), "test").unwrap());
    drop(Store::open(dir.path(), "test").expect("it is there"));
    let path = dir.path().join(open::DATABASE);
    std::fs::write(&path, "").unwrap();
    let emptied = Store::open(dir.path(), "test").unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    let gone = Store::open(dir.path(), "test").unwrap_err().to_string();
    for error in [emptied, gone] {
        assert!(error.contains("gone or empty") && error.contains("gpuctld restore --from"), "{error}");
    }
    assert!(!path.exists(), "nothing was made");
}

#[test]
fn a_damaged_backup_is_not_restored() {
    let mut world = World::new();
    for _ in 0..300 {
        world.submit(spec(""));
    }
    let copies = tempfile::tempdir().unwrap();
    let file = copies.path().join("backup.db");
    backup(world.store.path(), &file).unwrap();
    world.store.close().unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..].fill(0x5a);
    std::fs::write(&file, bytes).unwrap();
    let error = restore(world.dir.path(), &file, "test").unwrap_err().to_string();
    assert!(error.contains("is damaged"), "{error}");
    let (_store, state) = Store::open(world.dir.path(), "test").unwrap();
    assert_eq!(state.jobs.len(), 300, "the database is as it was");
}

/// Runs as rows of their own, for what no simulated cluster makes in a moment: attempts, price changes, long spans.
fn insert_run(db: &Connection, job: u64, attempt: u32, start: i64, secs: Option<i64>, kind: u64) {
    let account = ["lab", "physics"][kind as usize % 2];
    let gpus = [r#"{"h100":2000}"#, r#"{"a100":1000,"h100":500}"#, "{}"][kind as usize % 3];
    let tags = ["[]", r#"["paper","paper"]"#, r#"["paper","sweep"]"#][kind as usize % 3];
    db.execute(
        "INSERT INTO runs (job, attempt, live, user, account, partition, qos, name, tags, state, placed_ms, start_ms, end_ms, cpus,
            mem_bytes, gpus, nodes, nodelist, exit, end_text, cpu_micros, peak_bytes, class, gpu_idle_ms, gpu_busy_percent_ms,
            gpu_busy_told_ms, gpu_energy_mj)
         VALUES (?1,?2,?3,?4,?5,'main','','train',?6,'COMPLETED',?7,?7,?8,?9,?10,?11,1,'n','0:0','',?12,?13,?14,?15,?16,?17,?18)",
        rusqlite::params![
            job, attempt, secs.is_none(), if kind.is_multiple_of(5) { "ada" } else { "bob" }, account, tags, start,
            secs.map(|secs| start + secs * 1000), 1 + kind, kind << 28, gpus, kind * 1_000_003, kind << 27,
            kind.is_multiple_of(4).then_some("borrowed"), kind.is_multiple_of(2).then_some(kind * 997), kind * 10_007, kind * 997, kind * 123_457,
        ],
    )
    .unwrap();
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(24))]
    /// Sums, edges and runs that are not in the sums yet give what the runs themselves give, to the last bit.
    #[test]
    fn a_report_from_sums_is_that_of_the_runs(
        runs in proptest::collection::vec((0i64..40 * 24 * 60, 0i64..5000, 0u64..12, 1u32..4, 0u8..20), 1..40),
        (from, length) in (0i64..42 * 24 * 60, 1i64..42 * 24 * 60),
        aligned in proptest::bool::ANY,
        left in 0u32..10,
    ) {
        use gmodel::policy::Price;
        let world = World::new();
        let db = Connection::open(world.store.path()).unwrap();
        let begin = START.0 - START.0.rem_euclid(1000);
        for (job, (start, minutes, kind, attempts, open)) in (1u64..).zip(runs) {
            for attempt in 1..=attempts {
                let start = begin + (start + i64::from(attempt) * (minutes + 7)) * 60_000 + i64::from(attempt) * 137;
                let secs = (open > 0 || attempt < attempts).then_some(minutes * 60 + i64::from(attempt) - 1);
                insert_run(&db, job, attempt, start, secs, kind + u64::from(attempt) / 3);
            }
        }
        let mut from = begin + from * 60_000 + 11;
        let mut to = from + length * 60_000;
        if aligned {
            (from, to) = (from - from.rem_euclid(3_600_000), to - to.rem_euclid(3_600_000) + 3_600_000);
        }
        let price = |days: i64, per_gpu_hour_milli| Price { from: Timestamp(begin + days * 86_400_000 + 1_234_567), per_gpu_hour_milli };
        let prices = std::collections::BTreeMap::from([("h100".to_owned(), vec![price(-9, 2500), price(7, 3000), price(20, 1999)])]);
        let now = Timestamp(begin + 60 * 86_400_000);
        let report = |by: &[&str]| {
            let by = by.iter().map(|word| (*word).to_owned()).collect();
            wait(world.reader().report(by, Timestamp(from), Timestamp(to), now, prices.clone())).unwrap()
        };
        let all = || {
            let by: [&[&str]; 4] = [&["account", "user"], &["gpu-type"], &["tag", "class"], &["partition"]];
            serde_json::to_string(&by.map(report)).unwrap()
        };
        let from_runs = all();
        while usage_sums::count_older(&db, 7).unwrap() == 7 && left > 3 {}
        let from_both = all();
        while usage_sums::count_older(&db, 7).unwrap() > 0 {}
        let from_sums = all();
        proptest::prop_assert_eq!(&from_runs, &from_both);
        proptest::prop_assert_eq!(&from_runs, &from_sums);
    }
}

#[test]
fn what_a_run_made_of_its_gpus_is_in_its_row_and_in_reports() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let job = world.submit(spec("h100:2"));
    world.start(node, job);
    world.now = world.now.plus_secs(HOUR);
    let gpu = gmodel::gpu_use::GpuUseTotals {
        sampled_ms: 7_200_000,
        idle_ms: 3_600_000,
        busy_percent_ms: 270_000_000,
        busy_told_ms: 7_200_000,
        memory_peak_bytes: 40 << 30,
        power_peak_mw: 612_500,
        energy_mj: 1_800_000_000,
        ..Default::default()
    };
    let end = RunEnd {
        started: Some(world.now.plus_secs(-HOUR)),
        ended: Some(world.now),
        usage: Usage { cpu_user_micros: 1_800_000_000, peak_memory_bytes: 1 << 30, gpu, ..Usage::default() },
        ..RunEnd::default()
    };
    let idle = gmodel::idle::IdleReport { run: RunId::new(job, 1), watched_secs: 3000, idle_secs: vec![1800, 600] };
    world.report(node, NodeReport::Idle { runs: vec![idle] });
    world.phase(node, job, RunPhase::Clean(end));
    let run = wait(world.reader().idle_runs(START, world.now)).unwrap().remove(0);
    let spells: Vec<_> = run.spells.iter().map(|spell| (spell.percent, spell.from_secs, spell.secs)).collect();
    assert_eq!((run.run.job, run.gpus_milli, spells), (job, 2000, vec![(50, 1200, 1800), (100, 2400, 600)]));
    assert_eq!(wait(world.reader().idle_runs(START, world.now.plus_secs(-1))).unwrap(), []);
    let row = wait(world.reader().runs(all(), world.now)).unwrap().remove(0);
    let used = row.gpu_use.unwrap();
    assert_eq!((used.busy_percent, used.idle_secs, used.energy_joules), (Some(37.5), 3600, 1_800_000));
    assert_eq!((used.memory_peak_bytes, used.power_peak_watts, used.sampled_secs), (40 << 30, 612.5, 7200));
    let report = |world: &World| {
        let (from, to) = (START.plus_secs(-HOUR), world.now.plus_secs(HOUR));
        wait(world.reader().report(vec!["user".into()], from, to, to, Default::default())).unwrap().remove(0)
    };
    let row = report(&world);
    assert_eq!((row.jobs, row.gpu_hours, row.gpu_busy_hours, row.gpu_idle_hours), (1, 2.0, 0.75, 1.0));
    assert_eq!((row.gpu_percent, row.energy_kwh, row.cpu_used_hours), (Some(37.5), 0.5, 0.5));
    // The row is written again with the end of the run: it is counted once.
    let world = world.reopen();
    let again = report(&world);
    assert_eq!((again.jobs, again.gpu_hours, again.energy_kwh), (1, 2.0, 0.5));
    let db = Connection::open(world.store.path()).unwrap();
    let begun: i64 = db.query_row("SELECT sum(begun) FROM usage_sums WHERE span = 1", [], |row| row.get(0)).unwrap();
    assert_eq!(begun, 1);
}

#[test]
fn the_time_in_which_a_run_stood_still_is_charged_to_nobody() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let (resumed, ended) = (world.submit(spec("h100:2")), world.submit(spec("h100:2")));
    [resumed, ended].into_iter().for_each(|job| world.start(node, job));
    let root = |world: &mut World, command| {
        world.input(Input::Command { actor: Actor { user: "root".into(), operator: true, ..Actor::default() }, command });
    };
    let later = |world: &mut World| world.now = world.now.plus_secs(HOUR);
    // What the listing says of both, and the GPU-hours of the report.
    let told = |world: &World| {
        let rows = wait(world.reader().runs(all(), world.now)).unwrap();
        let secs: Vec<_> = rows.iter().map(|row| (row.elapsed_secs / HOUR, row.suspended_secs / HOUR)).collect();
        let reader = world.reader();
        let report = reader.report(vec!["user".into()], START, world.now, world.now, Default::default());
        (secs, wait(report).unwrap()[0].gpu_hours)
    };
    later(&mut world);
    root(&mut world, Command::Suspend { targets: vec![Target::Job(resumed), Target::Job(ended)] });
    later(&mut world);
    later(&mut world);
    assert_eq!(told(&world), (vec![(1, 2), (1, 2)], 4.0), "while they stand still");
    world.assert_comes_back();
    root(&mut world, Command::Resume { targets: vec![Target::Job(resumed)] });
    later(&mut world);
    assert_eq!(told(&world), (vec![(2, 2), (1, 3)], 6.0), "one goes on");
    for job in [resumed, ended] {
        let end = RunEnd { started: Some(START), ended: Some(world.now), ..RunEnd::default() };
        world.phase(node, job, RunPhase::Clean(end));
    }
    assert_eq!(told(&world), (vec![(2, 2), (1, 3)], 6.0), "they are over");
    let mut world = world.reopen();
    later(&mut world);
    assert_eq!(told(&world), (vec![(2, 2), (1, 3)], 6.0), "and stay as they were");
}

#[test]
fn jobs_that_differ_in_name_and_script_share_the_row_of_their_request() {
    let mut world = World::new();
    let named = |name: &str| changed(spec("h100:1"), |spec| spec.name = name.into());
    let jobs: Vec<JobId> = ["one", "two", "three"].map(|name| world.submit(named(name))).to_vec();
    let db = Connection::open(world.store.path()).unwrap();
    let rows: u32 = db.query_row("SELECT count(*) FROM specs", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 1);
    world.assert_comes_back();
    let world = world.reopen();
    let specs: Vec<_> = jobs.iter().map(|job| world.state.jobs.get(*job).unwrap().spec.clone()).collect();
    assert_eq!(specs.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>(), ["one", "two", "three"]);
    assert!(specs[0].common.is_same(&specs[2].common) && specs[0].launch.around.is_same(&specs[1].launch.around));
}

/// Where the databases of released schemas are kept, one each: `schema-N.db`.
const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");

/// A database with one of everything.
fn write_fixture(path: &Path) {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let done = world.submit(spec("h100:1"));
    world.start(node, done);
    world.end(node, done);
    let running = world.submit(spec("h100:2"));
    world.start(node, running);
    world.submit(array("0-99%5"));
    world.command(Command::Hold { targets: vec![Target::Job(JobId(3))], reason: "wait".into() });
    world.plan();
    let db = Connection::open(world.store.path()).unwrap();
    db.execute("VACUUM INTO ?1", [path.to_str().unwrap()]).unwrap();
}

#[test]
fn databases_of_every_released_schema_are_read() {
    let newest = Path::new(FIXTURES).join(format!("schema-{SCHEMA}.db"));
    if !newest.exists() {
        write_fixture(&newest);
        panic!("{} was not there and has been written: commit it", newest.display());
    }
    for schema in 1..=SCHEMA {
        let dir = tempfile::tempdir().unwrap();
        let fixture = Path::new(FIXTURES).join(format!("schema-{schema}.db"));
        std::fs::copy(&fixture, dir.path().join(DATABASE)).unwrap();
        let (store, state) = Store::open(dir.path(), "test").unwrap();
        assert_eq!(gcore::ctl::check(&state), [], "{}", fixture.display());
        assert_eq!(state.jobs.get(JobId(2)).unwrap().state, JobState::Running);
        assert_eq!(state.jobs.get(JobId(2)).unwrap().spec.user.name, "alice");
        assert_eq!(state.arrays.get(JobId(3)).unwrap().holds.len(), 1);
        assert_eq!((state.runs.len(), state.nodes.len(), state.next_job), (1, 1, 103));
        assert_eq!(state.nodes.values().next().unwrap().gpus.len(), 8);
        let reader = Reader::new(store.path());
        let rows = wait(reader.runs(all(), START)).unwrap();
        assert_eq!((rows[0].id, rows[0].state, rows[0].exit_code), (1, JobState::Failed, ExitCode::exited(3)));
        assert_eq!((rows[0].gpus.as_str(), rows[0].nodelist.as_str()), ("h100:1", "node1"));
    }
}

#[tokio::test]
async fn what_checks_of_a_gpu_found_comes_back_in_its_history_and_only_the_newest_is_kept() {
    let mut world = World::new();
    let terms = Diagnostics { idle_after_secs: 0, every_secs: 1, ..Diagnostics::default() };
    let config = ClusterConfig { diagnostics: Some(terms), ..(*world.state.config).clone() };
    world.input(Input::Configure { config: Arc::new(config) });
    let node = world.add_node("node1", 1);
    for round in 0..500 {
        world.now = world.now.plus_secs(60);
        world.input(Input::Wake);
        let order = gcore::ctl::desired(&world.state, node).gpus.remove(0);
        let result = CheckResult { check: "pcie".into(), value_micro: Some(round * 1_000_000), unit: "GB/s".into(), ..CheckResult::default() };
        let report = CheckReport { results: vec![result], took_ms: 1500, ..CheckReport::default() };
        let done = GpuOrderDone { check: Some(Box::new(report)), ..GpuOrderDone::new(&order, "") };
        world.report(node, NodeReport::GpuOrders { done: vec![done] });
    }
    world.assert_comes_back();
    let lines = world.reader().gpu_history("GPU-node1".into()).await.unwrap();
    let checked: Vec<&str> = lines.iter().filter(|line| line.kind == "checked").map(|line| line.text.as_str()).collect();
    assert_eq!((checked.len(), checked[0], checked[399]), (400, "pcie 100 GB/s; in 1.5 s", "pcie 499 GB/s; in 1.5 s"));
    assert_eq!(lines[0].kind, "appeared");
}
