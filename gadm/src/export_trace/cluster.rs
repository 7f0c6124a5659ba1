//! The cluster as it is now, as TOML for `gsim run --cluster`: `[[node]]` tables for nodes alike, and the partitions with what
//! decides where and when jobs run.

use super::Pseudonyms;
use gcli::Failure;
use gcli::answer::list;
use gmodel::config::{ClusterConfig, GpuSharing, NodeSelection, Partition};
use gmodel::duration::sacct_time;
use gmodel::hostlist;
use gmodel::node::Role;
use gmodel::policy::{GpuAmounts, Limits};
use gmodel::size::exact_size;
use gwire::api::NodeRow;
use gwire::client::Client;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use toml::{Table, Value};

#[derive(Deserialize)]
struct Config {
    cluster: ClusterConfig,
}

/// The text, and what of the cluster is not in it.
///
/// # Errors
/// The controller's refusal: it is for operators.
pub(super) fn toml(
    client: &mut Client,
    names: &mut Pseudonyms,
) -> Result<(String, Vec<String>), Failure> {
    let config: Config = client.get("/v1/config")?;
    let nodes: Vec<NodeRow> = list(client, "/v1/nodes")?;
    Ok(text(&config.cluster, &nodes, names))
}

fn text(
    config: &ClusterConfig,
    nodes: &[NodeRow],
    names: &mut Pseudonyms,
) -> (String, Vec<String>) {
    let mut notes = Vec::new();
    let compute: Vec<&NodeRow> = nodes
        .iter()
        .filter(|node| node.role == Role::Compute && node.cpus > 0)
        .collect();
    let known: BTreeMap<&str, String> = compute
        .iter()
        .map(|node| (node.name.as_str(), names.node(&node.name)))
        .collect();
    let mut alike: Vec<(Hardware, Vec<&str>)> = Vec::new();
    for node in &compute {
        let shape = Hardware::of(node, &mut notes);
        match alike.iter_mut().find(|(known, _)| *known == shape) {
            Some((_, names)) => names.push(&known[node.name.as_str()]),
            None => alike.push((shape, vec![&known[node.name.as_str()]])),
        }
    }
    let nodes = alike
        .into_iter()
        .map(|(shape, nodes)| Value::Table(shape.table(&nodes)))
        .collect();
    let default = config
        .default_partition()
        .map(|partition| partition.name.as_str());
    let mut partitions = Table::new();
    for partition in &config.partitions {
        match partition_table(partition, default, &known, names) {
            Some(table) => {
                _ = partitions.insert(names.partition(&partition.name), Value::Table(table))
            }
            None => notes.push(format!(
                "partition {:?} has none of the nodes and is left out",
                partition.name
            )),
        }
    }
    let mut whole = Table::new();
    whole.insert("node".into(), Value::Array(nodes));
    whole.insert("partition".into(), Value::Table(partitions));
    (whole.to_string(), notes)
}

/// What nodes may have in common.
#[derive(PartialEq)]
struct Hardware {
    cpus: u32,
    mem_bytes: u64,
    gpu_type: String,
    gpus: u32,
    gpu_mem_mib: u64,
    features: Vec<String>,
}

impl Hardware {
    /// The GPUs that are there, whole ones whether they are cut or not, of the type of which there are most.
    fn of(node: &NodeRow, notes: &mut Vec<String>) -> Self {
        let mut types: BTreeMap<(&str, u64), u32> = BTreeMap::new();
        for gpu in node
            .gpus
            .iter()
            .filter(|gpu| gpu.present && gpu.profile.is_empty())
        {
            *types.entry((&gpu.gpu_type, gpu.memory_mib)).or_default() += 1;
        }
        let most = types.iter().max_by_key(|(_, count)| **count);
        let ((gpu_type, gpu_mem_mib), gpus) =
            most.map_or((("", 0), 0), |(kind, count)| (*kind, *count));
        let others = types.values().sum::<u32>() - gpus;
        if others > 0 {
            notes.push(format!(
                "{} has {gpus} {gpu_type} and {others} other GPUs; a simulated node has one type",
                node.name
            ));
        }
        Self {
            cpus: node.cpus,
            mem_bytes: node.mem_bytes,
            gpu_type: gpu_type.to_owned(),
            gpus,
            gpu_mem_mib,
            features: node.features.clone(),
        }
    }

    fn table(&self, names: &[&str]) -> Table {
        let mut table = Table::new();
        table.set("names", Some(hostlist::compress(names.iter().copied())));
        table.set("cpus", Some(i64::from(self.cpus)));
        table.set("mem", Some(exact_size(self.mem_bytes)));
        if self.gpus > 0 {
            table.set("gpus", Some(format!("{}:{}", self.gpu_type, self.gpus)));
            table.set(
                "gpu_mem",
                Some(format!("{}M", self.gpu_mem_mib)).filter(|_| self.gpu_mem_mib > 0),
            );
        }
        table.set("features", listed(&self.features, str::to_owned));
        table
    }
}

