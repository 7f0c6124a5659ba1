//! Permission: the actor behind a request, the jobs that are visible to it, what a compute node may forward.
//!
//! Owns what may be read, and for which users a machine speaks; whether an actor may change a job or node is the core's word.

use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::peer::Peer;
use axum::extract::FromRequestParts;
use axum::http::Method;
use axum::http::request::Parts;
use gcore::ctl::{Actor, Job, State};
use gmodel::config::{ClusterConfig, Privacy, SubmitFromJobs};
use gmodel::job::JobSpec;
use gmodel::node::Role;
use gmodel::partition_list;
use gmodel::{JobId, NodeId, Scope, TokenId, UserToken};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The uid that a kernel gives to users that it cannot map (`nobody`).
const NOBODY: u32 = 65_534;

/// A user with a checked identity, and what the way of the request allows.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) actor: Actor,
    /// Jobs of the user that run on the forwarding compute node; `None` when not through a compute node.
    on_node: Option<NodeConfinement>,
    /// With what it came over the network, or on a socket.
    token: Option<Arc<UserToken>>,
    /// The controller's host knows the user.
    known: bool,
    /// The controller's own socket, or a login node that is marked admin.
    trusted_way: bool,
}

#[derive(Clone, Debug)]
struct NodeConfinement {
    /// Of a job there that was submitted with a token: what comes from there counts against its caps.
    token: Option<TokenId>,
    jobs: BTreeSet<JobId>,
    /// Where `submit_from_jobs` of the jobs' partitions lets them submit.
    submits_to: SubmitPartitions,
}

#[derive(Clone, Debug)]
enum SubmitPartitions {
    Any,
    /// None: nowhere.
    Only(BTreeSet<String>),
}

impl FromRequestParts<ApiContext> for Caller {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, site: &ApiContext) -> Result<Self, ApiError> {
        let peer = parts.extensions.get::<Peer>().cloned();
        let peer = peer
            .ok_or_else(|| ApiError::denied("nobody vouches for who you are on this connection"))?;
        let caller = Self::of(&peer, site).await?;
        // Before the body is read.
        if parts.method == Method::POST
            && let Some(what) = operators_act(parts.uri.path())
        {
            caller.must_administer(&what)?;
        }
        Ok(caller)
    }
}

/// What only operators may do, by the path that it is posted to.
fn operators_act(path: &str) -> Option<String> {
    let act = path.rsplit('/').next().unwrap_or_default();
    Some(match path.strip_prefix("/v1/")?.split('/').next()? {
        "nodes" if path.contains("/gpus/") => format!("gpu {act}"),
        "nodes" => format!("node {act}"),
        "gpus" => format!("gpu {act}"),
        "tokens" => "inviting a node".to_owned(),
        "reload" => "reload".to_owned(),
        "backup" => "backup".to_owned(),
        "webhooks" => "webhook resume".to_owned(),
        "qos" => "editing QOS".to_owned(),
        "reservations" => "editing reservations".to_owned(),
        "partitions" => "editing partitions".to_owned(),
        "policy" => "import of a policy".to_owned(),
        "bill" => format!("bill {act}"),
        _ => return None,
    })
}

impl Caller {
    pub(crate) async fn of(peer: &Peer, site: &ApiContext) -> Result<Self, ApiError> {
        if peer.user.is_empty() {
            let text = format!("uid {} has no name on the machine it came from", peer.uid);
            return Err(ApiError::denied(text));
        }
        if let Some(token) = &peer.token {
            return Ok(Self::with_token(peer, token.clone(), site));
        }
        let Some((node, role)) = peer.via else {
            if !peer.local {
                return Err(ApiError::denied(
                    "nobody vouches for who you are on this connection",
                ));
            }
            let operator =
                peer.uid == 0 || site.app.config().cluster.operators.contains(&peer.user);
            return Ok(Self {
                actor: actor(peer, operator, None),
                on_node: None,
                token: None,
                known: peer.known,
                trusted_way: true,
            });
        };
        if peer.uid == 0 || peer.uid == NOBODY {
            let text = format!(
                "{} (uid {}) is not forwarded from other machines. Administer on the controller's own host",
                peer.user, peer.uid
            );
            return Err(ApiError::denied(text));
        }
        let on_node = match role {
            Role::Login => None,
            Role::Compute => Some(on_node(&*site.core.view().await, node, peer)?),
        };
        let trusted_way = peer.admin && role == Role::Login;
        // Operators are names in a file here: they count for users that this host knows.
        let operator =
            trusted_way && peer.known && site.app.config().cluster.operators.contains(&peer.user);
        Ok(Self {
            actor: Actor {
                token: on_node.as_ref().and_then(|on_node| on_node.token),
                ..actor(peer, operator, Some(node))
            },
            on_node,
            token: None,
            known: peer.known,
            trusted_way,
        })
    }

