//! Accounts, and users in accounts, in sacctmgr's columns: associations, as it calls them.
//!
//! A user's own bounds hold for all they run in an account together, so they are the `Grp` ones of their line.

use super::entity::Entity;
use super::limits::{count, tres};
use super::qos;
use super::request::ListRequest;
use crate::ruled_table::Column;
use gadm::policy::account::{self, tree};
use gcli::Failure;
use gmodel::policy::{Account, AccountUser, Limits};
use gwire::api::ClusterInfo;
use gwire::client::Client;

/// A user in an account, the account itself (then without a user), or a user without an account.
#[derive(Clone, Debug, Default)]
pub(super) struct Association {
    pub(super) cluster: String,
    pub(super) account: Option<Account>,
    /// Accounts above it.
    pub(super) depth: usize,
    pub(super) user: Option<String>,
    pub(super) of_user: AccountUser,
    pub(super) default_account: String,
    pub(super) coordinates: String,
    pub(super) admin: String,
    pub(super) qos: String,
    pub(super) default_qos: String,
}

impl Association {
    pub(super) fn name(&self) -> String {
        self.account
            .as_ref()
            .map(|account| account.name.clone())
            .unwrap_or_default()
    }

    fn account(&self, text: impl FnOnce(&Account) -> String) -> String {
        self.account.as_ref().map(text).unwrap_or_default()
    }

    /// What is bounded for all its jobs together.
    pub(super) fn group(&self) -> Limits {
        match (&self.user, &self.account) {
            (Some(_), _) => Limits {
                running_jobs: None,
                submitted_jobs: None,
                ..self.of_user.limits.clone()
            },
            (None, Some(account)) => account.group.clone(),
            (None, None) => Limits::default(),
        }
    }

    /// What is bounded for each user.
    pub(super) fn each(&self) -> Limits {
        match (&self.user, &self.account) {
            (Some(_), _) => self.of_user.limits.clone(),
            (None, Some(account)) => account.per_user.clone(),
            (None, None) => Limits::default(),
        }
    }

    fn shares(&self) -> String {
        match (&self.user, &self.account) {
            (Some(_), Some(_)) => self.of_user.shares.to_string(),
            (None, Some(account)) => account.shares.to_string(),
            (_, None) => String::new(),
        }
    }

    fn group_tres(&self) -> String {
        let (group, limit) = (
            self.group(),
            self.account
                .as_ref()
                .filter(|_| self.user.is_none())
                .and_then(|account| account.limit.clone()),
        );
        let mut gpus = group.gpus.unwrap_or_default();
        for (kind, milli) in limit.unwrap_or_default().0 {
            let least = gpus.of(&kind).map_or(milli, |other| other.min(milli));
            gpus.0.insert(kind, least);
        }
        tres(group.cpus, group.nodes, Some(&gpus))
    }
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
                row.account(|account| account.description.clone())
            }),
            Column::right("fairshare", "Share", 9, Association::shares),
            Column::right("share", "Share", 9, Association::shares),
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
            Column::right("grptres", "GrpTRES", 13, Association::group_tres),
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
                row.account(|account| {
                    account
                        .parent
                        .clone()
                        .unwrap_or_else(|| account.name.clone())
                })
            }),
            Column::right("parentname", "ParentName", 10, |row| match row.user {
                Some(_) => String::new(),
                None => row
                    .account(|account| account.parent.clone().unwrap_or_else(|| "root".to_owned())),
            }),
            Column::blank("partition", "Partition", 10),
            Column::blank("priority", "Priority", 10),
            Column::right("qos", "QOS", 20, |row| row.qos.clone()),
            Column::right("rawshares", "RawShares", 10, Association::shares),
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
    let accounts = account::read_all(client)?;
    let mut rows = chosen(&accounts, asked);
    let has = |word: &str| words.contains(&word);
    let cluster = if has("cluster") {
        client.get::<ClusterInfo>("/v1/cluster")?.name
    } else {
        String::new()
    };
    let all_qos = if has("qos") {
        qos_names(client)?
    } else {
        Vec::new()
    };
    let operators = if has("adminlevel") {
        operators(client)
    } else {
        None
    };
    for row in &mut rows {
        row.cluster.clone_from(&cluster);
        if let Some(account) = &row.account {
            let line = line_above(account, &accounts);
            let allowed = line
                .iter()
                .find(|one| !one.allow_qos.is_empty())
                .map_or(&all_qos, |one| &one.allow_qos);
            row.qos = allowed.join(",");
            row.default_qos = line
                .iter()
                .find_map(|one| one.default_qos.clone())
                .unwrap_or_default();
        }
        if let (Some(user), Some(operators)) = (&row.user, &operators) {
            row.admin = match user.as_str() {
                "root" => "Administrator",
                user if operators.iter().any(|one| one == user) => "Operator",
                _ => "None",
            }
            .to_owned();
        }
    }
    Ok(rows)
}

