//! A partition: `scontrol show partition --json`, and a part of `sinfo --json`.

use super::datum::{
    Datum, Field, blank, empty, infinite, list, maybe, none, number, said, text, unset, whole, zero,
};
use super::document::minutes;
use crate::value::partition::{state_word, tres};
use gmodel::hostlist;
use gwire::api::{NodeRow, PartitionRow};
use std::sync::Arc;

#[derive(Clone)]
pub struct PartitionCell {
    pub row: PartitionRow,
    cluster: Arc<str>,
    cpus: u32,
    nodes: usize,
    tres: String,
}

impl PartitionCell {
    pub fn of(row: PartitionRow, nodes: &[NodeRow], cluster: Arc<str>) -> Self {
        let is_in = |node: &&NodeRow| node.partitions.contains(&row.name);
        let held: Vec<&NodeRow> = nodes.iter().filter(is_in).collect();
        Self {
            cpus: held.iter().map(|node| node.cpus).sum(),
            nodes: held.len(),
            tres: tres(&held),
            row,
            cluster,
        }
    }

    fn configured(&self) -> Datum<'_> {
        let mut names = self.row.nodes.clone();
        hostlist::sort_names(&mut names);
        said(hostlist::compress(names))
    }
}

pub const PARTITION: &[Field<PartitionCell>] = &[
    blank("nodes/allowed_allocation"),
    ("nodes/configured", PartitionCell::configured),
    ("nodes/total", |one| whole(one.nodes)),
    ("accounts/allowed", |one| {
        said(one.row.allow_accounts.join(","))
    }),
    ("accounts/deny", |one| said(one.row.deny_accounts.join(","))),
    ("groups/allowed", |one| said(one.row.allow_groups.join(","))),
    ("qos/allowed", |one| said(one.row.allow_qos.join(","))),
    ("qos/deny", |one| said(one.row.deny_qos.join(","))),
    ("qos/assigned", |one| maybe(&one.row.default_qos)),
    blank("alternate"),
    blank("tres/billing_weights"),
    ("tres/configured", |one| text(&one.tres)),
    ("cluster", |one| text(&one.cluster)),
    ("select_type", |_| list(["CPU", "MEMORY"])),
    zero("cpus/task_binding"),
    ("cpus/total", |one| whole(one.cpus)),
    zero("defaults/memory_per_cpu"),
    unset("defaults/partition_memory_per_cpu"),
    unset("defaults/partition_memory_per_node"),
    ("defaults/time", |one| match one.row.default_time_secs {
        None => Datum::Number(None),
        some => minutes(some),
    }),
    blank("defaults/job"),
    zero("grace_time"),
    infinite("maximums/cpus_per_node"),
    infinite("maximums/cpus_per_socket"),
    zero("maximums/memory_per_cpu"),
    unset("maximums/partition_memory_per_cpu"),
    unset("maximums/partition_memory_per_node"),
    ("maximums/nodes", |one| match one.row.max_nodes {
        None => Datum::Infinite,
        Some(most) => number(most),
    }),
    ("maximums/shares", |_| whole(1)),
    ("maximums/oversubscribe/jobs", |_| whole(1)),
    empty("maximums/oversubscribe/flags"),
    ("maximums/time", |one| minutes(one.row.max_time_secs)),
    ("maximums/over_time_limit", |one| {
        number(one.row.over_time_secs.div_ceil(60))
    }),
    zero("minimums/nodes"),
    ("name", |one| text(&one.row.name)),
    blank("node_sets"),
    ("priority/job_factor", |one| whole(one.row.priority_factor)),
    ("priority/tier", |one| whole(one.row.priority_tier)),
    none("timeouts/resume"),
    none("timeouts/suspend"),
    blank("topology"),
    ("partition/state", |one| list([state_word(&one.row.state)])),
    infinite("suspend_time"),
];
