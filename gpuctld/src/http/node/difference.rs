//! `GET /v1/differences`: where nodes are not what `[expect.NAME]` says they should be. Shown, and nothing more.

use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::permission::Caller;
use crate::http::query::QueryPairs;
use axum::Json;
use axum::extract::State as Shared;
use gcore::ctl::State;
use gmodel::expected_hardware::ExpectedHardware;
use gmodel::node::Link;
use gwire::api::{DifferenceRow, SCHEMA};
use serde::Serialize;
use std::collections::BTreeSet;

#[derive(Serialize)]
pub(crate) struct DifferenceList {
    schema: u32,
    /// Nodes of which something is said.
    expected: u64,
    differences: Vec<DifferenceRow>,
}

pub(crate) async fn list(
    _: Caller,
    Shared(site): Shared<ApiContext>,
    pairs: QueryPairs,
) -> Result<Json<DifferenceList>, ApiError> {
    pairs.only(&[])?;
    let state = site.core.view().await;
    let expected: BTreeSet<&str> = state
        .config
        .expected
        .iter()
        .flat_map(|one| one.nodes.iter())
        .collect();
    Ok(Json(DifferenceList {
        schema: SCHEMA,
        expected: expected.len() as u64,
        differences: differences(&state),
    }))
}

/// All of them, in the order of the tables and of the nodes in each; the first table that names a node counts.
pub(crate) fn differences(state: &State) -> Vec<DifferenceRow> {
    let mut seen = BTreeSet::new();
    let mut rows = Vec::new();
    for expected in &state.config.expected {
        for name in expected
            .nodes
            .iter()
            .filter(|name| seen.insert((*name).to_owned()))
        {
            rows.extend(of_node(state, expected, name));
        }
    }
    rows
}

fn of_node(state: &State, expected: &ExpectedHardware, name: &str) -> Vec<DifferenceRow> {
    let row = |what: &str, expected: String, found: String| DifferenceRow {
        node: name.to_owned(),
        what: what.to_owned(),
        expected,
        found,
    };
    let missing = |found: &str| vec![row("node", "connected".to_owned(), found.to_owned())];
    match state.node_by_name(name) {
        None => missing("has not joined"),
        Some(node) if node.link == Link::Never => missing("never connected"),
        Some(node) => {
            let all = expected.differences(&node.inventory, &node.gpus);
            all.into_iter()
                .map(|one| row(one.what, one.expected, one.found))
                .collect()
        }
    }
}
