//! `sacctmgr show problem`: accounts that no user may charge and users that this machine does not know, in sacctmgr's columns.
//!
//! What contradicts itself in the controller's state is told by `gadm check`.

use crate::ruled_table::Column;
use gadm::policy::account;
use gcli::Failure;
use gmodel::policy::Account;
use gwire::client::Client;
use nix::unistd::User;

pub(super) const USUAL: &str = "Cluster,Account,User,Problem";

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Problem {
    cluster: String,
    account: String,
    user: String,
    problem: &'static str,
}

pub(super) const COLUMNS: &[Column<Problem>] = &[
    Column::right("cluster", "Cluster", 10, |row| row.cluster.clone()),
    Column::right("account", "Account", 10, |row| row.account.clone()),
    Column::right("user", "User", 10, |row| row.user.clone()),
    Column::right("problem", "Problem", 40, |row| row.problem.to_owned()),
];

pub(super) fn rows(client: &mut Client, cluster: &str) -> Result<Vec<Problem>, Failure> {
    let accounts = account::read_all(client)?;
    Ok(of(&accounts, cluster, |user| {
        !matches!(User::from_name(user), Ok(None))
    }))
}

fn of(accounts: &[Account], cluster: &str, is_known: impl Fn(&str) -> bool) -> Vec<Problem> {
    let mut found = Vec::new();
    let mut add = |account: &Account, user: &str, problem| {
        found.push(Problem {
            cluster: cluster.to_owned(),
            account: account.name.clone(),
            user: user.to_owned(),
            problem,
        });
    };
    for account in accounts {
        let has_below = accounts
            .iter()
            .any(|other| other.parent.as_deref() == Some(account.name.as_str()));
        if account.users.is_empty() && !has_below {
            add(account, "", "Account has no users");
        }
        account
            .users
            .keys()
            .filter(|user| !is_known(user))
            .for_each(|user| add(account, user, "User does not have a uid"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::policy::AccountUser;

    #[test]
    fn accounts_without_users_and_users_without_a_uid_are_problems() {
        let account = |name: &str, parent: Option<&str>, users: &[&str]| Account {
            name: name.into(),
            parent: parent.map(str::to_owned),
            users: users
                .iter()
                .map(|user| ((*user).to_owned(), AccountUser::default()))
                .collect(),
            ..Account::default()
        };
        let accounts = [
            account("lab", None, &[]),
            account("vision", Some("lab"), &["ada", "gone"]),
            account("empty", Some("lab"), &[]),
        ];
        let told: Vec<String> = of(&accounts, "pool", |user| user == "ada")
            .iter()
            .map(|row| format!("{}/{}: {}", row.account, row.user, row.problem))
            .collect();
        assert_eq!(
            told,
            [
                "vision/gone: User does not have a uid",
                "empty/: Account has no users"
            ]
        );
    }
}
