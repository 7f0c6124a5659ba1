//! The network between nodes as the site tells it: switches, racks, NVLink domains, rails; and the order of nodes along it.
//!
//! Says what is near what; placement is the scheduler's. Source of the words: Slurm's topology.conf(5).

use crate::hostlist::{Hostlist, natural_order};
use serde::{Deserialize, Serialize};

/// Which nodes are near each other. Leaves first is not required.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Topology {
    pub switches: Vec<Switch>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub racks: Vec<NodeGroup>,
    /// NVLink domains: nodes with GPUs that reach each other by NVLink, as in an NVL72 rack. A node's own report goes first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nvlink_domains: Vec<NodeGroup>,
    /// Fabrics in which each GPU of a node, or each NIC, has a leaf switch of its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rails: Vec<Rails>,
}

/// As a line of Slurm's topology.conf.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Switch {
    pub name: String,
    pub nodes: Option<Hostlist>,
    /// Switches below it.
    pub switches: Vec<String>,
}

/// Nodes that have something in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeGroup {
    pub name: String,
    pub nodes: Hostlist,
}

/// Nodes of a rail-optimised fabric: GPUs of two nodes on the same rail are one switch apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rails {
    pub name: String,
    pub nodes: Hostlist,
    /// Rail of the GPU with each NVML index.
    pub of_gpu: Vec<u32>,
}

impl Topology {
    /// The switches above a node, the highest first; none for a node that hangs on none.
    pub fn switches_above(&self, node: &str) -> Vec<&str> {
        let leaf = self.switches.iter().find(|switch| {
            switch
                .nodes
                .as_ref()
                .is_some_and(|nodes| nodes.contains(node))
        });
        let mut path: Vec<&str> = leaf.iter().map(|leaf| leaf.name.as_str()).collect();
        while let Some(above) = path.last().and_then(|below| self.above(below)) {
            if path.contains(&above) {
                break;
            }
            path.push(above);
        }
        path.reverse();
        path
    }

    fn above(&self, below: &str) -> Option<&str> {
        let above = self
            .switches
            .iter()
            .find(|switch| switch.switches.iter().any(|name| name == below));
        above.map(|switch| switch.name.as_str())
    }

    /// The domain that the site names for a node.
    pub fn nvlink_domain(&self, node: &str) -> Option<&str> {
        self.nvlink_domains
            .iter()
            .find(|domain| domain.nodes.contains(node))
            .map(|domain| domain.name.as_str())
    }

    /// The fabric with rails that a node belongs to.
    pub fn rails(&self, node: &str) -> Option<&Rails> {
        self.rails.iter().find(|rails| rails.nodes.contains(node))
    }

    /// Nodes, each with its NVLink domain or an empty word, by their places in `nodes`: neighbours in this order are neighbours in
    /// the network. Leaf switches as one meets them going down from the top, then racks, then names; a domain is kept together.
    pub fn order(&self, nodes: &[(&str, &str)]) -> Vec<usize> {
        let leaves = self.leaves();
        let place = |groups: &[&Hostlist], name: &str| {
            groups
                .iter()
                .position(|group| group.contains(name))
                .unwrap_or(groups.len())
        };
        let racks: Vec<&Hostlist> = self.racks.iter().map(|rack| &rack.nodes).collect();
        let mut keyed: Vec<(usize, usize, usize)> = nodes
            .iter()
            .enumerate()
            .map(|(at, (name, _))| (place(&leaves, name), place(&racks, name), at))
            .collect();
        keyed.sort_by(|a, b| {
            (a.0, a.1)
                .cmp(&(b.0, b.1))
                .then_with(|| natural_order(nodes[a.2].0, nodes[b.2].0))
        });
        let by_place: Vec<usize> = keyed.into_iter().map(|(.., at)| at).collect();
        let mut first = std::collections::BTreeMap::new();
        for (place, at) in by_place
            .iter()
            .enumerate()
            .filter(|(_, at)| !nodes[**at].1.is_empty())
        {
            first.entry(nodes[*at].1).or_insert(place);
        }
        let mut together: Vec<(usize, usize)> = by_place
            .iter()
            .enumerate()
            .map(|(place, at)| (*first.get(nodes[*at].1).unwrap_or(&place), *at))
            .collect();
        together.sort_by_key(|(place, _)| *place);
        together.into_iter().map(|(_, at)| at).collect()
    }

