//! Jobs, nodes, partitions, reservations and licences in full, each as the record that scontrol prints of it, for `gadm` called by that name.
//!
//! Finds and orders them; what a record says is `job_record`'s, `node_record`'s and `partition_record`'s.

use crate::nodes::{list, named};
use crate::queue::jobs_named;
use crate::{job_record, node_record, partition_record};
use gcli::Failure;
use gcli::local_time::TimeFormat;
use gcli::printable::printable;
use gmodel::Instant;
use gmodel::duration::sacct_time;
use gmodel::hostlist::Hostlist;
use gmodel::node::Role;
use gmodel::suggest::did_you_mean;
use gwire::api::{JobQuery, JobRow, LicenceRow, NodeRow, PartitionRow, ReservationRow};
use gwire::client::{Client, path_with_query};
use std::collections::BTreeSet;

/// Records of these jobs, finished ones too; without names of all that the queue has or had a moment ago.
///
/// # Errors
/// There is no such job.
pub fn jobs(client: &mut Client, names: &[String]) -> Result<Vec<String>, Failure> {
    let mut jobs: Vec<JobRow> = Vec::new();
    for name in names {
        jobs.extend(jobs_named(client, name)?);
    }
    if names.is_empty() {
        jobs = list(client, &path_with_query("/v1/jobs", &JobQuery { state: "all".to_owned(), ..JobQuery::default() }))?;
    }
    let times = TimeFormat::from_env();
    Ok(jobs.iter().map(|job| job_record::text(job, &times)).collect())
}

/// Records of these nodes (`node[1-3]`), or of all that run jobs.
///
/// # Errors
/// There is no such node.
pub fn nodes(client: &mut Client, names: &[String]) -> Result<Vec<String>, Failure> {
    let (nodes, times): (Vec<NodeRow>, _) = (list(client, "/v1/nodes")?, TimeFormat::from_env());
    let text = |node: &NodeRow| node_record::text(node, &times);
    let Some(names) = named(names)? else {
        return Ok(nodes.iter().filter(|node| node.role == Role::Compute).map(text).collect());
    };
    let find = |name: &str| {
        nodes.iter().find(|node| node.name == name).map(text).ok_or_else(|| {
            let hint = did_you_mean(name, nodes.iter().map(|node| node.name.as_str()));
            Failure::new(format_args!("Node {name} not found.{hint}"))
        })
    };
    names.iter().map(find).collect()
}

/// Records of these partitions, or of all.
///
/// # Errors
/// There is no such partition.
pub fn partitions(client: &mut Client, names: &[String]) -> Result<Vec<String>, Failure> {
    let (partitions, nodes): (Vec<PartitionRow>, Vec<NodeRow>) = (list(client, "/v1/partitions")?, list(client, "/v1/nodes")?);
    if let Some(unknown) = names.iter().find(|name| partitions.iter().all(|partition| partition.name != **name)) {
        let hint = did_you_mean(unknown, partitions.iter().map(|partition| partition.name.as_str()));
        return Err(Failure::new(format_args!("Partition {unknown} not found.{hint}")));
    }
    let meant = |partition: &&PartitionRow| names.is_empty() || names.contains(&partition.name);
    Ok(partitions.iter().filter(meant).map(|partition| partition_record::text(partition, &nodes)).collect())
}

/// Records of these reservations, or of all.
///
/// # Errors
/// There is no such reservation.
pub fn reservations(client: &mut Client, names: &[String]) -> Result<Vec<String>, Failure> {
    let (rows, times): (Vec<ReservationRow>, _) = (list(client, "/v1/reservations")?, TimeFormat::from_env());
    if let Some(unknown) = names.iter().find(|name| rows.iter().all(|row| row.name != **name)) {
        let hint = did_you_mean(unknown, rows.iter().map(|row| row.name.as_str()));
        return Err(Failure::new(format_args!("Reservation {unknown} not found.{hint}")));
    }
    Ok(rows.iter().filter(|row| names.is_empty() || names.contains(&row.name)).map(|row| reservation(row, &times)).collect())
}

