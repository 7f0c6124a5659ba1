//! What running steps use by now: asked of the nodes of their runs, all at the same time, and kept nowhere.
//!
//! A run of which a node does not answer has no figures: half of them would look like the whole.

use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use gmodel::run::RunUse;
use gmodel::{NodeId, RunId};
use std::collections::{BTreeMap, BTreeSet};
use tokio::task::JoinSet;

/// Nodes that one request may ask.
const MAX_ASKED: usize = 256;

/// The use of each run, over its nodes.
///
/// # Errors
/// More nodes than one request may ask.
pub(crate) async fn of_runs(
    site: &ApiContext,
    runs: &[(RunId, Vec<NodeId>)],
) -> Result<BTreeMap<RunId, RunUse>, ApiError> {
    let asked: usize = runs.iter().map(|(_, nodes)| nodes.len()).sum();
    if asked > MAX_ASKED {
        let text = format!(
            "these jobs run on {asked} nodes, and {MAX_ASKED} are asked at a time: name fewer jobs"
        );
        return Err(ApiError::limit(text));
    }
    let mut answers = JoinSet::new();
    for (run, node) in runs
        .iter()
        .flat_map(|(run, nodes)| nodes.iter().map(|node| (*run, *node)))
    {
        let app = site.app.clone();
        answers.spawn(async move { (run, app.links.read_use(node, run).await) });
    }
    let mut uses: BTreeMap<RunId, RunUse> = BTreeMap::new();
    let mut silent = BTreeSet::new();
    while let Some(Ok((run, answer))) = answers.join_next().await {
        match answer {
            Ok(used) => uses.entry(run).or_default().add(&used),
            Err(_) => drop(silent.insert(run)),
        }
    }
    uses.retain(|run, _| !silent.contains(run));
    Ok(uses)
}
