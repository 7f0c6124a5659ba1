//! Accounts, and users in accounts: associations, as Slurm calls them.
//!
//! A user's own bounds hold for all they run in an account together, so they are those of a group.

use gmodel::policy::account::tree;
use gmodel::policy::{Account, AccountUser, Limits, Qos};

/// The QOS that is always there.
pub const NORMAL: &str = "normal";

/// A user in an account, the account itself (then without a user), or a user without an account.
#[derive(Clone, Debug, Default)]
pub struct Association {
    pub cluster: String,
    pub account: Option<Account>,
    /// Accounts above it.
    pub depth: usize,
    pub user: Option<String>,
    pub of_user: AccountUser,
    pub default_account: String,
    pub coordinates: String,
    pub admin: String,
    pub qos: String,
    pub default_qos: String,
}

impl Association {
    pub fn name(&self) -> String {
        self.account
            .as_ref()
            .map(|account| account.name.clone())
            .unwrap_or_default()
    }

    /// What is bounded for all its jobs together.
    pub fn group(&self) -> Limits {
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
    pub fn each(&self) -> Limits {
        match (&self.user, &self.account) {
            (Some(_), _) => self.of_user.limits.clone(),
            (None, Some(account)) => account.per_user.clone(),
            (None, None) => Limits::default(),
        }
    }
}

/// What associations are made of. What is not needed may be left out.
#[derive(Clone, Debug, Default)]
pub struct Records {
    pub cluster: String,
    pub accounts: Vec<Account>,
    pub qos: Vec<Qos>,
    /// None where the caller may not read the configuration.
    pub operators: Option<Vec<String>>,
}

/// What lines are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LineOf {
    #[default]
    Associations,
    Users,
    Accounts,
}

/// Which lines are wanted; an empty list chooses all.
#[derive(Clone, Debug, Default)]
pub struct AssociationFilter {
    pub line_of: LineOf,
    /// Of users and accounts a line for each association.
    pub with_associations: bool,
    pub users: Vec<String>,
    pub accounts: Vec<String>,
    pub parents: Vec<String>,
}

/// The associations that are wanted.
pub fn associations(records: &Records, wanted: &AssociationFilter) -> Vec<Association> {
    let mut rows = chosen(&records.accounts, wanted);
    for row in &mut rows {
        row.cluster.clone_from(&records.cluster);
        if let Some(account) = &row.account {
            let line = line_above(account, &records.accounts);
            let own = line.iter().find(|one| !one.allow_qos.is_empty());
            row.qos = match own {
                Some(one) => one.allow_qos.join(","),
                None => names(&records.qos).join(","),
            };
            row.default_qos = line
                .iter()
                .find_map(|one| one.default_qos.clone())
                .unwrap_or_default();
        }
        if let (Some(user), Some(operators)) = (&row.user, &records.operators) {
            row.admin = match user.as_str() {
                "root" => "Administrator",
                user if operators.iter().any(|one| one == user) => "Operator",
                _ => "None",
            }
            .to_owned();
        }
    }
    rows
}

fn names(qos: &[Qos]) -> Vec<&str> {
    qos.iter().map(|qos| qos.name.as_str()).collect()
}

/// With `normal`, which jobs have even where no such record was made.
pub fn with_normal(mut rows: Vec<Qos>) -> Vec<Qos> {
    if !rows.iter().any(|row| row.name == NORMAL) {
        let normal = Qos {
            name: NORMAL.to_owned(),
            ..Qos::default()
        };
        rows.insert(0, normal);
    }
    rows
}

/// The account and those above it, nearest first.
pub fn line_above<'a>(account: &'a Account, all: &'a [Account]) -> Vec<&'a Account> {
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
fn is_chosen(account: &Account, asked: &AssociationFilter) -> bool {
    let parent = account.parent.as_deref().unwrap_or("root");
    !account.closed
        && (asked.parents.is_empty() || asked.parents.iter().any(|name| name == parent))
        && (asked.accounts.is_empty() || asked.accounts.contains(&account.name))
}

fn chosen(accounts: &[Account], asked: &AssociationFilter) -> Vec<Association> {
    if asked.line_of == LineOf::Users && !asked.with_associations {
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
        if asked.line_of != LineOf::Users && asked.users.is_empty() {
            rows.push(of_account.clone());
        }
        if asked.line_of == LineOf::Accounts && !asked.with_associations {
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
    match asked.line_of {
        LineOf::Users => rows.sort_by(|a, b| (&a.user, a.name()).cmp(&(&b.user, b.name()))),
        LineOf::Accounts => rows.sort_by_key(Association::name),
        _ => {}
    }
    rows
}

/// Each user once, whatever they may charge.
fn users(accounts: &[Account], asked: &AssociationFilter) -> Vec<Association> {
    let with = AssociationFilter {
        line_of: LineOf::Users,
        with_associations: true,
        users: asked.users.clone(),
        accounts: asked.accounts.clone(),
        ..AssociationFilter::default()
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
        let of = |line_of: LineOf, with_associations: bool, users: &[&str]| {
            let asked = AssociationFilter {
                line_of,
                with_associations,
                users: users.iter().map(|user| (*user).to_owned()).collect(),
                ..AssociationFilter::default()
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
            of(LineOf::Users, true, &["ada"]),
            ["lab/ada/lab", "open/ada/lab"]
        );
        assert_eq!(
            of(LineOf::Users, true, &["eve"]),
            ["open/eve/"],
            "of no account but the open one"
        );
        assert_eq!(
            of(LineOf::Users, false, &[]),
            ["/ada/lab", "/bob/other"],
            "each once"
        );
        assert_eq!(
            of(LineOf::Accounts, false, &[]),
            ["lab//", "open//", "other//"]
        );
        assert_eq!(
            of(LineOf::Accounts, true, &[]),
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
            of(LineOf::Associations, false, &[]),
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
}
