//! Nodes: `scontrol show node --json`, and `sinfo --json` with a record for the nodes of a partition that are alike.

use super::datum::{
    Datum, Field, blank, empty, list, none, record, said, text, unset, whole, zero,
};
use super::document::{seconds, time};
use super::partition::{PARTITION, PartitionCell};
use crate::value::node::{gres, tres_of, why_out};
use gwire::api::{NodeRow, PartitionRow};
use serde_json::json;
use std::sync::Arc;

pub struct NodeCell {
    row: NodeRow,
    cluster: Arc<str>,
    gres: [String; 2],
    tres: [String; 2],
    out: (String, String, Option<gmodel::Instant>),
}

impl NodeCell {
    pub fn of(row: NodeRow, cluster: Arc<str>) -> Self {
        Self {
            gres: gres(&row),
            tres: tres_of(&row),
            out: why_out(&row),
            row,
            cluster,
        }
    }

    fn idle_cpus(&self) -> u32 {
        self.row.cpus.saturating_sub(self.row.cpus_alloc)
    }
}

/// `MIXED+DRAIN` as two words.
/// What the node may have; `features` is what it has.
fn available(row: &NodeRow) -> &[String] {
    row.available_features.as_ref().unwrap_or(&row.features)
}

fn state(row: &NodeRow) -> Datum<'_> {
    list(row.state.split('+'))
}

fn architecture(row: &NodeRow) -> &str {
    let known = ["x86_64", "aarch64"];
    let found = known.into_iter().find(|known| row.os.contains(known));
    found.unwrap_or_default()
}

pub const NODE: &[Field<NodeCell>] = &[
    ("architecture", |node| text(architecture(&node.row))),
    blank("burstbuffer_network_address"),
    ("boards", |_| whole(1)),
    ("boot_time", |node| time(node.row.boot_time)),
    ("tls_cert_last_renewal", |node| {
        time(node.row.certificate.renewed)
    }),
    empty("cert_flags"),
    ("cluster_name", |node| text(&node.cluster)),
    ("cores", |node| whole(node.row.cpus)),
    zero("specialized_cores"),
    zero("cpu_binding"),
    zero("cpu_load"),
    unset("free_mem"),
    ("cpus", |node| whole(node.row.cpus)),
    ("effective_cpus", |node| whole(node.row.cpus)),
    blank("specialized_cpus"),
    ("energy", |_| Datum::Value(json!({}))),
    blank("extra"),
    ("features", |node| {
        list(available(&node.row).iter().cloned())
    }),
    ("active_features", |node| {
        list(node.row.features.iter().cloned())
    }),
    blank("gpu_spec"),
    ("gres", |node| text(&node.gres[0])),
    blank("gres_drained"),
    ("gres_used", |node| text(&node.gres[1])),
    blank("instance_id"),
    blank("instance_type"),
    none("last_busy"),
    blank("mcs_label"),
    zero("specialized_memory"),
    ("name", |node| text(&node.row.name)),
    empty("next_state_after_reboot"),
    ("address", |node| {
        Datum::Text(node.row.shown_address().into())
    }),
    ("hostname", |node| text(&node.row.name)),
    ("state", |node| state(&node.row)),
    ("operating_system", |node| text(&node.row.os)),
    blank("owner"),
    ("partitions", |node| {
        list(node.row.partitions.iter().cloned())
    }),
    zero("port"),
    ("real_memory", |node| whole(node.row.mem_bytes >> 20)),
    zero("res_cores_per_gpu"),
    blank("comment"),
    ("reason", |node| text(&node.out.0)),
    ("reason_changed_at", |node| time(node.out.2)),
    ("reason_set_by_user", |node| text(&node.out.1)),
    none("resume_after"),
    ("reservation", |node| said(node.row.reservations.join(","))),
    ("alloc_memory", |node| whole(node.row.mem_alloc_bytes >> 20)),
    ("alloc_cpus", |node| whole(node.row.cpus_alloc)),
    ("alloc_idle_cpus", |node| whole(node.idle_cpus())),
    ("tres_used", |node| text(&node.tres[1])),
    none("slurmd_start_time"),
    ("sockets", |_| whole(1)),
    ("threads", |_| whole(1)),
    zero("temporary_disk"),
    ("weight", |_| whole(1)),
    ("topology", |node| text(&node.row.switches)),
    ("tres", |node| text(&node.tres[0])),
    ("version", |node| text(&node.row.version)),
];

/// The nodes of a partition that are in one state and have the same.
pub struct AlikeCell {
    partition: PartitionCell,
    /// At least one.
    nodes: Vec<NodeCell>,
}

pub fn alike(
    partitions: Vec<PartitionRow>,
    nodes: Vec<NodeRow>,
    cluster: &Arc<str>,
) -> Vec<AlikeCell> {
    let mut all = Vec::new();
    for row in partitions {
        let partition = PartitionCell::of(row, &nodes, cluster.clone());
        let mut groups: Vec<AlikeCell> = Vec::new();
        for node in &nodes {
            if !node.partitions.contains(&partition.row.name) {
                continue;
            }
            let cell = NodeCell::of(node.clone(), cluster.clone());
            match groups.iter_mut().find(|group| group.takes(&cell)) {
                Some(group) => group.nodes.push(cell),
                None => groups.push(AlikeCell {
                    partition: partition.clone(),
                    nodes: vec![cell],
                }),
            }
        }
        all.append(&mut groups);
    }
    all
}

