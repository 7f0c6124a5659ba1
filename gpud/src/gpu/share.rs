//! GPUs that several runs share on this node. Under MPS: one daemon for a GPU and its user from before the first share's run until
//! after the last one, the GPU in exclusive compute mode meanwhile. What is under way stands in the spool before it is done, so
//! the next life of gpud takes back what a killed one left. Chooses no GPU.

use crate::gpu::fence::fence_rules;
use crate::gpu::mig::GrantedGpu;
use crate::gpu::mps_control::{MpsCaps, MpsDaemon};
use crate::gpu::watch::GpuWatch;
use crate::hook::site_program::check_ownership;
use crate::site::Site;
use crate::spool::file::private_dir;
use anyhow::{Context, Result, bail, ensure};
use gmodel::launch_order::{LaunchOrder, OrderGpu};
use gmodel::node::Inventory;
use gmodel::{GpuPart, RunId};
use gsys::durable_file::{sync_parent, write_atomic};
use gsys::nvml::{ComputeMode, GpuFacts};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::MutexGuard;

/// In the spool: a file for each GPU that MPS shares, and the logs of its daemon.
const SHARED_DIR: &str = "gpu-shares";
/// Below the run directory, for sockets.
const PIPES_DIR: &str = "mps";
/// Of the cgroups of daemons.
pub const CGROUP_PREFIX: &str = "mps_";
/// The first driver with an MPS that caps the memory of clients by default: CUDA 11.5.
const LEAST_DRIVER: u32 = 495;
/// Before Volta all clients are one to the GPU, and none can be capped.
const LEAST_CAPABILITY: (u32, u32) = (7, 0);

/// One GPU under MPS, as the spool keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SharedGpu {
    uuid: String,
    uid: u32,
    milli: u32,
    memory_mib: u64,
    /// Where its sockets are.
    pipe: PathBuf,
    mode_before: ComputeMode,
    /// Of the daemon; none: it was not ready yet.
    pid: Option<i32>,
}

/// Why MPS shares no GPU of this node; empty where it does.
pub fn why_not(site: &Site) -> String {
    let (config, gpus) = (&site.config, site.gpus.current());
    if gpus.facts.is_empty() {
        return String::new();
    }
    if site.cgroups.is_none() || !gsys::user::is_root() {
        return "MPS needs a daemon that runs as root with isolation = \"fence\"".into();
    }
    if let Err(e) = check_ownership(&config.mps_control) {
        let path = config.mps_control.display();
        return format!(
            "{path}: {e:#}. It comes with the driver; mps_control in gpud.toml says where it is"
        );
    }
    let branch = gpus
        .driver
        .split('.')
        .next()
        .and_then(|word| word.parse::<u32>().ok());
    match branch {
        Some(branch) if branch < LEAST_DRIVER => {
            format!(
                "driver {} is too old to cap memory under MPS: {LEAST_DRIVER} or later is needed",
                gpus.driver
            )
        }
        _ if !gpus.facts.iter().any(can_be_shared) => {
            "no GPU here can be shared by MPS: cut by MIG, or older than Volta".into()
        }
        _ => String::new(),
    }
}

fn can_be_shared(gpu: &GpuFacts) -> bool {
    gpu.compute_capability >= LEAST_CAPABILITY
        && !gpu.mig_enabled
        && matches!(gpu.compute_mode, Some(mode) if mode != ComputeMode::Prohibited)
}

/// Says in the inventory which GPUs MPS can share, or why it can none.
pub fn show(site: &Site, inventory: &mut Inventory) {
    inventory.no_mps = why_not(site);
    if inventory.no_mps.is_empty() {
        let gpus = site.gpus.current();
        for entry in inventory
            .gpus
            .iter_mut()
            .filter(|entry| entry.slice.is_none())
        {
            entry.mps = gpus
                .facts
                .iter()
                .any(|gpu| gpu.uuid == entry.uuid && can_be_shared(gpu));
        }
    }
}

