//! `gadm` called as `sacctmgr`, through a link: its listings of accounts, who may charge them, and QOS; `change` makes and changes them.
//!
//! Source: sacctmgr(1), and what
//! sacctmgr 22.05.8 printed.

mod association;
mod change;
mod counted;
mod event;
mod month;
mod problem;
mod qos;
mod transaction;

use crate::ruled_table::{self, Column, TableArgs};
use association::Association;
use clap::{CommandFactory, FromArgMatches, Parser};
use gcli::table::stdout;
use gcli::{Failure, Outcome, cluster_choice, command_line};
use gwire::api::ClusterInfo;
use std::ffi::OsString;
use std::io::Write;

const ELSEWHERE: &str = "gadm account, user, qos and quota make and change what there is; gadm share shows shares and use";

const EXAMPLES: &str = "\
Commands (list or show):
  show account [NAMES] [withassoc]
  show assoc [where user=NAMES account=NAMES parent=NAMES] [tree]
  show user [NAMES] [withassoc] [where account=NAMES]
  show qos [NAMES]
  show cluster
  show tres
  show runawayjobs
  show events [start=TIME] [end=TIME] [nodes=NAMES] [state=drain,down]
  show problem
  show transactions [start=TIME] [end=TIME] [actor=USERS]
each with format=COLUMNS, as User,Account%20;
  add account NAMES [parent=NAME] [KEY=VALUE ...]
  add user NAMES account=NAMES [defaultaccount=NAME] [KEY=VALUE ...]
  add qos NAMES [KEY=VALUE ...], add coordinator account=NAME names=USERS
  modify account|user|qos NAMES [where ...] set KEY=VALUE ...
  delete account|user|qos|coordinator NAMES [where account=NAMES]
each asks unless with -i. Keys are those of gadm account, user and qos, in sacctmgr's spellings too.

This is gpupool: gadm account, user, qos and quota have more.";

const ADVICE: &command_line::Advice = &[(&["-r", "--readonly"], "it only reads anyway")];

#[derive(Parser)]
#[command(name = "sacctmgr", version, about = "sacctmgr's listings, by gadm", after_help = EXAMPLES)]
struct Args {
    #[command(flatten)]
    table: TableArgs,
    /// Accounts and users with their associations, as withassoc
    #[arg(short = 's', long)]
    associations: bool,
    /// Change without asking
    #[arg(short = 'i', long)]
    immediate: bool,
    /// Only errors are said, as is usual
    #[arg(short = 'Q', long)]
    quiet: bool,
    /// What to list
    #[arg(value_name = "WORDS")]
    words: Vec<String>,
}

