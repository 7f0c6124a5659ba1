//! `gadm node`: take nodes out of the pool and back in.

use gcli::{Failure, Outcome, local_time};
use gmodel::Instant;
use gmodel::hostlist::Hostlist;
use gwire::api::{ChangeReply, NodeRequest};
use gwire::client::{Client, escape};

/// What to do to nodes.
#[derive(clap::Subcommand)]
pub enum NodeAct {
    /// Start nothing new on nodes; what runs there goes on
    Drain {
        #[command(flatten)]
        nodes: NodeNames,
        /// The reason, shown to users
        #[arg(long, short, value_name = "TEXT", required = true)]
        reason: String,
        /// What still runs there at this time writes its checkpoint and goes back to the queue: now+2hours, 18:00
        #[arg(long, value_name = "TIME")]
        deadline: Option<String>,
    },
    /// Lift a drain, and take back nodes that were declared down
    Resume {
        #[command(flatten)]
        nodes: NodeNames,
    },
    /// Set features of nodes, until gpud reports others or the next reload
    Features {
        #[command(flatten)]
        nodes: NodeNames,
        /// What they may have: ib,nvme. Empty for none
        #[arg(long, value_name = "LIST", required_unless_present_any = ["active", "reset"])]
        available: Option<String>,
        /// What of that jobs may ask for now; all of it if left out
        #[arg(long, value_name = "LIST")]
        active: Option<String>,
        /// They have what their gpud.toml says again
        #[arg(long, conflicts_with_all = ["available", "active"])]
        reset: bool,
    },
    /// Declare nodes down. The jobs of one that answers are stopped and leave it. A silent one counts as dead: its jobs are
    /// requeued or fail now, or when the site's fence program has powered it off
    Down {
        #[command(flatten)]
        nodes: NodeNames,
        /// Why
        #[arg(long, short, value_name = "TEXT", default_value = "")]
        reason: String,
        /// They are off for certain: do not call the fence program
        #[arg(long)]
        fenced: bool,
    },
    /// Make a node's certificates worthless, as when its key may be in other hands: the machine has to join again
    Revoke {
        #[command(flatten)]
        nodes: NodeNames,
    },
    /// Forget nodes that left the pool for good
    Remove {
        #[command(flatten)]
        nodes: NodeNames,
    },
}

/// Which nodes.
#[derive(clap::Args)]
pub struct NodeNames {
    /// Nodes: node7, node[1-3]
    #[arg(required = true, value_name = "NODE")]
    names: Vec<String>,
}

impl NodeNames {
    pub fn of(names: Vec<String>) -> Self {
        Self { names }
    }
}

pub fn run(client: &mut Client, act: NodeAct) -> Outcome {
    let mut by = None;
    let is_off = matches!(act, NodeAct::Down { fenced: true, .. });
    let mut lists = [None, None];
    let (word, nodes, reason) = match act {
        NodeAct::Drain { reason, .. } if reason.trim().is_empty() => {
            return Err(Failure::usage("--reason is empty. Say why: users see it"));
        }
        NodeAct::Drain {
            nodes,
            reason,
            deadline,
        } => {
            if let Some(text) = deadline {
                gcli::cluster_choice::read_times_there(client)?;
                let at = local_time::read_end(&text, local_time::now());
                by = Some(Instant(at.map_err(|why| {
                    Failure::usage(format_args!("--deadline: {why}"))
                })?));
            }
            ("drain", nodes, reason)
        }
        NodeAct::Resume { nodes } => ("resume", nodes, String::new()),
        NodeAct::Features {
            nodes,
            available,
            active,
            reset: _,
        } => {
            lists = [available, active].map(|list| list.as_deref().map(names_of));
            ("features", nodes, String::new())
        }
        NodeAct::Down { nodes, reason, .. } => ("down", nodes, reason),
        NodeAct::Revoke { nodes } => ("revoke", nodes, String::new()),
        NodeAct::Remove { nodes } => ("remove", nodes, String::new()),
    };
    let [available_features, active_features] = lists;
    let request = NodeRequest {
        reason,
        deadline: by,
        fenced: is_off,
        available_features,
        active_features,
    };
    each(client, &nodes, word, &request)
}

/// Posts a request for each node. One that fails is told, and the next node follows.
fn each(client: &mut Client, nodes: &NodeNames, word: &str, request: &NodeRequest) -> Outcome {
    let names = Hostlist::parse(&nodes.names.join(",")).map_err(Failure::usage)?;
    let mut worst = 0;
    for name in names.iter() {
        let answer = client.post_repeatable::<_, ChangeReply>(
            &format!("/v1/nodes/{}/{word}", escape(name)),
            request,
        );
        match answer.map_err(Failure::from) {
            Ok(done) => crate::controller::say_notes(&done),
            Err(failure) if failure.exit == gcli::failure::FAILED && names.len() > 1 => {
                gcli::failure::say_failure("gadm", &failure)?;
                worst = failure.exit;
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(worst)
}

/// `ib,nvme`, each once.
fn names_of(list: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in list
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
    {
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names
}
