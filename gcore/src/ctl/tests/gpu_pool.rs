//! Nodes with GPUs and a controller, fed by hand: what the nodes report, jobs of one user, orders of an operator.

use crate::ctl::command::{Actor, Command, Input, NodeReport, Refusal, Reply};
use crate::ctl::event::Event;
use crate::ctl::state::{Node, State};
use crate::ctl::{check, handle, next_deadline, snapshot};
use gmodel::config::ClusterConfig;
use gmodel::gpu_order::GpuAction;
use gmodel::gpu_request::GpuRequest;
use gmodel::mig::MigBoard;
use gmodel::node::{GpuInfo, Inventory};
use gmodel::run::{RunEnd, RunPhase, RunReport};
use gmodel::{Fence, JobSpec, NodeId, NodeLife, RunId, Timestamp};
use gsched::WorkBudget;
use std::sync::Arc;

pub(in crate::ctl) struct GpuPool {
    pub state: State,
    pub now: Timestamp,
    pub events: Vec<Event>,
    /// What each node reports, the first node's GPUs first.
    pub nodes: Vec<Vec<GpuInfo>>,
    /// Boards that MIG can cut.
    pub mig: Arc<Vec<MigBoard>>,
    /// The invariants are checked after each input, or in a long story after one in so many.
    pub check_one_in: u32,
    inputs: u32,
}

/// `GPU-1-0`, the first of node 1.
pub(in crate::ctl) fn h100s(node: u32, gpus: u32) -> Vec<GpuInfo> {
    let gpu = |index: u32| GpuInfo {
        uuid: format!("GPU-{node}-{index}"),
        gpu_type: "h100".into(),
        index,
        ..GpuInfo::default()
    };
    (0..gpus).map(gpu).collect()
}

impl GpuPool {
    /// Nodes `n1`, `n2`, that have said hello.
    pub fn new(config: ClusterConfig, nodes: Vec<Vec<GpuInfo>>, mig: Vec<MigBoard>) -> Self {
        let mut state = State {
            next_job: 1,
            config: Arc::new(config),
            ..State::default()
        };
        let width = nodes.len().to_string().len();
        for id in (1..=nodes.len() as u32).map(NodeId) {
            let name = format!("n{:0width$}", id.0);
            state.index.node_names.insert(name.clone(), id);
            let node = Node {
                id,
                name,
                ..Node::default()
            };
            state.nodes.insert(id, node);
        }
        let mut pool = Self {
            state,
            now: Timestamp::from_secs(1_000_000),
            events: Vec::new(),
            nodes,
            mig: Arc::new(mig),
            check_one_in: 1,
            inputs: 0,
        };
        pool.feed(Input::Started).unwrap();
        for node in 1..=pool.nodes.len() as u32 {
            pool.hello(node, NodeLife::default());
        }
        pool.events.clear();
        pool
    }

    fn inventory(&self, node: u32) -> Inventory {
        Inventory {
            cpus: 64,
            mem_bytes: 1 << 40,
            gpus: self.nodes[node as usize - 1].clone(),
            mig: Arc::clone(&self.mig),
            ..Inventory::default()
        }
    }

    pub fn feed(&mut self, input: Input) -> Result<Reply, Refusal> {
        let reply = handle(&mut self.state, &mut self.events, input, self.now);
        self.inputs += 1;
        if self.inputs.is_multiple_of(self.check_one_in) {
            assert_eq!(check(&self.state), []);
        }
        reply
    }

    /// What a node reports is never refused.
    pub fn tell(&mut self, node: NodeId, report: NodeReport) {
        self.feed(Input::Node { node, report }).unwrap();
    }

    pub fn hello(&mut self, node: u32, life: NodeLife) {
        let hello = NodeReport::Hello {
            life,
            fence: Fence::default(),
            inventory: self.inventory(node),
            runs: Vec::new(),
        };
        self.tell(NodeId(node), hello);
    }

    pub fn tell_gpus(&mut self, node: u32) {
        let inventory = self.inventory(node);
        self.tell(NodeId(node), NodeReport::Inventory { inventory });
    }

    pub fn wait(&mut self, secs: i64) {
        let until = self.now.plus_secs(secs);
        while let Some(at) = next_deadline(&self.state).filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.feed(Input::Wake).unwrap();
            assert!(
                next_deadline(&self.state).is_none_or(|next| next > at),
                "a deadline that is met is over"
            );
        }
        self.now = until;
    }

    pub fn pass(&mut self) {
        let plan = gsched::plan(&snapshot(&self.state, self.now), WorkBudget::default());
        self.feed(Input::Plan { plan }).unwrap();
    }

    pub fn submit(&mut self, gpus: &str) {
        let mut spec = JobSpec {
            name: "j".into(),
            ..JobSpec::default()
        };
        spec.request.gpus = Some(GpuRequest::parse(gpus).unwrap());
        spec.request.ntasks = 1;
        spec.launch.work_dir = "/home/ann".into();
        spec.launch.argv = vec!["true".into()];
        let actor = Actor {
            user: "ann".into(),
            uid: 1000,
            ..Actor::default()
        };
        let command = Command::Submit {
            spec: Box::new(spec),
            client_key: None,
        };
        self.feed(Input::Command { actor, command }).unwrap();
    }

    /// All nodes of the run are clean.
    pub fn end_run(&mut self, run: RunId) {
        let members = &self.state.run(run).unwrap().members;
        let nodes: Vec<NodeId> = members.iter().map(|member| member.node).collect();
        for node in nodes {
            let report = RunReport::new(run, RunPhase::Clean(RunEnd::default().into()));
            self.tell(node, NodeReport::Runs { runs: vec![report] });
        }
    }

    /// An operator's order for a GPU of the first node.
    pub fn order(&mut self, uuid: &str, what: GpuAction) -> Result<Reply, Refusal> {
        let actor = Actor {
            user: "root".into(),
            operator: true,
            ..Actor::default()
        };
        let command = Command::GpuOrder {
            node: NodeId(1),
            uuid: uuid.into(),
            what,
        };
        self.feed(Input::Command { actor, command })
    }

    /// What became of a GPU, as kinds.
    pub fn history(&self, uuid: &str) -> Vec<&'static str> {
        let lines = self.events.iter().filter_map(Event::of_gpu);
        lines
            .filter(|line| line.uuid == uuid)
            .map(|line| line.kind)
            .collect()
    }
}
