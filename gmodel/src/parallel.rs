//! How the ranks of a step find each other: the variables that their framework reads, and the address where they meet.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What a step says of its ranks, from grun to the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ParallelSpec {
    pub rendezvous: Rendezvous,
    /// `HOST:PORT` where they meet. The first node of the step chooses it, whatever the order says; empty: not chosen yet, or none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// None: as the site has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mpi: Option<MpiType>,
    /// Which ranks share a node, as [`process_mapping`] says it; for `pmi2` and `pmix`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub process_mapping: String,
    /// Job and number of the step in the first component, of a step over several: what MPI knows it by on all nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub known_as: Option<(u64, u32)>,
}

impl ParallelSpec {
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// For which framework ranks have variables beside `SLURM_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rendezvous {
    #[default]
    None,
    /// `MASTER_ADDR`, `RANK` and the like, which PyTorch and most others read.
    Torch,
    /// `JAX_COORDINATOR_ADDRESS`; JAX reads the rest from `SLURM_*`.
    Jax,
}

/// Names the [`Rendezvous`] of a job and its steps where the command line does not.
pub const RENDEZVOUS_VARIABLE: &str = "GSUB_RENDEZVOUS";

impl Rendezvous {
    /// # Errors
    /// The words that there are.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "torch" => Ok(Self::Torch),
            "jax" => Ok(Self::Jax),
            _ => Err(format!(
                "{text:?} is not torch (MASTER_ADDR, RANK and the like), jax (JAX_COORDINATOR_ADDRESS) or none"
            )),
        }
    }
}

/// What the ranks of an MPI program are started with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MpiType {
    /// Nothing: they have `SLURM_*`, or mpirun starts them.
    #[default]
    None,
    /// PMI-1 and PMI-2, spoken by the job's supervisors: MPICH and its kin.
    Pmi2,
    /// PMIx, by the libpmix of each node: for Open MPI.
    Pmix,
}

impl MpiType {
    pub const WORDS: [(&'static str, Self); 3] = [
        ("none", Self::None),
        ("pmi2", Self::Pmi2),
        ("pmix", Self::Pmix),
    ];

    /// # Errors
    /// The words that there are.
    pub fn parse(text: &str) -> Result<Self, String> {
        let found = Self::WORDS.iter().find(|(word, _)| *word == text);
        found.map(|(_, known)| *known).ok_or_else(|| {
            format!(
                "{text:?} is not offered. There is pmi2, for MPICH and its kin, pmix, for Open MPI, and none: mpirun in the script \
                 starts other libraries, or ranks join by SLURM_PROCID and MASTER_ADDR"
            )
        })
    }
}

/// Most bytes of keys and values that the ranks of a step put together. A rank of MPICH puts some 200.
pub const MAX_KEY_SPACE_BYTES: usize = 64 << 20;
/// Of a piece of them, on its way from node to node.
pub const MAX_EXCHANGE_PIECE_BYTES: usize = 60 << 10;
/// Of a mapping that is read.
const MAX_RANKS: u32 = 1 << 20;
/// Longest value of PMI.
pub const MAX_MAPPING_BYTES: usize = 1024;

/// `(vector,(0,2,4))`: beginning with node 0, 2 nodes have the next 4 ranks each. Empty where that takes more than there is room for;
/// MPICH then compares the names of the machines.
pub fn process_mapping<'a>(
    ranks_of_nodes: impl Iterator<Item = &'a [u32]>,
    max_bytes: usize,
) -> String {
    let mut nodes: Vec<(u32, u32)> = (0..)
        .zip(ranks_of_nodes)
        .flat_map(|(node, ranks)| ranks.iter().map(move |rank| (*rank, node)))
        .collect();
    nodes.sort_unstable();
    // First node, nodes, ranks on each.
    let mut blocks: Vec<(u32, u32, u32)> = Vec::new();
    for ranks in nodes.chunk_by(|(_, one), (_, other)| one == other) {
        let (node, count) = (ranks[0].1, ranks.len() as u32);
        match blocks.last_mut() {
            Some((first, many, each)) if *first + *many == node && *each == count => *many += 1,
            _ => blocks.push((node, 1, count)),
        }
    }
    let mut text = "(vector".to_owned();
    for (first, many, each) in blocks {
        text.push_str(&format!(",({first},{many},{each})"));
        if text.len() >= max_bytes {
            return String::new();
        }
    }
    text + ")"
}

