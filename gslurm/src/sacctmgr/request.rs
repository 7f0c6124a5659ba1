//! Reads the words of `sacctmgr list`: which records, chosen by what, in which columns.

use super::entity::{Entity, entity_of, words_of};
use super::event::{self, EventFilter};
use super::event_span::EventSpan;
use super::{cluster, problem, qos, transaction};
use gcli::Failure;
use gslurm_json::association::{AssociationFilter, LineOf};

pub(super) const ELSEWHERE: &str = "gadm account, user, qos and quota make and change what there is; gadm share shows shares and use";

/// What is to be listed.
#[derive(Debug, Default)]
pub(super) struct ListRequest {
    pub kind: Entity,
    /// Of users and accounts a line for each association.
    pub with_associations: bool,
    /// Accounts indented below their parents.
    pub tree: bool,
    /// Of QOS or clusters.
    pub names: Vec<String>,
    pub users: Vec<String>,
    pub accounts: Vec<String>,
    pub parents: Vec<String>,
    /// As `cluster=` names them.
    pub clusters: String,
    pub events: EventFilter,
    pub actors: Vec<String>,
    /// When it happened.
    pub span: EventSpan,
    pub format: Option<String>,
}

impl ListRequest {
    /// Reads `list user ada format=user`, where `-s` asks for associations.
    pub(super) fn of(words: &[String], with_associations: bool) -> Result<Self, Failure> {
        let [verb, entity, words @ ..] = words else {
            return Err(Failure::usage(format_args!(
                "list what? account, assoc, user, qos or cluster. {ELSEWHERE}"
            )));
        };
        let lower = verb.to_ascii_lowercase();
        if !["list", "show"]
            .iter()
            .any(|word| lower.len() > 2 && word.starts_with(&lower))
        {
            let advice = NOT_DONE
                .iter()
                .find(|(word, _)| lower.len() > 2 && word.starts_with(&lower))
                .map_or(ELSEWHERE, |(_, advice)| advice);
            return Err(Failure::usage(format_args!(
                "{verb:?} is not done here: {advice}"
            )));
        }
        let mut asked = Self {
            kind: entity_of(entity)?,
            with_associations,
            ..Self::default()
        };
        for word in words {
            asked.add(word)?;
        }
        Ok(asked)
    }

    /// What it asks of associations.
    pub(super) fn filter(&self) -> AssociationFilter {
        AssociationFilter {
            line_of: match self.kind {
                Entity::Users => LineOf::Users,
                Entity::Accounts => LineOf::Accounts,
                _ => LineOf::Associations,
            },
            with_associations: self.with_associations,
            users: self.users.clone(),
            accounts: self.accounts.clone(),
            parents: self.parents.clone(),
        }
    }

    /// `where`, `tree`, `user=ada,bob`, `vision`.
    fn add(&mut self, word: &str) -> Result<(), Failure> {
        let (key, value) = word
            .split_once('=')
            .map_or(("", word), |(key, value)| (key, value));
        let of_accounts = matches!(
            self.kind,
            Entity::Users | Entity::Accounts | Entity::Associations
        );
        let happened = matches!(self.kind, Entity::Events | Entity::Transactions);
        match (
            key.to_ascii_lowercase().as_str(),
            value.to_ascii_lowercase().as_str(),
        ) {
            ("", "where") => {}
            ("", "withassoc" | "withassociations") if of_accounts => self.with_associations = true,
            // The column of coordinators can always be had.
            ("", "withcoord" | "withcoordinators")
                if self.kind == Entity::Users && self.format.is_none() =>
            {
                self.format = Some(format!("{},Coord", self.usual()));
            }
            ("", "tree") if self.kind == Entity::Associations => self.tree = true,
            ("format", _) => self.format = Some(value.to_owned()),
            ("cluster" | "clusters", _) if self.kind != Entity::Qos => {
                value.clone_into(&mut self.clusters)
            }
            ("node" | "nodes", _) if self.kind == Entity::Events => {
                let names = gmodel::hostlist::expand(value, gmodel::hostlist::MAX_HOSTS)
                    .map_err(Failure::usage)?;
                self.events.nodes.extend(names);
            }
            ("state" | "states", _) if self.kind == Entity::Events => self
                .events
                .states
                .extend(words_of(&value.to_ascii_lowercase())),
            ("actor" | "actors", _) if self.kind == Entity::Transactions => {
                self.actors.extend(words_of(value))
            }
            ("start", _) if happened => self.span.start = Some(value.to_owned()),
            ("end", _) if happened => self.span.end = Some(value.to_owned()),
            ("user" | "users", _) if of_accounts => self.users.extend(words_of(value)),
            ("account" | "accounts" | "acct" | "accts", _) if of_accounts => {
                self.accounts.extend(words_of(value))
            }
            ("parent" | "parents", _) if of_accounts => self.parents.extend(words_of(value)),
            ("" | "name" | "names", _) => match self.names_of_kind(!key.is_empty()) {
                Some(names) => names.extend(words_of(value)),
                None => return Err(self.unknown(word)),
            },
            _ => return Err(self.unknown(word)),
        }
        Ok(())
    }