/// Before a run is set up: its GPU is shared on its terms, or stands free of MPS. The lines for its environment. Blocking.
pub fn enter(
    site: &Site,
    run: RunId,
    order: &LaunchOrder,
    gpus: &[GrantedGpu],
    uid: u32,
) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    let turn = turn(site);
    for (wanted, own) in order
        .gpus
        .iter()
        .zip(gpus)
        .filter(|(_, own)| own.slice.is_none())
    {
        let standing = read(site, &wanted.uuid)?;
        match capped(wanted) {
            Some((milli, memory_mib, tenant)) => {
                ensure!(
                    tenant == uid,
                    "its share of GPU {} is for uid {tenant}, and its user is uid {uid}",
                    wanted.uuid
                );
                let shared = join(
                    site,
                    run,
                    standing,
                    own,
                    MpsCaps {
                        percent: (milli / 10).max(1),
                        memory_mib,
                        uid,
                    },
                    milli,
                )?;
                lines.push(format!("CUDA_MPS_PIPE_DIRECTORY={}", shared.pipe.display()));
            }
            None => {
                if let Some(standing) = standing {
                    ensure!(
                        users(site, &standing.uuid, Some(run), &turn).is_empty(),
                        "GPU {} is shared by MPS with other runs",
                        standing.uuid
                    );
                    end(site, &standing)?;
                }
                if is_share(wanted) {
                    check_time_sharing(site, &wanted.uuid)?;
                }
            }
        }
    }
    Ok(lines)
}

/// Time-slicing needs the default compute mode, asked now: discovery may have seen the mode of an MPS daemon that has just ended.
fn check_time_sharing(site: &Site, uuid: &str) -> Result<()> {
    let mode = site
        .gpu_watch
        .as_ref()
        .map_or(Ok(ComputeMode::Default), |watch| watch.compute_mode(uuid))?;
    ensure!(
        mode == ComputeMode::Default,
        "GPU {uuid} is in compute mode {mode:?} and cannot be shared"
    );
    Ok(())
}

/// Joins the MPS daemon of the GPU, or starts one.
fn join(
    site: &Site,
    run: RunId,
    standing: Option<SharedGpu>,
    own: &GrantedGpu,
    caps: MpsCaps,
    milli: u32,
) -> Result<SharedGpu> {
    if let Some(standing) = standing {
        let same = (standing.uid, standing.milli, standing.memory_mib)
            == (caps.uid, milli, caps.memory_mib);
        if same && lives(site, &standing) {
            return Ok(standing);
        }
        let others = working(site, &standing.uuid, Some(run));
        let why = if same {
            "its MPS daemon has died under them"
        } else {
            "it is another user's, or of another size"
        };
        ensure!(
            others.is_empty(),
            "GPU {} is shared by {others:?}, and {why}",
            standing.uuid
        );
        // What is left of one that was killed, here or on another boot.
        end(site, &standing)?;
    }
    begin(site, own, caps, milli)
}

fn begin(site: &Site, own: &GrantedGpu, caps: MpsCaps, milli: u32) -> Result<SharedGpu> {
    let why = why_not(site);
    ensure!(why.is_empty(), "GPU {} cannot be shared: {why}", own.uuid);
    let mode_before = watch(site)?.compute_mode(&own.uuid)?;
    ensure!(
        mode_before != ComputeMode::Prohibited,
        "GPU {} is in compute mode prohibited",
        own.uuid
    );
    let pipe = site
        .config
        .run_dir
        .join(PIPES_DIR)
        .join(format!("gpu{}", own.gpu.minor));
    let mut shared = SharedGpu {
        uuid: own.uuid.clone(),
        uid: caps.uid,
        milli,
        memory_mib: caps.memory_mib,
        pipe,
        mode_before,
        pid: None,
    };
    // From here on the next life knows what to take back.
    write(site, &shared)?;
    let begun = exclusive_with_daemon(site, own, &caps, &shared);
    match begun {
        Ok(pid) => {
            shared.pid = Some(pid);
            write(site, &shared)?;
            Ok(shared)
        }
        Err(e) => {
            if let Err(left) = end(site, &shared) {
                tracing::error!("GPU {}: {left:#}", shared.uuid);
            }
            Err(e.context(format!("sharing GPU {} by MPS", shared.uuid)))
        }
    }
}

/// In exclusive mode the server has the only context, so each client goes through it.
fn exclusive_with_daemon(
    site: &Site,
    own: &GrantedGpu,
    caps: &MpsCaps,
    shared: &SharedGpu,
) -> Result<i32> {
    watch(site)?.set_compute_mode(&own.uuid, ComputeMode::ExclusiveProcess)?;
    let pipes = site.config.run_dir.join(PIPES_DIR);
    fs::create_dir_all(&pipes).with_context(|| format!("making {}", pipes.display()))?;
    fs::set_permissions(&pipes, fs::Permissions::from_mode(0o711))?;
    let real_mib = (own.gpu.memory_bytes / 1000 * u64::from(shared.milli)) >> 20;
    let caps = MpsCaps {
        memory_mib: caps.memory_mib.min(real_mib.max(1)),
        ..*caps
    };
    let rules = fence_rules(site, std::slice::from_ref(own))
        .map_err(|failure| anyhow::anyhow!(failure.text))?;
    place(site, shared)?.start(&caps, &rules)
}

