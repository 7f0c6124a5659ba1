//! Orders for GPUs: the controller's, each carried out once however often it comes, and those of this node's administrators
//! (`gpud gpu`), which lie in the spool until they are obeyed.

use crate::clock::wall_clock;
use crate::gpu::health::{self, LocalOrder};
use crate::gpu::mig_cut;
use crate::gpu::watch::{CLEAN_LOOK_EVERY, GpuWatch, ORDERS_DIR, lock};
use crate::site::Site;
use anyhow::{Context, Result};
use gmodel::gpu_order::{GpuAction, GpuOrder, GpuOrderDone};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Between two tries where the disk refuses an answer.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// For GPUs to be looked at for the first time after the daemon's start: an order that comes sooner waits so long.
const FIRST_LOOK_WITHIN: Duration = Duration::from_secs(20);

impl GpuWatch {
    /// Carries out the controller's orders, each once however often it comes; the answers, which are on disk. Empty where
    /// the disk failed: the orders come again. Blocking.
    pub fn carry_out(
        &self,
        incarnation: u64,
        orders: &[GpuOrder],
        site: &Site,
    ) -> Vec<GpuOrderDone> {
        let _one_at_a_time = lock(&self.carrying_out);
        let mut done = Vec::new();
        for order in orders {
            let known = lock(&self.health).answered(incarnation, order);
            done.push(known.unwrap_or_else(|| {
                self.wait_for_first_look(order);
                // Seconds, in which nothing of the health may wait.
                let cut = match &order.what {
                    GpuAction::Cut { profiles } => self.cut(site, &order.uuid, profiles),
                    _ => Ok(()),
                };
                let mut health = lock(&self.health);
                let outcome = match &order.what {
                    GpuAction::Quarantine { reason } => health.obey(
                        &order.uuid,
                        LocalOrder::Quarantine(reason.clone()),
                        wall_clock(),
                    ),
                    GpuAction::Return => health.obey(&order.uuid, LocalOrder::Return, wall_clock()),
                    GpuAction::Repair => {
                        health.permit(&order.uuid, site.spool.live().is_empty(), wall_clock())
                    }
                    GpuAction::Cut { .. } => cut,
                    GpuAction::Check(_) => Err(anyhow::anyhow!("a check is begun elsewhere")),
                    GpuAction::Unknown => Err(anyhow::anyhow!(
                        "gpud {} does not know this order",
                        env!("CARGO_PKG_VERSION")
                    )),
                };
                health.carried_out(incarnation, order, outcome)
            }));
        }
        let written = lock(&self.health).write(wall_clock());
        self.ordered.store(true, Ordering::Relaxed);
        self.show(&site.gpus);
        if !written {
            std::thread::sleep(LOOK_EVERY);
            done.clear();
        }
        done
    }

    /// A driver may be slower than the controller's first order, and only a look finds the step of a repair that waits. Blocking.
    fn wait_for_first_look(&self, order: &GpuOrder) {
        let needs_look = order.what == GpuAction::Repair;
        let too_soon = || {
            !self.looked.load(Ordering::Relaxed)
                && (needs_look || !lock(&self.health).knows(&order.uuid))
        };
        while too_soon() && self.opened.elapsed() < FIRST_LOOK_WITHIN {
            std::thread::sleep(CLEAN_LOOK_EVERY);
        }
    }

    /// Writes down that a check begins; the answer where that was written before: its daemon or its node ended during it.
    pub fn check_begins(&self, incarnation: u64, order: &GpuOrder) -> Result<Option<GpuOrderDone>> {
        let mut health = lock(&self.health);
        if let Some(done) = health.answered(incarnation, order) {
            return Ok(Some(done));
        }
        health.carried_out(
            incarnation,
            order,
            Err(anyhow::anyhow!("gpud or its node ended during the check")),
        );
        anyhow::ensure!(health.write(wall_clock()), "the spool cannot be written");
        Ok(None)
    }

    /// Cuts a GPU by MIG, and discovers the result before the order is answered.
    fn cut(&self, site: &Site, uuid: &str, profiles: &[String]) -> Result<()> {
        site.checks.give_way([uuid], "the GPU is cut by MIG")?;
        let outcome = mig_cut::cut(site, self.nvml(), uuid, profiles);
        self.discover(&site.gpus);
        outcome
    }

    /// What administrators ordered since; the order is gone once it is obeyed. True when there was one.
    pub(super) fn take_orders(&self) -> bool {
        let mut taken = self.ordered.swap(false, Ordering::Relaxed);
        let Ok(entries) = std::fs::read_dir(&self.orders) else {
            return taken;
        };
        for path in entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|e| e == "json"))
        {
            let Some(uuid) = path.file_stem().and_then(|stem| stem.to_str()) else {
                continue;
            };
            let order = std::fs::read(&path)
                .map_err(anyhow::Error::from)
                .and_then(|bytes| Ok(serde_json::from_slice::<LocalOrder>(&bytes)?));
            match order {
                Ok(order) => {
                    if let Err(e) = lock(&self.health).obey(uuid, order, wall_clock()) {
                        tracing::warn!("{e:#}");
                    }
                }
                Err(e) => tracing::error!("{}: {e:#}", path.display()),
            }
            lock(&self.health).write(wall_clock());
            let _ = std::fs::remove_file(&path);
            taken = true;
        }
        taken
    }
}

/// Leaves an order for the daemon of this node. `gpu`: UUID, its beginning, or the driver's index.
pub fn leave(spool_dir: &Path, gpu: &str, order: &LocalOrder) -> Result<String> {
    let uuid = find(spool_dir, gpu)?;
    let dir = spool_dir.join(ORDERS_DIR);
    let path = dir.join(format!("{uuid}.json"));
    let bytes = serde_json::to_vec(order)?;
    gsys::durable_file::write_atomic(&path, &bytes)
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(uuid)
}

fn find(spool_dir: &Path, gpu: &str) -> Result<String> {
    let records = health::records(spool_dir)?;
    let is_it = |uuid: &str, index: u32| {
        gpu.parse() == Ok(index) || (!gpu.is_empty() && uuid.starts_with(gpu))
    };
    let found: Vec<&String> = records
        .iter()
        .filter(|(uuid, record)| is_it(uuid, record.index))
        .map(|(uuid, _)| uuid)
        .collect();
    match found[..] {
        [uuid] => Ok(uuid.clone()),
        [] => anyhow::bail!(
            "no GPU {gpu:?} here; gpud gpu list shows the {} that were seen on this node",
            records.len()
        ),
        _ => anyhow::bail!(
            "{gpu:?} means {} GPUs of this node; name the UUID, as gpud gpu list shows it",
            found.len()
        ),
    }
}
