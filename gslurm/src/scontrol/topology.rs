//! `scontrol show topology`: the switches and NVLink domains of topology.toml, as far as nodes are below them, in the form of
//! Slurm's tree and block topologies.
//!
//! Made of what the listing of nodes tells of each. Source: scontrol(1).

use gcli::answer::list;
use gcli::{Failure, Outcome};
use gmodel::hostlist;
use gwire::client::Client;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

/// Slurm's number for links of which nothing is said.
const LINK_SPEED: u32 = 1;

#[derive(Deserialize)]
struct NodePlace {
    name: String,
    /// The highest first: `spine.leaf1`.
    #[serde(default)]
    switches: String,
    #[serde(default)]
    nvlink_domain: String,
}

#[derive(Default)]
struct Switch<'n> {
    /// Above how many rows of switches it is.
    level: usize,
    nodes: BTreeSet<&'n str>,
    below: BTreeSet<&'n str>,
}

/// `show topology unit=leaf1 node=node7`.
pub(super) fn show(client: &mut Client, words: &[String]) -> Outcome {
    let (mut unit, mut node) = (None, None);
    for word in words {
        match word.split_once('=') {
            Some((key, value)) if key.eq_ignore_ascii_case("unit") => unit = Some(value),
            Some((key, value)) if key.eq_ignore_ascii_case("node") => node = Some(value),
            _ if word.eq_ignore_ascii_case("default") => {}
            _ => {
                return Err(Failure::usage(format_args!(
                    "topology {word:?}: there is one, \"default\". unit=NAME chooses a switch or a block of it, node=NAME those of a node"
                )));
            }
        }
    }
    let nodes: Vec<NodePlace> = list(client, "/v1/nodes")?;
    if let Some(name) = node.filter(|name| !nodes.iter().any(|one| one.name == *name)) {
        return Err(Failure::new(format_args!("there is no node {name:?}")));
    }
    let is_asked = |name: &str, below: &BTreeSet<&str>| {
        unit.is_none_or(|unit| unit == name) && node.is_none_or(|node| below.contains(node))
    };
    let switches = switch_lines(&nodes, &is_asked);
    let text = switches.chain(block_lines(&nodes, &is_asked));
    let text: String = text.collect();
    if let (Some(unit), true) = (unit, text.is_empty()) {
        return Err(Failure::new(format_args!(
            "no switch and no NVLink domain {unit:?} is above these nodes. scontrol show topology lists all"
        )));
    }
    let mut out = std::io::stdout();
    match text.is_empty() {
        true => out.write_all(b"No topology information available\n")?,
        false => out.write_all(text.as_bytes())?,
    }
    Ok(0)
}

type IsAsked<'a> = &'a dyn Fn(&str, &BTreeSet<&str>) -> bool;

/// The lowest first, by name within a level.
fn switch_lines<'n>(
    nodes: &'n [NodePlace],
    is_asked: IsAsked<'n>,
) -> impl Iterator<Item = String> + use<'n> {
    let mut all: BTreeMap<&str, Switch> = BTreeMap::new();
    for node in nodes.iter().filter(|node| !node.switches.is_empty()) {
        let path: Vec<&str> = node.switches.split('.').rev().collect();
        for (level, name) in path.iter().enumerate() {
            let switch = all.entry(name).or_default();
            switch.level = switch.level.max(level);
            switch.nodes.insert(&node.name);
            switch
                .below
                .extend(level.checked_sub(1).map(|below| path[below]));
        }
    }
    let mut lines: Vec<(usize, &str, String)> = Vec::new();
    for (name, switch) in &all {
        if is_asked(name, &switch.nodes) {
            let level = switch.level;
            let nodes = compressed(&switch.nodes);
            let below = match switch.below.is_empty() {
                true => String::new(),
                false => format!(" Switches={}", compressed(&switch.below)),
            };
            let line = format!(
                "SwitchName={name} Level={level} LinkSpeed={LINK_SPEED} Nodes={nodes}{below}\n"
            );
            lines.push((level, name, line));
        }
    }
    lines.sort_by_key(|(level, ..)| *level);
    lines.into_iter().map(|(_, _, line)| line)
}

fn block_lines<'n>(
    nodes: &'n [NodePlace],
    is_asked: IsAsked<'n>,
) -> impl Iterator<Item = String> + use<'n> {
    let mut blocks: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for node in nodes.iter().filter(|node| !node.nvlink_domain.is_empty()) {
        let block = blocks.entry(&node.nvlink_domain).or_default();
        block.insert(&node.name);
    }
    let line = |(index, (name, nodes)): (usize, (&str, BTreeSet<&str>))| {
        is_asked(name, &nodes).then(|| {
            let size = nodes.len();
            let nodes = compressed(&nodes);
            format!("BlockName={name} BlockIndex={index} Nodes={nodes} BlockSize={size}\n")
        })
    };
    let lines: Vec<String> = blocks.into_iter().enumerate().filter_map(line).collect();
    lines.into_iter()
}

fn compressed(names: &BTreeSet<&str>) -> String {
    let mut names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    hostlist::sort_names(&mut names);
    hostlist::compress(names)
}
