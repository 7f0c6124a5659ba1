//! Whether a machine is the node it says: the certificate can be copied, and so can the spool.
//!
//! The same life (boot and spool) is the same machine. Another life is a machine that was booted, or a copy of one. A copy must not
//! take the place of a machine on which jobs go on, for they would run twice. So another life is let in when nothing of the first
//! one goes on any more: its runs ended or were written off (after `node_timeout_secs`, and by the fence program where there is one);
//! or the first machine itself closed the connection, as it does at a boot, and did not come back for [`RETURN`]. Never while the first
//! one speaks, nor after both were heard until an operator has said which one the node is.

use gcore::ctl::{NodeReport, State, has_open_runs};
use gcore::ctl::{SILENT_LIFE, TWO_MACHINES};
use gmodel::config::ClusterConfig;
use gmodel::node::Link;
use gmodel::{NodeId, NodeLife};
use gwire::frame::FrameError;
use gwire::node_protocol::HEARTBEAT_SECS;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A daemon that was started anew on a machine that was not booted is back well within this.
const RETURN: Duration = Duration::from_secs(10);
/// One that has said something within this speaks.
const SPEAKS: Duration = Duration::from_secs(2 * HEARTBEAT_SECS);

/// How the last connection of each node ended, as far as this process saw it.
#[derive(Debug, Default)]
pub struct NodeClaims {
    ends: Mutex<BTreeMap<NodeId, EndedLink>>,
}

#[derive(Clone, Debug)]
pub struct EndedLink {
    life: NodeLife,
    from: SocketAddr,
    at: Instant,
    /// By the machine itself; otherwise it fell silent.
    closed: bool,
}

/// The node's connection that is there.
#[derive(Clone, Debug)]
pub struct ConnectedMachine {
    pub life: NodeLife,
    pub from: SocketAddr,
    pub silent: Duration,
}

/// A machine that is not let in, and what the core is to know of it.
#[derive(Debug)]
pub struct ClaimRefusal {
    pub text: String,
    pub report: Option<NodeReport>,
}

fn claim(text: String, owner: &str) -> ClaimRefusal {
    ClaimRefusal {
        report: Some(NodeReport::Claimed {
            owner: owner.into(),
            text: text.clone(),
        }),
        text,
    }
}

fn later(text: String) -> ClaimRefusal {
    ClaimRefusal { text, report: None }
}

impl EndedLink {
    pub fn now(life: NodeLife, from: SocketAddr, closed: bool) -> Self {
        Self {
            life,
            from,
            at: Instant::now(),
            closed,
        }
    }
}

/// Whether an error says that the other machine's kernel ended the connection, and not that nothing is heard of it.
pub fn is_closed(error: &FrameError) -> bool {
    match error {
        FrameError::Io(e) => matches!(
            e.kind(),
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
        ),
        FrameError::Cut { .. } => true,
        _ => false,
    }
}

impl NodeClaims {
    pub fn ended(&self, node: NodeId, end: EndedLink) {
        self.ends
            .lock()
            .expect("no panic while held")
            .insert(node, end);
    }

