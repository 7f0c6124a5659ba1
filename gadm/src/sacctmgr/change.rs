//! `sacctmgr add`, `modify` and `delete` of accounts, users, QOS and coordinators: their words, carried out by the code of
//! `gadm account`, `user` and `qos`.
//!
//! Owns the reading of `where` and `set`, and what is said of what was done. What a key means is those commands' affair; what they have
//! no key for is refused here with what is there instead. Source: sacctmgr(1), and what sacctmgr 22.05.8 printed.

use super::{Kind, association, kind_of};
use crate::policy::account::AccountAct;
use crate::policy::qos::QosAct;
use crate::policy::user::{self, UserAct};
use crate::policy::{self, NameAndWords, Removal};
use gcli::{Failure, Outcome, cluster_choice};
use gwire::api::{AccountRow, QosRow};
use gwire::client::Client;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::io::Write;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Add,
    Modify,
    Delete,
}

/// The verb that a word begins, with as many letters as sacctmgr wants.
pub(super) fn verb_of(word: &str) -> Option<Verb> {
    let lower = word.to_ascii_lowercase();
    let verbs = [
        ("add", 3, Verb::Add),
        ("create", 3, Verb::Add),
        ("modify", 1, Verb::Modify),
        ("update", 1, Verb::Modify),
        ("delete", 3, Verb::Delete),
        ("remove", 3, Verb::Delete),
    ];
    verbs
        .into_iter()
        .find(|(verb, least, _)| lower.len() >= *least && verb.starts_with(&lower))
        .map(|(.., verb)| verb)
}

/// What is not set so here, and what there is instead.
const INSTEAD: [(&str, &str); 20] = [
    (
        "adminlevel",
        "operators are listed in gpuctld.toml (operators), coordinators are made with add coordinator",
    ),
    ("defaultwckey", "jobs have tags instead: gsub --tag"),
    ("wckeys", "jobs have tags instead: gsub --tag"),
    (
        "partition",
        "a partition says itself who may use it: allow_accounts, allow_users and allow_qos in partitions.d",
    ),
    (
        "maxwall",
        "a job's time is bounded by its QOS (modify qos NAME set MaxWall=) and its partition (max_time)",
    ),
    (
        "maxwalldurationperjob",
        "a job's time is bounded by its QOS (modify qos NAME set MaxWall=) and its partition (max_time)",
    ),
    (
        "maxtres",
        "a job's size is bounded by its QOS: modify qos NAME set MaxTRES=",
    ),
    (
        "maxtresperjob",
        "a job's size is bounded by its QOS: modify qos NAME set MaxTRES=",
    ),
    (
        "maxtrespernode",
        "a node's share is not bounded here; MaxTRES of a QOS bounds a job",
    ),
    (
        "maxtresmins",
        "running_gpu_hours bounds what running jobs may still use; MaxTRES and MaxWall of a QOS a job",
    ),
    (
        "grptresmins",
        "GPU-hours are budgets: gadm quota set ACCOUNT budget=cap:10000/month",
    ),
    (
        "grptresrunmins",
        "it is running_gpu_hours here: group.running_gpu_hours=100 of an account or QOS",
    ),
    (
        "grpwall",
        "GPU-hours are budgets: gadm quota set ACCOUNT budget=cap:10000/month",
    ),
    (
        "priority",
        "a QOS has a priority, an account shares: modify account NAME set fairshare=",
    ),
    (
        "qos",
        "QOS are allowed to accounts: modify account NAME set qos+=high",
    ),
    (
        "qoslevel",
        "QOS are allowed to accounts: modify account NAME set qos+=high",
    ),
    (
        "defaultqos",
        "an account has a default QOS: modify account NAME set defaultqos=",
    ),
    (
        "gracetime",
        "a job says how long it needs for its checkpoint: gsub --checkpoint USR1@120",
    ),
    (
        "flags",
        "no QOS has flags; gadm qos set --help and gpuctld.toml(5) tell its keys",
    ),
    (
        "usagethreshold",
        "who is over their share comes later, not never: fair share orders the queue",
    ),
];