/// The ranks of each of so many nodes, as [`process_mapping`] said them; None: it did not.
pub fn ranks_of_mapping(mapping: &str, nodes: usize) -> Option<Vec<Vec<u32>>> {
    let blocks = mapping.strip_prefix("(vector,(")?.strip_suffix("))")?;
    let mut ranks = vec![Vec::new(); nodes];
    let mut next: u32 = 0;
    for block in blocks.split("),(") {
        let numbers: Result<Vec<u32>, _> = block.split(',').map(str::parse).collect();
        let [first, many, each] = numbers.ok()?[..] else {
            return None;
        };
        let (first, many) = (first as usize, many as usize);
        for node in ranks.get_mut(first..first.checked_add(many)?)? {
            let behind = next.checked_add(each).filter(|end| *end <= MAX_RANKS)?;
            node.extend(next..behind);
            next = behind;
        }
    }
    Some(ranks)
}

/// Where the process with rank 0 of JAX listens, whole and its port alone.
pub const COORDINATOR_ADDRESS: &str = "JAX_COORDINATOR_ADDRESS";
pub const COORDINATOR_PORT: &str = "JAX_COORDINATOR_PORT";

/// The variables of an environment that a job or a step gave for its ranks. Others of these names are its user's own, and stay.
/// Each is known by another variable that only a node sets.
pub fn given_names<'a>(variable: impl Fn(&str) -> Option<&'a str>) -> Vec<&'static str> {
    let address = variable("GSUB_MASTER_ADDR").zip(variable("GSUB_MASTER_PORT"));
    let of_job = [
        ("MASTER_ADDR", address.map(|(host, _)| host.to_owned())),
        ("MASTER_PORT", address.map(|(_, port)| port.to_owned())),
        (
            COORDINATOR_ADDRESS,
            address.map(|(host, port)| match host.contains(':') {
                true => format!("[{host}]:{port}"),
                false => format!("{host}:{port}"),
            }),
        ),
        (COORDINATOR_PORT, address.map(|(_, port)| port.to_owned())),
    ];
    // A batch script has no step, so that its own arithmetic is not taken for ours.
    let of_step = |name: &str| {
        variable("GSUB_STEP_ID")?;
        variable(name).map(str::to_owned)
    };
    let neighbours = of_step("GSUB_GTIDS").map(|ranks| ranks.split(',').count().to_string());
    let of_task = [
        ("RANK", of_step("GSUB_PROCID")),
        ("WORLD_SIZE", of_step("GSUB_NTASKS")),
        ("LOCAL_RANK", of_step("GSUB_LOCALID")),
        ("LOCAL_WORLD_SIZE", neighbours),
        ("NODE_RANK", of_step("GSUB_NODEID")),
    ];
    of_job
        .into_iter()
        .chain(of_task)
        .filter(|(name, given)| given.is_some() && variable(name) == given.as_deref())
        .map(|(name, _)| name)
        .collect()
}

/// Ports of a node from which jobs get one to meet at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

/// Below the ports that systems give to outgoing connections, and apart from the fixed ports of known services.
impl Default for PortRange {
    fn default() -> Self {
        Self {
            first: 28_100,
            last: 29_099,
        }
    }
}