/// `gadm` under that name.
///
/// # Errors
/// What stood in the way, with the exit code.
pub(crate) fn main(words: Vec<OsString>) -> Outcome {
    let matches = command_line::parse_advising(Args::command(), words, ADVICE)?;
    let args = Args::from_arg_matches(&matches).map_err(Failure::usage)?;
    if let Some((verb, words)) = args.words.split_first() {
        if let Some(verb) = change::verb_of(verb) {
            return change::run(verb, words, args.immediate);
        }
        if verb.eq_ignore_ascii_case("version") {
            writeln!(std::io::stdout(), "{}", gcli::slurm_name::VERSION)?;
            return Ok(0);
        }
    }
    let asked = Asked::of(&args)?;
    let mut client = gcli::connect("sacctmgr")?;
    cluster_choice::check(&asked.clusters, &mut client)?;
    let format = asked.format.as_deref().unwrap_or(asked.usual());
    let mut out = stdout()?;
    match asked.kind {
        Kind::Qos => {
            let columns = ruled_table::choose(format, qos::COLUMNS, ELSEWHERE)?;
            ruled_table::print(
                &mut out,
                &columns,
                &qos::rows(&mut client, &asked.names)?,
                args.table,
            )?;
        }
        Kind::Cluster => {
            let columns = ruled_table::choose(format, CLUSTER, ELSEWHERE)?;
            let cluster = client.get::<ClusterInfo>("/v1/cluster")?;
            let rows: Vec<ClusterInfo> = [cluster]
                .into_iter()
                .filter(|one| asked.names.is_empty() || asked.names.contains(&one.name))
                .collect();
            ruled_table::print(&mut out, &columns, &rows, args.table)?;
        }
        Kind::Tres => {
            let columns = ruled_table::choose(format, counted::COLUMNS, ELSEWHERE)?;
            ruled_table::print(&mut out, &columns, &counted::rows(&mut client)?, args.table)?;
        }
        Kind::Events => {
            let columns = ruled_table::choose(format, event::COLUMNS, ELSEWHERE)?;
            let cluster = client.get::<ClusterInfo>("/v1/cluster")?.name;
            ruled_table::print(
                &mut out,
                &columns,
                &event::rows(&mut client, &asked.events, &asked.span, &cluster)?,
                args.table,
            )?;
        }
        Kind::Transactions => {
            let columns = ruled_table::choose(format, transaction::COLUMNS, ELSEWHERE)?;
            ruled_table::print(
                &mut out,
                &columns,
                &transaction::rows(&mut client, &asked.actors, &asked.span)?,
                args.table,
            )?;
        }
        Kind::Problems => {
            let columns = ruled_table::choose(format, problem::COLUMNS, ELSEWHERE)?;
            let cluster = client.get::<ClusterInfo>("/v1/cluster")?.name;
            ruled_table::print(
                &mut out,
                &columns,
                &problem::rows(&mut client, &cluster)?,
                args.table,
            )?;
        }
        // A job's end and its accounting are one record.
        Kind::Runaway => writeln!(
            out,
            "Runaway Jobs: No runaway jobs found on cluster {}",
            client.get::<ClusterInfo>("/v1/cluster")?.name
        )?,
        Kind::Users | Kind::Accounts | Kind::Associations => {
            let known = if asked.tree {
                association::IN_TREE
            } else {
                association::COLUMNS
            };
            let columns = ruled_table::choose(format, known, ELSEWHERE)?;
            let words: Vec<&str> = columns.iter().map(|(column, _)| column.word).collect();
            let rows: Vec<Association> = association::rows(&mut client, &asked, &words)?;
            ruled_table::print(&mut out, &columns, &rows, args.table)?;
        }
    }
    out.flush()?;
    Ok(0)
}

const CLUSTER: &[Column<ClusterInfo>] = &[Column::right("cluster", "Cluster", 10, |row| {
    row.name.clone()
})];

/// What is to be listed.
#[derive(Debug, Default)]
struct Asked {
    kind: Kind,
    /// Of users and accounts a line for each association.
    with_associations: bool,
    /// Accounts indented below their parents.
    tree: bool,
    /// Of QOS or clusters.
    names: Vec<String>,
    users: Vec<String>,
    accounts: Vec<String>,
    parents: Vec<String>,
    /// As `cluster=` names them.
    clusters: String,
    events: event::Chosen,
    actors: Vec<String>,
    /// When it happened.
    span: month::Span,
    format: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Associations,
    Users,
    Accounts,
    Qos,
    Cluster,
    Tres,
    Runaway,
    Events,
    Problems,
    Transactions,
}

fn list(text: &str) -> impl Iterator<Item = String> {
    text.split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
}

/// Each entity with the fewest letters that mean it.
const ENTITIES: [(&str, usize, Kind); 13] = [
    ("problems", 1, Kind::Problems),
    ("events", 1, Kind::Events),
    ("tres", 2, Kind::Tres),
    ("runawayjobs", 2, Kind::Runaway),
    ("accounts", 2, Kind::Accounts),
    ("accts", 3, Kind::Accounts),
    ("associations", 2, Kind::Associations),
    ("clusters", 2, Kind::Cluster),
    ("qos", 1, Kind::Qos),
    ("qualityofservices", 3, Kind::Qos),
    ("users", 1, Kind::Users),
    ("transactions", 1, Kind::Transactions),
    ("txns", 2, Kind::Transactions),
];

/// What sacctmgr lists and we do not, each with where else to look.
const NOT_LISTED: [(&str, &str); 8] = [
    ("configuration", "gadm config prints the configuration"),
    (
        "coordinators",
        "show user format=User,Coord shows coordinators, gadm user list too",
    ),
    (
        "federations",
        "there are no federations: each cluster has a queue of its own",
    ),
    (
        "reservations",
        "scontrol show reservation and gadm reservation list show them",
    ),
    ("resources", "gadm licence list shows licences"),
    (
        "stats",
        "gadm diag and sdiag say how the controller is doing",
    ),
    (
        "wckeys",
        "jobs have tags instead: gsub --tag, gacct report --by tag",
    ),
    ("archive", "gadm backup writes a copy of all there is"),
];

