//! Accounts, and users in accounts, in sacctmgr's columns: associations, as it calls them.

use super::limits::{count, tres};
use super::qos;
use super::request::ListRequest;
use crate::ruled_table::Column;
use gadm::policy::account;
use gcli::Failure;
use gmodel::policy::Account;
use gslurm_json::association::{Association, Records, associations};
use gwire::api::ClusterInfo;
use gwire::client::Client;

fn of_account(row: &Association, text: impl FnOnce(&Account) -> String) -> String {
    row.account.as_ref().map(text).unwrap_or_default()
}

fn shares(row: &Association) -> String {
    match (&row.user, &row.account) {
        (Some(_), Some(_)) => row.of_user.shares.to_string(),
        (None, Some(account)) => account.shares.to_string(),
        (_, None) => String::new(),
    }
}

fn group_tres(row: &Association) -> String {
    let (group, limit) = (
        row.group(),
        row.account
            .as_ref()
            .filter(|_| row.user.is_none())
            .and_then(|account| account.limit.clone()),
    );
    let mut gpus = group.gpus.unwrap_or_default();
    for (kind, milli) in limit.unwrap_or_default().0 {
        let least = gpus.of(&kind).map_or(milli, |other| other.min(milli));
        gpus.0.insert(kind, least);
    }
    tres(group.cpus, group.nodes, Some(&gpus))
}

macro_rules! columns {
    ($account:expr) => {
        &[
            $account,
            Column::right("adminlevel", "Admin", 9, |row| row.admin.clone()),
            Column::right("cluster", "Cluster", 10, |row| row.cluster.clone()),
            Column::right("coordinators", "Coord Accounts", 20, |row| {
                row.coordinates.clone()
            }),
            Column::right("defaultaccount", "Def Acct", 10, |row| {
                row.default_account.clone()
            }),
            Column::right("defaultacct", "Def Acct", 10, |row| {
                row.default_account.clone()
            }),
            Column::right("defaultqos", "Def QOS", 9, |row| row.default_qos.clone()),
            Column::right("description", "Descr", 20, |row| {
                of_account(row, |account| account.description.clone())
            }),
            Column::right("fairshare", "Share", 9, shares),
            Column::right("share", "Share", 9, shares),
            Column::right("grpcpus", "GrpCPUs", 8, |row| count(row.group().cpus)),
            Column::blank("grpcpumins", "GrpCPUMins", 11),
            Column::right("grpjobs", "GrpJobs", 7, |row| {
                count(row.group().running_jobs)
            }),
            Column::blank("grpmem", "GrpMem", 7),
            Column::right("grpnodes", "GrpNodes", 8, |row| count(row.group().nodes)),
            Column::right("grpsubmit", "GrpSubmit", 9, |row| {
                count(row.group().submitted_jobs)
            }),
            Column::right("grpsubmitjobs", "GrpSubmit", 9, |row| {
                count(row.group().submitted_jobs)
            }),
            Column::right("grptres", "GrpTRES", 13, group_tres),
            Column::blank("grptresmins", "GrpTRESMins", 13),
            Column::right("grptresrunmins", "GrpTRESRunMins", 13, |row| {
                qos::running(&row.group())
            }),
            Column::blank("grpwall", "GrpWall", 11),
            Column::blank("maxcpumins", "MaxCPUMins", 11),
            Column::right("maxcpus", "MaxCPUs", 8, |row| count(row.each().cpus)),
            Column::right("maxjobs", "MaxJobs", 7, |row| {
                count(row.each().running_jobs)
            }),
            Column::right("maxnodes", "MaxNodes", 8, |row| count(row.each().nodes)),
            Column::right("maxsubmit", "MaxSubmit", 9, |row| {
                count(row.each().submitted_jobs)
            }),
            Column::right("maxsubmitjobs", "MaxSubmit", 9, |row| {
                count(row.each().submitted_jobs)
            }),
            Column::blank("maxtres", "MaxTRES", 13),
            Column::blank("maxtresperjob", "MaxTRES", 13),
            Column::blank("maxtrespernode", "MaxTRESPerNode", 14),
            Column::blank("maxtresmins", "MaxTRESMins", 13),
            Column::blank("maxwall", "MaxWall", 11),
            Column::blank("maxwalldurationperjob", "MaxWall", 11),
            // Without one of its own sacctmgr takes the parent's name, or the account's.
            Column::right("organization", "Org", 20, |row| {
                of_account(row, |account| {
                    account
                        .parent
                        .clone()
                        .unwrap_or_else(|| account.name.clone())
                })
            }),
            Column::right("parentname", "ParentName", 10, |row| match row.user {
                Some(_) => String::new(),
                None => of_account(row, |account| {
                    account.parent.clone().unwrap_or_else(|| "root".to_owned())
                }),
            }),
            Column::blank("partition", "Partition", 10),
            Column::blank("priority", "Priority", 10),
            Column::right("qos", "QOS", 20, |row| row.qos.clone()),
            Column::right("rawshares", "RawShares", 10, shares),
            Column::right("user", "User", 10, |row| {
                row.user.clone().unwrap_or_default()
            }),
        ]
    };
}