/// All that decides where and when; the pattern names every field, so that a new one cannot be forgotten here.
fn partition_table(
    partition: &Partition,
    default: Option<&str>,
    known: &BTreeMap<&str, String>,
    names: &mut Pseudonyms,
) -> Option<Table> {
    let Partition {
        name,
        nodes,
        is_default: _,
        state,
        max_time_secs,
        default_time_secs,
        max_nodes,
        priority_tier,
        allow_accounts,
        allow_users,
        cpus_per_gpu,
        mem_per_cpu_bytes,
        mem_per_gpu_bytes,
        requeue,
        over_time_secs,
        priority_factor,
        preempt_mode,
        placement,
        group,
        per_user,
        per_account,
        headroom,
        allow_qos,
        deny_accounts,
        deny_qos,
        default_qos,
        gpu_sharing,
        // Of processes on real nodes, and of GPUs that are cut, checked and watched.
        private_tmp: _,
        prolog: _,
        epilog: _,
        gpu_scrub: _,
        visible_devices: _,
        submit_from_jobs: _,
        mig: _,
        slices_for_memory: _,
        diagnostics: _,
        idle: _,
        detached_secs: _,
        interactive_step: _,
        // Which groups a user is in is not in a trace; its jobs were let in.
        allow_groups: _,
    } = partition;
    let mut table = Table::new();
    match nodes {
        NodeSelection::All => table.set("nodes", Some("ALL".to_owned())),
        NodeSelection::Features(features) => table.set("features", listed(features, str::to_owned)),
        NodeSelection::Names(wanted) => {
            let held: Vec<&str> = wanted
                .iter()
                .filter_map(|node| known.get(node))
                .map(String::as_str)
                .collect();
            if held.is_empty() {
                return None;
            }
            table.set("nodes", Some(hostlist::compress(held)));
        }
    }
    let time = |secs: &Option<u32>| secs.map(|secs| sacct_time(u64::from(secs)));
    let size = |bytes: &Option<u64>| bytes.map(exact_size);
    let count = |count: &Option<u32>| count.map(i64::from);
    table.set("default", (default == Some(name)).then_some(true));
    table.set("state", Some(word(state).to_ascii_uppercase()));
    table.set("max_time", time(max_time_secs));
    table.set("default_time", time(default_time_secs));
    table.set(
        "over_time",
        time(&Some(*over_time_secs).filter(|secs| *secs > 0)),
    );
    table.set("max_nodes", count(max_nodes));
    table.set("priority_tier", Some(i64::from(*priority_tier)));
    table.set("priority_factor", Some(i64::from(*priority_factor)));
    table.set("preempt_mode", Some(word(preempt_mode)));
    table.set(
        "placement",
        placement.map(|placement| word(&placement).replace('_', "-")),
    );
    // Slices of GPUs are parts of one in a trace: where nothing is shared they need gsim's usual word.
    table.set(
        "gpu_sharing",
        Some(word(gpu_sharing)).filter(|_| *gpu_sharing != GpuSharing::Off),
    );
    table.set("cpus_per_gpu", count(cpus_per_gpu));
    table.set("mem_per_cpu", size(mem_per_cpu_bytes));
    table.set("mem_per_gpu", size(mem_per_gpu_bytes));
    table.set("requeue", Some(*requeue));
    table.set("headroom", headroom.as_ref().map(amounts));
    table.set(
        "allow_accounts",
        listed(allow_accounts, |name| names.account(name)),
    );
    table.set("allow_users", listed(allow_users, |name| names.user(name)));
    table.set("allow_qos", listed(allow_qos, |name| names.qos(name)));
    table.set("deny_qos", listed(deny_qos, |name| names.qos(name)));
    table.set(
        "deny_accounts",
        listed(deny_accounts, |name| names.account(name)),
    );
    table.set(
        "default_qos",
        default_qos.as_ref().map(|name| names.qos(name)),
    );
    for (key, limits) in [
        ("group", group),
        ("per_user", per_user),
        ("per_account", per_account),
    ] {
        table.set(
            key,
            Some(limits_table(limits)).filter(|table| !table.is_empty()),
        );
    }
    Some(table)
}

