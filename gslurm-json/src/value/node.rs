//! Values that columns, records and JSON print of a node alike: its GPUs, its TRES, why it takes no work.

use gmodel::Instant;
use gmodel::size::exact_size;
use gwire::api::{GpuRow, NodeRow};

/// Why a node takes no work; `none` when it does.
pub fn reason(node: &NodeRow) -> String {
    let mut reasons: Vec<&str> = node
        .drains
        .iter()
        .map(|mark| mark.reason.as_str())
        .collect();
    if !node.unfit.is_empty() {
        reasons.push(&node.unfit);
    }
    if !node.lost.is_empty() {
        reasons.push(&node.lost);
    }
    reasons.extend(node.hung.iter().map(String::as_str));
    if reasons.is_empty() && base(&node.state) == "DOWN" {
        reasons.push("Not responding");
    }
    if reasons.is_empty() {
        "none".to_owned()
    } else {
        reasons.join("; ")
    }
}

/// `gpu:h100:8` for `h100:8`; `(null)` for none.
pub fn gres_text(summary: &str) -> String {
    let parts: Vec<String> = summary
        .split(',')
        .filter(|part| !part.is_empty())
        .map(|part| format!("gpu:{part}"))
        .collect();
    if parts.is_empty() {
        "(null)".to_owned()
    } else {
        parts.join(",")
    }
}

pub fn gres_used(node: &NodeRow) -> String {
    let used: Vec<String> = gpus_by_type(node)
        .iter()
        .map(|(kind, used, _)| format!("gpu:{kind}:{used}"))
        .collect();
    if used.is_empty() {
        "gpu:0".to_owned()
    } else {
        used.join(",")
    }
}

/// The owner of the first drain.
pub fn drainer(node: &NodeRow) -> Option<&str> {
    let mark = node.drains.first()?;
    Some(
        mark.owner
            .split_once(':')
            .map_or(mark.owner.as_str(), |(_, name)| name),
    )
}

/// Types of a node's GPUs, and kinds of its slices, with how many are held and how many there are.
pub fn gpus_by_type(node: &NodeRow) -> Vec<(String, usize, usize)> {
    let mut types: Vec<(String, usize, usize)> = Vec::new();
    for gpu in node.gpus.iter().filter(|gpu| gpu.present && !gpu.divided) {
        let kind = if gpu.profile.is_empty() {
            gpu.gpu_type.clone()
        } else {
            format!("{}:{}", gpu.gpu_type, gpu.profile)
        };
        let at = types
            .iter()
            .position(|(known, ..)| *known == kind)
            .unwrap_or_else(|| {
                types.push((kind, 0, 0));
                types.len() - 1
            });
        types[at].1 += usize::from(!gpu.jobs.is_empty());
        types[at].2 += 1;
    }
    types
}

/// `gpu:h100:8`, and what of it is held; empty of none.
pub fn gres(node: &NodeRow) -> [String; 2] {
    [gres_text(&node.gpu_summary), gres_used(node)].map(|text| match text.as_str() {
        "(null)" | "gpu:0" => String::new(),
        _ => text,
    })
}

/// All it has, and what of it is held, as TRES.
pub fn tres_of(node: &NodeRow) -> [String; 2] {
    [
        tres(node.cpus, node.mem_bytes, gpus(node, |_| true)),
        tres(
            node.cpus_alloc,
            node.mem_alloc_bytes,
            gpus(node, |gpu| !gpu.jobs.is_empty()),
        ),
    ]
}

/// Why it takes no work, who said so and since when; empty where it does.
pub fn why_out(node: &NodeRow) -> (String, String, Option<Instant>) {
    let text = Some(reason(node)).filter(|reason| reason != "none");
    let by = drainer(node).unwrap_or_default().to_owned();
    let since = node.drains.first().map(|mark| mark.since);
    (text.unwrap_or_default(), by, since)
}

/// `cpu=64,mem=512G,billing=64,gres/gpu=8`; empty of nothing.
fn tres(cpus: u32, mem_bytes: u64, gpus: usize) -> String {
    let gpus = if gpus > 0 {
        format!(",gres/gpu={gpus}")
    } else {
        String::new()
    };
    match (cpus, mem_bytes, gpus.as_str()) {
        (0, 0, "") => String::new(),
        _ => format!(
            "cpu={cpus},mem={},billing={cpus}{gpus}",
            exact_size(mem_bytes)
        ),
    }
}

/// Its whole GPUs, and those that are cut.
fn gpus(node: &NodeRow, counts: impl Fn(&GpuRow) -> bool) -> usize {
    node.gpus
        .iter()
        .filter(|gpu| gpu.present && gpu.profile.is_empty() && counts(gpu))
        .count()
}

fn base(state: &str) -> &str {
    state.split('+').next().unwrap_or_default()
}
