//! `gadm topology`: Slurm's `topology.conf` and `topology.yaml` as our `topology.toml`, and the switches in force.

use crate::{topology_conf, topology_yaml};
use gcli::table::stdout;
use gcli::{Failure, Outcome};
use gmodel::hostlist;
use gmodel::policy::{NodeGroup, Rails, Switch, Topology};
use gwire::client::Client;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read, Write};

/// What to do with the topology.
#[derive(clap::Subcommand)]
pub(crate) enum TopologyAct {
    /// Print Slurm's topology.conf or topology.yaml (trees and blocks; topograph writes them too) as topology.toml:
    /// gadm topology import /etc/slurm/topology.conf > topology.toml
    Import {
        /// Slurm's file; - is stdin
        file: String,
        /// Which topology of a topology.yaml [default: the cluster's]
        #[arg(long, value_name = "NAME")]
        topology: Option<String>,
    },
    /// Show the switches in force as a tree, and racks, NVLink domains and rails
    Show {
        /// One line of JSON
        #[arg(long)]
        json: bool,
    },
}

/// Reading a file needs no controller; showing does.
pub(crate) fn run(act: TopologyAct, client: impl FnOnce() -> Result<Client, Failure>) -> Outcome {
    match act {
        TopologyAct::Import {
            file,
            topology: name,
        } => {
            let mut text = String::new();
            let read = match file.as_str() {
                "-" => std::io::stdin().read_to_string(&mut text).map(|_| ()),
                path => std::fs::read_to_string(path).map(|read| text = read),
            };
            read.map_err(|error| Failure::new(format_args!("cannot read {file}: {error}")))?;
            let topology = match topology_yaml::is_one(&file, &text) {
                true => of_yaml(&file, &text, name.as_deref())?,
                false if name.is_some() => {
                    return Err(Failure::new(format_args!(
                        "--topology is of a topology.yaml; {file} is a topology.conf, which has one"
                    )));
                }
                false => topology_conf::read(&file, &text).map_err(Failure::new)?,
            };
            let mut out = stdout()?;
            out.write_all(topology_conf::toml(&topology).as_bytes())?;
            out.flush()?;
            Ok(0)
        }
        TopologyAct::Show { json } => show(&mut client()?, json),
    }
}

fn of_yaml(file: &str, text: &str, name: Option<&str>) -> Result<Topology, Failure> {
    let taken = topology_yaml::read(file, text, name).map_err(Failure::new)?;
    if !taken.others.is_empty() {
        let (name, others) = (&taken.name, taken.others.join(", "));
        writeln!(
            std::io::stderr(),
            "gadm: this is topology {name:?}; {file} also has {others}, and gpupool has one for all partitions (--topology NAME takes another)"
        )?;
    }
    Ok(taken.topology)
}

fn show(client: &mut Client, json: bool) -> Outcome {
    let config: Value = client.get("/v1/config")?;
    let read = serde_json::from_value(config["cluster"]["scheduler"]["topology"].clone());
    let topology: Topology =
        read.map_err(|error| Failure::new(format_args!("the topology cannot be read: {error}")))?;
    let mut out = stdout()?;
    if json {
        let (switches, racks, domains, rails) = (
            &topology.switches,
            &topology.racks,
            &topology.nvlink_domains,
            &topology.rails,
        );
        writeln!(
            out,
            "{}",
            serde_json::json!({"schema": 1, "switches": switches, "racks": racks, "nvlink_domains": domains, "rails": rails})
        )?;
        out.flush()?;
        return Ok(0);
    }
    if topology == Topology::default() {
        writeln!(
            std::io::stderr(),
            "gadm: there is no topology.toml; all nodes count as equally near"
        )?;
    }
    let groups = groups("rack", &topology.racks)
        .into_iter()
        .chain(groups("NVLink domain", &topology.nvlink_domains));
    for line in tree(&topology.switches)
        .into_iter()
        .chain(groups)
        .chain(topology.rails.iter().map(rails))
    {
        writeln!(out, "{line}")?;
    }
    out.flush()?;
    Ok(0)
}

fn groups(kind: &str, groups: &[NodeGroup]) -> Vec<String> {
    groups
        .iter()
        .map(|group| {
            format!(
                "{kind} {} {}",
                group.name,
                hostlist::compress(group.nodes.iter())
            )
        })
        .collect()
}

/// `rails pod1 gpu[01-16] rail 0: GPU 0,1; rail 1: GPU 2,3`.
fn rails(rails: &Rails) -> String {
    let mut gpus: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for (index, rail) in rails.of_gpu.iter().enumerate() {
        gpus.entry(*rail).or_default().push(index.to_string());
    }
    let each: Vec<String> = gpus
        .into_iter()
        .map(|(rail, gpus)| format!("rail {rail}: GPU {}", gpus.join(",")))
        .collect();
    format!(
        "rails {} {} {}",
        rails.name,
        hostlist::compress(rails.nodes.iter()),
        each.join("; ")
    )
}

/// Each switch below the one it hangs on, with its nodes.
fn tree(switches: &[Switch]) -> Vec<String> {
    fn add(switch: &Switch, depth: usize, all: &[Switch], lines: &mut Vec<String>) {
        let nodes = switch
            .nodes
            .as_ref()
            .map(|nodes| format!(" {}", hostlist::compress(nodes.iter())))
            .unwrap_or_default();
        lines.push(format!("{}{}{nodes}", "  ".repeat(depth), switch.name));
        for below in all
            .iter()
            .filter(|other| switch.switches.contains(&other.name))
        {
            if depth < all.len() {
                add(below, depth + 1, all, lines);
            }
        }
    }
    let mut lines = Vec::new();
    let tops = switches.iter().filter(|switch| {
        !switches
            .iter()
            .any(|other| other.switches.contains(&switch.name))
    });
    tops.for_each(|switch| add(switch, 0, switches, &mut lines));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_shown_below_what_they_hang_on() {
        let switch = |name: &str, nodes: Option<&str>, below: &[&str]| Switch {
            name: name.into(),
            nodes: nodes.map(|list| gmodel::hostlist::Hostlist::parse(list).unwrap()),
            switches: below.iter().map(|name| (*name).to_owned()).collect(),
        };
        let switches = [
            switch("leaf1", Some("gpu[01-08]"), &[]),
            switch("leaf2", Some("gpu[09-16]"), &[]),
            switch("spine", None, &["leaf1", "leaf2"]),
        ];
        assert_eq!(
            tree(&switches),
            ["spine", "  leaf1 gpu[01-08]", "  leaf2 gpu[09-16]"]
        );
    }
}
