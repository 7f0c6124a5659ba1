//! The store against the real core: what is written comes back, whatever happened in between.

mod accounting;
mod files;
mod lives;
mod past_jobs;
mod retention;
mod usage;

use super::backup::BackupError;
use super::open::SCHEMA;
use super::reader::{Reader, StoredJob};
use super::*;
use gcore::ctl::state::JoinToken;
use gcore::ctl::{Actor, Command, Input, NodeReport, Reply, Target, handle, snapshot};
use gmodel::array_spec::ArraySpec;
use gmodel::config::{ClusterConfig, Partition};
use gmodel::gpu_check::{CheckReport, CheckResult, Diagnostics};
use gmodel::gpu_order::GpuOrderDone;
use gmodel::gpu_request::GpuRequest;
use gmodel::job::{JobSpec, JobState};
use gmodel::node::{GpuInfo, Inventory, Role};
use gmodel::run::{EndCause, RunEnd, RunPhase, RunReport, Usage};
use gmodel::{ExitCode, Fence, JobId, NodeId, NodeLife, RunId, Timestamp};
use gwire::api::RunQuery;
use rusqlite::Connection;
use std::collections::BTreeMap;
use std::sync::Arc;

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const HOUR: i64 = 3600;
const KEEP: super::retention::RetentionDays = super::retention::RetentionDays {
    scripts: 30,
    jobs: 365,
};

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
        let (store, state) = Store::open_or_make(dir.path()).unwrap();
        let mut world = Self {
            dir,
            store,
            state,
            now: START,
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
        world.input(Input::Configure {
            config: Arc::new(config),
        });
        world.input(Input::Started);
        world
    }

    fn input(&mut self, input: Input) -> Reply {
        self.inputs(vec![input], Vec::new()).pop().unwrap()
    }

    /// Several inputs in one commit.
    fn inputs(&mut self, inputs: Vec<Input>, blobs: Vec<Blob>) -> Vec<Reply> {
        let mut batch = Batch {
            blobs,
            now: self.now,
            ..Batch::default()
        };
        let replies = inputs
            .into_iter()
            .map(|input| handle(&mut self.state, &mut batch.events, input, self.now).unwrap())
            .collect();
        self.store.write(&self.state, &batch).unwrap();
        replies
    }

    fn command(&mut self, command: Command) -> Reply {
        self.input(Input::Command {
            actor: alice(),
            command,
        })
    }

    fn submit(&mut self, spec: JobSpec) -> JobId {
        match self.command(Command::Submit {
            spec: Box::new(spec),
            client_key: None,
        }) {
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
        let actor = Actor {
            user: "root".into(),
            operator: true,
            ..Actor::default()
        };
        self.input(Input::Command {
            actor,
            command: Command::MintToken { token },
        });
        let reply = self.command(Command::Join {
            token_hash: hash,
            name: name.into(),
        });
        let Reply::Joined { node, .. } = reply else {
            panic!("{reply:?}")
        };
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
        self.report(
            node,
            NodeReport::Hello {
                life: life(),
                fence: Fence::default(),
                inventory,
                runs: Vec::new(),
            },
        );
        node
    }

    fn report(&mut self, node: NodeId, report: NodeReport) {
        self.input(Input::Node { node, report });
    }

    fn plan(&mut self) {
        let plan = gsched::plan(
            &snapshot(&self.state, self.now),
            gsched::WorkBudget::default(),
        );
        self.input(Input::Plan { plan });
    }

    fn phase(&mut self, node: NodeId, job: JobId, phase: RunPhase) {
        let run = self
            .state
            .jobs
            .get(job)
            .and_then(|job| job.live_run())
            .expect("it runs");
        self.report(
            node,
            NodeReport::Runs {
                runs: vec![RunReport::new(run, phase)],
            },
        );
    }

    fn start(&mut self, node: NodeId, job: JobId) {
        self.plan();
        let started = self.now;
        self.phase(node, job, RunPhase::Running { started });
    }

    fn end(&mut self, node: NodeId, job: JobId) {
        let run = self
            .state
            .jobs
            .get(job)
            .and_then(|job| self.state.runs.get(job.live_run()?));
        let end = RunEnd {
            cause: EndCause::Exited,
            exit: ExitCode::exited(3),
            started: Some(run.and_then(|run| run.started).unwrap_or(self.now)),
            ended: Some(self.now),
            usage: Usage {
                cpu_user_micros: 7_000_000,
                peak_memory_bytes: 1 << 30,
                ..Usage::default()
            },
            ..RunEnd::default()
        };
        self.phase(node, job, RunPhase::Clean(end.into()));
    }

    fn reopen(self) -> Self {
        let Self {
            dir,
            store,
            now,
            state,
        } = self;
        store.close().unwrap();
        let config = state.config.clone();
        let (store, mut state) = Store::open_or_make(dir.path()).unwrap();
        state.config = config;
        Self {
            dir,
            store,
            state,
            now,
        }
    }

    /// The state as a controller finds it that is started now.
    fn assert_comes_back(&self) {
        let copy = tempfile::tempdir().unwrap();
        backup(self.store.path(), &copy.path().join(DATABASE)).unwrap();
        let (_store, loaded) = Store::open_or_make(copy.path()).unwrap();
        let state = &self.state;
        assert_eq!(loaded.tokens.users, state.tokens.users);
        assert_eq!(
            (loaded.seq, loaded.next_job, loaded.next_node),
            (state.seq, state.next_job, state.next_node)
        );
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
            let mut back = loaded
                .nodes
                .get(node.id)
                .expect("the node is there")
                .clone();
            back.obeyed = node.obeyed; // the node says it again
            assert!(
                back.generation >= node.generation,
                "a node would refuse older orders"
            );
            back.generation = node.generation;
            assert_eq!(&back, node);
        }
        assert_eq!(loaded.usage, state.usage, "what was used is exact");
        assert_eq!(loaded.tokens.joins, state.tokens.joins);
        assert_eq!(loaded.automatic.drains, state.automatic.drains);
        assert_eq!(gcore::ctl::check(&loaded), []);
    }

    fn reader(&self) -> Reader {
        Reader::new(self.store.path())
    }

    fn runs(&self, query: RunQuery) -> Vec<String> {
        let rows = wait(self.reader().runs(query, self.now)).unwrap();
        rows.iter()
            .map(|row| format!("{}#{} {}", row.shown_id, row.attempt, row.state))
            .collect()
    }
}

fn wait<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(future)
}

fn alice() -> Actor {
    Actor {
        user: "alice".into(),
        uid: 1000,
        gid: 1000,
        ..Actor::default()
    }
}

fn life() -> NodeLife {
    NodeLife {
        boot: "b1".into(),
        spool: "s1".into(),
    }
}

fn spec(gpus: &str) -> JobSpec {
    let mut spec = JobSpec {
        name: "train".into(),
        ..JobSpec::default()
    };
    spec.tags = vec!["paper".into()];
    spec.launch.work_dir = "/home/alice".into();
    spec.request.gpus = (!gpus.is_empty()).then(|| GpuRequest::parse(gpus).unwrap());
    spec
}

fn changed(mut spec: JobSpec, change: impl FnOnce(&mut JobSpec)) -> JobSpec {
    change(&mut spec);
    spec
}

fn array(tasks: &str) -> JobSpec {
    changed(spec("h100:1"), |spec| {
        spec.array = Some(ArraySpec::parse(tasks).unwrap())
    })
}

fn all() -> RunQuery {
    RunQuery::default()
}
