//! `sacctmgr show ... --json`: prints the documents of `gslurm_json`.

use super::association;
use super::entity::Entity;
use super::request::ListRequest;
use super::{qos, tres};
use crate::json::{cluster_name, print as document};
use gcli::answer::list as all_of;
use gcli::{Failure, Outcome};
use gslurm_json::accounting::{
    ACCOUNT, ASSOCIATION, CLUSTER, ClusterCell, QOS, TRES, USER, association_cells, by_account,
    by_user, qos_cells,
};
use gwire::api::{ClusterInfo, NodeRow};
use gwire::client::Client;
use std::sync::Arc;

/// Columns of associations that need requests of their own.
const COLUMNS: &[&str] = &["cluster", "qos", "adminlevel"];

/// Prints what was asked for.
///
/// # Errors
/// What has no JSON.
pub(super) fn print(client: &mut Client, mut asked: ListRequest) -> Outcome {
    let cluster = cluster_name(client)?;
    match asked.kind {
        Entity::Tres => {
            let rows = tres::rows(client)?;
            document(&cluster, "TRES", TRES, rows.into_iter(), &[])
        }
        Entity::Cluster => {
            let row = cluster_cell(client, &asked.names)?;
            document(&cluster, "clusters", CLUSTER, row.into_iter(), &[])
        }
        Entity::Qos => {
            let tres = Arc::new(tres::rows(client)?);
            let rows = qos::rows(client, &asked.names)?;
            document(&cluster, "qos", QOS, qos_cells(rows, &tres), &[])
        }
        Entity::Users => {
            asked.with_associations = true;
            let users = by_user(association::rows(client, &asked, COLUMNS)?);
            document(&cluster, "users", USER, users.into_iter(), &[])
        }
        Entity::Accounts => {
            asked.with_associations = true;
            let accounts = by_account(association::rows(client, &asked, COLUMNS)?);
            document(&cluster, "accounts", ACCOUNT, accounts.into_iter(), &[])
        }
        Entity::Associations => {
            let tres = Arc::new(tres::rows(client)?);
            let rows = association::rows(client, &asked, COLUMNS)?;
            let cells = association_cells(rows, &tres);
            document(&cluster, "associations", ASSOCIATION, cells, &[])
        }
        // Jobs have tags instead.
        Entity::Wckeys => document(&cluster, "wckeys", &[], std::iter::empty::<()>(), &[]),
        Entity::Runaway | Entity::Events | Entity::Problems | Entity::Transactions => {
            Err(Failure::usage(
                "there is no JSON of it: accounts, associations, clusters, qos, tres, users and wckeys have one",
            ))
        }
    }
}

/// Where it is among those asked for.
fn cluster_cell(client: &mut Client, asked: &[String]) -> Result<Option<ClusterCell>, Failure> {
    let info = client.get::<ClusterInfo>("/v1/cluster")?;
    let nodes: Vec<NodeRow> = all_of(client, "/v1/nodes")?;
    let names = nodes.into_iter().map(|node| node.name).collect();
    let is_asked = asked.is_empty() || asked.contains(&info.name);
    Ok(is_asked.then_some(ClusterCell { info, names }))
}