/// What sacctmgr does and we do not under its name.
const NOT_DONE: [(&str, &str); 5] = [
    (
        "dump",
        "gadm policy export writes accounts, QOS and reservations as TOML",
    ),
    (
        "load",
        "gadm policy import reads what gadm policy export wrote; --dry-run says what it would do",
    ),
    ("archive", "gadm backup writes a copy of all there is"),
    (
        "clear",
        "gadm diag says how the controller is doing; its counters begin anew with it",
    ),
    ("reconfigure", "gadm reload puts changed files in force"),
];

fn kind_of(entity: &str) -> Result<Kind, Failure> {
    let lower = entity.to_ascii_lowercase();
    let found = ENTITIES
        .iter()
        .find(|(word, least, _)| lower.len() >= *least && word.starts_with(&lower));
    if let Some((.., kind)) = found {
        return Ok(*kind);
    }
    let advice = NOT_LISTED
        .iter()
        .find(|(word, _)| lower.len() > 2 && word.starts_with(&lower))
        .map(|(_, advice)| *advice);
    let advice = advice.unwrap_or("account, assoc, user, qos and cluster are");
    Err(Failure::usage(format_args!(
        "{entity:?} is not listed here: {advice}"
    )))
}

impl Asked {
    fn of(args: &Args) -> Result<Self, Failure> {
        let [verb, entity, words @ ..] = &args.words[..] else {
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
            kind: kind_of(entity)?,
            with_associations: args.associations,
            ..Self::default()
        };
        for word in words {
            asked.add(word)?;
        }
        Ok(asked)
    }

    /// `where`, `tree`, `user=ada,bob`, `vision`.
    fn add(&mut self, word: &str) -> Result<(), Failure> {
        let (key, value) = word
            .split_once('=')
            .map_or(("", word), |(key, value)| (key, value));
        let of_accounts = matches!(self.kind, Kind::Users | Kind::Accounts | Kind::Associations);
        let happened = matches!(self.kind, Kind::Events | Kind::Transactions);
        match (
            key.to_ascii_lowercase().as_str(),
            value.to_ascii_lowercase().as_str(),
        ) {
            ("", "where") => {}
            ("", "withassoc" | "withassociations") if of_accounts => self.with_associations = true,
            // The column of coordinators can always be had.
            ("", "withcoord" | "withcoordinators")
                if self.kind == Kind::Users && self.format.is_none() =>
            {
                self.format = Some(format!("{},Coord", self.usual()));
            }
            ("", "tree") if self.kind == Kind::Associations => self.tree = true,
            ("format", _) => self.format = Some(value.to_owned()),
            ("cluster" | "clusters", _) if self.kind != Kind::Qos => {
                value.clone_into(&mut self.clusters)
            }
            ("node" | "nodes", _) if self.kind == Kind::Events => {
                let names = gmodel::hostlist::expand(value, gmodel::hostlist::MAX_HOSTS)
                    .map_err(Failure::usage)?;
                self.events.nodes.extend(names);
            }
            ("state" | "states", _) if self.kind == Kind::Events => {
                self.events.states.extend(list(&value.to_ascii_lowercase()))
            }
            ("actor" | "actors", _) if self.kind == Kind::Transactions => {
                self.actors.extend(list(value))
            }
            ("start", _) if happened => self.span.start = Some(value.to_owned()),
            ("end", _) if happened => self.span.end = Some(value.to_owned()),
            ("user" | "users", _) if of_accounts => self.users.extend(list(value)),
            ("account" | "accounts" | "acct" | "accts", _) if of_accounts => {
                self.accounts.extend(list(value))
            }
            ("parent" | "parents", _) if of_accounts => self.parents.extend(list(value)),
            ("" | "name" | "names", _) => match self.kind {
                Kind::Users => self.users.extend(list(value)),
                Kind::Accounts => self.accounts.extend(list(value)),
                Kind::Events | Kind::Transactions => return Err(self.unknown(word)),
                Kind::Tres | Kind::Runaway | Kind::Problems if key.is_empty() => {
                    return Err(self.unknown(word));
                }
                Kind::Qos | Kind::Cluster | Kind::Tres | Kind::Runaway | Kind::Problems => {
                    self.names.extend(list(value))
                }
                Kind::Associations => return Err(self.unknown(word)),
            },
            _ => return Err(self.unknown(word)),
        }
        Ok(())
    }