/// After the last process of a run: MPS ends with the last run on the GPU. What was done, for the run's log. Blocking, safe to repeat.
pub fn leave(site: &Site, run: RunId) -> Vec<String> {
    let Ok(order) = site.spool.order(run) else {
        return Vec::new();
    };
    let shares: Vec<&OrderGpu> = order.gpus.iter().filter(|gpu| is_share(gpu)).collect();
    if shares.is_empty() {
        return Vec::new();
    }
    let mut turn = turn(site);
    let held = site.spool.held();
    turn.retain(|run| held.contains(run));
    turn.insert(run);
    let mut said = Vec::new();
    for gpu in shares {
        if !users(site, &gpu.uuid, Some(run), &turn).is_empty() {
            continue;
        }
        match read(site, &gpu.uuid)
            .and_then(|standing| standing.map(|standing| end(site, &standing)).transpose())
        {
            Ok(None) => {}
            Ok(Some(())) => said.push(format!(
                "MPS on GPU {} has ended; it is in its former compute mode",
                gpu.uuid
            )),
            Err(e) => {
                said.push(format!("MPS on GPU {}: {e:#}", gpu.uuid));
                if let Some(watch) = &site.gpu_watch {
                    watch.not_clean(
                        &gpu.uuid,
                        format!("MPS of earlier shares could not be taken away: {e:#}"),
                        &site.gpus,
                    );
                }
            }
        }
    }
    said
}

/// The GPUs that no other run has a share of: these have to be clean now.
pub fn only_its_own(site: &Site, run: RunId, gpus: Vec<String>) -> Vec<String> {
    let Ok(order) = site.spool.order(run) else {
        return gpus;
    };
    if !order.gpus.iter().any(is_share) {
        return gpus;
    }
    let turn = turn(site);
    gpus.into_iter()
        .filter(|uuid| users(site, uuid, Some(run), &turn).is_empty())
        .collect()
}

/// The runs of MPS daemons that died: their work on the GPU is lost. An MPS daemon that could not be removed before is tried again.
pub fn look(site: &Site) -> Vec<(RunId, String)> {
    let mut to_end = Vec::new();
    // Health does not wait for a daemon that is slow to start.
    let Ok(turn) = site.left_shares.try_lock() else {
        return to_end;
    };
    for standing in standing(site) {
        if lives(site, &standing) {
            continue;
        }
        let uuid = &standing.uuid;
        let users = users(site, uuid, None, &turn);
        if users.is_empty()
            && let Err(e) = end(site, &standing)
        {
            tracing::debug!("GPU {uuid}: MPS of earlier shares: {e:#}");
        }
        let why = format!("the MPS daemon of GPU {uuid} died: what the run had on the GPU is lost");
        to_end.extend(
            working(site, uuid, None)
                .into_iter()
                .map(|run| (run, why.clone())),
        );
    }
    to_end
}

/// Whether MPS has the GPU, or something of it is left there.
pub fn stands(site: &Site, uuid: &str) -> bool {
    file(site, uuid).exists()
}

/// When gpud starts: shares without runs are taken back, cgroups without shares too. Blocking.
pub fn settle(site: &Site) {
    let turn = turn(site);
    let mut standing = standing(site);
    standing.extend(without_record(site, &standing));
    for shared in standing
        .iter()
        .filter(|shared| users(site, &shared.uuid, None, &turn).is_empty())
    {
        tracing::warn!(
            "GPU {}: MPS was left by an earlier gpud and is taken away",
            shared.uuid
        );
        if let Err(e) = end(site, shared) {
            tracing::error!("GPU {}: {e:#}", shared.uuid);
        }
    }
}

/// MPS daemons in gpupool's cgroups without a record, because the spool was lost. The former compute mode was lost with it.
fn without_record(site: &Site, known: &[SharedGpu]) -> Vec<SharedGpu> {
    let names = site
        .cgroups
        .as_ref()
        .and_then(|root| root.runs().ok())
        .unwrap_or_default();
    let uuids = names
        .iter()
        .filter_map(|name| name.strip_prefix(CGROUP_PREFIX));
    let unknown = uuids.filter(|uuid| known.iter().all(|shared| shared.uuid != *uuid));
    let shared = |uuid: &str| SharedGpu {
        uuid: uuid.to_owned(),
        uid: 0,
        milli: 0,
        memory_mib: 0,
        pipe: site.config.run_dir.join(PIPES_DIR).join("unknown"),
        mode_before: ComputeMode::Default,
        pid: None,
    };
    unknown.map(shared).collect()
}