impl AlikeCell {
    fn takes(&self, other: &NodeCell) -> bool {
        let key = |node: &NodeCell| {
            let row = &node.row;
            (
                row.state.clone(),
                row.cpus,
                row.mem_bytes,
                node.gres[0].clone(),
                node.out.0.clone(),
            )
        };
        key(&self.nodes[0]) == key(other) && self.nodes[0].row.features == other.row.features
    }

    fn first(&self) -> &NodeRow {
        &self.nodes[0].row
    }

    fn count(&self, states: &[&str]) -> usize {
        let base = self.first().state.split('+').next().unwrap_or_default();
        if states.contains(&base) {
            self.nodes.len()
        } else {
            0
        }
    }

    fn is_out(&self) -> bool {
        self.count(&["IDLE", "MIXED", "ALLOCATED"]) == 0 || self.first().state.contains("+DRAIN")
    }

    fn sum(&self, of: impl Fn(&NodeCell) -> u64) -> u64 {
        self.nodes.iter().map(of).sum()
    }

    fn idle_cpus(&self) -> u64 {
        self.sum(|node| node.idle_cpus().into())
    }

    fn names(&self) -> Datum<'_> {
        list(self.nodes.iter().map(|node| node.row.name.clone()))
    }
}

pub const ALIKE: &[Field<AlikeCell>] = &[
    zero("port"),
    ("node/state", |group| state(group.first())),
    ("nodes/allocated", |group| {
        whole(group.count(&["ALLOCATED", "MIXED"]))
    }),
    ("nodes/idle", |group| {
        whole(if group.is_out() {
            0
        } else {
            group.count(&["IDLE"])
        })
    }),
    ("nodes/other", |group| {
        let busy = group.count(&["ALLOCATED", "MIXED"]) > 0;
        whole(if group.is_out() && !busy {
            group.nodes.len()
        } else {
            0
        })
    }),
    ("nodes/total", |group| whole(group.nodes.len())),
    ("nodes/hostnames", AlikeCell::names),
    ("nodes/addresses", AlikeCell::names),
    ("nodes/nodes", AlikeCell::names),
    ("cpus/allocated", |group| {
        whole(group.sum(|node| node.row.cpus_alloc.into()))
    }),
    ("cpus/idle", |group| {
        whole(if group.is_out() { 0 } else { group.idle_cpus() })
    }),
    ("cpus/other", |group| {
        whole(if group.is_out() { group.idle_cpus() } else { 0 })
    }),
    ("cpus/total", |group| {
        whole(group.sum(|node| node.row.cpus.into()))
    }),
    ("cpus/minimum", |group| whole(group.first().cpus)),
    ("cpus/maximum", |group| whole(group.first().cpus)),
    zero("cpus/load/minimum"),
    zero("cpus/load/maximum"),
    unset("cpus/per_node/max"),
    ("sockets/minimum", |_| whole(1)),
    ("sockets/maximum", |_| whole(1)),
    ("cores/minimum", |group| whole(group.first().cpus)),
    ("cores/maximum", |group| whole(group.first().cpus)),
    ("threads/minimum", |_| whole(1)),
    ("threads/maximum", |_| whole(1)),
    zero("disk/minimum"),
    zero("disk/maximum"),
    ("memory/minimum", |group| {
        whole(group.first().mem_bytes >> 20)
    }),
    ("memory/maximum", |group| {
        whole(group.first().mem_bytes >> 20)
    }),
    unset("memory/free/minimum"),
    unset("memory/free/maximum"),
    ("memory/allocated", |group| {
        whole(group.sum(|node| node.row.mem_alloc_bytes >> 20))
    }),
    ("weight/minimum", |_| whole(1)),
    ("weight/maximum", |_| whole(1)),
    ("features/total", |group| {
        said(available(group.first()).join(","))
    }),
    ("features/active", |group| {
        said(group.first().features.join(","))
    }),
    ("gres/total", |group| text(&group.nodes[0].gres[0])),
    ("gres/used", |group| text(&group.nodes[0].gres[1])),
    ("cluster", |group| text(&group.nodes[0].cluster)),
    blank("comment"),
    blank("extra"),
    ("reason/description", |group| text(&group.nodes[0].out.0)),
    ("reason/time", |group| {
        whole(seconds(group.nodes[0].out.2).unwrap_or(0))
    }),
    ("reason/user", |group| text(&group.nodes[0].out.1)),
    ("reservation", |group| {
        said(group.first().reservations.join(","))
    }),
    blank("resource_spec/cpus"),
    zero("resource_spec/memory"),
    ("partition", |group| {
        Datum::Value(record(PARTITION, &group.partition))
    }),
];
