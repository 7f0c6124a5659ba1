//! Slurm's `topology.yaml` (25.05 on), a list of topologies of which partitions choose; ours is one, so one of them is taken.
//!
//! Reads trees and blocks with every mistake at once, each with line and caret. Words of topology.yaml(5). The YAML is read as events by
//! saphyr-parser: no document becomes more than is written in it.

use crate::topology_conf::{PlacedWord, TopologyReader};
use gmodel::policy::Topology;
use gmodel::suggest::did_you_mean;
use saphyr_parser::{Event, Parser, Span};
use std::ops::Range;

/// Deeper nothing of it is.
const MAX_DEPTH: usize = 16;

/// One value with its place.
struct YamlValue {
    at: Range<usize>,
    is: YamlKind,
}

enum YamlKind {
    Text(String),
    List(Vec<YamlValue>),
    /// Keys in their order.
    Map(Vec<(Range<usize>, String, YamlValue)>),
}

/// What was taken of the file.
#[derive(Debug)]
pub(crate) struct NamedTopology {
    pub(crate) topology: Topology,
    pub(crate) name: String,
    /// Names of the others.
    pub(crate) others: Vec<String>,
}

/// Whether this is such a file, and no topology.conf.
pub(crate) fn is_one(file: &str, text: &str) -> bool {
    let first = text
        .lines()
        .map(str::trim_start)
        .find(|line| !line.is_empty() && !line.starts_with('#'));
    [".yaml", ".yml"].iter().any(|end| file.ends_with(end))
        || first.is_some_and(|line| line.starts_with('-'))
}

/// The topology of that name; without one the cluster's default, else the first.
///
/// # Errors
/// All mistakes, as text with line and caret; or that there is no such topology.
pub(crate) fn read(file: &str, text: &str, name: Option<&str>) -> Result<NamedTopology, String> {
    let document = document(file, text)?;
    let mut reader = TopologyReader::default();
    let all: Vec<&YamlValue> = reader.list(&document, "a list of topologies");
    let named: Vec<(String, &YamlValue)> = all
        .into_iter()
        .filter_map(|one| Some((reader.text_of(one, "topology")?, one)))
        .collect();
    let is_default = |one: &YamlValue| {
        one.get("cluster_default")
            .is_some_and(|value| matches!(&value.is, YamlKind::Text(text) if text == "true"))
    };
    let chosen = match name {
        Some(name) => named.iter().find(|(other, _)| other == name),
        None => named
            .iter()
            .find(|(_, one)| is_default(one))
            .or(named.first()),
    };
    let others: Vec<String> = named.iter().map(|(other, _)| other.clone()).collect();
    match chosen {
        Some((name, one)) => {
            reader.topology_of(one);
            let others = others.into_iter().filter(|other| other != name).collect();
            Ok(NamedTopology {
                topology: reader.finish(file, text)?,
                name: name.clone(),
                others,
            })
        }
        None => {
            reader.finish(file, text)?;
            let there = if others.is_empty() {
                "none".to_owned()
            } else {
                others.join(", ")
            };
            Err(name.map_or_else(
                || format!("{file} has no topology"),
                |name| format!("{file} has no topology {name:?}; there is {there}"),
            ))
        }
    }
}

impl TopologyReader {
    fn topology_of(&mut self, one: &YamlValue) {
        self.only(
            one,
            &["topology", "cluster_default", "tree", "block", "flat"],
        );
        let kinds = ["tree", "block", "flat"]
            .into_iter()
            .filter_map(|kind| Some((kind, one.get(kind)?)));
        match kinds.collect::<Vec<_>>()[..] {
            [("tree", tree)] => {
                self.only(tree, &["switches"]);
                for switch in self.list_of(tree, "switches") {
                    self.only(switch, &["switch", "nodes", "children"]);
                    let Some(name) = self.text_of(switch, "switch") else {
                        continue;
                    };
                    let [nodes, below] = ["nodes", "children"].map(|key| switch.get(key));
                    self.switch(
                        PlacedWord {
                            span: &switch.at,
                            text: &name,
                        },
                        nodes.and_then(YamlValue::text),
                        below.and_then(YamlValue::text),
                    );
                }
            }
            [("block", block)] => {
                self.only(block, &["block_sizes", "blocks"]);
                for block in self.list_of(block, "blocks") {
                    self.only(block, &["block", "nodes"]);
                    let Some(name) = self.text_of(block, "block") else {
                        continue;
                    };
                    self.block(
                        PlacedWord {
                            span: &block.at,
                            text: &name,
                        },
                        block.get("nodes").and_then(YamlValue::text),
                    );
                }
            }
            // All nodes are equally near: nothing is to be said.
            [("flat", _)] => {}
            _ => self.wrong(
                &one.at,
                "a topology is one of tree, block and flat".into(),
                "name one of them",
            ),
        }
    }

