//! Lost nodes: their runs are written off; with a `fence_program` only after it has powered the node off, so
//! that no job runs twice.
//!
//! Decides when the program is called, and called again after a failure; never calls it: gpuctld does, for
//! each [`FenceOrder`] in the state. Like STONITH in cluster managers, and `fence_agents`.

use crate::ctl::command::{Actor, Refusal};
use crate::ctl::event::Event;
use crate::ctl::node;
use crate::ctl::node::breaker::Loss;
use crate::ctl::node::identity::has_open_runs;
use crate::ctl::run::report::forfeit_runs;
use crate::ctl::state::{FenceFailure, Fencing, Node, State};
use crate::ctl::tx::{Tx, operator_only};
use gmodel::node::Link;
use gmodel::{NodeId, Timestamp};

/// Wait after the first failure, seconds; doubled each time.
const FIRST_BACK_OFF_SECS: i64 = 5;
const MAX_BACK_OFF_SECS: i64 = 300;
/// Most of a program's output that is kept, bytes.
const MAX_WORDS_BYTES: usize = 1000;

/// A call of the fence program that is due now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceOrder {
    pub node: NodeId,
    pub name: String,
    /// Number of this call; the answer names it.
    pub number: u64,
    /// Calls for this loss of the node, this one included.
    pub attempt: u32,
    /// Why the node counts as lost.
    pub lost: String,
}

/// The calls that should be under way. A call by an earlier controller is repeated, later.
pub fn fence_orders(state: &State) -> Vec<FenceOrder> {
    let due = |node: &&Node| {
        node.fencing
            .as_ref()
            .is_some_and(|f| f.failed.is_none() && f.asked >= state.started)
    };
    let order = |node: &Node| {
        let fencing = node.fencing.as_ref()?;
        let (number, attempt, lost) = (fencing.number, fencing.attempts, fencing.lost.clone());
        Some(FenceOrder {
            node: node.id,
            name: node.name.clone(),
            number,
            attempt,
            lost,
        })
    };
    state
        .watched_nodes()
        .filter(due)
        .filter_map(order)
        .collect()
}

/// The node counts as lost: its runs end now, or when it is known to be off.
pub(crate) fn give_up(tx: &mut Tx, id: NodeId, lost: &str) {
    if !must_fence(tx.state, id) {
        forfeit_runs(tx, id, lost);
    } else if is_counted(tx, id) || node::breaker::allows(tx.state, id, Loss::Node, tx.now) {
        ask(tx, id, lost, true);
    } else {
        let text = "too many nodes of its partition were fenced or drained within the hour; the network may be at fault. \
                    `gadm node down` fences this one now";
        let retry = tx.now.plus_secs(MAX_BACK_OFF_SECS);
        tx.emit(Event::NodeFenceFailed {
            node: id,
            lost: lost.into(),
            text: text.into(),
            retry,
            at: tx.now,
        });
    }
}

/// An operator declares the node dead; `fenced`: and certainly off.
pub(crate) fn declare(tx: &mut Tx, id: NodeId, lost: &str, fenced: bool, by: &str) {
    if fenced || !must_fence(tx.state, id) {
        if tx.node(id).is_some_and(|node| node.fencing.is_some()) {
            tx.emit(Event::NodeFenced {
                node: id,
                by: by.into(),
                at: tx.now,
            });
        }
        forfeit_runs(tx, id, lost);
    } else if !is_under_way(tx.state, id) {
        ask(tx, id, lost, false);
    }
}

/// The result of a call. An answer to an older call is ignored: the node was back meanwhile.
pub(crate) fn answered(tx: &mut Tx, id: NodeId, number: u64, failure: Option<String>) {
    let fencing = tx.node(id).and_then(|node| node.fencing.as_ref());
    let Some(fencing) = fencing.filter(|f| f.number == number && f.failed.is_none()) else {
        return;
    };
    let lost = fencing.lost.clone();
    match failure {
        None => {
            tx.emit(Event::NodeFenced {
                node: id,
                by: "fence_program".into(),
                at: tx.now,
            });
            forfeit_runs(tx, id, &format!("{lost}; fence_program powered it off"));
        }
        Some(mut text) => {
            let doublings = fencing.attempts.saturating_sub(1).min(10);
            let wait = (FIRST_BACK_OFF_SECS << doublings).min(MAX_BACK_OFF_SECS);
            let end = (0..=text.len().min(MAX_WORDS_BYTES))
                .rev()
                .find(|at| text.is_char_boundary(*at));
            text.truncate(end.unwrap_or(0));
            let retry = tx.now.plus_secs(wait);
            tx.emit(Event::NodeFenceFailed {
                node: id,
                lost,
                text,
                retry,
                at: tx.now,
            });
        }
    }
}

