//! Nodes, partitions and the cluster they are of: listings, and what administrators do to nodes.
//!
//! Owns the shape of the rows. What runs on a node is shown as far as the reader may see the jobs.

use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::permission::{Caller, Visibility};
use crate::http::query::QueryPairs;
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State as Shared};
use gcore::ctl::{
    Command, Node, State, fence_words, node_paused, nvlink_domain, reservations_over,
};
use gmodel::config::{Partition, PartitionState};
use gmodel::gpu_link::GpuLink;
use gmodel::hostlist::sort_names;
use gmodel::node::{GpuEntry, HoldMark, Link, NodeStateView, Role};
use gmodel::policy::Reservation;
use gmodel::suggest::did_you_mean;
use gmodel::{Instant, JobId, NodeId, RunId, Timestamp};
use gwire::api::{
    CertificateRow, ChangeReply, ClusterInfo, GpuRow, MarkRow, NodeRequest, NodeRow, PartitionRow,
    SCHEMA,
};
use gwire::record_json::gpus_json;
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Serialize)]
pub(crate) struct NodeList {
    schema: u32,
    nodes: Vec<NodeRow>,
}

#[derive(Serialize)]
pub(crate) struct PartitionList {
    pub(crate) schema: u32,
    pub(crate) partitions: Vec<PartitionRow>,
}

pub(crate) async fn list(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    pairs: QueryPairs,
) -> Result<Json<NodeList>, ApiError> {
    pairs.only(&[])?;
    let state = site.core.view().await;
    let sight = Visibility::of(&caller, &state);
    let addresses = site.app.links.addresses();
    let row = |node: &Node| NodeRow {
        address: addresses.get(&node.id).copied(),
        ..node_row(&state, &sight, node)
    };
    let rows = by_name(&state).into_iter().map(row).collect();
    Ok(Json(NodeList {
        schema: SCHEMA,
        nodes: rows,
    }))
}

pub(crate) async fn partitions(
    _: Caller,
    Shared(site): Shared<ApiContext>,
    pairs: QueryPairs,
) -> Result<Json<PartitionList>, ApiError> {
    pairs.only(&[])?;
    let state = site.core.view().await;
    Ok(Json(PartitionList {
        schema: SCHEMA,
        partitions: partition_rows(&state),
    }))
}

/// All partitions.
pub(crate) fn partition_rows(state: &State) -> Vec<PartitionRow> {
    let nodes = by_name(state);
    let all = state.config.partitions.iter();
    all.map(|partition| partition_row(state, partition, &nodes))
        .collect()
}

pub(crate) async fn cluster(
    _: Caller,
    Shared(site): Shared<ApiContext>,
    pairs: QueryPairs,
) -> Result<Json<ClusterInfo>, ApiError> {
    pairs.only(&[])?;
    let config = &site.core.view().await.config;
    Ok(Json(ClusterInfo {
        schema: SCHEMA,
        name: config.name.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        host: nix::unistd::gethostname().map_or_else(
            |_| "localhost".to_owned(),
            |host| host.to_string_lossy().into_owned(),
        ),
        min_job_age_secs: config.min_job_age_secs,
        max_array_tasks: config.max_array_tasks,
        time_zone: site
            .app
            .config()
            .has_time_zone
            .then(|| (*config.time_zone).clone()),
    }))
}

/// Nodes in the order of people: `n2` before `n10`.
pub(crate) fn by_name(state: &State) -> Vec<&Node> {
    let mut names: Vec<String> = state.index.node_names.keys().cloned().collect();
    sort_names(&mut names);
    names
        .iter()
        .filter_map(|name| state.node_by_name(name))
        .collect()
}