impl PortRange {
    /// `28100-29099`
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not FIRST-LAST, two ports from 1024 to 65535");
        let (first, last) = text.split_once('-').ok_or_else(bad)?;
        let port = |word: &str| word.parse::<u16>().map_err(|_| bad());
        let range = Self {
            first: port(first)?,
            last: port(last)?,
        };
        match range.first >= 1024 && range.first <= range.last {
            true => Ok(range),
            false => Err(bad()),
        }
    }

    /// All of them once, beginning at a place that the number chooses.
    pub fn rotated(self, number: u64) -> impl Iterator<Item = u16> {
        let count = u64::from(self.last - self.first) + 1;
        let from = number % count;
        (0..count).map(move |at| self.first + ((from + at) % count) as u16)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl From<PortRange> for String {
    fn from(range: PortRange) -> Self {
        range.to_string()
    }
}

impl TryFrom<String> for PortRange {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_ports_are_read_and_gone_through_once() {
        let range = PortRange::parse("2000-2002").unwrap();
        assert_eq!(range.to_string(), "2000-2002");
        let ports: Vec<u16> = range.rotated(7).collect();
        assert_eq!(ports, [2001, 2002, 2000]);
        let whole = PortRange::parse("1024-65535").unwrap();
        assert_eq!(whole.rotated(u64::MAX).count(), 64_512);
        for bad in ["", "2000", "80-2000", "3000-2000", "2000-70000", "a-b"] {
            assert!(PortRange::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_a_user_set_is_told_from_what_a_job_gave() {
        let given = |lines: &[(&str, &'static str)]| {
            given_names(|name| {
                let mut found = lines.iter().filter(|(known, _)| *known == name);
                found.next().map(|(_, value)| *value)
            })
        };
        let of_job = [("GSUB_MASTER_ADDR", "n1"), ("GSUB_MASTER_PORT", "28100")];
        let own_port = [
            ("MASTER_ADDR", "n1"),
            ("MASTER_PORT", "6000"),
            ("WORLD_SIZE", "4"),
        ];
        assert_eq!(given(&[&of_job[..], &own_port].concat()), ["MASTER_ADDR"]);
        let script = [("GSUB_NTASKS", "4"), ("WORLD_SIZE", "4")];
        assert!(given(&script).is_empty(), "a script says it itself");
        let of_step = [
            ("GSUB_STEP_ID", "0"),
            ("GSUB_GTIDS", "2,3"),
            ("LOCAL_WORLD_SIZE", "2"),
        ];
        assert_eq!(
            given(&[&script[..], &of_step].concat()),
            ["WORLD_SIZE", "LOCAL_WORLD_SIZE"]
        );
        let v6 = [
            ("GSUB_MASTER_ADDR", "fe80::1"),
            ("GSUB_MASTER_PORT", "1"),
            (COORDINATOR_ADDRESS, "[fe80::1]:1"),
        ];
        assert_eq!(given(&v6), [COORDINATOR_ADDRESS]);
    }

    #[test]
    fn a_mapping_says_which_ranks_share_a_node() {
        let of = |nodes: &[&[u32]]| {
            let mapping = process_mapping(nodes.iter().copied(), MAX_MAPPING_BYTES);
            if !mapping.is_empty() {
                assert_eq!(ranks_of_mapping(&mapping, nodes.len()).unwrap(), nodes);
            }
            mapping
        };
        assert_eq!(of(&[&[0, 1], &[2, 3]]), "(vector,(0,2,2))");
        assert_eq!(of(&[&[0, 1, 2], &[3]]), "(vector,(0,1,3),(1,1,1))");
        assert_eq!(of(&[&[0, 2], &[1, 3]]), "(vector,(0,2,1),(0,2,1))");
        let (even, odd): (Vec<u32>, Vec<u32>) = (0..1000).partition(|rank| rank % 2 == 0);
        assert_eq!(of(&[&even, &odd]), "", "too long for a value");
        let long = process_mapping([even.as_slice(), &odd].into_iter(), usize::MAX);
        assert_eq!(ranks_of_mapping(&long, 2), Some(vec![even, odd]));
        for wrong in [
            "",
            "(vector,(0,2))",
            "(vector,(0,3,1))",
            "(vector,(0,1,4000000000))",
        ] {
            assert_eq!(ranks_of_mapping(wrong, 2), None, "{wrong}");
        }
    }

    #[test]
    fn an_unknown_rendezvous_is_refused_with_those_there_are() {
        assert_eq!(Rendezvous::parse("jax"), Ok(Rendezvous::Jax));
        assert!(Rendezvous::parse("mpi").unwrap_err().contains("torch ("));
    }
}
