//! The page of the pool: what it asks.

use super::jobs::JobPart;
use super::page::Visitor;
use crate::http::inside::{Inside, InsideError};
use axum::extract::Query;
use axum::response::Response;
use gweb::{Group, Place, PoolPage, pool_page};
use gwire::api::{DemandRow, GpuHealthRow, JobRow, NodeRow};
use gwire::client::path_with_query;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Nodes of one page.
const NODES: usize = 60;

/// Which nodes are shown.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeChoice {
    node: String,
    from: String,
}

pub(super) async fn show(visitor: Visitor, Query(choice): Query<NodeChoice>) -> Response {
    match content(visitor.inside(), &choice).await {
        Ok(content) => visitor.ok("Pool", Place::Pool, &content),
        Err(error) => visitor.refused(&error),
    }
}

async fn content(inside: &Inside, choice: &NodeChoice) -> Result<gweb::Markup, InsideError> {
    let nodes: Vec<NodeRow> = inside.list("/v1/nodes", "nodes").await?;
    let gpus: Vec<GpuHealthRow> = inside.list("/v1/gpus", "gpus").await?;
    let query = [
        ("state", Group::Running.states()),
        ("columns", "shown_id,user,account".to_owned()),
        ("limit", u32::MAX.to_string()),
    ];
    let path = path_with_query("/v1/jobs", &BTreeMap::from(query));
    let jobs: Vec<JobRow> = inside.get::<JobPart>(&path).await?.jobs;
    let demand: Vec<DemandRow> = inside.list("/v1/demand", "demand").await?;
    let key = |row: &GpuHealthRow| (row.node.clone(), row.uuid.clone());
    let page = PoolPage {
        nodes: &nodes,
        health: &gpus.into_iter().map(|row| (key(&row), row)).collect(),
        jobs: &jobs
            .into_iter()
            .map(|row| (row.shown_id.clone(), row))
            .collect(),
        demand: &demand,
        find: choice.node.trim(),
        offset: choice.from.parse().unwrap_or(0),
        limit: NODES,
    };
    Ok(pool_page(&page))
}
