//! Orders to cut GPUs by MIG, only for GPUs that no run holds. No job gets such a GPU until the node has
//! answered.
//!
//! The scheduler proposes, the controller checks, the node checks again under its lock and cuts. Never ends a
//! run for a cut.

use crate::ctl::command::Refusal;
use crate::ctl::event::Event;
use crate::ctl::gpu;
use crate::ctl::state::{Node, State};
use crate::ctl::tx::Tx;
use gmodel::RunId;
use gmodel::gpu_order::{GpuAction, GpuOrder};
use gmodel::mig::{MigBoard, arrange};
use gmodel::node::{GpuEntry, Link};
use gmodel::run::NodeShare;
use gsched::Cut;
use gsched::snapshot::NodeMig;
use std::sync::Arc;

/// Orders the cuts of a plan that are still valid.
pub(crate) fn enter(tx: &mut Tx, cuts: Vec<Cut>) {
    for cut in cuts {
        let Some(node) = tx.node(cut.node) else {
            continue;
        };
        let ordered = node
            .gpu_work
            .orders
            .iter()
            .any(|order| order.uuid == cut.uuid && !gpu::check::is_check(order));
        if node.link == Link::Up
            && !ordered
            && check_order(tx.state, node, &cut.uuid, &cut.profiles).is_ok()
        {
            let (what, by) = (
                GpuAction::Cut {
                    profiles: cut.profiles,
                },
                format!("scheduler: {}", cut.why),
            );
            tx.emit(Event::GpuOrdered {
                node: cut.node,
                uuid: cut.uuid,
                what,
                by,
                at: tx.now,
            });
        }
    }
}

/// Whether a GPU may be cut into these slices now.
pub(crate) fn check_order(
    state: &State,
    node: &Node,
    uuid: &str,
    profiles: &[String],
) -> Result<(), Refusal> {
    let name = &node.name;
    let invalid = |text: String| Err(Refusal::invalid(text));
    let Some(gpu) = node
        .gpus
        .iter()
        .find(|gpu| gpu.info.uuid == uuid && gpu.present)
        .map(|gpu| &gpu.info)
    else {
        return invalid(format!("{name} has no GPU {uuid} now"));
    };
    if gpu.slice.is_some() {
        return invalid(format!("{uuid} is a slice; its GPU is {}", gpu.board()));
    }
    if !gpu.fault.is_empty() {
        return invalid(format!(
            "GPU {uuid} of {name} is out of service: {}",
            gpu.fault
        ));
    }
    let same =
        |board: &&MigBoard| board.gpu_type == gpu.gpu_type && board.memory_mib == gpu.memory_mib;
    let kinds = node
        .inventory
        .mig
        .iter()
        .find(same)
        .map_or(&[][..], |board| &board.kinds);
    if let Err(why) = arrange(kinds, profiles) {
        return invalid(format!("GPU {uuid} of {name}: {why}"));
    }
    match holder(state, node, uuid) {
        Some(run) => {
            let text = format!(
                "run {run} holds GPU {uuid} of {name} or a slice of it; a busy GPU is not cut. Drain the node, or wait."
            );
            Err(Refusal::conflict(text))
        }
        None => Ok(()),
    }
}

/// A run that holds the GPU or a slice of it and is not clean.
pub(crate) fn holder(state: &State, node: &Node, uuid: &str) -> Option<RunId> {
    let is_of = |share: &NodeShare| {
        share.node == node.id
            && share
                .gpus
                .slots()
                .any(|slot| node.board_at(slot) == Some(uuid))
    };
    let mut runs = node.runs.iter().filter_map(|run| state.run(*run));
    let holds = runs.find(|run| {
        let mut shares = run.allocation.iter().zip(&run.members);
        shares.any(|(share, member)| !member.is_clean() && is_of(share))
    });
    holds.map(|run| run.id)
}

/// The node's GPUs as the scheduler may assign them.
pub(crate) fn gpus_of(node: &Node) -> Arc<Vec<GpuEntry>> {
    if node.gpu_work.orders.is_empty() && node.gpus.iter().all(|gpu| gpu.checks.is_none()) {
        return node.gpus.clone();
    }
    let mut gpus = Vec::clone(&node.gpus);
    // The scheduler ignores check records: without this the shared list would be copied.
    gpus.iter_mut().for_each(|gpu| gpu.checks = None);
    if !node.gpu_work.orders.is_empty() {
        for gpu in gpus
            .iter_mut()
            .filter(|gpu| node.is_being_cut(gpu) && gpu.info.fault.is_empty())
        {
            gpu.info.fault = "is being cut by MIG".into();
        }
    }
    Arc::new(gpus)
}