    fn only(&mut self, value: &YamlValue, keys: &[&'static str]) {
        let YamlKind::Map(pairs) = &value.is else {
            return;
        };
        for (at, key, _) in pairs
            .iter()
            .filter(|(_, key, _)| !keys.contains(&key.as_str()))
        {
            let guess = did_you_mean(key, keys.iter().copied());
            let known = format!("known are {}", keys.join(", "));
            self.wrong(
                at,
                format!("unknown key {key:?}"),
                if guess.is_empty() {
                    known
                } else {
                    guess.trim().to_owned()
                },
            );
        }
    }

    fn list<'v>(&mut self, value: &'v YamlValue, wanted: &str) -> Vec<&'v YamlValue> {
        match &value.is {
            YamlKind::List(all) => all.iter().collect(),
            _ => {
                self.wrong(
                    &value.at,
                    format!("this is not {wanted}"),
                    "begin each with -",
                );
                Vec::new()
            }
        }
    }

    fn list_of<'v>(&mut self, value: &'v YamlValue, key: &str) -> Vec<&'v YamlValue> {
        match value.get(key) {
            Some(list) => self.list(list, &format!("a list of {key}")),
            None => {
                self.wrong(
                    &value.at,
                    format!("{key} are missing"),
                    format!("add {key}:"),
                );
                Vec::new()
            }
        }
    }

    fn text_of(&mut self, value: &YamlValue, key: &str) -> Option<String> {
        let text = value.get(key).and_then(YamlValue::text);
        if text.is_none() {
            self.wrong(
                &value.at,
                format!("this has no {key}"),
                format!("add {key}: NAME"),
            );
        }
        text.map(|word| word.text.to_owned())
    }
}

impl YamlValue {
    fn get(&self, key: &str) -> Option<&YamlValue> {
        match &self.is {
            YamlKind::Map(pairs) => pairs
                .iter()
                .find(|(_, name, _)| name == key)
                .map(|(_, _, value)| value),
            _ => None,
        }
    }

    fn text(&self) -> Option<PlacedWord<'_>> {
        match &self.is {
            YamlKind::Text(text) if !text.is_empty() => Some(PlacedWord {
                span: &self.at,
                text,
            }),
            _ => None,
        }
    }
}

/// The first document of a file.
fn document(file: &str, text: &str) -> Result<YamlValue, String> {
    // The parser counts characters.
    let bytes: Vec<usize> = text
        .char_indices()
        .map(|(at, _)| at)
        .chain([text.len()])
        .collect();
    let byte = |at: usize| bytes[at.min(bytes.len() - 1)];
    let mut events = Vec::new();
    for event in Parser::new_from_str(text) {
        match event {
            Ok((Event::StreamStart | Event::DocumentStart(_) | Event::Nothing, _)) => {}
            Ok((Event::DocumentEnd | Event::StreamEnd, _)) => break,
            Ok((event, Span { start, end })) => {
                events.push((event, byte(start.index())..byte(end.index())))
            }
            Err(e) => {
                return Err(format!(
                    "{file}:{}:{}: {}",
                    e.marker().line(),
                    e.marker().col() + 1,
                    e.info()
                ));
            }
        }
    }
    let mut events = events.into_iter();
    value(&mut events, 0).ok_or_else(|| {
        format!("{file} is no list of topologies, or uses anchors, which are not read")
    })
}

