//! The words of `sacctmgr add`, `modify` and `delete`: what `where` chooses and `set` sets.
//!
//! What a key means is the affair of `gadm account`, `user` and `qos`; a key that they do not have is refused here, with what
//! there is instead. Source: sacctmgr(1).

use super::entity::{Entity, entity_of, words_of};
use gcli::Failure;
use gimport::association::INSTEAD;
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

/// Keys of [`INSTEAD`] that one kind does have.
const OWN: [(Entity, &[&str]); 2] = [
    (Entity::Accounts, &["qos", "qoslevel", "defaultqos"]),
    (
        Entity::Qos,
        &[
            "priority",
            "maxwall",
            "maxwalldurationperjob",
            "maxtres",
            "maxtresperjob",
        ],
    ),
];

/// The records that a change is about, and what it sets.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    /// Of accounts, users or QOS.
    pub(super) names: Vec<String>,
    /// Of users and coordinators.
    pub(super) accounts: Vec<String>,
    pub(super) parents: Vec<String>,
    pub(super) clusters: String,
    pub(super) default_account: Option<String>,
    pub(super) set: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangeTarget {
    Record(Entity),
    Coordinator,
}

pub(super) fn target_of(entity: &str) -> Result<ChangeTarget, Failure> {
    let lower = entity.to_ascii_lowercase();
    if lower.len() > 1 && "coordinators".starts_with(&lower) {
        return Ok(ChangeTarget::Coordinator);
    }
    match entity_of(entity) {
        Ok(kind @ (Entity::Accounts | Entity::Users | Entity::Qos)) => {
            Ok(ChangeTarget::Record(kind))
        }
        Ok(Entity::Associations) => Err(Failure::usage(
            "associations come with their accounts and users: add user NAME account=NAME",
        )),
        _ => Err(Failure::usage(format_args!(
            "{entity:?} is not changed so: account, user, qos and coordinator are"
        ))),
    }
}

impl Change {
    pub(super) fn of(verb: Verb, target: ChangeTarget, words: &[String]) -> Result<Self, Failure> {
        let mut change = Self::default();
        // `add` sets with all its words, the others choose with those before `set`.
        let mut sets = verb == Verb::Add;
        for word in words {
            match word.to_ascii_lowercase().as_str() {
                "where" if verb != Verb::Add => sets = false,
                "set" if verb == Verb::Modify => sets = true,
                _ if sets => change.add_set(verb, target, word)?,
                _ => change.choose(target, word)?,
            }
        }
        Ok(change)
    }

    fn choose(&mut self, target: ChangeTarget, word: &str) -> Result<(), Failure> {
        let (key, value) = word.split_once('=').unwrap_or(("", word));
        let of_users = matches!(
            target,
            ChangeTarget::Record(Entity::Users) | ChangeTarget::Coordinator
        );
        match key.to_ascii_lowercase().as_str() {
            "" | "name" | "names" => self.names.extend(words_of(value)),
            "user" | "users" if of_users => self.names.extend(words_of(value)),
            "account" | "accounts" | "acct" | "accts" if of_users => {
                self.accounts.extend(words_of(value))
            }
            "account" | "accounts" | "acct" | "accts"
                if target == ChangeTarget::Record(Entity::Accounts) =>
            {
                self.names.extend(words_of(value))
            }
            "parent" | "parents" if target == ChangeTarget::Record(Entity::Accounts) => {
                self.parents.extend(words_of(value))
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

    fn add_set(&mut self, verb: Verb, target: ChangeTarget, word: &str) -> Result<(), Failure> {
        let (key, value) = word.split_once('=').unwrap_or(("", word));
        let bare = key
            .trim_end_matches(['+', '-'])
            .to_ascii_lowercase()
            .replace('_', "");
        let chooses = matches!(
            (bare.as_str(), target),
            ("" | "name" | "names" | "cluster" | "clusters", _)
                | (
                    "account" | "accounts" | "acct" | "accts" | "user" | "users",
                    ChangeTarget::Record(Entity::Users) | ChangeTarget::Coordinator
                )
        );
        if verb == Verb::Add && chooses {
            return self.choose(target, word);
        }
        if bare.is_empty() {
            return Err(Failure::usage(format_args!("{word:?} is no KEY=VALUE")));
        }
        match (bare.as_str(), target) {
            ("defaultaccount" | "defaultacct", ChangeTarget::Record(Entity::Users)) => {
                self.default_account = Some(value.to_owned())
            }
            ("organization" | "org", ChangeTarget::Record(Entity::Accounts)) => {
                // Written by every script; sacctmgr's listing shows the parent there.
                writeln!(
                    std::io::stderr(),
                    "sacctmgr: {word} is not kept: the parent's name stands there"
                )?;
            }
            _ => {
                if let (Some((_, instead)), ChangeTarget::Record(kind)) =
                    (INSTEAD.iter().find(|(known, _)| *known == bare), target)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Change, String> {
        let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
        let target = target_of(&words[1]).map_err(|failure| failure.text)?;
        Change::of(verb_of(&words[0]).unwrap(), target, &words[2..]).map_err(|failure| failure.text)
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
        for kind in [Entity::Accounts, Entity::Qos] {
            let own = OWN.iter().find(|(of, _)| *of == kind).unwrap().1;
            let entity = if kind == Entity::Qos {
                "qos"
            } else {
                "account"
            };
            assert!(
                own.iter()
                    .all(|key| read(&format!("add {entity} x {key}=1")).is_ok()),
                "{kind:?}"
            );
        }
    }
}