fn limits_table(limits: &Limits) -> Table {
    let Limits {
        running_jobs,
        submitted_jobs,
        gpus,
        cpus,
        nodes,
        running_gpu_hours,
        array_tasks,
        submits_per_minute,
    } = limits;
    let mut table = Table::new();
    let counts = [
        ("running_jobs", running_jobs),
        ("submitted_jobs", submitted_jobs),
        ("cpus", cpus),
        ("nodes", nodes),
        ("array_tasks", array_tasks),
        ("submits_per_minute", submits_per_minute),
    ];
    for (key, count) in counts {
        table.set(key, count.map(i64::from));
    }
    table.set(
        "running_gpu_hours",
        running_gpu_hours.and_then(|hours| i64::try_from(hours).ok()),
    );
    table.set("gpus", gpus.as_ref().map(amounts));
    table
}

fn amounts(amounts: &GpuAmounts) -> Table {
    let value = |milli: u64| match milli % 1000 {
        0 => Value::Integer((milli / 1000).cast_signed()),
        _ => Value::Float(milli as f64 / 1000.0),
    };
    amounts
        .0
        .iter()
        .map(|(gpu_type, milli)| (gpu_type.clone(), value(*milli)))
        .collect()
}

fn listed(names: &[String], named: impl FnMut(&str) -> String) -> Option<Vec<String>> {
    (!names.is_empty()).then(|| names.iter().map(String::as_str).map(named).collect())
}

/// Keys of a table that are there only with a value.
trait OptionalKeys {
    fn set(&mut self, key: &str, value: Option<impl Into<Value>>);
}

impl OptionalKeys for Table {
    fn set(&mut self, key: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.insert(key.to_owned(), value.into());
        }
    }
}

/// A setting's word, as it is stored.
fn word(setting: &impl Serialize) -> String {
    let value = serde_json::to_value(setting).expect("a word");
    value.as_str().expect("a word").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use gmodel::hostlist::Hostlist;
    use gwire::api::GpuRow;

    fn node(name: &str, gpus: &[&str]) -> NodeRow {
        let gpu = |kind: &&str| GpuRow {
            gpu_type: (*kind).into(),
            memory_mib: 81_559,
            present: true,
            ..GpuRow::default()
        };
        NodeRow {
            name: name.into(),
            cpus: 96,
            mem_bytes: 1 << 40,
            gpus: gpus.iter().map(gpu).collect(),
            ..NodeRow::default()
        }
    }

    fn cluster() -> (ClusterConfig, Vec<NodeRow>) {
        let train = Partition {
            name: "train".into(),
            nodes: NodeSelection::Names(Hostlist::parse("hal[1-4]").unwrap()),
            is_default: true,
            max_time_secs: Some(172_800),
            allow_accounts: vec!["vision".into()],
            per_user: Limits {
                gpus: Some(GpuAmounts::all(16)),
                running_jobs: Some(5),
                ..Limits::default()
            },
            ..Partition::default()
        };
        let gone = Partition {
            name: "old".into(),
            nodes: NodeSelection::Names(Hostlist::parse("x1").unwrap()),
            ..train.clone()
        };
        let config = ClusterConfig {
            partitions: vec![train, gone],
            ..ClusterConfig::default()
        };
        let login = NodeRow {
            role: Role::Login,
            ..node("front", &[])
        };
        let nodes = vec![
            login,
            node("hal1", &["h100"; 2]),
            node("hal2", &["h100"; 2]),
            node("hal3", &["h100", "h100", "t4"]),
        ];
        (config, nodes)
    }

    #[test]
    fn nodes_alike_stand_together_and_partitions_have_what_decides() {
        let (config, nodes) = cluster();
        let (text, notes) = text(&config, &nodes, &mut Pseudonyms::new(true));
        expect![[r#"
            [[node]]
            cpus = 96
            gpu_mem = "81559M"
            gpus = "h100:2"
            mem = "1T"
            names = "hal[1-3]"

            [partition.train]
            allow_accounts = ["vision"]
            default = true
            max_time = "2-00:00:00"
            nodes = "hal[1-3]"
            preempt_mode = "requeue"
            priority_factor = 0
            priority_tier = 1
            requeue = true
            state = "UP"

            [partition.train.per_user]
            running_jobs = 5

            [partition.train.per_user.gpus]
            gpu = 16
        "#]]
        .assert_eq(&text);
        assert_eq!(
            notes,
            [
                "hal3 has 2 h100 and 1 other GPUs; a simulated node has one type",
                "partition \"old\" has none of the nodes and is left out"
            ]
        );
    }

    #[test]
    fn no_name_is_in_what_is_given_away() {
        let (config, nodes) = cluster();
        let (text, _) = text(&config, &nodes, &mut Pseudonyms::new(false));
        for name in ["hal", "train", "vision"] {
            assert!(!text.contains(name), "{text}");
        }
        assert!(
            text.contains("names = \"node[1-3]\"") && text.contains("[partition.partition1]"),
            "{text}"
        );
        assert!(text.contains("allow_accounts = [\"account1\"]"), "{text}");
    }
}