/// Records of these licences, or of all.
///
/// # Errors
/// There is no such licence.
pub fn licences(client: &mut Client, names: &[String]) -> Result<Vec<String>, Failure> {
    let rows: Vec<LicenceRow> = list(client, "/v1/licences")?;
    if let Some(unknown) = names.iter().find(|name| rows.iter().all(|row| row.name != **name)) {
        return Err(Failure::new(format_args!("License {unknown} not found.{}", did_you_mean(unknown, rows.iter().map(|row| row.name.as_str())))));
    }
    let text = |row: &LicenceRow| {
        format!("LicenseName={}\n    Total={} Used={} Free={} Reserved=0 Remote=no\n", printable(&row.name), row.total, row.used, row.free)
    };
    Ok(rows.iter().filter(|row| names.is_empty() || names.contains(&row.name)).map(text).collect())
}

fn reservation(row: &ReservationRow, times: &TimeFormat) -> String {
    let at = |instant: Option<Instant>| instant.map_or("Unknown".to_owned(), |at| times.print(at.0));
    let names = |names: &BTreeSet<String>| if names.is_empty() { "(null)".to_owned() } else { names.iter().cloned().collect::<Vec<_>>().join(",") };
    let nodes = row.nodes.as_deref().map(|nodes| Hostlist::parse(nodes).map_or(0, |list| list.len() as u32));
    let flag = |is_set: bool, word: &'static str| is_set.then_some(word);
    let repeat = Some(row.repeat.to_uppercase()).filter(|word| word != "ONCE" && !word.is_empty());
    let flags = [flag(row.maintenance, "MAINT"), flag(row.flex, "FLEX"), flag(row.ignore_running, "IGNORE_JOBS"), repeat.as_deref()];
    let gpus: Vec<String> = row.gpus.iter().flatten().map(|(kind, count)| format!("gres/gpu:{kind}={count}")).collect();
    let lines = [
        format!(
            "ReservationName={} StartTime={} EndTime={} Duration={}",
            row.name,
            at(row.window_start.or(row.start)),
            at(row.window_end),
            sacct_time(row.duration_secs.into())
        ),
        format!(
            "Nodes={} NodeCnt={} Features={} PartitionName={} Flags={}",
            row.nodes.as_deref().unwrap_or("(null)"),
            row.node_count.or(nodes).unwrap_or(0),
            row.features.as_deref().unwrap_or("(null)"),
            row.partition.as_deref().unwrap_or("(null)"),
            flags.into_iter().flatten().collect::<Vec<_>>().join(",")
        ),
        format!("TRES={}", if gpus.is_empty() { "(null)".to_owned() } else { gpus.join(",") }),
        format!("Users={} Groups=(null) Accounts={} Licenses=(null) State={}", names(&row.users), names(&row.accounts), row.state),
    ];
    format!("{}\n\n", lines.map(|line| printable(&line).into_owned()).join("\n   "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn a_reservation_is_shown_as_scontrol_shows_it() {
        let row = ReservationRow {
            name: "course".into(),
            duration_secs: 7200,
            repeat: "weekly".into(),
            nodes: Some("node[1-2]".into()),
            accounts: BTreeSet::from(["vision".to_owned()]),
            maintenance: true,
            state: "ACTIVE".into(),
            ..ReservationRow::default()
        };
        expect![[r#"
            ReservationName=course StartTime=Unknown EndTime=Unknown Duration=02:00:00
               Nodes=node[1-2] NodeCnt=2 Features=(null) PartitionName=(null) Flags=MAINT,WEEKLY
               TRES=(null)
               Users=(null) Groups=(null) Accounts=vision Licenses=(null) State=ACTIVE

        "#]]
        .assert_eq(&reservation(&row, &TimeFormat::Standard));
    }
}
