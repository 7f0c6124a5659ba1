//! `gadm partition`: partitions made at run time, and keys set of partitions that files have.

use super::key_value::{self, words_of};
use super::{Name, NameAndWords, Removal, edit, print_json, print_record, records, remove};
use gcli::{Failure, Outcome};
use gmodel::partition::Partition;
use gwire::client::{Client, escape};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What to do to partitions.
#[derive(clap::Subcommand)]
pub enum PartitionAct {
    /// Make a partition: gadm partition add debug nodes=node[1-2] max_time=30 priority_tier=2
    #[command(visible_alias = "create")]
    Add(NameAndWords),
    /// Change a partition; until gadm reload, where a file has it: gadm partition set debug state=down
    #[command(visible_alias = "update")]
    Set(NameAndWords),
    /// Remove partitions that were made so and that no job names
    #[command(visible_alias = "delete")]
    Del(Removal),
    /// One partition; gnodes -p lists all
    Show(Name),
}

pub fn run(client: &mut Client, act: PartitionAct) -> Outcome {
    match act {
        PartitionAct::Add(args) => {
            let change = read(&args.words)?;
            if !change.contains_key("nodes") && !change.contains_key("features") {
                return Err(Failure::usage(
                    "which nodes does it have? nodes=node[1-2], nodes=ALL or features=h100",
                ));
            }
            add(client, &args.name, change)
        }
        PartitionAct::Set(args) => {
            super::must_change(&args.words, "gadm partition set debug state=down")?;
            edit(client, &path(&args.name), false, read(&args.words)?)
        }
        PartitionAct::Del(removal) => remove(client, "partitions", "partition", &removal),
        PartitionAct::Show(name) => {
            let (answer, rows) = records(client, &path(&name.name), "partitions")?;
            match name.json {
                true => print_json(&answer),
                false => rows.first().map_or(Ok(0), print_record),
            }
        }
    }
}

/// Makes one, as scontrol does: without a word about its nodes it has none.
pub fn create(client: &mut Client, name: &str, words: &[String]) -> Outcome {
    let mut change = read(words)?;
    change
        .entry("nodes".to_owned())
        .or_insert_with(|| json!(""));
    add(client, name, change)
}

fn add(client: &mut Client, name: &str, change: BTreeMap<String, Value>) -> Outcome {
    edit(client, &path(name), true, change)
}

fn path(name: &str) -> String {
    format!("/v1/partitions/{}", escape(name))
}

fn read(words: &[String]) -> Result<BTreeMap<String, Value>, Failure> {
    key_value::read(words, &words_of::<Partition>(), "partitions")
}
