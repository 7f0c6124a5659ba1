//! Values that records and JSON print of a partition alike.

use gmodel::size::exact_size;
use gwire::api::NodeRow;

pub fn whole_gpus(nodes: &[&NodeRow]) -> usize {
    let gpus = nodes.iter().flat_map(|node| &node.gpus);
    gpus.filter(|gpu| gpu.present && gpu.profile.is_empty())
        .count()
}

/// Its state as scontrol spells it.
pub fn state_word(state: &str) -> String {
    if state == "inact" {
        "INACTIVE".to_owned()
    } else {
        state.to_uppercase()
    }
}

/// `cpu=64,mem=512G,node=2,gres/gpu=8`: all that its nodes have.
pub fn tres(nodes: &[&NodeRow]) -> String {
    let mem: u64 = nodes.iter().map(|node| node.mem_bytes).sum();
    let gpus = match whole_gpus(nodes) {
        0 => String::new(),
        gpus => format!(",gres/gpu={gpus}"),
    };
    format!(
        "cpu={},mem={},node={}{gpus}",
        nodes.iter().map(|node| node.cpus).sum::<u32>(),
        exact_size(mem),
        nodes.len()
    )
}
