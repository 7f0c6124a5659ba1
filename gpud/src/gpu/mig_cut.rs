//! Cuts one GPU by MIG as the controller orders. A cut goes step by step from what stands, so it converges however often gpud is
//! killed during it. Decides no cut, and never touches a GPU that a run holds.

use crate::gpu::mig::{holders, kind};
use crate::gpu::share;
use crate::site::Site;
use anyhow::{Context, Result, bail, ensure};
use gmodel::mig::{MigKind, arrange};
use gsys::nvml::{MigLayout, NvmlWorker, WantedCut, WantedPart, next_step};
use std::collections::BTreeSet;
use std::time::Duration;

/// For a call into NVML: making an instance takes a second or two on a real board.
const PATIENCE: Duration = Duration::from_secs(20);
/// Seven slices of two parts are taken away and seven made.
const MOST_STEPS: usize = 64;

/// Cuts a GPU into these profiles, none: makes it whole. All that stands already is left as it is. While it works no run with GPUs
/// is made ready, and with a run on the GPU it does nothing. Blocking.
pub fn cut(site: &Site, worker: &NvmlWorker, uuid: &str, profiles: &[String]) -> Result<()> {
    let _nobody_prepares = site.gpus.cutting.write().expect("no holder panics");
    if let Some(run) = holders(&site.spool).get(uuid).and_then(BTreeSet::first) {
        bail!("run {run} holds it, or a slice of it; a busy GPU is not cut");
    }
    ensure!(
        !share::stands(site, uuid),
        "MPS of earlier shares is still there"
    );
    for _ in 0..MOST_STEPS {
        let found = worker.discover(PATIENCE)?;
        let gpu = found
            .gpus
            .iter()
            .find(|gpu| gpu.uuid == uuid)
            .with_context(|| format!("GPU {uuid} is not in this node"))?;
        if let Some(fault) = &gpu.fault {
            bail!("GPU {uuid}: {fault}");
        }
        let layout = gpu
            .mig
            .as_ref()
            .with_context(|| format!("GPU {uuid} ({}) cannot be cut by MIG", gpu.gpu_type))?;
        let Some(step) = next_step(layout, &wanted(layout, profiles)?, &BTreeSet::new())? else {
            return Ok(());
        };
        tracing::info!("GPU {uuid} is cut into {profiles:?}: {step:?}");
        worker.change(uuid, step, PATIENCE)?;
    }
    bail!(
        "GPU {uuid} is not cut into {} after {MOST_STEPS} steps",
        profiles.join(", ")
    )
}

fn wanted(layout: &MigLayout, profiles: &[String]) -> Result<WantedCut> {
    if profiles.is_empty() {
        return Ok(WantedCut::Whole);
    }
    let kinds: Vec<MigKind> = layout.profiles.iter().map(kind).collect();
    let starts = arrange(&kinds, profiles).map_err(anyhow::Error::msg)?;
    ensure!(starts.len() == profiles.len(), "each profile has its place");
    let parts = profiles
        .iter()
        .zip(starts)
        .map(|(profile, start)| WantedPart {
            profile: profile.to_lowercase(),
            start: u32::from(start),
        });
    Ok(WantedCut::Parts(parts.collect()))
}
