//! `topology.toml`: switches, what hangs below each, racks, NVLink domains and rails, and so which nodes are near each other.
//!
//! Owns its keys, and that switches are a forest: each node below one leaf, each switch below one other, none below itself.
//! Words of topology.conf(5).

use crate::error::{Errors, Source};
use crate::name::{NAMES, is_name};
use crate::section::{NamedTable, Section};
use gmodel::hostlist::Hostlist;
use gmodel::policy::{NodeGroup, Rails, Switch, Topology};
use gmodel::suggest::closest;
use std::collections::BTreeMap;
use std::ops::Range;
use toml::de::DeTable;

const KEYS: [&str; 2] = ["nodes", "switches"];
const GROUP_KEYS: [&str; 1] = ["nodes"];
const RAILS_KEYS: [&str; 3] = ["nodes", "count", "of_gpu"];
/// GPUs of a node that a rail may be named for.
const MOST_RAILS: u32 = 64;

/// Reads `[switch.NAME]`, `[rack.NAME]`, `[nvlink_domain.NAME]` and `[rails.NAME]` tables.
pub fn read(source: &Source, table: &DeTable<'_>, errors: &mut Errors) -> Topology {
    let file = Section::open(
        source,
        table,
        &["switch", "rack", "nvlink_domain", "rails"],
        "topology.toml",
        errors,
    );
    let switches = switches(source, &file, errors);
    let racks = groups(
        source,
        &file,
        "rack",
        &GROUP_KEYS,
        errors,
        |name, nodes, _, _| Some(NodeGroup { name, nodes }),
    );
    let nvlink_domains = groups(
        source,
        &file,
        "nvlink_domain",
        &GROUP_KEYS,
        errors,
        |name, nodes, _, _| Some(NodeGroup { name, nodes }),
    );
    let rails = groups(
        source,
        &file,
        "rails",
        &RAILS_KEYS,
        errors,
        |name, nodes, section, errors| {
            Some(Rails {
                of_gpu: rails_of_gpus(&name, section, errors)?,
                name,
                nodes,
            })
        },
    );
    Topology {
        switches,
        racks,
        nvlink_domains,
        rails,
    }
}

fn switches(source: &Source, file: &Section, errors: &mut Errors) -> Vec<Switch> {
    let mut switches = Vec::new();
    let mut spans: Vec<Range<usize>> = Vec::new();
    for NamedTable { name, span, table } in file.named_tables("switch", errors) {
        check_name(source, "switch", name, &span, errors);
        let section = Section::open(source, table, &KEYS, &format!("[switch.{name}]"), errors);
        if !section.has("nodes") && !section.has("switches") {
            errors.add(
                source,
                span,
                format!("switch {name:?} has neither nodes nor switches"),
                "name what hangs below it",
            );
            continue;
        }
        let nodes = section.hosts("nodes", errors);
        let below = section.hosts("switches", errors);
        spans.push(section.span(if below.is_some() { "switches" } else { "nodes" }));
        let switches_below = below
            .iter()
            .flat_map(Hostlist::iter)
            .map(str::to_owned)
            .collect();
        switches.push(Switch {
            name: name.to_owned(),
            nodes,
            switches: switches_below,
        });
    }
    check(source, &switches, &spans, errors);
    switches
}

/// `count = 8`: GPU k is on rail k; `of_gpu = [0, 0, 1, 1]` says it of each.
fn rails_of_gpus(name: &str, section: &Section, errors: &mut Errors) -> Option<Vec<u32>> {
    match (section.has("count"), section.has("of_gpu")) {
        (true, false) => section
            .number("count", 1..=MOST_RAILS, errors)
            .map(|count| (0..count).collect()),
        (false, true) => section.numbers("of_gpu", 0..=MOST_RAILS - 1, MOST_RAILS as usize, errors),
        (both, _) => {
            let key = if both { "count" } else { "nodes" };
            let text = format!(
                "rails {name:?} {}",
                if both {
                    "say count and of_gpu"
                } else {
                    "do not say which GPU is on which"
                }
            );
            errors.add(
                section.source,
                section.span(key),
                text,
                "say count = 8 where GPU k is on rail k, or of_gpu = [0, 0, 1, 1] where not",
            );
            None
        }
    }
}

