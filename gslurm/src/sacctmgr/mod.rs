//! `sacctmgr`: listings of accounts, associations, QOS, events; `edit` changes accounts, users, QOS and coordinators.
//!
//! Source: sacctmgr(1), and what sacctmgr 22.05.8 printed.

mod association;
mod change;
mod cluster;
mod edit;
mod entity;
mod event;
mod event_span;
mod flat_file;
mod json;
mod limits;
mod problem;
mod qos;
mod request;
mod transaction;
mod tres;

use crate::ruled_table::{self, ChosenColumn, Column, TableArgs};
use clap::{CommandFactory, FromArgMatches, Parser};
use entity::Entity;
use gcli::table::stdout;
use gcli::{Failure, Outcome, cluster_choice, command_line};
use gwire::api::ClusterInfo;
use gwire::client::Client;
use request::{ELSEWHERE, ListRequest};
use std::ffi::OsString;
use std::io::Write;

const EXAMPLES: &str = "\
  Valid <COMMAND> values are:
     add <ENTITY> <SPECS>     add entities
     delete <ENTITY> <SPECS>  delete the specified entities
     dump [<CLUSTER>] [file=<FILE>]
                              write accounts and their users to a flat file, <CLUSTER>.cfg
     help                     show this text
     list <ENTITY> [<SPECS>]  show is the same
     load [file=]<FILE>       read a flat file of sacctmgr dump, of this or of Slurm's own
     modify <ENTITY> <SPECS>  modify entities
     version                  display tool version number

  <ENTITY> may be account, association, cluster, coordinator, event, problem, qos, runawayjob,
  transaction, tres or user.

  <SPECS> are different for each command entity pair:
     add account <NAMES> [parent=<NAME>] [<KEY>=<VALUE> ...]
     add coordinator account=<NAMES> names=<USERS>
     add qos <NAMES> [<KEY>=<VALUE> ...]
     add user <NAMES> account=<NAMES> [defaultaccount=<NAME>] [<KEY>=<VALUE> ...]
     modify account <NAMES> [where ...] set <KEY>=<VALUE> ...
     modify qos <NAMES> set <KEY>=<VALUE> ...
     modify user <NAMES> [where account=<NAMES>] set <KEY>=<VALUE> ...
     delete account <NAMES>
     delete coordinator <USERS> account=<NAMES>
     delete qos <NAMES>
     delete user <NAMES> [where account=<NAMES>]
     list accounts [<NAMES>] [withassoc]
     list associations [user=<NAMES>] [account=<NAMES>] [parent=<NAMES>] [tree]
     list clusters
     list events [start=<TIME>] [end=<TIME>] [nodes=<NAMES>] [state=drain,down]
     list problems
     list qos [<NAMES>]
     list runawayjobs
     list transactions [start=<TIME>] [end=<TIME>] [actor=<USERS>]
     list tres
     list users [<NAMES>] [withassoc] [account=<NAMES>]
  Each list takes format=<COLUMNS>, as User,Account%20. Keys are those of gadm account, user and qos,
  in sacctmgr's spellings too. There is one cluster: add cluster and modify cluster change nothing.

This is gpupool: gadm account, user, qos and quota have more.";

const ADVICE: &command_line::Advice = &[(&["-r", "--readonly"], "it only reads anyway")];

#[derive(Parser)]
#[command(name = "sacctmgr", version, about = "sacctmgr's listings, by gadm", after_help = EXAMPLES)]
struct SacctmgrArgs {
    #[command(flatten)]
    table: TableArgs,
    /// Accounts and users with their associations, as withassoc
    #[arg(short = 's', long)]
    associations: bool,
    /// commit changes immediately, without asking
    #[arg(short = 'i', long)]
    immediate: bool,
    /// What is listed as JSON, with Slurm's keys
    #[arg(long)]
    json: bool,
    /// Only errors are said, as is usual
    #[arg(short = 'Q', long)]
    quiet: bool,
    /// What to list
    #[arg(value_name = "WORDS")]
    words: Vec<String>,
}

