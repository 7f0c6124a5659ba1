//! Single GPUs: how each stands, and operators' orders for one. Owns the words for a GPU's state and which GPU a word means.

use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::node::list::{by_name, gpu_holders};
use crate::http::permission::{Caller, Visibility};
use crate::http::query::QueryPairs;
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State as Shared};
use gcore::ctl::{Command, Node, State};
use gmodel::Instant;
use gmodel::gpu_check::{CheckProgram, GpuChecks};
use gmodel::gpu_health::RepairStage;
use gmodel::gpu_order::GpuAction;
use gmodel::hostlist::Hostlist;
use gmodel::node::{GpuEntry, Role};
use gmodel::suggest::did_you_mean;
use gwire::api::{GpuActionRequest, GpuHealthRow, GpuHistoryRow, GpuList, SCHEMA};
use serde::Serialize;
use std::collections::BTreeSet;

/// `GET /v1/gpus`, `?node=node[1-4]`: each GPU with how it stands.
pub(crate) async fn list(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    pairs: QueryPairs,
) -> Result<Json<GpuList>, ApiError> {
    let pairs = pairs.only(&["node"])?;
    let names = pairs.text("node");
    let wanted = if names.is_empty() {
        None
    } else {
        Some(Hostlist::parse(names).map_err(|e| ApiError::invalid(e.to_string()))?)
    };
    let state = site.core.view().await;
    let sight = Visibility::of(&caller, &state);
    for name in wanted.iter().flat_map(Hostlist::iter) {
        node_named(&state, name)?;
    }
    let nodes = by_name(&state)
        .into_iter()
        .filter(|node| node.role == Role::Compute);
    let nodes = nodes.filter(|node| {
        wanted
            .as_ref()
            .is_none_or(|wanted| wanted.contains(&node.name))
    });
    let gpus = nodes.flat_map(|node| rows(&state, &sight, node)).collect();
    Ok(Json(GpuList {
        schema: SCHEMA,
        gpus,
    }))
}

#[derive(Serialize)]
pub(crate) struct GpuHistoryList {
    schema: u32,
    history: Vec<GpuHistoryRow>,
}

/// `GET /v1/gpus/{gpu}/history`: by UUID, or the beginning of one.
pub(crate) async fn history(
    _: Caller,
    Shared(site): Shared<ApiContext>,
    Path(gpu): Path<String>,
) -> Result<Json<GpuHistoryList>, ApiError> {
    let history = site.core.reader().gpu_history(gpu.clone()).await?;
    if history.is_empty() {
        return Err(ApiError::not_found(format!(
            "no GPU {gpu:?} was ever seen here; gnodes --health shows the UUIDs of those that are"
        )));
    }
    Ok(Json(GpuHistoryList {
        schema: SCHEMA,
        history,
    }))
}

/// `POST /v1/gpus/{gpu}/forget`: by UUID, or the beginning of one. The answer has the nodes that do not miss it any more.
pub(crate) async fn forget(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path(gpu): Path<String>,
) -> Result<Json<GpuList>, ApiError> {
    caller.must_administer("gpu forget")?;
    let state = site.core.view().await;
    let uuid = known(&state, &gpu)?;
    let missed = state.nodes.values().flat_map(|node| {
        node.gpus
            .iter()
            .filter(|gpu| gpu.info.uuid == uuid && gpu.is_expected())
            .map(move |gpu| (node, gpu))
    });
    let gpus = missed
        .map(|(node, gpu)| row(node, gpu, Vec::new()))
        .collect();
    site.core
        .command(caller.actor, Command::GpuForget { uuid })
        .await?;
    Ok(Json(GpuList {
        schema: SCHEMA,
        gpus,
    }))
}

/// The UUID that begins so, of all GPUs that nodes have or miss.
fn known(state: &State, word: &str) -> Result<String, ApiError> {
    let all = state
        .nodes
        .values()
        .flat_map(|node| node.gpus.iter())
        .filter(|gpu| gpu.is_expected() && gpu.info.slice.is_none());
    let found: BTreeSet<&str> = all
        .map(|gpu| gpu.info.uuid.as_str())
        .filter(|uuid| !word.is_empty() && uuid.starts_with(word))
        .collect();
    let uuids: Vec<&str> = found.into_iter().collect();
    match uuids[..] {
        _ if uuids.contains(&word) => Ok(word.to_owned()),
        [uuid] => Ok(uuid.to_owned()),
        [] => Err(ApiError::not_found(format!(
            "no node has or misses a GPU {word:?}: it takes a UUID, as `gnodes --health` shows it"
        ))),
        _ => Err(ApiError::invalid(format!(
            "{word:?} is the beginning of {} UUIDs: {}. Write more of it",
            uuids.len(),
            uuids.join(", ")
        ))),
    }
}