/// QOS that exist, the usual one among them.
fn qos_names(client: &mut Client) -> Result<Vec<String>, Failure> {
    Ok(qos::rows(client, &[])?
        .into_iter()
        .map(|qos| qos.name)
        .collect())
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

/// The account and those above it, nearest first.
pub(super) fn line_above<'a>(account: &'a Account, all: &'a [Account]) -> Vec<&'a Account> {
    let mut line = vec![account];
    while let Some(parent) = line[line.len() - 1]
        .parent
        .as_ref()
        .and_then(|name| all.iter().find(|one| one.name == *name))
    {
        if line.len() > all.len() {
            break;
        }
        line.push(parent);
    }
    line
}

/// The lines. An account without users is open to all, so also to each user that is asked for.
fn is_chosen(account: &Account, asked: &ListRequest) -> bool {
    let parent = account.parent.as_deref().unwrap_or("root");
    !account.closed
        && (asked.parents.is_empty() || asked.parents.iter().any(|name| name == parent))
        && (asked.accounts.is_empty() || asked.accounts.contains(&account.name))
}

fn chosen(accounts: &[Account], asked: &ListRequest) -> Vec<Association> {
    if asked.kind == Entity::Users && !asked.with_associations {
        return users(accounts, asked);
    }
    let mut rows = Vec::new();
    // Depths are of the tree that is shown.
    let shown: Vec<Account> = accounts
        .iter()
        .filter(|account| is_chosen(account, asked))
        .cloned()
        .collect();
    for (depth, account) in tree(&shown) {
        let of_account = Association {
            account: Some(account.clone()),
            depth,
            ..Association::default()
        };
        let of = |user: &str, row: &AccountUser| Association {
            user: Some(user.to_owned()),
            of_user: row.clone(),
            depth: depth + 1,
            default_account: default_of(accounts, user),
            coordinates: coordinated(accounts, user),
            ..of_account.clone()
        };
        if asked.kind != Entity::Users && asked.users.is_empty() {
            rows.push(of_account.clone());
        }
        if asked.kind == Entity::Accounts && !asked.with_associations {
            continue;
        }
        let wanted =
            |user: &str| asked.users.is_empty() || asked.users.iter().any(|one| one == user);
        rows.extend(
            account
                .users
                .iter()
                .filter(|(user, _)| wanted(user))
                .map(|(user, row)| of(user, row)),
        );
        if account.users.is_empty() && !account.users_only {
            rows.extend(
                asked
                    .users
                    .iter()
                    .map(|user| of(user, &AccountUser::default())),
            );
        }
    }
    match asked.kind {
        Entity::Users => rows.sort_by(|a, b| (&a.user, a.name()).cmp(&(&b.user, b.name()))),
        Entity::Accounts => rows.sort_by_key(Association::name),
        _ => {}
    }
    rows
}

/// Each user once, whatever they may charge.
fn users(accounts: &[Account], asked: &ListRequest) -> Vec<Association> {
    let with = ListRequest {
        kind: Entity::Users,
        with_associations: true,
        users: asked.users.clone(),
        accounts: asked.accounts.clone(),
        ..ListRequest::default()
    };
    let mut rows = chosen(accounts, &with);
    rows.dedup_by(|a, b| a.user == b.user);
    rows.iter_mut().for_each(|row| row.account = None);
    rows
}

fn default_of(accounts: &[Account], user: &str) -> String {
    let of_user = || {
        accounts
            .iter()
            .filter(|account| account.users.contains_key(user) && !account.closed)
    };
    let own = of_user().find(|account| account.users[user].is_default);
    // The only account of a user is the default.
    own.or_else(|| of_user().next().filter(|_| of_user().count() == 1))
        .map(|account| account.name.clone())
        .unwrap_or_default()
}

fn coordinated(accounts: &[Account], user: &str) -> String {
    accounts
        .iter()
        .filter(|account| account.coordinators.contains(user))
        .map(|account| account.name.as_str())
        .collect::<Vec<_>>()
        .join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::policy::GpuAmounts;

    fn account(name: &str, users: &[(&str, bool)]) -> Account {
        Account {
            name: name.to_owned(),
            users: users
                .iter()
                .map(|(user, default)| {
                    (
                        (*user).to_owned(),
                        AccountUser {
                            is_default: *default,
                            ..AccountUser::default()
                        },
                    )
                })
                .collect(),
            ..Account::default()
        }
    }

    #[test]
    fn a_user_may_charge_their_accounts_and_those_that_are_open_to_all() {
        let closed = Account {
            closed: true,
            ..account("old", &[])
        };
        let accounts = [
            account("lab", &[("ada", true), ("bob", false)]),
            account("open", &[]),
            account("other", &[("bob", true)]),
            closed,
        ];
        let of = |kind: Entity, with_associations: bool, users: &[&str]| {
            let asked = ListRequest {
                kind,
                with_associations,
                users: users.iter().map(|user| (*user).to_owned()).collect(),
                ..ListRequest::default()
            };
            let text = |row: &Association| {
                format!(
                    "{}/{}/{}",
                    row.name(),
                    row.user.as_deref().unwrap_or_default(),
                    row.default_account
                )
            };
            chosen(&accounts, &asked)
                .iter()
                .map(text)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            of(Entity::Users, true, &["ada"]),
            ["lab/ada/lab", "open/ada/lab"]
        );
        assert_eq!(
            of(Entity::Users, true, &["eve"]),
            ["open/eve/"],
            "of no account but the open one"
        );
        assert_eq!(
            of(Entity::Users, false, &[]),
            ["/ada/lab", "/bob/other"],
            "each once"
        );
        assert_eq!(
            of(Entity::Accounts, false, &[]),
            ["lab//", "open//", "other//"]
        );
        assert_eq!(
            of(Entity::Accounts, true, &[]),
            [
                "lab//",
                "lab/ada/lab",
                "lab/bob/other",
                "open//",
                "other//",
                "other/bob/other"
            ]
        );
        assert_eq!(
            of(Entity::Associations, false, &[]),
            [
                "lab//",
                "lab/ada/lab",
                "lab/bob/other",
                "open//",
                "other//",
                "other/bob/other"
            ]
        );
    }

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
            row.group_tres(),
            "cpu=64,gres/gpu=6,gres/gpu:a100=2,gres/gpu:h100=4",
            "the lower of two bounds"
        );
        let user = Association {
            user: Some("ada".to_owned()),
            ..row
        };
        assert_eq!(
            user.group_tres(),
            "",
            "the account's bounds are not the user's"
        );
    }
}
