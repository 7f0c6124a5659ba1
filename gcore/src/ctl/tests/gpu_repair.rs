//! Repair of sick GPUs within the breaker, and what a GPU's history says.

use crate::ctl::command::{Actor, Command, Input, NodeReport, Refusal, Reply};
use crate::ctl::event::Event;
use crate::ctl::tests::gpu_pool::{GpuPool, h100s};
use crate::ctl::{check, open_breakers};
use gmodel::NodeId;
use gmodel::config::{ClusterConfig, Partition};
use gmodel::gpu_health::{GpuHealthStatus, RepairStage};
use gmodel::gpu_order::{GpuAction, GpuOrderDone};
use gmodel::node::{GpuInfo, Link};

/// Nodes of eight GPUs in one partition.
fn pool_of(nodes: u32) -> GpuPool {
    let main = Partition {
        name: "main".into(),
        ..Partition::default()
    };
    let config = ClusterConfig {
        partitions: vec![main],
        ..ClusterConfig::default()
    };
    let nodes = (1..=nodes).map(|node| h100s(node, 8)).collect();
    GpuPool::new(config, nodes, Vec::new())
}

impl GpuPool {
    fn gpu(&mut self, node: u32, index: usize) -> &mut GpuInfo {
        &mut self.nodes[node as usize - 1][index]
    }

    /// It is certainly sick: its node took it out, and asks for a step.
    fn falls_sick(&mut self, node: u32, index: usize, wants: &str) {
        self.stands(node, index, RepairStage::Out, "Xid 48", wants);
    }

    /// A sign that puts nothing at risk.
    fn is_suspect(&mut self, node: u32, index: usize) {
        self.stands(node, index, RepairStage::InService, "", "quarantine");
    }

    fn stands(&mut self, node: u32, index: usize, stage: RepairStage, fault: &str, wants: &str) {
        let standing = Some(Box::new(GpuHealthStatus {
            stage,
            ..GpuHealthStatus::default()
        }));
        let gpu = self.gpu(node, index);
        (gpu.fault, gpu.wants, gpu.standing) = (fault.into(), wants.into(), standing);
        self.tell_gpus(node);
    }

    /// Nodes and slots with a step that may be taken.
    fn allowed(&self) -> Vec<String> {
        let orders = self
            .state
            .nodes
            .values()
            .flat_map(|node| &node.gpu_work.orders);
        orders
            .filter(|order| order.what == GpuAction::Repair)
            .map(|order| order.uuid.clone())
            .collect()
    }

    /// The node answers all its orders.
    fn answer_all(&mut self, node: u32, error: &str) {
        let orders = self
            .state
            .node(NodeId(node))
            .unwrap()
            .gpu_work
            .orders
            .clone();
        let done = orders
            .iter()
            .map(|order| GpuOrderDone::new(order, error))
            .collect();
        self.tell(NodeId(node), NodeReport::GpuOrders { done });
    }

    fn forget(&mut self, operator: bool, uuid: &str) -> Result<Reply, Refusal> {
        let actor = Actor {
            user: "root".into(),
            operator,
            ..Actor::default()
        };
        let input = Input::Command {
            actor,
            command: Command::GpuForget { uuid: uuid.into() },
        };
        self.feed(input)
    }

    /// The missing GPUs, with their last nodes.
    fn missed(&self) -> Vec<(String, String)> {
        let all = self
            .state
            .nodes
            .values()
            .flat_map(|node| node.gpus.iter().map(|gpu| (node.name.clone(), gpu)));
        all.filter(|(_, gpu)| gpu.is_expected() && !gpu.present)
            .map(|(node, gpu)| (node, gpu.info.uuid.clone()))
            .collect()
    }

    fn drains(&self, node: u32) -> usize {
        self.state.node(NodeId(node)).unwrap().drains.len()
    }
}

