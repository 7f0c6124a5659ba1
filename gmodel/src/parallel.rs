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
    fn an_unknown_rendezvous_is_refused_with_those_there_are() {
        assert_eq!(Rendezvous::parse("jax"), Ok(Rendezvous::Jax));
        assert!(Rendezvous::parse("mpi").unwrap_err().contains("torch ("));
    }
}
