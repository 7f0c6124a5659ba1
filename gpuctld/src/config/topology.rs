//! `topology.toml`: switches, what hangs below each, and so which nodes are near each other.
//!
//! Owns its keys, and that it is a forest: each node below one leaf, each switch below one other, none below itself.
//! Words of topology.conf(5).

use super::cluster::is_name;
use super::error::{Errors, Source};
use super::section::{NamedTable, Section};
use gmodel::hostlist::Hostlist;
use gmodel::policy::{Switch, Topology};
use gmodel::suggest::closest;
use std::collections::BTreeMap;
use std::ops::Range;
use toml::de::DeTable;

const KEYS: [&str; 2] = ["nodes", "switches"];

/// Reads `[switch.NAME]` tables.
pub(super) fn read(source: &Source, table: &DeTable<'_>, errors: &mut Errors) -> Topology {
    let file = Section::open(source, table, &["switch"], "topology.toml", errors);
    let mut switches = Vec::new();
    let mut spans: Vec<Range<usize>> = Vec::new();
    for NamedTable { name, span, table } in file.named_tables("switch", errors) {
        if !is_name(name) {
            let hint = "use up to 64 letters, digits, '_', '-' and '.'";
            errors.add(source, span.clone(), format!("switch {name:?} has no valid name"), hint);
        }
        let section = Section::open(source, table, &KEYS, &format!("[switch.{name}]"), errors);
        if !section.has("nodes") && !section.has("switches") {
            errors.add(source, span, format!("switch {name:?} has neither nodes nor switches"), "name what hangs below it");
            continue;
        }
        let nodes = section.hosts("nodes", errors);
        let below = section.hosts("switches", errors);
        spans.push(section.span(if below.is_some() { "switches" } else { "nodes" }));
        let switches_below = below.iter().flat_map(Hostlist::iter).map(str::to_owned).collect();
        switches.push(Switch { name: name.to_owned(), nodes, switches: switches_below });
    }
    check(source, &switches, &spans, errors);
    Topology { switches }
}

fn check(source: &Source, switches: &[Switch], spans: &[Range<usize>], errors: &mut Errors) {
    let names: Vec<&str> = switches.iter().map(|switch| &*switch.name).collect();
    let mut above: BTreeMap<&str, &str> = BTreeMap::new();
    let mut leaf_of: BTreeMap<&str, &str> = BTreeMap::new();
    for (switch, span) in switches.iter().zip(spans) {
        for below in &switch.switches {
            if !names.contains(&&**below) {
                let hint = closest(below, names.iter().copied().filter(|name| *name != switch.name));
                let hint = hint.map_or_else(|| format!("add [switch.{below}]"), |near| format!("did you mean {near:?}?"));
                errors.add(source, span.clone(), format!("there is no switch {below:?}"), hint);
            } else if let Some(other) = above.insert(below, &switch.name) {
                let text = format!("switch {below:?} hangs below {other:?} and below {:?}", switch.name);
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
            errors.add(source, span.clone(), format!("switch {:?} hangs below itself", switch.name), "break the circle");
            return;
        }
    }
}