/// The holder may change shares.
type ShareTurn<'a> = MutexGuard<'a, BTreeSet<RunId>>;

fn turn(site: &Site) -> ShareTurn<'_> {
    site.left_shares.lock().expect("no holder panics")
}

fn is_share(gpu: &OrderGpu) -> bool {
    matches!(gpu.part, GpuPart::Share { .. })
}

fn capped(gpu: &OrderGpu) -> Option<(u32, u64, u32)> {
    match gpu.part {
        GpuPart::Share {
            milli,
            memory_mib,
            tenant: Some(uid),
        } => Some((milli, memory_mib, uid)),
        _ => None,
    }
}

/// Runs accepted here that are given this GPU and have not left it, but one.
fn users(site: &Site, uuid: &str, but: Option<RunId>, left: &BTreeSet<RunId>) -> Vec<RunId> {
    let others = site
        .spool
        .held()
        .into_iter()
        .filter(|run| Some(*run) != but && !left.contains(run));
    others.filter(|run| has(site, *run, uuid)).collect()
}

/// Live runs that are given this GPU, but one: released, or about to be.
fn working(site: &Site, uuid: &str, but: Option<RunId>) -> Vec<RunId> {
    site.spool
        .live()
        .into_iter()
        .filter(|run| Some(*run) != but && has(site, *run, uuid))
        .collect()
}

fn has(site: &Site, run: RunId, uuid: &str) -> bool {
    site.spool
        .order(run)
        .is_ok_and(|order| order.gpus.iter().any(|gpu| gpu.uuid == uuid))
}

fn lives(site: &Site, shared: &SharedGpu) -> bool {
    shared
        .pid
        .is_some_and(|pid| place(site, shared).is_ok_and(|place| place.lives(pid)))
}

/// In the opposite order of its beginning; the file goes last.
fn end(site: &Site, shared: &SharedGpu) -> Result<()> {
    place(site, shared)?.end()?;
    watch(site)?.set_compute_mode(&shared.uuid, shared.mode_before)?;
    let path = file(site, &shared.uuid);
    match fs::remove_file(&path).and_then(|()| sync_parent(&path)) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(e).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn place<'a>(site: &'a Site, shared: &'a SharedGpu) -> Result<MpsDaemon<'a>> {
    let Some(cgroups) = &site.cgroups else {
        bail!(
            "{}",
            if site.unfit.is_empty() {
                "there are no cgroups"
            } else {
                &site.unfit
            }
        )
    };
    Ok(MpsDaemon {
        program: &site.config.mps_control,
        cgroups,
        cgroup: format!("{CGROUP_PREFIX}{}", shared.uuid),
        pipe: shared.pipe.clone(),
        log: dir(site).join(&shared.uuid),
        gpu: &shared.uuid,
    })
}

fn watch(site: &Site) -> Result<&GpuWatch> {
    site.gpu_watch
        .as_ref()
        .context("this node does not look after GPUs")
}

fn dir(site: &Site) -> PathBuf {
    site.spool.dir().join(SHARED_DIR)
}

fn file(site: &Site, uuid: &str) -> PathBuf {
    dir(site).join(format!("{uuid}.json"))
}

fn read(site: &Site, uuid: &str) -> Result<Option<SharedGpu>> {
    read_file(&file(site, uuid))
}

fn read_file(path: &Path) -> Result<Option<SharedGpu>> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .with_context(|| format!("reading {}", path.display())),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| format!("reading {}", path.display())),
    }
}

fn write(site: &Site, shared: &SharedGpu) -> Result<()> {
    private_dir(&dir(site))?;
    let path = file(site, &shared.uuid);
    write_atomic(&path, &serde_json::to_vec(shared)?)
        .with_context(|| format!("writing {}", path.display()))
}

fn standing(site: &Site) -> Vec<SharedGpu> {
    let Ok(entries) = fs::read_dir(dir(site)) else {
        return Vec::new();
    };
    let files = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"));
    let read = |path: PathBuf| {
        read_file(&path).unwrap_or_else(|e| {
            tracing::error!("{e:#}");
            None
        })
    };
    files.filter_map(read).collect()
}
