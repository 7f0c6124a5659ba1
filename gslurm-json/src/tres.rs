//! What is counted: CPUs, memory, energy, nodes and GPUs of each type there is.
//!
//! Numbers of the first are Slurm's own; GPUs have theirs by their order here, and programs are to go by names.

use gwire::api::NodeRow;
use std::collections::BTreeSet;

/// The first of what a site adds, as Slurm counts.
const FIRST_OF_GPUS: u32 = 1001;

pub struct CountedTres {
    pub kind: &'static str,
    pub name: String,
    pub id: u32,
}

/// What is counted on these nodes.
pub fn counted(nodes: &[NodeRow]) -> Vec<CountedTres> {
    let gpus = nodes.iter().flat_map(|node| &node.gpus);
    of_types(gpus.map(|gpu| gpu.gpu_type.as_str()).collect())
}

fn of_types(types: BTreeSet<&str>) -> Vec<CountedTres> {
    let always = [
        ("cpu", 1),
        ("mem", 2),
        ("energy", 3),
        ("node", 4),
        ("billing", 5),
    ];
    let gpus = ["gpu".to_owned()].into_iter().chain(
        types
            .into_iter()
            .filter(|kind| !kind.is_empty())
            .map(|kind| format!("gpu:{kind}")),
    );
    let always = always.into_iter().map(|(kind, id)| CountedTres {
        kind,
        name: String::new(),
        id,
    });
    always
        .chain((FIRST_OF_GPUS..).zip(gpus).map(|(id, name)| CountedTres {
            kind: "gres",
            name,
            id,
        }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_counted_together_and_by_type() {
        let rows = of_types(BTreeSet::from(["h100", "a100", ""]));
        let text: Vec<String> = rows
            .iter()
            .map(|row| format!("{}/{}={}", row.kind, row.name, row.id))
            .collect();
        assert_eq!(
            text.join(" "),
            "cpu/=1 mem/=2 energy/=3 node/=4 billing/=5 gres/gpu=1001 gres/gpu:a100=1002 gres/gpu:h100=1003"
        );
    }
}