/// The next value; `None` at an end, an alias, and beyond the depth.
fn value<'t>(
    events: &mut impl Iterator<Item = (Event<'t>, Range<usize>)>,
    depth: usize,
) -> Option<YamlValue> {
    let (event, at) = events.next().filter(|_| depth < MAX_DEPTH)?;
    let is = match event {
        Event::Scalar(text, ..) => YamlKind::Text(text.into_owned()),
        Event::SequenceStart(..) => {
            let mut all = Vec::new();
            while let Some(one) = value(events, depth + 1) {
                all.push(one);
            }
            YamlKind::List(all)
        }
        Event::MappingStart(..) => {
            let mut pairs = Vec::new();
            while let Some(key) = value(events, depth + 1) {
                let YamlKind::Text(name) = key.is else {
                    return None;
                };
                pairs.push((key.at, name, value(events, depth + 1)?));
            }
            YamlKind::Map(pairs)
        }
        _ => return None,
    };
    Some(YamlValue { at, is })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology_conf::toml;
    use expect_test::expect;

    const FILE: &str = "# of two clouds\n---\n- topology: blocks\n  cluster_default: false\n  block:\n    block_sizes: [4, 16]\n    blocks:\n      - {block: b1, nodes: 'node[01-04]'}\n      \
        - block: b2\n        nodes: node[05-08]\n- topology: wires\n  cluster_default: true\n  tree:\n    switches:\n      - switch: top\n        children: s[1-2]\n      - switch: s1\n        nodes: node[01-02]\n      \
        - switch: s2\n        nodes: node[03-04]\n- topology: plain\n  flat: true\n";

    fn taken(name: Option<&str>) -> NamedTopology {
        read("topology.yaml", FILE, name).unwrap()
    }

    #[test]
    fn the_default_of_several_topologies_is_taken_or_the_one_that_is_named() {
        let wires = taken(None);
        assert_eq!(
            (wires.name.as_str(), wires.others),
            ("wires", vec!["blocks".to_owned(), "plain".to_owned()])
        );
        expect![[r##"
            # Which nodes are near each other. See gpuctld.toml(5).

            [switch.top]
            switches = ["s1", "s2"]

            [switch.s1]
            nodes = "node[01-02]"

            [switch.s2]
            nodes = "node[03-04]"
        "##]]
        .assert_eq(&toml(&wires.topology));
        expect![[r##"
            # Which nodes are near each other. See gpuctld.toml(5).

            [nvlink_domain.b1]
            nodes = "node[01-04]"

            [nvlink_domain.b2]
            nodes = "node[05-08]"
        "##]]
        .assert_eq(&toml(&taken(Some("blocks")).topology));
        assert_eq!(taken(Some("plain")).topology, Topology::default());
        assert_eq!(
            read("t", FILE, Some("x")).unwrap_err(),
            "t has no topology \"x\"; there is blocks, wires, plain"
        );
    }

    #[test]
    fn such_a_file_is_known_by_its_name_or_its_first_line() {
        assert!(
            is_one("a/topology.yaml", "")
                && is_one("-", "# x\n\n- topology: a\n")
                && is_one("-", "---\n")
        );
        assert!(!is_one("-", "# x\nSwitchName=a Nodes=n1\n") && !is_one("topology.conf", ""));
    }

    #[test]
    fn every_mistake_is_shown_with_its_place() {
        let text = "- topology: ä\n  tree:\n    switchs: []\n    switches:\n      - switch: a\n      - switch: b\n        nodes: n[1-2\n      - nodes: n3\n      - switch: c\n        children: d\n      - switch: e\n        nodes: n4\n      \
            - switch: f\n        nodes: n4\n";
        expect![[r#"
            error: unknown key "switchs"
             --> topology.yaml:3:5
              |
            3 |     switchs: []
              |     ^^^^^^^ Did you mean "switches"?

            error: switch "a" has neither nodes nor switches below it
             --> topology.yaml:5:9
              |
            5 |       - switch: a
              |         ^ name what hangs below it

            error: host list item "n[1-2" has a bracket without its partner. Write ranges as in node[01-04,7]
             --> topology.yaml:7:16
              |
            7 |         nodes: n[1-2
              |                ^^^^^ as "node[01-16]"

            error: this has no switch
             --> topology.yaml:8:9
              |
            8 |       - nodes: n3
              |         ^ add switch: NAME

            error: there is no switch "d"
              --> topology.yaml:10:19
               |
            10 |         children: d
               |                   ^ Did you mean "a"?

            error: node "n4" is in "e" and in "f"
              --> topology.yaml:14:16
               |
            14 |         nodes: n4
               |                ^^ it has one place"#]].assert_eq(&read("topology.yaml", text, None).unwrap_err());
        let mixed =
            "- topology: a\n  tree: {switches: []}\n  flat: true\n- cluster_default: true\n";
        expect![[r#"
            error: a topology is one of tree, block and flat
             --> topology.yaml:1:3
              |
            1 | - topology: a
              |   ^ name one of them

            error: this has no topology
             --> topology.yaml:4:3
              |
            4 | - cluster_default: true
              |   ^ add topology: NAME"#]]
        .assert_eq(&read("topology.yaml", mixed, None).unwrap_err());
        expect!["topology.yaml:2:1: while parsing a flow sequence, expected ',' or ']'"]
            .assert_eq(&read("topology.yaml", "- topology: [a\n", None).unwrap_err());
        for (text, words) in [
            ("", "no list"),
            ("a: &x 1\nb: *x\n", "anchors"),
            (&"[".repeat(1000), "topology.yaml"),
        ] {
            let said = read("topology.yaml", text, None).unwrap_err();
            assert!(said.contains(words), "{said}");
        }
    }
}
