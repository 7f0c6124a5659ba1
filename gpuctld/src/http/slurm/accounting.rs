//! Accounts, associations, users, QOS, TRES and the cluster.

use super::error::SlurmError;
use super::question::Query;
use super::request::{Parts, RestRequest};
use gmodel::RefusalKind;
use gslurm_json::accounting::{
    ACCOUNT, ASSOCIATION, AllTres, CLUSTER, ClusterCell, QOS, TRES, USER, association_cells,
    by_account, by_user, qos_cells,
};
use gslurm_json::association::{
    AssociationFilter, LineOf, Records, associations as chosen, with_normal,
};
use gslurm_json::datum::records;
use gslurm_json::tres::counted;
use gwire::api::{AccountRow, ClusterInfo, NodeRow, QosRow};
use serde_json::{Value, json};
use std::sync::Arc;

/// Conditions of Slurm that are met by what there is: records are never marked as deleted, and come with all there is of them.
const MET: [&str; 8] = [
    "with_assocs",
    "with_coords",
    "with_deleted",
    "with_wckeys",
    "with_usage",
    "with_raw_qos",
    "with_sub_accts",
    "without_defaults",
];

fn names(text: &str) -> Vec<String> {
    let names = text.split(',').map(str::trim);
    names
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

async fn all_records(asked: &RestRequest) -> Result<Records, SlurmError> {
    let accounts: Vec<AccountRow> = asked.v1.list("/v1/accounts", "accounts").await?;
    Ok(Records {
        cluster: asked.cluster.to_string(),
        accounts: accounts.into_iter().map(|row| row.account).collect(),
        qos: qos_records(asked).await?,
        operators: operators(asked).await,
    })
}

/// The operators; None where the caller may not read the configuration.
async fn operators(asked: &RestRequest) -> Option<Vec<String>> {
    let config: Value = asked.v1.get("/v1/config").await.ok()?;
    let names = config.pointer("/cluster/operators")?;
    serde_json::from_value(names.clone()).ok()
}

async fn qos_records(asked: &RestRequest) -> Result<Vec<gmodel::policy::Qos>, SlurmError> {
    let rows: Vec<QosRow> = asked.v1.list("/v1/qos", "qos").await?;
    Ok(with_normal(rows.into_iter().map(|row| row.qos).collect()))
}

async fn all_tres(asked: &RestRequest) -> Result<AllTres, SlurmError> {
    let nodes: Vec<NodeRow> = asked.v1.list("/v1/nodes", "nodes").await?;
    Ok(Arc::new(counted(&nodes)))
}

fn settle(query: &mut Query) {
    for key in MET {
        query.take(key);
    }
}

/// None of a name that was asked for alone.
fn must_be(found: bool, name: Option<&str>, about: RefusalKind) -> Result<(), SlurmError> {
    match name {
        Some(name) if !found => {
            let name: String = name.chars().take(80).collect();
            Err(SlurmError::about(
                about,
                format!("there is none of the name {name:?}"),
            ))
        }
        _ => Ok(()),
    }
}

/// `GET accounts/` and `account/{account_name}`.
pub(super) async fn accounts(
    asked: &RestRequest,
    name: Option<&str>,
    query: &mut Query,
) -> Result<Parts, SlurmError> {
    settle(query);
    let wanted = AssociationFilter {
        line_of: LineOf::Accounts,
        with_associations: true,
        accounts: name.map(str::to_owned).into_iter().collect(),
        ..AssociationFilter::default()
    };
    let accounts = by_account(chosen(&all_records(asked).await?, &wanted));
    must_be(!accounts.is_empty(), name, RefusalKind::Account)?;
    Ok(vec![("accounts", records(ACCOUNT, accounts))])
}

/// `GET associations/`, and `association/`, which is the first of them.
pub(super) async fn associations(
    asked: &RestRequest,
    query: &mut Query,
    first: bool,
) -> Result<Parts, SlurmError> {
    settle(query);
    query.refuse(&["id", "partition", "qos", "default_qos"])?;
    query.take_cluster(&asked.cluster)?;
    let wanted = AssociationFilter {
        users: names(&query.take("user")),
        accounts: names(&query.take("account")),
        parents: names(&query.take("parent_account")),
        ..AssociationFilter::default()
    };
    let mut rows = chosen(&all_records(asked).await?, &wanted);
    if first {
        rows.truncate(1);
    }
    let tres = all_tres(asked).await?;
    let cells = association_cells(rows, &tres);
    Ok(vec![("associations", records(ASSOCIATION, cells))])
}

/// `GET users/` and `user/{name}`.
pub(super) async fn users(
    asked: &RestRequest,
    name: Option<&str>,
    query: &mut Query,
) -> Result<Parts, SlurmError> {
    settle(query);
    query.refuse(&["admin_level", "default_wckey"])?;
    let wanted = AssociationFilter {
        line_of: LineOf::Users,
        with_associations: true,
        users: name.map(str::to_owned).into_iter().collect(),
        ..AssociationFilter::default()
    };
    let users = by_user(chosen(&all_records(asked).await?, &wanted));
    must_be(!users.is_empty(), name, RefusalKind::Account)?;
    Ok(vec![("users", records(USER, users))])
}

/// `GET qos/` and `qos/{qos}`.
pub(super) async fn qos(
    asked: &RestRequest,
    name: Option<&str>,
    query: &mut Query,
) -> Result<Parts, SlurmError> {
    settle(query);
    query.refuse(&["id", "preempt_mode"])?;
    let mut wanted = names(&query.take("name"));
    wanted.extend(name.map(str::to_owned));
    let tres = all_tres(asked).await?;
    let mut rows = qos_records(asked).await?;
    rows.retain(|row| wanted.is_empty() || wanted.contains(&row.name));
    must_be(!rows.is_empty(), name, RefusalKind::Qos)?;
    Ok(vec![("qos", records(QOS, qos_cells(rows, &tres)))])
}

/// `GET clusters/` and `cluster/{cluster_name}`.
pub(super) async fn clusters(asked: &RestRequest, name: Option<&str>) -> Result<Parts, SlurmError> {
    let info: ClusterInfo = asked.v1.get("/v1/cluster").await?;
    let found = name.is_none_or(|name| name == info.name);
    must_be(found, name, RefusalKind::Other)?;
    let nodes: Vec<NodeRow> = asked.v1.list("/v1/nodes", "nodes").await?;
    let names = nodes.into_iter().map(|node| node.name).collect();
    let cell = ClusterCell { info, names };
    Ok(vec![("clusters", records(CLUSTER, [cell]))])
}

/// `GET tres/`.
pub(super) async fn tres(asked: &RestRequest) -> Result<Parts, SlurmError> {
    let nodes: Vec<NodeRow> = asked.v1.list("/v1/nodes", "nodes").await?;
    Ok(vec![("TRES", records(TRES, counted(&nodes)))])
}

/// `GET config`: all records at once.
pub(super) async fn config(asked: &RestRequest) -> Result<Parts, SlurmError> {
    let mut none = Query::default();
    let mut parts = clusters(asked, None).await?;
    let (_, tres) = tres(asked).await?.remove(0);
    parts.push(("tres", tres));
    parts.extend(accounts(asked, None, &mut none).await?);
    parts.extend(users(asked, None, &mut none).await?);
    parts.extend(qos(asked, None, &mut none).await?);
    parts.extend(associations(asked, &mut none, false).await?);
    parts.extend([("wckeys", json!([])), ("instances", json!([]))]);
    Ok(parts)
}