fn partition_row(state: &State, partition: &Partition, nodes: &[&Node]) -> PartitionRow {
    let default = state
        .config
        .default_partition()
        .map(|default| default.name.as_str());
    let held = nodes.iter().filter(|node| holds(partition, node));
    let made = state.own_policy.partitions.get(&partition.name);
    let file = state.config.file_partition(&partition.name);
    let set_keys = made.zip(file).into_iter();
    let set_keys = set_keys.flat_map(|(made, file)| made.set_keys(file, true));
    PartitionRow {
        name: partition.name.clone(),
        made_by: made.map_or_else(String::new, |made| made.by.clone()),
        set_keys: set_keys.map(|key| key.name.to_owned()).collect(),
        is_default: default == Some(partition.name.as_str()),
        state: match partition.state {
            PartitionState::Up => "up",
            PartitionState::Down => "down",
            PartitionState::Drain => "drain",
            PartitionState::Inactive => "inact",
        }
        .to_owned(),
        max_time_secs: partition.max_time_secs,
        default_time_secs: partition.default_time_secs,
        nodes: held.map(|node| node.name.clone()).collect(),
        priority_tier: partition.priority_tier,
        priority_factor: partition.priority_factor,
        preempt_mode: partition.preempt_mode.word().to_owned(),
        placement: partition
            .placement
            .unwrap_or(state.config.scheduler.placement)
            .word()
            .to_owned(),
        gpu_sharing: partition.gpu_sharing.word().to_owned(),
        max_nodes: partition.max_nodes,
        over_time_secs: partition.over_time_secs,
        headroom: partition.headroom.as_ref().map(gpus_json),
        group: partition.group.clone(),
        per_user: partition.per_user.clone(),
        per_account: partition.per_account.clone(),
        allow_accounts: partition.allow_accounts.clone(),
        allow_users: partition.allow_users.clone(),
        allow_groups: partition.allow_groups.clone(),
        allow_qos: partition.allow_qos.clone(),
        deny_accounts: partition.deny_accounts.clone(),
        deny_qos: partition.deny_qos.clone(),
        default_qos: partition.default_qos.clone(),
    }
}

fn holds(partition: &Partition, node: &Node) -> bool {
    node.role == Role::Compute && partition.holds(&node.name, &node.inventory.features)
}

pub(crate) fn node_row(state: &State, sight: &Visibility, node: &Node) -> NodeRow {
    let free = state.free_on(node);
    let held = |(gpu, free): (&GpuEntry, &u32)| {
        u64::from(1000 - (*free).min(1000)) * u64::from(gpu.info.part().milli())
    };
    let held = node
        .gpus
        .iter()
        .zip(&free.gpu_milli)
        .filter(|(gpu, _)| gpu.usable() && !node.is_being_cut(gpu))
        .map(held);
    let partitions = state
        .config
        .partitions
        .iter()
        .filter(|partition| holds(partition, node));
    let inventory = &node.inventory;
    let over: Vec<&Reservation> =
        reservations_over(state, node, crate::core_thread::now()).collect();
    let reserved = NodeStateView {
        reserved: !over.is_empty(),
        maintenance: over.iter().any(|one| one.maintenance),
        ..state.node_view(node)
    };
    NodeRow {
        name: node.name.clone(),
        state: reserved.to_string(),
        reservations: over.iter().map(|one| one.name.clone()).collect(),
        role: node.role,
        partitions: partitions.map(|partition| partition.name.clone()).collect(),
        features: inventory.features.clone(),
        available_features: node
            .ordered
            .features
            .as_ref()
            .map(|set| set.available.clone()),
        switches: state
            .config
            .scheduler
            .topology
            .switches_above(&node.name)
            .join("."),
        nvlink_domain: nvlink_domain(state, node).unwrap_or_default().to_owned(),
        cpus: inventory.cpus,
        cpus_alloc: inventory.cpus.saturating_sub(free.cpus),
        mem_bytes: inventory.mem_bytes,
        mem_alloc_bytes: inventory.mem_bytes.saturating_sub(free.mem_bytes),
        gpus: gpu_rows(state, sight, node),
        gpu_summary: gpu_summary(&node.gpus),
        gpus_alloc: held.sum::<u64>() as f64 / 1e6,
        runs: node
            .runs
            .iter()
            .filter(|run| seen(state, sight, run.job))
            .map(|run| shown(state, *run))
            .collect(),
        drains: node.drains.iter().map(mark_row).collect(),
        unfit: match inventory.unfit.as_str() {
            "" => node_paused(node, crate::core_thread::now())
                .map_or_else(String::new, |(until, words)| {
                    format!("{words}; takes work again at {until}")
                }),
            unfit => unfit.to_owned(),
        },
        hung: inventory
            .hung
            .iter()
            .filter_map(|hung| {
                hung.run
                    .filter(|run| seen(state, sight, run.job))
                    .map(|run| format!("job {}: {}", shown(state, run), hung.text))
            })
            .collect(),
        left_out: gsched::cluster::node_class::left_out(&node.gpus)
            .iter()
            .map(|(kind, count)| format!("{kind}:{count}"))
            .collect(),
        no_mps: inventory.no_mps.clone(),
        lost: fence_words(node).unwrap_or_default(),
        admin: node.certificate.admin,
        certificate: CertificateRow {
            epoch: node.certificate.epoch,
            joined: Some(Instant(node.joined)),
            renewed: node
                .certificate
                .renewed
                .as_ref()
                .map(|renewed| Instant(renewed.at)),
            renewed_from: node
                .certificate
                .renewed
                .as_ref()
                .map_or(String::new(), |renewed| renewed.from.clone()),
            renewals: node
                .certificate
                .renewed
                .as_ref()
                .map_or(0, |renewed| renewed.count),
        },
        isolation: inventory.isolation.clone(),
        declared: inventory.declared,
        version: inventory.version.clone(),
        os: inventory.os.clone(),
        driver: inventory.driver.clone(),
        last_seen: last_seen(node),
        address: None,
        boot_time: (inventory.boot_secs > 0)
            .then(|| Instant(Timestamp::from_secs(inventory.boot_secs))),
        strikes: node
            .strikes
            .iter()
            .map(|strike| format!("{} {} {}", strike.at, strike.run, strike.text))
            .collect(),
        notes: inventory.notes.clone(),
    }
}

