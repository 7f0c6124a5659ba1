//! Jobs, nodes and partitions in full, each as the record that scontrol prints of it, for `gadm` called by that name.
//!
//! Finds and orders them; what a record says is `job_record`'s, `node_record`'s and `partition_record`'s.

use crate::nodes::{list, named};
use crate::queue::jobs_named;
use crate::{job_record, node_record, partition_record};
use gcli::Failure;
use gcli::local_time::TimeFormat;
use gmodel::node::Role;
use gmodel::suggest::did_you_mean;
use gwire::api::{JobQuery, JobRow, NodeRow, PartitionRow};
use gwire::client::{Client, path_with_query};

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
