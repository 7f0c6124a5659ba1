//! Carries out `sacctmgr add`, `modify` and `delete` by the code of `gadm account`, `user` and `qos`, and says what was done.
//!
//! Owns what sacctmgr prints of it. Source: sacctmgr(1), and what sacctmgr 22.05.8 printed.

use super::change::{Change, ChangeTarget, Verb, target_of};
use super::entity::{Entity, words_of};
use gadm::policy::account::{self, AccountAct};
use gadm::policy::qos::QosAct;
use gadm::policy::user::{self, UserAct};
use gadm::policy::{self, NameAndWords, Removal};
use gcli::answer::list;
use gcli::{Failure, Outcome, cluster_choice};
use gmodel::policy::Account;
use gslurm_json::association::{NORMAL, line_above};
use gwire::api::QosRow;
use gwire::client::Client;
use std::collections::BTreeSet;
use std::io::Write;

/// Carries it out and says what was done.
///
/// # Errors
/// An unknown word, a missing permission, a no on the terminal; nothing to add, modify or delete.
pub(super) fn run(verb: Verb, words: &[String], immediate: bool) -> Outcome {
    let (entity, words) = words
        .split_first()
        .ok_or_else(|| Failure::usage("what? account, user, qos or coordinator"))?;
    let target = target_of(entity)?;
    let change = Change::of(verb, target, words)?;
    let mut client = gcli::connect("sacctmgr")?;
    cluster_choice::check(&change.clusters, &mut client)?;
    let known = PolicyRecords::read(&mut client)?;
    let mut edit = Edit {
        client: &mut client,
        immediate,
        said: Vec::new(),
    };
    match (verb, target) {
        (Verb::Modify, ChangeTarget::Coordinator) => {
            return Err(Failure::usage(
                "coordinators are added and deleted: add coordinator account=NAME names=USER",
            ));
        }
        (_, ChangeTarget::Coordinator) => edit.coordinators(verb, &change, &known)?,
        (Verb::Add, ChangeTarget::Record(Entity::Users)) => edit.add_users(&change, &known)?,
        (Verb::Modify, ChangeTarget::Record(Entity::Users)) => {
            edit.modify_users(&change, &known)?
        }
        (Verb::Delete, ChangeTarget::Record(Entity::Users)) => {
            edit.delete_users(&change, &known)?
        }
        (Verb::Add, ChangeTarget::Record(kind)) => edit.add_records(kind, &change, &known)?,
        (Verb::Modify, ChangeTarget::Record(kind)) => edit.modify_records(kind, &change, &known)?,
        (Verb::Delete, ChangeTarget::Record(kind)) => edit.delete_records(kind, &change, &known)?,
    }
    let mut out = std::io::stdout();
    edit.said
        .iter()
        .try_for_each(|line| writeln!(out, "{line}"))?;
    Ok(0)
}

struct Edit<'c> {
    client: &'c mut Client,
    immediate: bool,
    /// For stdout, once all is done.
    said: Vec<String>,
}

fn title(kind: Entity) -> (&'static str, &'static str) {
    match kind {
        Entity::Qos => ("QOS(s)", "qos"),
        _ => ("Account(s)", "accounts"),
    }
}

