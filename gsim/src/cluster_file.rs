//! A cluster as TOML: `[[node]]` tables for the machines, `[partition.NAME]` as in gpuctld's `partitions.d`.
//!
//! Owns the words; keys that concern only processes on real nodes (prolog, private_tmp, ...) are known and mean nothing
//! here.

use crate::hardware::{Hardware, HollowNode, MAX_GPUS, MAX_NODES, NodeShape, main_partition};
use crate::policy_file::{PLACEMENTS, skip_policy, skip_rest_of_daemon};
use crate::policy_words::{PREEMPT_MODES, limits};
use crate::toml_table::{Reader, read};
use gmodel::config::{GpuSharing, NodeSelection, Partition, PartitionState};
use gmodel::gpu_request::{GpuAmount, GpuAsk, GpuKind};
use std::collections::BTreeMap;

impl Hardware {
    /// Reads nodes and partitions. Nodes that a partition names and no `[[node]]` describes have the shape `unknown`.
    ///
    /// # Errors
    /// Every mistake, a line each.
    pub fn from_toml(text: &str, unknown: &NodeShape) -> Result<Self, String> {
        let (named, partitions) = read(text, |top| {
            let mut named = Named::default();
            for table in top.list("node") {
                described(&table, &mut named);
            }
            let partitions: Vec<Partition> =
                top.tables("partition").into_iter().map(|(name, table)| partition(name, &table)).collect();
            skip_policy(top);
            skip_rest_of_daemon(top);
            (named, partitions)
        })?;
        named.with_partitions(partitions, unknown)
    }
}

/// Nodes in the order in which they are named.
#[derive(Default)]
struct Named {
    order: Vec<String>,
    shapes: BTreeMap<String, NodeShape>,
}

impl Named {
    fn add(&mut self, name: &str, shape: &NodeShape) -> bool {
        let new = !self.shapes.contains_key(name) && self.order.len() < MAX_NODES;
        if new {
            self.order.push(name.to_owned());
            self.shapes.insert(name.to_owned(), shape.clone());
        }
        new
    }

    fn with_partitions(mut self, mut partitions: Vec<Partition>, unknown: &NodeShape) -> Result<Hardware, String> {
        let mut notes = Vec::new();
        let mut assumed = 0;
        for partition in &partitions {
            if let NodeSelection::Names(names) = &partition.nodes {
                assumed += names.iter().filter(|name| self.add(name, unknown)).count();
            }
        }
        if assumed > 0 {
            notes.push(format!("{assumed} nodes that only partitions name are taken to have {unknown}"));
        }
        if self.order.is_empty() {
            return Err("the file names no nodes: describe them as [[node]] with names, cpus, mem and gpus, or let \
                        partitions name them (nodes = \"gpu[01-16]\")"
                .into());
        }
        if partitions.is_empty() {
            partitions.push(main_partition());
        }
        let Self { order, mut shapes } = self;
        let node = |name: String| HollowNode { shape: shapes.remove(&name).unwrap_or_default(), name };
        Ok(Hardware { nodes: order.into_iter().map(node).collect(), partitions, notes })
    }
}

fn described(table: &Reader, named: &mut Named) {
    let shape = node_shape(table);
    let Some(names) = table.hostlist("names") else {
        if !table.skip("names") {
            table.fail("names", "a [[node]] needs names, as \"gpu[01-16]\"");
        }
        return;
    };
    for name in names.iter() {
        if !named.add(name, &shape) {
            table.fail("names", format!("node {name:?} is there twice (or there are more than {MAX_NODES})"));
            return;
        }
    }
}

fn node_shape(table: &Reader) -> NodeShape {
    let (gpu_type, gpus) = gpus(table);
    let cpus = table.integer("cpus", 1, 1_000_000).map(|cpus| cpus as u32);
    NodeShape {
        gpus,
        gpu_type,
        gpu_mem_mib: table.size_bytes("gpu_mem").unwrap_or(0) >> 20,
        cpus: cpus.unwrap_or_else(|| gpus.max(1)),
        mem_bytes: table.size_bytes("mem").unwrap_or(512 << 30),
        features: table.texts("features").unwrap_or_default(),
    }
}

/// `gpus = "h100:8"`, or a number.
fn gpus(table: &Reader) -> (String, u32) {
    if table.as_integer("gpus").is_some() {
        return (String::new(), table.number("gpus", MAX_GPUS).unwrap_or(0));
    }
    let Some(text) = table.text("gpus") else { return Default::default() };
    let Some(ask) = table.parsed("gpus", GpuAsk::parse(&text)) else { return Default::default() };
    match &ask.alternatives[..] {
        [] => Default::default(),
        [one] => match (&one.kind, &one.amount) {
            (GpuKind::Any, GpuAmount::Whole(count)) if *count <= MAX_GPUS => (String::new(), *count),
            (GpuKind::Type(name), GpuAmount::Whole(count)) if *count <= MAX_GPUS => (name.clone(), *count),
            _ => {
                table.fail("gpus", format!("gpus = {text:?}: a node has whole GPUs, up to {MAX_GPUS}"));
                Default::default()
            }
        },
        _ => {
            table.fail("gpus", format!("gpus = {text:?}: a node has one type of GPU"));
            Default::default()
        }
    }
}

