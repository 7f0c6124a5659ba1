//! One node in full: what it has, what holds it, what is wrong with it. Keys are those of `scontrol show node`
//! where Slurm has them.

use crate::node_column::{NodeColumn, reason};
use gcli::local_time::TimeFormat;
use gcli::printable::printable;
use gmodel::Instant;
use gwire::api::{GpuRow, NodeRow};
use std::fmt::Write;

/// The record, several lines and a blank one.
pub(crate) fn text(node: &NodeRow, times: &TimeFormat) -> String {
    let of = |column: NodeColumn| column.of_node(node, times);
    let at = |instant: Option<Instant>| instant.map_or("Unknown".to_owned(), |at| times.print(at.0));
    let mut lines = vec![
        format!("NodeName={} State={} Role={}", node.name, node.state, node.role),
        format!("Partitions={}", node.partitions.join(",")),
        format!("CPUAlloc={} CPUTot={}", node.cpus_alloc, node.cpus),
        format!("RealMemory={} AllocMem={}", of(NodeColumn::Memory), of(NodeColumn::MemoryAllocated)),
        format!("AvailableFeatures={}", of(NodeColumn::Features)),
        format!("Gres={} GresUsed={}", of(NodeColumn::Gres), of(NodeColumn::GresUsed)),
        format!("OS={} Driver={} Version={}", or_unknown(&node.os), or_unknown(&node.driver), or_unknown(&node.version)),
        format!("Isolation={} Resources={}", or_unknown(&node.isolation), if node.declared { "declared" } else { "found" }),
        format!("BootTime={} LastSeen={}", at(node.boot_time), at(node.last_seen)),
    ];
    if !node.no_mps.is_empty() {
        lines.push(format!("NoMPS={}", node.no_mps));
    }
    if reason(node) != "none" {
        lines.push(format!("Reason={}", reason(node)));
    }
    for mark in &node.drains {
        lines.push(format!("Drain={} since {}: {}", mark.owner, times.print(mark.since.0), mark.reason));
    }
    lines.extend(node.strikes.iter().map(|strike| format!("Strike={strike}")));
    if !node.runs.is_empty() {
        lines.push(format!("Runs={}", node.runs.join(",")));
    }
    lines.extend(node.gpus.iter().map(gpu));
    let mut text = String::new();
    for (at, line) in lines.iter().enumerate() {
        let _ = writeln!(text, "{}{}", if at == 0 { "" } else { "   " }, printable(line));
    }
    text.push('\n');
    text
}

fn gpu(gpu: &GpuRow) -> String {
    let mut line = format!(
        "GPU={} Type={} Index={} Minor={} UUID={} Memory={}M",
        gpu.slot, gpu.gpu_type, gpu.index, gpu.minor, gpu.uuid, gpu.memory_mib
    );
    let _ = write!(line, " Jobs={}", if gpu.jobs.is_empty() { "none".to_owned() } else { gpu.jobs.join(",") });
    if !gpu.profile.is_empty() {
        let _ = write!(line, " Slice={} of={}", gpu.profile, gpu.gpu);
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

fn or_unknown(text: &str) -> &str {
    if text.is_empty() { "unknown" } else { text }
}