pub(super) const COLUMNS: &[Column<Association>] =
    columns!(Column::right("account", "Account", 10, Association::name));

/// The same with accounts indented below their parents, and users below theirs.
pub(super) const IN_TREE: &[Column<Association>] = columns!(Column {
    word: "account",
    title: "Account",
    width: 20,
    left: true,
    text: |row| format!("{}{}", " ".repeat(row.depth), row.name()),
});

/// The associations that `asked` chooses. Columns that need more requests are filled only where `words` names them.
pub(super) fn rows(
    client: &mut Client,
    asked: &ListRequest,
    words: &[&str],
) -> Result<Vec<Association>, Failure> {
    let has = |word: &str| words.contains(&word);
    let mut records = Records {
        accounts: account::read_all(client)?,
        ..Records::default()
    };
    if has("cluster") {
        records.cluster = client.get::<ClusterInfo>("/v1/cluster")?.name;
    }
    if has("qos") {
        records.qos = qos::rows(client, &[])?;
    }
    if has("adminlevel") {
        records.operators = operators(client);
    }
    Ok(associations(&records, &asked.filter()))
}

/// The operators; None where the caller may not read the configuration.
fn operators(client: &mut Client) -> Option<Vec<String>> {
    let config: serde_json::Value = client.get("/v1/config").ok()?;
    let names = config.pointer("/cluster/operators")?.as_array()?;
    Some(
        names
            .iter()
            .filter_map(|name| Some(name.as_str()?.to_owned()))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::policy::{GpuAmounts, Limits};

    #[test]
    fn what_is_bounded_is_written_as_slurm_counts_it() {
        let gpus = |text: &str| {
            GpuAmounts(
                text.split(' ')
                    .map(|one| one.split_once('=').unwrap())
                    .map(|(kind, count)| (kind.to_owned(), count.parse::<u64>().unwrap() * 1000))
                    .collect(),
            )
        };
        let group = Limits {
            cpus: Some(64),
            gpus: Some(gpus("gpu=8 h100=4")),
            ..Limits::default()
        };
        let row = Association {
            account: Some(Account {
                group,
                limit: Some(gpus("gpu=6 a100=2")),
                ..Account::default()
            }),
            ..Association::default()
        };
        assert_eq!(
            group_tres(&row),
            "cpu=64,gres/gpu=6,gres/gpu:a100=2,gres/gpu:h100=4",
            "the lower of two bounds"
        );
        let user = Association {
            user: Some("ada".to_owned()),
            ..row
        };
        assert_eq!(
            group_tres(&user),
            "",
            "the account's bounds are not the user's"
        );
    }
}