/// Repeats failed calls that are due; without a program the runs are written off.
pub(crate) fn try_again(tx: &mut Tx) {
    let now = tx.now;
    let due = tx
        .state
        .watched_nodes()
        .filter(|node| next_call(tx.state, node).is_some_and(|at| at <= now));
    let due: Vec<(NodeId, String)> = due
        .filter_map(|node| Some((node.id, node.fencing.as_ref()?.lost.clone())))
        .collect();
    for (id, lost) in due {
        if must_fence(tx.state, id) {
            // The breaker counted it at the first call.
            match tx
                .node(id)
                .and_then(|node| node.fencing.as_ref())
                .is_some_and(|f| f.attempts > 0)
            {
                true => ask(tx, id, &lost, false),
                false => give_up(tx, id, &lost),
            }
        } else {
            tx.emit(Event::NodeFenced {
                node: id,
                by: "nobody: there is nothing to fence it for".into(),
                at: now,
            });
            forfeit_runs(tx, id, &lost);
        }
    }
}

/// When a fenced node without an answer is due. Silence counts from the controller's own start, so that a
/// healthy node has time to report.
pub(crate) fn next_call(state: &State, node: &Node) -> Option<Timestamp> {
    let fencing = node.fencing.as_ref()?;
    let patience = state
        .started
        .plus_secs(i64::from(state.config.node_timeout_secs));
    if !must_fence(state, node.id) {
        return Some(state.started);
    }
    match &fencing.failed {
        Some(failure) if fencing.asked >= state.started => Some(failure.retry),
        Some(failure) => Some(failure.retry.max(patience)),
        None => (fencing.asked < state.started).then_some(patience),
    }
}

/// # Errors
/// Except for operators, and without a program that could have fenced the node.
pub(crate) fn may_declare(actor: &Actor, state: &State, fenced: bool) -> Result<(), Refusal> {
    operator_only(actor, "declaring a node down")?;
    match fenced && !state.config.fence_program {
        true => Err(Refusal::conflict(
            "there is no fence_program in gpuctld.toml, so nothing waits for it: leave --fenced away.",
        )),
        false => Ok(()),
    }
}

fn ask(tx: &mut Tx, id: NodeId, lost: &str, automatic: bool) {
    tx.emit(Event::NodeFenceAsked {
        node: id,
        lost: lost.into(),
        automatic,
        at: tx.now,
    });
}

/// Whether the breaker counts the node already.
fn is_counted(tx: &Tx, id: NodeId) -> bool {
    let hour_ago = tx.now.plus_secs(-3600);
    tx.state
        .automatic
        .drains
        .iter()
        .any(|(at, node)| *node == id && *at > hour_ago)
}

fn is_under_way(state: &State, id: NodeId) -> bool {
    fence_orders(state).iter().any(|order| order.node == id)
}

/// There is a program, and a run that must not go on elsewhere before the node is off.
fn must_fence(state: &State, id: NodeId) -> bool {
    state.config.fence_program && has_open_runs(state, id)
}

/// What the runs of a lost node wait for, for listings.
pub fn fence_words(node: &Node) -> Option<String> {
    let fencing = node.fencing.as_ref()?;
    let Fencing { lost, attempts, .. } = fencing;
    Some(match &fencing.failed {
        None => format!(
            "{lost}; its jobs wait until fence_program has powered it off (call {attempts})"
        ),
        Some(FenceFailure { text, retry }) => {
            let tried = if *attempts == 0 {
                String::new()
            } else {
                format!(" (call {attempts})")
            };
            format!(
                "{lost}; its jobs wait until it is powered off: {text}{tried}; again at {retry}"
            )
        }
    })
}

pub(crate) fn check(state: &State, found: &mut Vec<String>) {
    for node in state.nodes.values().filter(|node| node.fencing.is_some()) {
        if node.link != Link::Down {
            found.push(format!(
                "node {} is to be powered off and is not lost",
                node.name
            ));
        }
    }
}