    /// # Errors
    /// The machine may not be the node now.
    pub fn judge(
        &self,
        state: &State,
        id: NodeId,
        life: &NodeLife,
        from: SocketAddr,
        connected: Option<ConnectedMachine>,
    ) -> Result<(), ClaimRefusal> {
        let Some(node) = state.nodes.get(id) else {
            return Ok(());
        };
        let known = connected
            .as_ref()
            .map_or(&*node.life, |connected| &connected.life);
        if *known == NodeLife::default() || known == life {
            return Ok(());
        }
        // With `lost_node = "wait"` they stay open, and their time is over all the same.
        let is_given_up = node.link == Link::Down && !state.config.fence_program;
        let claim = Claim {
            name: &node.name,
            from,
            other: if known.boot == life.boot {
                "spool"
            } else {
                "boot"
            },
            has_runs: has_open_runs(state, id) && !is_given_up,
            config: &state.config,
        };
        if let Some(first) = connected {
            return Err(claim.beside(&first));
        }
        if node.drains.iter().any(|mark| mark.owner == TWO_MACHINES) {
            let name = &node.name;
            return Err(later(format!(
                "two machines said they are {name}, and this one at {from} is not the one whose jobs the controller knows. gadm node resume {name} says that the other one is gone for good"
            )));
        }
        let last = self
            .ends
            .lock()
            .expect("no panic while held")
            .get(&id)
            .filter(|last| last.life == *known)
            .cloned();
        let is_back = |last: &EndedLink| {
            last.closed && (known.boot == life.boot || last.at.elapsed() >= RETURN)
        };
        if !claim.has_runs || last.as_ref().is_some_and(is_back) {
            return Ok(());
        }
        Err(claim.after(last))
    }
}

/// A machine under another life than the one that the controller knows of the node.
struct Claim<'a> {
    name: &'a str,
    from: SocketAddr,
    /// Which of its ids is another.
    other: &'static str,
    /// Whether runs of the first machine may still go on.
    has_runs: bool,
    config: &'a ClusterConfig,
}