/// Keys of [`INSTEAD`] that one kind does have.
const OWN: [(Kind, &[&str]); 2] = [
    (Kind::Accounts, &["qos", "qoslevel", "defaultqos"]),
    (
        Kind::Qos,
        &[
            "priority",
            "maxwall",
            "maxwalldurationperjob",
            "maxtres",
            "maxtresperjob",
        ],
    ),
];

/// Whom it is about, and what is set.
#[derive(Debug, Default, PartialEq, Eq)]
struct Change {
    /// Of accounts, users or QOS.
    names: Vec<String>,
    /// Of users and coordinators.
    accounts: Vec<String>,
    parents: Vec<String>,
    clusters: String,
    default_account: Option<String>,
    set: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Record(Kind),
    Coordinator,
}

fn what_of(entity: &str) -> Result<What, Failure> {
    let lower = entity.to_ascii_lowercase();
    if lower.len() > 1 && "coordinators".starts_with(&lower) {
        return Ok(What::Coordinator);
    }
    match kind_of(entity) {
        Ok(kind @ (Kind::Accounts | Kind::Users | Kind::Qos)) => Ok(What::Record(kind)),
        Ok(Kind::Associations) => Err(Failure::usage(
            "associations come with their accounts and users: add user NAME account=NAME",
        )),
        _ => Err(Failure::usage(format_args!(
            "{entity:?} is not changed so: account, user, qos and coordinator are"
        ))),
    }
}

fn list(text: &str) -> impl Iterator<Item = String> {
    text.split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
}

impl Change {
    fn of(verb: Verb, what: What, words: &[String]) -> Result<Self, Failure> {
        let mut change = Self::default();
        // `add` sets with all its words, the others choose with those before `set`.
        let mut sets = verb == Verb::Add;
        for word in words {
            match word.to_ascii_lowercase().as_str() {
                "where" if verb != Verb::Add => sets = false,
                "set" if verb == Verb::Modify => sets = true,
                _ if sets => change.add_set(verb, what, word)?,
                _ => change.choose(what, word)?,
            }
        }
        Ok(change)
    }

    fn choose(&mut self, what: What, word: &str) -> Result<(), Failure> {
        let (key, value) = word.split_once('=').unwrap_or(("", word));
        let of_users = matches!(what, What::Record(Kind::Users) | What::Coordinator);
        match key.to_ascii_lowercase().as_str() {
            "" | "name" | "names" => self.names.extend(list(value)),
            "user" | "users" if of_users => self.names.extend(list(value)),
            "account" | "accounts" | "acct" | "accts" if of_users => {
                self.accounts.extend(list(value))
            }
            "account" | "accounts" | "acct" | "accts" if what == What::Record(Kind::Accounts) => {
                self.names.extend(list(value))
            }
            "parent" | "parents" if what == What::Record(Kind::Accounts) => {
                self.parents.extend(list(value))
            }
            "cluster" | "clusters" => value.clone_into(&mut self.clusters),
            _ => {
                return Err(Failure::usage(format_args!(
                    "{word:?} chooses nothing here: name=, and of users account=. What is behind `set` is changed"
                )));
            }
        }
        Ok(())
    }

