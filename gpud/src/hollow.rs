//! Hollow nodes: many in one process, each with its own certificate and connection. A hollow node speaks the real protocol through
//! the real node machine and only pretends to run jobs; for scale tests of a controller, never for work.
//!
//! A job of a hollow node ends at once, or after N seconds when its command or a line of its script is `hollow-N` or
//! `sleep N`. Nothing is kept: a new process is a new life of all hollow nodes.

use crate::clock::wall_clock;
use crate::config::Config;
use crate::controller::identity::{Identity, JoinOptions, join};
use crate::controller::link::{Dial, keep};
use crate::controller::report::Reporter;
use crate::gpu::table::Gpus;
use crate::input::{DaemonInput, QUEUE};
use crate::inventory::inventory;
use anyhow::{Context, Result, bail};
use gcore::node::{NodeAction, NodeInput, NodeState, actions, apply, check, handle};
use gmodel::launch_order::LaunchOrder;
use gmodel::node::{GpuInfo, Inventory};
use gmodel::run::{EndCause, RunEnd, RunUse};
use gmodel::{NodeLife, RunId};
use gwire::node_protocol::{ToController, ToNode};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// How many hollow nodes, and the GPUs that each pretends to have.
#[derive(Clone, Debug)]
pub struct HollowOptions {
    pub count: u32,
    /// State directories are `STATE_DIR/PREFIX1` and on; a machine that joins asks for that name.
    pub prefix: String,
    /// Tokens, one a line, for those that have no certificate yet.
    pub tokens: Option<PathBuf>,
    /// `h100:8`.
    pub gpus: Option<String>,
}

/// Joins those that have to, and plays all nodes until the process is ended.
pub async fn play(config: Config, options: HollowOptions) -> Result<()> {
    let gpus = options.gpus.as_deref().map(gpu_request).transpose()?;
    let names: Vec<String> = (1..=options.count)
        .map(|n| format!("{}{n}", options.prefix))
        .collect();
    join_missing(&config, &names, options.tokens.as_deref()).await?;
    let life = NodeLife {
        boot: gsys::clock::boot_id()?,
        spool: format!("hollow-{}-{}", std::process::id(), wall_clock().0),
    };
    let mut nodes = tokio::task::JoinSet::new();
    for name in names {
        let state_dir = config.state_dir.join(&name);
        let identity = Identity::load(&state_dir)?;
        let mut has = inventory(&config, &Gpus::default(), String::new(), wall_clock());
        (has.declared, has.isolation) = (true, "hollow".into());
        if let Some((gpu_type, count)) = &gpus {
            has.gpus = (0..*count)
                .map(|slot| hollow_gpu(&identity.name, gpu_type, slot))
                .collect();
        }
        let (sender, queue) = mpsc::channel(QUEUE);
        tokio::spawn(keep(
            Dial {
                controller: config.controller.clone(),
                state_dir,
            },
            sender.clone(),
        ));
        nodes.spawn(HollowNode::new(life.clone(), has).run(queue));
    }
    tracing::info!("{} hollow nodes", nodes.len());
    match nodes.join_next().await {
        Some(Err(e)) => bail!("a hollow node failed: {e}"),
        _ => bail!("a hollow node ended"),
    }
}

async fn join_missing(config: &Config, names: &[String], tokens: Option<&Path>) -> Result<()> {
    let text = match tokens {
        Some(path) => {
            std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?
        }
        None => String::new(),
    };
    let mut tokens = text.split_whitespace();
    for name in names {
        let state_dir = config.state_dir.join(name);
        if state_dir.join("node.crt").exists() {
            continue;
        }
        let token = tokens.next().with_context(|| {
            format!("hollow node {name} has not joined ({} has no certificate), and there is no token left for it", state_dir.display())
        })?;
        let options = JoinOptions {
            controller: config.controller.clone(),
            token: token.into(),
            name: name.clone(),
            state_dir,
        };
        join(&options)
            .await
            .with_context(|| format!("joining hollow node {name}"))?;
    }
    Ok(())
}