    /// Where names go, with `name=` or bare.
    fn names_of_kind(&mut self, has_key: bool) -> Option<&mut Vec<String>> {
        match self.kind {
            Entity::Users => Some(&mut self.users),
            Entity::Accounts => Some(&mut self.accounts),
            Entity::Qos | Entity::Cluster => Some(&mut self.names),
            Entity::Tres | Entity::Runaway | Entity::Problems | Entity::Wckeys => {
                has_key.then_some(&mut self.names)
            }
            Entity::Events | Entity::Transactions | Entity::Associations => None,
        }
    }

    fn unknown(&self, word: &str) -> Failure {
        let known = match self.kind {
            Entity::Tres | Entity::Runaway | Entity::Problems | Entity::Wckeys => "cluster=",
            Entity::Transactions => "actor=, start=, end=, cluster=",
            Entity::Events => "nodes=, state=, start=, end=, cluster=",
            Entity::Qos | Entity::Cluster => "name=",
            Entity::Associations => "user=, account=, parent=, cluster=, tree",
            Entity::Users | Entity::Accounts => {
                "user=, account=, parent=, cluster=, name=, withassoc"
            }
        };
        Failure::usage(format_args!(
            "{word:?} chooses nothing here. Known are {known} and format="
        ))
    }

    /// sacctmgr's own columns.
    pub(super) fn usual(&self) -> &'static str {
        match (self.kind, self.with_associations) {
            (Entity::Users, false) => "User,DefaultAccount,AdminLevel",
            (Entity::Users, true) => {
                "User,DefaultAccount,AdminLevel,Cluster,Account,Partition,Share,Priority,MaxJobs,MaxNodes,MaxCPUs,MaxSubmit,MaxWall,MaxCPUMins,QOS,DefaultQOS"
            }
            (Entity::Accounts, false) => "Account,Description,Organization",
            (Entity::Accounts, true) => {
                "Account,Description,Organization,Cluster,ParentName,User,Share,Priority,GrpJobs,GrpNodes,GrpCPUs,GrpMem,GrpSubmit,GrpWall,GrpCPUMins,\
                 MaxJobs,MaxNodes,MaxCPUs,MaxSubmit,MaxWall,MaxCPUMins,QOS,DefaultQOS"
            }
            (Entity::Associations, _) => {
                "Cluster,Account,User,Partition,Share,Priority,GrpJobs,GrpTRES,GrpSubmit,GrpWall,GrpTRESMins,MaxJobs,MaxTRES,MaxTRESPerNode,MaxSubmit,MaxWall,\
                 MaxTRESMins,QOS,DefaultQOS,GrpTRESRunMins"
            }
            (Entity::Qos, _) => qos::USUAL,
            (Entity::Cluster, _) => cluster::USUAL,
            (Entity::Tres, _) => "Type,Name,ID",
            (Entity::Runaway, _) => "",
            (Entity::Wckeys, _) => "WCKey,Cluster,User",
            (Entity::Problems, _) => problem::USUAL,
            (Entity::Transactions, _) => transaction::USUAL,
            (Entity::Events, _) => event::USUAL,
        }
    }
}

/// What sacctmgr does and we do not under its name.
const NOT_DONE: [(&str, &str); 3] = [
    ("archive", "gadm backup writes a copy of all there is"),
    (
        "clear",
        "gadm diag says how the controller is doing; its counters begin anew with it",
    ),
    ("reconfigure", "gadm reload puts changed files in force"),
];