    /// Leaf switches as one meets them going down from each that hangs below none.
    fn leaves(&self) -> Vec<&Hostlist> {
        let mut tops: Vec<&Switch> = self
            .switches
            .iter()
            .filter(|switch| self.above(&switch.name).is_none())
            .collect();
        tops.sort_by(|a, b| natural_order(&b.name, &a.name));
        let (mut left, mut leaves, mut seen) = (tops, Vec::new(), 0);
        while let Some(switch) = left.pop() {
            leaves.extend(&switch.nodes);
            seen += 1;
            if seen > self.switches.len() {
                break;
            }
            let below = switch
                .switches
                .iter()
                .rev()
                .filter_map(|name| self.switches.iter().find(|other| other.name == *name));
            left.extend(below);
        }
        leaves
    }
}

impl Rails {
    /// Rail of a GPU by its NVML index; none for one that the site does not name.
    pub fn of(&self, index: u32) -> Option<u32> {
        self.of_gpu.get(usize::try_from(index).ok()?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology() -> Topology {
        let switch = |name: &str, nodes: &str, below: &[&str]| Switch {
            name: name.into(),
            nodes: (!nodes.is_empty()).then(|| Hostlist::parse(nodes).unwrap()),
            switches: below.iter().map(|name| (*name).to_owned()).collect(),
        };
        let group = |name: &str, nodes: &str| NodeGroup {
            name: name.into(),
            nodes: Hostlist::parse(nodes).unwrap(),
        };
        Topology {
            switches: vec![
                switch("leaf1", "a,c,e", &[]),
                switch("leaf2", "b,d", &[]),
                switch("spine", "", &["leaf2", "leaf1"]),
            ],
            racks: vec![group("r1", "e"), group("r2", "a,c")],
            nvlink_domains: vec![group("nvl1", "x[1-2]")],
            rails: vec![Rails {
                name: "pod".into(),
                nodes: Hostlist::parse("a,b").unwrap(),
                of_gpu: vec![0, 0, 1, 1],
            }],
        }
    }

    fn ordered(nodes: &[(&str, &str)]) -> String {
        topology()
            .order(nodes)
            .into_iter()
            .map(|at| nodes[at].0)
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn the_way_to_a_node_is_told_from_the_top() {
        assert_eq!(topology().switches_above("c"), ["spine", "leaf1"]);
        assert!(topology().switches_above("z").is_empty());
        assert_eq!(
            (
                topology().nvlink_domain("x2"),
                topology().nvlink_domain("a")
            ),
            (Some("nvl1"), None)
        );
        let rail = |node: &str, index| topology().rails(node).and_then(|rails| rails.of(index));
        assert_eq!(
            (rail("b", 2), rail("b", 4), rail("c", 0)),
            (Some(1), None, None)
        );
    }

    #[test]
    fn neighbours_in_the_order_are_neighbours_in_the_network() {
        let nodes = ["a", "b", "c", "d", "e", "n10", "n2"].map(|name| (name, ""));
        assert_eq!(
            ordered(&nodes),
            "b d e a c n2 n10",
            "the spine's switches in its order, racks within, then names"
        );
        let nodes = [("a", ""), ("b", "x"), ("c", ""), ("d", ""), ("e", "x")];
        assert_eq!(
            ordered(&nodes),
            "b e d a c",
            "a domain stays together, even across switches"
        );
        let none = Topology::default();
        assert_eq!(none.order(&[("n10", ""), ("n9", "")]), [1, 0]);
    }

    #[test]
    fn a_circle_ends() {
        let mut circle = topology();
        circle.switches[0].switches = vec!["spine".into()];
        assert_eq!(circle.switches_above("c").len(), 2);
        assert_eq!(circle.order(&[("a", ""), ("b", "")]).len(), 2);
    }
}