/// `sacctmgr`.
pub(crate) fn main(words: Vec<OsString>) -> Outcome {
    let matches = command_line::parse_advising(SacctmgrArgs::command(), words, ADVICE)?;
    let args = SacctmgrArgs::from_arg_matches(&matches).map_err(Failure::usage)?;
    if let Some((verb, words)) = args.words.split_first() {
        if let Some(verb) = change::verb_of(verb) {
            if let Some(refused) = cluster::refusal(words)? {
                return Err(refused);
            }
            return edit::run(verb, words, args.immediate);
        }
        match verb.to_ascii_lowercase().as_str() {
            "dump" => return flat_file::dump(words),
            "load" => return flat_file::load(words, args.immediate),
            _ => {}
        }
        if verb.eq_ignore_ascii_case("version") {
            writeln!(std::io::stdout(), "{}", gcli::slurm_name::VERSION)?;
            return Ok(0);
        }
    }
    let asked = ListRequest::of(&args.words, args.associations)?;
    let mut client = gcli::connect("sacctmgr")?;
    cluster_choice::check(&asked.clusters, &mut client)?;
    if args.json {
        return json::print(&mut client, asked);
    }
    let mut listing = Listing {
        format: asked.format.as_deref().unwrap_or(asked.usual()),
        table: args.table,
        out: stdout()?,
    };
    print(&mut listing, &mut client, &asked)?;
    listing.out.flush()?;
    Ok(0)
}

fn print(
    listing: &mut Listing<'_, impl Write>,
    client: &mut Client,
    asked: &ListRequest,
) -> Result<(), Failure> {
    match asked.kind {
        Entity::Qos => listing.print(qos::COLUMNS, |_| qos::rows(client, &asked.names))?,
        Entity::Cluster => listing.print(cluster::COLUMNS, |_| {
            let row = cluster::row(client)?;
            let is_asked = asked.names.is_empty() || asked.names.contains(&row.name);
            Ok(is_asked.then_some(row).into_iter().collect())
        })?,
        Entity::Tres => listing.print(tres::COLUMNS, |_| tres::rows(client))?,
        Entity::Events => listing.print(event::COLUMNS, |_| {
            let cluster = client.get::<ClusterInfo>("/v1/cluster")?.name;
            event::rows(client, &asked.events, &asked.span, &cluster)
        })?,
        Entity::Transactions => listing.print(transaction::COLUMNS, |_| {
            transaction::rows(client, &asked.actors, &asked.span)
        })?,
        Entity::Problems => listing.print(problem::COLUMNS, |_| {
            let cluster = client.get::<ClusterInfo>("/v1/cluster")?.name;
            problem::rows(client, &cluster)
        })?,
        // Jobs have tags instead: gsub --tag.
        Entity::Wckeys => listing.print(WCKEY, |_| Ok(Vec::new()))?,
        // A job's end and its accounting are one record.
        Entity::Runaway => writeln!(
            listing.out,
            "Runaway Jobs: No runaway jobs found on cluster {}",
            client.get::<ClusterInfo>("/v1/cluster")?.name
        )?,
        Entity::Users | Entity::Accounts | Entity::Associations => {
            let known = match asked.tree {
                true => association::IN_TREE,
                false => association::COLUMNS,
            };
            listing.print(known, |columns| {
                let words: Vec<&str> = columns.iter().map(|(column, _)| column.word).collect();
                association::rows(client, asked, &words)
            })?;
        }
    }
    Ok(())
}

struct Listing<'a, W> {
    format: &'a str,
    table: TableArgs,
    out: W,
}

impl<W: Write> Listing<'_, W> {
    /// Reads the rows once the format is known to be good.
    fn print<R: 'static>(
        &mut self,
        known: &'static [Column<R>],
        rows: impl FnOnce(&[ChosenColumn<R>]) -> Result<Vec<R>, Failure>,
    ) -> Result<(), Failure> {
        let columns = ruled_table::choose(self.format, known, ELSEWHERE)?;
        let rows = rows(&columns)?;
        ruled_table::print(&mut self.out, &columns, &rows, self.table)?;
        Ok(())
    }
}

/// Columns of a listing that has no lines.
const WCKEY: &[Column<()>] = &[
    Column::blank("wckey", "WCKey", 10),
    Column::blank("cluster", "Cluster", 10),
    Column::blank("user", "User", 10),
];

#[cfg(test)]
mod tests {
    use super::*;
    use gslurm_json::association::Association;

    #[test]
    fn the_command_line_is_sound() {
        SacctmgrArgs::command().debug_assert();
    }

    #[test]
    fn every_usual_column_is_there() {
        let chosen = |known: &'static [Column<Association>], format: &str| {
            ruled_table::choose(format, known, "").is_ok()
        };
        for kind in [Entity::Users, Entity::Accounts, Entity::Associations] {
            for with_associations in [false, true] {
                let asked = ListRequest {
                    kind,
                    with_associations,
                    ..ListRequest::default()
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
        assert!(ruled_table::choose(cluster::USUAL, cluster::COLUMNS, "").is_ok());
        assert!(ruled_table::choose(problem::USUAL, problem::COLUMNS, "").is_ok());
        assert!(ruled_table::choose(transaction::USUAL, transaction::COLUMNS, "").is_ok());
    }
}