#[test]
fn a_step_that_waits_is_allowed_at_once_in_a_healthy_pool() {
    let mut pool = pool_of(2);
    pool.falls_sick(1, 3, "reset");
    assert_eq!(pool.allowed(), ["GPU-1-3"]);
    assert_eq!(pool.history("GPU-1-3"), ["sick", "ordered"]);
    // Said again, it is the same order. The node tells how its GPU stands before it answers.
    pool.tell_gpus(1);
    pool.stands(1, 3, RepairStage::Resetting, "Xid 48", "");
    pool.answer_all(1, "");
    pool.stands(1, 3, RepairStage::BurningIn, "Xid 48", "");
    let gpu = pool.gpu(1, 3);
    (gpu.fault, gpu.standing) = (String::new(), None);
    pool.tell_gpus(1);
    assert_eq!(
        pool.history("GPU-1-3"),
        ["sick", "ordered", "reset", "burn_in", "well"]
    );
    assert!(pool.allowed().is_empty());
}

#[test]
fn a_node_that_refuses_is_not_asked_again_for_the_same_step() {
    let mut pool = pool_of(2);
    pool.falls_sick(1, 3, "reset");
    pool.answer_all(1, "a step is under way on another GPU of this node");
    pool.tell_gpus(1);
    assert!(pool.allowed().is_empty());
    pool.falls_sick(1, 3, "");
    pool.falls_sick(1, 3, "reset");
    assert_eq!(pool.allowed(), ["GPU-1-3"], "it waits anew");
}

#[test]
fn the_breaker_allows_a_node_of_gpus_an_hour_and_not_one_more() {
    let mut pool = pool_of(4);
    // Eight suspects on four nodes are one node: exactly the limit.
    for at in 0..8 {
        pool.is_suspect(1 + at as u32 % 4, at / 4);
    }
    assert_eq!(pool.allowed().len(), 8);
    pool.now = pool.now.plus_secs(60);
    pool.is_suspect(1, 5);
    assert_eq!(pool.allowed().len(), 8, "the ninth waits, and works on");
    assert_eq!(pool.history("GPU-1-5"), ["stopped"]);
    assert_eq!(
        open_breakers(&pool.state, pool.now),
        [("main".to_owned(), 1000, 1000)]
    );
    // What went already is under the same breaker as long as the limit is kept.
    pool.wait(3530);
    assert_eq!(pool.allowed().len(), 8, "an hour is an hour");
    pool.wait(20);
    assert!(
        pool.allowed().contains(&"GPU-1-5".to_owned()),
        "{:?}",
        pool.allowed()
    );
    assert!(open_breakers(&pool.state, pool.now).is_empty());
}

#[test]
fn what_is_certainly_sick_goes_whatever_the_breaker_says_and_then_nothing_else_does() {
    let mut pool = pool_of(3);
    for index in 0..8 {
        pool.falls_sick(1, index, "");
    }
    pool.falls_sick(2, 0, "");
    let usable = pool
        .state
        .nodes
        .values()
        .flat_map(|node| node.gpus.iter())
        .filter(|gpu| gpu.usable())
        .count();
    assert_eq!(usable, 15, "no job gets a sick GPU");
    // Beyond the limit nothing automatic goes on: not even the repair of what is out.
    pool.falls_sick(2, 0, "reset");
    pool.is_suspect(3, 1);
    assert!(pool.allowed().is_empty());
    assert_eq!(pool.history("GPU-2-0"), ["sick", "stopped"]);
    pool.wait(3601);
    assert_eq!(pool.allowed(), ["GPU-2-0", "GPU-3-1"]);
}

#[test]
fn somebodys_word_is_no_accident_and_a_drained_node_counts_with_gpus() {
    let mut pool = pool_of(4);
    for index in 0..8 {
        let standing = GpuHealthStatus {
            stage: RepairStage::Out,
            held: true,
            ..GpuHealthStatus::default()
        };
        let gpu = pool.gpu(1, index);
        (gpu.fault, gpu.standing) = ("quarantined: fans".into(), Some(Box::new(standing)));
    }
    pool.tell_gpus(1);
    pool.is_suspect(2, 0);
    assert_eq!(pool.allowed(), ["GPU-2-0"], "nobody counts what people do");
    let mut other = pool_of(4);
    let mark = gmodel::node::HoldMark {
        owner: "system".into(),
        reason: "3 launch errors".into(),
        since: other.now,
    };
    crate::ctl::apply(
        &mut other.state,
        &Event::NodeDrained {
            node: NodeId(1),
            mark,
            automatic: true,
        },
    );
    other.is_suspect(2, 0);
    assert!(other.allowed().is_empty(), "one breaker for all causes");
    other.falls_sick(1, 0, "reset");
    assert_eq!(other.allowed(), ["GPU-1-0"], "its node is counted already");
}

