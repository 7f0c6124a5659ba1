//! Calls the site's `fence_program` for each lost node that the core wants powered off, and tells the core how it ended.
//!
//! Decides nothing: which node, when, and when again is in the state ([`gcore::ctl::fence_orders`]). A controller that was
//! killed in the middle of a call makes it again, so the program has to bear being called twice.

use crate::config::SiteProgram;
use crate::core_thread::CoreHandle;
use crate::http::App;
use crate::site_program;
use gcore::ctl::{FenceOrder, fence_orders};
use gmodel::NodeId;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Between two looks at the state: small beside the time until a node counts as lost.
const LOOK: Duration = Duration::from_millis(500);
/// Calls at once: a rack that lost its power is many nodes.
const CALLS: usize = 32;

/// What a call came to.
struct Called {
    node: NodeId,
    number: u64,
    failure: Option<String>,
}

/// Runs until we stop; calls under way are ended then, and made again by the next controller.
pub async fn run(core: CoreHandle, app: Arc<App>, mut stop: watch::Receiver<bool>) {
    let mut calls = JoinSet::new();
    let mut under_way: Vec<u64> = Vec::new();
    let mut seen = None;
    while !*stop.borrow() {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            Some(Ok(Called { node, number, failure })) = calls.join_next() => {
                // Refused when we are stopping or swamped: the order stands, and is carried out once more.
                let _ = core.fenced(node, number, failure).await;
                under_way.retain(|one| *one != number);
                seen = None;
            }
            _ = stop.changed() => continue, // told to stop, or nobody is left who could
        }
        let Some(program) = app.config().fence.clone() else { continue };
        let version = core.version();
        if seen == Some(version) {
            continue;
        }
        seen = Some(version);
        for order in fence_orders(&*core.view().await) {
            if under_way.len() >= CALLS {
                break;
            }
            if !under_way.contains(&order.number) {
                under_way.push(order.number);
                calls.spawn(call(program.clone(), order));
            }
        }
    }
}

async fn call(program: SiteProgram, order: FenceOrder) -> Called {
    let FenceOrder { node, number, ref name, attempt, .. } = order;
    tracing::warn!(node = name, attempt, program = %program.program.display(), "powering off a lost node: {}", order.lost);
    let failure = carry_out(&program, &order).await.err();
    match &failure {
        None => tracing::warn!(node = name, attempt, "powered off"),
        Some(why) => tracing::error!(node = name, attempt, "it is not powered off, and its jobs wait: {why}"),
    }
    Called { node, number, failure }
}

/// # Errors
/// How it failed, in one sentence with the program's last words.
async fn carry_out(program: &SiteProgram, order: &FenceOrder) -> Result<(), String> {
    let environment =
        [("GPUPOOL_NODE", order.name.clone()), ("GPUPOOL_REASON", order.lost.clone()), ("GPUPOOL_ATTEMPT", order.attempt.to_string())];
    site_program::call("fence_program", program, &order.name, &environment).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_is_told_the_node_the_reason_and_the_attempt_and_its_end_counts() {
        let dir = tempfile::tempdir().unwrap();
        let order = FenceOrder { node: NodeId(1), name: "n1".into(), number: 7, attempt: 2, lost: "silent".into() };
        let told = site_program::script(&dir, "[ \"$1 $GPUPOOL_NODE $GPUPOOL_REASON $GPUPOOL_ATTEMPT\" = 'n1 n1 silent 2' ]");
        assert_eq!(carry_out(&told, &order).await, Ok(()));
        let failed = site_program::script(&dir, "echo trying; echo no route to 10.0.0.7 >&2; exit 3");
        assert_eq!(carry_out(&failed, &order).await, Err("fence_program ended with 3: no route to 10.0.0.7".into()));
    }
}
