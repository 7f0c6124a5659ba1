//! Jobs, nodes, partitions, reservations and licences in full, each as the record that scontrol prints of it.
//!
//! Finds and orders them; what a record says is `job_record`'s, `node_record`'s, `partition_record`'s and `reservation_record`'s.

use gcli::Failure;
use gcli::answer::list;
use gcli::local_time::TimeFormat;
use gcli::printable::printable;
use gmodel::ExitCode;
use gmodel::node::Role;
use gmodel::suggest::did_you_mean;
use gq::job_lookup::jobs_named;
use gq::nodes::named;
use gq::{job_record, node_record, partition_record, reservation_record};
use gwire::api::{
    JobQuery, JobRow, LicenceRow, NodeRow, PartitionRow, ReservationRow, RunQuery, RunRow,
};
use gwire::client::{Client, path_with_query};
use std::collections::BTreeMap;

/// Records of these jobs, finished ones too; without names of all that the queue has or had a moment ago. With `details` what
/// they hold of each node, and the exit code of their steps.
///
/// # Errors
/// There is no such job.
pub fn jobs(client: &mut Client, names: &[String], details: bool) -> Result<Vec<String>, Failure> {
    let jobs = job_rows(client, names)?;
    let times = TimeFormat::from_env();
    if !details {
        return Ok(jobs
            .iter()
            .map(|job| job_record::text(job, &times))
            .collect());
    }
    let derived = derived_exit_codes(client, &jobs)?;
    Ok(jobs
        .iter()
        .map(|job| {
            job_record::with_details(
                job,
                &times,
                Some(derived.get(&job.shown_id).copied().unwrap_or_default()),
            )
        })
        .collect())
}

/// These jobs, finished ones too, or all that the queue has or had a moment ago.
///
/// # Errors
/// There is no such job.
pub fn job_rows(client: &mut Client, names: &[String]) -> Result<Vec<JobRow>, Failure> {
    if names.is_empty() {
        return list(
            client,
            &path_with_query(
                "/v1/jobs",
                &JobQuery {
                    state: "all".to_owned(),
                    ..JobQuery::default()
                },
            ),
        );
    }
    let mut jobs = Vec::new();
    for name in names {
        jobs.extend(jobs_named(client, name)?);
    }
    Ok(jobs)
}

/// Most jobs in one request for steps.
const JOBS_AT_ONCE: usize = 200;

/// The highest exit code of each job's steps, as accounting has it; of what never ran none.
fn derived_exit_codes(
    client: &mut Client,
    jobs: &[JobRow],
) -> Result<BTreeMap<String, ExitCode>, Failure> {
    let mut codes = BTreeMap::new();
    let ran: Vec<&str> = jobs
        .iter()
        .filter(|job| job.attempts > 0)
        .map(|job| job.shown_id.as_str())
        .collect();
    for some in ran.chunks(JOBS_AT_ONCE) {
        let query = RunQuery {
            job: some.join(","),
            detail: true,
            columns: "shown_id,detail,steps".to_owned(),
            ..RunQuery::default()
        };
        let rows: Vec<RunRow> = list(client, &path_with_query("/v1/runs", &query))?;
        codes.extend(
            rows.into_iter()
                .filter_map(|run| Some((run.shown_id, run.detail?.derived_exit_code))),
        );
    }
    Ok(codes)
}

/// Records of these nodes (`node[1-3]`), or of all that run jobs.
///
/// # Errors
/// There is no such node.
pub fn nodes(client: &mut Client, names: &[String]) -> Result<Vec<String>, Failure> {
    let times = TimeFormat::from_env();
    let rows = node_rows(client, names)?;
    Ok(rows
        .iter()
        .map(|node| node_record::text(node, &times))
        .collect())
}

pub fn node_rows(client: &mut Client, names: &[String]) -> Result<Vec<NodeRow>, Failure> {
    let mut nodes: Vec<NodeRow> = list(client, "/v1/nodes")?;
    let Some(names) = named(names)? else {
        nodes.retain(|node| node.role == Role::Compute);
        return Ok(nodes);
    };
    let find = |name: &str| {
        let found = nodes.iter().find(|node| node.name == name);
        found.cloned().ok_or_else(|| {
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
    let (rows, nodes) = partition_rows(client, names)?;
    Ok(rows
        .iter()
        .map(|partition| partition_record::text(partition, &nodes))
        .collect())
}

/// These partitions, or all, and the nodes that there are.
pub fn partition_rows(
    client: &mut Client,
    names: &[String],
) -> Result<(Vec<PartitionRow>, Vec<NodeRow>), Failure> {
    let (mut partitions, nodes): (Vec<PartitionRow>, Vec<NodeRow>) =
        (list(client, "/v1/partitions")?, list(client, "/v1/nodes")?);
    if let Some(unknown) = names
        .iter()
        .find(|name| partitions.iter().all(|partition| partition.name != **name))
    {
        let hint = did_you_mean(
            unknown,
            partitions.iter().map(|partition| partition.name.as_str()),
        );
        return Err(Failure::new(format_args!(
            "Partition {unknown} not found.{hint}"
        )));
    }
    partitions.retain(|partition| names.is_empty() || names.contains(&partition.name));
    Ok((partitions, nodes))
}

/// Records of these reservations, or of all.
///
/// # Errors
/// There is no such reservation.
pub fn reservations(client: &mut Client, names: &[String]) -> Result<Vec<String>, Failure> {
    let (rows, nodes) = reservation_rows(client, names)?;
    let times = TimeFormat::from_env();
    Ok(rows
        .iter()
        .map(|row| reservation_record::text(row, &nodes, &times))
        .collect())
}

/// These reservations, or all, and the nodes that there are.
pub fn reservation_rows(
    client: &mut Client,
    names: &[String],
) -> Result<(Vec<ReservationRow>, Vec<NodeRow>), Failure> {
    let (mut rows, nodes): (Vec<ReservationRow>, Vec<NodeRow>) = (
        list(client, "/v1/reservations")?,
        list(client, "/v1/nodes")?,
    );
    if let Some(unknown) = names
        .iter()
        .find(|name| rows.iter().all(|row| row.reservation.name != **name))
    {
        let known = rows.iter().map(|row| row.reservation.name.as_str());
        let hint = did_you_mean(unknown, known);
        return Err(Failure::new(format_args!(
            "Reservation {unknown} not found.{hint}"
        )));
    }
    rows.retain(|row| names.is_empty() || names.contains(&row.reservation.name));
    Ok((rows, nodes))
}

/// Records of these licences, or of all.
///
/// # Errors
/// There is no such licence.
pub fn licences(client: &mut Client, names: &[String]) -> Result<Vec<String>, Failure> {
    let text = |row: &LicenceRow| {
        format!(
            "LicenseName={}\n    Total={} Used={} Free={} Reserved=0 Remote=no\n",
            printable(&row.name),
            row.total,
            row.used,
            row.free
        )
    };
    Ok(licence_rows(client, names)?.iter().map(text).collect())
}

pub fn licence_rows(client: &mut Client, names: &[String]) -> Result<Vec<LicenceRow>, Failure> {
    let mut rows: Vec<LicenceRow> = list(client, "/v1/licences")?;
    if let Some(unknown) = names
        .iter()
        .find(|name| rows.iter().all(|row| row.name != **name))
    {
        return Err(Failure::new(format_args!(
            "License {unknown} not found.{}",
            did_you_mean(unknown, rows.iter().map(|row| row.name.as_str()))
        )));
    }
    rows.retain(|row| names.is_empty() || names.contains(&row.name));
    Ok(rows)
}
