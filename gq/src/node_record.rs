//! One node in full: what it has, what holds it, what is wrong with it. Keys are those of `scontrol show node`
//! where Slurm has them.

use crate::node_column::NodeColumn;
use gcli::local_time::TimeFormat;
use gcli::printable::printable;
use gmodel::Instant;
use gslurm_json::value::node::{reason, tres_of};
use gwire::api::{GpuRow, NodeRow};
use std::fmt::Write;

/// The record, several lines and a blank one.
pub fn text(node: &NodeRow, times: &TimeFormat) -> String {
    let mut lines = resources(node, times);
    lines.extend(certificate(node, times));
    lines.extend(places(node));
    lines.extend(faults(node, times));
    if !node.runs.is_empty() {
        lines.push(format!("Runs={}", node.runs.join(",")));
    }
    lines.extend(node.gpus.iter().map(gpu));
    lines.extend(ways(&node.gpus));
    let lines: Vec<_> = lines.iter().map(|line| printable(line)).collect();
    format!("{}\n\n", lines.join("\n   "))
}

/// What every node has: its state, what it offers and what is held of it.
fn resources(node: &NodeRow, times: &TimeFormat) -> Vec<String> {
    let of = |column: NodeColumn| column.of_node(node, times);
    let [all, held] = tres_of(node);
    let at =
        |instant: Option<Instant>| instant.map_or("Unknown".to_owned(), |at| times.print(at.0));
    vec![
        format!(
            "NodeName={} State={} Role={}",
            node.name, node.state, node.role
        ),
        format!("Partitions={}", node.partitions.join(",")),
        format!(
            "CPUAlloc={} CPUEfctv={} CPUTot={} CPULoad=N/A",
            node.cpus_alloc, node.cpus, node.cpus
        ),
        format!(
            "NodeAddr={} NodeHostName={}",
            node.shown_address(),
            node.name
        ),
        format!(
            "RealMemory={} AllocMem={} FreeMem=N/A",
            of(NodeColumn::Memory),
            of(NodeColumn::MemoryAllocated)
        ),
        format!("CfgTRES={all}"),
        format!("AllocTRES={held}"),
        format!(
            "AvailableFeatures={} ActiveFeatures={}",
            of(NodeColumn::Features),
            of(NodeColumn::ActiveFeatures)
        ),
        format!(
            "Gres={} GresUsed={}",
            of(NodeColumn::Gres),
            of(NodeColumn::GresUsed)
        ),
        format!(
            "OS={} Driver={} Version={}",
            or_unknown(&node.os),
            or_unknown(&node.driver),
            or_unknown(&node.version)
        ),
        format!(
            "Isolation={} Resources={}",
            or_unknown(&node.isolation),
            if node.declared { "declared" } else { "found" }
        ),
        format!(
            "BootTime={} LastSeen={}",
            at(node.boot_time),
            at(node.last_seen)
        ),
    ]
}

/// No line before the node has joined.
fn certificate(node: &NodeRow, times: &TimeFormat) -> Option<String> {
    let certificate = &node.certificate;
    let renewed = certificate.renewed.map(|at| {
        format!(
            " Renewed={} From={} Renewals={}",
            times.print(at.0),
            certificate.renewed_from,
            certificate.renewals
        )
    });
    let epoch = certificate.epoch;
    (epoch > 0 || renewed.is_some())
        .then(|| format!("CertificateJoin={epoch}{}", renewed.unwrap_or_default()))
}

fn places(node: &NodeRow) -> impl Iterator<Item = String> {
    let places = [
        ("Switches", &node.switches),
        ("NVLinkDomain", &node.nvlink_domain),
    ];
    places
        .into_iter()
        .filter(|(_, name)| !name.is_empty())
        .map(|(key, name)| format!("{key}={name}"))
}

/// What is wrong with it, and what it noticed.
fn faults(node: &NodeRow, times: &TimeFormat) -> Vec<String> {
    let mut lines = Vec::new();
    if !node.no_mps.is_empty() {
        lines.push(format!("NoMPS={}", node.no_mps));
    }
    if !node.left_out.is_empty() {
        lines.push(format!(
            "LeftOut={} (a node offers 16 kinds of GPUs and slices)",
            node.left_out.join(",")
        ));
    }
    if reason(node) != "none" {
        let by = node.drains.first().map(|mark| {
            format!(
                " [{}@{}]",
                NodeColumn::ReasonUser.of_node(node, times),
                times.print(mark.since.0)
            )
        });
        lines.push(format!("Reason={}{}", reason(node), by.unwrap_or_default()));
    }
    for mark in &node.drains {
        lines.push(format!(
            "Drain={} since {}: {}",
            mark.owner,
            times.print(mark.since.0),
            mark.reason
        ));
    }
    lines.extend(node.notes.iter().map(|note| format!("Note={note}")));
    lines.extend(node.strikes.iter().map(|strike| format!("Strike={strike}")));
    lines
}

fn gpu(gpu: &GpuRow) -> String {
    let mut line = format!(
        "GPU={} Type={} Index={} Minor={} UUID={} Memory={}M",
        gpu.slot, gpu.gpu_type, gpu.index, gpu.minor, gpu.uuid, gpu.memory_mib
    );
    let _ = write!(
        line,
        " Jobs={}",
        if gpu.jobs.is_empty() {
            "none".to_owned()
        } else {
            gpu.jobs.join(",")
        }
    );
    if !gpu.profile.is_empty() {
        let _ = write!(line, " Slice={} of={}", gpu.profile, gpu.gpu);
    }
    if let Some(rail) = gpu.rail {
        let _ = write!(line, " Rail={rail}");
    }
    if gpu.mps {
        line.push_str(" MPS=yes");
    }
    if gpu.divided {
        line.push_str(" Divided=yes");
    }
    if !gpu.present {
        line.push_str(" Missing=yes");
    }
    if !gpu.fault.is_empty() {
        let _ = write!(line, " Fault={}", gpu.fault);
    }
    line
}

/// How GPUs reach each other, as `nvidia-smi topo -m` shows it, by slot.
fn ways(gpus: &[GpuRow]) -> Vec<String> {
    let shown: Vec<&GpuRow> = gpus.iter().filter(|gpu| !gpu.links.is_empty()).collect();
    if shown.len() < 2 {
        return Vec::new();
    }
    let names = shown.iter().map(|gpu| format!("GPU{}", gpu.slot));
    let header: Vec<String> = std::iter::once("Links".to_owned())
        .chain(names)
        .chain(["NUMA".to_owned()])
        .collect();
    let row = |gpu: &&GpuRow| {
        let way = |other: &&GpuRow| match gpu.links.get(&other.slot) {
            _ if other.slot == gpu.slot => "X".to_owned(),
            Some(link) => link.to_string(),
            None => "?".to_owned(),
        };
        let numa = gpu.numa.map_or("?".to_owned(), |numa| numa.to_string());
        std::iter::once(format!("GPU{}", gpu.slot))
            .chain(shown.iter().map(way))
            .chain([numa])
            .collect()
    };
    let rows: Vec<Vec<String>> = std::iter::once(header)
        .chain(shown.iter().map(row))
        .collect();
    let text = |row: &Vec<String>| {
        row.iter()
            .map(|cell| format!("{cell:<6}"))
            .collect::<String>()
            .trim_end()
            .to_owned()
    };
    rows.iter().map(text).collect()
}

fn or_unknown(text: &str) -> &str {
    if text.is_empty() { "unknown" } else { text }
}
