//! A partition in full, in the words of `scontrol show partition` and our own.

use gcli::printable::printable;
use gmodel::duration::sacct_time;
use gmodel::hostlist;
use gmodel::policy::Limits;
use gmodel::record::{Key, Record, Value};
use gslurm_json::value::partition::{state_word, tres, whole_gpus};
use gwire::api::{Gpus, NodeRow, PartitionRow};
use gwire::record_json::gpus_json;

/// The record, with an empty line behind it.
pub fn text(partition: &PartitionRow, nodes: &[NodeRow]) -> String {
    let held: Vec<&NodeRow> = nodes
        .iter()
        .filter(|node| node.partitions.contains(&partition.name))
        .collect();
    let mut names: Vec<String> = partition.nodes.clone();
    hostlist::sort_names(&mut names);
    let over_time = Some(partition.over_time_secs).filter(|secs| *secs > 0);
    let mut lines = vec![
        format!("PartitionName={}", partition.name),
        permissions(partition),
        format!(
            "AllocNodes=ALL Default={} QoS={} Hidden=NO RootOnly=NO",
            if partition.is_default { "YES" } else { "NO" },
            partition.default_qos.as_deref().unwrap_or("N/A")
        ),
        format!(
            "DefaultTime={} MaxTime={} OverTimeLimit={}",
            time(partition.default_time_secs, "NONE"),
            time(partition.max_time_secs, "UNLIMITED"),
            time(over_time, "NONE")
        ),
        format!(
            "MinNodes=0 MaxNodes={} MaxCPUsPerNode=UNLIMITED",
            partition
                .max_nodes
                .map_or("UNLIMITED".to_owned(), |nodes| nodes.to_string())
        ),
        format!("Nodes={}", hostlist::compress(names)),
        format!(
            "PriorityJobFactor={} PriorityTier={}",
            partition.priority_factor, partition.priority_tier
        ),
        format!(
            "OverSubscribe=NO PreemptMode={} Placement={} GpuSharing={}",
            partition.preempt_mode.to_uppercase(),
            partition.placement,
            partition.gpu_sharing.to_uppercase()
        ),
        format!(
            "State={} TotalCPUs={} TotalNodes={} GPUs={}",
            state_word(&partition.state),
            held.iter().map(|node| node.cpus).sum::<u32>(),
            held.len(),
            whole_gpus(&held)
        ),
        format!("TRES={}", tres(&held)),
    ];
    if let Some(headroom) = &partition.headroom {
        lines.push(format!("Headroom={}", gpus_text(headroom)));
    }
    lines.extend(limits(partition));
    let safe: Vec<_> = lines.iter().map(|line| printable(line)).collect();
    format!("{}\n\n", safe.join("\n   "))
}

fn time(secs: Option<u32>, none: &str) -> String {
    secs.map_or(none.to_owned(), |secs| sacct_time(secs.into()))
}

fn permissions(partition: &PartitionRow) -> String {
    format!(
        "AllowGroups={} {} AllowUsers={} {}",
        all(&partition.allow_groups),
        who(
            "Accounts",
            &partition.allow_accounts,
            &partition.deny_accounts
        ),
        all(&partition.allow_users),
        who("Qos", &partition.allow_qos, &partition.deny_qos)
    )
}

/// Which may use it, or which may not.
fn who(what: &str, allowed: &[String], denied: &[String]) -> String {
    match (allowed, denied) {
        ([], [_, ..]) => format!("Deny{what}={}", denied.join(",")),
        _ => format!("Allow{what}={}", all(allowed)),
    }
}

/// Names, or `ALL` for none.
fn all(names: &[String]) -> String {
    if names.is_empty() {
        "ALL".to_owned()
    } else {
        names.join(",")
    }
}

fn gpus_text(gpus: &Gpus) -> String {
    gpus.iter()
        .map(|(gpu_type, count)| format!("{gpu_type}:{count}"))
        .collect::<Vec<_>>()
        .join(",")
}

/// A line for each kind of limits that has any.
fn limits(partition: &PartitionRow) -> impl Iterator<Item = String> {
    let kinds = [
        ("GroupLimits", limits_text(&partition.group)),
        ("PerUserLimits", limits_text(&partition.per_user)),
        ("PerAccountLimits", limits_text(&partition.per_account)),
    ];
    let set = kinds.into_iter().filter(|(_, text)| !text.is_empty());
    set.map(|(key, text)| format!("{key}={text}"))
}

fn limits_text(limits: &Limits) -> String {
    let shown = |(key, value): &(&Key, Value)| match value {
        Value::Unset => None,
        Value::Gpus(gpus) => Some(format!("{}[{}]", key.name, gpus_text(&gpus_json(gpus)))),
        value => Some(format!("{}:{}", key.name, key.text(value))),
    };
    let parts: Vec<String> = limits.table().iter().filter_map(shown).collect();
    parts.join(",")
}