/// Now for a connected node, the moment it fell silent for others.
fn last_seen(node: &Node) -> Option<Instant> {
    match node.link {
        Link::Never => None,
        Link::Up => Some(Instant(crate::core_thread::now())),
        Link::Silent | Link::Down => Some(Instant(node.link_since)),
    }
}

fn seen(state: &State, sight: &Visibility, job: JobId) -> bool {
    sight.sees_all() || state.jobs.get(job).is_some_and(|job| sight.sees(&job.spec))
}

/// A run by its job's shown id.
fn shown(state: &State, run: RunId) -> String {
    state
        .jobs
        .get(run.job)
        .map_or_else(|| run.job.to_string(), gcore::ctl::Job::shown_id)
}

fn gpu_rows(state: &State, sight: &Visibility, node: &Node) -> Vec<GpuRow> {
    let mut holders = gpu_holders(state, sight, node);
    let shown = node.gpus.iter().filter(|gpu| gpu.is_expected());
    let rails = state.config.scheduler.topology.rails(&node.name);
    let rail = |gpu: &GpuEntry| {
        rails
            .filter(|_| gpu.info.slice.is_none())
            .and_then(|rails| rails.of(gpu.info.index))
    };
    shown
        .map(|gpu| {
            let jobs = holders.remove(&gpu.slot.0).unwrap_or_default();
            GpuRow {
                links: links_by_slot(gpu, &node.gpus),
                rail: rail(gpu),
                ..gpu_row(gpu, jobs)
            }
        })
        .collect()
}

/// Ways to whole GPUs that are there.
fn links_by_slot(gpu: &GpuEntry, all: &[GpuEntry]) -> BTreeMap<u16, GpuLink> {
    let is_whole = |gpu: &&GpuEntry| gpu.present && gpu.info.slice.is_none();
    let others = all
        .iter()
        .filter(is_whole)
        .filter(|other| other.slot != gpu.slot && is_whole(&gpu));
    others
        .filter_map(|other| Some((other.slot.0, *gpu.info.links.get(&other.info.minor)?)))
        .collect()
}

/// Jobs by the slots of GPUs that they hold, as far as the reader may see them.
pub(crate) fn gpu_holders(
    state: &State,
    sight: &Visibility,
    node: &Node,
) -> BTreeMap<u16, Vec<String>> {
    let mut holders: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    for run in node.runs.iter().filter_map(|id| state.runs.get(*id)) {
        let shares = run.allocation.iter().zip(&run.members);
        let held = shares.filter(|(share, member)| share.node == node.id && !member.is_clean());
        for slot in held.flat_map(|(share, _)| share.gpus.slots()) {
            let name = if seen(state, sight, run.id.job) {
                shown(state, run.id)
            } else {
                "-".to_owned()
            };
            holders.entry(slot.0).or_default().push(name);
        }
    }
    holders
}

