//! slurm.conf as what it says: settings, nodes, sets of nodes and partitions, with what their DEFAULT lines give them.
//!
//! Owns which lines there are, and that each node and partition is there once. Decides nothing.

use crate::conf_text::{ConfLine, ConfText, ConfWord, ReadText, TextPlace};
use gmodel::hostlist::{Hostlist, MAX_HOSTS, compress, sort_names};
use std::collections::BTreeMap;
use std::path::Path;

/// Keys of a line in small letters, with those of the DEFAULT line before it.
pub type ConfKeys = BTreeMap<String, ConfWord>;

/// One NodeName line.
pub struct NodeLine {
    pub hosts: Hostlist,
    pub keys: ConfKeys,
    pub place: TextPlace,
}

/// One PartitionName line.
pub struct PartitionLine {
    pub name: String,
    pub keys: ConfKeys,
    pub place: TextPlace,
}

/// Nodes under one name: by their names, or by a feature.
#[derive(Clone, Debug, Default)]
struct NodeSet {
    nodes: String,
    feature: String,
}

/// What a partition says of its nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartitionNodes {
    All,
    Nodes(String),
    Feature(String),
    Empty,
}

/// All of it.
pub struct SlurmConf {
    pub text: ConfText,
    /// The last of each key counts.
    pub settings: Vec<ConfWord>,
    pub nodes: Vec<NodeLine>,
    pub partitions: Vec<PartitionLine>,
    /// Lines of another kind: DownNodes, FrontendName.
    pub other: Vec<ConfWord>,
    sets: BTreeMap<String, NodeSet>,
    /// Where each node is: which of the lines.
    places: BTreeMap<String, usize>,
}

impl SlurmConf {
    pub fn read(path: &Path, text: &str, read: &ReadText) -> Self {
        let mut text = ConfText::read(path, text, read);
        let lines = std::mem::take(&mut text.lines);
        let mut conf = Self {
            text,
            settings: Vec::new(),
            nodes: Vec::new(),
            partitions: Vec::new(),
            other: Vec::new(),
            sets: BTreeMap::new(),
            places: BTreeMap::new(),
        };
        let (mut of_nodes, mut of_partitions) = (ConfKeys::new(), ConfKeys::new());
        for line in lines {
            let first = line[0].key.to_ascii_lowercase();
            match first.as_str() {
                "nodename" => conf.node(line, &mut of_nodes),
                "partitionname" => conf.partition(line, &mut of_partitions),
                "nodeset" => conf.set(line),
                "downnodes" | "frontendname" => conf.other.push(line[0].clone()),
                _ => conf.settings.extend(line),
            }
        }
        conf
    }

    fn node(&mut self, line: ConfLine, default: &mut ConfKeys) {
        let name = line[0].clone();
        let keys = keys_of(line);
        if name.value.eq_ignore_ascii_case("default") {
            default.extend(keys);
            return;
        }
        let Some(hosts) = self.hosts(&name, &name.value) else {
            return;
        };
        if self.places.len() + hosts.len() > MAX_HOSTS {
            let message = format!("more than {MAX_HOSTS} nodes");
            return self
                .text
                .wrong(&name.place, message, "is a range too long?");
        }
        let at = self.nodes.len();
        for host in hosts.iter() {
            if let Some(before) = self.places.insert(host.to_owned(), at) {
                let first = match before == at {
                    true => "this line".to_owned(),
                    false => self.text.shown(&self.nodes[before].place),
                };
                let message = format!("node {host:?} is there twice");
                self.text
                    .wrong(&name.place, message, format!("first in {first}"));
            }
        }
        self.nodes.push(NodeLine {
            hosts,
            keys: with_default(default, keys),
            place: name.place,
        });
    }

    fn partition(&mut self, line: ConfLine, default: &mut ConfKeys) {
        let name = line[0].clone();
        let keys = keys_of(line);
        if name.value.eq_ignore_ascii_case("default") {
            default.extend(keys);
            return;
        }
        // Several partitions may share a line.
        for one in name.value.split(',').filter(|one| !one.is_empty()) {
            if let Some(before) = self.partitions.iter().find(|line| line.name == one) {
                let message = format!("partition {one:?} is there twice");
                let first = format!("first in {}", self.text.shown(&before.place));
                self.text.wrong(&name.place, message, first);
                continue;
            }
            self.partitions.push(PartitionLine {
                name: one.to_owned(),
                keys: with_default(default, keys.clone()),
                place: name.place.clone(),
            });
        }
    }

    fn set(&mut self, line: ConfLine) {
        let value = |key: &str| {
            line.iter()
                .find(|word| word.is(key))
                .map(|word| word.value.clone())
        };
        let set = NodeSet {
            nodes: value("nodes").unwrap_or_default(),
            feature: value("feature").unwrap_or_default(),
        };
        self.sets.insert(line[0].value.clone(), set);
    }

    fn hosts(&mut self, word: &ConfWord, text: &str) -> Option<Hostlist> {
        Hostlist::parse(text)
            .map_err(|error| {
                self.text
                    .wrong(&word.place, error.to_string(), "as \"node[01-16]\"")
            })
            .ok()
    }

