//! A cluster as TOML: `[[node]]` tables for the machines, `[partition.NAME]` as in gpuctld's `partitions.d`.
//!
//! Owns which nodes there are in all; the words are [`SiteFile`]'s.

use crate::hardware::{Hardware, HollowNode, MAX_NODES, NodeShape, main_partition};
use crate::site_file::SiteFile;
use gmodel::config::{NodeSelection, Partition};
use std::collections::BTreeMap;

impl Hardware {
    /// Reads nodes and partitions, under the name of their file. Nodes that a partition names and no `[[node]]` describes have
    /// the shape `unknown`.
    ///
    /// # Errors
    /// Every mistake with its place.
    pub fn from_toml(name: &str, text: &str, unknown: &NodeShape) -> Result<Self, String> {
        let SiteFile {
            config,
            has_partitions,
            nodes,
            ..
        } = SiteFile::parse(name, text)?;
        let mut named = NodeList::default();
        for (names, shape) in &nodes {
            if let Some(node) = names.iter().find(|node| !named.add(node, shape)) {
                return Err(format!(
                    "{name}: node {node:?} is there twice (or there are more than {MAX_NODES})"
                ));
            }
        }
        let partitions = if has_partitions {
            config.partitions
        } else {
            Vec::new()
        };
        named
            .with_partitions(partitions, unknown)
            .map_err(|text| format!("{name}: {text}"))
    }
}

/// Nodes in the order in which they are named.
#[derive(Default)]
struct NodeList {
    order: Vec<String>,
    shapes: BTreeMap<String, NodeShape>,
}

impl NodeList {
    fn add(&mut self, name: &str, shape: &NodeShape) -> bool {
        let new = !self.shapes.contains_key(name) && self.order.len() < MAX_NODES;
        if new {
            self.order.push(name.to_owned());
            self.shapes.insert(name.to_owned(), shape.clone());
        }
        new
    }

    fn with_partitions(
        mut self,
        mut partitions: Vec<Partition>,
        unknown: &NodeShape,
    ) -> Result<Hardware, String> {
        let mut notes = Vec::new();
        let mut assumed = 0;
        for partition in &partitions {
            if let NodeSelection::Names(names) = &partition.nodes {
                assumed += names.iter().filter(|name| self.add(name, unknown)).count();
            }
        }
        if assumed > 0 {
            notes.push(format!(
                "{assumed} nodes that only partitions name are taken to have {unknown}"
            ));
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
        let node =
            |name: String| HollowNode::new(name.clone(), shapes.remove(&name).unwrap_or_default());
        Ok(Hardware {
            nodes: order.into_iter().map(node).collect(),
            partitions,
            notes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unknown() -> NodeShape {
        NodeShape {
            gpus: 8,
            cpus: 64,
            mem_bytes: 1 << 40,
            ..NodeShape::default()
        }
    }

    #[test]
    fn nodes_and_partitions_are_read() {
        let text = "[[node]]\nnames = \"gpu[01-02]\"\ncpus = 96\nmem = \"1T\"\ngpus = \"h100:8\"\nfeatures = [\"ib\"]\n\
                    [partition.train]\nnodes = \"gpu[01-04]\"\ndefault = true\nmax_time = \"2-0\"\nprolog = \"/x\"\nmig = \"planned\"\n\
                    [partition.ib]\nfeatures = \"ib\"\n";
        let hardware = Hardware::from_toml("pool.toml", text, &unknown()).unwrap();
        let names: Vec<&str> = hardware.nodes.iter().map(|node| &*node.name).collect();
        assert_eq!(names, ["gpu01", "gpu02", "gpu03", "gpu04"]);
        assert_eq!(
            (
                hardware.gpus(),
                hardware.nodes[0].shape.cpus,
                hardware.nodes[3].shape.cpus
            ),
            (32, 96, 64)
        );
        assert_eq!(hardware.nodes[1].shape.gpu_type, "h100");
        assert_eq!(
            hardware.notes,
            ["2 nodes that only partitions name are taken to have 8 GPUs, 64 CPUs, 1T"]
        );
        assert_eq!(hardware.partitions[0].max_time_secs, Some(172_800));
        assert_eq!(
            hardware.partitions[1].nodes,
            NodeSelection::Features(vec!["ib".into()])
        );
    }

    #[test]
    fn the_sample_partitions_of_the_daemon_are_a_cluster() {
        let text = include_str!("../../etc/partitions.d/train.toml");
        let hardware = Hardware::from_toml("pool.toml", text, &unknown()).unwrap();
        assert_eq!((hardware.nodes.len(), hardware.partitions.len()), (16, 2));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let wrong = |text: &str| Hardware::from_toml("pool.toml", text, &unknown()).unwrap_err();
        assert!(wrong("").starts_with("pool.toml: the file names no nodes"));
        assert!(
            wrong("[[node]]\ncpus = 4\n")
                .starts_with("error: a [[node]] needs names\n --> pool.toml:")
        );
        let twice = wrong("[[node]]\nnames = \"a\"\n[[node]]\nnames = \"a\"\n");
        assert!(
            twice.starts_with("pool.toml: node \"a\" is there twice"),
            "{twice}"
        );
        let half = wrong("[[node]]\nnames = \"a\"\ngpus = \"0.5\"\n");
        assert!(
            half.contains("gpus = \"0.5\" is no equipment of a node")
                && half.contains("pool.toml:3:8"),
            "{half}"
        );
        let key = wrong("[[node]]\nnames = \"a\"\n[partition.p]\nmaxtime = 4\n");
        assert!(
            key.contains("unknown key \"maxtime\" in [partition.p]")
                && key.contains("did you mean \"max_time\"?"),
            "{key}"
        );
    }
}