fn gpu_row(gpu: &GpuEntry, jobs: Vec<String>) -> GpuRow {
    let slice = gpu.info.slice.as_ref();
    GpuRow {
        slot: gpu.slot.0,
        index: gpu.info.index,
        minor: gpu.info.minor,
        uuid: gpu.info.uuid.clone(),
        gpu_type: gpu.info.gpu_type.clone(),
        memory_mib: gpu.info.memory_mib,
        profile: slice.map_or_else(String::new, |slice| slice.profile.clone()),
        gpu: slice.map_or_else(String::new, |slice| slice.gpu.clone()),
        divided: gpu.info.divided,
        mps: gpu.info.mps,
        numa: gpu.info.numa,
        links: BTreeMap::new(),
        rail: None,
        jobs,
        fault: gpu.info.fault.clone(),
        present: gpu.present,
    }
}

/// `h100:8`, `a100:4,a100:2g.20gb:3`: the GPUs and slices that are there, sick ones too.
fn gpu_summary(gpus: &[GpuEntry]) -> String {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for gpu in gpus.iter().filter(|gpu| gpu.present && !gpu.info.divided) {
        *counts.entry(gpu.info.kind()).or_default() += 1;
    }
    counts
        .iter()
        .map(|(gpu_type, count)| format!("{gpu_type}:{count}"))
        .collect::<Vec<_>>()
        .join(",")
}

pub(crate) fn mark_row(mark: &HoldMark) -> MarkRow {
    MarkRow {
        owner: mark.owner.clone(),
        reason: mark.reason.clone(),
        since: Instant(mark.since),
    }
}

const ACTS: [&str; 6] = ["drain", "resume", "down", "remove", "revoke", "features"];

/// `POST /v1/nodes/{name}/drain`, `resume`, `down`, `remove`, `revoke`, `features`.
pub(crate) async fn act(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path((name, act)): Path<(String, String)>,
    body: Result<Json<NodeRequest>, JsonRejection>,
) -> Result<Json<ChangeReply>, ApiError> {
    if !ACTS.contains(&act.as_str()) {
        let guess = did_you_mean(&act, ACTS);
        return Err(ApiError::not_found(format!(
            "{act:?} is nothing that is done to nodes.{guess} There are: {}",
            ACTS.join(", ")
        )));
    }
    let Json(request) = body?;
    caller.must_administer(&format!("node {act}"))?;
    let state = site.core.view().await;
    let Some(node) = state.node_by_name(&name).map(|node| node.id) else {
        let guess = did_you_mean(&name, state.index.node_names.keys().map(String::as_str));
        return Err(ApiError::not_found(format!(
            "there is no node {name:?}.{guess}"
        )));
    };
    let command = node_command(&act, node, request)?;
    site.core.command(caller.actor, command).await?;
    let notes = match act.as_str() {
        "revoke" => vec![format!(
            "{name} has to join again: gadm token node --name {name}. Its jobs go on if it does within node_timeout_secs"
        )],
        _ => Vec::new(),
    };
    Ok(Json(ChangeReply {
        schema: SCHEMA,
        notes,
    }))
}

fn node_command(act: &str, node: NodeId, request: NodeRequest) -> Result<Command, ApiError> {
    Ok(match act {
        "drain" => match request.deadline {
            Some(Instant(deadline)) => Command::NodeDrainBy {
                node,
                reason: request.reason,
                deadline,
            },
            None => Command::NodeDrain {
                node,
                reason: request.reason,
            },
        },
        _ if request.deadline.is_some() => {
            return Err(ApiError::invalid(format!(
                "a deadline is for drain, not for {act}"
            )));
        }
        _ if request.fenced && act != "down" => {
            return Err(ApiError::invalid(format!(
                "fenced is for down, not for {act}"
            )));
        }
        "features" => Command::NodeFeatures {
            node,
            available: request.available_features,
            active: request.active_features,
        },
        _ if request.available_features.is_some() || request.active_features.is_some() => {
            return Err(ApiError::invalid(format!(
                "lists of features are for features, not for {act}"
            )));
        }
        "resume" => Command::NodeResume { node },
        "down" => Command::NodeDown {
            node,
            reason: request.reason,
            fenced: request.fenced,
        },
        "revoke" => Command::NodeRevoke { node },
        _ => Command::NodeRemove { node },
    })
}
