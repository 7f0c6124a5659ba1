//! `gadm topology`: Slurm's `topology.conf` as our `topology.toml`, and the switches in force.

use gcli::table::stdout;
use gcli::{Failure, Outcome};
use gmodel::hostlist::{self, Hostlist};
use gmodel::policy::Switch;
use gmodel::suggest::did_you_mean;
use gwire::client::Client;
use serde_json::Value;
use std::io::{Read, Write};

/// What to do with the topology.
#[derive(clap::Subcommand)]
pub(crate) enum TopologyAct {
    /// Print Slurm's topology.conf as topology.toml: gadm topology import /etc/slurm/topology.conf > topology.toml
    Import {
        /// Slurm's file; - is stdin
        file: String,
    },
    /// Show the switches in force as a tree
    Show {
        /// One line of JSON
        #[arg(long)]
        json: bool,
    },
}

/// Reading a file needs no controller; showing does.
pub(crate) fn run(act: TopologyAct, client: impl FnOnce() -> Result<Client, Failure>) -> Outcome {
    match act {
        TopologyAct::Import { file } => {
            let mut text = String::new();
            let read = match file.as_str() {
                "-" => std::io::stdin().read_to_string(&mut text).map(|_| ()),
                path => std::fs::read_to_string(path).map(|read| text = read),
            };
            read.map_err(|error| Failure::new(format_args!("cannot read {file}: {error}")))?;
            let switches = read_conf(&text).map_err(|why| Failure::new(format_args!("{file}: {why}")))?;
            let mut out = stdout()?;
            out.write_all(toml(&switches).as_bytes())?;
            out.flush()?;
            Ok(0)
        }
        TopologyAct::Show { json } => show(&mut client()?, json),
    }
}

/// Reads `SwitchName=leaf1 Nodes=n[1-8]` and `SwitchName=spine Switches=leaf[1-2]` lines.
fn read_conf(text: &str) -> Result<Vec<Switch>, String> {
    let mut switches: Vec<Switch> = Vec::new();
    let joined = text.replace("\\\n", " ");
    for (at, line) in joined.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let wrong = |why: String| format!("line {}: {why}", at + 1);
        let mut switch = Switch::default();
        for word in line.split_whitespace() {
            let (key, value) = word.split_once('=').ok_or_else(|| wrong(format!("{word:?} is no KEY=VALUE")))?;
            match key.to_ascii_lowercase().as_str() {
                "switchname" => switch.name = value.to_owned(),
                "nodes" => switch.nodes = Some(Hostlist::parse(value).map_err(|error| wrong(error.to_string()))?),
                "switches" => {
                    let names = Hostlist::parse(value).map_err(|error| wrong(error.to_string()))?;
                    switch.switches = names.iter().map(str::to_owned).collect();
                }
                // Of the old tree plugin: nobody reads it there either.
                "linkspeed" => {}
                "blockname" => return Err(wrong("blocks are not offered, only trees of switches".to_owned())),
                other => {
                    let guess = did_you_mean(other, ["switchname", "nodes", "switches"]);
                    return Err(wrong(format!("unknown key {key:?}.{guess}")));
                }
            }
        }
        if switch.name.is_empty() {
            return Err(wrong("there is no SwitchName=".to_owned()));
        }
        if switch.nodes.is_none() && switch.switches.is_empty() {
            return Err(wrong(format!("switch {} has neither Nodes= nor Switches=", switch.name)));
        }
        switches.push(switch);
    }
    if switches.is_empty() {
        return Err("there is no SwitchName= line in it".to_owned());
    }
    Ok(switches)
}

fn toml(switches: &[Switch]) -> String {
    let mut text = String::from("# Which nodes are near each other. See gpuctld.toml(5).\n");
    for switch in switches {
        text.push_str(&format!("\n[switch.{}]\n", key(&switch.name)));
        if let Some(nodes) = &switch.nodes {
            text.push_str(&format!("nodes = \"{}\"\n", hostlist::compress(nodes.iter())));
        }
        if !switch.switches.is_empty() {
            let names: Vec<String> = switch.switches.iter().map(|name| format!("\"{name}\"")).collect();
            text.push_str(&format!("switches = [{}]\n", names.join(", ")));
        }
    }
    text
}

fn key(name: &str) -> String {
    let bare = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    if bare { name.to_owned() } else { format!("\"{name}\"") }
}

fn show(client: &mut Client, json: bool) -> Outcome {
    let config: Value = client.get("/v1/config")?;
    let topology = &config["cluster"]["scheduler"]["topology"];
    let mut out = stdout()?;
    if json {
        writeln!(out, "{}", serde_json::json!({"schema": 1, "switches": topology["switches"]}))?;
        out.flush()?;
        return Ok(0);
    }
    let read = serde_json::from_value(topology["switches"].clone());
    let switches: Vec<Switch> = read.map_err(|error| Failure::new(format_args!("the topology cannot be read: {error}")))?;
    if switches.is_empty() {
        writeln!(std::io::stderr(), "gadm: there is no topology.toml; all nodes count as equally near")?;
    }
    for line in tree(&switches) {
        writeln!(out, "{line}")?;
    }
    out.flush()?;
    Ok(0)
}

/// Each switch below the one it hangs on, with its nodes.
fn tree(switches: &[Switch]) -> Vec<String> {
    fn add(switch: &Switch, depth: usize, all: &[Switch], lines: &mut Vec<String>) {
        let nodes = switch.nodes.as_ref().map(|nodes| format!(" {}", hostlist::compress(nodes.iter()))).unwrap_or_default();
        lines.push(format!("{}{}{nodes}", "  ".repeat(depth), switch.name));
        for below in all.iter().filter(|other| switch.switches.contains(&other.name)) {
            if depth < all.len() {
                add(below, depth + 1, all, lines);
            }
        }
    }
    let mut lines = Vec::new();
    let tops = switches.iter().filter(|switch| !switches.iter().any(|other| other.switches.contains(&switch.name)));
    tops.for_each(|switch| add(switch, 0, switches, &mut lines));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurms_file_becomes_ours() {
        let conf = "# two leaves\nSwitchName=leaf1 Nodes=gpu[01-08] LinkSpeed=100\nSwitchName=leaf2 \\\n  Nodes=gpu[09-16]\nSwitchName=spine Switches=leaf[1-2]\n";
        let switches = read_conf(conf).unwrap();
        expect_test::expect![[r#"
            # Which nodes are near each other. See gpuctld.toml(5).

            [switch.leaf1]
            nodes = "gpu[01-08]"

            [switch.leaf2]
            nodes = "gpu[09-16]"

            [switch.spine]
            switches = ["leaf1", "leaf2"]
        "#]]
        .assert_eq(&toml(&switches));
        assert_eq!(tree(&switches), ["spine", "  leaf1 gpu[01-08]", "  leaf2 gpu[09-16]"]);
    }

    #[test]
    fn what_is_not_a_tree_of_switches_is_refused() {
        assert_eq!(read_conf("BlockName=b1 Nodes=n1").unwrap_err(), "line 1: blocks are not offered, only trees of switches");
        assert_eq!(read_conf("\nSwitchNam=a Nodes=n1").unwrap_err(), r#"line 2: unknown key "SwitchNam". Did you mean "switchname"?"#);
        assert_eq!(read_conf("SwitchName=a").unwrap_err(), "line 1: switch a has neither Nodes= nor Switches=");
        assert!(read_conf("# nothing\n").is_err());
    }
}