    fn add_set(&mut self, verb: Verb, what: What, word: &str) -> Result<(), Failure> {
        let (key, value) = word.split_once('=').unwrap_or(("", word));
        let bare = key
            .trim_end_matches(['+', '-'])
            .to_ascii_lowercase()
            .replace('_', "");
        let chooses = matches!(
            (bare.as_str(), what),
            ("" | "name" | "names" | "cluster" | "clusters", _)
                | (
                    "account" | "accounts" | "acct" | "accts" | "user" | "users",
                    What::Record(Kind::Users) | What::Coordinator
                )
        );
        if verb == Verb::Add && chooses {
            return self.choose(what, word);
        }
        if bare.is_empty() {
            return Err(Failure::usage(format_args!("{word:?} is no KEY=VALUE")));
        }
        match (bare.as_str(), what) {
            ("defaultaccount" | "defaultacct", What::Record(Kind::Users)) => {
                self.default_account = Some(value.to_owned())
            }
            ("organization" | "org", What::Record(Kind::Accounts)) => {
                // Written by every script; sacctmgr's listing shows the parent there.
                writeln!(
                    std::io::stderr(),
                    "sacctmgr: {word} is not kept: the parent's name stands there"
                )?;
            }
            _ => {
                if let (Some((_, instead)), What::Record(kind)) =
                    (INSTEAD.iter().find(|(known, _)| *known == bare), what)
                    && !OWN
                        .iter()
                        .any(|(of, keys)| *of == kind && keys.contains(&bare.as_str()))
                {
                    return Err(Failure::usage(format_args!("{word}: {instead}")));
                }
                // One without a parent stands below root.
                let is_root = bare == "parent" && value.eq_ignore_ascii_case("root");
                self.set.push(if is_root {
                    "parent=none".to_owned()
                } else {
                    word.to_owned()
                });
            }
        }
        Ok(())
    }
}

/// What there is, to know what is meant and what is new.
struct Known {
    accounts: Vec<AccountRow>,
    qos: Vec<String>,
}

impl Known {
    fn of(client: &mut Client) -> Result<Self, Failure> {
        #[derive(Deserialize)]
        struct Accounts {
            accounts: Vec<AccountRow>,
        }
        #[derive(Deserialize)]
        struct Qos {
            qos: Vec<QosRow>,
        }
        let accounts = client.get::<Accounts>("/v1/accounts")?.accounts;
        Ok(Self {
            accounts,
            qos: client
                .get::<Qos>("/v1/qos")?
                .qos
                .into_iter()
                .map(|row| row.name)
                .collect(),
        })
    }

    fn account(&self, name: &str) -> Result<&AccountRow, Failure> {
        self.accounts
            .iter()
            .find(|row| row.name == name)
            .ok_or_else(|| {
                Failure::new(format_args!(
                    "there is no account {name:?}: add account {name}"
                ))
            })
    }