    /// The user of a token, narrowed to it: an operator only by its scope.
    fn with_token(peer: &Peer, token: Arc<UserToken>, site: &ApiContext) -> Self {
        let config = site.app.config();
        let operator = token.scopes.contains(&Scope::Operate)
            && peer.known
            && config.cluster.operators.contains(&peer.user);
        Self {
            actor: Actor {
                token: Some(token.id),
                ..actor(peer, operator, None)
            },
            on_node: None,
            token: Some(token),
            known: peer.known,
            trusted_way: true,
        }
    }

    /// The token that the request came with.
    pub(crate) fn token(&self) -> Option<TokenId> {
        self.token.as_ref().map(|token| token.id)
    }

    /// Whether the controller's host knows the user.
    pub(crate) fn is_known(&self) -> bool {
        self.known
    }

    /// `partition`: as it was asked for; empty is the default one.
    ///
    /// # Errors
    /// The request came through a compute node, and its jobs may not submit there.
    pub(crate) fn may_submit(
        &self,
        partition: &str,
        config: &ClusterConfig,
    ) -> Result<(), ApiError> {
        let Some(NodeConfinement {
            submits_to: SubmitPartitions::Only(allowed),
            ..
        }) = &self.on_node
        else {
            return Ok(());
        };
        if allowed.is_empty() {
            return Err(ApiError::denied(
                "jobs of this partition may not submit (submit_from_jobs = false). Submit from a login node",
            ));
        }
        let asked = match partition {
            "" => config
                .default_partition()
                .map_or("", |default| &default.name),
            asked => asked,
        };
        match partition_list::names(asked).find(|name| !allowed.contains(*name)) {
            None => Ok(()),
            Some(other) => {
                let allowed = allowed
                    .iter()
                    .map(String::as_str)
                    .collect::<Vec<_>>()
                    .join(", ");
                Err(ApiError::denied(format!(
                    "from this compute node you can submit to the partition of your jobs here ({allowed}) and not to {other}: submit_from_jobs = \"same-partition\". Try -p {allowed}, or a login node"
                )))
            }
        }
    }

    /// # Errors
    /// When they came through a compute node where this job of theirs does not run.
    pub(crate) fn may_act_on(&self, job: JobId) -> Result<(), ApiError> {
        match &self.on_node {
            Some(on_node) if !on_node.jobs.contains(&job) => Err(ApiError::denied(format!(
                "from a compute node you can act only on your jobs that run there, and {job} does not. \
                 Use a login node"
            ))),
            _ => Ok(()),
        }
    }

    /// The jobs to which acting is limited; `None` for no such limit.
    pub(crate) fn confined_to(&self) -> Option<&BTreeSet<JobId>> {
        self.on_node.as_ref().map(|on_node| &on_node.jobs)
    }

    /// # Errors
    /// When they are no operator.
    pub(crate) fn must_administer(&self, what: &str) -> Result<(), ApiError> {
        if self.actor.operator {
            return Ok(());
        }
        let text = match self.actor.via {
            Some(_) if !self.trusted_way => format!(
                "{what} is for operators, on the controller's own host or through a login node that is marked admin, and this \
                 machine is not. A new token marks it: gadm token node --role login --admin --name NODE"
            ),
            _ => format!(
                "{what} is for root and the operators in gpuctld.toml, and {} is none",
                self.actor.user
            ),
        };
        Err(ApiError::denied(text))
    }
}

/// The caller as an actor of whom the core may ask which of some groups it is in.
pub(crate) async fn with_groups(
    site: &ApiContext,
    caller: &Caller,
    groups: BTreeSet<String>,
) -> Actor {
    let groups = site.app.members.of(&caller.actor.user, &groups).await;
    Actor {
        groups,
        ..caller.actor.clone()
    }
}

fn actor(peer: &Peer, operator: bool, via: Option<NodeId>) -> Actor {
    Actor {
        user: peer.user.clone(),
        uid: peer.uid,
        gid: peer.gid,
        operator,
        via,
        groups: BTreeMap::new(),
        token: None,
    }
}

