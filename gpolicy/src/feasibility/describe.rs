//! A demand in words. Texts that a long queue shares are the same in every pass, so that it does not change with each start.

use crate::feasibility::demand::{Demand, GpuDemand, MemDemand};
use crate::limits::count;
use gmodel::gpu_request::GpuAmount;

/// What is wrong with a GPU, in its node's words, under the number that people call it by.
pub fn fault(gpu: &gmodel::node::GpuEntry) -> String {
    let fault = match gpu.present {
        false => "is missing",
        true if gpu.info.divided && gpu.info.fault.is_empty() => "is cut by MIG",
        true => &gpu.info.fault,
    };
    format!("gpu{} {fault}", gpu.info.index)
}

/// The memory that each GPU must have, where the request says so.
pub fn of_size(gpus: &GpuDemand) -> String {
    match gpus.min_memory_mib {
        0 => String::new(),
        mib => format!(" with {}", gmodel::size::rough_size(mib << 20)),
    }
}

pub fn describe(demand: &Demand) -> String {
    let Some(first) = demand.nodes.first() else {
        return "nothing".into();
    };
    let (gpus, cpus) = (first.gpus.count(), first.cpus);
    let linked = if first.is_linked() {
        " that NVLink joins"
    } else {
        ""
    };
    let gpus = match &first.gpus.gpu_type {
        _ if gpus == 0 => None,
        kind if let GpuAmount::Share { milli } = first.gpus.amount => {
            let kind = kind.as_deref().unwrap_or("GPU");
            Some(format!(
                "{} of one {kind}",
                gmodel::gpu_amounts::milli_text(u64::from(milli))
            ))
        }
        kind if let GpuAmount::Mig { profile, .. } = &first.gpus.amount => {
            let of = kind
                .as_deref()
                .map_or(String::new(), |kind| format!(" of {kind}"));
            Some(format!(
                "{} {profile}{of}{linked}",
                count(gpus.into(), "slice")
            ))
        }
        None => Some(format!("{}{linked}", count(gpus.into(), "GPU"))),
        Some(kind) => Some(format!("{gpus} {kind}{linked}")),
    };
    let gpus = gpus.map(|gpus| format!("{gpus}{}", of_size(&first.gpus)));
    let mem = match first.mem {
        MemDemand::Bytes(bytes) if bytes > 0 => {
            Some(format!("{} of memory", gmodel::size::rough_size(bytes)))
        }
        _ => None,
    };
    let mut parts: Vec<String> = gpus
        .into_iter()
        .chain([count(cpus.into(), "CPU")])
        .chain(mem)
        .collect();
    let last = parts.pop().expect("CPUs are always named");
    let all = if parts.is_empty() {
        last
    } else {
        format!("{} and {last}", parts.join(", "))
    };
    let whole = if first.exclusive {
        " with nothing else on it"
    } else {
        ""
    };
    match demand.nodes.len() {
        1 => format!("{all} on one node{whole}"),
        n => format!("{all} on each of {n} nodes{whole}"),
    }
}