    fn has(&self, kind: Kind, name: &str) -> bool {
        match kind {
            Kind::Qos => self.qos.iter().any(|qos| qos == name),
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
        let above = association::line_above(row, &self.accounts)
            .into_iter()
            .find(|one| !one.allow_qos.is_empty());
        let has_all = above.is_none();
        let all = || {
            self.qos
                .iter()
                .cloned()
                .chain([association::NORMAL.to_owned()])
                .collect::<BTreeSet<_>>()
        };
        let mut names = above.map_or_else(all, |one| one.allow_qos.iter().cloned().collect());
        match sign {
            '+' if has_all => return None,
            '+' => names.extend(list(value)),
            _ => {
                let gone: Vec<String> = list(value).collect();
                names.retain(|name| !gone.contains(name));
            }
        }
        Some(format!(
            "qos={}",
            names.into_iter().collect::<Vec<_>>().join(",")
        ))
    }

    /// Accounts and users in them that a change is about, of those there are.
    fn entries(&self, change: &Change) -> Vec<(String, String)> {
        let in_account =
            |row: &&AccountRow| change.accounts.is_empty() || change.accounts.contains(&row.name);
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

/// Carries it out and says what was done.
///
/// # Errors
/// A word that means nothing here, somebody who may not, a terminal that says no; nothing new, modified or deleted.
pub(super) fn run(verb: Verb, words: &[String], immediate: bool) -> Outcome {
    let (entity, words) = words
        .split_first()
        .ok_or_else(|| Failure::usage("what? account, user, qos or coordinator"))?;
    let what = what_of(entity)?;
    let change = Change::of(verb, what, words)?;
    let mut client = gcli::connect("sacctmgr")?;
    cluster_choice::check(&change.clusters, &mut client)?;
    let known = Known::of(&mut client)?;
    let mut turn = Turn {
        client: &mut client,
        immediate,
        said: Vec::new(),
    };
    match (verb, what) {
        (Verb::Modify, What::Coordinator) => {
            return Err(Failure::usage(
                "coordinators are added and deleted: add coordinator account=NAME names=USER",
            ));
        }
        (_, What::Coordinator) => turn.coordinators(verb, &change, &known)?,
        (Verb::Add, What::Record(Kind::Users)) => turn.add_users(&change, &known)?,
        (Verb::Modify, What::Record(Kind::Users)) => turn.modify_users(&change, &known)?,
        (Verb::Delete, What::Record(Kind::Users)) => turn.delete_users(&change, &known)?,
        (Verb::Add, What::Record(kind)) => turn.add_records(kind, &change, &known)?,
        (Verb::Modify, What::Record(kind)) => turn.modify_records(kind, &change, &known)?,
        (Verb::Delete, What::Record(kind)) => turn.delete_records(kind, &change, &known)?,
    }
    let mut out = std::io::stdout();
    turn.said
        .iter()
        .try_for_each(|line| writeln!(out, "{line}"))?;
    Ok(0)
}

struct Turn<'c> {
    client: &'c mut Client,
    immediate: bool,
    /// For stdout, once all is done.
    said: Vec<String>,
}

fn title(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Qos => ("QOS(s)", "qos"),
        _ => ("Account(s)", "accounts"),
    }
}

impl Turn<'_> {
    /// Nothing at all is told where programs of sacctmgr look for it, and fails; else the terminal is asked, unless with `-i`.
    fn begin(
        &mut self,
        nothing: bool,
        (said, why): (&str, &str),
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

    fn add_records(&mut self, kind: Kind, change: &Change, known: &Known) -> Result<(), Failure> {
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
            ("Nothing new added.", "they are there already"),
            &format!("add {}?", change.names.join(", ")),
        )?;
        self.said.push(format!(" Adding {}", title(kind).0));
        for name in new {
            let words = NameAndWords::of(name.clone(), change.set.clone());
            match kind {
                Kind::Qos => policy::qos::run(self.client, QosAct::Add(words))?,
                _ => policy::account::run(self.client, AccountAct::Add(words))?,
            };
            self.said.push(format!("  {name}"));
        }
        Ok(())
    }