/// A user's live jobs on a compute node.
fn on_node(state: &State, node: NodeId, peer: &Peer) -> Result<NodeConfinement, ApiError> {
    let runs = state.nodes.get(node).map(|node| &node.runs);
    let live: Vec<&Job> = runs
        .into_iter()
        .flatten()
        // What a run that was adopted from its nodes is rests on their word: it lets none of them speak for its user.
        .filter(|id| {
            state.runs.get(**id).is_some_and(|run| {
                !run.adopted && run.member(node).is_some_and(|member| !member.is_ended())
            })
        })
        .filter_map(|id| state.jobs.get(id.job))
        .filter(|job| job.spec.user.is(&peer.user, peer.uid))
        .collect();
    if live.is_empty() {
        let text = format!(
            "{} has no running job on this compute node, or only one that was adopted after a restore. Use a login node",
            peer.user
        );
        return Err(ApiError::denied(text));
    }
    let mut submits_to = SubmitPartitions::Only(BTreeSet::new());
    for job in &live {
        let name = &job.spec.partition;
        match (
            state
                .config
                .partition(name)
                .map(|partition| partition.submit_from_jobs)
                .unwrap_or_default(),
            &mut submits_to,
        ) {
            (SubmitFromJobs::Yes, _) => submits_to = SubmitPartitions::Any,
            (SubmitFromJobs::SamePartition, SubmitPartitions::Only(names)) => {
                names.insert(name.clone());
            }
            _ => {}
        }
    }
    Ok(NodeConfinement {
        token: live.iter().find_map(|job| job.spec.token),
        // The script of a job of unlike parts starts steps in its other components, which are on other nodes.
        jobs: live.iter().flat_map(|job| job.whole()).collect(),
        submits_to,
    })
}

/// The jobs that a reader sees (`privacy`).
#[derive(Clone, Debug)]
pub(crate) struct Visibility {
    pub(crate) user: Arc<str>,
    all: bool,
    /// Accounts with visible jobs.
    accounts: BTreeSet<String>,
    /// A token that is limited to accounts or partitions.
    token: Option<Arc<UserToken>>,
}

impl Visibility {
    pub(crate) fn of(caller: &Caller, state: &State) -> Self {
        let user: Arc<str> = caller.actor.user.as_str().into();
        let privacy = state.config.privacy;
        let all = caller.actor.operator || privacy == Privacy::Open;
        let accounts = if all || privacy == Privacy::Own {
            BTreeSet::new()
        } else {
            accounts_of(state, &user)
        };
        let token = caller.token.clone();
        let token = token.filter(|token| token.confines().is_some());
        Self {
            user,
            all,
            accounts,
            token,
        }
    }

    pub(crate) fn sees(&self, spec: &JobSpec) -> bool {
        self.sees_named(&spec.user.name, &spec.account)
            && self.token.as_ref().is_none_or(|token| token.reaches(spec))
    }

    pub(crate) fn sees_named(&self, user: &str, account: &str) -> bool {
        let reached =
            |token: &Arc<UserToken>| token.accounts.is_empty() || token.accounts.contains(account);
        (self.all || user == &*self.user || self.accounts.contains(account))
            && self.token.as_ref().is_none_or(reached)
    }

    /// A job of which no more is known; `partition`: as the job asks for it.
    pub(crate) fn sees_job(&self, user: &str, account: &str, partition: &str) -> bool {
        let token = self.token.as_ref();
        self.sees_named(user, account)
            && token.is_none_or(|token| token.reaches_named(account, partition))
    }

    pub(crate) fn sees_all(&self) -> bool {
        self.all && self.token.is_none()
    }

    /// Accounts seen besides the user's own jobs.
    pub(crate) fn accounts(&self) -> &BTreeSet<String> {
        &self.accounts
    }
}

/// The accounts in which a user has jobs now.
fn accounts_of(state: &State, user: &str) -> BTreeSet<String> {
    let of_jobs = state.jobs.values().map(|job| &job.spec);
    let of_arrays = state.arrays.values().map(|array| &array.spec);
    of_jobs
        .chain(of_arrays)
        .filter(|spec| spec.user.name == user)
        .map(|spec| spec.account.clone())
        .collect()
}

/// Script, environment and the nodes' log of a job are for its owner and operators.
///
/// # Errors
/// For all other users.
pub(crate) fn must_own(
    caller: &Caller,
    spec: &JobSpec,
    shown_id: &str,
    what: &str,
) -> Result<(), ApiError> {
    if let Some(token) = caller.token.as_ref().filter(|token| !token.reaches(spec)) {
        return Err(ApiError::denied(format!(
            "token {} is for {}, and job {shown_id} is not. Use another token",
            token.id,
            token.confines().unwrap_or_default()
        )));
    }
    if caller.actor.operator || spec.user.is(&caller.actor.user, caller.actor.uid) {
        return Ok(());
    }
    let text = format!(
        "the {what} of job {shown_id} is for its owner {} and operators",
        spec.user.name
    );
    Err(ApiError::denied(text))
}
