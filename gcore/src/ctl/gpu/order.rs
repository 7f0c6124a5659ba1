//! Orders for GPUs, by operators or by the controller itself, kept with the node until it reports how they
//! ended.

use crate::ctl::command::{Actor, Refusal, Reply};
use crate::ctl::event::Event;
use crate::ctl::gpu;
use crate::ctl::state::Node;
use crate::ctl::tx::{Tx, operator_only};
use gmodel::NodeId;
use gmodel::gpu_order::{GpuAction, GpuOrderDone, MAX_OPEN, MAX_TEXT_BYTES};

/// An operator's order.
pub(crate) fn order(
    tx: &mut Tx,
    actor: &Actor,
    node: NodeId,
    uuid: &str,
    what: GpuAction,
) -> Result<Reply, Refusal> {
    operator_only(actor, "giving orders for a GPU")?;
    let known = tx.node(node);
    let known = known.ok_or_else(|| Refusal::not_found(format!("no node number {node}")))?;
    let name = &known.name;
    if !known.gpus.iter().any(|gpu| gpu.info.uuid == uuid) {
        return Err(Refusal::not_found(format!(
            "{name} has no GPU {uuid}; `gnodes {name} --health` lists those it has"
        )));
    }
    if let Some(slice) = known
        .gpus
        .iter()
        .find_map(|gpu| gpu.info.slice.as_ref().filter(|_| gpu.info.uuid == uuid))
    {
        let text = format!(
            "{uuid} is a slice ({}) of GPU {}; orders are for GPUs",
            slice.profile, slice.gpu
        );
        return Err(Refusal::invalid(text));
    }
    if known.gpu_work.orders.len() >= MAX_OPEN {
        let text = format!(
            "{name} has not answered {MAX_OPEN} orders for its GPUs. Look whether its gpud is connected."
        );
        return Err(Refusal::limit(text));
    }
    let what = match what {
        GpuAction::Quarantine { reason } if reason.trim().is_empty() => {
            let text = "a GPU is quarantined with a --reason: others will ask why.";
            return Err(Refusal::invalid(text));
        }
        GpuAction::Cut { profiles } => {
            gpu::mig::check_order(tx.state, known, uuid, &profiles)?;
            GpuAction::Cut { profiles }
        }
        GpuAction::Check(_) => gpu::check::asked(tx.state, known, uuid, tx.now)?,
        GpuAction::Quarantine { reason } => GpuAction::Quarantine {
            reason: reason.chars().take(MAX_TEXT_BYTES / 4).collect(),
        },
        other => other,
    };
    tx.emit(Event::GpuOrdered {
        node,
        uuid: uuid.to_owned(),
        what,
        by: actor.user.clone(),
        at: tx.now,
    });
    Ok(Reply::Done)
}

/// A node's answers to orders. Answers to orders that are not open are dropped.
pub(crate) fn ended(tx: &mut Tx, node: NodeId, done: Vec<GpuOrderDone>) {
    for mut done in done {
        let open = |node: &Node| {
            node.gpu_work
                .orders
                .iter()
                .find(|order| order.number == done.number)
                .map(gpu::check::is_check)
        };
        match tx.node(node).and_then(open) {
            None => continue,
            Some(true) => {
                gpu::check::ended(tx, node, done);
                continue;
            }
            Some(false) => {}
        }
        if done.error.len() > MAX_TEXT_BYTES {
            done.error = done.error.chars().take(MAX_TEXT_BYTES / 4).collect();
        }
        tx.emit(Event::GpuOrderEnded {
            node,
            done,
            at: tx.now,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctl::command::{Command, Input, NodeReport};
    use crate::ctl::state::State;
    use crate::ctl::{desired, handle};
    use gmodel::node::{GpuInfo, Inventory};
    use gmodel::{Fence, NodeLife, Timestamp};

    const NODE: NodeId = NodeId(1);

    fn pool() -> State {
        let mut state = State::default();
        state.nodes.insert(
            NODE,
            Node {
                id: NODE,
                name: "node1".into(),
                ..Node::default()
            },
        );
        let gpu = |uuid: &str| GpuInfo {
            uuid: uuid.into(),
            ..GpuInfo::default()
        };
        let inventory = Inventory {
            gpus: vec![gpu("GPU-a"), gpu("GPU-b")],
            ..Inventory::default()
        };
        let hello = NodeReport::Hello {
            life: NodeLife::default(),
            fence: Fence::default(),
            inventory,
            runs: Vec::new(),
        };
        take(
            &mut state,
            Input::Node {
                node: NODE,
                report: hello,
            },
        )
        .unwrap();
        state
    }

    fn take(state: &mut State, input: Input) -> Result<Reply, Refusal> {
        handle(state, &mut Vec::new(), input, Timestamp(1_000))
    }

    fn order(
        state: &mut State,
        operator: bool,
        uuid: &str,
        what: GpuAction,
    ) -> Result<Reply, Refusal> {
        let actor = Actor {
            user: "root".into(),
            operator,
            ..Actor::default()
        };
        take(
            state,
            Input::Command {
                actor,
                command: Command::GpuOrder {
                    node: NODE,
                    uuid: uuid.into(),
                    what,
                },
            },
        )
    }

    fn answer(state: &mut State, number: u64) {
        let done = vec![GpuOrderDone {
            number,
            uuid: "GPU-a".into(),
            error: String::new(),
            check: None,
        }];
        take(
            state,
            Input::Node {
                node: NODE,
                report: NodeReport::GpuOrders { done },
            },
        )
        .unwrap();
    }

    #[test]
    fn an_order_stands_until_the_node_answers_it_and_a_newer_takes_its_place() {
        let mut state = pool();
        let before = desired(&state, NODE).fence;
        order(
            &mut state,
            true,
            "GPU-a",
            GpuAction::Quarantine {
                reason: "hot".into(),
            },
        )
        .unwrap();
        let first = desired(&state, NODE);
        assert!(first.fence > before && first.gpus.len() == 1);
        order(&mut state, true, "GPU-a", GpuAction::Return).unwrap();
        let second = desired(&state, NODE);
        assert_eq!(
            second
                .gpus
                .iter()
                .map(|order| &order.what)
                .collect::<Vec<_>>(),
            [&GpuAction::Return]
        );
        answer(&mut state, first.gpus[0].number);
        assert_eq!(
            desired(&state, NODE),
            second,
            "the answer to an order that is over is no news"
        );
        answer(&mut state, second.gpus[0].number);
        assert!(desired(&state, NODE).gpus.is_empty());
    }

    #[test]
    fn orders_are_operators_affair_and_name_a_gpu_and_a_reason() {
        let mut state = pool();
        let quarantine = |reason: &str| GpuAction::Quarantine {
            reason: reason.into(),
        };
        let text = |refused: Result<Reply, Refusal>| refused.unwrap_err().text;
        assert!(text(order(&mut state, false, "GPU-a", GpuAction::Return)).contains("operator"));
        assert!(
            text(order(&mut state, true, "GPU-x", quarantine("hot")))
                .contains("node1 has no GPU GPU-x")
        );
        assert!(text(order(&mut state, true, "GPU-a", quarantine(" "))).contains("--reason"));
        assert!(state.node(NODE).unwrap().gpu_work.orders.is_empty());
    }
}