impl Edit<'_> {
    /// Nothing at all is told where programs of sacctmgr look for it, and fails; else the terminal is asked, unless with `-i`.
    fn begin(
        &mut self,
        nothing: bool,
        said: &str,
        why: &str,
        question: &str,
    ) -> Result<(), Failure> {
        match nothing {
            true => {
                writeln!(std::io::stdout(), " {said}")?;
                Err(Failure::new(why))
            }
            false => policy::confirm_saying(self.immediate, question, "-i"),
        }
    }

    fn add_records(
        &mut self,
        kind: Entity,
        change: &Change,
        known: &PolicyRecords,
    ) -> Result<(), Failure> {
        if change.names.is_empty() {
            return Err(Failure::usage(
                "give a name: add account vision parent=research",
            ));
        }
        let new: Vec<&String> = change
            .names
            .iter()
            .filter(|name| !known.has(kind, name))
            .collect();
        self.begin(
            new.is_empty(),
            "Nothing new added.",
            "they are there already",
            &format!("add {}?", change.names.join(", ")),
        )?;
        self.said.push(format!(" Adding {}", title(kind).0));
        for name in new {
            let words = NameAndWords::of(name.clone(), change.set.clone());
            match kind {
                Entity::Qos => policy::qos::run(self.client, QosAct::Add(words))?,
                _ => policy::account::run(self.client, AccountAct::Add(words))?,
            };
            self.said.push(format!("  {name}"));
        }
        Ok(())
    }

    fn modify_records(
        &mut self,
        kind: Entity,
        change: &Change,
        known: &PolicyRecords,
    ) -> Result<(), Failure> {
        must_set(change)?;
        let meant = known.chosen(kind, change)?;
        self.begin(
            meant.is_empty(),
            "Nothing modified",
            "there is none of that name",
            &format!("change {}?", meant.join(", ")),
        )?;
        self.said.push(if kind == Entity::Qos {
            " Modified qos...".to_owned()
        } else {
            " Modified account associations...".to_owned()
        });
        for name in meant {
            let set: Vec<String> = match kind {
                Entity::Qos => change.set.clone(),
                _ => change
                    .set
                    .iter()
                    .filter_map(|word| known.own_qos(&name, word))
                    .collect(),
            };
            let words = NameAndWords::of(name.clone(), set.clone());
            match kind {
                Entity::Qos if !known.qos.contains(&name) => {
                    policy::qos::run(self.client, QosAct::Add(words))?
                }
                Entity::Qos => policy::qos::run(self.client, QosAct::Set(words))?,
                // What was to be allowed is so already.
                _ if set.is_empty() => 0,
                _ => policy::account::run(self.client, AccountAct::Set(words))?,
            };
            self.said.push(format!("  {name}"));
        }
        Ok(())
    }

    fn delete_records(
        &mut self,
        kind: Entity,
        change: &Change,
        known: &PolicyRecords,
    ) -> Result<(), Failure> {
        let meant: Vec<String> = change
            .names
            .iter()
            .filter(|name| known.has(kind, name))
            .cloned()
            .collect();
        self.begin(
            meant.is_empty(),
            "Nothing deleted",
            "there is none of that name",
            &format!("delete {}?", meant.join(", ")),
        )?;
        match kind {
            Entity::Qos => policy::qos::run(self.client, QosAct::Del(Removal::of(meant.clone())))?,
            _ => policy::account::run(self.client, AccountAct::Del(Removal::of(meant.clone())))?,
        };
        self.said.push(if kind == Entity::Qos {
            " Deleting QOS(s)...".to_owned()
        } else {
            format!(" Deleting {}...", title(kind).1)
        });
        self.said
            .extend(meant.iter().map(|name| format!("  {name}")));
        Ok(())
    }

    fn add_users(&mut self, change: &Change, known: &PolicyRecords) -> Result<(), Failure> {
        let accounts = if change.accounts.is_empty() {
            change.default_account.iter().cloned().collect()
        } else {
            change.accounts.clone()
        };
        if change.names.is_empty() || accounts.is_empty() {
            return Err(Failure::usage(
                "whom, and into which account? add user ada account=vision",
            ));
        }
        let mut new = Vec::new();
        for account in &accounts {
            let row = known.account(account)?;
            new.extend(
                change
                    .names
                    .iter()
                    .filter(|user| !row.users.contains_key(*user))
                    .map(|user| (user.clone(), account.clone())),
            );
        }
        self.begin(
            new.is_empty(),
            "Nothing new added.",
            "they are there already",
            &format!("add {}?", change.names.join(", ")),
        )?;
        self.said.extend(
            [" Adding User(s)".to_owned()]
                .into_iter()
                .chain(change.names.iter().map(|name| format!("  {name}"))),
        );
        self.said.push(" Associations =".to_owned());
        for (user, account) in new {
            policy::user::run(
                self.client,
                UserAct::Add(user_words(change, &user, &account)),
            )?;
            self.said.push(format!("  U = {user:<9} A = {account}"));
        }
        Ok(())
    }

    fn modify_users(&mut self, change: &Change, known: &PolicyRecords) -> Result<(), Failure> {
        if change.default_account.is_none() {
            must_set(change)?;
        }
        if change.names.is_empty() && change.accounts.is_empty() {
            return Err(Failure::usage(
                "whom? modify user ada where account=vision set maxjobs=10",
            ));
        }
        let entries = known.entries(change);
        let meant: Vec<_> = match (&change.default_account, change.set.is_empty()) {
            // A default account alone is set in that account.
            (Some(account), true) => entries
                .into_iter()
                .filter(|(_, of)| of == account)
                .collect(),
            _ => entries,
        };
        self.begin(
            meant.is_empty(),
            "Nothing modified",
            "nobody of that name may charge that account",
            &format!("change {} user(s)?", meant.len()),
        )?;
        self.said.push(" Modified user associations...".to_owned());
        for (user, account) in meant {
            policy::user::run(
                self.client,
                UserAct::Set(user_words(change, &user, &account)),
            )?;
            self.said.push(format!("  A = {account:<20} U = {user}"));
        }
        Ok(())
    }

    fn delete_users(&mut self, change: &Change, known: &PolicyRecords) -> Result<(), Failure> {
        if change.names.is_empty() {
            return Err(Failure::usage("whom? delete user ada where account=vision"));
        }
        let meant = known.entries(change);
        self.begin(
            meant.is_empty(),
            "Nothing deleted",
            "nobody of that name may charge that account",
            &format!("delete {}?", change.names.join(", ")),
        )?;
        self.said.push(" Deleting user associations...".to_owned());
        for (user, account) in meant {
            let words = user::UserWords::of(user.clone(), vec![format!("account={account}")]);
            policy::user::run(self.client, UserAct::Del { words, yes: true })?;
            self.said.push(format!("  A = {account:<10} U = {user}"));
        }
        Ok(())
    }

    fn coordinators(
        &mut self,
        verb: Verb,
        change: &Change,
        known: &PolicyRecords,
    ) -> Result<(), Failure> {
        if change.names.is_empty() || change.accounts.is_empty() && verb == Verb::Add {
            return Err(Failure::usage(
                "whom, and of which account? add coordinator account=vision names=ada",
            ));
        }
        let names = change.names.join(",");
        let accounts = match change.accounts.is_empty() {
            true => known
                .accounts
                .iter()
                .filter(|row| {
                    change
                        .names
                        .iter()
                        .any(|name| row.coordinators.contains(name))
                })
                .map(|row| row.name.clone())
                .collect(),
            false => change.accounts.clone(),
        };
        accounts
            .iter()
            .try_for_each(|account| known.account(account).map(drop))?;
        self.begin(
            accounts.is_empty(),
            "Nothing deleted",
            "nobody of that name coordinates an account",
            &format!("{names} of {}?", accounts.join(", ")),
        )?;
        let (said, sign) = if verb == Verb::Add {
            (" Adding Coordinator User(s)", '+')
        } else {
            (" Removing Coordinators with user name", '-')
        };
        self.said.extend([
            said.to_owned(),
            format!("  {names}"),
            if verb == Verb::Add {
                " To Account(s) and all sub-accounts"
            } else {
                " From Account(s)"
            }
            .to_owned(),
        ]);
        for account in accounts {
            let words =
                NameAndWords::of(account.clone(), vec![format!("coordinators{sign}={names}")]);
            policy::account::run(self.client, AccountAct::Set(words))?;
            self.said.push(format!("  {account}"));
        }
        Ok(())
    }
}