    fn modify_records(
        &mut self,
        kind: Kind,
        change: &Change,
        known: &Known,
    ) -> Result<(), Failure> {
        must_set(change)?;
        let of_parent = |name: &str| {
            let parent = known
                .accounts
                .iter()
                .find(|row| row.name == name)
                .and_then(|row| row.parent.clone())
                .unwrap_or_else(|| "root".to_owned());
            change.parents.is_empty() || change.parents.contains(&parent)
        };
        let all = || {
            known
                .accounts
                .iter()
                .map(|row| row.name.clone())
                .collect::<Vec<_>>()
        };
        let named = match (change.names.is_empty(), change.parents.is_empty()) {
            (false, _) => change.names.clone(),
            (true, false) => all(),
            (true, true) => return Err(Failure::usage("which? modify account NAME set KEY=VALUE")),
        };
        let meant: Vec<String> = named
            .into_iter()
            .filter(|name| known.has(kind, name) && of_parent(name))
            .collect();
        self.begin(
            meant.is_empty(),
            ("Nothing modified", "there is none of that name"),
            &format!("change {}?", meant.join(", ")),
        )?;
        self.said.push(if kind == Kind::Qos {
            " Modified qos...".to_owned()
        } else {
            " Modified account associations...".to_owned()
        });
        for name in meant {
            let set: Vec<String> = match kind {
                Kind::Qos => change.set.clone(),
                _ => change
                    .set
                    .iter()
                    .filter_map(|word| known.own_qos(&name, word))
                    .collect(),
            };
            let words = NameAndWords::of(name.clone(), set.clone());
            match kind {
                Kind::Qos => policy::qos::run(self.client, QosAct::Set(words))?,
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
        kind: Kind,
        change: &Change,
        known: &Known,
    ) -> Result<(), Failure> {
        let meant: Vec<String> = change
            .names
            .iter()
            .filter(|name| known.has(kind, name))
            .cloned()
            .collect();
        self.begin(
            meant.is_empty(),
            ("Nothing deleted", "there is none of that name"),
            &format!("delete {}?", meant.join(", ")),
        )?;
        match kind {
            Kind::Qos => policy::qos::run(self.client, QosAct::Del(Removal::of(meant.clone())))?,
            _ => policy::account::run(self.client, AccountAct::Del(Removal::of(meant.clone())))?,
        };
        self.said.push(if kind == Kind::Qos {
            " Deleting QOS(s)...".to_owned()
        } else {
            format!(" Deleting {}...", title(kind).1)
        });
        self.said
            .extend(meant.iter().map(|name| format!("  {name}")));
        Ok(())
    }

    fn add_users(&mut self, change: &Change, known: &Known) -> Result<(), Failure> {
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
            ("Nothing new added.", "they are there already"),
            &format!("add {}?", change.names.join(", ")),
        )?;
        self.said.extend(
            [" Adding User(s)".to_owned()]
                .into_iter()
                .chain(change.names.iter().map(|name| format!("  {name}"))),
        );
        self.said.push(" Associations =".to_owned());
        for (user, account) in new {
            policy::user::run(self.client, UserAct::Add(words_of(change, &user, &account)))?;
            self.said.push(format!("  U = {user:<9} A = {account}"));
        }
        Ok(())
    }

    fn modify_users(&mut self, change: &Change, known: &Known) -> Result<(), Failure> {
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
            // The account itself says whose default it is.
            (Some(account), true) => entries
                .into_iter()
                .filter(|(_, of)| of == account)
                .collect(),
            _ => entries,
        };
        self.begin(
            meant.is_empty(),
            (
                "Nothing modified",
                "nobody of that name may charge that account",
            ),
            &format!("change {} user(s)?", meant.len()),
        )?;
        self.said.push(" Modified user associations...".to_owned());
        for (user, account) in meant {
            policy::user::run(self.client, UserAct::Set(words_of(change, &user, &account)))?;
            self.said.push(format!("  A = {account:<20} U = {user}"));
        }
        Ok(())
    }

    fn delete_users(&mut self, change: &Change, known: &Known) -> Result<(), Failure> {
        if change.names.is_empty() {
            return Err(Failure::usage("whom? delete user ada where account=vision"));
        }
        let meant = known.entries(change);
        self.begin(
            meant.is_empty(),
            (
                "Nothing deleted",
                "nobody of that name may charge that account",
            ),
            &format!("delete {}?", change.names.join(", ")),
        )?;
        self.said.push(" Deleting user associations...".to_owned());
        for (user, account) in meant {
            let words = user::Words::of(user.clone(), vec![format!("account={account}")]);
            policy::user::run(self.client, UserAct::Del { words, yes: true })?;
            self.said.push(format!("  A = {account:<10} U = {user}"));
        }
        Ok(())
    }