/// The input of MIG planning for one node.
pub(crate) fn of_node(node: &Node) -> NodeMig {
    let boards = node.inventory.mig.clone();
    let ordered = node
        .gpu_work
        .orders
        .iter()
        .filter(|order| !gpu::check::is_check(order))
        .map(|order| order.uuid.clone())
        .collect();
    let cut = |order: &GpuOrder| match &order.what {
        GpuAction::Cut { profiles } => Some((order.uuid.clone(), profiles.clone())),
        _ => None,
    };
    let being_cut = node.gpu_work.orders.iter().filter_map(cut).collect();
    NodeMig {
        boards,
        cuts: node.gpu_work.cuts.clone(),
        ordered,
        being_cut,
    }
}

/// Violation: a GPU is to be cut while a run holds a part of it.
pub(crate) fn check(state: &State, found: &mut Vec<String>) {
    for node in state.nodes.values() {
        let cuts = node
            .gpu_work
            .orders
            .iter()
            .filter(|order| matches!(order.what, GpuAction::Cut { .. }));
        for order in cuts {
            if let Some(run) = holder(state, node, &order.uuid) {
                found.push(format!(
                    "GPU {} of node {} is to be cut and run {run} holds of it",
                    order.uuid, node.name
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctl::command::{Input, NodeReport};
    use crate::ctl::desired;
    use crate::ctl::snapshot;
    use crate::ctl::state::GpuWork;
    use crate::ctl::tests::gpu_pool::GpuPool;
    use gmodel::config::{ClusterConfig, MigCuts, Partition};
    use gmodel::gpu_order::GpuOrderDone;
    use gmodel::mig::MigKind;
    use gmodel::node::{GpuInfo, MigSlice};
    use gmodel::{NodeId, NodeLife};
    use gsched::WorkBudget;
    use std::sync::Arc;

    const NODE: NodeId = NodeId(1);

    /// A node with one GPU that can be cut into halves, and a partition that allows cuts.
    fn pool() -> GpuPool {
        let partition = Partition {
            name: "p".into(),
            is_default: true,
            mig: MigCuts::Planned,
            ..Partition::default()
        };
        let config = ClusterConfig {
            partitions: vec![partition],
            ..ClusterConfig::default()
        };
        let kind = MigKind {
            profile: "3g.40gb".into(),
            compute_slices: 3,
            memory_slices: 4,
            memory_mib: 40_960,
            starts: vec![0, 4],
            most: 2,
        };
        let board = MigBoard {
            gpu_type: "a100".into(),
            memory_mib: 81_920,
            kinds: vec![kind],
        };
        GpuPool::new(config, vec![gpu_in_halves(0)], vec![board])
    }

    impl GpuPool {
        fn next_pass(&mut self) {
            self.now = self.now.plus_secs(1);
            self.pass();
        }

        /// The open order, if any: its number and profiles.
        fn open_cut(&self) -> Option<(u64, Vec<String>)> {
            let orders = desired(&self.state, NODE).gpus;
            assert!(orders.len() <= 1);
            orders.first().map(|order| match &order.what {
                GpuAction::Cut { profiles } => (order.number, profiles.clone()),
                other => panic!("{other:?}"),
            })
        }

        /// The node cuts the GPU into so many halves and reports it.
        fn was_cut(&mut self, number: u64, halves: usize) {
            self.nodes[0] = gpu_in_halves(halves);
            self.tell_gpus(1);
            let done = vec![GpuOrderDone {
                number,
                uuid: "GPU-0".into(),
                error: String::new(),
                check: None,
            }];
            self.tell(NODE, NodeReport::GpuOrders { done });
        }

        fn running(&self) -> Vec<RunId> {
            self.state.runs.values().map(|run| run.id).collect()
        }
    }

    /// A whole GPU, or one that is cut into so many halves.
    fn gpu_in_halves(halves: usize) -> Vec<GpuInfo> {
        let whole = GpuInfo {
            uuid: "GPU-0".into(),
            gpu_type: "a100".into(),
            memory_mib: 81_920,
            divided: halves > 0,
            ..GpuInfo::default()
        };
        let half = |at: usize| GpuInfo {
            uuid: format!("MIG-{at}"),
            memory_mib: 40_960,
            divided: false,
            slice: Some(MigSlice {
                gpu: "GPU-0".into(),
                profile: "3g.40gb".into(),
                placement: 4 * at as u8,
                compute_slices: 3,
                memory_slices: 4,
            }),
            ..whole.clone()
        };
        [whole.clone()]
            .into_iter()
            .chain((0..halves).map(half))
            .collect()
    }

    fn halves() -> Vec<String> {
        vec!["3g.40gb".into(), "3g.40gb".into()]
    }

    #[test]
    fn a_gpu_is_cut_for_a_job_and_made_whole_for_another() {
        let mut pool = pool();
        pool.submit("3g.40gb");
        pool.next_pass();
        let (number, profiles) = pool.open_cut().expect("the job waits for a cut");
        assert_eq!(profiles, halves());
        // No job gets it meanwhile, whole or in part.
        pool.submit("1");
        pool.next_pass();
        assert_eq!(
            (pool.running(), pool.open_cut().unwrap().0),
            (vec![], number)
        );
        pool.was_cut(number, 2);
        assert_eq!(pool.open_cut(), None);
        pool.next_pass();
        let run = pool.running()[0];
        assert_eq!(pool.state.run(run).unwrap().allocation[0].gpus.milli(), 500);
        pool.end_run(run);
        pool.next_pass();
        assert_eq!(pool.open_cut(), None, "it was cut a moment ago");
        pool.now = pool.now.plus_secs(300);
        pool.next_pass();
        let (number, profiles) = pool.open_cut().expect("a job waits for a whole one");
        assert_eq!(profiles, [""; 0]);
        pool.was_cut(number, 0);
        pool.next_pass();
        assert_eq!(
            pool.state.run(pool.running()[0]).unwrap().allocation[0]
                .gpus
                .milli(),
            1000
        );
    }

    #[test]
    fn a_layout_of_the_configuration_that_a_boot_lost_is_made_again_at_once() {
        let mut pool = pool();
        let nodes = gmodel::hostlist::Hostlist::parse("n1").unwrap();
        let layout = gmodel::config::MigLayout {
            name: "halves".into(),
            nodes,
            gpu_type: None,
            gpus: None,
            layout: halves(),
        };
        let config = ClusterConfig {
            mig: vec![layout],
            ..ClusterConfig::clone(&pool.state.config)
        };
        pool.feed(Input::Configure {
            config: Arc::new(config),
        })
        .unwrap();
        pool.next_pass();
        let (number, profiles) = pool.open_cut().expect("the layout is made");
        assert_eq!(profiles, halves());
        pool.was_cut(number, 2);
        pool.next_pass();
        assert_eq!(pool.open_cut(), None);
        pool.now = pool.now.plus_secs(10);
        let life = NodeLife {
            boot: "the next".into(),
            ..NodeLife::default()
        };
        pool.nodes[0] = gpu_in_halves(0);
        pool.hello(1, life);
        pool.next_pass();
        assert_eq!(
            pool.open_cut().map(|(_, profiles)| profiles),
            Some(halves())
        );
    }

    #[test]
    fn a_busy_gpu_is_cut_by_nobodys_order() {
        let mut pool = pool();
        pool.submit("1");
        pool.next_pass();
        let cut = Cut {
            node: NODE,
            uuid: "GPU-0".into(),
            profiles: halves(),
            why: "a plan from before".into(),
        };
        let plan = gsched::Plan {
            made_from: pool.state.seq,
            cuts: vec![cut],
            ..gsched::Plan::default()
        };
        pool.feed(Input::Plan { plan }).unwrap();
        assert_eq!(pool.open_cut(), None);
        let mut order = |profiles: Vec<String>| {
            let ordered = pool.order("GPU-0", GpuAction::Cut { profiles });
            ordered.map_err(|refusal| refusal.text)
        };
        assert!(
            order(halves())
                .unwrap_err()
                .contains("run 1-1 holds GPU GPU-0 of n1")
        );
        assert!(
            order(vec!["9g.90gb".into()])
                .unwrap_err()
                .contains("no MIG profile 9g.90gb; there are 3g.40gb")
        );
        assert!(
            order(vec!["3g.40gb".into(); 3])
                .unwrap_err()
                .contains("do not go together")
        );
    }

    #[test]
    fn a_start_that_was_planned_on_what_is_cut_meanwhile_is_dropped() {
        let mut pool = pool();
        pool.submit("1");
        let picture = snapshot(&pool.state, pool.now);
        let stale = gsched::plan(&picture, WorkBudget::default());
        assert_eq!(stale.starts.len(), 1);
        pool.nodes[0] = gpu_in_halves(2);
        pool.tell_gpus(1);
        pool.feed(Input::Plan { plan: stale }).unwrap();
        assert_eq!(pool.running(), []);
    }

    #[test]
    fn the_scheduler_hears_what_is_being_cut_and_into_what() {
        let order = |uuid: &str, what: GpuAction| GpuOrder {
            number: 1,
            uuid: uuid.into(),
            what,
        };
        let cut = GpuAction::Cut {
            profiles: vec!["3g.40gb".into()],
        };
        let check = GpuAction::Check(gmodel::gpu_check::CheckProgram::default());
        let orders = vec![
            order("a", cut),
            order("b", GpuAction::Return),
            order("c", check),
        ];
        let gpu_work = GpuWork {
            orders,
            ..GpuWork::default()
        };
        let told = of_node(&Node {
            gpu_work,
            ..Node::default()
        });
        assert_eq!(told.ordered.iter().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(
            told.being_cut.into_iter().collect::<Vec<_>>(),
            [("a".to_owned(), vec!["3g.40gb".to_owned()])]
        );
    }
}