fn gpu_request(text: &str) -> Result<(String, u32)> {
    let parsed = text
        .split_once(':')
        .and_then(|(gpu_type, count)| Some((gpu_type.to_owned(), count.parse().ok()?)));
    parsed
        .filter(|(_, count)| *count <= 64)
        .with_context(|| format!("{text:?} is not TYPE:COUNT with at most 64, as h100:8"))
}

fn hollow_gpu(node: &str, gpu_type: &str, slot: u32) -> GpuInfo {
    GpuInfo {
        uuid: format!("GPU-hollow-{node}-{slot}"),
        gpu_type: gpu_type.into(),
        index: slot,
        minor: slot,
        memory_mib: 80 << 10,
        ..GpuInfo::default()
    }
}

/// One hollow node: the node machine, and a table of when its jobs end.
struct HollowNode {
    state: NodeState,
    inventory: Arc<Inventory>,
    told: Option<Reporter>,
    orders: BTreeMap<RunId, LaunchOrder>,
    running: BTreeMap<RunId, HollowRun>,
}

struct HollowRun {
    started: gmodel::Timestamp,
    ends: Instant,
}

impl HollowNode {
    fn new(life: NodeLife, inventory: Inventory) -> Self {
        let mut node = Self {
            state: NodeState::new(),
            inventory: Arc::new(inventory),
            told: None,
            orders: BTreeMap::new(),
            running: BTreeMap::new(),
        };
        node.feed(NodeInput::Scanned {
            life,
            fence: gmodel::Fence::default(),
            runs: Vec::new(),
        });
        node
    }

    async fn run(mut self, mut inputs: mpsc::Receiver<DaemonInput>) {
        loop {
            let next_end = self.running.values().map(|running| running.ends).min();
            let due = self
                .told
                .as_ref()
                .and_then(Reporter::due)
                .map(Instant::from);
            let idle = Instant::now() + Duration::from_secs(3600);
            tokio::select! {
                input = inputs.recv() => match input {
                    Some(input) => self.take(input),
                    None => return,
                },
                () = sleep_until([next_end, due].into_iter().flatten().min().unwrap_or(idle)) => self.end_due(),
            }
            self.act();
            if let Some(told) = &mut self.told
                && !told.send_news(&self.state, &self.inventory, std::time::Instant::now())
            {
                self.told = None;
            }
        }
    }

    fn take(&mut self, input: DaemonInput) {
        match input {
            DaemonInput::LinkUp { connection, sender } => {
                let held = &self.state.runs;
                self.orders.retain(|run, _| held.contains_key(run));
                self.told = Reporter::greet(connection, sender, &self.state, &self.inventory);
            }
            DaemonInput::LinkDown { .. } => self.told = None,
            DaemonInput::Frame {
                frame: ToNode::Orders { orders, desired },
                ..
            } => {
                self.orders.extend(
                    orders
                        .into_iter()
                        .filter_map(|order| Some((order.run?, order))),
                );
                let orders: BTreeSet<RunId> = self.orders.keys().copied().collect();
                self.feed(NodeInput::DesiredReceived { desired, orders });
            }
            DaemonInput::Frame {
                frame: ToNode::ReadLog { question, .. },
                ..
            } => {
                let text = "a hollow node: nothing was really run\n".into();
                if let Some(told) = &self.told {
                    let _ = told.sender.try_send(ToController::Log {
                        question,
                        text,
                        error: String::new(),
                    });
                }
            }
            DaemonInput::Frame {
                frame: ToNode::ReadUse { question, .. },
                ..
            } => {
                let error = "a hollow node: nothing really runs".into();
                if let Some(told) = &self.told {
                    let _ = told.sender.try_send(ToController::Use {
                        question,
                        used: RunUse::default(),
                        error,
                    });
                }
            }
            _ => {}
        }
    }

    /// Until nothing is left to do: every action has its outcome at once.
    fn act(&mut self) {
        loop {
            let outcomes: Vec<NodeInput> = actions(&self.state)
                .iter()
                .filter_map(|action| self.pretend(action))
                .collect();
            let acted = outcomes
                .into_iter()
                .map(|input| self.feed(input))
                .fold(false, |any, news| any | news);
            if !acted {
                return;
            }
        }
    }