impl Claim<'_> {
    /// When the machine is let in.
    fn rule(&self) -> String {
        let fenced = if self.config.fence_program {
            ", and fence_program has powered it off"
        } else {
            ""
        };
        format!(
            "It is let in when the first one has been silent for {} s{fenced}, or at once by gadm node down {}",
            self.config.node_timeout_secs, self.name
        )
    }

    /// The refusal while the first machine is connected.
    fn beside(&self, first: &ConnectedMachine) -> ClaimRefusal {
        let Self {
            name, from, other, ..
        } = self;
        let (at, secs) = (first.from, first.silent.as_secs());
        if first.silent < SPEAKS {
            return claim(
                format!(
                    "two machines say they are {name}: one at {at}, heard {secs} s ago, and one at {from} with another {other} id. \
                     Neither gets new work. Stop the copy, or join it under a name of its own (gadm token node); then gadm node resume {name}"
                ),
                TWO_MACHINES,
            );
        }
        let silent = format!(
            "{name} at {at} has said nothing for {secs} s, and a machine at {from} with another {other} id says it is {name}. {}",
            self.rule()
        );
        match self.has_runs {
            true => claim(silent, SILENT_LIFE),
            false => later(silent),
        }
    }

    /// The refusal after the first machine's connection ended, with runs that may go on.
    fn after(&self, last: Option<EndedLink>) -> ClaimRefusal {
        let Self {
            name, from, other, ..
        } = self;
        let where_from = match last {
            Some(last) if last.closed => {
                return later(format!(
                    "{name} was connected from {} until {} s ago, under another {other} id. If this machine at {from} is the same one after a boot, it is let in {} s after that",
                    last.from,
                    last.at.elapsed().as_secs(),
                    RETURN.as_secs()
                ));
            }
            Some(last) => format!("last heard from {}", last.from),
            None => "of which nothing was heard since this controller started".into(),
        };
        let text = format!(
            "{name}, {where_from}, has jobs, and a machine at {from} with another {other} id says it is {name}. {}",
            self.rule()
        );
        claim(text, SILENT_LIFE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcore::ctl::Node;
    use gcore::ctl::state::{Member, Run};
    use gmodel::node::{HoldMark, Role};
    use gmodel::{JobId, RunId, Timestamp};
    use std::sync::Arc;

    const NODE: NodeId = NodeId(1);

    fn life(boot: &str, spool: &str) -> NodeLife {
        NodeLife {
            boot: boot.into(),
            spool: spool.into(),
        }
    }

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    /// node1 of life `a`, with or without a run.
    fn state(busy: bool) -> State {
        let mut state = State::default();
        let mut node = Node {
            id: NODE,
            name: "node1".into(),
            role: Role::Compute,
            life: Arc::new(life("a", "s")),
            ..Node::default()
        };
        if busy {
            let run = RunId::new(JobId(1), 1);
            let members = vec![Member::new(NODE, Arc::new(life("a", "s")))];
            state.runs.insert(
                run,
                Run::placed(run, Vec::new(), members, None, Timestamp(0)),
            );
            node.runs.insert(run);
        }
        state.nodes.insert(NODE, node);
        state
    }

    fn connected(silent_secs: u64) -> Option<ConnectedMachine> {
        Some(ConnectedMachine {
            life: life("a", "s"),
            from: at(1),
            silent: Duration::from_secs(silent_secs),
        })
    }

    fn owner(refused: ClaimRefusal) -> String {
        match refused.report {
            Some(NodeReport::Claimed { owner, text }) => {
                assert!(
                    text.contains("10.0.0.1:2") && text == refused.text,
                    "{text}"
                );
                owner
            }
            None => "later".into(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_same_life_is_let_in_and_another_one_only_when_nothing_of_the_first_goes_on() {
        let claims = NodeClaims::default();
        let judge = |state: &State, life: &NodeLife, connected| {
            claims
                .judge(state, NODE, life, at(2), connected)
                .map_err(owner)
        };
        let (same, copy, new_disk) = (life("a", "s"), life("b", "s"), life("a", "t"));
        for busy in [false, true] {
            assert_eq!(judge(&state(busy), &same, connected(0)), Ok(()));
            assert_eq!(
                judge(&state(busy), &copy, connected(1)),
                Err(TWO_MACHINES.into()),
                "the first one speaks"
            );
        }
        // It stands still, and its jobs go on.
        assert_eq!(
            judge(&state(true), &copy, connected(11)),
            Err(SILENT_LIFE.into())
        );
        assert_eq!(
            judge(&state(false), &copy, connected(11)),
            Err("later".into())
        );
        // After a start of the controller nothing is known of how it went.
        assert_eq!(judge(&state(true), &copy, None), Err(SILENT_LIFE.into()));
        assert_eq!(
            judge(&state(false), &copy, None),
            Ok(()),
            "no job can run twice"
        );
        let mut down = state(true);
        down.nodes.get_mut(NODE).unwrap().link = Link::Down;
        assert_eq!(
            judge(&down, &copy, None),
            Ok(()),
            "silent for node_timeout_secs, and nothing fences it"
        );
        Arc::make_mut(&mut down.config).fence_program = true;
        assert_eq!(
            judge(&down, &copy, None),
            Err(SILENT_LIFE.into()),
            "not known to be off"
        );
        claims.ended(NODE, EndedLink::now(same.clone(), at(1), false));
        assert_eq!(judge(&state(true), &copy, None), Err(SILENT_LIFE.into()));
        // The machine closed the connection itself: a daemon that starts again is back within 10 s, and a boot takes longer.
        claims.ended(NODE, EndedLink::now(same.clone(), at(1), true));
        assert_eq!(judge(&state(true), &copy, None), Err("later".into()));
        assert_eq!(
            judge(&state(true), &new_disk, None),
            Ok(()),
            "the same boot: the same machine without its spool"
        );
        let long_ago = Instant::now().checked_sub(RETURN).unwrap();
        claims.ended(
            NODE,
            EndedLink {
                at: long_ago,
                ..EndedLink::now(same.clone(), at(1), true)
            },
        );
        assert_eq!(judge(&state(true), &copy, None), Ok(()));
        // Both were heard: only an operator decides.
        let mut contested = state(false);
        let mark = HoldMark {
            owner: TWO_MACHINES.into(),
            reason: String::new(),
            since: Timestamp(0),
        };
        contested.nodes.get_mut(NODE).unwrap().drains.push(mark);
        assert_eq!(judge(&contested, &copy, None), Err("later".into()));
        assert_eq!(judge(&contested, &same, None), Ok(()));
    }
}
