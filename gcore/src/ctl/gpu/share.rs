//! GPU shares: whether a partition allows them, and the rule for each GPU (`GpuPart::goes_beside`). The
//! scheduler chooses the GPU (`gsched::sharing`); the node enforces the share.

use crate::ctl::command::Refusal;
use crate::ctl::state::{Node, State};
use gmodel::config::{ClusterConfig, GpuSharing, Partition, PartitionState};
use gmodel::gpu_request::GpuAmount;
use gmodel::{GpuPart, GpuSet, NodeId, RefusalKind, Request, RunId};
use std::collections::BTreeMap;

/// The smallest share under MPS: a server has some 48 clients, and each process of a job is one.
const LEAST_MPS_MILLI: u32 = 50;

/// Refuses a share that the partition does not allow, with what would work.
pub(crate) fn check_request(
    config: &ClusterConfig,
    partition: &Partition,
    request: &Request,
) -> Result<(), Refusal> {
    let invalid = |text: String| Err(Refusal::invalid(text).about(RefusalKind::Gpus));
    let alternatives = request.gpus.iter().flat_map(|ask| &ask.alternatives);
    for one in alternatives {
        let GpuAmount::Share { milli } = one.amount else {
            continue;
        };
        match partition.gpu_sharing {
            GpuSharing::Off => return invalid(no_shares(config, partition, &one.amount)),
            GpuSharing::Mps if milli < LEAST_MPS_MILLI => {
                let least = GpuAmount::Share {
                    milli: LEAST_MPS_MILLI,
                };
                return invalid(format!(
                    "--gpus {}: MPS shares a GPU among too few processes for parts below {least}. Ask for {least} or more.",
                    one.amount
                ));
            }
            GpuSharing::Mps | GpuSharing::Uncapped => {}
        }
    }
    Ok(())
}

fn no_shares(config: &ClusterConfig, partition: &Partition, amount: &GpuAmount) -> String {
    let shares =
        |one: &&Partition| one.gpu_sharing != GpuSharing::Off && one.state == PartitionState::Up;
    let others: Vec<String> = config
        .partitions
        .iter()
        .filter(shares)
        .map(|one| format!("{:?}", one.name))
        .collect();
    let name = &partition.name;
    let advice = match others[..] {
        [] => "Ask for whole GPUs.".to_owned(),
        _ => format!(
            "Ask for whole GPUs, or name a partition that shares them: {}.",
            others.join(", ")
        ),
    };
    format!(
        "--gpus {amount}: partition {name:?} gives GPUs whole (gpu_sharing = \"off\"). {advice}"
    )
}

/// Whether these parts may lie beside the parts that runs hold on the node's GPUs now.
pub(crate) fn stand_beside(state: &State, node: &Node, gpus: &GpuSet) -> bool {
    !gpus.0.iter().any(|grant| is_share(&grant.part))
        || held_on(state, node).all(|(slot, _, held)| {
            gpus.0
                .iter()
                .filter(|grant| grant.slot.0 == slot)
                .all(|grant| grant.part.goes_beside(held))
        })
}

fn is_share(part: &GpuPart) -> bool {
    matches!(part, GpuPart::Share { .. })
}

/// The parts of a node's GPUs that runs hold, by slot.
fn held_on<'a>(
    state: &'a State,
    node: &'a Node,
) -> impl Iterator<Item = (u16, RunId, &'a GpuPart)> {
    let runs = node.runs.iter().filter_map(|run| state.run(*run));
    runs.flat_map(move |run| {
        let here = run
            .allocation
            .iter()
            .zip(&run.members)
            .filter(|(share, member)| share.node == node.id && !member.is_clean());
        here.flat_map(|(share, _)| &share.gpus.0)
            .map(|grant| (grant.slot.0, run.id, &grant.part))
    })
}

/// Violation: parts on one GPU that may not lie side by side.
pub(crate) fn check(state: &State, found: &mut Vec<String>) {
    for node in state.nodes.values() {
        let mut first: BTreeMap<(NodeId, u16), (RunId, &GpuPart)> = BTreeMap::new();
        for (slot, run, part) in held_on(state, node) {
            // Parts that go beside the first go beside all: the rule compares equal things.
            match first.get(&(node.id, slot)) {
                Some((other, held))
                    if (is_share(part) || is_share(held)) && !part.goes_beside(held) =>
                {
                    found.push(format!("GPU {slot} of node {} is held as {held:?} by run {other} and as {part:?} by run {run}", node.name));
                }
                Some(_) => {}
                None => {
                    first.insert((node.id, slot), (run, part));
                }
            }
        }
    }
}