    fn pretend(&mut self, action: &NodeAction) -> Option<NodeInput> {
        match *action {
            NodeAction::Record { fence, .. } => Some(NodeInput::Recorded { fence }),
            NodeAction::Prepare { run } => Some(NodeInput::Prepared { run }),
            NodeAction::Go { run } => {
                let secs = self
                    .orders
                    .remove(&run)
                    .map_or(0.0, |order| pretended_secs(&order));
                let started = wall_clock();
                let ends = Instant::now() + Duration::from_secs_f64(secs);
                self.running.insert(run, HollowRun { started, ends });
                Some(NodeInput::Started { run, started })
            }
            NodeAction::Abandon { run } | NodeAction::Stop { run, .. } => {
                let running = self.running.remove(&run);
                let started = running.map(|running| running.started);
                let end = RunEnd {
                    cause: EndCause::Stopped,
                    started,
                    ended: Some(wall_clock()),
                    ..RunEnd::default()
                };
                Some(NodeInput::Ended { run, end })
            }
            NodeAction::Clean { run } => Some(NodeInput::Cleaned { run }),
            NodeAction::Forget { run } => Some(NodeInput::Forgotten { run }),
            NodeAction::Signal { .. } | NodeAction::Limit { .. } | NodeAction::Suspend { .. } => {
                None
            }
        }
    }

    fn end_due(&mut self) {
        let now = Instant::now();
        let due: Vec<RunId> = self
            .running
            .iter()
            .filter(|(_, running)| running.ends <= now)
            .map(|(run, _)| *run)
            .collect();
        for run in due {
            let started = self.running.remove(&run).map(|running| running.started);
            let end = RunEnd {
                started,
                ended: Some(wall_clock()),
                ..RunEnd::default()
            };
            self.feed(NodeInput::Ended { run, end });
        }
    }

    /// True when it was news.
    fn feed(&mut self, input: NodeInput) -> bool {
        let events = handle(&self.state, input, wall_clock());
        events
            .iter()
            .for_each(|event| apply(&mut self.state, event));
        let wrong = check(&self.state);
        assert!(wrong.is_empty(), "{wrong:?} after {events:?}");
        !events.is_empty()
    }
}

/// Seconds a job pretends to take.
fn pretended_secs(order: &LaunchOrder) -> f64 {
    let command = order.argv.join(" ");
    let mut lines = order.script.lines().chain([command.as_str()]);
    let secs = lines.find_map(|line| {
        let rest = line
            .trim()
            .strip_prefix("hollow-")
            .or_else(|| line.trim().strip_prefix("sleep "))?;
        rest.split_whitespace().next()?.parse::<f64>().ok()
    });
    secs.filter(|secs| secs.is_finite())
        .unwrap_or(0.0)
        .clamp(0.0, 1e7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_pretends_as_long_as_it_says() {
        let order = |script: &str, argv: &[&str]| LaunchOrder {
            script: script.into(),
            argv: argv.iter().map(|word| (*word).to_owned()).collect(),
            ..LaunchOrder::default()
        };
        for (order, secs) in [
            (order("#!/bin/sh\necho x\n  sleep 2.5 # long\n", &[]), 2.5),
            (order("", &["hollow-30"]), 30.0),
            (order("", &["sleep", "4"]), 4.0),
            (order("#!/bin/sh\ntrue\n", &[]), 0.0),
            (order("", &["sleep", "-1"]), 0.0),
            (order("", &["sleep", "nan"]), 0.0),
        ] {
            assert_eq!(pretended_secs(&order), secs, "{order:?}");
        }
    }

    #[test]
    fn gpus_are_asked_for_as_type_and_count() {
        assert_eq!(gpu_request("h100:8").unwrap(), ("h100".to_owned(), 8));
        assert!(gpu_request("h100").is_err() && gpu_request("h100:1000").is_err());
    }
}
