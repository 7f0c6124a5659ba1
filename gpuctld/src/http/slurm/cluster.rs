//! Nodes, partitions, reservations, licences, shares, and the controller itself.

use super::error::SlurmError;
use super::question::Query;
use super::request::{Parts, RestRequest, now};
use gmodel::RefusalKind;
use gslurm_json::controller::{Diagnosis, LICENCE, STATISTICS, pings, shares as share_tree};
use gslurm_json::datum::{record, records};
use gslurm_json::node::{NODE, NodeCell};
use gslurm_json::partition::{PARTITION, PartitionCell};
use gslurm_json::reservation::{RESERVATION, ReservationCell};
use gwire::api::{ClusterInfo, LicenceRow, NodeRow, PartitionRow, ReservationRow, ShareRow};
use gwire::client::path_with_query;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Instant;

/// Those of `rows` with this name, or all.
fn named<R>(
    mut rows: Vec<R>,
    asked: Option<&str>,
    name: impl Fn(&R) -> &str,
    about: RefusalKind,
) -> Result<Vec<R>, SlurmError> {
    if let Some(wanted) = asked {
        rows.retain(|row| name(row) == wanted);
        if rows.is_empty() {
            let wanted: String = wanted.chars().take(80).collect();
            return Err(SlurmError::about(
                about,
                format!("there is none of the name {wanted:?}"),
            ));
        }
    }
    Ok(rows)
}

fn with_update(key: &'static str, list: Value) -> Parts {
    vec![(key, list), ("last_update", now())]
}

async fn node_rows(asked: &RestRequest) -> Result<Vec<NodeRow>, SlurmError> {
    asked.v1.list("/v1/nodes", "nodes").await
}

/// `GET nodes/` and `node/{node_name}`.
pub(super) async fn nodes(
    asked: &RestRequest,
    name: Option<&str>,
    query: &mut Query,
) -> Result<Parts, SlurmError> {
    query.settle_whole()?;
    let rows = named(
        node_rows(asked).await?,
        name,
        |row| &row.name,
        RefusalKind::NodeName,
    )?;
    let cells = rows
        .into_iter()
        .map(|row| NodeCell::of(row, asked.cluster.clone()));
    Ok(with_update("nodes", records(NODE, cells)))
}

/// `GET partitions/` and `partition/{partition_name}`.
pub(super) async fn partitions(
    asked: &RestRequest,
    name: Option<&str>,
    query: &mut Query,
) -> Result<Parts, SlurmError> {
    query.settle_whole()?;
    let rows: Vec<PartitionRow> = asked.v1.list("/v1/partitions", "partitions").await?;
    let rows = named(rows, name, |row| &row.name, RefusalKind::Partition)?;
    let nodes = node_rows(asked).await?;
    let cells = rows
        .into_iter()
        .map(|row| PartitionCell::of(row, &nodes, asked.cluster.clone()));
    Ok(with_update("partitions", records(PARTITION, cells)))
}

/// `GET reservations/` and `reservation/{reservation_name}`.
pub(super) async fn reservations(
    asked: &RestRequest,
    name: Option<&str>,
    query: &mut Query,
) -> Result<Parts, SlurmError> {
    query.settle_whole()?;
    let rows: Vec<ReservationRow> = asked.v1.list("/v1/reservations", "reservations").await?;
    let rows = named(
        rows,
        name,
        |row| &row.reservation.name,
        RefusalKind::Reservation,
    )?;
    let nodes = node_rows(asked).await?;
    let cells = rows.into_iter().map(|row| ReservationCell::of(row, &nodes));
    Ok(with_update("reservations", records(RESERVATION, cells)))
}

/// `GET ping/`.
pub(super) async fn ping(asked: &RestRequest) -> Result<Parts, SlurmError> {
    let since = Instant::now();
    let cluster: ClusterInfo = asked.v1.get("/v1/cluster").await?;
    Ok(vec![("pings", pings(&cluster, since.elapsed()))])
}

/// `GET diag/`.
pub(super) async fn diagnosis(asked: &RestRequest) -> Result<Parts, SlurmError> {
    let diagnosis: Diagnosis = asked.v1.get("/v1/diag").await?;
    Ok(vec![("statistics", record(STATISTICS, &diagnosis))])
}

/// `GET licenses/`.
pub(super) async fn licences(asked: &RestRequest) -> Result<Parts, SlurmError> {
    let rows: Vec<LicenceRow> = asked.v1.list("/v1/licences", "licences").await?;
    Ok(with_update("licenses", records(LICENCE, rows)))
}

/// `GET shares`.
pub(super) async fn shares(asked: &RestRequest, query: &mut Query) -> Result<Parts, SlurmError> {
    let chosen = BTreeMap::from([
        ("account", query.take("accounts")),
        ("user", query.take("users")),
    ]);
    let chosen: BTreeMap<_, _> = chosen
        .iter()
        .filter(|(_, names)| !names.is_empty())
        .collect();
    let path = path_with_query("/v1/shares", &json!(chosen));
    let rows: Vec<ShareRow> = asked.v1.list(&path, "shares").await?;
    Ok(vec![("shares", share_tree(rows, &asked.cluster))])
}