fn check_name(source: &Source, kind: &str, name: &str, span: &Range<usize>, errors: &mut Errors) {
    if !is_name(name) {
        errors.add(
            source,
            span.clone(),
            format!("{kind} {name:?} has no valid name"),
            NAMES,
        );
    }
}

/// Nodes that have something in common: each is in one group of a kind.
fn groups<T>(
    source: &Source,
    file: &Section,
    kind: &str,
    keys: &[&str],
    errors: &mut Errors,
    mut make: impl FnMut(String, Hostlist, &Section, &mut Errors) -> Option<T>,
) -> Vec<T> {
    let mut found = Vec::new();
    let mut group_of: BTreeMap<String, &str> = BTreeMap::new();
    for NamedTable { name, span, table } in file.named_tables(kind, errors) {
        check_name(source, kind, name, &span, errors);
        let section = Section::open(source, table, keys, &format!("[{kind}.{name}]"), errors);
        if !section.has("nodes") {
            errors.add(
                source,
                span,
                format!("{kind} {name:?} has no nodes"),
                "name its nodes",
            );
            continue;
        }
        let Some(nodes) = section.hosts("nodes", errors) else {
            continue;
        };
        for node in nodes.iter() {
            if let Some(other) = group_of.insert(node.to_owned(), name) {
                let text = format!("node {node:?} is in {kind} {other:?} and in {name:?}");
                errors.add(
                    source,
                    section.span("nodes"),
                    text,
                    format!("a node is in one [{kind}.NAME]"),
                );
            }
        }
        found.extend(make(name.to_owned(), nodes, &section, errors));
    }
    found
}

fn check(source: &Source, switches: &[Switch], spans: &[Range<usize>], errors: &mut Errors) {
    let names: Vec<&str> = switches.iter().map(|switch| &*switch.name).collect();
    let mut above: BTreeMap<&str, &str> = BTreeMap::new();
    let mut leaf_of: BTreeMap<&str, &str> = BTreeMap::new();
    for (switch, span) in switches.iter().zip(spans) {
        for below in &switch.switches {
            if !names.contains(&&**below) {
                let hint = closest(
                    below,
                    names.iter().copied().filter(|name| *name != switch.name),
                );
                let hint = hint.map_or_else(
                    || format!("add [switch.{below}]"),
                    |near| format!("did you mean {near:?}?"),
                );
                errors.add(
                    source,
                    span.clone(),
                    format!("there is no switch {below:?}"),
                    hint,
                );
            } else if let Some(other) = above.insert(below, &switch.name) {
                let text = format!(
                    "switch {below:?} hangs below {other:?} and below {:?}",
                    switch.name
                );
                errors.add(source, span.clone(), text, "a switch hangs below one other");
            }
        }
        for node in switch.nodes.iter().flat_map(Hostlist::iter) {
            if let Some(other) = leaf_of.insert(node, &switch.name) {
                let text = format!("node {node:?} hangs on {other:?} and on {:?}", switch.name);
                errors.add(source, span.clone(), text, "a node hangs on one switch");
            }
        }
    }
    for (switch, span) in switches.iter().zip(spans) {
        let mut at = &*switch.name;
        let comes_back = (0..switches.len()).any(|_| match above.get(at) {
            Some(up) => {
                at = up;
                at == switch.name
            }
            None => false,
        });
        if comes_back {
            errors.add(
                source,
                span.clone(),
                format!("switch {:?} hangs below itself", switch.name),
                "break the circle",
            );
            return;
        }
    }
}