/// What is set for a user in an account, in `gadm user`'s words.
fn user_words(change: &Change, user: &str, account: &str) -> user::UserWords {
    let as_default =
        (change.default_account.as_deref() == Some(account)).then(|| "default=yes".to_owned());
    let words = [format!("account={account}")]
        .into_iter()
        .chain(change.set.iter().cloned())
        .chain(as_default)
        .collect();
    user::UserWords::of(user.to_owned(), words)
}

fn must_set(change: &Change) -> Result<(), Failure> {
    match change.set.is_empty() {
        true => Err(Failure::usage(
            "what is to be set? modify account vision set maxjobs=10",
        )),
        false => Ok(()),
    }
}

/// What there is, to know what is meant and what is new.
pub(super) struct PolicyRecords {
    pub accounts: Vec<Account>,
    pub qos: Vec<String>,
}

impl PolicyRecords {
    pub(super) fn read(client: &mut Client) -> Result<Self, Failure> {
        let accounts = account::read_all(client)?;
        Ok(Self {
            accounts,
            qos: list::<QosRow>(client, "/v1/qos")?
                .into_iter()
                .map(|row| row.qos.name)
                .collect(),
        })
    }

    fn account(&self, name: &str) -> Result<&Account, Failure> {
        self.accounts
            .iter()
            .find(|row| row.name == name)
            .ok_or_else(|| {
                Failure::new(format_args!(
                    "there is no account {name:?}: add account {name}"
                ))
            })
    }

    fn has(&self, kind: Entity, name: &str) -> bool {
        match kind {
            // Jobs have it even where no record of it was made.
            Entity::Qos => name == NORMAL || self.qos.iter().any(|qos| qos == name),
            _ => self.accounts.iter().any(|row| row.name == name),
        }
    }