fn partition(name: &str, table: &Reader) -> Partition {
    const STATES: [(&str, PartitionState); 4] = [
        ("UP", PartitionState::Up),
        ("DOWN", PartitionState::Down),
        ("DRAIN", PartitionState::Drain),
        ("INACTIVE", PartitionState::Inactive),
    ];
    const SHARING: [(&str, GpuSharing); 3] = [("off", GpuSharing::Off), ("mps", GpuSharing::Mps), ("uncapped", GpuSharing::Uncapped)];
    // Processes on real nodes, what is watched there, and GPUs that are cut: a trace's slices are parts of GPUs.
    for key in ["private_tmp", "prolog", "epilog", "gpu_scrub", "submit_from_jobs", "idle", "diagnostics", "mig", "slices_for_memory"] {
        table.skip(key);
    }
    let default = Partition::default();
    Partition {
        name: name.to_owned(),
        // Without a word traces get the parts of GPUs that they had.
        gpu_sharing: table.word("gpu_sharing", &SHARING).unwrap_or(GpuSharing::Uncapped),
        nodes: node_selection(table),
        is_default: table.boolean("default").unwrap_or(false),
        state: table.word("state", &STATES).unwrap_or_default(),
        max_time_secs: table.time_secs("max_time").flatten(),
        default_time_secs: table.time_secs("default_time").flatten(),
        over_time_secs: table.time_secs("over_time").flatten().unwrap_or(0),
        max_nodes: table.number("max_nodes", 1_000_000),
        priority_tier: table.number("priority_tier", 65_533).unwrap_or(default.priority_tier),
        priority_factor: table.number("priority_factor", 65_533).unwrap_or(default.priority_factor),
        preempt_mode: table.word("preempt_mode", &PREEMPT_MODES).unwrap_or(default.preempt_mode),
        placement: table.word("placement", &PLACEMENTS),
        headroom: table.gpu_amounts("headroom"),
        headroom_nodes: table.number("headroom_nodes", 1_000_000).unwrap_or(0),
        group: limits(&table.table("group")),
        per_user: limits(&table.table("per_user")),
        per_account: limits(&table.table("per_account")),
        allow_accounts: table.texts("allow_accounts").unwrap_or_default(),
        allow_users: table.texts("allow_users").unwrap_or_default(),
        allow_qos: table.texts("allow_qos").unwrap_or_default(),
        default_qos: table.text("default_qos"),
        cpus_per_gpu: table.number("cpus_per_gpu", 65_536),
        mem_per_cpu_bytes: table.size_bytes("mem_per_cpu"),
        mem_per_gpu_bytes: table.size_bytes("mem_per_gpu"),
        requeue: table.boolean("requeue").unwrap_or(default.requeue),
        ..default
    }
}

fn node_selection(table: &Reader) -> NodeSelection {
    if let Some(features) = table.texts("features") {
        if table.skip("nodes") {
            table.fail("features", "nodes and features are both there; keep one of them");
        }
        return NodeSelection::Features(features);
    }
    match table.texts("nodes") {
        Some(texts) if !texts.join(",").eq_ignore_ascii_case("ALL") => {
            table.hostlist("nodes").map_or(NodeSelection::All, NodeSelection::Names)
        }
        _ => NodeSelection::All,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unknown() -> NodeShape {
        NodeShape { gpus: 8, cpus: 64, mem_bytes: 1 << 40, ..NodeShape::default() }
    }

    #[test]
    fn nodes_and_partitions_are_read() {
        let text = "[[node]]\nnames = \"gpu[01-02]\"\ncpus = 96\nmem = \"1T\"\ngpus = \"h100:8\"\nfeatures = [\"ib\"]\n\
                    [partition.train]\nnodes = \"gpu[01-04]\"\ndefault = true\nmax_time = \"2-0\"\nprolog = \"/x\"\nmig = \"planned\"\n\
                    [partition.ib]\nfeatures = \"ib\"\n";
        let hardware = Hardware::from_toml(text, &unknown()).unwrap();
        let names: Vec<&str> = hardware.nodes.iter().map(|node| &*node.name).collect();
        assert_eq!(names, ["gpu01", "gpu02", "gpu03", "gpu04"]);
        assert_eq!((hardware.gpus(), hardware.nodes[0].shape.cpus, hardware.nodes[3].shape.cpus), (32, 96, 64));
        assert_eq!(hardware.nodes[1].shape.gpu_type, "h100");
        assert_eq!(hardware.notes, ["2 nodes that only partitions name are taken to have 8 GPUs, 64 CPUs, 1T"]);
        assert_eq!(hardware.partitions[0].max_time_secs, Some(172_800));
        assert_eq!(hardware.partitions[1].nodes, NodeSelection::Features(vec!["ib".into()]));
    }

    #[test]
    fn the_sample_partitions_of_the_daemon_are_a_cluster() {
        let text = include_str!("../../etc/partitions.d/train.toml");
        let hardware = Hardware::from_toml(text, &unknown()).unwrap();
        assert_eq!((hardware.nodes.len(), hardware.partitions.len()), (16, 2));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let wrong = |text: &str| Hardware::from_toml(text, &unknown()).unwrap_err();
        assert!(wrong("").starts_with("the file names no nodes"));
        assert_eq!(wrong("[[node]]\ncpus = 4\n"), "line 2: a [[node]] needs names, as \"gpu[01-16]\"");
        let twice = wrong("[[node]]\nnames = \"a\"\n[[node]]\nnames = \"a\"\n");
        assert!(twice.starts_with("line 4: node \"a\" is there twice"), "{twice}");
        let half = wrong("[[node]]\nnames = \"a\"\ngpus = \"0.5\"\n");
        assert_eq!(half, "line 3: gpus = \"0.5\": a node has whole GPUs, up to 1024");
        let key = wrong("[[node]]\nnames = \"a\"\n[partition.p]\nmaxtime = 4\n");
        assert_eq!(key, "line 4: unknown key \"maxtime\" in [partition.p]. Did you mean \"max_time\"?");
    }
}