    fn coordinators(&mut self, verb: Verb, change: &Change, known: &Known) -> Result<(), Failure> {
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
            (
                "Nothing deleted",
                "nobody of that name coordinates an account",
            ),
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
fn words_of(change: &Change, user: &str, account: &str) -> user::Words {
    let as_default =
        (change.default_account.as_deref() == Some(account)).then(|| "default=yes".to_owned());
    let words = [format!("account={account}")]
        .into_iter()
        .chain(change.set.iter().cloned())
        .chain(as_default)
        .collect();
    user::Words::of(user.to_owned(), words)
}

fn must_set(change: &Change) -> Result<(), Failure> {
    match change.set.is_empty() {
        true => Err(Failure::usage(
            "what is to be set? modify account vision set maxjobs=10",
        )),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Change, String> {
        let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
        let what = what_of(&words[1]).map_err(|failure| failure.text)?;
        Change::of(verb_of(&words[0]).unwrap(), what, &words[2..]).map_err(|failure| failure.text)
    }

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn verbs_may_be_shortened_as_sacctmgr_has_it() {
        assert_eq!(
            ["add", "Create", "mod", "del", "rem"].map(verb_of),
            [
                Verb::Add,
                Verb::Add,
                Verb::Modify,
                Verb::Delete,
                Verb::Delete
            ]
            .map(Some)
        );
        assert_eq!(["ad", "de", "list", "show", "dump"].map(verb_of), [None; 5]);
    }

    #[test]
    fn words_choose_before_set_and_change_behind_it() {
        let change =
            read("modify user where name=ada,bob account=vision set maxjobs=3 GrpTRES=gres/gpu=4")
                .unwrap();
        assert_eq!(
            (change.names, change.accounts, change.set),
            (
                names(&["ada", "bob"]),
                names(&["vision"]),
                names(&["maxjobs=3", "GrpTRES=gres/gpu=4"])
            )
        );
        let change =
            read("add user ada account=vision,nlp defaultaccount=nlp fairshare=2").unwrap();
        assert_eq!(
            (
                change.names,
                change.accounts,
                change.default_account.as_deref(),
                change.set
            ),
            (
                names(&["ada"]),
                names(&["vision", "nlp"]),
                Some("nlp"),
                names(&["fairshare=2"])
            )
        );
        let change =
            read("modify account bio set parent=root qos+=high maxjobs=2 where parent=pool")
                .unwrap();
        assert_eq!(
            (change.names, change.parents, change.set),
            (
                names(&["bio"]),
                names(&["pool"]),
                names(&["parent=none", "qos+=high", "maxjobs=2"])
            )
        );
        let change = read("add coordinator account=bio names=ada").unwrap();
        assert_eq!(
            (change.names, change.accounts),
            (names(&["ada"]), names(&["bio"]))
        );
        assert_eq!(
            read("delete qos where name=a,b").unwrap().names,
            names(&["a", "b"])
        );
    }

    #[test]
    fn qos_are_added_to_those_that_an_account_has_from_above() {
        let account = |name: &str, parent: Option<&str>, allow_qos: &[&str]| AccountRow {
            name: name.to_owned(),
            parent: parent.map(str::to_owned),
            allow_qos: names(allow_qos).into_iter().collect(),
            ..AccountRow::default()
        };
        let accounts = vec![
            account("open", None, &[]),
            account("lab", None, &["normal", "low"]),
            account("bio", Some("lab"), &[]),
            account("own", Some("lab"), &["high"]),
        ];
        let known = Known {
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

    #[test]
    fn what_is_not_set_so_here_is_refused_with_what_is() {
        let starts = |words: &str, text: &str| {
            assert!(
                read(words).unwrap_err().starts_with(text),
                "{words}: {:?}",
                read(words)
            )
        };
        starts(
            "modify user ada set qos+=high",
            "qos+=high: QOS are allowed to accounts",
        );
        starts(
            "modify user ada set AdminLevel=Operator",
            "AdminLevel=Operator: operators are listed in gpuctld.toml",
        );
        starts(
            "modify account bio set MaxWall=1-0",
            "MaxWall=1-0: a job's time is bounded by its QOS",
        );
        starts(
            "modify account bio set GrpTRESMins=cpu=100",
            "GrpTRESMins=cpu=100: GPU-hours are budgets",
        );
        starts("add qos q2 GraceTime=60", "GraceTime=60: a job says");
        starts("add cluster other", "\"cluster\" is not changed so");
        starts("add assoc other", "associations come with");
        starts(
            "modify account bio maxjobs=3",
            "\"maxjobs=3\" chooses nothing here",
        );
        starts(
            "modify account bio set maxjobs",
            "\"maxjobs\" is no KEY=VALUE",
        );
        for kind in [Kind::Accounts, Kind::Qos] {
            let own = OWN.iter().find(|(of, _)| *of == kind).unwrap().1;
            let entity = if kind == Kind::Qos { "qos" } else { "account" };
            assert!(
                own.iter()
                    .all(|key| read(&format!("add {entity} x {key}=1")).is_ok()),
                "{kind:?}"
            );
        }
    }
}