const ACTS: [&str; 4] = ["quarantine", "return", "cut", "check"];

/// `POST /v1/nodes/{name}/gpus/{gpu}/quarantine`, `return`, `cut`, `check`: the answer is the GPU with the order open.
pub(crate) async fn act(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path((name, gpu, act)): Path<(String, String, String)>,
    body: Result<Json<GpuActionRequest>, JsonRejection>,
) -> Result<Json<GpuList>, ApiError> {
    let Json(request) = body?;
    let what = match act.as_str() {
        "quarantine" => GpuAction::Quarantine {
            reason: request.reason,
        },
        "return" => GpuAction::Return,
        // The core knows how.
        "check" => GpuAction::Check(CheckProgram::default()),
        "cut" => GpuAction::Cut {
            profiles: request.profiles,
        },
        _ => {
            let guess = did_you_mean(&act, ACTS);
            return Err(ApiError::not_found(format!(
                "{act:?} is nothing that is done to GPUs.{guess} There are: {}",
                ACTS.join(", ")
            )));
        }
    };
    caller.must_administer(&format!("gpu {act}"))?;
    let state = site.core.view().await;
    let node = node_named(&state, &name)?;
    let (id, uuid) = (node.id, find(node, &gpu)?.info.uuid.clone());
    let sight = Visibility::of(&caller, &state);
    site.core
        .command(
            caller.actor,
            Command::GpuOrder {
                node: id,
                uuid: uuid.clone(),
                what,
            },
        )
        .await?;
    let state = site.core.view().await;
    let rows = state
        .nodes
        .get(id)
        .map_or_else(Vec::new, |node| rows(&state, &sight, node));
    Ok(Json(GpuList {
        schema: SCHEMA,
        gpus: rows.into_iter().filter(|row| row.uuid == uuid).collect(),
    }))
}

pub(crate) fn node_named<'a>(state: &'a State, name: &str) -> Result<&'a Node, ApiError> {
    state.node_by_name(name).ok_or_else(|| {
        let guess = did_you_mean(name, state.index.node_names.keys().map(String::as_str));
        ApiError::not_found(format!("there is no node {name:?}.{guess}"))
    })
}

/// The GPU that is meant: by index, UUID, the beginning of one, or slot. While one is missing the driver counts the others anew, so
/// that an index may mean two: the one that had it and the one that has it.
pub(crate) fn find<'a>(node: &'a Node, word: &str) -> Result<&'a GpuEntry, ApiError> {
    let slot: Option<u16> = word.strip_prefix("slot").and_then(|slot| slot.parse().ok());
    let index: Option<u32> = word.strip_prefix("gpu").unwrap_or(word).parse().ok();
    let is_it = |gpu: &&GpuEntry| match (slot, index) {
        (Some(slot), _) => gpu.slot.0 == slot,
        (None, Some(index)) => {
            gpu.is_expected() && gpu.info.index == index && gpu.info.slice.is_none()
        }
        (None, None) => gpu.present && !word.is_empty() && gpu.info.uuid.starts_with(word),
    };
    let found: Vec<&GpuEntry> = node.gpus.iter().filter(is_it).collect();
    let name = &node.name;
    match found[..] {
        [gpu] => Ok(gpu),
        // A UUID may be the beginning of another's; of one that is not there its node must still hear.
        [] => node
            .gpus
            .iter()
            .find(|gpu| gpu.info.uuid == word)
            .ok_or_else(|| {
                let here: Vec<&GpuEntry> = node.gpus.iter().filter(|gpu| gpu.present).collect();
                let have = match here.len() {
                    0 => "no GPU".to_owned(),
                    count => format!(
                        "{count} GPUs, {} to {}",
                        here[0].info.index,
                        here[count - 1].info.index
                    ),
                };
                ApiError::not_found(format!(
                    "{name} has no GPU {word:?}: it has {have}. `gnodes --health {name}` lists them"
                ))
            }),
        _ => {
            let words = |gpu: &&GpuEntry| {
                format!(
                    "{} ({})",
                    gpu.info.uuid,
                    if gpu.present { "present" } else { "missing" }
                )
            };
            let all: Vec<String> = found.iter().map(words).collect();
            let instead = if index.is_some() {
                "Name the UUID"
            } else {
                "Write more of the UUID, or the index"
            };
            Err(ApiError::invalid(format!(
                "{word:?} means {} GPUs of {name}: {}. {instead}",
                all.len(),
                all.join(", ")
            )))
        }
    }
}

fn rows(state: &State, sight: &Visibility, node: &Node) -> Vec<GpuHealthRow> {
    let mut holders = gpu_holders(state, sight, node);
    let mut row = |gpu: &GpuEntry| row(node, gpu, holders.remove(&gpu.slot.0).unwrap_or_default());
    let shown = node.gpus.iter().filter_map(|gpu| {
        if gpu.is_expected() {
            Some(row(gpu))
        } else {
            moved(state, node, gpu)
        }
    });
    shown.collect()
}