#[test]
fn a_node_that_boots_takes_no_work_until_it_has() {
    let mut pool = pool_of(2);
    pool.falls_sick(1, 0, "boot");
    assert_eq!((pool.allowed().len(), pool.drains(1)), (1, 1));
    pool.stands(1, 0, RepairStage::Booting, "Xid 79", "");
    pool.answer_all(1, "");
    assert_eq!(pool.drains(1), 1, "it goes down any moment");
    pool.stands(1, 0, RepairStage::Out, "Xid 79", "");
    assert_eq!(pool.drains(1), 0, "it has booted, or failed to");
    // A boot that the node refuses is no boot.
    let mut pool = pool_of(2);
    pool.falls_sick(1, 0, "boot");
    pool.answer_all(1, "the node is not booted: a run is on it");
    assert_eq!(pool.drains(1), 0);
}

#[test]
fn a_gpu_that_moves_takes_its_quarantine_along() {
    let mut pool = pool_of(3);
    pool.falls_sick(1, 2, "");
    let sick = pool.nodes[0].remove(2);
    let well = pool.nodes[0].remove(2);
    pool.tell_gpus(1);
    // The GPU comes to another node, new to its gpud.
    let fresh = |gpu: &GpuInfo| GpuInfo {
        uuid: gpu.uuid.clone(),
        index: 8,
        ..GpuInfo::default()
    };
    let (sick, well) = (fresh(&sick), fresh(&well));
    pool.nodes[1].extend([sick.clone(), well.clone()]);
    pool.tell_gpus(2);
    let orders = pool.state.node(NodeId(2)).unwrap().gpu_work.orders.clone();
    let words: Vec<(String, GpuAction)> = orders
        .into_iter()
        .map(|order| (order.uuid, order.what))
        .collect();
    assert_eq!(
        words,
        [(
            sick.uuid.clone(),
            GpuAction::Quarantine {
                reason: "out of service when it left n1: Xid 48".into()
            }
        )]
    );
    assert_eq!(
        pool.history(&sick.uuid),
        ["sick", "gone", "moved", "ordered", "left"]
    );
    assert_eq!(pool.history(&well.uuid), ["gone", "appeared", "left"]);
    assert!(
        pool.missed().is_empty(),
        "nobody looks for a board in its old node"
    );
}

#[test]
fn a_move_is_one_whichever_node_tells_of_it_first_and_when_the_old_one_is_dead() {
    for old_is_dead in [false, true] {
        let mut pool = pool_of(2);
        pool.falls_sick(1, 2, "");
        if old_is_dead {
            let dead = Event::NodeLinkChanged {
                node: NodeId(1),
                link: Link::Down,
                at: pool.now,
            };
            crate::ctl::apply(&mut pool.state, &dead);
        }
        let (sick, well) = (pool.nodes[0].remove(2), pool.nodes[0].remove(2));
        for gpu in [&sick, &well] {
            pool.nodes[1].push(GpuInfo {
                uuid: gpu.uuid.clone(),
                index: 8,
                ..GpuInfo::default()
            });
        }
        pool.tell_gpus(2);
        if !old_is_dead {
            pool.tell_gpus(1);
        }
        let orders: Vec<String> = pool
            .state
            .node(NodeId(2))
            .unwrap()
            .gpu_work
            .orders
            .iter()
            .map(|order| order.uuid.clone())
            .collect();
        assert_eq!(
            orders,
            std::slice::from_ref(&sick.uuid),
            "dead: {old_is_dead}"
        );
        assert!(
            pool.missed().is_empty() && pool.history(&well.uuid).contains(&"left"),
            "dead: {old_is_dead}"
        );
        // What it left is not held against it again.
        pool.nodes[1].retain(|gpu| gpu.uuid != sick.uuid);
        pool.tell_gpus(2);
        assert_eq!(
            pool.missed(),
            [("n2".to_owned(), sick.uuid)],
            "dead: {old_is_dead}"
        );
    }
}