    fn unknown(&self, word: &str) -> Failure {
        let known = match self.kind {
            Kind::Tres | Kind::Runaway | Kind::Problems => "cluster=",
            Kind::Transactions => "actor=, start=, end=, cluster=",
            Kind::Events => "nodes=, state=, start=, end=, cluster=",
            Kind::Qos | Kind::Cluster => "name=",
            Kind::Associations => "user=, account=, parent=, cluster=, tree",
            Kind::Users | Kind::Accounts => "user=, account=, parent=, cluster=, name=, withassoc",
        };
        Failure::usage(format_args!(
            "{word:?} chooses nothing here. Known are {known} and format="
        ))
    }

    /// sacctmgr's own columns.
    fn usual(&self) -> &'static str {
        match (self.kind, self.with_associations) {
            (Kind::Users, false) => "User,DefaultAccount,AdminLevel",
            (Kind::Users, true) => {
                "User,DefaultAccount,AdminLevel,Cluster,Account,Partition,Share,Priority,MaxJobs,MaxNodes,MaxCPUs,MaxSubmit,MaxWall,MaxCPUMins,QOS,DefaultQOS"
            }
            (Kind::Accounts, false) => "Account,Description,Organization",
            (Kind::Accounts, true) => {
                "Account,Description,Organization,Cluster,ParentName,User,Share,Priority,GrpJobs,GrpNodes,GrpCPUs,GrpMem,GrpSubmit,GrpWall,GrpCPUMins,\
                 MaxJobs,MaxNodes,MaxCPUs,MaxSubmit,MaxWall,MaxCPUMins,QOS,DefaultQOS"
            }
            (Kind::Associations, _) => {
                "Cluster,Account,User,Partition,Share,Priority,GrpJobs,GrpTRES,GrpSubmit,GrpWall,GrpTRESMins,MaxJobs,MaxTRES,MaxTRESPerNode,MaxSubmit,MaxWall,\
                 MaxTRESMins,QOS,DefaultQOS,GrpTRESRunMins"
            }
            (Kind::Qos, _) => qos::USUAL,
            (Kind::Cluster, _) => "Cluster",
            (Kind::Tres, _) => "Type,Name,ID",
            (Kind::Runaway, _) => "",
            (Kind::Problems, _) => problem::USUAL,
            (Kind::Transactions, _) => transaction::USUAL,
            (Kind::Events, _) => event::USUAL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn entities_may_be_shortened_and_those_that_are_not_listed_are_told_where_else() {
        for (word, kind) in [
            ("acc", Kind::Accounts),
            ("Account", Kind::Accounts),
            ("assoc", Kind::Associations),
            ("us", Kind::Users),
            ("QOS", Kind::Qos),
        ] {
            assert_eq!(kind_of(word).ok(), Some(kind), "{word}");
        }
        assert_eq!(
            (kind_of("RunAway").ok(), kind_of("tres").ok()),
            (Some(Kind::Runaway), Some(Kind::Tres))
        );
        assert!(
            kind_of("stats")
                .unwrap_err()
                .text
                .starts_with("\"stats\" is not listed here: gadm diag")
        );
        assert_eq!(
            kind_of("foo").unwrap_err().text,
            "\"foo\" is not listed here: account, assoc, user, qos and cluster are"
        );
    }

    #[test]
    fn every_usual_column_is_there() {
        let chosen = |known: &'static [Column<Association>], format: &str| {
            ruled_table::choose(format, known, "").is_ok()
        };
        for kind in [Kind::Users, Kind::Accounts, Kind::Associations] {
            for with_associations in [false, true] {
                let asked = Asked {
                    kind,
                    with_associations,
                    ..Asked::default()
                };
                assert!(
                    chosen(association::COLUMNS, asked.usual())
                        && chosen(association::IN_TREE, asked.usual()),
                    "{asked:?}"
                );
            }
        }
        assert!(
            ruled_table::choose(qos::USUAL, qos::COLUMNS, "").is_ok()
                && ruled_table::choose(event::USUAL, event::COLUMNS, "").is_ok()
        );
        assert!(ruled_table::choose(problem::USUAL, problem::COLUMNS, "").is_ok());
        assert!(ruled_table::choose(transaction::USUAL, transaction::COLUMNS, "").is_ok());
    }
}