/// The row of a board that was put into another node.
fn moved(state: &State, node: &Node, gpu: &GpuEntry) -> Option<GpuHealthRow> {
    let uuid = &gpu.info.uuid;
    let is_there = |other: &&Node| {
        other
            .gpus
            .iter()
            .any(|gpu| gpu.present && gpu.info.uuid == *uuid)
    };
    let there = state
        .nodes
        .values()
        .find(is_there)
        .filter(|_| gpu.info.slice.is_none())?;
    let next = format!("it is in {} now", there.name);
    let GpuHealthRow {
        node,
        slot,
        index,
        gpu_type,
        uuid,
        ..
    } = row(node, gpu, Vec::new());
    Some(GpuHealthRow {
        node,
        slot,
        index,
        gpu_type,
        uuid,
        state: "moved".to_owned(),
        next,
        ..GpuHealthRow::default()
    })
}

fn row(node: &Node, gpu: &GpuEntry, jobs: Vec<String>) -> GpuHealthRow {
    let info = &gpu.info;
    let standing = info.standing.as_deref();
    let checks = gpu.checks.as_deref();
    let ordered = node
        .gpu_work
        .orders
        .iter()
        .find(|order| order.uuid == info.uuid);
    GpuHealthRow {
        node: node.name.clone(),
        slot: gpu.slot.0,
        index: info.index,
        gpu_type: info.kind(),
        uuid: info.uuid.clone(),
        state: state_word(gpu).to_owned(),
        // Of one that is on its way out it is when it last came back.
        since: standing
            .filter(|standing| {
                standing.since.0 > 0 && (standing.stage != RepairStage::InService || standing.held)
            })
            .map(|standing| Instant(standing.since)),
        reason: info.fault.clone(),
        sign: standing.map_or_else(String::new, |standing| standing.sign.clone()),
        evidence: standing.map_or_else(String::new, |standing| standing.evidence.clone()),
        next: match standing {
            _ if !gpu.present => {
                "boot the node or put it in again; gadm gpu forget, if it is gone for good"
                    .to_owned()
            }
            Some(standing) => standing.next.clone(),
            None if !info.fault.is_empty() => "back by itself when that is over".to_owned(),
            None => String::new(),
        },
        notes: info
            .notes
            .iter()
            .cloned()
            .chain(checks.and_then(not_checked))
            .collect(),
        jobs,
        ordered: ordered.map_or_else(String::new, |order| action_word(&order.what).to_owned()),
        refused: gpu.refused.clone(),
        // A check is no step of a repair.
        stopped: !info.wants.is_empty()
            && ordered.is_none_or(|order| matches!(order.what, GpuAction::Check(_))),
        checked: checks.map(|checks| Instant(checks.tried)),
        odd: checks.map_or_else(Vec::new, odd_words),
    }
}

/// The note on checks that are switched on and cannot be run.
fn not_checked(checks: &GpuChecks) -> Option<String> {
    (!checks.stopped.is_empty()).then(|| format!("not checked: {}", checks.stopped))
}

/// `check pcie: 12.5 GB/s; the median of 23 GPUs ...`, for each check of which it is an outlier now.
fn odd_words(checks: &GpuChecks) -> Vec<String> {
    let odd = checks.kept.iter().filter(|kept| !kept.odd.is_empty());
    odd.map(|kept| format!("check {}: {}", kept.result.check, kept.odd))
        .collect()
}

pub(crate) fn state_word(gpu: &GpuEntry) -> &'static str {
    let info = &gpu.info;
    match info
        .standing
        .as_ref()
        .map(|standing| (standing.stage, standing.held))
    {
        _ if !gpu.present => "missing",
        Some((_, true)) => "quarantined",
        Some((RepairStage::InService, _)) => "suspect",
        Some((RepairStage::Out, _)) => "quarantined",
        Some((RepairStage::Resetting, _)) => "resetting",
        Some((RepairStage::Booting, _)) => "booting",
        Some((RepairStage::BurningIn, _)) => "burning in",
        Some((RepairStage::Marked, _)) => "to be replaced",
        None if !info.fault.is_empty() => "out",
        None if !info.notes.is_empty() => "noted",
        None => "ok",
    }
}

fn action_word(action: &GpuAction) -> &'static str {
    match action {
        GpuAction::Quarantine { .. } => "quarantine",
        GpuAction::Return => "return",
        GpuAction::Repair => "repair",
        GpuAction::Cut { .. } => "cut",
        GpuAction::Check(_) => "check",
        GpuAction::Unknown => "unknown",
    }
}
