//! Which nodes a listing shows: by name, state, partition and answer, as sinfo's options choose them. Source: sinfo(1).

use crate::node_column::{is_based_on, is_in_state, long_state};
use gcli::Failure;
use gcli::answer::list;
use gcli::slurm_words::Cause;
use gmodel::JobState;
use gmodel::hostlist::{self, Hostlist};
use gmodel::suggest::did_you_mean;
use gslurm_json::value::node::reason;
use gwire::api::{JobQuery, NodeRow};
use gwire::client::{Client, path_with_query};

/// Which nodes are listed; a field that is None or empty filters nothing.
pub(crate) struct NodeFilter {
    pub nodes: Option<Hostlist>,
    /// As [`states`] reads them.
    pub states: Option<Vec<Vec<StateWord>>>,
    /// Nodes with completing jobs, where `states` asks for them.
    pub completing: Vec<String>,
    pub partitions: Option<Vec<String>>,
    /// Only nodes that take no work.
    pub is_out: bool,
    /// Only nodes that answer, or only nodes that do not.
    pub answers: Option<bool>,
    /// As sinfo lists: a drained node without jobs is idle, too.
    pub as_sinfo: bool,
}

/// A state that a node is in, or is not in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateWord {
    is_in: bool,
    state: &'static str,
}

impl NodeFilter {
    /// Asks the controller which nodes have completing jobs, if `states` needs it.
    pub(crate) fn ask_completing(&mut self, client: &mut Client) -> Result<(), Failure> {
        #[derive(serde::Deserialize)]
        struct Job {
            nodelist: String,
        }
        if self
            .states
            .as_ref()
            .is_some_and(|states| states.iter().flatten().any(|word| word.state == COMPLETING))
        {
            let query = JobQuery {
                state: JobState::Completing.long().to_owned(),
                columns: "nodelist".to_owned(),
                ..JobQuery::default()
            };
            let jobs: Vec<Job> = list(client, &path_with_query("/v1/jobs", &query))?;
            self.completing = jobs
                .iter()
                .filter_map(|job| hostlist::expand(&job.nodelist, hostlist::MAX_HOSTS).ok())
                .flatten()
                .collect();
        }
        Ok(())
    }

    /// Whether the listing shows a node.
    pub(crate) fn takes(&self, node: &NodeRow) -> bool {
        let is_in = |state: &'static str| match state {
            "no_respond" => !answers(node),
            COMPLETING => self.completing.contains(&node.name),
            state => {
                is_in_state(&node.state, state) || self.as_sinfo && is_based_on(&node.state, state)
            }
        };
        let in_state = |states: &Vec<Vec<StateWord>>| {
            let mut choices = states.iter();
            choices.any(|all| all.iter().all(|word| is_in(word.state) == word.is_in))
        };
        self.nodes
            .as_ref()
            .is_none_or(|nodes| nodes.contains(&node.name))
            && self.states.as_ref().is_none_or(in_state)
            && self
                .partitions
                .as_ref()
                .is_none_or(|names| node.partitions.iter().any(|name| names.contains(name)))
            && (!self.is_out || reason(node) != "none")
            && self.answers.is_none_or(|wanted| wanted == answers(node))
    }
}

/// `idle,drain`, in any case; beginnings are enough. `idle&drain` or `idle+drain` is both at once, `!drain` or `~drain` not that.
pub(crate) fn states(text: &str) -> Result<Vec<Vec<StateWord>>, Failure> {
    let one = |word: &str| {
        let word = word.trim();
        let bare = word.trim_start_matches(['!', '~']);
        let is_in = (word.len() - bare.len()).is_multiple_of(2);
        state_named(bare).map(|state| StateWord { is_in, state })
    };
    let choices = text.to_lowercase();
    words(&choices)
        .map(|all| all.split(['&', '+']).map(one).collect())
        .collect()
}

/// The words of a list.
pub(crate) fn words(list: &str) -> impl Iterator<Item = &str> {
    list.split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
}

/// A state by its name or the beginning of it.
fn state_named(word: &str) -> Result<&'static str, Failure> {
    let known = || STATES.into_iter().chain(NEVER);
    let found = known().find(|state| *state == word).or_else(|| {
        let mut beginnings = known().filter(|_| !word.is_empty());
        beginnings.find(|state| state.starts_with(word))
    });
    match found {
        Some("comp") => Ok(COMPLETING),
        Some(state) => Ok(state),
        None => {
            let hint = did_you_mean(word, STATES);
            Err(Failure::usage(format_args!(
                "{word:?} is no state of a node.{hint} States are {}",
                STATES.join(", ")
            ))
            .because(Cause::Said(format!(
                "sinfo: error: Bad state string: \"{word}\""
            ))))
        }
    }
}

/// Where a beginning fits several, the first is meant, as in sinfo.
const STATES: [&str; 19] = [
    "unknown",
    "unk",
    "down",
    "idle",
    "allocated",
    "mixed",
    "drain",
    "drained",
    "draining",
    "drng",
    COMPLETING,
    "comp",
    "maint",
    "reserved",
    "resv",
    "alloc",
    "mix",
    "no_respond",
    "all",
];

/// Nodes that hold jobs which are ending.
const COMPLETING: &str = "completing";

/// States of Slurm's nodes that none is ever in here.
const NEVER: [&str; 24] = [
    "error",
    "future",
    "futr",
    "fail",
    "failing",
    "failg",
    "invalid_reg",
    "reboot",
    "planned",
    "plnd",
    "power_down",
    "powered_down",
    "powering_down",
    "powering_up",
    "pow_dn",
    "pow_up",
    "power_drain",
    "power_up",
    "reboot_requested",
    "reboot_issued",
    "boot",
    "blocked",
    "cloud",
    "dynamic",
];

/// sinfo's "responding".
fn answers(node: &NodeRow) -> bool {
    !node.state.contains("+NOT_RESPONDING")
        && !node.state.starts_with("DOWN")
        && long_state(&node.state) != "unknown"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_named_by_their_beginnings() {
        let named = |word| state_named(word).map_err(|failure| failure.exit);
        assert_eq!(
            [
                "idle",
                "comp",
                "completing",
                "mai",
                "al",
                "dr",
                "drained",
                "plnd",
                "unk"
            ]
            .map(named),
            [
                Ok("idle"),
                Ok("completing"),
                Ok("completing"),
                Ok("maint"),
                Ok("allocated"),
                Ok("drain"),
                Ok("drained"),
                Ok("plnd"),
                Ok("unk")
            ]
        );
        for wrong in ["nosuch", "npc", ""] {
            assert_eq!(named(wrong), Err(gcli::failure::USAGE), "{wrong}");
        }
    }

    #[test]
    fn states_are_joined_and_denied() {
        let chosen = |words: &str| {
            let filter = NodeFilter {
                nodes: None,
                states: Some(states(words).unwrap()),
                completing: Vec::new(),
                partitions: None,
                is_out: false,
                answers: None,
                as_sinfo: true,
            };
            let of_state = |state: &&&str| {
                let state = (**state).to_owned();
                filter.takes(&NodeRow {
                    state,
                    ..NodeRow::default()
                })
            };
            let all = ["IDLE", "IDLE+DRAIN", "DOWN", "DOWN+DRAIN", "ALLOCATED"];
            all.iter()
                .filter(of_state)
                .copied()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(chosen("idle+drain"), "IDLE+DRAIN");
        assert_eq!(chosen("down&~drain,alloc"), "DOWN ALLOCATED");
        assert_eq!(chosen("!drain"), "IDLE DOWN ALLOCATED");
        assert!(states("idle&").is_err());
    }
}