    /// The value of Nodes=: names, sets of nodes, ALL. Names of no node are mistakes.
    pub fn nodes_of(&mut self, word: &ConfWord) -> PartitionNodes {
        let mut names: Vec<String> = Vec::new();
        for item in items(&word.value) {
            if item.eq_ignore_ascii_case("all") {
                return PartitionNodes::All;
            }
            match self.sets.get(item).cloned() {
                None => names.extend(self.known_hosts(word, item)),
                Some(set) => {
                    if !set.nodes.is_empty() {
                        names.extend(self.known_hosts(word, &set.nodes));
                    }
                    if !set.feature.is_empty() {
                        let with = self.with_feature(&set.feature);
                        if with.is_empty() && items(&word.value).count() == 1 {
                            return PartitionNodes::Feature(set.feature);
                        }
                        names.extend(with);
                    }
                }
            }
        }
        match names.is_empty() {
            true => PartitionNodes::Empty,
            false => {
                sort_names(&mut names);
                names.dedup();
                PartitionNodes::Nodes(compress(names.iter()))
            }
        }
    }

    fn known_hosts(&mut self, word: &ConfWord, text: &str) -> Vec<String> {
        let Some(hosts) = self.hosts(word, text) else {
            return Vec::new();
        };
        if let Some(strange) = hosts.iter().find(|host| !self.places.contains_key(*host)) {
            let message = format!("there is no node {strange:?}");
            let near = gmodel::suggest::closest(
                strange,
                self.places.keys().map(String::as_str).take(10_000),
            );
            let hint = near.map_or_else(
                || "add its NodeName line".to_owned(),
                |near| format!("did you mean {near:?}?"),
            );
            self.text.wrong(&word.place, message, hint);
        }
        hosts.iter().map(str::to_owned).collect()
    }

    fn with_feature(&self, feature: &str) -> Vec<String> {
        let has = |line: &&NodeLine| features(&line.keys).any(|one| one == feature);
        let lines = self.nodes.iter().filter(has);
        lines
            .flat_map(|line| line.hosts.iter().map(str::to_owned))
            .collect()
    }
}

/// Features= of a node.
pub fn features(keys: &ConfKeys) -> impl Iterator<Item = &str> {
    let words = ["features", "feature"]
        .into_iter()
        .filter_map(|key| keys.get(key));
    words
        .flat_map(|word| word.value.split(','))
        .map(str::trim)
        .filter(|one| !one.is_empty())
}

fn keys_of(line: ConfLine) -> ConfKeys {
    let words = line.into_iter().skip(1);
    words
        .map(|word| (word.key.to_ascii_lowercase(), word))
        .collect()
}

fn with_default(default: &ConfKeys, keys: ConfKeys) -> ConfKeys {
    let mut all = default.clone();
    all.extend(keys);
    all
}

/// Between commas that stand in no bracket.
pub fn items(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_i32;
    text.split(move |sign: char| {
        depth += match sign {
            '[' | '(' => 1,
            ']' | ')' => -1,
            _ => 0,
        };
        sign == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> SlurmConf {
        SlurmConf::read(Path::new("slurm.conf"), text, &|_| {
            Err("no such file".to_owned())
        })
    }

    #[test]
    fn default_lines_give_what_later_lines_do_not_say() {
        let conf = read(
            "NodeName=DEFAULT CPUs=8 State=UNKNOWN\nNodeName=a[1-2]\nnodename=default cpus=4\nNodeName=b1 state=DOWN\n\
                         PartitionName=DEFAULT MaxTime=60\nPartitionName=p,q Nodes=a1,b1\n",
        );
        let value = |at: usize, key: &str| conf.nodes[at].keys[key].value.clone();
        assert_eq!(
            (value(0, "cpus"), value(1, "cpus"), value(1, "state")),
            ("8".into(), "4".into(), "DOWN".into())
        );
        let names: Vec<&str> = conf
            .partitions
            .iter()
            .map(|line| line.name.as_str())
            .collect();
        assert_eq!(
            (names, conf.partitions[1].keys["maxtime"].value.as_str()),
            (vec!["p", "q"], "60")
        );
        assert!(conf.text.errors.is_empty());
    }

    #[test]
    fn nodes_of_a_partition_are_names_sets_and_all() {
        let mut conf = read(
            "NodeName=a[1-4] Features=ib,fast\nNodeName=b1\nNodeSet=quick Feature=fast\nNodeSet=two Nodes=a2,b1\nNodeSet=dyn Feature=later\nPartitionName=p Nodes=x\n",
        );
        let mut of = |text: &str| {
            let word = ConfWord {
                value: text.to_owned(),
                ..conf.partitions[0].keys["nodes"].clone()
            };
            conf.nodes_of(&word)
        };
        assert_eq!(of("b1,quick"), PartitionNodes::Nodes("a[1-4],b1".into()));
        assert_eq!(of("two"), PartitionNodes::Nodes("a2,b1".into()));
        assert_eq!(of("all"), PartitionNodes::All);
        assert_eq!(of("dyn"), PartitionNodes::Feature("later".into()));
        assert_eq!(of("a[1,3],b1"), PartitionNodes::Nodes("a[1,3],b1".into()));
    }

    #[test]
    fn a_node_in_two_lines_and_a_partition_of_strange_nodes_are_mistakes() {
        let mut conf = read(
            "NodeName=a[1-4]\nNodeName=a3,b1\nPartitionName=p Nodes=a9\nPartitionName=p Nodes=a1\n",
        );
        let word = conf.partitions[0].keys["nodes"].clone();
        conf.nodes_of(&word);
        let all = conf.text.errors.into_sorted();
        let shown: Vec<String> = all
            .iter()
            .map(|one| format!("{}: {} ({})", one.line, one.message, one.hint))
            .collect();
        assert_eq!(
            shown,
            [
                "2: node \"a3\" is there twice (first in slurm.conf:1)",
                "3: there is no node \"a9\" (did you mean \"a1\"?)",
                "4: partition \"p\" is there twice (first in slurm.conf:3)",
            ]
        );
    }
}