    /// `qos+=high` as an account's own list. One that names no QOS has those of the account above it, or all: they are what a name is
    /// added to or taken from, or it would have that name alone. `None`: it changes nothing.
    fn own_qos(&self, account: &str, word: &str) -> Option<String> {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let sign = key.chars().last().filter(|sign| "+-".contains(*sign));
        let is_qos = ["qos", "qoslevel", "allowqos"].contains(
            &key.trim_end_matches(['+', '-'])
                .to_ascii_lowercase()
                .replace('_', "")
                .as_str(),
        );
        let row = self
            .accounts
            .iter()
            .find(|row| row.name == account)
            .filter(|row| is_qos && row.allow_qos.is_empty());
        let (Some(sign), Some(row)) = (sign, row) else {
            return Some(word.to_owned());
        };
        let above = line_above(row, &self.accounts)
            .into_iter()
            .find(|one| !one.allow_qos.is_empty());
        let has_all = above.is_none();
        let all = || {
            self.qos
                .iter()
                .cloned()
                .chain([NORMAL.to_owned()])
                .collect::<BTreeSet<_>>()
        };
        let mut names = above.map_or_else(all, |one| one.allow_qos.iter().cloned().collect());
        match sign {
            '+' if has_all => return None,
            '+' => names.extend(words_of(value)),
            _ => {
                let gone: Vec<String> = words_of(value).collect();
                names.retain(|name| !gone.contains(name));
            }
        }
        Some(format!(
            "qos={}",
            names.into_iter().collect::<Vec<_>>().join(",")
        ))
    }

    /// Names of the records that `change` chooses, of those there are.
    fn chosen(&self, kind: Entity, change: &Change) -> Result<Vec<String>, Failure> {
        let of_parent = |name: &str| {
            let row = self.accounts.iter().find(|row| row.name == name);
            let parent = row.and_then(|row| row.parent.as_deref()).unwrap_or("root");
            change.parents.is_empty() || change.parents.iter().any(|name| name == parent)
        };
        let named = match (change.names.is_empty(), change.parents.is_empty()) {
            (false, _) => change.names.clone(),
            (true, false) => self.accounts.iter().map(|row| row.name.clone()).collect(),
            (true, true) => return Err(Failure::usage("which? modify account NAME set KEY=VALUE")),
        };
        Ok(named
            .into_iter()
            .filter(|name| self.has(kind, name) && of_parent(name))
            .collect())
    }

    /// Accounts and users in them that a change is about, of those there are.
    fn entries(&self, change: &Change) -> Vec<(String, String)> {
        let in_account =
            |row: &&Account| change.accounts.is_empty() || change.accounts.contains(&row.name);
        let rows = self.accounts.iter().filter(in_account);
        let users = rows.flat_map(|row| {
            row.users
                .keys()
                .map(|user| (user.clone(), row.name.clone()))
        });
        users
            .filter(|(user, _)| change.names.is_empty() || change.names.contains(user))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn qos_are_added_to_those_that_an_account_has_from_above() {
        let account = |name: &str, parent: Option<&str>, allow_qos: &[&str]| Account {
            name: name.to_owned(),
            parent: parent.map(str::to_owned),
            allow_qos: names(allow_qos).into_iter().collect(),
            ..Account::default()
        };
        let accounts = vec![
            account("open", None, &[]),
            account("lab", None, &["normal", "low"]),
            account("bio", Some("lab"), &[]),
            account("own", Some("lab"), &["high"]),
        ];
        let known = PolicyRecords {
            accounts,
            qos: names(&["high", "low"]),
        };
        let word = |account: &str, word: &str| known.own_qos(account, word).unwrap_or_default();
        assert_eq!(
            (word("open", "qos+=high"), word("open", "QOS-=high")),
            (String::new(), "qos=low,normal".to_owned()),
            "all are allowed"
        );
        assert_eq!(
            (word("bio", "qos+=high"), word("bio", "QosLevel-=low")),
            ("qos=high,low,normal".to_owned(), "qos=normal".to_owned())
        );
        assert_eq!(
            (
                word("own", "qos+=low"),
                word("bio", "qos=high"),
                word("bio", "maxjobs=3")
            ),
            (
                "qos+=low".to_owned(),
                "qos=high".to_owned(),
                "maxjobs=3".to_owned()
            )
        );
    }
}