#[test]
fn an_operator_says_that_a_missing_gpu_is_gone_for_good_and_it_may_come_back() {
    let mut pool = pool_of(2);
    let refused = |pool: &mut GpuPool, operator: bool, uuid: &str| {
        pool.forget(operator, uuid).unwrap_err().text
    };
    assert!(refused(&mut pool, true, "GPU-1-3").contains("is in n1 (gpu3)"));
    assert!(refused(&mut pool, true, "GPU-x").contains("no node misses a GPU GPU-x"));
    let gone = pool.nodes[0].remove(3);
    pool.tell_gpus(1);
    assert_eq!(pool.missed(), [("n1".to_owned(), gone.uuid.clone())]);
    assert!(refused(&mut pool, false, &gone.uuid).contains("operators"));
    pool.forget(true, &gone.uuid).unwrap();
    assert!(
        pool.missed().is_empty() && refused(&mut pool, true, &gone.uuid).contains("no node misses")
    );
    pool.nodes[0].insert(3, gone.clone());
    pool.tell_gpus(1);
    let usable = pool
        .state
        .node(NodeId(1))
        .unwrap()
        .gpus
        .iter()
        .filter(|gpu| gpu.usable())
        .count();
    assert_eq!(
        (usable, pool.history(&gone.uuid)),
        (8, vec!["gone", "forgotten", "appeared"])
    );
    pool.nodes[0].remove(3);
    pool.tell_gpus(1);
    assert_eq!(pool.missed().len(), 1, "it is missed as any other");
}

#[test]
fn a_sick_gpu_that_was_forgotten_is_sick_wherever_it_turns_up() {
    let mut pool = pool_of(2);
    pool.falls_sick(1, 2, "");
    let sick = pool.nodes[0].remove(2);
    pool.tell_gpus(1);
    pool.forget(true, &sick.uuid).unwrap();
    // A new controller knows too.
    pool.state.index.gone = crate::ctl::gpu::missing::gone(&pool.state);
    pool.nodes[1].push(GpuInfo {
        uuid: sick.uuid.clone(),
        index: 8,
        ..GpuInfo::default()
    });
    pool.tell_gpus(2);
    assert_eq!(
        pool.history(&sick.uuid),
        ["sick", "gone", "forgotten", "moved", "ordered", "left"]
    );
}

#[test]
fn one_that_left_a_second_node_healthy_is_not_ordered_out_in_a_third_after_a_restart() {
    let mut pool = pool_of(3);
    let restart =
        |pool: &mut GpuPool| pool.state.index.gone = crate::ctl::gpu::missing::gone(&pool.state);
    let orders =
        |pool: &GpuPool, node: u32| pool.state.node(NodeId(node)).unwrap().gpu_work.orders.len();
    pool.falls_sick(1, 2, "");
    let sick = pool.nodes[0].remove(2);
    pool.tell_gpus(1);
    restart(&mut pool);
    let here = GpuInfo {
        uuid: sick.uuid,
        index: 8,
        ..GpuInfo::default()
    };
    pool.nodes[1].push(here.clone());
    pool.tell_gpus(2);
    assert_eq!(
        orders(&pool, 2),
        1,
        "it was sick when it left, which a new controller knows"
    );
    // Ordered out, returned by an operator, and taken out.
    pool.answer_all(2, "");
    pool.nodes[1].pop();
    pool.tell_gpus(2);
    restart(&mut pool);
    pool.nodes[2].push(here);
    pool.tell_gpus(3);
    assert_eq!(orders(&pool, 3), 0);
    assert_eq!(check(&pool.state), []);
}

#[test]
fn notes_and_what_operators_order_are_lines_of_the_history() {
    let mut pool = pool_of(1);
    pool.gpu(1, 0).notes = vec!["Xid 31: a program did something wrong".into()];
    pool.tell_gpus(1);
    pool.tell_gpus(1);
    let what = GpuAction::Quarantine {
        reason: "hot".into(),
    };
    pool.order("GPU-1-0", what).unwrap();
    pool.answer_all(1, "no");
    let lines: Vec<String> = pool
        .events
        .iter()
        .filter_map(Event::of_gpu)
        .map(|line| format!("{}: {}", line.kind, line.text))
        .collect();
    assert_eq!(
        lines,
        [
            "noted: Xid 31: a program did something wrong",
            "ordered: quarantined by root: hot",
            "refused: no"
        ]
    );
}
